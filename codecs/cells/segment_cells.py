"""The cells of a segment, from its pictures: how each tile codec goes about it.

Whatever the codec, cells are the same thing: a stream that decodes alone, with one packet a
picture, which has been decoded and measured before anybody gets to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from vfsd.codecs.cells.kvazaar_cells import encode_stitchable
from vfsd.codecs.cells.lossless_cells import LosslessCellEncoder
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tile_codecs import CellEncoder, TileCodec
from vfsd.codecs.frames.color import ColorSettler
from vfsd.codecs.frames.quality import Shot
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.core.likeness import Likeness
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.tiling.cost import LOSSLESS

_HELD_SAMPLES = 32 << 20
"""Luma samples of pictures that one encoder is given before it is the next one's turn: with what
an encoder works on still in the cores' caches, sixteen tiles take a tenth less time."""

EncodedCell = tuple[CellStream, Likeness]
"""A cell, and what it has against its pictures."""


class _OneCell(Protocol):
    """Encodes one cell of a segment."""

    def put(self, shot: Shot) -> None:
        """The next picture of the segment, as a whole."""

    def finish(self) -> EncodedCell:
        """That was the last."""

    def abandon(self) -> None:
        """No more pictures will come, and nobody wants the cell."""


def encode_cells(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    shots: Iterable[Shot],
    between: Callable[[], None] = lambda: None,
) -> list[EncodedCell]:
    """The cells of `tiles`, each with its quality, in their order.

    `shots` are whole pictures of `media`, and are looked at once.  `between` is called now and
    then where none are asked for a while; it may raise.

    Raises `UsageError` where the encoder refuses, or pictures have another range of levels or
    another matrix than `media` (cells have one), `IntegrityError` when packets do not decode, one
    by one, to the pictures that they were made from.
    """
    shots = _of_one_kind(shots, media)
    if codec.name == STITCHABLE:
        return encode_stitchable(codec, media, tiles, shots)
    if codec.name == LOSSLESS:
        exact = [LosslessCellEncoder(media, rect, level) for rect, level in tiles.items()]
        return _one_by_one(exact, media, shots, between)
    encoders = [CellEncoder(codec, media, rect, quality) for rect, quality in tiles.items()]
    return _one_by_one(encoders, media, shots, between)


def _of_one_kind(shots: Iterable[Shot], media: MediaInfo) -> Iterator[Shot]:
    settler, siting = ColorSettler(media), None
    for shot in shots:
        if not settler.is_settled(shot.picture):
            raise UsageError(
                "the range of levels, or the matrix, of its pictures changes on the way, and tiles "
                "have one",
                hint="such a video can be read and viewed, but not tiled or rendered",
            )
        siting = siting or shot.siting  # that of the first, for all cells
        yield replace(shot, told_siting=siting)


def _one_by_one(
    encoders: Sequence[_OneCell],
    media: MediaInfo,
    shots: Iterable[Shot],
    between: Callable[[], None],
) -> list[EncodedCell]:
    """Every tile by an encoder of its own."""
    left = iter(shots)
    together = max(1, _HELD_SAMPLES // (media.width * media.height)) if len(encoders) > 1 else 1
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
