"""vfsd: a video store that is used as a directory."""

__version__ = "0.1.0"
