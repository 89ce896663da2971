"""Files that are indexed in place: which of those that a catalog names are opened at all.

A catalog may come from somebody else, and name any file of the machine.  What is opened here is
besides only given away block by block, each compared with its sum (`vfsd.integrity.summing`):
nobody gets a byte that whoever made the catalog did not know.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from vfsd.errors import IntegrityError
from vfsd.integrity.diskfile import OF_THE_PROCESS

_HOW = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KERNELS = ("/proc", "/sys")
"""Where file systems are whose files are made when they are read."""


def open_linked(path: str | os.PathLike[str], root: Path) -> int:
    """A descriptor of a file that the store at `root` has indexed in place.

    Raises `IntegrityError` for what is none that it may show, `OSError`.
    """
    if not os.path.isabs(path):
        raise _refused(path, "is no absolute path")
    try:
        fd = os.open(path, _HOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _refused(path, "is no regular file") from error
        raise
    try:
        fault = _fault(fd, root)
        if fault is not None:
            raise _refused(path, fault)
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_linked(path: str | os.PathLike[str], root: Path) -> None:
    """Raises as `open_linked` does."""
    os.close(open_linked(path, root))


def is_out_of_reach(path: str | os.PathLike[str], root: Path) -> bool:
    """Whether such a file is neither gone nor another, for all that can be told, and cannot be
    opened: its disk has gone, say, or its server does not answer, which says nothing of its bytes.
    """
    try:
        require_linked(path, root)
    except (FileNotFoundError, IntegrityError):
        return False
    except OSError as error:
        return error.errno not in OF_THE_PROCESS
    return False


def _refused(path: str | os.PathLike[str], fault: str) -> IntegrityError:
    return IntegrityError(
        f"{os.fspath(path)} {fault}, and is not shown",
        hint="who made the store's catalog? `vfsd info` tells which video it is",
    )


def _fault(fd: int, root: Path) -> str | None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    for place in _KERNELS:
        with suppress(FileNotFoundError):
            if os.stat(place).st_dev == found.st_dev:
                return f"lies in {place}"
    if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(root.resolve()):
        return "lies inside the store"
    owner = root.stat().st_uid
    if not _may_read(owner, found):
        return f"may not be read by user {owner}, whose store it is"
    return None


def _may_read(uid: int, found: os.stat_result) -> bool:
    """By the mode of the file; the process, which may be root's, has opened it already."""
    if uid in (0, os.geteuid()):
        return True
    if uid == found.st_uid:
        return bool(found.st_mode & stat.S_IRUSR)
    if found.st_gid in _groups_of(uid):
        return bool(found.st_mode & stat.S_IRGRP)
    return bool(found.st_mode & stat.S_IROTH)


def _groups_of(uid: int) -> set[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return set()
    return set(os.getgrouplist(user.pw_name, user.pw_gid))
