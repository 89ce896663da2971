"""How far a run of `vfsd scrub` has read the file that it was at when it was interrupted.

A file that takes longer than a run may last would never be done else.  The note saves work, and
nothing rests on it: what cannot be read, or is of something else, is passed over.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from vfsd.core.model import Place
from vfsd.disk.block_checksums import BlockSums
from vfsd.disk.direct_io import CHUNK
from vfsd.disk.tempfiles import put_in_place
from vfsd.disk.verify_file import Begun

_MOST_BYTES = 16 << 20
_MOST_RANGES = 1 << 16
"""Of damage, in a note: what takes that long to write is done again instead."""


@dataclass(frozen=True, slots=True)
class Noted:
    """One note."""

    run: int
    place: Place
    sums: str  #: a hash of those that were compared
    begun: Begun

    def fits(self, sums: BlockSums, version: tuple[int, int, int]) -> bool:
        """Whether a file, and its sums, are those that it is about."""
        return self.sums == _digest(sums) and self.begun.version == version


class ScrubNote:
    """The note of a store, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted = _load(path)

    def of(self, run: int, place: Place) -> Noted | None:
        """None where the last one is not of this run and file."""
        noted = self._noted
        return noted if noted is not None and (noted.run, noted.place) == (run, place) else None

    def is_of(self, sums: BlockSums) -> bool:
        """Whether the note that was found is of a file with these sums."""
        return self._noted is not None and self._noted.sums == _digest(sums)

    def write(self, run: int, place: Place, sums: BlockSums, begun: Begun) -> None:
        """Take the place of the last one.  Where that cannot be written, or the damage is all over
        the file, the last one stays, and work is done again."""
        if len(begun.damage) > _MOST_RANGES:
            return
        told = {
            "run": run,
            "object": place.object_key,
            "path": place.link_path,
            "sums": _digest(sums),
            "version": begun.version,
            "at": begun.at,
            "damage": [[one.start, one.stop] for one in begun.damage],
            "second": begun.is_second,
        }
        with suppress(OSError):
            put_in_place(self._path, json.dumps(told) + "\n")

    def forget(self) -> None:
        """The run is through."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _digest(sums: BlockSums) -> str:
    return blake3(sums.sums).hexdigest()


def _load(path: Path) -> Noted | None:
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        if path.stat().st_size <= _MOST_BYTES:
            told = json.loads(path.read_text(encoding="utf-8"))
            inode, size, mtime_ns = map(int, told["version"])
            damage = tuple(range(int(first), int(end)) for first, end in told["damage"])
            at = int(told["at"])
            if not 0 <= at <= size or (at % CHUNK and at != size):
                return None
            if any(not 0 <= one.start < one.stop <= size for one in damage):
                return None
            begun = Begun((inode, size, mtime_ns), at, damage, told["second"] is True)
            place = Place(told["object"], told["path"])
            return Noted(int(told["run"]), place, str(told["sums"]), begun)
    return None
