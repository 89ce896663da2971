"""Converts decoded frames to arrays: crops, converts, scales and rotates them.

`PixelConverter` converts the frames of one video.

A read returns the same samples whatever it is decoded from:

- FFmpeg's scaler uses vector code for whole blocks and other code for the rest. So a region is
  converted from a larger, aligned area, and equals the same area of the full frame.
- PyAV cannot set the chroma siting or interlacing of a picture. FFmpeg makes the memory for copies
  of pictures, which keeps both: without siting, a copied 10-bit region was up to 72 levels off.
- A format that FFmpeg converts wrongly is converted through another; a test tries all formats.
- Scaling follows the catalog's field order of the video, not the flag of the picture.
- Pictures of another matrix or range are converted in floats.
- Reductions to half and less use FFmpeg's area scaler to planar RGB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.video.reformatter import Interpolation, VideoReformatter

from vfsd.codecs.frames.color import (
    FULL_RANGE,
    LIMITED_RANGE,
    SITINGS,
    ColorNormalizer,
    InterlaceSetter,
    blank,
    blank_like,
    chroma_grid,
    is_full_range,
    is_same_form,
    require_rgb_matrix,
    scaler_matrix,
    with_full_chroma,
)
from vfsd.codecs.frames.planes import (
    PixelLayout,
    check_size,
    chroma_subsampling,
    copy_colors,
    has_alpha,
    has_luma,
    has_same_samples,
    is_croppable,
    is_planar,
    pixel_layout,
    planar_format,
    plane_bytes,
    plane_samples,
    plane_subsampling,
    raw_layout,
    raw_samples,
    require_rotatable,
)
from vfsd.core.frames import to_coded_rect
from vfsd.core.model import MediaInfo
from vfsd.errors import ChangedSizeError, OutOfRangeError, UsageError
from vfsd.tiling import Rect

# Converted areas begin at its multiples, so that SIMD code treats each pixel alike.
_GRID = 16
# Pixels around an area that filters may read.
_MARGIN = 16
# Formats that are converted to 8-bit output without reading neighbouring pixels.
_POINTWISE = ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p")
# Formats that FFmpeg reads in the wrong byte order unless it scales them.
_SWAPPED = ("rgb555be", "rgb565be", "bgr555be", "bgr565be")
# Formats that FFmpeg converts to 16 bits by filling only the low byte.
_BAYER = tuple(f"bayer_{order}8" for order in ("bggr", "rggb", "gbrg", "grbg"))
# Prefixes of formats that FFmpeg treats as limited range, or cannot read at all.
_FLOAT_GRAY = ("grayf", "yaf")
_PACKED_RGB = ("rgb24", "bgr24", "bgr0", "bgra")
# Packed 8-bit formats.
_EIGHT_BIT = (*_PACKED_RGB, "gray")
_DEEP_RGB = "rgb48le"
_DEEP_PLANES = "gbrp16le"


@dataclass(frozen=True, slots=True)
class _ConversionPlan:
    """How to convert pictures of one form. Rectangles are in the coordinates of the input
    picture.
    """

    area: Rect
    picture: Rect
    is_gray: bool
    window: Rect | None  #: the part to cut out first; None: convert the whole picture
    inner: Rect  #: the area within the converted part


@dataclass(frozen=True, slots=True)
class FrameRegion:
    """The part of a video's pictures that a decoded picture shows; it may have been scaled."""

    rect: Rect  #: within the whole picture, before rotation
    picture: tuple[int, int]  #: width and height of the whole picture


class PixelConverter:
    """Converts decoded frames of one video to arrays of one form. Not thread-safe.

    `region` is in display coordinates (None: the whole frame). `size` is the displayed (width,
    height) of the result (None: that of the region). Only the region is scaled, in one step with
    the conversion: bicubically, or by averaging areas if both sides become half or less.

    rgb24, bgr24 and rgb48 give height x width x 3; gray and gray16 give height x width x 1.
    yuv420p, yuv422p, yuv444p and yuv420p10 give the planes Y, U and V one after the other, as rows
    of `width` samples. nv12 is yuv420p with interleaved U and V. rgb48, gray16 and yuv420p10 are
    uint16, the others uint8.

    Planes have the range and matrix of `media`; pictures with others are converted. Where two
    pixels share their chroma, width (and for 4:2:0 height) must be even.

    Raises `OutOfRangeError` for a region outside the frame, and `UsageError` for an impossible
    form. If FFmpeg refuses the size, `convert` raises the `UsageError`.
    """

    def __init__(
        self,
        media: MediaInfo,
        *,
        pixel_format: str = "rgb24",
        region: Rect | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        region = region or media.frame_rect
        if not media.frame_rect.contains(region):
            raise OutOfRangeError(
                f"region {region} reaches beyond the frame of "
                f"{media.display_width}x{media.display_height}"
            )
        width, height = size or (region.width, region.height)
        layout, shape = self._layout_and_shape(pixel_format, width, height, media.rotation)
        self.media = media  #: describes the whole pictures
        self.region = region  #: in display coordinates
        self._layout = layout
        self._form = pixel_format
        self._size = (width, height)
        self._quarter_turns = media.rotation // 90  # clockwise, after mirroring
        self._area = to_coded_rect(region, media)
        self._scaled: tuple[int, int] | None = None  # (width, height) before rotation
        off_grid = self._area.x1 % layout.subsampled[0] or self._area.y1 % layout.subsampled[1]
        if off_grid or (width, height) != (region.width, region.height):
            self._scaled = (height, width) if self._quarter_turns % 2 else (width, height)
        self._is_reduced = self._scaled is not None and is_reduced(
            (self._area.width, self._area.height), self._scaled
        )
        self._scanning = InterlaceSetter(interlaced=media.interlaced)
        self._luma: av.VideoFrame | None = None  # reused input of scaling to gray
        self._siblings: dict[tuple[int, int], PixelConverter | None] = {}
        self._planned_form: tuple[object, ...] = ()  # the form of the pictures that `_plan` is for
        self._plan: _ConversionPlan | None = None
        self._colors = ColorNormalizer(media)
        self._reformatter = VideoReformatter()
        self._packer = VideoReformatter()
        self._scratch: av.VideoFrame | None = None
        self._scratch_planes: list[npt.NDArray[Any]] = []
        # Gray of each luma level, by format and range, since these may change within a file.
        self._levels: dict[tuple[str, bool], npt.NDArray[Any]] = {}
        self.dtype: np.dtype[Any] = np.dtype(layout.dtype)  #: type of one result
        self.shape = shape  #: shape of one result

    @classmethod
    def _layout_and_shape(
        cls, pixel_format: str, width: int, height: int, rotation: int
    ) -> tuple[PixelLayout, tuple[int, ...]]:
        """Return the layout and the shape of one result. Raises `UsageError` if there is none."""
        layout = pixel_layout(pixel_format)
        check_size(layout, pixel_format, width, height, rotation)
        return layout, layout.shape(width, height)

    @property
    def needed(self) -> Rect:
        """The part of the stored picture, before rotation, that the result depends on."""
        picture = Rect.of_size(self.media.width, self.media.height)
        if self._layout.channels == 1 and has_luma(self.media.pixel_format):
            return self._area
        if self._scaled is not None:
            area, rows = self._area, 4 if self.media.interlaced else 2
            bottom = -(-area.y2 // rows) * rows if self.media.interlaced else area.y2
            whole = Rect(area.x1 // 2 * 2, area.y1 // rows * rows, area.x2, bottom)
            return whole.intersection(picture) or picture
        fields = 2 if self.media.interlaced else 1
        window = self._window(self.media.pixel_format, self._area, picture, fields)
        return window.intersection(picture) or picture

    def for_scaled(self, width: int, height: int) -> PixelConverter | None:
        """Return a converter with the same results from pictures scaled to `width` x `height`.

        None if the results would differ. The region must begin and end between pixels of the scaled
        picture (of each field, if interlaced), and must not be enlarged. It may be reduced by a
        whole number: the result then differs by rounding only (54 dB or more for any size in
        between). Other ratios differ by 41 to 51 dB.
        """
        size = (width, height)
        if size == (self.media.width, self.media.height):
            return self
        if size not in self._siblings:
            self._siblings[size] = self._sibling(replace(self.media, width=width, height=height))
        return self._siblings[size]

    def needed_scaled(self, width: int, height: int) -> Rect | None:
        """Return the part of a picture scaled to that size that the result depends on.

        None if the result cannot be made of it.
        """
        sibling = self.for_scaled(width, height)
        return None if sibling is None else sibling.needed

    def _sibling(self, media: MediaInfo) -> PixelConverter | None:
        shared_down = chroma_subsampling(self.media.pixel_format)[1]
        if media.interlaced and self.media.height % (2 * shared_down):
            return None  # FFmpeg scales the chroma of odd fields differently
        before, after, region = self.media.frame_rect, media.frame_rect, self.region
        across = _scaled_interval(region.x1, region.x2, before.width, after.width)
        down = _scaled_interval(region.y1, region.y2, before.height, after.height)
        if across is None or down is None:
            return None
        scaled = Rect(across[0], down[0], across[1], down[1])
        if scaled.width % self._size[0] or scaled.height % self._size[1]:
            return None
        sibling = type(self)(media, pixel_format=self._form, region=scaled, size=self._size)
        if media.interlaced and not (self._has_whole_fields and sibling._has_whole_fields):
            return None
        return sibling

    @property
    def _has_whole_fields(self) -> bool:
        """Whether both fields have whole rows in the region and in the result."""
        height = self._size[self._quarter_turns % 2 == 0]
        return not any(
            rows % 2 for rows in (self._area.y1, self._area.y2, self.media.height, height)
        )

    @property
    def is_local(self) -> bool:
        """Whether parts of the region can be converted one by one to the same pixels."""
        return (
            self._scaled is None
            and self._layout.name in _EIGHT_BIT
            and self.media.pixel_format in _POINTWISE
        )

    def convert(
        self,
        frame: av.VideoFrame,
        out: npt.NDArray[Any] | None = None,
        *,
        held: Rect | None = None,
    ) -> npt.NDArray[Any]:
        """Return `frame` as an array of `shape` and `dtype`: in `out` if given, else a new one.

        `frame` may be a part of a picture, at `held`. That must contain `needed` and end at a
        multiple of 16 or at the end of the picture. The frame may have one more row or column.

        Raises `UsageError` if `out` has another shape or type, and `ChangedSizeError` if the frame
        has another size, as where the size changes within a file.
        """
        frame = self._readable(frame)
        form = (held, frame.width, frame.height, frame.format.name, frame.interlaced_frame)
        if self._plan is None or form != self._planned_form:
            self._plan, self._planned_form = self._plan_conversion(frame, held), form
        plan = self._plan
        self._colors.set_defaults(frame)  # lossless tiles keep the colors that the decoder set
        if not self._layout.channels:
            # Arrays of planes carry no color metadata, so all must mean the same.
            frame = self._colors.normalize(frame)
        if out is not None and (out.shape != self.shape or out.dtype != self.dtype):
            raise UsageError(
                f"out must have shape {self.shape} and type {self.dtype}, "
                f"got {out.shape} and {out.dtype}"
            )
        if plan.is_gray:
            return self._gray(frame, plan.area, out)
        if self._scaled is not None:
            converted, inner = self._scale(frame, plan.area, plan.picture), None
        elif self._has_samples_of(frame.format.name):
            converted, inner = frame, plan.area
        else:
            source = frame if plan.window is None else self._cropped(frame, plan.window)
            converted, inner = self._reformat(source), plan.inner
        if not self._layout.channels:
            return self._planar(converted, inner, out)
        if out is None and (converted is frame or converted is self._scratch):
            out = np.empty(self.shape, self.dtype)  # a view would change with the next frame
        return self._packed(converted, inner, out)

    def _has_samples_of(self, pixel_format: str) -> bool:
        """Return whether the planes of a picture in that format are those of the result."""
        if self._layout.channels or not has_same_samples(self._layout.name, pixel_format):
            return False
        # Otherwise FFmpeg adds an opaque alpha plane.
        return has_alpha(pixel_format) or not has_alpha(self._layout.name)

    def _plan_conversion(self, frame: av.VideoFrame, held: Rect | None) -> _ConversionPlan:
        """Return the plan for all pictures of this form.

        Raises `ChangedSizeError` for pictures of another size.
        """
        held = held or Rect.of_size(self.media.width, self.media.height)
        if not _has_size(frame, held):
            raise ChangedSizeError(
                f"a frame has {frame.width}x{frame.height} pixels in a video of "
                f"{self.media.width}x{self.media.height}",
                hint="`vfsd verify` examines the file again; cut it where its pictures change size",
            )
        area = self._area.moved(-held.x1, -held.y1)
        picture = Rect.of_size(held.width, held.height)
        is_gray = self._layout.channels == 1 and has_luma(frame.format.name)
        window, inner = None, area
        if self._scaled is None and is_croppable(frame.format.name):
            fields = 2 if frame.interlaced_frame else 1
            window = self._window(frame.format.name, area, picture, fields)
            inner = area.moved(-window.x1, -window.y1)
            if window == Rect.of_size(frame.width, frame.height):
                window = None
        return _ConversionPlan(area, picture, is_gray, window, inner)

    def _window(self, pixel_format: str, area: Rect, picture: Rect, fields: int) -> Rect:
        """Return the rectangle to convert: the area on the grid, with a margin for filters.

        It has an even number of rows in each of the picture's `fields`. FFmpeg converts an odd
        number by another method, which also reads neighbouring rows.
        """
        if area == picture and not self._layout.channels:
            return area  # for an odd side, FFmpeg spreads chroma over the whole side
        pointwise = pixel_format in _POINTWISE and self._layout.name in _EIGHT_BIT
        margin = 0 if pointwise else _MARGIN
        # The right and bottom edges are those of the picture, rounded up to even.
        right, bottom = picture.x2 + picture.x2 % 2, -(-picture.y2 // (2 * fields)) * 2 * fields
        return Rect(
            max(0, area.x1 - margin) // _GRID * _GRID,
            max(0, area.y1 - margin) // _GRID * _GRID,
            min(right, -(-(area.x2 + margin) // _GRID) * _GRID),
            min(bottom, -(-(area.y2 + margin) // _GRID) * _GRID),
        )

    def _scale(self, frame: av.VideoFrame, area: Rect, picture: Rect) -> av.VideoFrame:
        assert self._scaled is not None
        is_all = area == picture == Rect.of_size(frame.width, frame.height)
        planar = planar_format(frame.format.name)
        if planar and has_alpha(self._layout.name) and has_alpha(frame.format.name):
            planar = planar.replace("gbrp", "gbrap")
        if planar is not None and not (is_all and self._scanning.can_flag(frame)):
            frame = self._unpacked(frame, planar)
        frame = self._scanning.convert(frame)
        source = frame
        if is_planar(frame.format.name):
            shares_x, shares_y = chroma_grid(frame)
            # If a field ends between rows that share their chroma, FFmpeg reads one row beyond its
            # end.
            is_cut = frame.interlaced_frame and area.y2 % shares_y
            if area.x1 % shares_x or area.y1 % shares_y or is_cut:
                x, y = area.x1 // shares_x * shares_x, area.y1 // shares_y * shares_y
                bottom = -(-area.y2 // shares_y) * shares_y
                on_grid = self._cropped(frame, Rect(x, y, area.x2, bottom))
                frame, area, is_all = with_full_chroma(on_grid), area.moved(-x, -y), False
            source = frame if is_all else self._cropped(frame, area)
        if self._is_reduced and self._layout.name in _PACKED_RGB:
            # Scaling straight to packed RGB, FFmpeg lets two output pixels share their chroma. This
            # way is exact, and takes half the time.
            middle = "gbrap" if has_alpha(self._layout.name) else "gbrp"
            planes = self._reformat(source, *self._scaled, pixel_format=middle)
            return self._packer.reformat(planes, format=self._layout.name, threads=1)
        return self._reformat(source, *self._scaled)

    def _readable(self, frame: av.VideoFrame) -> av.VideoFrame:
        """Return `frame`, or its samples in a format that FFmpeg reads correctly."""
        name = frame.format.name
        if name in _SWAPPED:
            (samples,), swapped = plane_bytes(frame), _blank_in_format(frame, f"{name[:-2]}le")
            plane_bytes(swapped)[0].view(np.uint16)[...] = samples.view(np.uint16).byteswap()
            return swapped
        if name.startswith(_FLOAT_GRAY):
            return _gray_from_floats(frame)
        return self._unpacked(frame, "gbrp") if name in _BAYER else frame

    def _unpacked(self, frame: av.VideoFrame, planar: str) -> av.VideoFrame:
        """Return a new planar picture of the same samples."""
        meant = FULL_RANGE if is_full_range(frame) else LIMITED_RANGE
        planes = self._packer.reformat(
            frame, format=planar, src_color_range=meant, dst_color_range=meant, threads=1
        )
        copy_colors(frame, planes)
        return planes

    def _reformat(
        self,
        frame: av.VideoFrame,
        width: int | None = None,
        height: int | None = None,
        pixel_format: str | None = None,
    ) -> av.VideoFrame:
        color_range = None
        if not self._layout.channels:
            # Equal ranges stop FFmpeg from converting by the range in the format's name.
            color_range = FULL_RANGE if is_full_range(frame) else LIMITED_RANGE
        else:
            require_rgb_matrix(frame)
        matrix = scaler_matrix(frame)
        try:
            return self._reformatter.reformat(
                frame,
                width=width,
                height=height,
                format=pixel_format or self._target_format(frame, width or frame.width),
                interpolation=Interpolation.AREA if self._is_reduced else Interpolation.BICUBIC,
                src_colorspace=matrix,
                dst_colorspace=matrix,
                src_color_range=color_range,
                dst_color_range=color_range,
                threads=1,
            )
        except FFmpegError as error:
            if self._scaled is None:
                raise
            # FFmpeg limits the area and the change of the aspect ratio.
            raise scale_error((frame.width, frame.height), self._scaled) from error

    def _target_format(self, frame: av.VideoFrame, width: int) -> str:
        """Return the pixel format that FFmpeg converts `frame` to for the result.

        For 16-bit RGB of odd width, FFmpeg gives wrong colors if rows share chroma. Planar RGB has
        the same samples, and its colors are right.
        """
        name = self._layout.name
        shared_down = chroma_subsampling(frame.format.name)[1]
        return _DEEP_PLANES if name == _DEEP_RGB and width % 2 and shared_down > 1 else name

    def _cropped(self, frame: av.VideoFrame, window: Rect) -> av.VideoFrame:
        """Return a copy of a part of `frame`; beyond its edges, the edge is repeated."""
        scratch = self._scratch
        size = (window.width, window.height)
        if (
            scratch is None
            or (scratch.width, scratch.height) != size
            or not is_same_form(scratch, frame)
        ):
            scratch = self._scratch = blank_like(frame, *size)
            self._scratch_planes = plane_samples(scratch)
        copy_colors(frame, scratch)
        planes = zip(plane_samples(frame), self._scratch_planes, strict=True)
        for number, (source, target) in enumerate(planes):
            shares_x, shares_y = plane_subsampling(frame, number)
            x, y = window.x1 // shares_x, window.y1 // shares_y
            part = source[y : y + target.shape[0], x : x + target.shape[1]]
            rows, columns = part.shape
            target[:rows, :columns] = part
            if columns < target.shape[1]:
                target[:rows, columns:] = part[:, -1:]
            fields = 2 if frame.interlaced_frame else 1
            for row in range(rows, target.shape[0]):
                target[row] = target[max(0, row - fields)]
        return scratch

    def _gray(
        self, frame: av.VideoFrame, area: Rect, out: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any]:
        """Compute gray from luma alone, since FFmpeg may convert through RGB."""
        luma = plane_samples(frame)[0]
        meant = (frame.format.name, is_full_range(frame))
        if meant not in self._levels:
            self._levels[meant] = gray_levels(frame, self.dtype)
        luma = luma[area.y1 : area.y2, area.x1 : area.x2]
        if self._scaled is not None:
            picture = self._luma_like(frame, area)
            plane_samples(picture)[0][...] = luma
            luma = plane_samples(self._reformat(picture, *self._scaled, picture.format.name))[0]
        gray = np.take(self._levels[meant], luma, mode="clip")
        upright = self._upright(gray)[..., np.newaxis]
        if out is None:
            return np.ascontiguousarray(upright)
        out[...] = upright
        return out

    def _luma_like(self, frame: av.VideoFrame, area: Rect) -> av.VideoFrame:
        """Return a picture for the luma of an area, which FFmpeg scales as it would scale the
        frame.
        """
        form, luma = _luma_format(frame), self._luma
        if luma is None or luma.format.name != form:
            size, interlaced = (area.width, area.height), self.media.interlaced
            luma = self._luma = blank(*size, form, SITINGS[0], interlaced=interlaced)
        return luma

    def _upright(self, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a view of rows of samples, mirrored and rotated for display."""
        mirrored = samples[:, ::-1] if self.media.mirrored else samples
        return np.rot90(mirrored, -self._quarter_turns) if self._quarter_turns else mirrored

    def _packed(
        self, converted: av.VideoFrame, inner: Rect | None, out: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any]:
        if converted.format.name == _DEEP_PLANES:
            green, blue, red = plane_samples(converted)
            pixels = np.stack([red, green, blue], axis=-1)
        else:
            rows = plane_bytes(converted)[0].view(self.dtype)
            pixels = rows.reshape(rows.shape[0], -1, self._layout.channels)
        if inner is not None:
            pixels = pixels[inner.y1 : inner.y2, inner.x1 : inner.x2]
        upright = self._upright(pixels)
        if out is None:
            return np.ascontiguousarray(upright)
        out[...] = upright
        return out

    def _planar(
        self, converted: av.VideoFrame, inner: Rect | None, out: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any]:
        out = np.empty(self.shape, self.dtype) if out is None else out
        flat = np.empty(out.size, out.dtype) if not out.flags.c_contiguous else out.reshape(-1)
        at = 0
        for number, plane in enumerate(plane_samples(converted)[: self._layout.planes]):
            shares_x, shares_y = self._layout.subsampled if number in (1, 2) else (1, 1)
            if inner is not None:
                plane = plane[
                    inner.y1 // shares_y : -(-inner.y2 // shares_y),
                    inner.x1 // shares_x : -(-inner.x2 // shares_x),
                ]
            upright = self._upright(plane)
            flat[at : at + upright.size].reshape(upright.shape)[...] = upright
            at += upright.size
        if self._layout.interleaved:
            chroma = flat[self._size[0] * self._size[1] :]
            chroma[:] = chroma.reshape(2, -1).T.reshape(-1)
        if not out.flags.c_contiguous:
            out[...] = flat.reshape(out.shape)
        return out


def _scaled_interval(start: int, end: int, before: int, after: int) -> tuple[int, int] | None:
    """Return where the half-open interval lies after scaling; None if it ends between pixels."""
    if start * after % before or end * after % before:
        return None
    return start * after // before, end * after // before


def needed_margin(media: MediaInfo, pixel_format: str) -> int:
    """Return the pixels around an area of a stored picture that its unscaled conversion reads."""
    is_eight_bit = pixel_layout(pixel_format).name in _EIGHT_BIT
    return 0 if media.pixel_format in _POINTWISE and is_eight_bit else _MARGIN


def needed_area(
    media: MediaInfo, pixel_format: str, region: Rect, size: tuple[int, int] | None
) -> Rect:
    """Return the part of a stored picture, before rotation, that a `PixelConverter` reads.

    Raises `OutOfRangeError`, `UsageError`.
    """
    return PixelConverter(media, pixel_format=pixel_format, region=region, size=size).needed


def _has_size(frame: av.VideoFrame, held: Rect) -> bool:
    even = (held.width + held.width % 2, held.height + held.height % 2)
    return (frame.width, frame.height) in (even, (held.width, held.height))


def _blank_in_format(frame: av.VideoFrame, pixel_format: str) -> av.VideoFrame:
    """Return a picture in another format without a chroma location, with undefined samples."""
    size, interlaced = (frame.width, frame.height), frame.interlaced_frame
    result = blank(*size, pixel_format, SITINGS[0], interlaced=interlaced)
    copy_colors(frame, result)
    return result


def _gray_from_floats(frame: av.VideoFrame) -> av.VideoFrame:
    """Convert gray from floats to 16 bits. Values outside of 0 to 1 are clipped."""
    gray, name = _blank_in_format(frame, "gray16le"), frame.format.name
    kind = f"{'>' if name.endswith('be') else '<'}f{4 if 'f32' in name else 2}"
    shown = plane_bytes(frame)[0].view(kind)[:, :: len(frame.format.components)]
    levels = np.nan_to_num(shown.astype(np.float32)).clip(0, 1)
    plane_samples(gray)[0][...] = np.rint(levels * np.float32(65535))
    return gray


def _luma_format(frame: av.VideoFrame) -> str:
    """Return the format of a picture that has only the luma of `frame`."""
    bits = frame.format.components[0].bits
    return "gray" if bits == 8 else f"gray{bits}le"


def gray_levels(frame: av.VideoFrame, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the gray value of each level of luma, rounded: black is 0, white the highest value."""
    bits = frame.format.components[0].bits
    levels = np.arange(1 << bits)
    highest = np.iinfo(dtype).max
    if is_full_range(frame):
        black, white = 0, (1 << bits) - 1
    else:
        black, white = 16 << (bits - 8), 235 << (bits - 8)
    gray = (2 * (levels - black) * highest + (white - black)) // (2 * (white - black))
    return np.clip(gray, 0, highest).astype(dtype)


class RawPixelConverter(PixelConverter):
    """A `PixelConverter` for raw files: any size, and planes as one run of samples.

    `pixel_format` is any that `raw_layout` accepts. Packed formats have the shape of their layout.
    """

    @classmethod
    def _layout_and_shape(
        cls, pixel_format: str, width: int, height: int, rotation: int
    ) -> tuple[PixelLayout, tuple[int, ...]]:
        layout = raw_layout(pixel_format)
        if width < 1 or height < 1:
            raise UsageError(f"size must be at least 1x1, got {width}x{height}")
        require_rotatable(layout, pixel_format, rotation)
        if layout.channels:
            return layout, layout.shape(width, height)
        return layout, (raw_samples(layout, width, height),)


def scale_error(size: tuple[int, int], wanted: tuple[int, int]) -> UsageError:
    """Return the error to raise if FFmpeg refuses to scale pictures between these sizes."""
    return UsageError(
        f"{size[0]}x{size[1]} pixels cannot be scaled to {wanted[0]}x{wanted[1]}",
        hint="use a smaller size, or one closer to the original aspect ratio",
    )


def is_reduced(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return whether scaling averages areas: both sides become half or less."""
    return 2 * after[0] <= before[0] and 2 * after[1] <= before[1]
