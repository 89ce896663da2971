"""The frames of a view.

`ViewTimeline` lists which frames are shown and when, starting at 0.  `PictureForm` and
`PictureConverter` crop, scale and convert each frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.pixel_layouts import lossless_layout
from vfsd.codecs.frames.to_array import FrameRegion, RawPixelConverter
from vfsd.core.display_geometry import scaled_aspect, upright_aspect
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Pixels
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.core.view_path import ViewForm
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.read_output import ReadOutput
from vfsd.read.read_plan import select_frames
from vfsd.tiling import Rect

MAX_VIEW_PIXELS = 1 << 26
"""Area of a picture of a view: 8192 x 8192."""


@dataclass(frozen=True, slots=True)
class PictureForm(ReadOutput):
    """The form of each picture of a view: a region of the displayed frame, size, pixel format."""

    @property
    def bytes(self) -> int:
        """Bytes of one picture."""
        return PictureConverter(self).bytes

    @property
    def sample_aspect_ratio(self) -> Fraction | None:
        """Width of a pixel divided by its height; None if unknown."""
        told = upright_aspect(self.media)
        region = (self.region.width, self.region.height)
        return None if told is None else scaled_aspect(told, region, self.size)


def picture_form(media: MediaInfo, view: View, pixel_format: str) -> PictureForm:
    """Raises `OutOfRangeError` for a region outside the frame, `UsageError` for excessive size."""
    full = media.frame_rect
    region = view.region or full
    if not full.contains(region):
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {full}")
    width, height = view.size or (region.width, region.height)
    if width * height > MAX_VIEW_PIXELS:
        raise UsageError(f"a view must have at most {MAX_VIEW_PIXELS} pixels, got {width}x{height}")
    return PictureForm(media, region, (width, height), pixel_format)


def is_lossless(codec: str) -> bool:
    return codec == "ffv1"


def even_picture_form(media: MediaInfo, view: View, pixel_format: str) -> PictureForm:
    """Like `picture_form`, with an even width and height."""
    whole = picture_form(media, view, pixel_format)
    region, (width, height) = whole.region, whole.size
    width, height = max(2, width // 2 * 2), max(2, height // 2 * 2)
    if view.size is None and region.width > 1 and region.height > 1:
        region = Rect(region.x1, region.y1, region.x1 + width, region.y1 + height)
    return PictureForm(media, region, (width, height), pixel_format)


def decoded_picture_form(media: MediaInfo, view: View, form: ViewForm) -> PictureForm:
    """Return the form of a decoded view.  Raises as `picture_form` does."""
    if form.is_raw:
        return picture_form(media, view, form.layout)
    if form.codec is not None and is_lossless(form.codec):
        return picture_form(media, view, form.pixel_format or lossless_layout(media).layout)
    return even_picture_form(media, view, form.layout)


class PictureConverter:
    """Converts decoded frames into pictures of a form.  Not thread-safe."""

    def __init__(self, form: PictureForm) -> None:
        self.form = form
        scaled = form.size != (form.region.width, form.region.height)
        self._converter = RawPixelConverter(
            form.media,
            pixel_format=form.pixel_format,
            region=None if form.region == form.media.frame_rect else form.region,
            size=form.size if scaled else None,
        )
        self.shape = self._converter.shape  #: of the array of one picture
        self.dtype = self._converter.dtype  #: of a sample
        self.samples = math.prod(self.shape)  #: number in one picture
        self.bytes = self.samples * self.dtype.itemsize  #: of one picture

    def needed_of(self, width: int, height: int) -> Rect | None:
        """See `PixelConverter.needed_scaled`."""
        return self._converter.needed_scaled(width, height)

    def convert(
        self, frame: VideoFrame, held: FrameRegion | None = None, out: Pixels | None = None
    ) -> Pixels:
        """Return the picture's samples in the order of raw forms, in `out` if given.

        `held` is the part of the stored picture that `frame` is; None for all of it.
        """
        if held is None:
            return self._converter.convert(frame, out)
        converter = self._converter.for_scaled(*held.picture)
        assert converter is not None
        return converter.convert(frame, out, held=held.rect)


SEGMENT_SECONDS = 1
MAX_SEGMENTS = 60_000
"""The index of an MP4 file lists up to 65,535."""
_MAX_PICTURE_SECONDS = 1001  # the largest denominator that headers can hold
MAX_PICTURES = 1 << 23
"""77 hours at 30 per second; more pictures are taken for a typing error."""


@dataclass(frozen=True)
class ViewTimeline:
    """The pictures of a view, one array element each."""

    frames: Ints  #: index in the video; ascending, may repeat
    starts: Ints  #: ticks of `time_base`, from 0
    end: int  #: end of the last picture in ticks
    time_base: Fraction  #: seconds per tick
    rate: Fraction | None  #: frames per second if it is constant

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def memory(self) -> int:
        """Bytes of its arrays."""
        return self.frames.nbytes + self.starts.nbytes

    @property
    def duration(self) -> Fraction:
        """In seconds."""
        return self.end * self.time_base

    @property
    def mean_rate(self) -> Fraction:
        """Frames per second as a fraction that every header can hold."""
        rate = self.rate or len(self) / self.duration
        return max(rate.limit_denominator(_MAX_PICTURE_SECONDS), Fraction(1, _MAX_PICTURE_SECONDS))

    def part(self, first: int, stop: int) -> ViewTimeline:
        """Return the pictures ``first <= p < stop`` with a timeline that starts at 0."""
        start, end = int(self.starts[first]), int(self.ends(first, stop)[-1])
        return ViewTimeline(
            self.frames[first:stop],
            self.starts[first:stop] - start,
            end - start,
            self.time_base,
            self.rate,
        )

    def ends(self, first: int, stop: int) -> Ints:
        """Return the end of each picture ``first <= p < stop`` in ticks."""
        if stop < len(self):
            return self.starts[first + 1 : stop + 1]
        return np.append(self.starts[first + 1 :], self.end)


def segment_ticks(timeline: ViewTimeline, least_pictures: int = 1) -> int:
    """Return the length of the segments of a file: a second, or more if pictures are rare.

    A segment holds at least `least_pictures`, and there are at most `MAX_SEGMENTS`.
    """
    pictures = timeline.duration * least_pictures / len(timeline)
    seconds = max(Fraction(SEGMENT_SECONDS), pictures, timeline.duration / MAX_SEGMENTS)
    return max(1, int(seconds / timeline.time_base))


def timeline_of_view(view: View, physical: PhysicalVideo, table: FrameTable) -> ViewTimeline:
    """Return the pictures that `view` shows of a stored encoding.

    With a rate, pictures are equally spaced.  Without a rate, each keeps its time in the video, and
    the last one lasts until the next would have come.  Raises `OutOfRangeError` outside the
    timeline, `UsageError` for an excessive rate or number of pictures.
    """
    if view.fps is not None:
        _require_sane_rate(view, physical)
    frames = select_frames(view, physical, table)
    if not len(frames):
        raise no_frame_error(view, physical.duration)
    if view.fps is not None:
        count = len(frames)
        return ViewTimeline(frames, np.arange(count), count, 1 / view.fps, view.fps)
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
    return ViewTimeline(frames, pts - pts[0], end - int(pts[0]), media.time_base, rate)


def no_frame_error(view: View, duration: Fraction) -> OutOfRangeError:
    """Return the error for a view that shows nothing of a video of `duration` seconds."""
    start, stop = view.span or (Fraction(0), None)
    until = "the end" if stop is None else f"{float(stop):.9g} s"
    return OutOfRangeError(
        f"no frame appears between {float(start):.9g} s and {until} of the video's "
        f"{float(duration):.9g} s",
        hint="without a rate, only frames that appear in that time count",
    )


def _require_sane_rate(view: View, physical: PhysicalVideo) -> None:
    assert view.fps is not None
    start, stop = view.span or (Fraction(0), None)
    stop = physical.duration if stop is None else min(stop, physical.duration)
    if (stop - start) * view.fps > MAX_PICTURES:
        raise UsageError(f"a view must have at most {MAX_PICTURES} pictures")
