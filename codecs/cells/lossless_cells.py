"""Cells whose pictures are kept to the bit: made, decoded, and compressed harder later.

Their `extradata` is JSON: "pixels", the format of the samples, "siting", where chroma lies among
luma (`vfsd.codecs.frames.chroma_location`), and "alone", the numbers of the packets that show their
picture without the one before; 0 is among them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

import av
import numpy as np

from vfsd.codecs.cells.lossless import (
    PIXEL_FORMATS,
    PicturePacker,
    PictureUnpacker,
    stands_alone,
)
from vfsd.codecs.cells.pack import CellStream, PackedCell
from vfsd.codecs.frames.chroma_location import SITINGS, blank_like, means_like
from vfsd.codecs.frames.compose import cut_out
from vfsd.codecs.frames.planes import copy_colors, has_luma, plane_bytes
from vfsd.codecs.frames.quality import DirectColours, Shot, Squares, Tally, colour_square
from vfsd.core.likeness import Likeness
from vfsd.core.model import MediaInfo
from vfsd.errors import IntegrityError, UsageError
from vfsd.tiling import Rect
from vfsd.tiling.cost import LOSSLESS


class LosslessCellEncoder:
    """Makes one cell from the pictures of a segment; `level` is that of a `PicturePacker`.

    Raises `UsageError` for a level or pictures that it does not take, `IntegrityError` when what
    it made does not come back to the bit.
    """

    def __init__(self, media: MediaInfo, rect: Rect, level: int) -> None:
        self._rect = rect
        self._format = media.pixel_format
        # As the cells of other codecs are: whoever reads them need not know the difference.
        width, height = rect.width + rect.width % 2, rect.height + rect.height % 2
        self._size = (width, height)
        self._level = level
        self._tile: av.VideoFrame | None = None
        self._stream: _CheckedStream | None = None
        seen = (rect.width, rect.height)
        self._shown = DirectColours(replace(media, width=seen[0], height=seen[1]), *seen)
        self._tally = Tally()
        self._is_scaled = False

    def put(self, shot: Shot) -> None:
        """The next picture of the segment, as a whole."""
        picture = shot.picture
        if picture.format.name != self._format:
            raise UsageError(
                f"pictures change from {self._format} to {picture.format.name}",
                hint="take another tile codec",
            )
        tile, stream = self._tile, self._stream
        if tile is None or not means_like(tile, picture):
            tile = self._tile = blank_like(picture, *self._size)
        if stream is None:
            form = (*self._size, self._format, shot.siting)
            stream = self._stream = _CheckedStream(*form, self._level)
        cut_out(picture, self._rect, tile)
        copy_colors(picture, tile)
        stream.put(tile)
        if shot.colours:
            self._is_scaled = True
            square = colour_square(shot.part(self._rect, tile).colours, self._shown.of(tile))
            self._tally.add(Squares(colour=square))

    def finish(self) -> tuple[CellStream, Likeness]:
        """The cell, and what it has against its pictures: all but for colours of scaled ones."""
        if self._stream is None or self._tile is None:
            raise IntegrityError("a tile has no pictures")
        likeness = self._tally.likeness
        if self._is_scaled and not has_luma(self._tile.format.name):
            likeness = replace(likeness, gray=0.0)  # it is made of colours, in another way
        return self._stream.finish(), likeness

    def abandon(self) -> None:
        """No more pictures will come, and nobody wants the cell."""


def recompressed(cell: PackedCell, packets: Iterable[memoryview], level: int) -> CellStream:
    """A lossless cell with the same pictures, compressed at another level.

    Raises `UsageError`, and `IntegrityError` for damaged packets, and when what was made does not
    come back to the bit.
    """
    decoder = LosslessCellDecoder(cell)
    stream = _CheckedStream(cell.width, cell.height, decoder.pixel_format, decoder.siting, level)
    for packet in packets:
        ((_, picture),) = decoder.decode(packet)
        stream.put(picture)
    return stream.finish()


class LosslessCellDecoder:
    """A `vfsd.codecs.cells.cell_decoders.CellDecoder` for lossless cells."""

    def __init__(self, cell: PackedCell) -> None:
        self.pixel_format, self.siting, self._alone = _described(cell)
        self._size = (cell.width, cell.height)
        self._unpacker = PictureUnpacker(*self._size, self.pixel_format, self.siting)
        self.fed = 0

    def fits(self, cell: PackedCell) -> bool:
        if cell.codec != LOSSLESS or (cell.width, cell.height) != self._size:
            return False
        return _described(cell)[:2] == (self.pixel_format, self.siting)

    def restart(self, cell: PackedCell) -> None:
        self._alone = _described(cell)[2]
        self._unpacker.restart()
        self.fed = 0

    def skip(self, number: int) -> None:
        nearest = self._alone[bisect_right(self._alone, number) - 1]
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


class _CheckedStream:
    """Packs pictures, and unpacks each again to compare."""

    def __init__(self, width: int, height: int, pixel_format: str, siting: str, level: int) -> None:
        self._size = (width, height)
        self._told = {"pixels": pixel_format, "siting": siting}
        self._packer = PicturePacker(level)
        self._unpacker = PictureUnpacker(width, height, pixel_format, siting)
        self._packets: list[bytes] = []

    def put(self, picture: av.VideoFrame) -> None:
        packet = self._packer.pack(picture)
        again = self._unpacker.unpack(memoryview(packet))
        for given, came in zip(plane_bytes(picture), plane_bytes(again), strict=True):
            if not np.array_equal(given, came):
                raise IntegrityError(f"picture {len(self._packets)} of a tile came out changed")
        self._packets.append(packet)

    def finish(self) -> CellStream:
        alone = [number for number, packet in enumerate(self._packets) if stands_alone(packet)]
        described = {**self._told, "alone": alone}
        extradata = json.dumps(described, separators=(",", ":")).encode()
        return CellStream(LOSSLESS, *self._size, extradata, self._packets)


def _described(cell: PackedCell) -> tuple[str, str, Sequence[int]]:
    """The format of the samples, where chroma lies, and the packets that stand alone, from 0."""
    try:
        told = json.loads(cell.extradata)
        pixel_format, siting, alone = told["pixels"], told["siting"], told["alone"]
        is_known = pixel_format in PIXEL_FORMATS and siting in SITINGS
        if not is_known or alone[0] != 0 or sorted(alone) != alone:
            raise ValueError("what it says cannot be")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise IntegrityError(f"a lossless tile is damaged: {error}") from error
    return pixel_format, siting, alone
