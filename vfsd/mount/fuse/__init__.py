"""The FUSE adapter: mounts a `vfsd.mount.fs.Filesystem` and translates the callbacks of libfuse.

libfuse and its Python binding are imported only when a store is mounted.
"""
