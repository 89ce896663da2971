"""The range and matrix of YUV samples.

`ColorNormalizer` converts frames of a stream that change them to those of the whole video.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import av
import numpy as np
import numpy.typing as npt
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import ColorRange, VideoReformatter

from vfsd.codecs.bitstreams.video_signal import (
    FULL_RANGE,
    LIMITED_RANGE,
    color_codes,
    media_color_codes,
)
from vfsd.codecs.frames.chroma_siting import blank_without_range
from vfsd.codecs.frames.planes import (
    copy_picture,
    names_full_range,
    plane_samples,
    plane_subsampling,
)
from vfsd.core.model import MediaInfo

_UNSPECIFIED = 2
_BT601 = 5
_WEIGHTS = {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    _BT601: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
"""What red and blue are worth in luma, by the number of the matrix."""
_EQUIVALENT_MATRICES = {6: _BT601, 10: 9}
"""Matrices that FFmpeg takes for others; all that it does not know are BT.601 to it."""

_ColorValues = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ColorCoding:
    """What samples of Y, U and V mean."""

    is_full: bool  #: luma from 0 to the highest level stands for black to white
    matrix: int  #: FFmpeg's number, the same one for all that are the same to its scaler


DEFAULT_CODING = ColorCoding(is_full=False, matrix=_BT601)
"""What pictures mean that tell nothing, to FFmpeg and so to us."""


def media_coding(media: MediaInfo) -> ColorCoding:
    """What files say, in whose header it says what `media` does of colours."""
    codes = color_codes(planes_range(media), media.color_space, None, None)
    return ColorCoding(bool(codes.is_full_range), _known_matrix(codes.matrix))


def planes_range(media: MediaInfo) -> str | None:
    """The range of levels in which pictures of `media` become planes: limited, full, or not told.

    Levels of gray stay what they are, and to FFmpeg they are of full range whatever is told.
    """
    return "full" if _is_full_by_name(media.pixel_format) else media.color_range


def frame_coding(picture: av.VideoFrame, told: ColorCoding) -> ColorCoding:
    """What the samples of a picture mean: what it does not tell is as `told` of all pictures.

    Of what is no YUV that is `told` itself: its conversion depends on nothing that changes.
    """
    name = picture.format.name
    if not _is_yuv(name):
        return told
    is_full = told.is_full
    if names_full_range(name) or picture.color_range:
        is_full = is_full_range(picture)
    matrix = picture.colorspace
    return ColorCoding(is_full, told.matrix if matrix == _UNSPECIFIED else _known_matrix(matrix))


def frame_colors(picture: av.VideoFrame) -> tuple[ColorCoding, int, int]:
    """All that a picture tells of colours; where it tells nothing, what is taken for granted.

    The numbers are those of primaries and transfer, which no conversion here depends on.
    """
    return frame_coding(picture, DEFAULT_CODING), picture.color_primaries, picture.color_trc


def is_full_range(picture: av.VideoFrame) -> bool:
    """Whether luma from 0 to the highest level stands for black to white."""
    name = picture.format.name
    if picture.color_range == LIMITED_RANGE:
        return _is_gray(name)
    return picture.color_range == FULL_RANGE or _is_full_by_name(name)


def _is_full_by_name(pixel_format: str) -> bool:
    return names_full_range(pixel_format) or _is_gray(pixel_format)


def _is_gray(pixel_format: str) -> bool:
    """With transparency, too."""
    return pixel_format.startswith(("gray", "ya"))


def with_true_range_name(picture: av.VideoFrame) -> av.VideoFrame:
    """`picture`, or a copy whose format does not name the wrong range.

    Where a stream goes over to limited range, decoders tell it and stay with the format, by whose
    name conversions go.
    """
    if picture.color_range != LIMITED_RANGE or not names_full_range(picture.format.name):
        return picture
    made = blank_without_range(picture)
    copy_picture(picture, made)
    made.pts = picture.pts
    return made


def set_decoder_colors(context: VideoCodecContext, media: MediaInfo) -> None:
    """Tell a decoder that is not open yet what samples mean where packets do not: often it is the
    container that does."""
    codes = media_color_codes(media)
    if codes is None:
        return
    if codes.is_full_range is not None:
        context.color_range = FULL_RANGE if codes.is_full_range else LIMITED_RANGE
    context.colorspace = codes.matrix
    context.color_primaries = codes.primaries
    context.color_trc = codes.transfer


class ColorNormalizer:
    """Brings pictures of a video to the range and the matrix that are told of all.

    Not thread-safe.
    """

    def __init__(self, media: MediaInfo) -> None:
        self._told = media_coding(media)
        codes = color_codes(planes_range(media), media.color_space, None, None)
        self._range = FULL_RANGE if self._told.is_full else LIMITED_RANGE
        self._matrix = codes.matrix
        self._is_range_told = codes.is_full_range is not None
        self._reformatter = VideoReformatter()

    def tell(self, picture: av.VideoFrame) -> None:
        """Have a picture that tells nothing say what is told of all."""
        if picture.colorspace == _UNSPECIFIED:
            picture.colorspace = self._matrix
        if not picture.color_range and self._is_range_told:
            picture.color_range = self._range

    def is_settled(self, picture: av.VideoFrame) -> bool:
        """Whether its samples mean what is told of all pictures."""
        return frame_coding(picture, self._told) == self._told

    def settled(self, picture: av.VideoFrame) -> av.VideoFrame:
        """`picture` itself where it means that; else a new one, whose samples are rounded.

        Chroma is not moved: each of its samples is worth the same to all pixels that share it.
        """
        coding = frame_coding(picture, self._told)
        if coding == self._told:
            return picture
        if not picture.format.name.startswith("yuv"):
            return self._by_ffmpeg(picture, coding)
        made = self._blank(picture)
        planes, targets = plane_samples(picture), plane_samples(made)
        bits = picture.format.components[0].bits
        before, after = _LevelScale(coding.is_full, bits), _LevelScale(self._told.is_full, bits)
        if coding.matrix == self._told.matrix:
            for number, (samples, target) in enumerate(zip(planes[:3], targets[:3], strict=True)):
                table = after.samples(before.values(number), number)
                np.take(table.astype(target.dtype), samples, out=target, mode="clip")
        else:
            self._turn(
                _matrix_conversion(coding.matrix, self._told.matrix), before, after, picture, made
            )
        for alpha, target in zip(planes[3:], targets[3:], strict=True):
            target[...] = alpha
        return made

    def _turn(
        self,
        turn: npt.NDArray[np.float32],
        before: _LevelScale,
        after: _LevelScale,
        picture: av.VideoFrame,
        made: av.VideoFrame,
    ) -> None:
        """As gray stays gray by any matrix, chroma depends on nothing but chroma."""
        y, *chroma = plane_samples(picture)[:3]
        targets = plane_samples(made)
        u, v = (before.values(1).take(plane, mode="clip") for plane in chroma)
        for number, row in enumerate(turn[1:], start=1):
            targets[number][...] = after.samples(row[1] * u + row[2] * v, number)
        across, down = plane_subsampling(picture, 1)
        share = (turn[0, 1] * u + turn[0, 2] * v).repeat(down, axis=0).repeat(across, axis=1)
        luma = before.values(0).take(y, mode="clip")
        luma += share[: luma.shape[0], : luma.shape[1]]
        targets[0][...] = after.samples(luma, 0)

    def _blank(self, picture: av.VideoFrame) -> av.VideoFrame:
        """For the same samples, with what is told of them."""
        made = blank_without_range(picture)
        made.color_range, made.colorspace = self._range, self._matrix
        made.pts = picture.pts
        return made

    def _by_ffmpeg(self, picture: av.VideoFrame, coding: ColorCoding) -> av.VideoFrame:
        """Of packed formats, in which FFmpeg gives 8 bits of RGB in between."""
        return self._reformatter.reformat(
            picture,
            src_colorspace=coding.matrix,
            dst_colorspace=self._told.matrix,
            src_color_range=ColorRange.JPEG if coding.is_full else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG if self._told.is_full else ColorRange.MPEG,
            threads=1,
        )


class _LevelScale:
    """From samples to what they mean, luma from 0 to 1 and chroma from -1/2 to 1/2, and back."""

    def __init__(self, is_full: bool, bits: int) -> None:
        self._highest = (1 << bits) - 1
        scale = 1 << (bits - 8)
        zero = 1 << (bits - 1)
        self._zeros = (0 if is_full else 16 * scale, zero, zero)
        self._spans = tuple(self._highest if is_full else scale * of for of in (219, 224, 224))

    def values(self, plane: int) -> _ColorValues:
        """Of each level of a plane."""
        levels = np.arange(self._highest + 1, dtype=np.float32)
        return (levels - np.float32(self._zeros[plane])) / np.float32(self._spans[plane])

    def samples(self, values: _ColorValues, plane: int) -> _ColorValues:
        """Whole numbers, none of them too high or too low; `values` is used up."""
        values *= np.float32(self._spans[plane])
        values += np.float32(self._zeros[plane])
        np.rint(values, out=values)
        return np.clip(values, 0, self._highest, out=values)


@cache
def _is_yuv(pixel_format: str) -> bool:
    layout = av.VideoFormat(pixel_format)
    return not layout.is_rgb and len(layout.components) > 2


def _known_matrix(number: int) -> int:
    number = _EQUIVALENT_MATRICES.get(number, number)
    return number if number in _WEIGHTS else _BT601


@cache
def _matrix_conversion(before: int, after: int) -> npt.NDArray[np.float32]:
    """What turns Y, U and V by the one matrix to those by the other."""
    return (_to_yuv(after) @ np.linalg.inv(_to_yuv(before))).astype(np.float32)


def _to_yuv(matrix: int) -> npt.NDArray[np.float64]:
    red, blue = _WEIGHTS[matrix]
    luma = np.array([red, 1 - red - blue, blue])
    of_blue = (np.array([0, 0, 1]) - luma) / (2 * (1 - blue))
    of_red = (np.array([1, 0, 0]) - luma) / (2 * (1 - red))
    return np.stack([luma, of_blue, of_red])
