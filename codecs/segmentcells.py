"""The cells of a segment, from its pictures: how each tile codec goes about it.

Whatever the codec, cells are the same thing: a stream that decodes alone, with one packet a
picture, which has been decoded and measured before anybody gets to see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Protocol

import av

from vfsd.codecs.hevc_tiles import STITCHABLE
from vfsd.codecs.losslesscells import LosslessCellEncoder
from vfsd.codecs.pack import CellStream
from vfsd.codecs.stitchable import encode_stitchable
from vfsd.codecs.tiles import CellEncoder, TileCodec
from vfsd.model import MediaInfo
from vfsd.tiling import Rect
from vfsd.tiling.cost import LOSSLESS

_HELD_SAMPLES = 32 << 20
"""Luma samples of pictures that one encoder is given before it is the next one's turn: with what
an encoder works on still in the cores' caches, sixteen tiles take a tenth less time."""

EncodedCell = tuple[CellStream, float]
"""A cell, and the PSNR of its luma in dB."""


class SegmentEncoder(Protocol):
    def __call__(
        self,
        codec: TileCodec,
        media: MediaInfo,
        tiles: Mapping[Rect, int],
        pictures: Iterable[av.VideoFrame],
    ) -> list[EncodedCell]:
        """The cells of `tiles`, each with its quality, in their order.

        `pictures` are whole pictures of `media`, and are looked at once.  Raises `UsageError`
        where the encoder refuses, `IntegrityError` when packets do not decode, one by one, to the
        pictures that they were made from.
        """


def encode_cells(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    pictures: Iterable[av.VideoFrame],
) -> list[EncodedCell]:
    """As `SegmentEncoder`, with the one that the codec needs."""
    return _ENCODERS.get(codec.name, _compressed)(codec, media, tiles, pictures)


class _OneCell(Protocol):
    """Encodes one cell of a segment."""

    def put(self, picture: av.VideoFrame) -> None:
        """The next picture of the segment, as a whole."""

    def finish(self) -> EncodedCell:
        """That was the last."""

    def abandon(self) -> None:
        """No more pictures will come, and nobody wants the cell."""


def _compressed(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    pictures: Iterable[av.VideoFrame],
) -> list[EncodedCell]:
    encoders = [CellEncoder(codec, media, rect, quality) for rect, quality in tiles.items()]
    return _one_by_one(encoders, media, pictures)


def _lossless(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    pictures: Iterable[av.VideoFrame],
) -> list[EncodedCell]:
    encoders = [LosslessCellEncoder(media, rect, level) for rect, level in tiles.items()]
    return _one_by_one(encoders, media, pictures)


def _one_by_one(
    encoders: Sequence[_OneCell], media: MediaInfo, pictures: Iterable[av.VideoFrame]
) -> list[EncodedCell]:
    """Every tile by an encoder of its own."""
    left = iter(pictures)
    together = max(1, _HELD_SAMPLES // (media.width * media.height))
    try:
        while some := list(islice(left, together)):
            for encoder in encoders:
                for picture in some:
                    encoder.put(picture)
    except BaseException:
        for encoder in encoders:
            encoder.abandon()
        raise
    return [encoder.finish() for encoder in encoders]


_ENCODERS: Mapping[str, SegmentEncoder] = MappingProxyType(
    {STITCHABLE: encode_stitchable, LOSSLESS: _lossless}
)
"""By name of the tile codec, where it is not FFmpeg that encodes each tile."""
