"""`Video`: one video of a store, as a sequence of frames."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from reprlib import repr as shown
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt

from vfsd.api import reading
from vfsd.api.reading import SHOW
from vfsd.core.capture_time import from_ns
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Crop, Frame, Frames, frame_numbers
from vfsd.core.model import LogicalVideo, PhysicalVideo
from vfsd.core.timebase import Seconds, Span
from vfsd.core.view_request import Size, View
from vfsd.errors import UsageError
from vfsd.read.explain_read import ReadExplanation
from vfsd.read.read_context import VideoContext, VideoSnapshot
from vfsd.read.read_plan import AvailableTiles, ReadPlan, make_plan
from vfsd.tiling import Region
from vfsd.validation import is_one_integer, padding_pixels

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from vfsd.api.array import Axis, SecondsIndex, VideoArray
    from vfsd.api.bulk_reads import CropOf, RegionScan, Scan
    from vfsd.api.events import EventList
    from vfsd.api.labels import VideoLabels
    from vfsd.api.layers import VideoLayers
    from vfsd.api.moments import VideoMoments
    from vfsd.api.policy import VideoBudget, VideoPolicy
    from vfsd.api.tiles import VideoRenditions, VideoTiles
    from vfsd.api.vectors import VideoVectors
    from vfsd.api.views import VideoViews
    from vfsd.core.detections import Source
    from vfsd.core.label_query import Labels
    from vfsd.disk.object_store import Progress
    from vfsd.views.sound_view import SoundSamples

    # An anywidget, `vfsd.notebook.Player`, a package above this one.
    Player = Any
    _IntSlice = slice[int | None, int | None, int | None]


class Video:
    """One video of a store.  Frames are exact: `video[i]` is the i-th frame of a full decode.

    Indexing with an int returns a `Frame`, with a slice, a list of ints or a mask `Frames`.  A
    slice of seconds, and an index of several axes, return a lazy `VideoArray`:

        video[7]                             frame 7
        video[-1], video[0:30:2]             the last frame; every second frame of the first 30
        video[[5, 900, 17]]                  three frames, each decoded once
        video[is_bright]                     the frames where an array of len(video) bools is true
        video.seconds[10:20, 100:400, 200:600]  ten seconds of a region, decoded when needed

    No file is opened before the first frame is read.  Safe to use from several threads, and after
    a fork.  Decoders belong to the store and are shared, so a video needs no closing.  Videos
    can be pickled, and are equal where they are the same video of the same store.
    """

    def __init__(self, context: VideoContext) -> None:
        """Use `Store` to open videos."""
        self._context = context

    def __repr__(self) -> str:
        size = f"{self.width}x{self.height}"
        return (
            f"<{type(self).__name__} {self.name!r}: {len(self)} frames, {size}, "
            f"{float(self.duration):.2f} s, {self.codec}>"
        )

    def _repr_html_(self) -> str:
        """Return the first frame and facts for a notebook; the read log gets no note."""
        from vfsd.api.previews import video_html

        return video_html(self._context)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Video):
            return NotImplemented
        return self._context.identity == other._context.identity

    def __hash__(self) -> int:
        return hash(self._context.identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes nothing: decoders are closed with the store."""

    # -- description

    @property
    def name(self) -> str:
        """The path in the store, without a leading slash."""
        return self._context.name

    @property
    def info(self) -> LogicalVideo:
        """The catalog record, which the methods of `Store.catalog` take."""
        return self._context.info

    @property
    def original(self) -> PhysicalVideo:
        """The catalog record of the stored file: streams, frames, damage."""
        return self._context.original

    @property
    def width(self) -> int:
        """Pixels of the displayed frame."""
        return self.original.media.display_width

    @property
    def height(self) -> int:
        """Pixels of the displayed frame."""
        return self.original.media.display_height

    @property
    def num_frames(self) -> int:
        """Number of displayed frames; the same as ``len(video)``."""
        return self.original.frames

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(frames, height, width, 3): the shape of the data of all frames in RGB."""
        return self.num_frames, self.height, self.width, 3

    @property
    def fps(self) -> Fraction:
        """Frames per second: the nominal rate where it is constant, such as 30000/1001.

        Otherwise the mean rate; 0 where the video has a single moment.
        """
        return self.original.mean_rate or Fraction(0)

    @property
    def duration(self) -> Fraction:
        """Seconds from the appearance of the first frame to the end of the last."""
        return self.original.duration

    @property
    def codec(self) -> str:
        """The codec of the stored file, such as "h264"."""
        return self.original.media.codec

    @property
    def tags(self) -> frozenset[str]:
        """The tags at the time when the video was opened; `Store.catalog.tag` adds some."""
        return self.info.tags

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata at the time when the video was opened."""
        return self.info.metadata

    @property
    def captured_at(self) -> datetime | None:
        """When the first frame was recorded, in UTC; None: unknown.

        `info.captured` has it in nanoseconds, with the clock that says so.
        """
        captured = self.info.captured
        return None if captured is None else from_ns(captured.ns)

    @property
    def keyframes(self) -> Ints:
        """The numbers of the frames at which decoding can start, ascending."""
        return self._context.table.keyframes()

    def __len__(self) -> int:
        """Number of displayed frames."""
        return self.num_frames

    # -- frames by number

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Frame: ...
    @overload
    def __getitem__(self, key: list[int] | range | Ints | npt.NDArray[np.bool_]) -> Frames: ...
    @overload
    def __getitem__(self, key: _IntSlice) -> Frames: ...
    @overload
    def __getitem__(self, key: slice) -> Frames: ...
    @overload
    def __getitem__(self, key: tuple[Axis, ...] | EllipsisType) -> VideoArray: ...

    def __getitem__(
        self,
        key: int
        | np.integer[Any]
        | slice
        | list[int]
        | range
        | Ints
        | npt.NDArray[np.bool_]
        | tuple[Axis, ...]
        | EllipsisType,
    ) -> Frame | Frames | VideoArray:
        if is_one_integer(key):
            return self.frames([operator.index(key)])[0]  # type: ignore[arg-type]
        if isinstance(key, slice):
            if all(
                part is None or is_one_integer(part) for part in (key.start, key.stop, key.step)
            ):
                return self.frames(key)
            return self._array()[key].frames()  # raises: times are not indices
        if isinstance(key, (float, Fraction, str)):
            return self._array()[key]  # raises as well
        if isinstance(key, tuple) or key is Ellipsis:
            return self._array()[key]
        return self.frames(key)  # type: ignore[arg-type]  # which refuses a bool

    def __iter__(self) -> Iterator[Frame]:
        return self.iterate()

    def frames(
        self,
        indices: int | slice | Sequence[int] | Ints | npt.NDArray[np.bool_],
        *,
        region: Region | None = None,
        size: Size | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
    ) -> Frames:
        """Read frames by number, in the given order; each is decoded once.

        Args:
            indices: Numbers, which may repeat and may be negative to count from the end; a mask of
                len(video) bools; or a slice, as of a list; or one number.
            region: As for `read`.
            size: As for `read`.
            format: As for `read`.
            psnr: As for `read`.
            damaged: As for `read`.

        Raises:
            OutOfRangeError: The video has no such frame.
            UsageError: An argument is malformed.
        """

        several: Any = [indices] if is_one_integer(indices) else indices

        def numbers(snapshot: VideoSnapshot) -> Ints:
            return frame_numbers(several, len(snapshot))

        return self._numbered(numbers, region, size, format, psnr, damaged)

    def _numbered(
        self,
        numbers: Callable[[VideoSnapshot], Ints],
        region: Region | None,
        size: Size | None,
        format: str,
        psnr: float | None,
        damaged: str,
    ) -> Frames:
        rect = reading.rect_of(region)
        view = View(region=rect, size=reading.sides_in(size, rect, self.original.media))
        return reading.read_numbered(self._context, numbers, view, format, psnr, damaged)

    # -- frames by time

    def frame_at(self, time: Seconds, *, region: Region | None = None) -> Frame:
        """The frame on the screen at `time`, in seconds from the first frame.

        Raises `OutOfRangeError` before the first frame and at the end of the video.
        """
        return self.read(times=[time], region=region)[0]

    def index_at(self, time: Seconds) -> int:
        """The number of the frame on the screen at `time` seconds.  Raises `OutOfRangeError`."""
        return self._context.snapshot().index_at(time)

    def frames_in(self, span: Span | None = None) -> range:
        """The numbers of the frames that appear in ``span[0] <= t < span[1]`` seconds.

        Without a span, all.  Raises `UsageError` for an empty span, and `OutOfRangeError` where it
        starts after the end.  Issues a `ShortSpanWarning` where it ends after the end.
        """
        return self._context.frames_in(span)

    # -- reads

    def read(
        self,
        *,
        span: Span | None = None,
        frames: int | range | slice | Sequence[int] | Ints | npt.NDArray[np.bool_] | None = None,
        times: Sequence[Seconds] | npt.NDArray[np.floating[Any]] | None = None,
        tolerance: Seconds | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
    ) -> Frames:
        """Read frames, by default all: `Frames.data` is frames x height x width x channels.

        Tiles and renditions are used where they are cheaper and good enough.

        Args:
            span: Seconds: the frames that appear in ``span[0] <= t < span[1]``.
            frames: Frame numbers as for `Video.frames`; not together with `span` or `fps`.
            times: Seconds, in any order, which may repeat: for each, the frame on the screen then.
                That is the last frame at or before the time, never a later one.  Each GOP is
                decoded once.  Not together with `span`, `frames` or `fps`.
            tolerance: The largest distance in seconds from a time back to the appearance of its
                frame; default: any.
            region: (x1, y1, x2, y2) in pixels of the displayed frame, x2 and y2 exclusive; a
                `Rect`; or text such as "400x300+600+0" (width x height + x + y) or
                "600,0,1000,300".  Only its pixels are converted.
            size: (width, height) of the result, up to 16384 pixels each; a 0 keeps the shape.  An
                int is the length of the shorter side.
            fps: Frames per second: the frame on the screen at each multiple of ``1 / fps`` from the
                start of the span.
            format: rgb24, bgr24, gray, or a planar format (see `vfsd.codecs.frames.to_array`).
            psnr: The least PSNR in dB, in each plane or channel of `format`, of every frame against
                the original; ``math.inf`` reads the original alone.  By default the mean luma of
                each segment needs the store's `minimum_psnr`.  `Frames.psnr` is the known lower
                bound of the result, 0 where it was not measured.  Where the original was replaced,
                the very first one counts, and no more is needed than the present one has.  That
                loss is known of whole pictures; a region may have less.
            damaged: For frames that show damage of the file (see `damaged_frames`): "show" marks
                them in `Frames.damaged` and logs one warning for each video; "raise" raises
                `DamagedFramesError` before decoding; "skip" leaves them out.  The last two verify
                the video first, unless that was done before.

        Raises:
            OutOfRangeError: Outside the video or the frame; or no frame within `tolerance`.
            UsageError: An argument is malformed.
            DamagedFramesError: With ``damaged="raise"``.
        """
        if times is not None:
            if span is not None or frames is not None or fps is not None:
                raise UsageError("give either times, or a span or frames, not both")
            numbers = reading.numbers_at(times, tolerance)
            return self._numbered(numbers, region, size, format, psnr, damaged)
        if tolerance is not None:
            raise UsageError("tolerance requires times")
        if frames is not None:
            if span is not None or fps is not None:
                raise UsageError("give either a span of time or frames, not both")
            return self.frames(
                frames, region=region, size=size, format=format, psnr=psnr, damaged=damaged
            )

        def plan(snapshot: VideoSnapshot, tiles: AvailableTiles | None) -> ReadPlan:
            view = reading.view_of(snapshot, span=span, region=region, size=size, fps=fps)
            return make_plan(
                view, snapshot.original, snapshot.table, pixel_format=format, tiles=tiles
            )

        return reading.read_planned(
            self._context, plan, pixel_format=format, psnr=psnr, damaged=damaged
        )

    def iterate(
        self,
        *,
        span: Span | None = None,
        frames: int | range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
    ) -> Iterator[Frame]:
        """As `read`, one frame at a time, so that memory holds only a few.

        Args:
            span: As for `read`.
            frames: An ascending range or a slice; not together with `span`.
            region: As for `read`.
            size: As for `read`.
            fps: As for `read`.
            format: As for `read`.
            psnr: As for `read`.
            damaged: As for `read`; "raise" yields the frames before the first damaged one.

        Raises:
            OutOfRangeError: Outside the video or the frame.
            UsageError: An argument is malformed.
        """

        def view(snapshot: VideoSnapshot) -> View | None:
            are_none = reading.is_empty(frames, snapshot)
            chosen = range(1) if are_none else frames  # other arguments are checked all the same
            asked = reading.view_of(
                snapshot, span=span, frames=chosen, region=region, size=size, fps=fps
            )
            return None if are_none else asked

        return reading.iterate(self._context, view, format, psnr, damaged)

    def explain(
        self,
        *,
        span: Span | None = None,
        frames: int | range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> ReadExplanation:
        """Explain a `read` with these arguments: what it decodes, at what cost with and without
        tiles, and why it leaves existing tiles unused.

        Nothing is decoded.

        Args:
            span: As for `read`.
            frames: A range or a slice; not together with `span`.
            region: As for `read`.
            size: As for `read`.
            fps: As for `read`.
            format: As for `read`.
            psnr: As for `read`.

        Raises:
            OutOfRangeError: Outside the video or the frame.
            UsageError: An argument is malformed.
        """
        return reading.explain_read(
            self._context,
            span=span,
            frames=frames,
            region=region,
            size=size,
            fps=fps,
            format=format,
            psnr=psnr,
        )

    @property
    def seconds(self) -> SecondsIndex:
        """The video as a lazy array that is indexed by seconds.

        ``video.seconds[10:20, 100:400, 200:600]`` is ten seconds of a region; see `VideoArray`.
        """
        return self._array().seconds

    def _array(self) -> VideoArray:
        """The whole video as a lazy array of frames x height x width x 3, as ``video[...]``."""
        from vfsd.api.array import VideoArray

        return VideoArray.of(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Decode the whole video, for NumPy; ``video[...]`` decodes only what is needed."""
        return self._array().__array__(dtype, copy)

    @overload
    def scan(
        self,
        labels: Labels | None = None,
        *,
        span: Span | None = None,
        frames: range | None = None,
        region: Region | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: Video | None = None,
    ) -> Scan: ...

    @overload
    def scan(
        self,
        *,
        roi: str | Region,
        span: Span | None = None,
        frames: range | None = None,
        source: str | Source | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: Video | None = None,
    ) -> RegionScan: ...

    def scan(
        self,
        labels: Labels | None = None,
        *,
        roi: str | Region | None = None,
        span: Span | None = None,
        frames: range | None = None,
        region: Region | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        padding: int = 0,
        psnr: float | None = None,
        seen_in: Video | None = None,
    ) -> Scan | RegionScan:
        """The pixels of labelled boxes as crops, tiles or frames, in the order of frames.

        With `roi` every frame is examined, but only at its regions of interest.

        Args:
            labels: The boxes, as for `VideoLabels.query`.
            roi: A region of all frames, or a label such as "motion": wherever it was seen within
                the same second or so, and the whole frame in seconds that no source of that label
                (or not `source`) has examined.
            span: Seconds, start inclusive and end exclusive.
            frames: An ascending range; not together with `span`.
            region: Boxes that overlap it; not together with `roi`.
            source: The source of the boxes.
            min_confidence: The lowest confidence; not together with `roi`.
            track: The number of an object; not together with `roi`.
            padding: Pixels added around each box.
            psnr: As for `read`.
            seen_in: Another video with the same frames, such as a variant of this one, to take the
                boxes from.

        Raises:
            UsageError: An argument is malformed, or `seen_in` has other frames.
            OutOfRangeError: Outside the video or the frame.
        """
        from vfsd.api.bulk_reads import require_same_frames, scan_boxes, scan_regions

        other = self if seen_in is None else seen_in
        if not isinstance(other, Video):
            raise UsageError(
                f"seen_in must be a video of the store, got {shown(other)}",
                hint="give a video of the store",
            )
        padding = padding_pixels(padding)
        if span is not None:
            if frames is not None:
                raise UsageError("give either a span of time or frames, not both")
            frames = self.frames_in(span)
        require_same_frames(self._context, other._context)
        if roi is None:
            return scan_boxes(
                self._context,
                labels,
                frames=frames,
                region=region,
                source=source,
                min_confidence=min_confidence,
                track=track,
                padding=padding,
                psnr=psnr,
                seen_in=other._context,
            )
        if any(given is not None for given in (labels, region, min_confidence, track)):
            raise UsageError(
                "labels, region, min_confidence and track cannot be given with roi",
                hint="a scan of regions of interest takes all that is in them",
            )
        return scan_regions(
            self._context,
            roi,
            frames=frames,
            source=source,
            padding=padding,
            psnr=psnr,
            seen_in=other._context,
        )

    def events(
        self,
        event: str,
        /,
        *,
        within: Seconds | None = None,
        gap: Seconds = 0,
        span: Span | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        regions: Mapping[str, Region] | None = None,
        predicates: Mapping[str, Callable[..., Any]] | None = None,
        **variables: Labels,
    ) -> EventList:
        """Find the times at which tracked objects are related as `event` says.

            video.events("near(a, b) for 2s; far(a, b, 3)", a="car|truck", b="person", within=10)

        Steps are separated by ``;`` and follow each other; terms joined by ``&`` hold at the same
        time, after ``not`` they do not.  ``for 2s`` or ``for 50f`` (examined frames) is the least
        time of a step, by default one frame.  Different variables are different objects, the same
        ones in all steps, so boxes need tracks, except for one variable in one step.

        A box counts until its source examines the next frame.  Where a variable has no box, no term
        with it holds, not even after ``not``; `EventList.unknown` has the frames that no source
        examined.  With one step, an event is as long as the step holds.  With several, it is the
        first to end and then the shortest, and the next one of the same objects begins after it.

        Terms are ``near(a, b[, 1])`` and ``far(a, b[, 3])`` (distance of centres in mean widths),
        ``left_of``, ``right_of``, ``above``, ``below`` (of centres), ``overlaps(a, b[, iou])``,
        ``inside(a, WxH+X+Y)`` (the centre), ``faster(a, v)`` and ``slower(a, v)`` (v in own widths
        a second), and those of `predicates`.

        Args:
            event: The steps.
            within: Most seconds from the end of a step to that of the next; None: any.
            gap: Most seconds without the condition that do not end a run of it.
            span: Seconds to search in, start inclusive and end exclusive.
            source: The source of the boxes; by default all.
            min_confidence: The lowest confidence of a box.
            regions: Regions by the name that terms have for them.
            predicates: Functions of the boxes of their variables (`vfsd.labels.events.EventBoxes`,
                N rows that belong together) and their arguments, which return N bools.
            variables: The labels of each variable, as for `labels.query`.

        Raises `UsageError` for a malformed event or argument, and for lengths in frames where the
        rate varies.
        """
        from vfsd.api.events import events
        from vfsd.api.labels import warn_of_unknown_labels

        found = events(
            [self],
            event,
            variables,
            within=within,
            gap=gap,
            span=span,
            source=source,
            min_confidence=min_confidence,
            regions=regions,
            predicates=predicates,
        )
        warn_of_unknown_labels(found.unknown_labels)
        return found

    def crops(
        self,
        boxes: Iterable[CropOf],
        *,
        size: Size | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> list[Crop]:
        """Read boxes of many frames, in the given order; each GOP is decoded once.

            video.crops([(900, (10, 20, 90, 80)), (7, "80x60+300+200")], size=(224, 224))

        A box that lies in stored tiles is read from these where they are cheaper and good enough.
        Equal to ``video.read(frames=[frame], region=box, size=size)`` for each box.  Only the
        results and a few pictures are in memory at a time.

        Args:
            boxes: Pairs of a frame number, negative to count from the end, and a region as for
                `read`; or `Detection`s.  A region may have fractions, and may reach beyond the
                frame: the result has the whole pixels of the frame that it touches, and
                `Crop.rect` tells which.
            size: As for `read`, of each crop.
            format: As for `read`.
            psnr: As for `read`.

        Raises:
            OutOfRangeError: A frame is outside the video, or a box outside its frame.
            UsageError: An argument is malformed.
        """
        from vfsd.api.bulk_reads import read_crops

        return read_crops(self._context, boxes, size, format, psnr)

    def iterate_crops(
        self,
        boxes: Iterable[CropOf],
        *,
        size: Size | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
        memory: int = 256 << 20,
    ) -> Iterator[Crop]:
        """As `crops`, in the same order, but with about `memory` bytes of results at a time.

        The boxes are taken from `boxes` as needed.  Those whose results fit into `memory` are read
        together: each GOP is decoded once for them, and once for all where the boxes are in the
        order of frames.

        Args:
            boxes: As for `crops`; they are checked when they are used.
            size: As for `crops`.
            format: As for `read`.
            psnr: As for `read`.
            memory: A limit in bytes of 8-bit RGB; a single crop may be larger.

        Raises:
            OutOfRangeError: A frame is outside the video, or a box outside its frame.
            UsageError: An argument is malformed.
        """
        from vfsd.api.bulk_reads import iterate_crops

        return iterate_crops(self._context, boxes, size, format, psnr, memory)

    # -- sound

    def sound(self, span: Span | None = None, rate: int | None = None) -> SoundSamples:
        """The sound of a span as (samples, rate): float32 of samples x channels, and Hz.

            samples, rate = video.sound((1, 2), rate=16000)

        Sample k of a window that starts at second a is at ``(round(a * rate) + k) / rate`` seconds
        from the first frame, so windows that follow each other fit together.  Channels are those of
        the file.  Samples that the file has no sound for are 0; `SoundSamples.silent` has their
        ranges, and a `SilenceWarning` tells of them.

        Args:
            span: Seconds from the first frame, start inclusive and end exclusive; default: all.
            rate: Samples per second; default: that of the file.

        Raises:
            UsageError: The video has no sound, or an argument is malformed.
            OutOfRangeError: The span starts after the end of the video.
            IntegrityError, OSError: The file cannot be read.
        """
        from vfsd.views.sound_view import read_sound

        return read_sound(self._context, span, rate)

    # -- in a notebook

    def show(
        self,
        span: tuple[Seconds, Seconds | None] | None = None,
        labels: Labels | None = None,
        *,
        source: str | Source | None = None,
        size: int = 640,
    ) -> Player:
        """A player for a notebook: frame by frame, with the labelled boxes.

            video.show(span=(10, 20), labels="car|truck")

        The kernel decodes the frames that the player asks for, as JPEG of at most 200,000 bytes
        each.  They count as reads of kind "api".

        Args:
            span: As for `read`.
            labels: The boxes to draw, as for `VideoLabels.query`; default: all.
            source: The source of the boxes.
            size: Most pixels of the longer side of the picture, up to 1280.

        Raises:
            OutOfRangeError: The span has no frames.
            UsageError: An argument is malformed.
            ExtraMissingError: anywidget is not installed.
        """
        # The package is above this one, and the core must not load it: so by name, when called.
        player: Player = import_module("vfsd.notebook").Player(
            self, span=span, labels=labels, source=source, size=size
        )
        return player

    # -- damage

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> bool:
        """Decode the whole file, and correct the frame table where it is wrong or damaged.

        Returns whether the frame table, or the description of the pictures, was wrong.

        `on_progress` is called with (bytes done, bytes in all) and may raise to stop.  Bytes that
        are compared with checksums first count twice.  Raises `RefusedMediaError` when the file
        no longer decodes, `NotFoundError` when the video or its bytes are gone, `IntegrityError`
        and `OSError`.
        """
        from vfsd.write.frame_index import verify

        return verify(self._context, on_progress=on_progress)

    def damaged_frames(self) -> Ints:
        """The numbers of the frames that show damage of the file, ascending.

        These are the frames with a decoder error or concealed parts, and the frames predicted from
        them up to the next whole key frame.  Packets without a frame are not counted, but frames
        that depend on them are.  Verifies the video first, unless that was done before; takes as
        long, and raises the same, as `verify`.
        """
        return reading.damaged_frames(self._context)

    # -- files

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        span: Span | None = None,
        frames: int | range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        codec: str | None = None,
        format: str | None = None,
        psnr: float | None = None,
        sound: str | None = None,
        boxes: Labels | None = None,
        replace: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Write a part of the video to a file of another form; returns its size in bytes.

            video.save("clip.mp4", span=(10, 20), region=(600, 300, 1000, 600), codec="av1")

        The file appears under its name whole, or not at all.

        Args:
            path: The file; its extension selects the form: mp4, mkv, h264, hevc, y4m, rgb, yuv or
                raw; or wav, for the sound alone.
            span: As for `read`.
            frames: A range or a slice; not together with `span`.
            region: As for `read`.
            size: As for `read`.
            fps: As for `read`.
            codec: h264, hevc, av1, mjpeg, or ffv1, which is lossless.  By default packets are
                copied where possible.
            format: The pixel format (see `vfsd.core.output_formats`); default: one of 8 bits.
            psnr: As for `read`.
            sound: For mp4 and mkv: "aac" or "opus" transcodes other sound, "no" leaves it out.  By
                default sound is copied, or becomes AAC where the container needs it.
            boxes: Draw the boxes with these labels, as for `VideoLabels.query`, with their labels
                and tracks; "*" draws all.  Not with `format` or ffv1.
            replace: Replace an existing file.
            on_progress: Called with the number of bytes written.

        Raises:
            ExistsError: The file exists, without `replace`.
            UsageError: Such a file cannot be made.
            OutOfRangeError: Outside the video or the frame.
            NotFoundError: No box of the store has ever had a label in `boxes`.
            NoSpaceError, OSError: The file cannot be written.
        """
        from vfsd.api.views import VideoViews, request_of

        views = VideoViews(self._context)
        request = request_of(
            self._context,
            path,
            span=span,
            frames=frames,
            region=region,
            size=size,
            fps=fps,
            codec=codec,
            format=format,
            psnr=psnr,
            sound=sound,
            boxes=boxes,
        )
        return views.save(path, request, replace=replace, on_progress=on_progress)

    # -- groups: made when they are used, so that a read imports none of their modules

    @property
    def labels(self) -> VideoLabels:
        """Labelled boxes: add, query, run detectors."""
        from vfsd.api.labels import VideoLabels

        return VideoLabels(self._context)

    @property
    def vectors(self) -> VideoVectors:
        """Vectors that models gave runs of frames: add and get them."""
        from vfsd.api.vectors import VideoVectors

        return VideoVectors(self._context)

    @property
    def layers(self) -> VideoLayers:
        """Masks, depth and other maps of frames: add, count pixels, find frames."""
        from vfsd.api.layers import VideoLayers

        return VideoLayers(self._context)

    @property
    def moments(self) -> VideoMoments:
        """Labelled runs of frames: add, query, windows that are not labelled yet."""
        from vfsd.api.moments import VideoMoments

        return VideoMoments(self._context)

    @property
    def tiles(self) -> VideoTiles:
        """Tiles: plan layouts, make tiles, estimate their use."""
        from vfsd.api.tiles import VideoTiles

        return VideoTiles(self._context)

    @property
    def renditions(self) -> VideoRenditions:
        """Whole frames in other sizes: encode them, or store frames that were scaled elsewhere."""
        from vfsd.api.tiles import VideoRenditions

        return VideoRenditions(self._context)

    @property
    def budget(self) -> VideoBudget:
        """The limit for tiles and renditions, their present size, and pins."""
        from vfsd.api.policy import VideoBudget

        return VideoBudget(self._context)

    @property
    def policy(self) -> VideoPolicy:
        """Whether the original may be replaced: policy, holds, replacement."""
        from vfsd.api.policy import VideoPolicy

        return VideoPolicy(self._context)

    @property
    def views(self) -> VideoViews:
        """The files that a mount shows below ``NAME@/``."""
        from vfsd.api.views import VideoViews

        return VideoViews(self._context)


def context_of(video: Video) -> VideoContext:
    """The inner state of a video, for the modules of vfsd that work on it."""
    return video._context
