"""A program that finds out where paths lead to in mounts; see `vfsd.disk.mount_queries.located`.

It imports nothing of vfsd, so that it starts quickly. Its argument is the name of the identity
attribute. It reads a JSON array of paths and writes one of results. A result is null for a path
outside of mounts, and an object with ``errno`` and ``path`` if a mount fails. Otherwise it has
``value``, the attribute of the path or its nearest ancestor that has one; ``tail``, the rest of the
path; and ``device`` of the mount.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys

# With these errors the parent directory may answer: the path is missing, is not readable, or cannot
# have attributes.
_TRY_PARENT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENODATA,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.ENAMETOOLONG,
)
_NO_XATTR = (errno.ENODATA, errno.EOPNOTSUPP)


def located(path: str, name: str) -> dict[str, object] | None:
    """Return the result for one path."""
    folder, last = os.path.split(path)
    if last in ("", ".", ".."):
        return _query(os.path.realpath(path), name)
    found = _query(os.path.join(os.path.realpath(folder or os.curdir), last), name)
    # A link inside a mount is not followed; one outside is.
    return found or _query(os.path.realpath(path), name)


def _query(path: str, name: str) -> dict[str, object] | None:
    at = path
    while True:
        try:
            value = os.getxattr(at, name, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _TRY_PARENT:
                return {"errno": error.errno, "path": at}
            if at == "/" or (error.errno in _NO_XATTR and _answers(at)):
                return None
            at = os.path.dirname(at)
        else:
            break
    if not _is_one_mount(at, path):
        return None
    tail = path[len(at) :].strip("/")
    device = os.lstat(at).st_dev
    return {"value": value.decode("ascii"), "tail": tail, "device": device}


def _answers(path: str) -> bool:
    """Return whether the file could have the attribute in a mount: only files and directories
    can."""
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _is_one_mount(top: str, path: str) -> bool:
    """Return whether nothing else is mounted between `top` and `path`."""
    own = _mount_id(top)
    while path != top:
        if _mount_id(path) not in (own, None):
            return False
        path = os.path.dirname(path)
    return True


def _mount_id(path: str) -> str | None:
    """Return the id of the mount of a path; None if the path is missing."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            return next(line for line in lines if line.startswith("mnt_id:"))
    except (OSError, StopIteration):
        return str(os.fstat(fd).st_dev)
    finally:
        os.close(fd)


if __name__ == "__main__":
    json.dump([located(one, sys.argv[1]) for one in json.load(sys.stdin)], sys.stdout)
