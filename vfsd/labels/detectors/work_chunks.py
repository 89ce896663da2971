"""Which frames are left to look at, in portions that are each stored whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Ints

FRAMES = 64
"""Frames that are stored together where each is looked at by itself: few enough that little is
lost when a slow detector is interrupted, and a transaction (some 10 ms) costs nothing beside."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """What is looked at and then stored, all of it or nothing."""

    shown: Ints  #: frames that the detector sees together, ascending
    kept: Ints  #: those of them whose boxes are stored
    covers: range  #: frames up to the next chunk; also those between, which are not looked at


def plan_chunks(numbers: Ints, chosen: range, examined: Sequence[range], block: int) -> list[Chunk]:
    """What is left of `chosen` when the `examined` frames are not looked at again.

    `numbers` are the frames of the whole video that the detector may see, ascending, and `block`
    is how many of them it sees together.  Blocks are shown whole, even where only some of their
    frames are left.
    """
    left = (numbers >= chosen.start) & (numbers < chosen.stop) & ~_inside(numbers, examined)
    if block == 1:
        wanted = numbers[left]
        parts = [(part, part) for part in _portions(wanted, FRAMES)]
    else:
        starts = _starts(len(numbers), block)
        parts = [
            (shown, shown[mine])
            for shown, mine in zip(np.split(numbers, starts), np.split(left, starts), strict=True)
            if mine.any()
        ]
    ends = [*(int(kept[0]) for _, kept in parts[1:]), chosen.stop]
    firsts = [chosen.start, *ends[:-1]]
    return [
        Chunk(shown, kept, range(first, end))
        for (shown, kept), first, end in zip(parts, firsts, ends, strict=False)
    ]


def _inside(numbers: Ints, runs: Sequence[range]) -> npt.NDArray[np.bool_]:
    """Which of the ascending numbers lie in any of the runs, of which there may be as many."""
    begun = np.zeros(len(numbers) + 1, np.int64)
    np.add.at(begun, np.searchsorted(numbers, [run.start for run in runs]), 1)
    np.subtract.at(begun, np.searchsorted(numbers, [run.stop for run in runs]), 1)
    return np.cumsum(begun[:-1]) > 0


def steps(numbers: Ints) -> Iterator[range]:
    """Ascending numbers as few ranges with equal steps."""
    at = 0
    while at < len(numbers):
        gaps = np.diff(numbers[at:])
        if not len(gaps):
            yield range(int(numbers[at]), int(numbers[at]) + 1)
            return
        other = np.flatnonzero(gaps != gaps[0])
        count = int(other[0]) + 1 if len(other) else len(gaps) + 1
        yield range(int(numbers[at]), int(numbers[at + count - 1]) + 1, int(gaps[0]))
        at += count


def _portions(numbers: Ints, size: int) -> list[Ints]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def _starts(count: int, block: int) -> list[int]:
    """Where the second block and the others begin; a rest of less than half of one has none."""
    starts = list(range(block, count, block))
    if starts and count - starts[-1] < block / 2:
        starts.pop()
    return starts
