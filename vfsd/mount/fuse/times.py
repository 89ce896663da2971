"""What `tv_nsec` says when it is no time: see utimensat(2)."""

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
