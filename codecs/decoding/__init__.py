"""Opens stored files, reads their packets and decodes them to frames."""
