"""The slots of a view: byte ranges of its file, each made as a whole.

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
    """A file cut into slots: slot 0 is the header, which may be empty."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def __len__(self) -> int:
        """Number of slots."""

    def __getitem__(self, slot: int) -> Slot: ...

    def at(self, offset: int) -> Slot:
        """The slot that holds the byte at `offset`, which is below `size`."""


class FixedSizeSlots:
    """Slots of one size after the header; takes no memory for them."""

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
    """Frames that a rendition shows in some of its slots, each decoded for that."""

    footage: ViewInput
    frames: Ints  #: ascending, repeats allowed; one at least
    form: PictureForm
    labels: Clauses | None = None  #: for the sake of what they are shown

    def account(self, timing: ReadTiming) -> LoggedRead:
        """What it came to that somebody has read them."""
        footage, form = self.footage, self.form
        plan = plan_frames(
            self.frames,
            View(region=form.region, size=form.size),
            footage.physical,
            footage.table,
            pixel_format=form.pixel_format,
            tiles=footage.tiles,
        )
        costs = footage.tiles.costs if footage.tiles is not None else DecodeCosts()
        return describe_planned_read("view", plan, footage.table, costs, timing, self.labels)


class SlotReadLog:
    """Which slots of a file its reader has looked at.  Thread-safe; small for who reads on."""

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

    def is_all_of(self, count: int) -> bool:
        """Whether these are the slots ``0 <= slot < count``."""
        with self._guard:
            if sum(map(len, self._runs)) < count:
                return False
        return len(self.sorted()) == count

    def sorted(self) -> list[int]:
        """Each once."""
        with self._guard:
            return sorted({slot for run in self._runs for slot in run})


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Pictures in a row of a view whose packets are copied; nothing is decoded for them."""

    frames: range  #: of the video, from the first to after the last
    count: int  #: of its pictures
    origin: str  #: original or tiles
    codec: str
    bytes: int  #: of the packets
    psnr: float
    """dB that they have at least against the very first original; infinite where they are it."""


@dataclass(frozen=True, slots=True)
class RenderedPart:
    """Pictures in a row of a view that are decoded and converted, and encoded unless it is raw."""

    pictures: DecodedFrames
    codec: str | None  #: in which they are encoded; None: they are not
    bytes: int  #: of the places in the file that they are given

    @property
    def frames(self) -> range:
        """Of the video, from the first to after the last."""
        return range(int(self.pictures.frames[0]), int(self.pictures.frames[-1]) + 1)


ViewPart = CopiedPart | RenderedPart
