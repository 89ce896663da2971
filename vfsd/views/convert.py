"""The pixels of a view's pictures.

Encoded forms, but for lossless ones, store colour for pairs of pixels and have an even width and
height.  Where a region is odd and no size is asked for, its last column or row is left out; a size
is rounded down to even.  All others have every column and row, and an odd one has a colour of its
own.  A region may begin at any pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.raw_layouts import lossless_layout
from vfsd.codecs.frames.raw_pixels import FilePixelConverter
from vfsd.codecs.frames.to_array import Held
from vfsd.core.frames import Pixels
from vfsd.core.model import MediaInfo
from vfsd.core.pixel_aspect import scaled_aspect, upright_aspect
from vfsd.core.view_path import Form
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.output_quality import ResultForm
from vfsd.tiling import Rect
from vfsd.views.rate_control import is_lossless

MOST_PIXELS = 1 << 26
"""Of one picture of a view: 8192 x 8192."""


@dataclass(frozen=True, slots=True)
class PictureForm(ResultForm):
    """What each picture of a view is: a region of the displayed frame, scaled, in a format."""

    @property
    def bytes(self) -> int:
        """Of one picture."""
        return PictureConverter(self).bytes

    @property
    def sample_aspect_ratio(self) -> Fraction | None:
        """How wide a pixel is for its height; None: not told."""
        told = upright_aspect(self.media)
        region = (self.region.width, self.region.height)
        return None if told is None else scaled_aspect(told, region, self.size)


def picture_form(media: MediaInfo, view: View, pixel_format: str) -> PictureForm:
    """Raises `OutOfRangeError` for a region outside the frame, `UsageError` for vast sizes."""
    full = media.frame_rect
    region = view.region or full
    if not full.contains(region):
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {full}")
    width, height = view.size or (region.width, region.height)
    if width * height > MOST_PIXELS:
        raise UsageError(
            f"{width}x{height} is larger than the {MOST_PIXELS} pixels that are served"
        )
    return PictureForm(media, region, (width, height), pixel_format)


def even_picture_form(media: MediaInfo, view: View, pixel_format: str) -> PictureForm:
    """As `picture_form`, with an even width and height."""
    whole = picture_form(media, view, pixel_format)
    region, (width, height) = whole.region, whole.size
    width, height = max(2, width // 2 * 2), max(2, height // 2 * 2)
    if view.size is None and region.width > 1 and region.height > 1:
        region = Rect(region.x1, region.y1, region.x1 + width, region.y1 + height)
    return PictureForm(media, region, (width, height), pixel_format)


def view_picture_form(media: MediaInfo, view: View, form: Form) -> PictureForm:
    """Of a view that is decoded to be made in that form.  Raises as `picture_form`."""
    if form.is_raw:
        return picture_form(media, view, form.layout)
    if form.codec is not None and is_lossless(form.codec):
        return picture_form(media, view, form.pixel_format or lossless_layout(media).layout)
    return even_picture_form(media, view, form.layout)


class PictureConverter:
    """Turns decoded frames into pictures of a form.  Not thread-safe."""

    def __init__(self, form: PictureForm) -> None:
        self.form = form
        scaled = form.size != (form.region.width, form.region.height)
        self._converter = FilePixelConverter(
            form.media,
            pixel_format=form.pixel_format,
            region=None if form.region == form.media.frame_rect else form.region,
            size=form.size if scaled else None,
        )
        self.shape = self._converter.shape  #: of the array of a picture
        self.dtype = self._converter.dtype  #: of its samples
        self.samples = math.prod(self.shape)  #: of a picture
        self.bytes = self.samples * self.dtype.itemsize  #: of a picture

    def needed_of(self, width: int, height: int) -> Rect | None:
        """As `PixelConverter.needed_of`."""
        return self._converter.needed_of(width, height)

    def convert(
        self, frame: VideoFrame, held: Held | None = None, out: Pixels | None = None
    ) -> Pixels:
        """The picture's samples, in the order in which raw forms store them: `out` if given.

        `held` is what `frame` is; None: all of the stored picture.
        """
        if held is None:
            return self._converter.convert(frame, out)
        converter = self._converter.of_scaled(*held.picture)
        assert converter is not None
        return converter.convert(frame, out, held=held.rect)
