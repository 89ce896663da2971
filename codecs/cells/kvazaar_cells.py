"""Cells that can be stitched: tiles of a picture that kvazaar has encoded as a whole, or alone.

kvazaar takes pixels in one go and gives the stream at the end, so the pictures of a segment lie in
a file meanwhile, from which they are read once for each run and once for each measurement.
"""

from __future__ import annotations

import errno
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import IO

import av
import numpy as np
import numpy.typing as npt

from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tile_codecs import TileCodec
from vfsd.codecs.cells.verify import checked_likeness
from vfsd.codecs.containers.packet_format import with_start_codes
from vfsd.codecs.encoding.encoder import NOMINAL_RATE, EncoderSettings
from vfsd.codecs.frames.chroma_location import SITINGS, blank, blank_like
from vfsd.codecs.frames.compose import cut_out
from vfsd.codecs.frames.planes import copy_colors, plane_bytes, plane_samples
from vfsd.codecs.frames.quality import Shot, SitedComparer
from vfsd.codecs.stitching.hevc_tiles import TileStream
from vfsd.codecs.stitching.kvazaar import encode_tile, encode_tiled
from vfsd.core.likeness import Likeness
from vfsd.core.model import MediaInfo
from vfsd.errors import NoSpaceError
from vfsd.tiling import Rect

_FORMAT = "yuv420p"
_HIGHEST_RATE = 1000

Planes = npt.NDArray[np.uint8]
"""Samples; where they are those of a picture, luma and both chroma planes one after the other."""


def encode_stitchable(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    shots: Iterable[Shot],
) -> list[tuple[CellStream, Likeness]]:
    """As `vfsd.codecs.cells.segment_cells.SegmentEncoder`.

    Tiles that are all of the picture and have one quality come from one run, others from a run
    each: the bytes are the same.
    """
    even = [_even(rect) for rect in tiles]
    with tempfile.TemporaryFile() as file:
        stored = _Stored(file, shots, media)
        streams = _encoded(stored, media, dict(zip(even, tiles.values(), strict=True)))
        return [
            _measured(codec, media, stored, rect, stream)
            for rect, stream in zip(tiles, streams, strict=True)
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
    codec: TileCodec, media: MediaInfo, stored: _Stored, rect: Rect, stream: TileStream
) -> tuple[CellStream, Likeness]:
    configuration = with_start_codes(stream.parameter_sets)
    comparer = SitedComparer(media, rect.width, rect.height)
    shots = stored.shots(_even(rect))
    likeness = checked_likeness(codec.codec, configuration, stream.pictures, shots, comparer)
    form = (codec.codec, _even(rect).width, _even(rect).height, configuration)
    return CellStream(*form, stream.pictures, comparer.siting), likeness


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
    """The pictures of a segment, made even, in an empty file, and their colours if they have any
    of their own."""

    def __init__(self, file: IO[bytes], shots: Iterable[Shot], media: MediaInfo) -> None:
        self.width, self.height = media.width + media.width % 2, media.height + media.height % 2
        self._planes = self.width * self.height * 3 // 2
        self._colours: list[tuple[int, ...]] = []  # the shapes of those
        self._interlaced: list[bool] = []  # of each
        whole = Rect.of_size(media.width, media.height)
        self._siting = SITINGS[0]
        self._like = self._blank()
        self._file = file
        for shot in shots:
            if not self._interlaced:
                self._siting = shot.siting
                self._like = self._blank()
            cut_out(shot.picture, whole, self._like)
            copy_colors(shot.picture, self._like)
            self._colours = [one.shape for one in shot.colours]
            self._interlaced.append(shot.is_interlaced)
            try:
                planes = plane_bytes(self._like)
                file.writelines(np.ascontiguousarray(one).data for one in (*planes, *shot.colours))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise NoSpaceError(
                    f"the disk is full: {tempfile.gettempdir()} has no room for the pictures of a "
                    "segment",
                    hint="set TMPDIR to a folder with more",
                ) from error

    def _blank(self) -> av.VideoFrame:
        return blank(self.width, self.height, _FORMAT, self._siting, interlaced=False)

    def parts(self, rect: Rect) -> Iterator[Planes]:
        """A part of each picture, all of whose edges are even."""
        for samples, _ in self._stored():
            yield np.concatenate([plane.ravel() for plane in self._cut(samples, rect)])

    def shots(self, rect: Rect) -> Iterator[Shot]:
        """The same, as pictures of their own."""
        for (samples, colours), interlaced in zip(self._stored(), self._interlaced, strict=True):
            picture = blank_like(self._like, rect.width, rect.height)
            for plane, part in zip(plane_samples(picture), self._cut(samples, rect), strict=True):
                plane[...] = part
            yield Shot(self._like, colours, interlaced, self._siting).part(rect, picture)

    def _stored(self) -> Iterator[tuple[Planes, list[Planes]]]:
        """The planes of each picture, flat, and its colours."""
        self._file.seek(0)
        while data := self._file.read(self._planes):
            colours = [
                np.frombuffer(self._file.read(math.prod(shape)), np.uint8).reshape(shape)
                for shape in self._colours
            ]
            yield np.frombuffer(data, np.uint8), colours

    def _cut(self, samples: Planes, rect: Rect) -> list[Planes]:
        luma, chroma = self.width * self.height, self.width * self.height // 4
        planes = (
            samples[:luma].reshape(self.height, self.width),
            samples[luma : luma + chroma].reshape(self.height // 2, self.width // 2),
            samples[luma + chroma :].reshape(self.height // 2, self.width // 2),
        )
        return [
            plane[rect.y1 // part : rect.y2 // part, rect.x1 // part : rect.x2 // part]
            for plane, part in zip(planes, (1, 2, 2), strict=True)
        ]
