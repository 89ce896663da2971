"""Measures how much stored frames differ from their source, on planes, gray and RGB.

Gray and RGB are converted as reads convert them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.frames.color import InterlaceSetter, SitingSetter, frame_siting, is_full_range
from vfsd.codecs.frames.planes import plane_samples, plane_subsampling
from vfsd.codecs.frames.to_array import PixelConverter, gray_levels, is_reduced
from vfsd.core.model import LOSSLESS_PSNR, MediaInfo, PsnrFigures, psnr_from_error, psnr_from_mse
from vfsd.errors import IntegrityError
from vfsd.tiling import Rect


def plane_errors(one: av.VideoFrame, other: av.VideoFrame) -> list[float]:
    """Return the mean square error of each plane, luma first.

    Both pictures are planar, of equal size and format.
    """
    pairs = zip(plane_samples(one), plane_samples(other), strict=True)
    return [float(cv2.norm(a, b, cv2.NORM_L2SQR)) / a.size for a, b in pairs]


def square_error(decibels: float, peak: int) -> float:
    """Return the mean square error of a PSNR; the inverse of `vfsd.core.model.psnr_from_mse`."""
    return float(peak * peak / 10 ** (decibels / 10))


def combined_psnr(one: float, other: float, peak: int) -> float:
    """Return the lowest PSNR in dB that two consecutive lossy steps can leave.

    Roots of mean square errors are distances, so the triangle inequality holds.
    """
    distance = square_error(one, peak) ** 0.5 + square_error(other, peak) ** 0.5
    return psnr_from_mse(distance**2, peak)


PlaneSamples = npt.NDArray[Any]
# The RGB format with blue first.
_REVERSED_RGB = "bgr24"

ColorPlanes = Sequence[PlaneSamples]
"""A picture as RGB arrays, height x width x 3: one for each conversion that reads may use."""


@dataclass(frozen=True, slots=True)
class SourcePicture:
    """A picture that is to be stored, as the reference for measuring its encoded form."""

    picture: av.VideoFrame
    colours: ColorPlanes = ()
    """RGB as reads convert the picture that this one was scaled from; empty: not scaled."""
    interlaced: bool | None = None
    """The flag of the picture that this one was cut from; None: the flag of this one."""
    known_siting: str | None = None
    """The chroma location, if it is known already."""

    def part(self, rect: Rect, tile: av.VideoFrame) -> SourcePicture:
        """Return the reference for a part of the picture; `tile` has the samples of `rect`."""
        colours = [one[rect.y1 : rect.y2, rect.x1 : rect.x2] for one in self.colours]
        return SourcePicture(tile, colours, self.is_interlaced, self.known_siting)

    @property
    def siting(self) -> str:
        """The chroma location. Detecting it costs as much as encoding some small pictures."""
        return self.known_siting or frame_siting(self.picture)

    @property
    def is_interlaced(self) -> bool:
        """Whether reads without scaling treat the picture as interlaced."""
        return self.picture.interlaced_frame if self.interlaced is None else self.interlaced


@dataclass(frozen=True, slots=True)
class SquaredErrors:
    """Mean squared differences, as fractions of the square of the peak level."""

    luma: float = 0.0
    gray: float = 0.0
    planes: float = 0.0  #: the worst of Y, U and V
    colour: float = 0.0  #: the worst of R, G and B


class QualityAccumulator:
    """Accumulates the errors of the pictures of a segment."""

    def __init__(self) -> None:
        self._pictures = 0
        self._luma = 0.0
        self._worst = SquaredErrors()

    def add(self, squares: SquaredErrors) -> None:
        """Add the errors of one picture."""
        worst = self._worst
        self._pictures += 1
        self._luma += squares.luma
        self._worst = SquaredErrors(
            gray=max(worst.gray, squares.gray),
            planes=max(worst.planes, squares.planes),
            colour=max(worst.colour, squares.colour),
        )

    @property
    def likeness(self) -> PsnrFigures:
        """PSNR figures in dB: luma as the mean over pictures, all others of the worst picture."""
        worst = self._worst
        luma = self._luma / max(1, self._pictures)
        return PsnrFigures(*map(_decibels, (luma, worst.gray, worst.planes, worst.colour)))


class RgbConverter:
    """Converts pictures of `media` to RGB in another size, as reads do. Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        """`width` and `height` are before rotation; results are not rotated."""
        size = (width, height) if (width, height) != (media.width, media.height) else None
        stored = replace(media, rotation=0, mirrored=False)
        self._converters = {
            form: PixelConverter(stored, pixel_format=form, size=size)
            for form in _color_formats(media, size)
        }

    def convert(self, picture: av.VideoFrame) -> ColorPlanes:
        return [
            np.ascontiguousarray(found[..., ::-1]) if form == _REVERSED_RGB else found
            for form, converter in self._converters.items()
            for found in (converter.convert(picture),)
        ]


def luma_errors(wanted: PlaneSamples, shown: av.VideoFrame) -> SquaredErrors:
    """Return the error of the luma of `shown` against `wanted`; the other figures stay 0.

    Raises `IntegrityError` if the sizes differ.
    """
    (found, *_) = plane_samples(shown)
    _require_same_shapes([wanted], [found], shown)
    return SquaredErrors(_mean_square(wanted, found, _peak_level(shown)))


class _PlaneComparer:
    """Compares pictures of one video by their planes and gray. Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        self._size = (width, height)
        self._grays: list[np.dtype[Any]] = [np.dtype(np.uint8)]
        if media.bit_depth > 8:
            self._grays.append(np.dtype(np.uint16))
        self._tables: dict[tuple[str, bool], list[PlaneSamples]] = {}

    def compare(self, picture: av.VideoFrame, shown: av.VideoFrame) -> SquaredErrors:
        """Return the errors of `shown` against `picture`, without those of RGB.

        Raises `IntegrityError` if the sizes differ.
        """
        wanted, found = plane_samples(picture), plane_samples(shown)
        _require_same_shapes(wanted, found, shown)
        wanted, found = self._visible(wanted, shown), self._visible(found, shown)
        peak = _peak_level(shown)
        planes = [_mean_square(a, b, peak) for a, b in zip(wanted, found, strict=True)]
        return SquaredErrors(planes[0], max(self._gray(shown, wanted[0], found[0])), max(planes))

    def _visible(self, planes: Sequence[PlaneSamples], like: av.VideoFrame) -> list[PlaneSamples]:
        """Crop planes to the size that readers see."""
        width, height = self._size
        parts = []
        for number, plane in enumerate(planes):
            across, down = plane_subsampling(like, number)
            parts.append(plane[: -(-height // down), : -(-width // across)])
        return parts

    def _gray(
        self, shown: av.VideoFrame, wanted: PlaneSamples, found: PlaneSamples
    ) -> Iterable[float]:
        meant = (shown.format.name, is_full_range(shown))
        if meant not in self._tables:
            self._tables[meant] = [gray_levels(shown, dtype) for dtype in self._grays]
        for table in self._tables[meant]:
            yield _mean_square(
                _mapped_levels(table, wanted),
                _mapped_levels(table, found),
                np.iinfo(table.dtype).max,
            )


class FrameComparer:
    """Compares planar pictures of one size and format, also in RGB. Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        """`media` describes the video; pictures have `width` x `height` pixels.

        If a side is odd, pictures may have one more column or row. It is not measured: it repeats
        the last one, encodes well, and would improve the mean.
        """
        self._planes = _PlaneComparer(media, width, height)
        self._colours = RgbConverter(replace(media, width=width, height=height), width, height)
        self._is_interlaced = media.interlaced
        self._scannings = {flag: InterlaceSetter(interlaced=flag) for flag in (False, True)}

    def compare(self, shot: SourcePicture, shown: av.VideoFrame) -> SquaredErrors:
        """Return the errors of `shown` against `shot`. Raises `IntegrityError` if the sizes
        differ.
        """
        squares = self._planes.compare(shot.picture, shown)
        wanted = shot.colours or self._visible(shot.picture, shot.is_interlaced)
        # The codecs of tiles do not store the flag; reads set it from the media description.
        found = self._visible(shown, self._is_interlaced)
        return replace(squares, colour=color_error(wanted, found))

    def _visible(self, picture: av.VideoFrame, interlaced: bool) -> ColorPlanes:
        return self._colours.convert(self._scannings[interlaced].convert(picture))


class SitedFrameComparer:
    """A `FrameComparer` for pictures from a codec that may lose the chroma location.

    Reads restore the location of the source, so the comparison does too; see `siting`. Not
    thread-safe.
    """

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        self._comparer = FrameComparer(media, width, height)
        self._sited: SitingSetter | None = None
        self._is_begun = False

    @property
    def siting(self) -> str | None:
        """The location that reads must restore, once a picture was compared; None if decoders set
        it.
        """
        return None if self._sited is None else self._sited.siting

    def compare(self, shot: SourcePicture, shown: av.VideoFrame) -> SquaredErrors:
        """Return the errors as `FrameComparer.compare` does."""
        if not self._is_begun:
            siting, self._is_begun = shot.siting, True
            if frame_siting(shown) != siting:
                self._sited = SitingSetter(siting)
        return self._comparer.compare(
            shot, shown if self._sited is None else self._sited.convert(shown)
        )


def color_error(wanted: ColorPlanes, found: ColorPlanes) -> float:
    """Return `SquaredErrors.colour` of the worst conversion.

    A single array in `found` stands for every way of conversion.
    """
    if len(found) == 1:
        found = [*found] * len(wanted)
    return max(map(_worst_channel, wanted, found))


def _color_formats(media: MediaInfo, size: tuple[int, int] | None) -> tuple[str, ...]:
    # FFmpeg converts deeper samples, and pictures that it scales, to bgr24 by another method. It
    # differs by some hundredths of a dB.
    if media.bit_depth > 8:
        return ("rgb24", _REVERSED_RGB, "rgb48")
    is_straight = size is not None and not is_reduced((media.width, media.height), size)
    return ("rgb24", _REVERSED_RGB) if is_straight else ("rgb24",)


def _require_same_shapes(
    wanted: Sequence[PlaneSamples], found: Sequence[PlaneSamples], shown: av.VideoFrame
) -> None:
    if [plane.shape for plane in wanted] != [plane.shape for plane in found]:
        raise IntegrityError(
            f"a decoded picture of {shown.width}x{shown.height} has the wrong size"
        )


def _peak_level(picture: av.VideoFrame) -> int:
    return (1 << picture.format.components[0].bits) - 1


def _mapped_levels(table: PlaneSamples, luma: PlaneSamples) -> PlaneSamples:
    if luma.dtype == table.dtype == np.uint8:
        return cv2.LUT(luma, table)
    return np.take(table, luma, mode="clip")


def _decibels(square: float) -> float:
    return min(LOSSLESS_PSNR, psnr_from_error(math.sqrt(square)))


def _mean_square(one: PlaneSamples, other: PlaneSamples, peak: int) -> float:
    return float(cv2.norm(one, other, cv2.NORM_L2SQR)) / one.size / peak**2


def _worst_channel(one: PlaneSamples, other: PlaneSamples) -> float:
    means, deviations = cv2.meanStdDev(cv2.absdiff(one, other))
    return float((means**2 + deviations**2).max()) / int(np.iinfo(one.dtype).max) ** 2
