"""Which private files a backup has as they are, told without reading them.

Size and mtime do not tell: `rsync -t`, `tar` and `cp -p` set them.  So for each copy it is noted
which file it was made of, when that was last changed by anybody (its ctime, which nobody sets), and
which file the copy is.  What is not noted is copied.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from blake3 import blake3

from vfsd.disk.tempfiles import put_in_place

_SECOND = 1_000_000_000
_TICK = _SECOND // 50
"""Twice as long as one is where they are longest."""
_COARSE_TICK = 2 * _SECOND
"""Where a file system counts seconds."""


class CopyNotes:
    """Notes about copies, by the files' numbers in the store; kept in a file of the backup."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)
        self._new: dict[str, str] = {}

    def is_copy(self, ino: int, source: os.stat_result, copy: os.stat_result) -> bool:
        """Whether `copy` was made of what `source` is, and neither was changed since."""
        return self._known.get(str(ino)) == _mark(source, copy)

    def note(self, ino: int, source: os.stat_result, copy: os.stat_result) -> None:
        """`source` as it was before it was copied."""
        self._new[str(ino)] = _mark(source, copy)

    def save(self) -> None:
        """Forget what was not noted anew.  Raises `OSError`."""
        put_in_place(self._path, json.dumps(self._new))


def will_tell(found: os.stat_result) -> bool:
    """Whether a change that comes after now will show in the file's ctime.

    One in the same tick of the clock by which the kernel stamps files does not.
    """
    tick = _TICK if found.st_ctime_ns % _SECOND else _COARSE_TICK
    return found.st_ctime_ns + tick < time.time_ns()


def _mark(source: os.stat_result, copy: os.stat_result) -> str:
    facts = [
        (each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in (source, copy)
    ]
    return blake3(repr(facts).encode()).hexdigest(16)


def _read(path: Path) -> dict[str, str]:
    """Nothing where they are not there, or were not on the disk yet when the power was cut."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
