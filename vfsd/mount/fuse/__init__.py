"""Between the kernel and `vfsd.mount.fs`: mounting, and translating what libfuse asks.

libfuse and its Python binding are looked for only when something is mounted.
"""
