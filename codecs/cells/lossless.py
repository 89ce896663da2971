"""Pictures as packets, and back, to the bit: as they are, or as differences that are compressed.

A packet is a head (`_HEAD`, little-endian): a byte that says how (`_COMPRESSED` and so on), one
that is 1 where the picture is interlaced, and what the samples mean (matrix, range, transfer,
primaries, by FFmpeg's numbers).  Then come the samples, channel by channel without padding, row by
row, or one frame of Zstandard with what the channels were made into: red and blue less green, then
(each where the head says so) the samples less those of the picture before, and less what their
neighbours foretell; of wide samples all low bytes of a channel before the high ones
(`vfsd.codecs.cells.predictors`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import product

import av
import numpy as np
import numpy.typing as npt
import zstandard

from vfsd.codecs.cells.predictors import Samples, folded, from_neighbours, onto_neighbours, unfolded
from vfsd.codecs.frames.chroma_location import blank
from vfsd.codecs.frames.planes import plane_pixels
from vfsd.errors import IntegrityError, UsageError

RAW = 0
"""The level of samples as they are."""
HIGHEST = 19
"""The highest level: what Zstandard does without asking decoders for more memory."""

_HEAD = struct.Struct("<BB4H")
# Four ways a picture: samples or slopes, alone or less the previous picture. Differences along one
# direction only, or a choice for each plane, save 0 to 3 % more on eight clips.
_COMPRESSED, _NEIGHBOURS, _BEFORE = 1, 2, 4
_RGB_CHANNELS = {
    **dict.fromkeys(("rgb24", "bgr24"), (1, (0, 2))),
    **dict.fromkeys(("gbrp", "gbrp10le", "gbrp12le"), (0, (1, 2))),
}
"""By format: green, and the channels that are stored less it."""
_TRIED_LEVEL = 1
_TRIED_ROWS, _TRIED_OF = 8, 96
"""Rows in so many, by which ways to make differences are compared."""
_OPTIMAL = 16
"""The level from which on Zstandard weighs ways to say the same against each other.

Its own levels are not the best for what differences leave: the higher they are, the shorter are the
repetitions that they look for.  With longer ones, seven filmed clips become up to 4 % smaller at
level 19, and none larger, in 0.6 to 0.8 of the time (`benchmarks.deferred`); parts of 64x64 are
up to 2 % larger."""
_LONG_MATCH, _SHORTEST_MATCH = 1024, 5
"""Bytes: what is taken without looking further, and the least that is looked for."""
_LEAST_SEARCH = 4
"""How many places are looked at, as a power of two; one more with each level."""
_WORTH = 0.9
"""A picture that needs the one before has to be that much smaller than one that stands alone."""

PIXEL_FORMATS = (
    *(
        f"yuv{sampling}p{depth}"
        for sampling, depth in product(("420", "422", "444"), ("", "10le", "12le"))
    ),
    "yuv440p",
    *(f"yuvj{sampling}p" for sampling in ("420", "422", "444", "440")),
    *("gray", "gray10le", "gray12le"),
    *_RGB_CHANNELS,
)
"""Those that can be packed.  Not those of which four pixels share a sample of chroma: of a part
with odd sides it would be scaled in another way than of the whole picture."""


def stands_alone(packet: bytes | memoryview) -> bool:
    """Whether it shows its picture without the one before.  Raises `IntegrityError`."""
    return not _head(packet)[0] & _BEFORE


class PicturePacker:
    """Makes packets of pictures that follow each other.  Not thread-safe.

    `level` is 0 (samples as they are), or how hard to compress, 1 to 19.  Raises `UsageError` for
    another.
    """

    def __init__(self, level: int) -> None:
        if not RAW <= level <= HIGHEST:
            raise UsageError(f"lossless levels are {RAW} to {HIGHEST}, not {level}")
        self._level = level
        self._trying = zstandard.ZstdCompressor(level=_TRIED_LEVEL)
        self._compressor: zstandard.ZstdCompressor | None = None
        self._before: tuple[list[Samples], list[Samples]] | None = None

    def pack(self, picture: av.VideoFrame) -> bytes:
        """The packet of the next picture, all of which have one size and format."""
        channels = _channels(picture)
        if self._level == RAW:
            return _raw(picture, channels)
        plain = _less_green(channels, picture.format.name)
        sloped = [from_neighbours(channel) for channel in plain]
        ways = {0: plain, _NEIGHBOURS: sloped}
        if self._before is not None:
            ways[_BEFORE] = _differences(plain, self._before[0])
            ways[_BEFORE | _NEIGHBOURS] = _differences(sloped, self._before[1])
        self._before = plain, sloped
        how = self._best(ways)
        whole = _joined(ways[how])
        if self._compressor is None:
            self._compressor = _compressor(self._level, whole.nbytes)
        data = self._compressor.compress(whole)
        if len(data) >= sum(channel.nbytes for channel in channels):
            return _raw(picture, channels)
        return _head_of(picture, how | _COMPRESSED) + data

    def _best(self, ways: dict[int, list[Samples]]) -> int:
        size = {how: self._tried(channels) for how, channels in ways.items()}
        alone = min((how for how in size if not how & _BEFORE), key=size.__getitem__)
        best = min(size, key=size.__getitem__)
        return best if size[best] < _WORTH * size[alone] else alone

    def _tried(self, channels: Sequence[Samples]) -> int:
        rows = [
            np.ascontiguousarray(channel[top : top + _TRIED_ROWS])
            for channel in channels
            for top in range(0, len(channel), _TRIED_OF)
        ]
        return len(self._trying.compress(_joined(rows)))


class PictureUnpacker:
    """Makes pictures of packets.  Not thread-safe."""

    def __init__(self, width: int, height: int, pixel_format: str, siting: str) -> None:
        self._form = (width, height, pixel_format, siting)
        self._pictures: dict[bool, tuple[av.VideoFrame, list[Samples]]] = {}  # by interlacing
        self._picture, self._channels = self._own(False)
        self._bytes = sum(channel.nbytes for channel in self._channels)
        self._decompressor = zstandard.ZstdDecompressor()
        self._plain: list[Samples] | None = None  # of the last picture, if it was compressed
        self._has_shown = False

    def restart(self) -> None:
        """The next packet does not follow the last."""
        self._plain, self._has_shown = None, False

    def unpack(self, packet: memoryview) -> av.VideoFrame:
        """The picture of the next packet, valid until the one after is unpacked.

        Raises `IntegrityError` for a damaged packet, and for one that needs the picture before
        where that was not unpacked.
        """
        how, interlaced, *colors = _head(packet)
        body = packet[_HEAD.size :]
        before = self._last() if how & _BEFORE else None
        self._picture, self._channels = self._own(bool(interlaced))
        if how == 0:
            data = np.frombuffer(body, np.uint8)
            if data.size != self._bytes:
                raise IntegrityError(f"a picture of {self._bytes} bytes has {data.size}")
            plain = _split(data, self._channels)
            for channel, samples in zip(self._channels, plain, strict=True):
                channel[...] = samples.view(channel.dtype).reshape(channel.shape)
            self._plain = None
        else:
            self._plain = self._undone(how, self._decompressed(body), before)
            _plus_green(self._plain, self._picture.format.name, self._channels)
        self._has_shown = True
        picture = self._picture
        picture.colorspace, picture.color_range = colors[0], colors[1]
        picture.color_trc, picture.color_primaries = colors[2], colors[3]
        return picture

    def _own(self, interlaced: bool) -> tuple[av.VideoFrame, list[Samples]]:
        """Memory for pictures, with views of its channels."""
        found = self._pictures.get(interlaced)
        if found is None:
            picture = blank(*self._form, interlaced=interlaced)
            found = self._pictures[interlaced] = picture, _channels(picture)
        return found

    def _decompressed(self, body: memoryview) -> npt.NDArray[np.uint8]:
        try:
            if zstandard.frame_content_size(body) != self._bytes:
                raise IntegrityError("a compressed picture has another size")
            data = self._decompressor.decompress(body)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"a compressed picture is damaged: {error}") from error
        return np.frombuffer(data, np.uint8)

    def _undone(
        self, how: int, data: npt.NDArray[np.uint8], before: Sequence[Samples] | None
    ) -> list[Samples]:
        plain = []
        for number, part in enumerate(_split(data, self._channels)):
            form = self._channels[number]
            samples = unfolded(part, form.shape, form.dtype)
            if how & _NEIGHBOURS:
                samples = onto_neighbours(samples)
            if before is not None:
                samples = samples + before[number]
            plain.append(samples)
        return plain

    def _last(self) -> list[Samples]:
        """What the last picture was made of."""
        if not self._has_shown:
            raise IntegrityError("a picture lacks the one before")
        if self._plain is None:
            return _less_green(self._channels, self._picture.format.name)
        return self._plain


def _channels(picture: av.VideoFrame) -> list[Samples]:
    """Views of the samples, an array of rows x columns for each component."""
    if picture.format.name not in PIXEL_FORMATS:
        raise UsageError(f"pictures in {picture.format.name} cannot be packed")
    return [
        samples[..., number]
        for pixels in plane_pixels(picture)
        for samples in (pixels if pixels.ndim == 3 else pixels[..., np.newaxis],)
        for number in range(samples.shape[2])
    ]


def _less_green(channels: Sequence[Samples], pixel_format: str) -> list[Samples]:
    """Copies, with red and blue as what they have more than green."""
    copies = [channel.copy() for channel in channels]
    if pixel_format in _RGB_CHANNELS:
        green, others = _RGB_CHANNELS[pixel_format]
        for number in others:
            copies[number] -= copies[green]
    return copies


def _plus_green(plain: Sequence[Samples], pixel_format: str, channels: Sequence[Samples]) -> None:
    """Into `channels`, what `_less_green` was given."""
    green, others = _RGB_CHANNELS.get(pixel_format, (0, ()))
    for number, (samples, channel) in enumerate(zip(plain, channels, strict=True)):
        if number in others:
            np.add(samples, plain[green], out=channel)
        else:
            channel[...] = samples


def _differences(after: Sequence[Samples], before: Sequence[Samples]) -> list[Samples]:
    return [one - other for one, other in zip(after, before, strict=True)]


def _compressor(level: int, size: int) -> zstandard.ZstdCompressor:
    """Of pictures of that many bytes."""
    chosen = {}
    if level >= _OPTIMAL:
        chosen = {
            "strategy": zstandard.STRATEGY_BTOPT,
            "min_match": _SHORTEST_MATCH,
            "target_length": _LONG_MATCH,
            "search_log": _LEAST_SEARCH + level - _OPTIMAL,
        }
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=size, write_checksum=True, **chosen
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def _joined(channels: Sequence[Samples]) -> memoryview:
    return np.concatenate([folded(channel) for channel in channels]).data


def _raw(picture: av.VideoFrame, channels: Sequence[Samples]) -> bytes:
    return b"".join((_head_of(picture, 0), *(channel.tobytes() for channel in channels)))


def _split(data: npt.NDArray[np.uint8], channels: Sequence[Samples]) -> list[npt.NDArray[np.uint8]]:
    ends = np.cumsum([channel.nbytes for channel in channels])
    return np.split(data, ends[:-1])


def _head_of(picture: av.VideoFrame, how: int) -> bytes:
    return _HEAD.pack(
        how,
        picture.interlaced_frame,
        picture.colorspace,
        picture.color_range,
        picture.color_trc,
        picture.color_primaries,
    )


def _head(packet: bytes | memoryview) -> tuple[int, int, int, int, int, int]:
    if len(packet) < _HEAD.size:
        raise IntegrityError("a packet of a lossless tile is cut off")
    how, interlaced, *colors = _HEAD.unpack_from(packet)
    is_known = how == 0 or (how & _COMPRESSED and how <= _COMPRESSED | _NEIGHBOURS | _BEFORE)
    if not is_known or interlaced > 1:
        raise IntegrityError("a packet of a lossless tile is damaged")
    return how, interlaced, colors[0], colors[1], colors[2], colors[3]
