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
"""How long a SOT may be for the sake of a group of pictures, in parts of the target."""


def overlaps(some: range, others: range) -> bool:
    """Whether two runs of frames have any in common."""
    return some.start < others.stop and others.start < some.stop


def frame_intersection(some: range, others: range) -> range:
    """The frames that two runs of them have in common; may be empty."""
    return range(max(some.start, others.start), min(some.stop, others.stop))


def cut_sequences(
    starts_of_gops: Sequence[int] | npt.NDArray[np.integer[Any]],
    frame_seconds: Sequence[float] | npt.NDArray[np.floating[Any]],
    target: float = 1.0,
    maximum_frames: int = 300,
) -> list[range]:
    """All frames of a video, 0 and up, in SOTs of about `target` seconds.

    `starts_of_gops` are the numbers of key frames, ascending; `frame_seconds` when each frame
    appears, and last when the last one ends, in seconds and never falling.

    A SOT ends where a group of pictures starts if one does between half and one and a half of
    the target after its own start, so that it is made from whole groups, or where the video ends:
    at the nearest to the target.  Otherwise it ends at the frame nearest to the target, no earlier
    than half of it.  A rest of less than half a target at the end is added to the SOT before.

    No SOT has more than `maximum_frames` frames, which comes before all of the above.  One may be
    longer than one and a half targets only if its last frame is shown for long, or by that rest.

    TASM lays its SOTs over groups of pictures of one second, which it found to be the best.

    Raises `UsageError` when there is no frame, times or numbers fall or lie outside the video, or
    a limit is not positive.
    """
    times = np.asarray(frame_seconds, np.float64)
    keys = np.asarray(starts_of_gops, np.int64) if len(starts_of_gops) else np.zeros(0, np.int64)
    frames = len(times) - 1
    if frames < 1 or not (np.diff(times) >= 0).all():
        raise UsageError("a video has at least one frame, and times that do not fall")
    if len(keys) and (keys[0] < 0 or keys[-1] >= frames or not (np.diff(keys) > 0).all()):
        raise UsageError(f"key frames are ascending numbers of frames, 0 to {frames - 1}")
    if not (target > 0 and maximum_frames > 0):
        raise UsageError("a sequence of tiles has a length of more than nothing")
    ends = [0]
    boundaries = np.append(keys, frames)  # the end of the video is as good as a key frame
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
    """Where the SOT that begins with frame `start` ends: the first frame after it."""
    most = min(start + maximum_frames, len(times) - 1)
    # Only what may be the end: numbers from `start` + 1 to `most`, in times since the start.
    passed = times[start + 1 : most + 1] - times[start]
    shortest = start + 1 + int(np.searchsorted(passed, _SHORTEST * target))
    longest = start + 1 + int(np.searchsorted(passed, _LONGEST * target, side="right"))
    near = keys[np.searchsorted(keys, shortest) : np.searchsorted(keys, longest)]
    if len(near):
        return int(near[np.abs(times[near] - times[start] - target).argmin()])
    if shortest > most:
        return most
    return shortest + int(np.abs(passed[shortest - start - 1 :] - target).argmin())
