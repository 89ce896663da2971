"""What paths lead to in mounts: a program of its own, see `vfsd.disk.mount_queries.located`.

It imports nothing of vfsd, so that it starts quickly.  Its argument is the name of the attribute
by which files in a mount tell what they are; it reads a JSON array of paths and writes one of
answers: null for a path outside of mounts, an object with ``errno`` and ``path`` where a mount
fails, and otherwise ``value``, the attribute of the path or of the nearest directory above that
answers, ``tail``, the rest of the path below that, and ``device``, that of the mount.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys

_GO_UP = (
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
"""A directory above may answer: the path is missing, may not be read, or is no file."""
_HAS_NONE = (errno.ENODATA, errno.EOPNOTSUPP)


def located(path: str, name: str) -> dict[str, object] | None:
    """The answer for one path."""
    folder, last = os.path.split(path)
    if last in ("", ".", ".."):
        return _asked(os.path.realpath(path), name)
    found = _asked(os.path.join(os.path.realpath(folder or os.curdir), last), name)
    # A link in a mount is meant itself; one elsewhere leads to what is meant.
    return found or _asked(os.path.realpath(path), name)


def _asked(path: str, name: str) -> dict[str, object] | None:
    at = path
    while True:
        try:
            value = os.getxattr(at, name, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _GO_UP:
                return {"errno": error.errno, "path": at}
            if at == "/" or (error.errno in _HAS_NONE and _answers(at)):
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
    """Whether it would have the attribute in a mount: only files and directories have any."""
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _is_one_mount(top: str, path: str) -> bool:
    """Whether nothing else is mounted on the way from `top` down to `path`."""
    own = _mount_id(top)
    while path != top:
        if _mount_id(path) not in (own, None):
            return False
        path = os.path.dirname(path)
    return True


def _mount_id(path: str) -> str | None:
    """What tells mounts apart; None where nothing is at the path."""
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
