"""Decoders of cells.

`cell_decoder` returns the decoder that a cell needs; `CellDecoder` is their common interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import av
from av.error import FFmpegError

from vfsd.codecs.cells.lossless import LosslessCellDecoder
from vfsd.codecs.cells.pack import PackedCell
from vfsd.codecs.frames.color import SitingSetter
from vfsd.codecs.pyav import decode, numbered_packet, strict_decoder
from vfsd.errors import IntegrityError
from vfsd.tiling.cost import LOSSLESS


class CellDecoder(Protocol):
    """Decodes cells of one kind, one after the other. Not thread-safe."""

    fed: int  #: packets of the current cell that were fed or skipped

    def fits(self, cell: PackedCell) -> bool:
        """Return whether it can also decode that cell."""

    def restart(self, cell: PackedCell) -> None:
        """Prepare for the first packet of a cell that it fits."""

    def first_packet(self, number: int) -> int:
        """Return the last packet at or before picture `number` that decodes without others."""

    def skip(self, number: int) -> None:
        """Count packets as fed that picture `number` of the cell does not need.

        Pictures that the decoder holds back are lost; see `drain`.
        """

    def decode(self, payload: memoryview) -> list[tuple[int, av.VideoFrame]]:
        """Decode the next packet; return (number in the cell, picture) for each result.

        Pictures are valid until the next packet. Raises `IntegrityError` for a damaged one.
        """

    def drain(self) -> list[tuple[int, av.VideoFrame]]:
        """Return the delayed pictures, and restart the decoder.

        Raises `IntegrityError` as `decode` does.
        """


def cell_decoder(cell: PackedCell) -> CellDecoder:
    """Return a decoder before the first packet of `cell`.

    Raises `IntegrityError` for an invalid cell.
    """
    if cell.codec not in _DECODERS:
        raise IntegrityError(
            f"codec of a tile must be one of {', '.join(_DECODERS)}, got {cell.codec[:20]!r}"
        )
    return _DECODERS[cell.codec](cell)


class StreamCellDecoder:
    """A `CellDecoder` for codecs that FFmpeg decodes."""

    def __init__(self, cell: PackedCell) -> None:
        self._cell = cell
        self._context = strict_decoder(cell.codec, cell.extradata)
        self._is_fresh = True
        self._sited: list[SitingSetter] = []  # one for each picture of a packet
        self.fed = 0

    def fits(self, cell: PackedCell) -> bool:
        own = self._cell
        return (own.codec, own.width, own.height, own.extradata) == (
            cell.codec,
            cell.width,
            cell.height,
            cell.extradata,
        )

    def restart(self, cell: PackedCell) -> None:
        self._cell = cell
        if not self._is_fresh:
            self._context.flush_buffers()
        self.fed = 0

    def first_packet(self, number: int) -> int:
        return self._cell.key_before(number)

    def skip(self, number: int) -> None:
        key = self.first_packet(number)
        if key > self.fed:
            self.restart(self._cell)
            self.fed = key

    def decode(self, payload: memoryview) -> list[tuple[int, av.VideoFrame]]:
        self._is_fresh = False
        number, self.fed = self.fed, self.fed + 1
        try:
            pictures = decode(self._context, numbered_packet(number, payload))
        except FFmpegError as error:
            raise IntegrityError(f"packet {number} of a tile is damaged") from error
        return self._numbered(pictures)

    def drain(self) -> list[tuple[int, av.VideoFrame]]:
        try:
            left = decode(self._context, None)
        except FFmpegError as error:  # an empty packet drained it before
            raise IntegrityError("the last packets of a tile are damaged") from error
        pictures = self._numbered(left)
        self.restart(self._cell)
        return pictures

    def _numbered(self, pictures: Sequence[av.VideoFrame]) -> list[tuple[int, av.VideoFrame]]:
        siting = self._cell.siting
        if siting is not None:
            if any(one.siting != siting for one in self._sited):
                self._sited.clear()
            while len(self._sited) < len(pictures):
                self._sited.append(SitingSetter(siting))
            pictures = [
                one.convert(picture) for one, picture in zip(self._sited, pictures, strict=False)
            ]
        return [(picture.pts or 0, picture) for picture in pictures]


# Decoders by the codec of the cell.
_DECODERS: Mapping[str, Callable[[PackedCell], CellDecoder]] = MappingProxyType(
    {
        LOSSLESS: LosslessCellDecoder,
        **dict.fromkeys(("h264", "hevc", "vp9", "av1"), StreamCellDecoder),
    }
)
