"""Cells that can be stitched: tiles of a picture that kvazaar has encoded as a whole, or alone.

kvazaar takes pixels in one go and gives the stream at the end, so the pictures of a segment lie in
a file meanwhile, from which they are read once for each run and once for each measurement.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import IO

import av
import numpy as np
import numpy.typing as npt

from vfsd.codecs.cellcheck import checked_psnr
from vfsd.codecs.compose import cut_out
from vfsd.codecs.encode import NOMINAL_RATE, EncoderSettings
from vfsd.codecs.framing import with_start_codes
from vfsd.codecs.hevc_tiles import TileStream
from vfsd.codecs.kvazaar import encode_tile, encode_tiled
from vfsd.codecs.pack import CellStream
from vfsd.codecs.planes import plane_bytes
from vfsd.codecs.tiles import TileCodec
from vfsd.errors import NoSpaceError
from vfsd.model import MediaInfo
from vfsd.tiling import Rect

_FORMAT = "yuv420p"
_PEAK = 255
_HIGHEST_RATE = 1000

Planes = npt.NDArray[np.uint8]
"""Luma and both chroma planes one after the other, flat."""


def encode_stitchable(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    pictures: Iterable[av.VideoFrame],
) -> list[tuple[CellStream, float]]:
    """As `vfsd.codecs.segmentcells.SegmentEncoder`.

    Tiles that are all of the picture and have one quality come from one run, others from a run
    each: the bytes are the same.
    """
    even = [_even(rect) for rect in tiles]
    with tempfile.TemporaryFile() as file:
        stored = _Stored(file, pictures, media)
        streams = _encoded(stored, media, dict(zip(even, tiles.values(), strict=True)))
        return [
            _measured(codec, stored, rect, stream)
            for rect, stream in zip(even, streams, strict=True)
        ]


def _encoded(stored: _Stored, media: MediaInfo, tiles: Mapping[Rect, int]) -> list[TileStream]:
    """In the order of `tiles`."""
    whole, qualities = Rect.of_size(stored.width, stored.height), set(tiles.values())
    if len(qualities) == 1 and sum(rect.area for rect in tiles) == whole.area:
        settings = _settings(media, whole, qualities.pop())
        widths = _sizes({edge for rect in tiles for edge in (rect.x1, rect.x2)})
        heights = _sizes({edge for rect in tiles for edge in (rect.y1, rect.y2)})
        found = encode_tiled(settings, widths, heights, stored.parts(whole))
        by_place = {stream.rect: stream for stream in found}
        return [by_place[rect] for rect in tiles]
    return [
        encode_tile(_settings(media, rect, quality), stored.parts(rect), x=rect.x1, y=rect.y1)
        for rect, quality in tiles.items()
    ]


def _measured(
    codec: TileCodec, stored: _Stored, rect: Rect, stream: TileStream
) -> tuple[CellStream, float]:
    configuration = with_start_codes(stream.parameter_sets)
    sources = (part[: rect.area].reshape(rect.height, rect.width) for part in stored.parts(rect))
    quality = checked_psnr(codec.codec, configuration, stream.pictures, sources, _PEAK)
    cell = CellStream(codec.codec, rect.width, rect.height, configuration, stream.pictures)
    return cell, quality


def _settings(media: MediaInfo, rect: Rect, quality: int) -> EncoderSettings:
    """The same for all tiles of a video, but for size and quality."""
    rate = media.average_rate or NOMINAL_RATE
    if not 0 < rate <= _HIGHEST_RATE:
        rate = NOMINAL_RATE
    settings = EncoderSettings(
        codec="hevc",
        width=rect.width,
        height=rect.height,
        quality=quality,
        rate=rate.limit_denominator(1001),
        sample_aspect_ratio=_aspect(media),
    )
    return settings.with_colors_of(media)


def _aspect(media: MediaInfo) -> Fraction | None:
    ratio = media.sample_aspect_ratio
    return None if ratio is None or ratio == 1 or ratio <= 0 else ratio


def _even(rect: Rect) -> Rect:
    """Sides are made even; only those at the picture's own edges are not."""
    return Rect(rect.x1, rect.y1, rect.x2 + rect.x2 % 2, rect.y2 + rect.y2 % 2)


def _sizes(edges: set[int]) -> list[int]:
    return [end - start for start, end in pairwise(sorted(edges))]


class _Stored:
    """The pictures of a segment, made even, in an empty file."""

    def __init__(
        self, file: IO[bytes], pictures: Iterable[av.VideoFrame], media: MediaInfo
    ) -> None:
        self.width, self.height = media.width + media.width % 2, media.height + media.height % 2
        self._bytes = self.width * self.height * 3 // 2
        whole = Rect.of_size(media.width, media.height)
        even = av.VideoFrame(self.width, self.height, _FORMAT)
        self._file = file
        for picture in pictures:
            cut_out(picture, whole, even)
            try:
                file.writelines(np.ascontiguousarray(plane).data for plane in plane_bytes(even))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise NoSpaceError(
                    f"the disk is full: {tempfile.gettempdir()} has no room for the pictures of a "
                    "segment",
                    hint="set TMPDIR to a folder with more",
                ) from error

    def parts(self, rect: Rect) -> Iterator[Planes]:
        """A part of each picture, all of whose edges are even."""
        self._file.seek(0)
        luma, chroma = self.width * self.height, self.width * self.height // 4
        while data := self._file.read(self._bytes):
            samples = np.frombuffer(data, np.uint8)
            planes = (
                samples[:luma].reshape(self.height, self.width),
                samples[luma : luma + chroma].reshape(self.height // 2, self.width // 2),
                samples[luma + chroma :].reshape(self.height // 2, self.width // 2),
            )
            yield np.concatenate(
                [
                    plane[
                        rect.y1 // part : rect.y2 // part, rect.x1 // part : rect.x2 // part
                    ].ravel()
                    for plane, part in zip(planes, (1, 2, 2), strict=True)
                ]
            )
