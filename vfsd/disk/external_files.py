"""Decides which files outside of the store may be opened for originals indexed in place.

A catalog from an untrusted source may name any file. Opened files are returned only block by block,
each compared with its checksum (`vfsd.storage.original_files`). So readers get only bytes that
the author of the catalog knew.

A file in a mount of vfsd is never opened: the mount would read through itself, or through a mount
that waits for it, and the kernel cannot end such a read. So the path is followed one directory at a
time, and each is checked before the next is opened.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from vfsd.disk.mount_queries import IDENTITY, mounts
from vfsd.disk.safe_open import OF_THE_PROCESS
from vfsd.errors import IntegrityError, UsageError

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PATH_FLAGS = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_LINKS = 40
_IN_MOUNT = "is in a mount of vfsd"
# File systems that generate their files on reading.
_KERNEL_FILE_SYSTEMS = ("/proc", "/sys")


def open_linked(path: str | os.PathLike[str], root: Path) -> int:
    """Open a file that the store at `root` has indexed in place.

    Raises `IntegrityError` if it must not be opened, `OSError`.
    """
    if not os.path.isabs(path):
        raise _refusal(path, "is not an absolute path")
    path_fd = _open_path(path)
    try:
        fault = _mount_fault(path_fd)
        if fault is None and not stat.S_ISREG(os.fstat(path_fd).st_mode):
            fault = "is not a regular file"
        if fault is not None:
            raise _refusal(path, fault)
        fd = os.open(f"/proc/self/fd/{path_fd}", _OPEN_FLAGS)
    finally:
        os.close(path_fd)
    try:
        fault = _fault(fd, root)
        if fault is not None:
            raise _refusal(path, fault)
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_linkable(path: str | os.PathLike[str]) -> None:
    """Raise `UsageError` if a file cannot be indexed in place since it is in a mount; `OSError`."""
    try:
        path_fd = _open_path(path)
        try:
            fault = _mount_fault(path_fd)
        finally:
            os.close(path_fd)
        if fault is not None:
            raise _refusal(path, fault)
    except IntegrityError as error:
        raise UsageError(
            f"{os.fspath(path)} {_IN_MOUNT} and cannot be indexed in place",
            hint="leave out --link: the file is copied and shares its bytes with the same video",
        ) from error


def require_linked(path: str | os.PathLike[str], root: Path) -> None:
    """Raise as `open_linked`."""
    os.close(open_linked(path, root))


def is_out_of_reach(path: str | os.PathLike[str], root: Path) -> bool:
    """Return whether a file cannot be opened for a reason unrelated to its bytes.

    For instance its disk is not mounted, or its server does not answer. False if the file is
    missing, replaced or readable.
    """
    try:
        require_linked(path, root)
    except (FileNotFoundError, IntegrityError):
        return False
    except OSError as error:
        return error.errno not in OF_THE_PROCESS
    return False


def _open_path(path: str | os.PathLike[str]) -> int:
    """Return an O_PATH descriptor of an absolute path; a link at its end is not followed.

    Raises `IntegrityError` if the path leads through a mount of vfsd, `OSError`.
    """
    ours = {mount.id for mount in mounts() if mount.is_ours}
    if not ours:
        return os.open(path, _PATH_FLAGS)
    directory = os.open("/", _PATH_FLAGS)
    names = os.fspath(path).split("/")[::-1]
    links = 0
    try:
        while names:
            name = names.pop()
            if not name:
                continue
            if _mount_id(directory) in ours:
                raise _refusal(path, _IN_MOUNT)
            child = os.open(name, _PATH_FLAGS, dir_fd=directory)
            is_link = _mount_id(child) not in ours and stat.S_ISLNK(os.fstat(child).st_mode)
            if not is_link or not any(names):
                os.close(directory)
                directory = child
                continue
            target = os.readlink("", dir_fd=child)
            os.close(child)
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
            names += target.split("/")[::-1]
            if target.startswith("/"):
                os.close(directory)
                directory = os.open("/", _PATH_FLAGS)
        if _mount_id(directory) in ours:
            raise _refusal(path, _IN_MOUNT)
    except BaseException as error:
        os.close(directory)
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = os.fspath(path)
        raise
    return directory


def _mount_id(fd: int) -> str | None:
    """Return the id of a mount. The kernel answers this, not the process that serves the mount."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), None)
    except OSError:
        return None


def _mount_fault(fd: int) -> str | None:
    """Return why an open file depends on a mount of vfsd; None if it does not."""
    try:
        os.getxattr(f"/proc/self/fd/{fd}", IDENTITY)
    except OSError:
        pass  # an ordinary disk
    else:
        return f"{_IN_MOUNT}, through another file system"
    device = os.fstat(fd).st_dev
    block = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for loop in (f"{block}/loop", f"{block}/../loop"):
        with suppress(OSError):
            image = Path(f"{loop}/backing_file").read_text(encoding="utf-8").rstrip("\n")
            try:
                os.close(_open_path(image))
            except IntegrityError:
                return f"is on a disk whose image {image} {_IN_MOUNT}"
    return None


def _refusal(path: str | os.PathLike[str], fault: str) -> IntegrityError:
    return IntegrityError(
        f"{os.fspath(path)} {fault} and cannot be shown",
        hint="run `vfsd info` to find the video; check where the catalog of the store comes from",
    )


def _fault(fd: int, root: Path) -> str | None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    for place in _KERNEL_FILE_SYSTEMS:
        with suppress(FileNotFoundError):
            if os.stat(place).st_dev == found.st_dev:
                return f"is in {place}"
    where = Path(os.readlink(f"/proc/self/fd/{fd}"))
    if where.is_relative_to(root.resolve()) or is_below(where, root):
        return "is inside the store"
    owner = root.stat().st_uid
    if not _may_read(owner, found):
        return f"may not be read by user {owner}, the owner of the store"
    return None


def is_below(path: Path, root: Path) -> bool:
    """Return whether a path is in a directory, compared by device and inode, so through bind
    mounts.

    Neither may be in a mount that does not answer.
    """
    own = [root, *(root / name for name in ("objects", "spool", "cache"))]
    found = [os.stat(one) for one in own if one.exists()]
    for above in path.parents:
        with suppress(OSError):
            if any(os.path.samestat(os.stat(above), one) for one in found):
                return True
    return False


def _may_read(uid: int, found: os.stat_result) -> bool:
    """Return whether the mode of the file lets `uid` read it. This process may be root."""
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
