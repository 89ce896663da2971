"""Files that are indexed in place: which of those that a catalog names are opened at all.

A catalog may come from somebody else, and name any file of the machine.  What is opened here is
besides only given away block by block, each compared with its sum
(`vfsd.storage.checksum_registry`): nobody gets a byte that whoever made the catalog did not know.

A file in a mount of vfsd is never opened: the mount that shows it would read it through itself or
through another mount that waits for it, and the kernel can end neither.  The path is therefore
followed one directory at a time, and each is looked at before the kernel asks it for the next.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from vfsd.disk.direct_io import OF_THE_PROCESS
from vfsd.disk.mount_queries import IDENTITY, mounts
from vfsd.errors import IntegrityError, UsageError

_HOW = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLLOW = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_LINKS = 40
_MOUNTED = "is in a mount of vfsd"
_KERNELS = ("/proc", "/sys")
"""Where file systems are whose files are made when they are read."""


def open_linked(path: str | os.PathLike[str], root: Path) -> int:
    """A descriptor of a file that the store at `root` has indexed in place.

    Raises `IntegrityError` for what is none that it may show, `OSError`.
    """
    if not os.path.isabs(path):
        raise _refused(path, "is not an absolute path")
    held = _followed(path)
    try:
        fault = _mount_fault(held)
        if fault is None and not stat.S_ISREG(os.fstat(held).st_mode):
            fault = "is not a regular file"
        if fault is not None:
            raise _refused(path, fault)
        fd = os.open(f"/proc/self/fd/{held}", _HOW)
    finally:
        os.close(held)
    try:
        fault = _fault(fd, root)
        if fault is not None:
            raise _refused(path, fault)
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_linkable(path: str | os.PathLike[str]) -> None:
    """Raises `UsageError` for a file that cannot be indexed in place, as a mount of a store shows
    it; `OSError`."""
    try:
        held = _followed(path)
        try:
            fault = _mount_fault(held)
        finally:
            os.close(held)
        if fault is not None:
            raise _refused(path, fault)
    except IntegrityError as error:
        raise UsageError(
            f"{os.fspath(path)} {_MOUNTED}, and cannot be indexed where it is",
            hint="leave out --link: the file is copied, and shares its bytes with the same video",
        ) from error


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


def _followed(path: str | os.PathLike[str]) -> int:
    """A descriptor (O_PATH) of what an absolute path leads to; a link is not followed at its end.

    Raises `IntegrityError` where a mount of vfsd is on the way, `OSError`.
    """
    ours = {mount.id for mount in mounts() if mount.is_ours}
    if not ours:
        return os.open(path, _FOLLOW)
    at = os.open("/", _FOLLOW)
    names = os.fspath(path).split("/")[::-1]
    links = 0
    try:
        while names:
            name = names.pop()
            if not name:
                continue
            if _mount_id(at) in ours:
                raise _refused(path, _MOUNTED)
            below = os.open(name, _FOLLOW, dir_fd=at)
            is_link = _mount_id(below) not in ours and stat.S_ISLNK(os.fstat(below).st_mode)
            if not is_link or not any(names):
                os.close(at)
                at = below
                continue
            target = os.readlink("", dir_fd=below)
            os.close(below)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
            names += target.split("/")[::-1]
            if target.startswith("/"):
                os.close(at)
                at = os.open("/", _FOLLOW)
        if _mount_id(at) in ours:
            raise _refused(path, _MOUNTED)
    except BaseException as error:
        os.close(at)
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = os.fspath(path)
        raise
    return at


def _mount_id(fd: int) -> str | None:
    """Asks the kernel alone, and not the process that serves the mount."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), None)
    except OSError:
        return None


def _mount_fault(fd: int) -> str | None:
    """Why a file must not be opened that lies in no mount of ours itself: what it lies on does."""
    try:
        os.getxattr(f"/proc/self/fd/{fd}", IDENTITY)
    except OSError:
        pass  # as on every disk
    else:
        return f"{_MOUNTED}, which another file system shows"
    device = os.fstat(fd).st_dev
    block = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for loop in (f"{block}/loop", f"{block}/../loop"):
        with suppress(OSError):
            image = Path(f"{loop}/backing_file").read_text(encoding="utf-8").rstrip("\n")
            try:
                os.close(_followed(image))
            except IntegrityError:
                return f"is on a disk whose image {image} {_MOUNTED}"
    return None


def _refused(path: str | os.PathLike[str], fault: str) -> IntegrityError:
    return IntegrityError(
        f"{os.fspath(path)} {fault}, and is not shown",
        hint="`vfsd info` tells which video it is; check where the store's catalog comes from",
    )


def _fault(fd: int, root: Path) -> str | None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    for place in _KERNELS:
        with suppress(FileNotFoundError):
            if os.stat(place).st_dev == found.st_dev:
                return f"lies in {place}"
    where = Path(os.readlink(f"/proc/self/fd/{fd}"))
    if where.is_relative_to(root.resolve()) or is_below(where, root):
        return "lies inside the store"
    owner = root.stat().st_uid
    if not _may_read(owner, found):
        return f"may not be read by user {owner}, whose store it is"
    return None


def is_below(path: Path, root: Path) -> bool:
    """Whether a path lies in a directory, by device and inode: also where that is bound to another
    place.  Neither may be in a mount that does not answer."""
    own = [root, *(root / name for name in ("objects", "spool", "cache"))]
    found = [os.stat(one) for one in own if one.exists()]
    for above in path.parents:
        with suppress(OSError):
            if any(os.path.samestat(os.stat(above), one) for one in found):
                return True
    return False


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
