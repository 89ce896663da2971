"""The meaning of samples: range, matrix, chroma location, and the interlaced flag.

`ColorNormalizer` converts frames of a stream that change range or matrix; the setters copy frames
to ones with another location or flag, which PyAV cannot set.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from vfsd.codecs.frames.planes import (
    copy_colors,
    copy_picture,
    names_full_range,
    plane_bytes,
    plane_samples,
    plane_subsampling,
    without_range_name,
)
from vfsd.codecs.pyav import decode, new_decoder
from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError

_UNSPECIFIED = 2
LIMITED_RANGE, FULL_RANGE = 1, 2
"""Values of AVColorRange in frames and decoders."""
RANGES = {LIMITED_RANGE: "limited", FULL_RANGE: "full"}
# FFmpeg's names by MatrixCoefficients, ColourPrimaries and TransferCharacteristics
# (ISO/IEC 23091-2, 8.1 to 8.3).
MATRICES = {
    0: "rgb",
    1: "bt709",
    4: "fcc",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "ycgco",
    9: "bt2020nc",
    10: "bt2020c",
    14: "ictcp",
}
PRIMARIES = {
    1: "bt709",
    4: "bt470m",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "film",
    9: "bt2020",
    10: "smpte428",
    11: "smpte431",
    12: "smpte432",
    22: "ebu3213",
}
TRANSFERS = {
    1: "bt709",
    4: "gamma22",
    5: "gamma28",
    6: "smpte170m",
    7: "smpte240m",
    8: "linear",
    9: "log100",
    10: "log316",
    11: "iec61966-2-4",
    12: "bt1361e",
    13: "iec61966-2-1",
    14: "bt2020-10",
    15: "bt2020-12",
    16: "smpte2084",
    17: "smpte428",
    18: "arib-std-b67",
}
_BT601 = 5
# (Kr, Kb) by MatrixCoefficients (ITU-T H.273, table 4).
_WEIGHTS = {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    _BT601: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
# Matrices that FFmpeg's scaler replaces by others.
_EQUIVALENT_MATRICES = {6: _BT601, 10: 9}
# Matrices of YUV that the scaler accepts. It refuses others, also numbers without a meaning.
_SCALER_MATRICES = frozenset((0, 1, _UNSPECIFIED, 4, 5, 6, 7, 9))
# Matrices that have a meaning, but that nothing here converts to RGB: YCgCo, SMPTE 2085, those that
# are derived from the primaries, ICtCp, IPT-PQ-C2 and YCgCo-R (ITU-T H.273, table 4).
_MATRICES_WITHOUT_RGB = frozenset((8, *range(11, 18)))

_ColorValues = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ColorCodes:
    """The meaning of samples in code points of ISO/IEC 23091-2; 2: unspecified."""

    matrix: int
    primaries: int
    transfer: int
    is_full_range: bool | None


def color_codes(
    color_range: str | None, space: str | None, primaries: str | None, transfer: str | None
) -> ColorCodes:
    """Return the code points of names in `MediaInfo`, which are FFmpeg's."""
    is_full = None if color_range is None else color_range == "full"
    return ColorCodes(
        _code_point(MATRICES, space),
        _code_point(PRIMARIES, primaries),
        _code_point(TRANSFERS, transfer),
        is_full,
    )


def media_color_codes(media: MediaInfo) -> ColorCodes | None:
    """Return the colors that a file declares; None if it declares none.

    They may come from packets or from the container, so that copies of packets must repeat them.
    """
    codes = color_codes(
        media.color_range, media.color_space, media.color_primaries, media.color_transfer
    )
    is_declared = codes != color_codes(None, None, None, None)
    return codes if is_declared else None


def _code_point(names: dict[int, str], name: str | None) -> int:
    return next((code for code, known in names.items() if known == name), _UNSPECIFIED)


@dataclass(frozen=True, slots=True)
class ColorCoding:
    """The meaning of Y, U and V samples."""

    is_full: bool  #: black to white is luma 0 to the highest level
    matrix: int  #: MatrixCoefficients; one number for all that FFmpeg's scaler treats alike


DEFAULT_CODING = ColorCoding(is_full=False, matrix=_BT601)
"""The meaning of pictures that declare nothing, by FFmpeg's convention."""


def media_coding(media: MediaInfo) -> ColorCoding:
    """Return the coding that the header of a video declares for all its pictures."""
    codes = color_codes(planes_range(media), media.color_space, None, None)
    return ColorCoding(bool(codes.is_full_range), _known_matrix(codes.matrix))


def planes_range(media: MediaInfo) -> str | None:
    """Return the range of planes of `media`: "limited", "full", or None if it is not declared.

    Gray levels are not converted. FFmpeg treats them as full range whatever the header says.
    """
    return "full" if _is_full_by_name(media.pixel_format) else media.color_range


def coded_color(color: tuple[int, int, int], coding: ColorCoding) -> tuple[int, int, int]:
    """Return the Y, U and V samples of 8 bits for a color in RGB of 8 bits."""
    red, green, blue = (value / 255 for value in color)
    kr, kb = _WEIGHTS.get(coding.matrix, _WEIGHTS[_BT601])
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    scale = _LevelScale(coding.is_full, 8)
    values = luma, (blue - luma) / (2 - 2 * kb), (red - luma) / (2 - 2 * kr)
    y, u, v = (
        int(scale.samples(np.full(1, one, np.float32), n)[0]) for n, one in enumerate(values)
    )
    return y, u, v


def frame_coding(picture: av.VideoFrame, default: ColorCoding) -> ColorCoding:
    """Return the meaning of a picture's samples; `default` replaces what it does not declare.

    For formats other than YUV that is `default` itself: their conversion does not change.
    """
    name = picture.format.name
    if not _is_yuv(name):
        return default
    is_full = default.is_full
    if names_full_range(name) or picture.color_range:
        is_full = is_full_range(picture)
    matrix = picture.colorspace
    return ColorCoding(is_full, default.matrix if matrix == _UNSPECIFIED else _known_matrix(matrix))


def scaler_matrix(picture: av.VideoFrame) -> int | None:
    """Return the matrix that FFmpeg's scaler should use for `picture`; None: its own.

    It stands for one that the scaler refuses. A number without a meaning counts as undeclared.
    """
    matrix = picture.colorspace
    if matrix in _SCALER_MATRICES or not _is_yuv(picture.format.name):
        return None
    return _known_matrix(matrix)


def require_rgb_matrix(picture: av.VideoFrame) -> None:
    """Raise `RefusedMediaError` if the colors of `picture` cannot be converted to RGB."""
    matrix = picture.colorspace
    if matrix in _MATRICES_WITHOUT_RGB and _is_yuv(picture.format.name):
        name = MATRICES.get(matrix, f"number {matrix} of ITU-T H.273")
        raise RefusedMediaError(
            f"pictures with the color matrix {name} cannot be converted to RGB",
            hint="read their planes, for example with format yuv420p",
        )


def frame_colors(picture: av.VideoFrame) -> tuple[ColorCoding, int, int]:
    """Return all that a picture declares of its colors, with defaults for the rest.

    The numbers are primaries and transfer. No conversion in this package depends on them.
    """
    return frame_coding(picture, DEFAULT_CODING), picture.color_primaries, picture.color_trc


def is_full_range(picture: av.VideoFrame) -> bool:
    """Return whether black to white is luma 0 to the highest level."""
    name = picture.format.name
    if picture.color_range == LIMITED_RANGE:
        return _is_gray(name)
    return picture.color_range == FULL_RANGE or _is_full_by_name(name)


def _is_full_by_name(pixel_format: str) -> bool:
    return names_full_range(pixel_format) or _is_gray(pixel_format)


def _is_gray(pixel_format: str) -> bool:
    """Return whether the format is gray, with or without transparency."""
    return pixel_format.startswith(("gray", "ya"))


def with_true_range_name(picture: av.VideoFrame) -> av.VideoFrame:
    """Return `picture`, or a copy whose format does not name the wrong range.

    Where a stream changes to limited range, decoders set the flag but keep the format. Conversions
    follow the name of the format.
    """
    if picture.color_range != LIMITED_RANGE or not names_full_range(picture.format.name):
        return picture
    result = blank_without_range(picture)
    copy_picture(picture, result)
    result.pts = picture.pts
    return result


def set_decoder_colors(context: VideoCodecContext, media: MediaInfo) -> None:
    """Give a decoder, before it is opened, the colors that the container declares.

    Packets override them.
    """
    codes = media_color_codes(media)
    if codes is None:
        return
    if codes.is_full_range is not None:
        context.color_range = FULL_RANGE if codes.is_full_range else LIMITED_RANGE
    context.colorspace = codes.matrix
    context.color_primaries = codes.primaries
    context.color_trc = codes.transfer


class ColorNormalizer:
    """Converts pictures to the range and matrix that are declared for the whole video.

    Not thread-safe.
    """

    def __init__(self, media: MediaInfo) -> None:
        self._coding = media_coding(media)
        codes = color_codes(planes_range(media), media.color_space, None, None)
        self._range = FULL_RANGE if self._coding.is_full else LIMITED_RANGE
        self._matrix = codes.matrix
        self._is_range_known = codes.is_full_range is not None
        self._reformatter = VideoReformatter()

    def set_defaults(self, picture: av.VideoFrame) -> None:
        """Give a picture that declares no colors those of the whole video."""
        if picture.colorspace == _UNSPECIFIED:
            picture.colorspace = self._matrix
        if not picture.color_range and self._is_range_known:
            picture.color_range = self._range

    def is_normal(self, picture: av.VideoFrame) -> bool:
        """Return whether the samples mean what is declared for the whole video."""
        return frame_coding(picture, self._coding) == self._coding

    def normalize(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return `picture` if its samples mean that; else a converted copy with rounded samples.

        Chroma is not moved: each sample counts the same for all pixels that share it.
        """
        coding = frame_coding(picture, self._coding)
        if coding == self._coding:
            return picture
        if not picture.format.name.startswith("yuv"):
            return self._by_ffmpeg(picture, coding)
        made = self._blank(picture)
        planes, targets = plane_samples(picture), plane_samples(made)
        bits = picture.format.components[0].bits
        before, after = _LevelScale(coding.is_full, bits), _LevelScale(self._coding.is_full, bits)
        if coding.matrix == self._coding.matrix:
            for number, (samples, target) in enumerate(zip(planes[:3], targets[:3], strict=True)):
                table = after.samples(before.values(number), number)
                np.take(table.astype(target.dtype), samples, out=target, mode="clip")
        else:
            self._change_matrix(
                _matrix_conversion(coding.matrix, self._coding.matrix), before, after, picture, made
            )
        for alpha, target in zip(planes[3:], targets[3:], strict=True):
            target[...] = alpha
        return made

    def _change_matrix(
        self,
        matrix: npt.NDArray[np.float32],
        before: _LevelScale,
        after: _LevelScale,
        picture: av.VideoFrame,
        made: av.VideoFrame,
    ) -> None:
        """Convert by a change of matrix.

        Gray stays gray by any matrix, so new chroma depends on old chroma alone.
        """
        y, *chroma = plane_samples(picture)[:3]
        targets = plane_samples(made)
        u, v = (before.values(1).take(plane, mode="clip") for plane in chroma)
        for number, row in enumerate(matrix[1:], start=1):
            targets[number][...] = after.samples(row[1] * u + row[2] * v, number)
        across, down = plane_subsampling(picture, 1)
        share = (matrix[0, 1] * u + matrix[0, 2] * v).repeat(down, axis=0).repeat(across, axis=1)
        luma = before.values(0).take(y, mode="clip")
        luma += share[: luma.shape[0], : luma.shape[1]]
        targets[0][...] = after.samples(luma, 0)

    def _blank(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return a picture for converted samples, with the colors of the whole video."""
        result = blank_without_range(picture)
        result.color_range, result.colorspace = self._range, self._matrix
        result.pts = picture.pts
        return result

    def _by_ffmpeg(self, picture: av.VideoFrame, coding: ColorCoding) -> av.VideoFrame:
        """Convert packed formats by FFmpeg, which goes through 8-bit RGB."""
        return self._reformatter.reformat(
            picture,
            src_colorspace=coding.matrix,
            dst_colorspace=self._coding.matrix,
            src_color_range=ColorRange.JPEG if coding.is_full else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG if self._coding.is_full else ColorRange.MPEG,
            threads=1,
        )


class _LevelScale:
    """Converts samples to values and back: luma is 0 to 1, chroma -1/2 to 1/2."""

    def __init__(self, is_full: bool, bits: int) -> None:
        self._highest = (1 << bits) - 1
        scale = 1 << (bits - 8)
        zero = 1 << (bits - 1)
        self._zeros = (0 if is_full else 16 * scale, zero, zero)
        self._spans = tuple(self._highest if is_full else scale * span for span in (219, 224, 224))

    def values(self, plane: int) -> _ColorValues:
        """Return the value of each level of a plane."""
        levels = np.arange(self._highest + 1, dtype=np.float32)
        return (levels - np.float32(self._zeros[plane])) / np.float32(self._spans[plane])

    def samples(self, values: _ColorValues, plane: int) -> _ColorValues:
        """Return rounded, clipped levels as floats. `values` is overwritten."""
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
    """Return the 3 x 3 array that converts Y, U and V between two matrices."""
    return (_to_yuv(after) @ np.linalg.inv(_to_yuv(before))).astype(np.float32)


def _to_yuv(matrix: int) -> npt.NDArray[np.float64]:
    red, blue = _WEIGHTS[matrix]
    luma = np.array([red, 1 - red - blue, blue])
    of_blue = (np.array([0, 0, 1]) - luma) / (2 * (1 - blue))
    of_red = (np.array([1, 0, 0]) - luma) / (2 * (1 - red))
    return np.stack([luma, of_blue, of_red])


SITINGS = ("unspecified", "left", "center", "topleft", "top", "bottomleft", "bottom")
"""Chroma locations, by FFmpeg's names."""

_SIDES = (16, 32, 48)
_TRIAL_SIZE = (64, 48)
_TRIAL_TARGETS = ((20, 12), (64, 48), (90, 70))
# A format without subsampling, and one in which chroma keeps its place.
_TRIAL_FORMATS = ("yuv444p", "yuv420p")


def blank_like(picture: av.VideoFrame, width: int, height: int) -> av.VideoFrame:
    """Return a new picture of that size with the form and colors of `picture` and undefined
    samples.
    """
    return _blank(picture, width, height, picture.format.name)


def blank_without_range(picture: av.VideoFrame) -> av.VideoFrame:
    """Return a picture as `blank_like` does, of equal size, in the format that names no range."""
    name = without_range_name(picture.format.name)
    return _blank(picture, picture.width, picture.height, name)


def _blank(picture: av.VideoFrame, width: int, height: int, pixel_format: str) -> av.VideoFrame:
    own = (width, height)
    source = (picture.width, picture.height)
    side = next(side for side in _SIDES if (side, side) not in (own, source))
    try:
        result = _scaled_frame(
            _scaled_frame(picture, side, side, pixel_format), width, height, pixel_format
        )
    except (FFmpegError, ValueError):  # FFmpeg does not scale to all formats
        result = av.VideoFrame(width, height, pixel_format)
    copy_colors(picture, result)
    return result


def is_same_form(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Return whether two pictures of one video have the same format and interlacing."""
    return (one.format.name, one.interlaced_frame) == (other.format.name, other.interlaced_frame)


def blank(
    width: int, height: int, pixel_format: str, siting: str, *, interlaced: bool
) -> av.VideoFrame:
    """Return a picture with chroma at `siting` and undefined samples."""
    return blank_like(_decoded_raw(pixel_format, siting, interlaced), width, height)


def frame_siting(picture: av.VideoFrame) -> str:
    """Return the chroma location of a picture: one of `SITINGS`, as far as FFmpeg
    distinguishes it.
    """
    trace = _siting_trace(blank_like(picture, *_TRIAL_SIZE))
    sitings = _siting_traces(picture.format.name, picture.interlaced_frame)
    return sitings.get(trace, SITINGS[0])


class SitingSetter:
    """Copies pictures to ones that declare their chroma at `siting`. Not thread-safe.

    Samples are not moved. Use it for pictures from codecs that cannot signal the location.
    """

    def __init__(self, siting: str) -> None:
        self.siting = siting
        self._form: tuple[int, int, str, bool] | None = None
        self._own: av.VideoFrame | None = None

    def convert(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return a copy of `picture`, valid until the next call."""
        width, height, name = picture.width, picture.height, picture.format.name
        form = (width, height, name, picture.interlaced_frame)
        if self._own is None or form != self._form:
            interlaced = picture.interlaced_frame
            self._own = blank(width, height, name, self.siting, interlaced=interlaced)
            self._form = form
        copy_picture(picture, self._own)
        self._own.pts = picture.pts
        return self._own


@cache
def _siting_traces(pixel_format: str, interlaced: bool) -> dict[bytes, str]:
    """Return the converted test samples for each siting that FFmpeg distinguishes."""
    found: dict[bytes, str] = {}
    for siting in SITINGS:
        picture = blank(*_TRIAL_SIZE, pixel_format, siting, interlaced=interlaced)
        found.setdefault(_siting_trace(picture), siting)
    return found


def _siting_trace(picture: av.VideoFrame) -> bytes:
    """Return test samples as FFmpeg converts them in this picture; its own samples are
    overwritten.
    """
    rng = np.random.default_rng(0)
    for plane in plane_bytes(picture):
        plane[...] = rng.integers(0, 2, plane.shape)
        if picture.format.components[0].bits == 8:
            plane *= 160
    copy_colors(av.VideoFrame(*_TRIAL_SIZE, picture.format.name), picture)
    converted = [
        picture.reformat(
            width=width,
            height=height,
            format=form,
            interpolation=Interpolation.BICUBIC,
            threads=1,
        )
        for form in _TRIAL_FORMATS
        for width, height in _TRIAL_TARGETS
    ]
    return b"".join(plane.tobytes() for small in converted for plane in plane_bytes(small))


def _decoded_raw(pixel_format: str, siting: str, interlaced: bool) -> av.VideoFrame:
    """Return a small picture that FFmpeg decoded from raw video with these properties."""
    side = _SIDES[0]
    context = new_decoder("rawvideo")
    context.width = context.height = side
    context.pix_fmt = pixel_format
    context.options = {
        "chroma_sample_location": "unknown" if siting == SITINGS[0] else siting,
        "field_order": "tt" if interlaced else "progressive",
    }
    like = av.VideoFrame(side, side, pixel_format)
    size = sum(plane.size for plane in plane_bytes(like))
    (picture,) = decode(context, av.Packet(bytes(size)))
    return picture


def _scaled_frame(
    picture: av.VideoFrame, width: int, height: int, pixel_format: str
) -> av.VideoFrame:
    return picture.reformat(
        width=width,
        height=height,
        format=pixel_format,
        interpolation=Interpolation.POINT,  # reads only the rows that it needs
        threads=1,
    )


class InterlaceSetter:
    """Copies pictures of one video to ones with a given interlaced flag. Not thread-safe."""

    def __init__(self, *, interlaced: bool) -> None:
        self._interlaced = interlaced
        self._form: tuple[int, int, str] | None = None
        self._own: av.VideoFrame | None = None

    def convert(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return `picture` if its flag is right or cannot be set; else a copy, valid until the next
        call.
        """
        if picture.interlaced_frame == self._interlaced or not self.can_flag(picture):
            return picture
        form = (picture.width, picture.height, picture.format.name)
        if self._own is None or form != self._form:
            siting = frame_siting(picture)
            self._own, self._form = blank(*form, siting, interlaced=self._interlaced), form
        copy_picture(picture, self._own)
        self._own.pts = picture.pts
        return self._own

    def can_flag(self, picture: av.VideoFrame) -> bool:
        """Return whether pictures of this form can have the flag.

        FFmpeg does not set the flag on packed pictures of raw video.
        """
        is_packed = not picture.format.is_planar and not picture.format.name.startswith("gray")
        return picture.interlaced_frame == self._interlaced or not is_packed


def with_full_chroma(frame: av.VideoFrame) -> av.VideoFrame:
    """Return `frame` with each chroma sample repeated for every pixel that shares it.

    In an interlaced frame, the pixels of one field share it, so crops must follow `chroma_grid`.
    """
    name = frame.format.name
    for shared in ("420", "422", "440", "411", "410"):
        name = name.replace(shared, "444")
    full = blank(frame.width, frame.height, name, SITINGS[0], interlaced=frame.interlaced_frame)
    copy_colors(frame, full)
    fields = 2 if frame.interlaced_frame else 1
    planes = zip(plane_samples(frame), plane_samples(full), strict=True)
    for number, (source, target) in enumerate(planes):
        shares_x, shares_y = plane_subsampling(frame, number)
        for field in range(fields):
            rows = target[field::fields]
            repeated = source[field::fields].repeat(shares_y, axis=0).repeat(shares_x, axis=1)
            rows[...] = repeated[: rows.shape[0], : rows.shape[1]]
    return full


def chroma_grid(frame: av.VideoFrame) -> tuple[int, int]:
    """Return the columns and rows at whose multiples a crop of `frame` has its own chroma."""
    shares_x, shares_y = plane_subsampling(frame, 1)
    return shares_x, 2 * shares_y if frame.interlaced_frame and shares_y > 1 else shares_y
