"""Which frames a view shows, and when: its timeline starts at 0 with its first picture."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.plan import select_frames

SEGMENT_SECONDS = 1
MOST_SEGMENTS = 60_000
"""The index of an MP4 file lists up to 65,535."""
_LONGEST_PICTURE = 1001  # seconds, as far as headers tell
MOST_PICTURES = 1 << 23
"""More pictures than 77 hours of 30 a second are taken for a slip of the pen."""


@dataclass(frozen=True)
class Showing:
    """The pictures of a view, one array element each."""

    frames: Ints  #: frame index in the video; ascending, repeats allowed
    starts: Ints  #: ticks of `time_base`, from 0
    end: int  #: when the last picture stops being shown, in ticks
    time_base: Fraction  #: seconds per tick
    rate: Fraction | None  #: frames per second where it is constant

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def memory(self) -> int:
        """Bytes that its arrays take up."""
        return self.frames.nbytes + self.starts.nbytes

    @property
    def duration(self) -> Fraction:
        """Seconds."""
        return self.end * self.time_base

    @property
    def mean_rate(self) -> Fraction:
        """Frames per second, as a number that every header can hold."""
        rate = self.rate or len(self) / self.duration
        return max(rate.limit_denominator(_LONGEST_PICTURE), Fraction(1, _LONGEST_PICTURE))

    def part(self, first: int, stop: int) -> Showing:
        """The pictures ``first <= p < stop``, with a timeline of their own."""
        start, end = int(self.starts[first]), int(self.ends(first, stop)[-1])
        return Showing(
            self.frames[first:stop],
            self.starts[first:stop] - start,
            end - start,
            self.time_base,
            self.rate,
        )

    def ends(self, first: int, stop: int) -> Ints:
        """When the pictures ``first <= p < stop`` cease to be shown, in ticks."""
        if stop < len(self):
            return self.starts[first + 1 : stop + 1]
        return np.append(self.starts[first + 1 :], self.end)


def segment_ticks(showing: Showing, least_pictures: int = 1) -> int:
    """How long the segments of a file are: a second, or longer where the pictures are few.

    At least `least_pictures` fit in; and there are no more than an index can list.
    """
    pictures = showing.duration * least_pictures / len(showing)
    seconds = max(Fraction(SEGMENT_SECONDS), pictures, showing.duration / MOST_SEGMENTS)
    return max(1, int(seconds / showing.time_base))


def show(view: View, physical: PhysicalVideo, table: FrameTable) -> Showing:
    """What `view` shows of a stored encoding.

    With a rate, pictures are as far apart as it says; without, each keeps the time that it has in
    the video, and the last one lasts until the next would have come.  Raises `OutOfRangeError`
    outside the timeline, `UsageError` for rates and numbers that cannot be meant.
    """
    if view.fps is not None:
        _require_sane_rate(view, physical)
    frames = select_frames(view, physical, table)
    if not len(frames):
        raise no_frame(view, physical.duration)
    if view.fps is not None:
        count = len(frames)
        return Showing(frames, np.arange(count), count, 1 / view.fps, view.fps)
    step = view.frames[2] if view.frames is not None else 1
    first, last = int(frames[0]), int(frames[-1])
    pts = table.pts(first, last + 1)[::step]
    following = last + step
    end = table.frame_pts(following) if following < len(table) else table.end_pts
    end = max(end, int(pts[-1]) + 1)
    media = physical.media
    rate = None
    if not media.variable_rate and media.average_rate is not None:
        rate = media.average_rate / step
    return Showing(frames, pts - pts[0], end - int(pts[0]), media.time_base, rate)


def no_frame(view: View, duration: Fraction) -> OutOfRangeError:
    """What is raised where a view shows nothing of a video that lasts `duration` seconds."""
    start, stop = view.span or (Fraction(0), None)
    until = "the end" if stop is None else f"{float(stop):.9g} s"
    return OutOfRangeError(
        f"no frame appears between {float(start):.9g} s and {until} of the video's "
        f"{float(duration):.9g} s",
        hint="a frame counts where it appears; with a rate, what is on the screen does",
    )


def _require_sane_rate(view: View, physical: PhysicalVideo) -> None:
    assert view.fps is not None
    start, stop = view.span or (Fraction(0), None)
    stop = physical.duration if stop is None else min(stop, physical.duration)
    if (stop - start) * view.fps > MOST_PICTURES:
        raise UsageError(f"these are more than {MOST_PICTURES} pictures")
