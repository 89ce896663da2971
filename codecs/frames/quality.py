"""How far pictures are from those that they stand for, as who reads them sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.frames.chroma_location import Sited, siting_of
from vfsd.codecs.frames.color import is_full_range
from vfsd.codecs.frames.interlace import Scanning
from vfsd.codecs.frames.planes import plane_samples, shares
from vfsd.codecs.frames.scale import is_reduced
from vfsd.codecs.frames.to_array import PixelConverter, gray_levels
from vfsd.core.likeness import Likeness
from vfsd.core.model import MediaInfo
from vfsd.core.psnr import LOSSLESS_PSNR, psnr_of
from vfsd.errors import IntegrityError
from vfsd.tiling import Rect

Samples = npt.NDArray[Any]
_REVERSED = "bgr24"
"""Of the forms of colours that one which begins with blue."""

Colours = Sequence[Samples]
"""A picture in RGB: height x width x 3, once for each way in which reads make it of the same."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture that is to be stored."""

    picture: av.VideoFrame
    colours: Colours = ()
    """What reads make of the picture that this one was scaled from; empty: it was not scaled, and
    they make them of this one."""
    interlaced: bool | None = None
    """Whether the picture says so that this one was cut out of; None: as this one does."""
    told_siting: str | None = None
    """Where chroma lies in it, for who has asked already."""

    def part(self, rect: Rect, tile: av.VideoFrame) -> Shot:
        """The same of a part of it, of which `tile` has the samples."""
        colours = [one[rect.y1 : rect.y2, rect.x1 : rect.x2] for one in self.colours]
        return Shot(tile, colours, self.is_interlaced, self.told_siting)

    @property
    def siting(self) -> str:
        """Where chroma lies; to find out takes as much as to encode some small pictures."""
        return self.told_siting or siting_of(self.picture)

    @property
    def is_interlaced(self) -> bool:
        """Whether reads that do not scale it take it for that."""
        return self.picture.interlaced_frame if self.interlaced is None else self.interlaced


@dataclass(frozen=True, slots=True)
class Squares:
    """Mean squared differences, in shares of the largest square that there can be."""

    luma: float = 0.0
    gray: float = 0.0
    planes: float = 0.0  #: of the worst of Y, U and V
    colour: float = 0.0  #: of the worst of R, G and B


class Tally:
    """What the pictures of a segment come to."""

    def __init__(self) -> None:
        self._pictures = 0
        self._luma = 0.0
        self._worst = Squares()

    def add(self, squares: Squares) -> None:
        """One more picture."""
        worst = self._worst
        self._pictures += 1
        self._luma += squares.luma
        self._worst = Squares(
            gray=max(worst.gray, squares.gray),
            planes=max(worst.planes, squares.planes),
            colour=max(worst.colour, squares.colour),
        )

    @property
    def likeness(self) -> Likeness:
        """Of luma in the mean of the pictures, of all else what the worst one has."""
        worst = self._worst
        luma = self._luma / max(1, self._pictures)
        return Likeness(*map(_decibels, (luma, worst.gray, worst.planes, worst.colour)))


class DirectColours:
    """What reads make of pictures of `media` in another size, in RGB.  Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        """`width` and `height`: before pictures are turned upright, which these are not."""
        size = (width, height) if (width, height) != (media.width, media.height) else None
        stored = replace(media, rotation=0, mirrored=False)
        self._converters = {
            form: PixelConverter(stored, pixel_format=form, size=size)
            for form in _colour_forms(media, size)
        }

    def of(self, picture: av.VideoFrame) -> Colours:
        return [
            np.ascontiguousarray(found[..., ::-1]) if form == _REVERSED else found
            for form, converter in self._converters.items()
            for found in (converter.convert(picture),)
        ]


def luma_squares(wanted: Samples, shown: av.VideoFrame) -> Squares:
    """How far a picture is from one with the luma `wanted`, as far as luma tells it.

    Raises `IntegrityError` where it has another size.
    """
    (found, *_) = plane_samples(shown)
    _require_alike([wanted], [found], shown)
    return Squares(_square(wanted, found, _peak(shown)))


class _PlaneComparer:
    """Compares pictures of one video by their planes.  Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        self._size = (width, height)
        self._grays: list[np.dtype[Any]] = [np.dtype(np.uint8)]
        if media.bit_depth > 8:
            self._grays.append(np.dtype(np.uint16))
        self._tables: dict[tuple[str, bool], list[Samples]] = {}

    def compare(self, picture: av.VideoFrame, shown: av.VideoFrame) -> Squares:
        """How far `shown` is from `picture`, but for its colours.

        Raises `IntegrityError` where it has another size.
        """
        wanted, found = plane_samples(picture), plane_samples(shown)
        _require_alike(wanted, found, shown)
        wanted, found = self._seen(wanted, shown), self._seen(found, shown)
        peak = _peak(shown)
        planes = [_square(a, b, peak) for a, b in zip(wanted, found, strict=True)]
        return Squares(planes[0], max(self._gray(shown, wanted[0], found[0])), max(planes))

    def _seen(self, planes: Sequence[Samples], like: av.VideoFrame) -> list[Samples]:
        """Without the column and row that pictures have more."""
        width, height = self._size
        parts = []
        for number, plane in enumerate(planes):
            across, down = shares(like, number)
            parts.append(plane[: -(-height // down), : -(-width // across)])
        return parts

    def _gray(self, shown: av.VideoFrame, wanted: Samples, found: Samples) -> Iterable[float]:
        meant = (shown.format.name, is_full_range(shown))
        if meant not in self._tables:
            self._tables[meant] = [gray_levels(shown, dtype) for dtype in self._grays]
        for table in self._tables[meant]:
            yield _square(_mapped(table, wanted), _mapped(table, found), np.iinfo(table.dtype).max)


class Comparer:
    """Compares planar pictures of one size and format, their colours, too.  Not thread-safe."""

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        """`media` is that of the video; pictures have `width` x `height`.

        Where that is odd they may have a column or row more: no reader sees it, nor does it count.
        It repeats the last one, which encoders do well, and would make the mean of the rest better.
        """
        self._planes = _PlaneComparer(media, width, height)
        self._colours = DirectColours(replace(media, width=width, height=height), width, height)
        self._is_interlaced = media.interlaced
        self._scannings = {told: Scanning(interlaced=told) for told in (False, True)}

    def compare(self, shot: Shot, shown: av.VideoFrame) -> Squares:
        """How far `shown` is from what it stands for.

        Raises `IntegrityError` where it has another size.
        """
        squares = self._planes.compare(shot.picture, shown)
        wanted = shot.colours or self._seen(shot.picture, shot.is_interlaced)
        # Codecs of tiles do not tell it, and reads say of all of them what is known of the video.
        found = self._seen(shown, self._is_interlaced)
        return replace(squares, colour=colour_square(wanted, found))

    def _seen(self, picture: av.VideoFrame, interlaced: bool) -> Colours:
        return self._colours.of(self._scannings[interlaced].of(picture))


class SitedComparer:
    """As a `Comparer`, of pictures that a codec has kept, which tell of chroma what they can.

    Reads have it lie where it does in what these stand for; see `siting`.  Not thread-safe.
    """

    def __init__(self, media: MediaInfo, width: int, height: int) -> None:
        self._comparer = Comparer(media, width, height)
        self._sited: Sited | None = None
        self._is_begun = False

    @property
    def siting(self) -> str | None:
        """Where it lies, once a picture was compared; None: decoders say it themselves."""
        return None if self._sited is None else self._sited.siting

    def compare(self, shot: Shot, shown: av.VideoFrame) -> Squares:
        """As `Comparer.compare`."""
        if not self._is_begun:
            siting, self._is_begun = shot.siting, True
            if siting_of(shown) != siting:
                self._sited = Sited(siting)
        return self._comparer.compare(shot, shown if self._sited is None else self._sited.of(shown))


def colour_square(wanted: Colours, found: Colours) -> float:
    """As `Squares.colour`.  One that is `found` is what all ways to make it come to."""
    if len(found) == 1:
        found = [*found] * len(wanted)
    return max(map(_worst_channel, wanted, found))


def _colour_forms(media: MediaInfo, size: tuple[int, int] | None) -> tuple[str, ...]:
    # FFmpeg makes bgr24 in another way of deeper samples, and of pictures that it scales straight
    # to it: that differs by some hundredths of a dB.
    if media.bit_depth > 8:
        return ("rgb24", _REVERSED, "rgb48")
    is_straight = size is not None and not is_reduced((media.width, media.height), size)
    return ("rgb24", _REVERSED) if is_straight else ("rgb24",)


def _require_alike(
    wanted: Sequence[Samples], found: Sequence[Samples], shown: av.VideoFrame
) -> None:
    if [plane.shape for plane in wanted] != [plane.shape for plane in found]:
        raise IntegrityError(f"a picture of {shown.width}x{shown.height} had another size")


def _peak(picture: av.VideoFrame) -> int:
    return (1 << picture.format.components[0].bits) - 1


def _mapped(table: Samples, luma: Samples) -> Samples:
    if luma.dtype == table.dtype == np.uint8:
        return cv2.LUT(luma, table)
    return np.take(table, luma, mode="clip")


def _decibels(square: float) -> float:
    return min(LOSSLESS_PSNR, psnr_of(math.sqrt(square)))


def _square(one: Samples, other: Samples, peak: int) -> float:
    return float(cv2.norm(one, other, cv2.NORM_L2SQR)) / one.size / peak**2


def _worst_channel(one: Samples, other: Samples) -> float:
    means, deviations = cv2.meanStdDev(cv2.absdiff(one, other))
    return float((means**2 + deviations**2).max()) / int(np.iinfo(one.dtype).max) ** 2
