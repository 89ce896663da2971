"""The cells of a segment, from its pictures: how each tile codec goes about it.

Whatever the codec, cells are the same thing: a stream that decodes alone, with one packet a
picture, which has been decoded and measured before anybody gets to see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

import av

from vfsd.codecs.hevc_tiles import STITCHABLE
from vfsd.codecs.pack import CellStream
from vfsd.codecs.stitchable import encode_stitchable
from vfsd.codecs.tiles import CellEncoder, TileCodec
from vfsd.model import MediaInfo
from vfsd.tiling import Rect

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
    encoder: SegmentEncoder = _one_by_one
    if codec.name == STITCHABLE:
        encoder = encode_stitchable
    return encoder(codec, media, tiles, pictures)


def _one_by_one(
    codec: TileCodec,
    media: MediaInfo,
    tiles: Mapping[Rect, int],
    pictures: Iterable[av.VideoFrame],
) -> list[EncodedCell]:
    """Every tile by an encoder of its own."""
    encoders = [CellEncoder(codec, media, rect, quality) for rect, quality in tiles.items()]
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
