"""``vfsd labels``."""
