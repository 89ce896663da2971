"""The C interface of libfuse 3: prototypes of the callbacks, and the start of ``struct fuse``.

Each mount sets its own inode generation in that structure.
"""

from __future__ import annotations

import ctypes
import logging
import secrets
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


_log = logging.getLogger(__name__)


class _Table(ctypes.Structure):
    """``struct node_table``."""

    _fields_ = (("array", c_void_p), ("use", c_size_t), ("size", c_size_t), ("split", c_size_t))


class _Fuse(ctypes.Structure):
    """The first fields of ``struct fuse`` in all versions of libfuse 3.

    The structure is private to libfuse, so its contents are checked before use.
    """

    _fields_ = (
        ("session", c_void_p),
        ("by_name", _Table),
        ("by_number", _Table),
        ("oldest", c_void_p * 2),
        ("counter", c_uint64),
        ("generation", c_uint),
        ("hidden", c_uint),  # counter for names of hidden files
    )


def begin_generation(library: Any, fuse: int) -> int | None:
    """Give files that are looked up from now on a random generation, distinct from other mounts'.

    Call it while libfuse handles INIT, with the address of ``struct fuse``. At that time only the
    root is known. Return the start number for names of hidden files. If the structure looks
    unfamiliar, leave it alone and return None.
    """
    library.fuse_get_session.restype = c_void_p
    library.fuse_get_session.argtypes = [c_void_p]
    found = _Fuse.from_address(fuse)
    is_known = (
        found.session == library.fuse_get_session(fuse)
        and found.by_name.size == found.by_number.size
        and found.by_number.use == 1
        and found.counter in (0, 1)
        and (found.generation, found.hidden) == (0, 0)
    )
    if not is_known:
        _log.debug("unknown layout of struct fuse; file handles have no generation")
        return None
    found.generation = secrets.randbelow((1 << 31) - 1) + 1
    found.hidden = secrets.randbits(32)
    return int(found.hidden)
