"""How much stored frames differ from their source, measured on planes, gray and RGB as reads
return them.
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

from vfsd.codecs.frames.chroma_siting import InterlaceSetter, SitingSetter, frame_siting
from vfsd.codecs.frames.color import is_full_range
from vfsd.codecs.frames.frame_transforms import is_reduced
from vfsd.codecs.frames.planes import plane_samples, plane_subsampling
from vfsd.codecs.frames.to_array import PixelConverter, gray_levels
from vfsd.core.model import MediaInfo
from vfsd.core.psnr import LOSSLESS_PSNR, PsnrFigures, psnr_from_error, psnr_from_mse
from vfsd.errors import IntegrityError
from vfsd.tiling import Rect


def plane_errors(one: av.VideoFrame, other: av.VideoFrame) -> list[float]:
    """The mean square error of each plane, luma first.  Both are planar, of one size and format."""
    pairs = zip(plane_samples(one), plane_samples(other), strict=True)
    return [float(cv2.norm(a, b, cv2.NORM_L2SQR)) / a.size for a, b in pairs]


def square_error(decibels: float, peak: int) -> float:
    """The mean square error that a PSNR tells; `vfsd.core.psnr.psnr_from_mse` reversed."""
    return float(peak * peak / 10 ** (decibels / 10))


def combined_psnr(one: float, other: float, peak: int) -> float:
    """The PSNR in dB that is left at least where errors of two PSNRs follow each other.

    The square roots of mean square errors are distances, and the triangle inequality holds.
    """
    distance = square_error(one, peak) ** 0.5 + square_error(other, peak) ** 0.5
    return psnr_from_mse(distance**2, peak)


PlaneSamples = npt.NDArray[Any]
_REVERSED_RGB = "bgr24"
"""Of the forms of colours that one which begins with blue."""

ColorPlanes = Sequence[PlaneSamples]
"""A picture in RGB: height x width x 3, once for each way in which reads make it of the same."""


@dataclass(frozen=True, slots=True)
class SourcePicture:
    """A picture that is to be stored."""

    picture: av.VideoFrame
    colours: ColorPlanes = ()
    """What reads make of the picture that this one was scaled from; empty: it was not scaled, and
    they make them of this one."""
    interlaced: bool | None = None
    """Whether the picture says so that this one was cut out of; None: as this one does."""
    told_siting: str | None = None
    """Where chroma lies in it, for who has asked already."""

    def part(self, rect: Rect, tile: av.VideoFrame) -> SourcePicture:
        """The same of a part of it, of which `tile` has the samples."""
        colours = [one[rect.y1 : rect.y2, rect.x1 : rect.x2] for one in self.colours]
        return SourcePicture(tile, colours, self.is_interlaced, self.told_siting)

    @property
    def siting(self) -> str:
        """Where chroma lies; to find out takes as much as to encode some small pictures."""
        return self.told_siting or frame_siting(self.picture)

    @property
    def is_interlaced(self) -> bool:
        """Whether reads that do not scale it take it for that."""
        return self.picture.interlaced_frame if self.interlaced is None else self.interlaced


@dataclass(frozen=True, slots=True)
class SquaredErrors:
    """Mean squared differences, in shares of the largest square that there can be."""

    luma: float = 0.0
    gray: float = 0.0
    planes: float = 0.0  #: of the worst of Y, U and V
    colour: float = 0.0  #: of the worst of R, G and B


class QualityAccumulator:
    """What the pictures of a segment come to."""

    def __init__(self) -> None:
        self._pictures = 0
        self._luma = 0.0
        self._worst = SquaredErrors()

    def add(self, squares: SquaredErrors) -> None:
        """One more picture."""
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
        """Of luma in the mean of the pictures, of all else what the worst one has."""
        worst = self._worst
        luma = self._luma / max(1, self._pictures)
        return PsnrFigures(*map(_decibels, (luma, worst.gray, worst.planes, worst.colour)))


class RgbConverter:
    """What reads make of pictures of `media` in another size, in RGB.  Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        """`width` and `height`: before pictures are turned upright, which these are not."""
        size = (width, height) if (width, height) != (media.width, media.height) else None
        stored = replace(media, rotation=0, mirrored=False)
        self._converters = {
            form: PixelConverter(stored, pixel_format=form, size=size)
            for form in _color_formats(media, size)
        }

    def of(self, picture: av.VideoFrame) -> ColorPlanes:
        return [
            np.ascontiguousarray(found[..., ::-1]) if form == _REVERSED_RGB else found
            for form, converter in self._converters.items()
            for found in (converter.convert(picture),)
        ]


def luma_errors(wanted: PlaneSamples, shown: av.VideoFrame) -> SquaredErrors:
    """How far a picture is from one with the luma `wanted`, as far as luma tells it.

    Raises `IntegrityError` where it has another size.
    """
    (found, *_) = plane_samples(shown)
    _require_same_shapes([wanted], [found], shown)
    return SquaredErrors(_mean_square(wanted, found, _peak_level(shown)))


class _PlaneComparer:
    """Compares pictures of one video by their planes.  Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        self._size = (width, height)
        self._grays: list[np.dtype[Any]] = [np.dtype(np.uint8)]
        if media.bit_depth > 8:
            self._grays.append(np.dtype(np.uint16))
        self._tables: dict[tuple[str, bool], list[PlaneSamples]] = {}

    def compare(self, picture: av.VideoFrame, shown: av.VideoFrame) -> SquaredErrors:
        """How far `shown` is from `picture`, but for its colours.

        Raises `IntegrityError` where it has another size.
        """
        wanted, found = plane_samples(picture), plane_samples(shown)
        _require_same_shapes(wanted, found, shown)
        wanted, found = self._seen(wanted, shown), self._seen(found, shown)
        peak = _peak_level(shown)
        planes = [_mean_square(a, b, peak) for a, b in zip(wanted, found, strict=True)]
        return SquaredErrors(planes[0], max(self._gray(shown, wanted[0], found[0])), max(planes))

    def _seen(self, planes: Sequence[PlaneSamples], like: av.VideoFrame) -> list[PlaneSamples]:
        """Without the column and row that pictures have more."""
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
    """Compares planar pictures of one size and format, their colours, too.  Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        """`media` is that of the video; pictures have `width` x `height`.

        Where that is odd they may have a column or row more: no reader sees it, nor does it count.
        It repeats the last one, which encoders do well, and would make the mean of the rest better.
        """
        self._planes = _PlaneComparer(media, width, height)
        self._colours = RgbConverter(replace(media, width=width, height=height), width, height)
        self._is_interlaced = media.interlaced
        self._scannings = {told: InterlaceSetter(interlaced=told) for told in (False, True)}

    def compare(self, shot: SourcePicture, shown: av.VideoFrame) -> SquaredErrors:
        """How far `shown` is from what it stands for.

        Raises `IntegrityError` where it has another size.
        """
        squares = self._planes.compare(shot.picture, shown)
        wanted = shot.colours or self._seen(shot.picture, shot.is_interlaced)
        # Codecs of tiles do not tell it, and reads say of all of them what is known of the video.
        found = self._seen(shown, self._is_interlaced)
        return replace(squares, colour=color_error(wanted, found))

    def _seen(self, picture: av.VideoFrame, interlaced: bool) -> ColorPlanes:
        return self._colours.of(self._scannings[interlaced].of(picture))


class SitedFrameComparer:
    """As a `FrameComparer`, of pictures that a codec has kept, which tell of chroma what they can.

    Reads have it lie where it does in what these stand for; see `siting`.  Not thread-safe.
    """

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        self._comparer = FrameComparer(media, width, height)
        self._sited: SitingSetter | None = None
        self._is_begun = False

    @property
    def siting(self) -> str | None:
        """Where it lies, once a picture was compared; None: decoders say it themselves."""
        return None if self._sited is None else self._sited.siting

    def compare(self, shot: SourcePicture, shown: av.VideoFrame) -> SquaredErrors:
        """As `FrameComparer.compare`."""
        if not self._is_begun:
            siting, self._is_begun = shot.siting, True
            if frame_siting(shown) != siting:
                self._sited = SitingSetter(siting)
        return self._comparer.compare(shot, shown if self._sited is None else self._sited.of(shown))


def color_error(wanted: ColorPlanes, found: ColorPlanes) -> float:
    """As `SquaredErrors.colour`.  One that is `found` is what all ways to make it come to."""
    if len(found) == 1:
        found = [*found] * len(wanted)
    return max(map(_worst_channel, wanted, found))


def _color_formats(media: MediaInfo, size: tuple[int, int] | None) -> tuple[str, ...]:
    # FFmpeg makes bgr24 in another way of deeper samples, and of pictures that it scales straight
    # to it: that differs by some hundredths of a dB.
    if media.bit_depth > 8:
        return ("rgb24", _REVERSED_RGB, "rgb48")
    is_straight = size is not None and not is_reduced((media.width, media.height), size)
    return ("rgb24", _REVERSED_RGB) if is_straight else ("rgb24",)


def _require_same_shapes(
    wanted: Sequence[PlaneSamples], found: Sequence[PlaneSamples], shown: av.VideoFrame
) -> None:
    if [plane.shape for plane in wanted] != [plane.shape for plane in found]:
        raise IntegrityError(f"a picture of {shown.width}x{shown.height} had another size")


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
