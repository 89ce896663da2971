"""The kernel's mount table, and requests to mounts with a timeout.

A request runs in a child process, since a stopped mount may block its caller forever.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from vfsd.errors import BusyError

_MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")

SUBTYPE = "vfsd"
"""Mounts of vfsd have the type ``fuse.vfsd`` and the path of the store as their source."""


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of the kernel's mount table."""

    place: Path
    kind: str  #: file system type: ext4, fuse.vfsd ...
    source: str
    device: str  #: MAJOR:MINOR
    id: str = ""  #: unique id, also ``mnt_id`` in /proc/PID/fdinfo
    shows: str = "/"  #: root within the file system; a bind mount shows a part

    @property
    def is_ours(self) -> bool:
        """Whether this is a mount of vfsd."""
        return self.kind == f"fuse.{SUBTYPE}"


def mounts() -> list[MountEntry]:
    """Return all mounts; of several at one place the last is on top.

    Empty if the kernel has no mount table.
    """
    try:
        table = _MOUNTINFO.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields, rest = before.split(b" "), after.split(b" ")
        if len(fields) < 5 or len(rest) < 2:
            continue
        found.append(
            MountEntry(
                place=Path(_unescape(fields[4])),
                kind=_unescape(rest[0]),
                source=_unescape(rest[1]),
                device=_unescape(fields[2]),
                id=_unescape(fields[0]),
                shows=_unescape(fields[3]),
            )
        )
    return found


def mount_at(place: Path) -> MountEntry | None:
    """Return the mount exactly at `place`, which is absolute and without symbolic links."""
    return next((mount for mount in reversed(mounts()) if mount.place == place), None)


def mount_above(path: Path) -> MountEntry | None:
    """Return the mount that contains `path`, which is absolute and without symbolic links."""
    above = [mount for mount in mounts() if path.is_relative_to(mount.place)]
    deepest = max((len(mount.place.parts) for mount in above), default=0)
    return next((m for m in reversed(above) if len(m.place.parts) == deepest), None)


def shares_mounts(pid: object) -> bool:
    """Return whether a process has the same mount namespace; False if it is not visible."""
    try:
        theirs = os.stat(f"/proc/{pid}/ns/mnt")
    except PermissionError:
        return True  # another user's process; most share one namespace
    except OSError:
        return False
    return os.path.samestat(theirs, os.stat("/proc/self/ns/mnt"))


def _unescape(field: bytes) -> str:
    """Decode the octal escapes of blanks, tabs, newlines and backslashes."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match.group(1), 8)]), field))


ANSWER_SECONDS = 5.0
"""Time limit for the reply of a mount."""

IDENTITY = "user.vfsd.identity"
"""Extended attribute of everything in a mount, in no listing: the store and the name in it."""

_END_SECONDS = 1.0
_PROBE = Path(__file__).with_name("path_probe.py")

_STUCK_HINT = (
    "its process may be stopped (`kill -CONT PID`) or waiting for a disk; `kill -9 PID` ends it "
    "and keeps all written data; if that fails, detach the mount with `umount -l`"
)

_XATTR_PROGRAM = """
import os, sys
try:
    path, *names = sys.argv[1:]
    if not names:
        os.statvfs(path)
    sys.stdout.buffer.write(b"+" + b"\\0".join(os.getxattr(path, name) for name in names))
except OSError as error:
    sys.stdout.buffer.write(b"-%d" % error.errno)
"""
# statvfs, not stat: the kernel may answer stat from its cache.


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Identifies a store independently of its path."""

    id: str  #: equal in copies of a store
    device: int  #: `st_dev` of the store's directory
    inode: int


@dataclass(frozen=True, slots=True)
class MountedNode:
    """The value of the attribute `IDENTITY`."""

    store: StoreIdentity
    root: str  #: the store's directory as seen by the mount process
    name: str  #: path from the root of the store; empty for the root itself

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def parse(cls, data: bytes | str) -> Self:
        """Parse an attribute. Raises `ValueError`."""
        try:
            found = json.loads(data)
            store = found["store"]
            identity = StoreIdentity(str(store["id"]), int(store["device"]), int(store["inode"]))
            return cls(identity, str(found["root"]), str(found["name"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"invalid identity of a store: {data!r}") from error


@dataclass(frozen=True, slots=True)
class MountLocation:
    """The node in a mount that a path leads to."""

    node: MountedNode
    device: int  #: `st_dev` of the mount


def located(paths: Sequence[str]) -> list[MountLocation | None]:
    """Return where paths lead to in mounts; None for those outside.

    The last component may be missing; in a mount it is not followed if it is a link. Raises
    `BusyError` if a mount does not answer, and the `OSError` that it answers.
    """
    answer = _communicate([str(_PROBE), IDENTITY], paths[0], json.dumps(list(paths)).encode())
    found: list[MountLocation | None] = []
    if not answer:
        raise OSError(errno.EIO, os.strerror(errno.EIO), paths[0])  # it was killed
    for one in json.loads(answer):
        if one is None:
            found.append(None)
        elif "errno" in one:
            raise OSError(one["errno"], os.strerror(one["errno"]), one["path"])
        else:
            node = MountedNode.parse(one["value"])
            name = "/".join(filter(None, [node.name, one["tail"]]))
            found.append(MountLocation(MountedNode(node.store, node.root, name), one["device"]))
    return found


def require_answer(place: str | os.PathLike[str]) -> None:
    """Raise `BusyError` if a mount does not answer within `ANSWER_SECONDS`.

    Raises the `OSError` that it answers.
    """
    _ask(os.fspath(place))


def attribute(path: str | os.PathLike[str], name: str) -> bytes:
    """Return an extended attribute of a file in a mount. Raises as `require_answer`."""
    return _ask(os.fspath(path), name)


def own_attribute(path: str | os.PathLike[str], name: str, store: StoreIdentity) -> bytes:
    """Return an extended attribute of a file in a mount of `store`.

    Raises `BusyError` also if the path is in a mount of another store. The mount of `store` may be
    in another mount namespace.
    """
    identity, _, value = _ask(os.fspath(path), IDENTITY, name).partition(b"\0")
    shown = MountedNode.parse(identity)
    if shown.store != store:
        raise BusyError(
            f"{os.fspath(path)} is in a mount of another store here: {shown.root}",
            hint="run the command in the mount namespace in which the store was mounted",
        )
    return value


def _ask(path: str, *names: str) -> bytes:
    answer = _communicate(["-c", _XATTR_PROGRAM, path, *names], path)
    if answer.startswith(b"+"):
        return answer[1:]
    code = int(answer.removeprefix(b"-") or errno.EIO)
    raise OSError(code, os.strerror(code), path)


def _communicate(program: list[str], path: str, given: bytes = b"") -> bytes:
    """Return the output of a program that queries `path`. Raises `BusyError` on a timeout."""
    # -I -S: skip site-packages and the environment, so that it starts quickly.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        answer, _ = process.communicate(given, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):  # the kernel may block it until the mount answers
            process.wait(_END_SECONDS)
        raise BusyError(f"the mount that shows {path} does not answer", hint=_STUCK_HINT) from None
    return answer
