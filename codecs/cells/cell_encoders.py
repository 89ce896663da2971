"""Encodes all cells of a segment from its pictures.

Each tile has an encoder of its own. Stitchable tiles come from one run of kvazaar over the whole
picture.
"""

from __future__ import annotations

import errno
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise
from typing import IO, Protocol

import av
import numpy as np
import numpy.typing as npt

from vfsd.codecs.cells.lossless import LosslessCellEncoder
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tile_codecs import CellEncoder, TileCodec, verified_likeness
from vfsd.codecs.containers.muxers import with_start_codes
from vfsd.codecs.encoding.encoder import NOMINAL_RATE, EncoderSettings
from vfsd.codecs.frames.chroma_siting import SITINGS, blank, blank_like
from vfsd.codecs.frames.color import ColorNormalizer
from vfsd.codecs.frames.frame_transforms import cut_out
from vfsd.codecs.frames.planes import copy_colors, plane_bytes, plane_samples
from vfsd.codecs.frames.quality import SitedFrameComparer, SourcePicture
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE, TileStream
from vfsd.codecs.stitching.kvazaar import encode_tile, encode_tiled
from vfsd.core.model import MediaInfo
from vfsd.core.psnr import PsnrFigures
from vfsd.errors import NoSpaceError, UsageError
from vfsd.tiling import Rect
from vfsd.tiling.cost import LOSSLESS

_FORMAT = "yuv420p"
_MAX_RATE = 1000

PlanarBytes = npt.NDArray[np.uint8]
"""Flat samples; those of a picture are luma and both chroma planes in sequence."""


def encode_stitchable(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    shots: Iterable[SourcePicture],
) -> list[tuple[CellStream, PsnrFigures]]:
    """Encode stitchable cells; see `encode_cells`.

    Tiles that cover the picture with one quality come from one run of kvazaar, others from a run
    each. The bytes are the same.
    """
    even = [_even_rect(rect) for rect in tiles]
    with tempfile.TemporaryFile() as file:
        stored = _PaddedPictures(file, shots, media)
        streams = _encoded_tiles(stored, media, dict(zip(even, tiles.values(), strict=True)))
        return [
            _measured_cell(codec, media, stored, rect, stream)
            for rect, stream in zip(tiles, streams, strict=True)
        ]


def _encoded_tiles(
    stored: _PaddedPictures, media: MediaInfo, tiles: Mapping[Rect, int]
) -> list[TileStream]:
    """Return the streams in the order of `tiles`."""
    whole, qualities = Rect.of_size(stored.width, stored.height), set(tiles.values())
    if len(qualities) == 1 and sum(rect.area for rect in tiles) == whole.area:
        settings = _tile_settings(media, whole, qualities.pop())
        widths = _edge_lengths({edge for rect in tiles for edge in (rect.x1, rect.x2)})
        heights = _edge_lengths({edge for rect in tiles for edge in (rect.y1, rect.y2)})
        found = encode_tiled(settings, widths, heights, stored.parts(whole))
        by_place = {stream.rect: stream for stream in found}
        return [by_place[rect] for rect in tiles]
    return [
        encode_tile(_tile_settings(media, rect, quality), stored.parts(rect), x=rect.x1, y=rect.y1)
        for rect, quality in tiles.items()
    ]


def _measured_cell(
    codec: TileCodec, media: MediaInfo, stored: _PaddedPictures, rect: Rect, stream: TileStream
) -> tuple[CellStream, PsnrFigures]:
    configuration = with_start_codes(stream.parameter_sets)
    comparer = SitedFrameComparer(media, rect.width, rect.height)
    shots = stored.shots(_even_rect(rect))
    likeness = verified_likeness(codec.codec, configuration, stream.pictures, shots, comparer)
    form = (codec.codec, _even_rect(rect).width, _even_rect(rect).height, configuration)
    return CellStream(*form, stream.pictures, comparer.siting), likeness


def _tile_settings(media: MediaInfo, rect: Rect, quality: int) -> EncoderSettings:
    """Return the encoder settings; equal for all tiles of a video except size and quality."""
    rate = media.average_rate or NOMINAL_RATE
    if not 0 < rate <= _MAX_RATE:
        rate = NOMINAL_RATE
    settings = EncoderSettings(
        codec="hevc",
        width=rect.width,
        height=rect.height,
        quality=quality,
        rate=rate.limit_denominator(1001),
        sample_aspect_ratio=_sample_aspect_ratio(media),
    )
    return settings.with_colors_of(media)


def _sample_aspect_ratio(media: MediaInfo) -> Fraction | None:
    ratio = media.sample_aspect_ratio
    return None if ratio is None or ratio == 1 or ratio <= 0 else ratio


def _even_rect(rect: Rect) -> Rect:
    """Return the rectangle with even sides. Only sides at the edges of the picture may be odd."""
    return Rect(rect.x1, rect.y1, rect.x2 + rect.x2 % 2, rect.y2 + rect.y2 % 2)


def _edge_lengths(edges: set[int]) -> list[int]:
    return [end - start for start, end in pairwise(sorted(edges))]


class _PaddedPictures:
    """The pictures of a segment in a temporary file, padded to even sizes, with their RGB
    if given.
    """

    def __init__(self, file: IO[bytes], shots: Iterable[SourcePicture], media: MediaInfo) -> None:
        self.width, self.height = media.width + media.width % 2, media.height + media.height % 2
        self._planes = self.width * self.height * 3 // 2
        self._colours: list[tuple[int, ...]] = []  # shapes of the RGB arrays
        self._interlaced: list[bool] = []  # flag of each picture
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
                    f"the disk is full: {tempfile.gettempdir()} cannot hold the pictures of a "
                    "segment",
                    hint="set TMPDIR to a directory with more space",
                ) from error

    def _blank(self) -> av.VideoFrame:
        return blank(self.width, self.height, _FORMAT, self._siting, interlaced=False)

    def parts(self, rect: Rect) -> Iterator[PlanarBytes]:
        """Yield a part of each picture; `rect` has even edges."""
        for samples, _ in self._stored():
            yield np.concatenate([plane.ravel() for plane in self._cut(samples, rect)])

    def shots(self, rect: Rect) -> Iterator[SourcePicture]:
        """Yield a part of each picture as a new picture."""
        for (samples, colours), interlaced in zip(self._stored(), self._interlaced, strict=True):
            picture = blank_like(self._like, rect.width, rect.height)
            for plane, part in zip(plane_samples(picture), self._cut(samples, rect), strict=True):
                plane[...] = part
            yield SourcePicture(self._like, colours, interlaced, self._siting).part(rect, picture)

    def _stored(self) -> Iterator[tuple[PlanarBytes, list[PlanarBytes]]]:
        """Yield the flat planes of each picture, and its RGB arrays."""
        self._file.seek(0)
        while data := self._file.read(self._planes):
            colours = [
                np.frombuffer(self._file.read(math.prod(shape)), np.uint8).reshape(shape)
                for shape in self._colours
            ]
            yield np.frombuffer(data, np.uint8), colours

    def _cut(self, samples: PlanarBytes, rect: Rect) -> list[PlanarBytes]:
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


_MAX_HELD_SAMPLES = 32 << 20
"""Luma samples of pictures that one encoder gets before the next encoder.

Its working set then stays in the caches: sixteen tiles take a tenth less time.
"""

EncodedCell = tuple[CellStream, PsnrFigures]
"""A cell and its PSNR figures."""


class _SegmentCellEncoder(Protocol):
    """Encodes one cell of a segment."""

    def put(self, shot: SourcePicture) -> None:
        """Add the next whole picture of the segment."""

    def finish(self) -> EncodedCell:
        """Return the cell, once all pictures were added."""

    def abandon(self) -> None:
        """Stop encoding and discard the cell."""


def encode_cells(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    shots: Iterable[SourcePicture],
    between: Callable[[], None] = lambda: None,
) -> list[EncodedCell]:
    """Return the cells of `tiles` with their measured quality, in order.

    Raises `UsageError` if the encoder refuses, or if a picture has another range or matrix than
    `media`, since cells have one. Raises `IntegrityError` unless each packet decodes to its
    picture.

    Args:
        codec: the tile codec
        media: description of the video
        tiles: quality by rectangle
        shots: whole pictures of `media`, iterated once
        between: called between pictures, while no new ones are taken; may raise to cancel
    """
    shots = _uniform_shots(shots, media)
    if codec.name == STITCHABLE:
        return encode_stitchable(codec, media, tiles, shots)
    if codec.name == LOSSLESS:
        exact = [LosslessCellEncoder(media, rect, level) for rect, level in tiles.items()]
        return _encode_separately(exact, media, shots, between)
    encoders = [CellEncoder(codec, media, rect, quality) for rect, quality in tiles.items()]
    return _encode_separately(encoders, media, shots, between)


def _uniform_shots(shots: Iterable[SourcePicture], media: MediaInfo) -> Iterator[SourcePicture]:
    settler, siting = ColorNormalizer(media), None
    for shot in shots:
        if not settler.is_normal(shot.picture):
            raise UsageError(
                "the range or the matrix of the pictures changes within the video, and tiles "
                "need a single one",
                hint="such a video can be read and viewed, but not tiled or rendered",
            )
        siting = siting or shot.siting  # all cells have that of the first picture
        yield replace(shot, known_siting=siting)


def _encode_separately(
    encoders: Sequence[_SegmentCellEncoder],
    media: MediaInfo,
    shots: Iterable[SourcePicture],
    between: Callable[[], None],
) -> list[EncodedCell]:
    """Encode every tile by an encoder of its own."""
    left = iter(shots)
    together = max(1, _MAX_HELD_SAMPLES // (media.width * media.height)) if len(encoders) > 1 else 1
    try:
        while some := list(islice(left, together)):
            for encoder in encoders:
                for shot in some:
                    between()
                    encoder.put(shot)
    except BaseException:
        for encoder in encoders:
            encoder.abandon()
        raise
    return [encoder.finish() for encoder in encoders]
