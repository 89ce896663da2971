"""The slots of a view: byte ranges of its file, each rendered as a unit.

Also the frames that slots show, the slots that a reader has read, and which parts are copied or
rendered.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import LoggedRead
from vfsd.core.view_request import View
from vfsd.read.read_log import Clauses, ReadTiming, describe_planned_read
from vfsd.read.read_plan import plan_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.views.view_frames import PictureForm
from vfsd.views.view_input import ViewInput


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot: the bytes ``start <= offset < start + size`` of the file."""

    slot: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Slots(Protocol):
    """The division of a file into slots; slot 0 is the header, which may be empty."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def __len__(self) -> int:
        """Number of slots."""

    def __getitem__(self, slot: int) -> Slot: ...

    def at(self, offset: int) -> Slot:
        """Return the slot with the byte at `offset`, which must be less than `size`."""


class FixedSizeSlots:
    """Slots of equal size after the header, in constant memory."""

    def __init__(self, header: int, each: int, count: int) -> None:
        self._header, self._each, self._count = header, each, count

    @property
    def size(self) -> int:
        return self._header + self._each * self._count

    def __len__(self) -> int:
        return self._count + 1

    def __getitem__(self, slot: int) -> Slot:
        if not slot:
            return Slot(0, 0, self._header)
        return Slot(slot, self._header + (slot - 1) * self._each, self._each)

    def at(self, offset: int) -> Slot:
        return self[0 if offset < self._header else (offset - self._header) // self._each + 1]


class VariableSizeSlots:
    """Slots of any sizes after the header."""

    def __init__(self, header: int, sizes: Ints) -> None:
        self._ends = np.cumsum(np.concatenate(([header], sizes)), dtype=np.int64)

    @property
    def size(self) -> int:
        return int(self._ends[-1])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int) -> Slot:
        start = int(self._ends[slot - 1]) if slot else 0
        return Slot(slot, start, int(self._ends[slot]) - start)

    def at(self, offset: int) -> Slot:
        return self[int(np.searchsorted(self._ends, offset, side="right"))]


@dataclass(frozen=True, slots=True)
class DecodedFrames:
    """Frames that a view decodes for some of its slots."""

    source: ViewInput
    frames: Ints  #: ascending, may repeat; not empty
    form: PictureForm
    labels: Clauses | None = None  #: the labels that the frames were chosen by

    def log_entry(self, timing: ReadTiming) -> LoggedRead:
        """Return the entry for the read log."""
        source, form = self.source, self.form
        plan = plan_frames(
            self.frames,
            View(region=form.region, size=form.size),
            source.physical,
            source.table,
            pixel_format=form.pixel_format,
            tiles=source.tiles,
        )
        costs = source.tiles.costs if source.tiles is not None else DecodeCosts()
        return describe_planned_read("view", plan, source.table, costs, timing, self.labels)


class SlotReadLog:
    """The slots that a reader has read.  Thread-safe; compact for sequential reads."""

    def __init__(self) -> None:
        self._runs: list[range] = []
        self._guard = threading.Lock()

    def add(self, slot: int) -> None:
        with self._guard:
            last = self._runs[-1] if self._runs else range(-1, -1)
            if slot in last:
                return
            if slot == last.stop:
                self._runs[-1] = range(last.start, slot + 1)
            else:
                self._runs.append(range(slot, slot + 1))

    def covers(self, count: int) -> bool:
        """Return whether all slots ``0 <= slot < count`` were read."""
        with self._guard:
            if sum(map(len, self._runs)) < count:
                return False
        return len(self.sorted()) == count

    def sorted(self) -> list[int]:
        """Return the slots without duplicates."""
        with self._guard:
            return sorted({slot for run in self._runs for slot in run})


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Consecutive pictures of a view that are copied as packets without decoding."""

    frames: range  #: of the video, half-open
    count: int  #: number of pictures
    origin: str  #: original or tiles
    codec: str
    bytes: int  #: of the packets
    psnr: float
    """Minimum dB against the first original; infinite for the original itself."""


@dataclass(frozen=True, slots=True)
class RenderedPart:
    """Consecutive pictures of a view that are decoded, converted, and encoded unless it is raw."""

    pictures: DecodedFrames
    codec: str | None  #: of the encoder; None for raw pictures
    bytes: int  #: reserved for them in the file

    @property
    def frames(self) -> range:
        """Frames of the video, half-open."""
        return range(int(self.pictures.frames[0]), int(self.pictures.frames[-1]) + 1)


ViewPart = CopiedPart | RenderedPart
