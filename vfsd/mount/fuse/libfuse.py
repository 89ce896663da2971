"""The Python binding of libfuse, and the C interface of libfuse 3.

mfusepy with libfuse 3 is the normal case. fusepy, its predecessor, knows only libfuse 2, with fewer
features.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfsd.errors import FuseMissingError, MountError, UsageError
from vfsd.mount.fuse.mount_options import MountOptions

_log = logging.getLogger(__name__)

BINDING_VARIABLE = "VFSD_FUSE"
"""Environment variable with the name of the binding: mfusepy or fusepy."""
INTERFACE_VARIABLE = "VFSD_FUSE_API"
"""Environment variable with the interface of libfuse 3 to use: paths or inodes."""
_BINDINGS = {"mfusepy": "mfusepy", "fusepy": "fuse"}
_INSTALL = "apt install fuse3 (Debian, Ubuntu), dnf install fuse3 (Fedora)"
_DEVICE = "/dev/fuse"
_SETTINGS = Path("/etc/fuse.conf")
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


@dataclass(frozen=True)
class Binding:
    """A Python module that wraps libfuse."""

    name: str
    module: Any
    major: int  #: version of libfuse
    minor: int


def load() -> Binding:
    """Import the binding that ``VFSD_FUSE`` names, or the best one installed.

    Raises `FuseMissingError` without a binding or libfuse, `UsageError` for another name.
    """
    choice = os.environ.get(BINDING_VARIABLE) or None
    if choice is not None and choice not in _BINDINGS:
        raise UsageError(
            f"the binding must be mfusepy or fusepy, got {choice!r}", hint="mfusepy or fusepy"
        )
    for name in [choice] if choice else _BINDINGS:
        try:
            with _libfuse_chosen(name):
                module = importlib.import_module(_BINDINGS[name])
        except ModuleNotFoundError:
            continue
        except (OSError, AttributeError) as error:  # raised by both bindings without libfuse
            raise FuseMissingError(f"{name} finds no libfuse: {error}", hint=_INSTALL) from error
        major, minor = _version(module)
        return Binding(name, module, major, minor)
    wanted = choice or "mfusepy"
    raise FuseMissingError(f"{wanted} is not installed", hint=f"pip install {wanted}")


def speaks_inodes(binding: Binding) -> bool:
    """Return whether the mount uses libfuse's low-level interface. Raises `UsageError`."""
    choice = os.environ.get(INTERFACE_VARIABLE) or "paths"
    if choice not in ("paths", "inodes"):
        raise UsageError(
            f"{INTERFACE_VARIABLE} must be paths or inodes, got {choice!r}", hint="leave it out"
        )
    return choice == "inodes" and (binding.major, binding.minor) >= (3, 10)


def require_fuse(options: MountOptions) -> None:
    """Check before mounting whether it can work. Raises `FuseMissingError`, `MountError`."""
    load()
    if not os.path.exists(_DEVICE):
        raise FuseMissingError(f"{_DEVICE} is missing", hint="modprobe fuse")
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        raise FuseMissingError(
            f"{_DEVICE} cannot be opened: no permission", hint=f"sudo chmod 666 {_DEVICE}"
        )
    if os.geteuid() == 0:
        return
    if not (shutil.which("fusermount3") or shutil.which("fusermount")):
        raise FuseMissingError("fusermount3 is not installed", hint=_INSTALL)
    if options.is_shared and not _others_are_allowed():
        raise MountError(
            "only root may mount for other users here",
            hint=f"leave out allow_other, or write user_allow_other into {_SETTINGS}",
        )


def _others_are_allowed() -> bool:
    try:
        lines = _SETTINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


@contextmanager
def _libfuse_chosen(name: str) -> Iterator[None]:
    """Make mfusepy use libfuse 3 if both versions are installed and the environment has no
    choice."""
    key = "FUSE_LIBRARY_NAME"
    is_chosen = key in os.environ or "FUSE_LIBRARY_PATH" in os.environ
    if name != "mfusepy" or is_chosen or ctypes.util.find_library("fuse3") is None:
        yield
        return
    os.environ[key] = "fuse3"
    try:
        yield
    finally:
        del os.environ[key]


def _version(module: Any) -> tuple[int, int]:
    number = int(module._libfuse.fuse_version())
    return divmod(number, 100 if number >= 100 else 10)


Filler = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_int64, c_int)


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
