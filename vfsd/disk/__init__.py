"""Files of a store: paths, atomic writes, safe opening, checksums."""
