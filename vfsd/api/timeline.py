"""`Timeline`: the videos of a camera in the order in which they were recorded."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from vfsd.core.capture_time import (
    GAPS,
    NS,
    CaptureClock,
    from_ns,
    to_ns,
)
from vfsd.core.frames import Frame, Frames
from vfsd.core.pixel_array import PixelArray, Pixels
from vfsd.core.recordings import SHORTEST_GAP, RecordedPart, Recordings
from vfsd.core.timebase import frame_rate
from vfsd.core.view_request import ViewForm, with_sound
from vfsd.disk.tempfiles import atomic_file
from vfsd.errors import NotFoundError, UsageError
from vfsd.validation import boolean, local_path, not_one_of, seconds_or_more
from vfsd.views import (
    open_timeline,
    save_timeline,
    timeline_view,
)

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.timebase import Seconds
    from vfsd.core.view_request import Size
    from vfsd.disk.object_store import Progress
    from vfsd.read.read_context import VideoContext
    from vfsd.tiling import Region
    from vfsd.views.joined_views import JoinedView

TimeSpan = tuple[datetime, datetime]
"""``start <= t < end``, both with a time zone."""

MISSING = ("raise", "skip")
_BUFFER = 1 << 20


class TimelineReadOptions(TypedDict, total=False):
    """The arguments of reads that do not choose times."""

    region: Region | None
    size: Size | None
    format: str
    psnr: float | None


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """A video of a timeline, and the time that it covers."""

    video: Video
    origin_ns: int  #: Unix time of the video's first frame
    start_ns: int  #: Unix time at which the part starts
    end_ns: int  #: Unix time at which it ends, exclusive
    clock: CaptureClock

    @property
    def start(self) -> datetime:
        """`start_ns` in UTC."""
        return from_ns(self.start_ns)

    @property
    def end(self) -> datetime:
        """`end_ns` in UTC."""
        return from_ns(self.end_ns)

    def seconds_at(self, ns: int) -> Fraction:
        """Return the time on the video's own timeline."""
        return Fraction(ns - self.origin_ns, NS)


@dataclass(frozen=True, eq=False, repr=False)
class TimelineFrames(PixelArray):
    """Frames of several videos: an array of frames x height x width x channels.

    All other arrays have one element per frame.
    """

    data: Pixels  #: N x H x W x C, uint8 (uint16 for formats of more than 8 bits)
    times_ns: npt.NDArray[np.int64]  #: when each was recorded: Unix time, nanoseconds
    index: npt.NDArray[np.int64]  #: the number of each in its video
    names: tuple[str, ...]  #: the video of each
    psnr: float = math.inf  #: as `Frames.psnr`

    @property
    def times(self) -> npt.NDArray[np.datetime64]:
        """`times_ns` in UTC, as ``datetime64[ns]``."""
        return self.times_ns.view("datetime64[ns]")

    def __len__(self) -> int:
        return len(self.data)


class Timeline:
    """The videos of a camera on one clock.

        day = store.timeline("cam3/**")
        day.read(span=(start, end), fps=1, size=320)

    Where two videos overlap, the one that starts later counts.  Videos without a known time of
    recording are in `unknown`.  A timeline holds what the catalog said when it was made.
    """

    def __init__(self, name: str, videos: Iterable[Video]) -> None:
        """Use `Store.timeline`."""
        opened = {video.name: video for video in videos}
        self.name = name  #: the pattern that it was made from
        self.recordings = Recordings(name, [video.info for video in opened.values()])
        """The same, as the catalog describes it."""
        self.unknown = self.recordings.unknown  #: names of videos without a time of recording
        self.parts = _opened(self.recordings.parts, opened)  #: in the order of their starts
        self.overlapped = _opened(self.recordings.overlapped, opened)
        """Videos without a frame that counts, since others cover them; each is one part."""

    def __repr__(self) -> str:
        if not self.parts:
            return f"<Timeline {self.name!r}, empty>"
        count = len({part.video.name for part in self.parts})
        return f"<Timeline {self.name!r}, {count} videos, {self.start} to {self.end}>"

    @property
    def start(self) -> datetime:
        """The time of the first frame, in UTC.  Raises `NotFoundError` for an empty timeline."""
        return from_ns(self.recordings.require_parts()[0].start_ns)

    @property
    def end(self) -> datetime:
        """The end of the last video, in UTC.  Raises `NotFoundError` for an empty timeline."""
        return from_ns(self.recordings.require_parts()[-1].end_ns)

    def gaps(self, at_least: float = SHORTEST_GAP) -> list[TimeSpan]:
        """Return the times without a video, of `at_least` seconds each, in order.

        Recorders lose some milliseconds between two files, so the default leaves short ones out.
        """
        least = seconds_or_more(at_least, "at_least") * NS
        return [(from_ns(start), from_ns(end)) for start, end in self.recordings.gaps_ns(least)]

    def part_at(self, moment: datetime) -> TimelinePart:
        """Return the part that shows a time.  Raises `NotFoundError` in a gap and outside."""
        place = self.recordings.place_at(to_ns(moment))
        if place is None:
            raise self.recordings.missing_error(to_ns(moment))
        return self.parts[place]

    def frame_at(self, moment: datetime, *, region: Region | None = None) -> Frame:
        """Return the frame on the screen at a time.  Raises `NotFoundError` in a gap."""
        part = self.part_at(moment)
        return part.video.frame_at(part.seconds_at(to_ns(moment)), region=region)

    def read(
        self,
        *,
        span: TimeSpan | None = None,
        times: Sequence[datetime] | None = None,
        fps: Seconds | None = None,
        missing: str = "raise",
        **options: Unpack[TimelineReadOptions],
    ) -> TimelineFrames:
        """Read frames by the time of their recording.

        Args:
            span: The frames that appear in ``span[0] <= t < span[1]``, in the order of time;
                default: all.
            times: For each time the frame on the screen then, in this order; not together with
                `span` or `fps`.
            fps: Frames per second: the frame on the screen at each multiple of ``1 / fps`` from the
                start of the span.
            missing: For times in a gap: "raise", or "skip" to leave them out.  Gaps shorter than a
                second raise only for `times`.
            **options: `region`, `size`, `format` and `psnr` as for `Video.read`.  Videos of
                different sizes need `size`, or a `region` that all have.

        Raises:
            NotFoundError: A time without a video, unless `missing` is "skip"; or no frame at all.
            UsageError: An argument is malformed, or the frames have different sizes.
        """
        if missing not in MISSING:
            raise not_one_of("missing", missing, MISSING)
        if times is not None:
            if span is not None or fps is not None:
                raise UsageError("give either times, or a span, not both")
            return self._read_times([to_ns(moment) for moment in times], missing, options)
        start, end = self._span_ns(span)
        if missing == "raise":
            self._require_covered(start, end)
        if fps is None:
            return _joined(list(self._spans(start, end, options)))
        rate = frame_rate(fps)
        if rate <= 0:
            raise UsageError(f"fps must be above 0, got {fps!r}")
        count = math.ceil(Fraction(end - start, NS) * rate)
        grid = [start + math.floor(number * NS / rate) for number in range(count)]
        return self._read_times(grid, "skip", options)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        span: TimeSpan | None = None,
        gaps: str = "keep",
        sound: str | None = None,
        replace: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Save the frames of a span as one mp4 file.  Returns its size in bytes.

        Packets are copied.  Only frames before the first key frame, and after the last one whose
        packets can be cut, are encoded.  The first frame is at 0 in the file.  The frames are those
        of `read` with this span.

        Args:
            path: The file, with the ending .mp4.
            span: ``span[0] <= t < span[1]``; default: all.
            gaps: "keep": times in the file follow the clock, and the frame before a gap stays on
                the screen; "close": no time passes in a gap; "raise": a gap of a second or more is
                an error.
            sound: "no" for none; "aac" or "opus" to transcode it; default: as the views of videos.
            replace: Whether `path` may exist.
            on_progress: Called with the number of bytes written since the last call.

        Raises:
            NotFoundError: No frame in that time, or a gap.
            UsageError: An argument is malformed, or one file cannot hold the videos, for example of
                different sizes or codecs.
        """
        target = local_path(path, "a file")
        if target.suffix.lower() != ".mp4":
            raise UsageError(f"the file of a timeline must end in .mp4, got {target.name!r}")
        with ExitStack() as held:
            context, rendered = self._file(span, gaps, sound, held)
            with atomic_file(target, boolean(replace, "replace")) as file:
                return save_timeline(context.parts, context.tools, rendered, file, on_progress)

    def open(
        self, *, span: TimeSpan | None = None, gaps: str = "keep", sound: str | None = None
    ) -> io.BufferedReader:
        """Open the file that `save` writes.  Its bytes are made as they are read.

        The caller closes it.  Raises as `save`.
        """
        with ExitStack() as held:
            context, rendered = self._file(span, gaps, sound, held)
            opened = open_timeline(context.parts, context.tools, rendered, self.name, held)
        return io.BufferedReader(opened, _BUFFER)

    def _file(
        self, span: TimeSpan | None, gaps: str, sound: str | None, held: ExitStack
    ) -> tuple[VideoContext, JoinedView]:
        """Plan the file of a span, and keep its videos until `held` is closed."""
        from vfsd.api.video import context_of

        if gaps not in GAPS:
            raise not_one_of("gaps", gaps, GAPS)
        form = with_sound(ViewForm("mp4"), sound)
        start, end = self._span_ns(span)
        if gaps == "raise":
            self._require_covered(start, end)
        chosen = self.recordings.require_between(start, end)
        context = context_of(self.parts[0].video)
        for part in chosen:
            held.enter_context(context.parts.originals.held(part.video.original))
        close = gaps == "close"
        view = timeline_view(
            context.parts, context.tools, chosen, (start, end), form, close_gaps=close
        )
        return context, view

    def _read_times(
        self, moments: Sequence[int], missing: str, options: TimelineReadOptions
    ) -> TimelineFrames:
        chosen: dict[int, list[int]] = {}
        for number, ns in enumerate(moments):
            place = self.recordings.place_at(ns)
            if place is not None:
                chosen.setdefault(place, []).append(number)
            elif missing == "raise":
                raise self.recordings.missing_error(ns)
        found, order = [], []
        for place, numbers in sorted(chosen.items()):
            part = self.parts[place]
            frames = part.video.read(
                times=[part.seconds_at(moments[number]) for number in numbers], **options
            )
            found.append(_of_part(part, frames))
            order.extend(numbers)
        return _joined(found, order)

    def _spans(
        self, start: int, end: int, options: TimelineReadOptions
    ) -> Iterator[TimelineFrames]:
        for part in self._parts_in(start, end):
            low, high = max(start, part.start_ns), min(end, part.end_ns)
            span = (part.seconds_at(low), min(part.seconds_at(high), part.video.duration))
            frames = part.video.read(span=span, **options)
            yield _of_part(part, frames)

    def _parts_in(self, start: int, end: int) -> list[TimelinePart]:
        return [self.parts[place] for place in self.recordings.places(start, end)]

    def _span_ns(self, span: TimeSpan | None) -> tuple[int, int]:
        if span is None:
            parts = self.recordings.require_parts()
            return parts[0].start_ns, parts[-1].end_ns
        if not isinstance(span, (tuple, list)) or len(span) != 2:
            raise UsageError(f"span must be (start, end), got {span!r}")
        start, end = map(to_ns, span)
        if start >= end:
            raise UsageError(f"span must end after its start, got {span[0]} to {span[1]}")
        return start, end

    def _require_covered(self, start: int, end: int) -> None:
        """Raises `NotFoundError` if a second or more of a span has no video."""
        at = start
        for part in self._parts_in(start, end):
            if part.start_ns - at >= SHORTEST_GAP * NS:
                break
            at = part.end_ns
        if end - at >= SHORTEST_GAP * NS or at == start:
            raise self.recordings.missing_error(at)


def _opened(parts: Sequence[RecordedPart], videos: Mapping[str, Video]) -> tuple[TimelinePart, ...]:
    return tuple(
        TimelinePart(
            videos[part.video.name], part.origin_ns, part.start_ns, part.end_ns, part.clock
        )
        for part in parts
    )


def _of_part(part: TimelinePart, frames: Frames) -> TimelineFrames:
    # In whole nanoseconds of the video's own timeline, as floats lose them after 52 days.
    passed = np.rint(frames.seconds * NS).astype(np.int64)
    names = (part.video.name,) * len(frames)
    return TimelineFrames(frames.data, passed + part.origin_ns, frames.index, names, frames.psnr)


def _joined(found: Sequence[TimelineFrames], order: Sequence[int] | None = None) -> TimelineFrames:
    """Return all frames as one; `order` has the place of each, default: as they are."""
    if not found:
        raise NotFoundError("the timeline has no frame at these times")
    sizes = {one.data.shape[1:] for one in found}
    if len(sizes) > 1:
        shapes = ", ".join(f"{width}x{height}" for height, width, *_ in sorted(sizes))
        raise UsageError(f"the videos have frames of different sizes: {shapes}", hint="give a size")
    data = found[0].data if len(found) == 1 else np.concatenate([one.data for one in found])
    joined = TimelineFrames(
        data,
        np.concatenate([one.times_ns for one in found]),
        np.concatenate([one.index for one in found]),
        tuple(name for one in found for name in one.names),
        min(one.psnr for one in found),
    )
    if order is None:
        return joined
    back = np.argsort(np.asarray(order, np.int64), kind="stable")
    return TimelineFrames(
        joined.data[back],
        joined.times_ns[back],
        joined.index[back],
        tuple(joined.names[place] for place in back),
        joined.psnr,
    )
