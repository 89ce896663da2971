"""What the kernel says is mounted where."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")

SUBTYPE = "vfsd"
"""Mounts of ours have the type ``fuse.vfsd``, and the store's path as their source."""


@dataclass(frozen=True, slots=True)
class Mount:
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


def mounts() -> list[Mount]:
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
            Mount(
                place=Path(_plain(fields[4])),
                kind=_plain(rest[0]),
                source=_plain(rest[1]),
                device=_plain(fields[2]),
                id=_plain(fields[0]),
                shows=_plain(fields[3]),
            )
        )
    return found


def mount_at(place: Path) -> Mount | None:
    """What is mounted exactly there; `place` is absolute and without symbolic links."""
    return next((mount for mount in reversed(mounts()) if mount.place == place), None)


def mount_above(path: Path) -> Mount | None:
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
