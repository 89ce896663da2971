"""Which frames of two videos were taken at the same time.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]

FEWEST = 4
"""Frames in a row: fewer are not worth a key picture."""
_APART = 0.5
"""Of the usual time from one frame to the next, by which two frames that belong together may
differ: another one is nearer then."""


@dataclass(frozen=True, slots=True)
class FramePairs:
    """Frames of the left and of the right video: as many, the i-th with the i-th."""

    left: range
    right: range

    def __len__(self) -> int:
        return len(self.left)


def frame_pairs(sequences: Sequence[range], left: Seconds, right: Seconds) -> list[FramePairs]:
    """Of each run of frames of the left video the longest part that has partners one by one.

    `left` and `right` are when the frames of each video appear, in seconds from its first and
    ascending; both timelines start at the same time.  No frame has two partners.
    """
    if len(left) < 2 or len(right) < 2:
        return []
    tolerance = _APART * min(float(np.median(np.diff(left))), float(np.median(np.diff(right))))
    partner = _nearest(left, right)
    fits = np.abs(right[partner] - left) <= tolerance
    found: list[FramePairs] = []
    taken = 0
    for frames in sequences:
        best = range(0)
        for run in _runs(frames, partner, fits, taken):
            best = max(best, run, key=len)
        if len(best) < FEWEST:
            continue
        start = int(partner[best.start])
        taken = start + len(best)
        found.append(FramePairs(best, range(start, taken)))
    return found


def _nearest(times: Seconds, others: Seconds) -> npt.NDArray[np.int64]:
    """For each time the place of the nearest other one."""
    after = np.clip(np.searchsorted(others, times), 1, len(others) - 1)
    is_earlier = times - others[after - 1] <= others[after] - times
    return np.where(is_earlier, after - 1, after).astype(np.int64)


def _runs(
    frames: range, partner: npt.NDArray[np.int64], fits: npt.NDArray[np.bool_], taken: int
) -> list[range]:
    """Parts of `frames` whose partners, none of them before `taken`, follow each other."""
    runs: list[range] = []
    for frame in frames:
        if not fits[frame] or partner[frame] < taken:
            continue
        last = runs[-1] if runs else range(0)
        if last and last.stop == frame and partner[frame] == partner[frame - 1] + 1:
            runs[-1] = range(last.start, frame + 1)
        else:
            runs.append(range(frame, frame + 1))
    return runs
