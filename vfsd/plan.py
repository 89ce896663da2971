"""From a view to the work that shows it.  Pure: values in, a printable plan out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vfsd.errors import OutOfRangeError
from vfsd.framepages import Ints
from vfsd.frametable import DecodeRun, FrameTable
from vfsd.model import PhysicalVideo
from vfsd.tiling import Rect
from vfsd.units import ticks_at_or_after, ticks_at_or_before
from vfsd.view import View

_STREAM_FRAMES = 48
"""Contiguous frames from which on a decoder that runs through is better than fresh starts."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Decode `runs` (or stream `contiguous`) of `physical`, keep `frames`, crop and scale."""

    physical: PhysicalVideo
    frames: Ints  #: frame index of each picture of the result, in order; repeats allowed
    region: Rect
    size: tuple[int, int]  #: of the result
    runs: tuple[DecodeRun, ...]  #: empty where `contiguous` is given
    contiguous: range | None  #: frames to stream through

    @property
    def packets(self) -> int:
        """Packets to be fed to a decoder, disposable ones included."""
        return sum(run.end_packet - run.first_packet for run in self.runs)


def select_frames(view: View, physical: PhysicalVideo, table: FrameTable) -> Ints:
    """The frame index of each picture of the result.

    Raises `OutOfRangeError` where the view starts after the end of the video.
    """
    if view.frames is not None:
        first, end, step = view.frames
        if first >= len(table) or (end is not None and end > len(table)):
            raise OutOfRangeError(
                f"frames {first} to {'the end' if end is None else end} were asked for; "
                f"the video has {len(table)}"
            )
        return np.arange(first, len(table) if end is None else end, step, dtype=np.int64)
    start, stop = view.span or (Fraction(0), None)
    duration = physical.duration
    if start >= duration:
        raise OutOfRangeError(
            f"{float(start):.3f} s is after the end of the video at {float(duration):.3f} s"
        )
    stop = duration if stop is None else min(stop, duration)
    origin, base = physical.first_pts, physical.time_base
    if view.fps is None:
        chosen = table.frames_starting_between(
            origin + ticks_at_or_after(start, base), origin + ticks_at_or_after(stop, base)
        )
        return np.arange(chosen.start, chosen.stop, dtype=np.int64)
    count = max(1, ((stop - start) * view.fps).__ceil__())
    times = [origin + ticks_at_or_before(start + k / view.fps, base) for k in range(count)]
    return np.array([table.frame_at(min(t, table.end_pts - 1)) for t in times], dtype=np.int64)


def is_stream(frames: Ints) -> bool:
    """Whether a decoder that runs through is the best for these frames."""
    return len(frames) >= _STREAM_FRAMES and bool((np.diff(frames) == 1).all())


def make_plan(view: View, physical: PhysicalVideo, table: FrameTable) -> ReadPlan:
    """What to decode to show `view`.

    Raises `OutOfRangeError` where it reaches outside the frame or the timeline.
    """
    return plan_frames(select_frames(view, physical, table), view, physical, table)


def plan_frames(frames: Ints, view: View, physical: PhysicalVideo, table: FrameTable) -> ReadPlan:
    """What to decode to show just `frames`, with the region and size of `view`."""
    full = physical.media.frame_rect
    region = view.region or full
    if not full.contains(region):
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {full}")
    size = view.size or (region.width, region.height)
    contiguous = None
    runs: list[DecodeRun] = []
    if is_stream(frames):
        contiguous = range(int(frames[0]), int(frames[-1]) + 1)
    else:
        runs = table.decode_runs(frames.tolist())
    return ReadPlan(physical, frames, region, size, tuple(runs), contiguous)
