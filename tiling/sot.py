"""SOTs, "sequences of tiles": the runs of frames that share a layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.errors import UsageError

_SHORTEST = 0.5
_LONGEST = 1.5
"""Shortest and longest SOT that aligns with GOPs, as multiples of the target."""


def overlaps(some: range, others: range) -> bool:
    """Return whether two runs of frames have any in common."""
    return some.start < others.stop and others.start < some.stop


def frame_intersection(some: range, others: range) -> range:
    """Return the frames that two runs have in common; may be empty."""
    return range(max(some.start, others.start), min(some.stop, others.stop))


def cut_sequences(
    starts_of_gops: Sequence[int] | npt.NDArray[np.integer[Any]],
    frame_seconds: Sequence[float] | npt.NDArray[np.floating[Any]],
    target: float = 1.0,
    maximum_frames: int = 300,
) -> list[range]:
    """Return SOTs of about `target` seconds that cover all frames of a video from 0.

    `starts_of_gops` are key frames, ascending.  `frame_seconds` are the start times of all frames
    and the end of the last one, in seconds, not decreasing.

    A SOT ends at the start of a GOP, or the end of the video, if one lies between 0.5 and 1.5
    targets after its start: at the one nearest to the target.  So it is made from whole GOPs.
    Otherwise it ends at the frame nearest to the target, but not before half of it.  A remainder of
    less than half a target is added to the last SOT.

    The limit `maximum_frames` takes precedence over all of this.  A SOT is longer than 1.5 targets
    only if its last frame is shown for long, or by that remainder.

    TASM uses SOTs of one-second GOPs, which it found to be best.

    Raises `UsageError` without frames, if times or numbers decrease or lie outside the video, or if
    a limit is not positive.
    """
    times = np.asarray(frame_seconds, np.float64)
    keys = np.asarray(starts_of_gops, np.int64) if len(starts_of_gops) else np.zeros(0, np.int64)
    frames = len(times) - 1
    if frames < 1 or not (np.diff(times) >= 0).all():
        raise UsageError("a video must have at least one frame, and times must not decrease")
    if len(keys) and (keys[0] < 0 or keys[-1] >= frames or not (np.diff(keys) > 0).all()):
        raise UsageError(f"key frames must be ascending numbers from 0 to {frames - 1}")
    if not (target > 0 and maximum_frames > 0):
        raise UsageError("target and maximum_frames must be positive")
    ends = [0]
    boundaries = np.append(keys, frames)  # the end of the video counts as a key frame
    while ends[-1] < frames:
        ends.append(_next_end(ends[-1], boundaries, times, target, maximum_frames))
    if (
        len(ends) > 2
        and times[-1] - times[ends[-2]] < _SHORTEST * target
        and frames - ends[-3] <= maximum_frames
    ):
        del ends[-2]
    return [range(start, end) for start, end in pairwise(ends)]


def _next_end(
    start: int,
    keys: npt.NDArray[np.int64],
    times: npt.NDArray[np.float64],
    target: float,
    maximum_frames: int,
) -> int:
    """Return the end of the SOT that starts with frame `start`: the first frame after it."""
    most = min(start + maximum_frames, len(times) - 1)
    # Only possible ends: frames from `start` + 1 to `most`, as times since the start.
    passed = times[start + 1 : most + 1] - times[start]
    shortest = start + 1 + int(np.searchsorted(passed, _SHORTEST * target))
    longest = start + 1 + int(np.searchsorted(passed, _LONGEST * target, side="right"))
    near = keys[np.searchsorted(keys, shortest) : np.searchsorted(keys, longest)]
    if len(near):
        return int(near[np.abs(times[near] - times[start] - target).argmin()])
    if shortest > most:
        return most
    return shortest + int(np.abs(passed[shortest - start - 1 :] - target).argmin())
