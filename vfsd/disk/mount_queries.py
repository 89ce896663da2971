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
"""Mounts of ours have the type ``fuse.vfsd``, and the store's path as their source."""


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of the kernel's table."""

    place: Path
    kind: str  #: file system type: ext4, fuse.vfsd ...
    source: str
    device: str  #: MAJOR:MINOR
    id: str = ""  #: what tells mounts apart, also as ``mnt_id`` in /proc/PID/fdinfo
    shows: str = "/"  #: which directory or file of the file system; a bind mount shows a part

    @property
    def is_ours(self) -> bool:
        return self.kind == f"fuse.{SUBTYPE}"


def mounts() -> list[MountEntry]:
    """Everything that is mounted; of several mounts at one place the last is on top.

    Empty where the kernel keeps no such table.
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
                place=Path(_plain(fields[4])),
                kind=_plain(rest[0]),
                source=_plain(rest[1]),
                device=_plain(fields[2]),
                id=_plain(fields[0]),
                shows=_plain(fields[3]),
            )
        )
    return found


def mount_at(place: Path) -> MountEntry | None:
    """What is mounted exactly there; `place` is absolute and without symbolic links."""
    return next((mount for mount in reversed(mounts()) if mount.place == place), None)


def mount_above(path: Path) -> MountEntry | None:
    """The mount that `path`, absolute and without symbolic links, lies in."""
    above = [mount for mount in mounts() if path.is_relative_to(mount.place)]
    deepest = max((len(mount.place.parts) for mount in above), default=0)
    return next((m for m in reversed(above) if len(m.place.parts) == deepest), None)


def shares_mounts(pid: object) -> bool:
    """Whether a process sees the mounts that this one sees; False for one that is not visible."""
    try:
        theirs = os.stat(f"/proc/{pid}/ns/mnt")
    except PermissionError:
        return True  # of another user; most share one namespace
    except OSError:
        return False
    return os.path.samestat(theirs, os.stat("/proc/self/ns/mnt"))


def _plain(field: bytes) -> str:
    """The table writes blanks, tabs, newlines and backslashes in octal."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match.group(1), 8)]), field))


ANSWER_SECONDS = 5.0
"""As long as a mount has for an answer."""

IDENTITY = "user.vfsd.identity"
"""Of everything in a mount, but in no listing: which store shows it, and by which name."""

_END_SECONDS = 1.0
_PROBE = Path(__file__).with_name("path_probe.py")

_ADVICE = (
    "is its process stopped (`kill -CONT PID`), or waiting for a disk? `kill -9 PID` ends it, and "
    "what was written to it stays; where that does not help, `umount -l` takes the mount away"
)

_CODE = """
import os, sys
try:
    path, *names = sys.argv[1:]
    if not names:
        os.statvfs(path)
    sys.stdout.buffer.write(b"+" + b"\\0".join(os.getxattr(path, name) for name in names))
except OSError as error:
    sys.stdout.buffer.write(b"-%d" % error.errno)
"""
# Not a stat: that may be answered from what the kernel remembers.


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """What tells stores apart, whatever their paths are."""

    id: str  #: a copy of a store has the same
    device: int  #: of the store's directory, as `os.stat_result.st_dev`
    inode: int


@dataclass(frozen=True, slots=True)
class MountedNode:
    """What the attribute `IDENTITY` says of something in a mount."""

    store: StoreIdentity
    root: str  #: the store's directory as the process of the mount sees it
    name: str  #: path from the root of the store; empty for the root itself

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def parse(cls, data: bytes | str) -> Self:
        """Raises `ValueError` for anything else."""
        try:
            found = json.loads(data)
            store = found["store"]
            identity = StoreIdentity(str(store["id"]), int(store["device"]), int(store["inode"]))
            return cls(identity, str(found["root"]), str(found["name"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{data!r} does not tell a store") from error


@dataclass(frozen=True, slots=True)
class MountLocation:
    """What a path of the machine leads to in a mount."""

    node: MountedNode
    device: int  #: of the mount, as `os.stat_result.st_dev`


def located(paths: Sequence[str]) -> list[MountLocation | None]:
    """What paths lead to, by what is mounted there; None for those outside of mounts.

    The last part of a path may be missing, and is not followed where it is a link in a mount.
    Raises `BusyError` where a mount does not answer, and the `OSError` with which it does.
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
    """Raises `BusyError` where the mount at a place does not answer within `ANSWER_SECONDS`, and
    the `OSError` with which it does."""
    _ask(os.fspath(place))


def attribute(path: str | os.PathLike[str], name: str) -> bytes:
    """An extended attribute of a file in a mount.  Raises as `require_answer`."""
    return _ask(os.fspath(path), name)


def own_attribute(path: str | os.PathLike[str], name: str, store: StoreIdentity) -> bytes:
    """The same, of a file in a mount of that very store.

    Raises `BusyError` also where another store is shown at the path, as there may be in another
    mount namespace than the mount's.
    """
    identity, _, value = _ask(os.fspath(path), IDENTITY, name).partition(b"\0")
    shown = MountedNode.parse(identity)
    if shown.store != store:
        raise BusyError(
            f"{os.fspath(path)} is in a mount of another store here, that in {shown.root}",
            hint="run the command in the mount namespace in which the store was mounted",
        )
    return value


def _ask(path: str, *names: str) -> bytes:
    answer = _communicate(["-c", _CODE, path, *names], path)
    if answer.startswith(b"+"):
        return answer[1:]
    code = int(answer.removeprefix(b"-") or errno.EIO)
    raise OSError(code, os.strerror(code), path)


def _communicate(program: list[str], path: str, given: bytes = b"") -> bytes:
    """What a program says that looks at `path`.  Raises `BusyError` where it says nothing."""
    # Without the paths and modules of whoever asks: it only has to start quickly.
    asking = subprocess.Popen(
        [sys.executable, "-I", "-S", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        answer, _ = asking.communicate(given, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        asking.kill()
        for pipe in (asking.stdin, asking.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):  # the kernel may keep it until there is an answer
            asking.wait(_END_SECONDS)
        raise BusyError(f"the mount that shows {path} does not answer", hint=_ADVICE) from None
    return answer
