"""Between the kernel and `vfsd.fs`: mounting, and translating what libfuse asks.

libfuse and its Python binding are looked for only when something is mounted.
"""
