"""The callbacks of libfuse 3 as `vfsd.mount.fuse.libfuse3` wants them: pointers as plain numbers.

Where a path is never looked at, it is a number too; making text of it would cost time.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_uint64, c_void_p
from typing import Any

Filler = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_int64, c_int)

ARGUMENTS: dict[str, list[Any]] = {
    "getattr": [c_char_p, c_void_p, c_void_p],
    "readlink": [c_char_p, c_void_p, c_size_t],
    "mknod": [c_char_p, c_uint, c_uint64],
    "mkdir": [c_char_p, c_uint],
    "unlink": [c_char_p],
    "rmdir": [c_char_p],
    "symlink": [c_char_p, c_char_p],
    "rename": [c_char_p, c_char_p, c_uint],
    "link": [c_char_p, c_char_p],
    "chmod": [c_char_p, c_uint, c_void_p],
    "chown": [c_char_p, c_uint, c_uint, c_void_p],
    "truncate": [c_char_p, c_int64, c_void_p],
    "open": [c_char_p, c_void_p],
    "read": [c_void_p, c_void_p, c_size_t, c_int64, c_void_p],
    "write": [c_void_p, c_void_p, c_size_t, c_int64, c_void_p],
    "statfs": [c_char_p, c_void_p],
    "flush": [c_void_p, c_void_p],
    "release": [c_void_p, c_void_p],
    "fsync": [c_void_p, c_int, c_void_p],
    "setxattr": [c_char_p, c_char_p, c_void_p, c_size_t, c_int],
    "getxattr": [c_char_p, c_char_p, c_void_p, c_size_t],
    "listxattr": [c_char_p, c_void_p, c_size_t],
    "removexattr": [c_char_p, c_char_p],
    "opendir": [c_char_p, c_void_p],
    "readdir": [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int],
    "releasedir": [c_void_p, c_void_p],
    "fsyncdir": [c_void_p, c_int, c_void_p],
    "init": [c_void_p, c_void_p],
    "create": [c_char_p, c_uint, c_void_p],
    "utimens": [c_char_p, c_void_p, c_void_p],
    "fallocate": [c_void_p, c_int, c_int64, c_int64, c_void_p],
    "copy_file_range": [
        c_void_p,
        c_void_p,
        c_int64,
        c_void_p,
        c_void_p,
        c_int64,
        c_size_t,
        c_int,
    ],
    "lseek": [c_void_p, c_int64, c_int, c_void_p],
}
RESULTS: dict[str, Any] = {"copy_file_range": c_ssize_t, "lseek": c_int64, "init": c_void_p}
