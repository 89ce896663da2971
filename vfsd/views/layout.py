"""Where the parts of a file lie that is made part by part: arithmetic, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vfsd.core.frame_table_pages import Ints


@dataclass(frozen=True, slots=True)
class Place:
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

    def __getitem__(self, slot: int) -> Place: ...

    def at(self, offset: int) -> Place:
        """The slot that holds the byte at `offset`, which is below `size`."""


class EvenSlots:
    """Slots of one size after the header; takes no memory for them."""

    def __init__(self, header: int, each: int, count: int) -> None:
        self._header, self._each, self._count = header, each, count

    @property
    def size(self) -> int:
        return self._header + self._each * self._count

    def __len__(self) -> int:
        return self._count + 1

    def __getitem__(self, slot: int) -> Place:
        if not slot:
            return Place(0, 0, self._header)
        return Place(slot, self._header + (slot - 1) * self._each, self._each)

    def at(self, offset: int) -> Place:
        return self[0 if offset < self._header else (offset - self._header) // self._each + 1]


class ListedSlots:
    """Slots of any sizes after the header."""

    def __init__(self, header: int, sizes: Ints) -> None:
        self._ends = np.cumsum(np.concatenate(([header], sizes)), dtype=np.int64)

    @property
    def size(self) -> int:
        return int(self._ends[-1])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int) -> Place:
        start = int(self._ends[slot - 1]) if slot else 0
        return Place(slot, start, int(self._ends[slot]) - start)

    def at(self, offset: int) -> Place:
        return self[int(np.searchsorted(self._ends, offset, side="right"))]
