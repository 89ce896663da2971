"""Sets of frames as ranges that neither overlap nor touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from vfsd.core.detections import Ints, runs

Pair = tuple[int, int]
"""First frame, and the one after the last."""


def ranges_of(frames: Iterable[int] | Iterable[range] | Ints) -> list[range]:
    """What callers call a set of frames."""
    if isinstance(frames, range) and frames.step == 1:
        return [frames] if len(frames) else []
    several = list(frames)
    parts = [part for part in several if isinstance(part, range)]
    if parts and len(parts) == len(several):
        return [range(*pair) for pair in merged(pair for part in parts for pair in _pairs(part))]
    return runs(np.unique(np.asarray(several, dtype=np.int64)))


def merged(ranges: Iterable[Pair]) -> list[Pair]:
    """All of them, in order, without overlaps."""
    made: list[Pair] = []
    for start, stop in sorted(ranges):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], stop))
        else:
            made.append((start, stop))
    return made


def without(ranges: Iterable[Pair], gone: Sequence[range]) -> list[Pair]:
    """What `gone` leaves of `ranges`, both in order and without overlaps."""
    left: list[Pair] = []
    at = 0
    for start, stop in ranges:
        while at < len(gone) and gone[at].stop <= start:
            at += 1
        for number in range(at, len(gone)):
            one = gone[number]
            if one.start >= stop:
                break
            if one.start > start:
                left.append((start, one.start))
            start = one.stop
        if start < stop:
            left.append((start, stop))
    return left


def _pairs(part: range) -> list[Pair]:
    return [(run.start, run.stop) for run in ranges_of(part)]
