"""Lists everything in a file besides its samples, and compares two such lists."""
