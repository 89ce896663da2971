"""Decoders of cells: `cell_decoder` picks the one that a cell needs, and `CellDecoder` is what all
of them offer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import av
from av.error import FFmpegError

from vfsd.codecs.cells.lossless import LosslessCellDecoder
from vfsd.codecs.cells.pack import PackedCell
from vfsd.codecs.decoding.decoder_context import numbered_packet, strict_decoder
from vfsd.codecs.frames.chroma_siting import SitingSetter
from vfsd.codecs.pyav import decode
from vfsd.errors import IntegrityError
from vfsd.tiling.cost import LOSSLESS


class CellDecoder(Protocol):
    """A decoder for cells of one kind, one after the other.  Not thread-safe."""

    fed: int  #: packets of the present cell that need not be fed any more; 0: none

    def fits(self, cell: PackedCell) -> bool:
        """Whether it can decode that cell, too."""

    def restart(self, cell: PackedCell) -> None:
        """Make ready for the first packet of a cell that it fits."""

    def skip(self, number: int) -> None:
        """Count as fed what need not be, before picture `number` of the cell can be shown."""

    def decode(self, payload: memoryview) -> list[tuple[int, av.VideoFrame]]:
        """(number in the cell, picture) of what comes out with the next packet.

        Pictures are valid until the next packet.  Raises `IntegrityError` for a damaged one.
        """

    def drain(self) -> list[tuple[int, av.VideoFrame]]:
        """What it still holds back; it has to be restarted afterwards, and is.

        Raises as `decode`.
        """


def cell_decoder(cell: PackedCell) -> CellDecoder:
    """A decoder that stands before the first packet of `cell`.

    Raises `IntegrityError` for a cell that says of itself what cannot be.
    """
    if cell.codec not in _DECODERS:
        raise IntegrityError(f"a tile says that it is {cell.codec[:20]!r}, which no tile is")
    return _DECODERS[cell.codec](cell)


class StreamCellDecoder:
    """A `CellDecoder` for what FFmpeg decodes."""

    def __init__(self, cell: PackedCell) -> None:
        self._cell = cell
        self._context = strict_decoder(cell.codec, cell.extradata)
        self._is_fresh = True
        self._sited: list[SitingSetter] = []  # as many as pictures have come at once
        self.fed = 0

    def fits(self, cell: PackedCell) -> bool:
        mine = self._cell
        return (mine.codec, mine.width, mine.height, mine.extradata) == (
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

    def skip(self, number: int) -> None:
        """Nothing: the only key packet is the first."""

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
        except FFmpegError as error:  # an empty packet has drained it before
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


_DECODERS: Mapping[str, Callable[[PackedCell], CellDecoder]] = MappingProxyType(
    {
        LOSSLESS: LosslessCellDecoder,
        **dict.fromkeys(("h264", "hevc", "vp9", "av1"), StreamCellDecoder),
    }
)
"""By codec of the cell."""
