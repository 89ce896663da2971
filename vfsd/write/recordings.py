"""Recordings that were not finished: their writers have died, had no more room, were given no more
than a part, or could not publish them.

Most of such a file is good, mostly all of it: so it is nobody's to throw away but `vfsd gc`'s, and
not even that one's before `KEPT_DAYS` have gone.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from vfsd.core.clock_check import is_believable
from vfsd.core.timebase import human_bytes
from vfsd.disk.tempfiles import claimed
from vfsd.errors import NotFoundError
from vfsd.storage.context import Parts
from vfsd.write.partial_files import Unfinished, left_behind, unfinished

KEPT_DAYS = 30
"""After that `vfsd gc` takes a recording away."""
_DAY_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that was not finished."""

    name: str  #: that it was to have
    path: Path
    size: int  #: bytes
    at_ns: int  #: when it was last written, Unix time

    def __str__(self) -> str:
        return (
            f"a recording of {self.name!r} was not finished ({human_bytes(self.size)}): "
            f"`vfsd recover` makes a video of it, `vfsd gc` deletes it after {KEPT_DAYS} days, "
            "with `--recordings 0` at once"
        )

    def is_older(self, days: float) -> bool:
        """Of one that was written while the clock had forgotten the time that is not known: it is
        older than nothing but 0 days."""
        if days > 0 and not is_believable(self.at_ns):
            return False
        return time.time_ns() - self.at_ns >= days * _DAY_NS

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Have it for oneself.  Raises `BusyError`, and `NotFoundError` where it has gone."""
        with claimed(self.path):
            yield

    def forget(self) -> None:
        """Delete it; whoever does that has claimed it.  Raises `OSError`."""
        Unfinished(self.name, self.path).delete()


def recordings(parts: Parts) -> list[Recording]:
    """All that nobody has in hand; the oldest first."""
    found = []
    for file in left_behind(parts.objects):
        try:
            seen = file.path.stat()
        except FileNotFoundError:
            continue
        if seen.st_size and not _is_published(parts, file.path, seen):
            found.append(Recording(file.name, file.path, seen.st_size, seen.st_mtime_ns))
    return sorted(found, key=lambda one: one.at_ns)


def free_name(parts: Parts, recording: Recording) -> str:
    """The name that it was to have; another like it where somebody has that, or writes it."""
    written = {one.name for one in unfinished(parts.objects) if one.path != recording.path}
    stem, ending = posixpath.splitext(recording.name)
    with parts.catalog.reading() as seen:
        for number in count():
            more = "" if not number else f"-recovered{f'-{number}' if number > 1 else ''}"
            name = f"{stem}{more}{ending}"
            if name in written:
                continue
            try:
                seen.tree.resolve(name)
            except NotFoundError:
                return name
    raise AssertionError("there is always another number")


def _is_published(parts: Parts, path: Path, seen: os.stat_result) -> bool:
    """Whether who wrote or recovered it died only after it had become a video, whatever that is
    called."""
    if seen.st_nlink < 2:
        return False
    with parts.catalog.reading() as looking:
        sizes = looking.objects.sizes()
    return any(
        size == seen.st_size and parts.objects.is_one_with(path, key) for key, size in sizes.items()
    )
