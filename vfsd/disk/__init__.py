"""Files of a store: names, atomic writes, safe opening, checksums."""
