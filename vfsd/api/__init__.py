"""The Python API: `Store` and `Video`."""
