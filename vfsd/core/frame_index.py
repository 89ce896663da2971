"""Which frames somebody means by numbers, slices and masks, as with arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as shown
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table_pages import Ints
from vfsd.errors import OutOfRangeError, UsageError

_SOME = 5
_HINT = "give whole numbers, a slice of them, or a mask of the video's length"


def cut(whole: range, key: slice) -> range:
    """``whole[key]``.  Raises `UsageError` for a step of 0 and for what are no whole numbers."""
    try:
        return whole[key]
    except (TypeError, ValueError) as error:
        is_zero = isinstance(error, ValueError)
        raise UsageError(
            f"a slice of frames must have whole numbers, got {key.start}:{key.stop}:{key.step}",
            hint="the step must not be 0" if is_zero else "for times give a span",
        ) from None


def frame_numbers(
    indices: slice | Sequence[int] | Ints | npt.NDArray[np.bool_], count: int
) -> Ints:
    """The frames, of `count`, that `indices` mean: numbers from 0 on, in the order of `indices`.

    Negative ones count from the end; of truth values, one for each frame, those are meant that are
    true.  Raises `OutOfRangeError` for numbers of no frame, and `UsageError` for what is neither:
    floats, text, more than one dimension.
    """
    if isinstance(indices, slice):
        indices = cut(range(count), indices)
    if isinstance(indices, range) and indices:
        _require_within(_one_axis((indices[0], indices[-1])), count)  # before it takes memory
    numbers = _one_axis(indices)
    if numbers.dtype.kind == "b":
        if len(numbers) != count:
            raise UsageError(
                f"a mask must have {count} values, one for each frame, got {len(numbers)}",
                hint=_HINT,
            )
        return np.flatnonzero(numbers)
    _require_within(numbers, count)
    numbers = numbers.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)


def frames_among(indices: Sequence[int] | Ints | npt.NDArray[np.bool_] | int, count: int) -> Ints:
    """As `frame_numbers`, of one number, too; numbers of no frame are left out."""
    numbers = plain_numbers(indices, count)
    return frame_numbers(numbers[(numbers >= -count) & (numbers < count)], count)


def plain_numbers(indices: Any, count: int) -> npt.NDArray[Any]:
    """As they are given, one or many, whatever frames there are; of a mask what is true.

    Raises `UsageError` as `frame_numbers` does.
    """
    one = isinstance(indices, (int, np.integer)) or getattr(indices, "ndim", 1) == 0
    numbers = _one_axis([indices] if one else indices)
    return frame_numbers(numbers, count) if numbers.dtype.kind == "b" else numbers


def frames_meant(
    frames: range | Sequence[int] | Ints | npt.NDArray[np.bool_] | int, count: int
) -> range | Ints:
    """As `frames_among`; what a range without negative numbers means stays one, ascending."""
    if not isinstance(frames, range):
        return frames_among(frames, count)
    ascending = frames[::-1] if frames.step < 0 else frames
    first, end = (_steps_to(at, ascending) for at in (-count, count))
    within = ascending[first:end]  # before it takes memory
    return frames_among(within, count) if within and within[0] < 0 else within


def are_within(numbers: Ints, ranges: Sequence[range]) -> npt.NDArray[np.bool_]:
    """Of each number whether it is in one of `ranges`, which ascend and do not overlap."""
    if not ranges:
        return np.zeros(len(numbers), np.bool_)
    starts = np.array([part.start for part in ranges])
    stops = np.array([part.stop for part in ranges])
    place = np.searchsorted(starts, numbers, side="right") - 1
    found: npt.NDArray[np.bool_] = (place >= 0) & (numbers < stops[place])
    return found


def count_within(numbers: Ints, ranges: Sequence[range] | None) -> int | None:
    """How many of `numbers` are in `ranges`; None where these are not known."""
    return None if ranges is None else int(are_within(numbers, ranges).sum())


def _steps_to(number: int, ascending: range) -> int:
    """How many of a range's numbers are below `number`, or more."""
    return max(0, -((ascending.start - number) // ascending.step))


def _one_axis(indices: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers, truth values, or nothing."""
    try:
        found = np.asarray(indices)
    except (ValueError, TypeError):  # lists of several lengths, or of what is no number
        found = np.empty(())
    if found.ndim == 1:
        if not found.size:
            return found.astype(np.int64)
        if found.dtype.kind in "biu" or all(type(one) is int for one in found.tolist()):
            return found  # those beyond 64 bits are Python's
    raise UsageError(
        f"frames must be whole numbers, a slice or a mask, got {shown(indices)}", hint=_HINT
    )


def _require_within(numbers: npt.NDArray[Any], count: int) -> None:
    beyond = numbers[(numbers < -count) | (numbers >= count)]
    if len(beyond):
        some = ", ".join(str(number) for number in beyond[:_SOME])
        more = ", ..." if len(beyond) > _SOME else ""
        raise OutOfRangeError(f"frames {some}{more} were asked for; the video has {count}")
