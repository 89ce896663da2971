"""Lossless cells: pictures as raw packets, or as differences compressed with Zstandard.

`LosslessCellEncoder` checks each packet by unpacking it. `recompressed` compresses a cell harder
later.

Filmed pictures have similar neighbors, not repetitions. Each picture is stored as samples or slopes
(left + above - above left), alone or less the previous picture, which must save a tenth; a twelfth
of its rows selects the best way. The median predictor would save 1 to 4 % more, but cannot be
undone in whole arrays. Level 1 after differences is 1.15 to 2 times smaller than level 19 without,
and 60 to 150 times as fast. From level 16 on, Zstandard looks for longer matches in fewer places.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
import zstandard

from vfsd.codecs.cells.pack import CellStream, PackedCell
from vfsd.codecs.frames.color import SITINGS, blank, blank_like, is_same_form
from vfsd.codecs.frames.planes import copy_colors, has_luma, plane_bytes, plane_pixels
from vfsd.codecs.frames.quality import (
    QualityAccumulator,
    RgbConverter,
    SourcePicture,
    SquaredErrors,
    color_error,
)
from vfsd.codecs.frames.transforms import cut_out
from vfsd.core.model import MediaInfo, PsnrFigures
from vfsd.errors import IntegrityError, UsageError
from vfsd.tiling import Rect
from vfsd.tiling.cost import LOSSLESS

SamplePlane = npt.NDArray[Any]
"""rows x columns, uint8 or uint16."""

# Most bytes with a sum that fits in 31 bits.
_MAX_SUMMED = (1 << 31) // 256


# FFV1's median predictor gives 1 to 4 % less data, but each sample depends on those before it. This
# predictor is undone by sums along rows and columns: 1 ms for two megapixels.
def neighbour_residuals(samples: SamplePlane) -> SamplePlane:
    """Return each sample less the prediction left + above - (left above).

    Samples beyond the edges are 0.
    """
    down = samples.copy()
    np.subtract(samples[1:], samples[:-1], out=down[1:])
    found = down.copy()
    np.subtract(down[:, 1:], down[:, :-1], out=found[:, 1:])
    return found


def restore_from_residuals(differences: SamplePlane) -> SamplePlane:
    """Return the samples from their residuals; the inverse of `neighbour_residuals`."""
    if differences.dtype != np.uint8:
        down = np.add.accumulate(differences, axis=0, dtype=differences.dtype)
        across: SamplePlane = np.add.accumulate(down, axis=1, dtype=differences.dtype)
        return across
    samples = np.empty_like(differences)
    rows = max(1, _MAX_SUMMED // differences.shape[1])
    for top in range(0, len(samples), rows):
        part = samples[top : top + rows]
        sums = cv2.integral(differences[top : top + rows])  # four times as fast as in numpy
        np.copyto(part, sums[1:, 1:], casting="unsafe")  # the lowest eight bits
        if top:
            part += samples[top - 1]
    return samples


def to_byte_planes(differences: SamplePlane) -> SamplePlane:
    """Return residuals as bytes; 16-bit samples give all low bytes first, then the high ones.

    Signs are folded into the lowest bit, so that small differences have high bytes of 0.
    """
    if differences.dtype == np.uint8:
        return differences.reshape(-1)
    signed = differences.view(np.int16)
    small = ((signed << 1) ^ (signed >> 15)).reshape(-1)
    return np.ascontiguousarray(small.view(np.uint8).reshape(-1, 2).T).reshape(-1)


def from_byte_planes(
    data: npt.NDArray[np.uint8], shape: tuple[int, int], dtype: npt.DTypeLike
) -> SamplePlane:
    """Return residuals of that shape and type; the inverse of `to_byte_planes`."""
    if np.dtype(dtype) == np.uint8:
        return data.reshape(shape)
    low, high = data.reshape(2, -1)
    small = low | high.astype(np.uint16) << 8
    signs = (small & 1) * np.uint16(0xFFFF)
    return ((small >> 1) ^ signs).reshape(shape)


RAW_LEVEL = 0
"""The level of raw samples."""
MAX_LEVEL = 19
"""The highest level at which Zstandard needs no extra memory for decoding."""

_HEAD = struct.Struct("<BB4H")
# Four modes per picture: samples or residuals, alone or less the previous picture. Differences
# along one direction, or a choice per plane, would save 0 to 3 % more on eight clips.
_COMPRESSED, _SPATIAL, _TEMPORAL = 1, 2, 4
# (green channel, channels stored as differences from green) by pixel format.
_RGB_CHANNELS = {
    **dict.fromkeys(("rgb24", "bgr24"), (1, (0, 2))),
    **dict.fromkeys(("gbrp", "gbrp10le", "gbrp12le"), (0, (1, 2))),
}
_TRIAL_LEVEL = 1
# The trial of modes compresses this many rows out of every period.
_TRIAL_ROWS, _TRIAL_PERIOD = 8, 96
# The level from which on Zstandard's optimal parser is used, with parameters of our own.
# Zstandard's presets are not the best for residuals: higher levels search for shorter matches.
# With longer ones, seven filmed clips are up to 4 % smaller at level 19, and none is larger, in
# 0.6 to 0.8 of the time (`benchmarks.deferred`). Parts of 64x64 pixels are up to 2 % larger.
_OPTIMAL = 16
# Bytes: a match that ends the search, and the shortest match.
_LONG_MATCH, _SHORTEST_MATCH = 1024, 5
# Binary logarithm of search attempts; one more with each level.
_MIN_SEARCH_LOG = 4
# A picture refers to the previous one only if that shrinks it to this fraction.
_MIN_GAIN = 0.9

LOSSLESS_PIXEL_FORMATS = (
    *(
        f"yuv{sampling}p{depth}"
        for sampling, depth in product(("420", "422", "444"), ("", "10le", "12le"))
    ),
    "yuv440p",
    *(f"yuvj{sampling}p" for sampling in ("420", "422", "444", "440")),
    *("gray", "gray10le", "gray12le"),
    *_RGB_CHANNELS,
)
"""Pixel formats that can be packed.

Formats with chroma shared by four pixels in a row are excluded: FFmpeg scales the chroma of a part
with odd sides differently from that of the whole picture.
"""


def is_key_packet(packet: bytes | memoryview) -> bool:
    """Return whether a packet decodes without the picture before. Raises `IntegrityError`."""
    return not _parsed_head(packet)[0] & _TEMPORAL


class PicturePacker:
    """Packs consecutive pictures. Not thread-safe.

    `level` is 0 (raw samples) or a compression level from 1 to 19. Raises `UsageError` for another.
    """

    def __init__(self, level: int) -> None:
        if not RAW_LEVEL <= level <= MAX_LEVEL:
            raise UsageError(f"lossless level must be {RAW_LEVEL} to {MAX_LEVEL}, got {level}")
        self._level = level
        self._trying = zstandard.ZstdCompressor(level=_TRIAL_LEVEL)
        self._compressor: zstandard.ZstdCompressor | None = None
        self._before: tuple[list[SamplePlane], list[SamplePlane]] | None = None

    def pack(self, picture: av.VideoFrame) -> bytes:
        """Return the packet of the next picture; all have one size and format."""
        channels = _channels(picture)
        if self._level == RAW_LEVEL:
            return _raw_packet(picture, channels)
        plain = _subtract_green(channels, picture.format.name)
        sloped = [neighbour_residuals(channel) for channel in plain]
        ways = {0: plain, _SPATIAL: sloped}
        if self._before is not None:
            ways[_TEMPORAL] = _temporal_differences(plain, self._before[0])
            ways[_TEMPORAL | _SPATIAL] = _temporal_differences(sloped, self._before[1])
        self._before = plain, sloped
        how = self._best(ways)
        whole = _joined_channels(ways[how])
        if self._compressor is None:
            self._compressor = _compressor(self._level, whole.nbytes)
        data = self._compressor.compress(whole)
        if len(data) >= sum(channel.nbytes for channel in channels):
            return _raw_packet(picture, channels)
        return _packet_head(picture, how | _COMPRESSED) + data

    def restart(self) -> None:
        """Pack the next picture without reference to earlier ones."""
        self._before = None

    def _best(self, ways: dict[int, list[SamplePlane]]) -> int:
        size = {how: self._tried(channels) for how, channels in ways.items()}
        alone = min((how for how in size if not how & _TEMPORAL), key=size.__getitem__)
        best = min(size, key=size.__getitem__)
        return best if size[best] < _MIN_GAIN * size[alone] else alone

    def _tried(self, channels: Sequence[SamplePlane]) -> int:
        rows = [
            np.ascontiguousarray(channel[top : top + _TRIAL_ROWS])
            for channel in channels
            for top in range(0, len(channel), _TRIAL_PERIOD)
        ]
        return len(self._trying.compress(_joined_channels(rows)))


class PictureUnpacker:
    """Unpacks packets to pictures. Not thread-safe."""

    def __init__(self, width: int, height: int, pixel_format: str, siting: str) -> None:
        self._form = (width, height, pixel_format, siting)
        self._pictures: dict[bool, tuple[av.VideoFrame, list[SamplePlane]]] = {}  # by interlacing
        self._picture, self._channels = self._own(False)
        self._bytes = sum(channel.nbytes for channel in self._channels)
        self._decompressor = zstandard.ZstdDecompressor()
        self._plain: list[SamplePlane] | None = None  # channels of the last compressed picture
        self._has_shown = False

    def restart(self) -> None:
        """Prepare for a packet that does not follow the last one."""
        self._plain, self._has_shown = None, False

    def unpack(self, packet: memoryview) -> av.VideoFrame:
        """Return the picture of the next packet, valid until the next call.

        Raises `IntegrityError` for a damaged packet, and if the picture before is needed but was
        not unpacked.
        """
        how, interlaced, *colors = _parsed_head(packet)
        body = packet[_HEAD.size :]
        before = self._last() if how & _TEMPORAL else None
        self._picture, self._channels = self._own(bool(interlaced))
        if how == 0:
            data = np.frombuffer(body, np.uint8)
            if data.size != self._bytes:
                raise IntegrityError(f"a picture must have {self._bytes} bytes, got {data.size}")
            plain = _split_channels(data, self._channels)
            for channel, samples in zip(self._channels, plain, strict=True):
                channel[...] = samples.view(channel.dtype).reshape(channel.shape)
            self._plain = None
        else:
            self._plain = self._undone(how, self._decompressed(body), before)
            _add_green(self._plain, self._picture.format.name, self._channels)
        self._has_shown = True
        picture = self._picture
        picture.colorspace, picture.color_range = colors[0], colors[1]
        picture.color_trc, picture.color_primaries = colors[2], colors[3]
        return picture

    def _own(self, interlaced: bool) -> tuple[av.VideoFrame, list[SamplePlane]]:
        """Return the reused picture of that interlacing, and views of its channels."""
        found = self._pictures.get(interlaced)
        if found is None:
            picture = blank(*self._form, interlaced=interlaced)
            found = self._pictures[interlaced] = picture, _channels(picture)
        return found

    def _decompressed(self, body: memoryview) -> npt.NDArray[np.uint8]:
        try:
            if zstandard.frame_content_size(body) != self._bytes:
                raise IntegrityError("a compressed picture has the wrong size")
            data = self._decompressor.decompress(body)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"a compressed picture is damaged: {error}") from error
        return np.frombuffer(data, np.uint8)

    def _undone(
        self, how: int, data: npt.NDArray[np.uint8], before: Sequence[SamplePlane] | None
    ) -> list[SamplePlane]:
        plain = []
        for number, part in enumerate(_split_channels(data, self._channels)):
            form = self._channels[number]
            samples = from_byte_planes(part, form.shape, form.dtype)
            if how & _SPATIAL:
                samples = restore_from_residuals(samples)
            if before is not None:
                samples = samples + before[number]
            plain.append(samples)
        return plain

    def _last(self) -> list[SamplePlane]:
        """Return the channels of the last picture, as the next one refers to them."""
        if not self._has_shown:
            raise IntegrityError("the previous picture is missing")
        if self._plain is None:
            return _subtract_green(self._channels, self._picture.format.name)
        return self._plain


def _channels(picture: av.VideoFrame) -> list[SamplePlane]:
    """Return views of the samples: an array of rows x columns for each component."""
    if picture.format.name not in LOSSLESS_PIXEL_FORMATS:
        raise UsageError(f"pixel format {picture.format.name} cannot be stored losslessly")
    return [
        samples[..., number]
        for pixels in plane_pixels(picture)
        for samples in (pixels if pixels.ndim == 3 else pixels[..., np.newaxis],)
        for number in range(samples.shape[2])
    ]


def _subtract_green(channels: Sequence[SamplePlane], pixel_format: str) -> list[SamplePlane]:
    """Return copies of the channels, with green subtracted from red and blue."""
    copies = [channel.copy() for channel in channels]
    if pixel_format in _RGB_CHANNELS:
        green, others = _RGB_CHANNELS[pixel_format]
        for number in others:
            copies[number] -= copies[green]
    return copies


def _add_green(
    plain: Sequence[SamplePlane], pixel_format: str, channels: Sequence[SamplePlane]
) -> None:
    """Write channels to `channels`; the inverse of `_subtract_green`."""
    green, others = _RGB_CHANNELS.get(pixel_format, (0, ()))
    for number, (samples, channel) in enumerate(zip(plain, channels, strict=True)):
        if number in others:
            np.add(samples, plain[green], out=channel)
        else:
            channel[...] = samples


def _temporal_differences(
    after: Sequence[SamplePlane], before: Sequence[SamplePlane]
) -> list[SamplePlane]:
    return [one - other for one, other in zip(after, before, strict=True)]


def _compressor(level: int, size: int) -> zstandard.ZstdCompressor:
    """Return a compressor for pictures of `size` bytes."""
    chosen = {}
    if level >= _OPTIMAL:
        chosen = {
            "strategy": zstandard.STRATEGY_BTOPT,
            "min_match": _SHORTEST_MATCH,
            "target_length": _LONG_MATCH,
            "search_log": _MIN_SEARCH_LOG + level - _OPTIMAL,
        }
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=size, write_checksum=True, **chosen
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def _joined_channels(channels: Sequence[SamplePlane]) -> memoryview:
    return np.concatenate([to_byte_planes(channel) for channel in channels]).data


def _raw_packet(picture: av.VideoFrame, channels: Sequence[SamplePlane]) -> bytes:
    return b"".join((_packet_head(picture, 0), *(channel.tobytes() for channel in channels)))


def _split_channels(
    data: npt.NDArray[np.uint8], channels: Sequence[SamplePlane]
) -> list[npt.NDArray[np.uint8]]:
    ends = np.cumsum([channel.nbytes for channel in channels])
    return np.split(data, ends[:-1])


def _packet_head(picture: av.VideoFrame, how: int) -> bytes:
    return _HEAD.pack(
        how,
        picture.interlaced_frame,
        picture.colorspace,
        picture.color_range,
        picture.color_trc,
        picture.color_primaries,
    )


def _parsed_head(packet: bytes | memoryview) -> tuple[int, int, int, int, int, int]:
    if len(packet) < _HEAD.size:
        raise IntegrityError("a packet of a lossless tile is cut off")
    how, interlaced, *colors = _HEAD.unpack_from(packet)
    is_known = how == 0 or (how & _COMPRESSED and how <= _COMPRESSED | _SPATIAL | _TEMPORAL)
    if not is_known or interlaced > 1:
        raise IntegrityError("a packet of a lossless tile is damaged")
    return how, interlaced, colors[0], colors[1], colors[2], colors[3]


class LosslessCellEncoder:
    """Encodes one cell from the pictures of a segment; `level` is that of a `PicturePacker`.

    Raises `UsageError` for an unsupported level or pixel format, `IntegrityError` if the result
    does not decode to the same bits.
    """

    def __init__(self, media: MediaInfo, rect: Rect, level: int, gop: int | None = None) -> None:
        self._rect = rect
        self._format = media.pixel_format
        self._gop = gop
        # Even sizes, as in cells of other codecs, so that readers treat all alike.
        width, height = rect.width + rect.width % 2, rect.height + rect.height % 2
        self._size = (width, height)
        self._level = level
        self._tile: av.VideoFrame | None = None
        self._stream: _VerifiedPacker | None = None
        size = (rect.width, rect.height)
        self._shown = RgbConverter(replace(media, width=size[0], height=size[1]), *size)
        self._tally = QualityAccumulator()
        self._is_scaled = False

    def put(self, shot: SourcePicture) -> None:
        """Add the next whole picture of the segment."""
        picture = shot.picture
        if picture.format.name != self._format:
            raise UsageError(
                f"the pixel format changes from {self._format} to {picture.format.name}",
                hint="use another tile codec",
            )
        tile, stream = self._tile, self._stream
        if tile is None or not is_same_form(tile, picture):
            tile = self._tile = blank_like(picture, *self._size)
        if stream is None:
            form = (*self._size, self._format, shot.siting)
            stream = self._stream = _VerifiedPacker(*form, self._level, self._gop)
        cut_out(picture, self._rect, tile)
        copy_colors(picture, tile)
        stream.put(tile)
        if shot.colours:
            self._is_scaled = True
            square = color_error(shot.part(self._rect, tile).colours, self._shown.convert(tile))
            self._tally.add(SquaredErrors(colour=square))

    def finish(self) -> tuple[CellStream, PsnrFigures]:
        """Return the cell and its PSNR figures; only RGB of scaled pictures can differ from the
        source.
        """
        if self._stream is None or self._tile is None:
            raise IntegrityError("a tile has no pictures")
        likeness = self._tally.likeness
        if self._is_scaled and not has_luma(self._tile.format.name):
            likeness = replace(likeness, gray=0.0)  # gray comes from RGB then, and is not measured
        return self._stream.finish(), likeness

    def abandon(self) -> None:
        """Discard the cell."""


def recompressed(cell: PackedCell, packets: Iterable[memoryview], level: int) -> CellStream:
    """Return a lossless cell with the same pictures, compressed at another level.

    Raises `UsageError`, and `IntegrityError` for damaged packets, or if the result does not decode
    to the same bits.
    """
    decoder = LosslessCellDecoder(cell)
    form = (cell.width, cell.height, decoder.pixel_format, decoder.siting)
    stream = _VerifiedPacker(*form, level, cell.gop)
    for packet in packets:
        ((_, picture),) = decoder.decode(packet)
        stream.put(picture)
    return stream.finish()


class LosslessCellDecoder:
    """A `vfsd.codecs.cells.cell_decoders.CellDecoder` for lossless cells."""

    def __init__(self, cell: PackedCell) -> None:
        self.pixel_format, self.siting, self._alone = _cell_format(cell)
        self._size = (cell.width, cell.height)
        self._unpacker = PictureUnpacker(*self._size, self.pixel_format, self.siting)
        self.fed = 0

    def fits(self, cell: PackedCell) -> bool:
        if cell.codec != LOSSLESS or (cell.width, cell.height) != self._size:
            return False
        return _cell_format(cell)[:2] == (self.pixel_format, self.siting)

    def restart(self, cell: PackedCell) -> None:
        self._alone = _cell_format(cell)[2]
        self._unpacker.restart()
        self.fed = 0

    def first_packet(self, number: int) -> int:
        return self._alone[bisect_right(self._alone, number) - 1]

    def skip(self, number: int) -> None:
        nearest = self.first_packet(number)
        if nearest > self.fed:
            self._unpacker.restart()
            self.fed = nearest

    def decode(self, payload: memoryview) -> list[tuple[int, av.VideoFrame]]:
        number, self.fed = self.fed, self.fed + 1
        return [(number, self._unpacker.unpack(payload))]

    def drain(self) -> list[tuple[int, av.VideoFrame]]:
        self._unpacker.restart()
        self.fed = 0
        return []


class _VerifiedPacker:
    """Packs pictures, and unpacks each again to compare."""

    def __init__(
        self,
        width: int,
        height: int,
        pixel_format: str,
        siting: str,
        level: int,
        gop: int | None = None,
    ) -> None:
        self._size = (width, height)
        self._gop = gop
        self._description = {"pixels": pixel_format, "siting": siting}
        self._packer = PicturePacker(level)
        self._unpacker = PictureUnpacker(width, height, pixel_format, siting)
        self._packets: list[bytes] = []

    def put(self, picture: av.VideoFrame) -> None:
        if self._gop is not None and len(self._packets) % self._gop == 0:
            self._packer.restart()
        packet = self._packer.pack(picture)
        again = self._unpacker.unpack(memoryview(packet))
        for original, restored in zip(plane_bytes(picture), plane_bytes(again), strict=True):
            if not np.array_equal(original, restored):
                raise IntegrityError(f"picture {len(self._packets)} of a tile decodes differently")
        self._packets.append(packet)

    def finish(self) -> CellStream:
        alone = [number for number, packet in enumerate(self._packets) if is_key_packet(packet)]
        described = {**self._description, "alone": alone}
        extradata = json.dumps(described, separators=(",", ":")).encode()
        return CellStream(LOSSLESS, *self._size, extradata, self._packets, gop=self._gop)


def _cell_format(cell: PackedCell) -> tuple[str, str, Sequence[int]]:
    """Return (pixel format, chroma location, numbers of key packets from 0)."""
    try:
        form = json.loads(cell.extradata)
        pixel_format, siting, alone = form["pixels"], form["siting"], form["alone"]
        is_known = pixel_format in LOSSLESS_PIXEL_FORMATS and siting in SITINGS
        if not is_known or alone[0] != 0 or sorted(alone) != alone:
            raise ValueError("invalid description")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise IntegrityError(f"a lossless tile is damaged: {error}") from error
    return pixel_format, siting, alone
