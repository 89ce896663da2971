"""Numbers of libfuse's that are others in each mount.

Handles of an earlier mount lead nowhere.

libfuse numbers files in the order in which they are looked up, and begins anew with each mount.  A
file handle (name_to_handle_at(2), NFS) holds that number and a generation; as libfuse leaves it
at 0, a handle that a client of NFS has kept over a remount would lead to whatever file has the
number now.  With a generation of its own for each mount such a handle is ESTALE.

And names that libfuse makes up are told from those that others did: see
`vfsd.mount.fuse.silly_rename`.
"""

from __future__ import annotations

import ctypes
import logging
import secrets
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

_log = logging.getLogger(__name__)


class _Table(ctypes.Structure):
    """``struct node_table``."""

    _fields_ = (("array", c_void_p), ("use", c_size_t), ("size", c_size_t), ("split", c_size_t))


class _Fuse(ctypes.Structure):
    """How ``struct fuse`` begins in all of libfuse 3.  It is in no header, so it is looked at
    first whether it is that."""

    _fields_ = (
        ("session", c_void_p),
        ("by_name", _Table),
        ("by_number", _Table),
        ("oldest", c_void_p * 2),
        ("counter", c_uint64),
        ("generation", c_uint),
        ("hidden", c_uint),  # names for open files, so far
    )


def begin_generation(library: Any, fuse: int) -> int | None:
    """Give all files that are looked up from now on a generation that no other mount has.

    To be called while libfuse handles INIT: `fuse` is the ``struct fuse``, in which nothing but the
    root is known yet.  Gives the number from which names of hidden files are counted; None where it
    does not look as it should, and is left alone.
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
        _log.debug("this libfuse keeps its files in another way; handles have no generation")
        return None
    found.generation = secrets.randbelow((1 << 31) - 1) + 1
    found.hidden = secrets.randbits(32)
    return int(found.hidden)
