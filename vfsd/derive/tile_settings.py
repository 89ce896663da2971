"""What to tile and how to encode it: `PlannedSegment` and `TileSettings`.

`CrfMemory` finds the CRF that reaches the requested PSNR, and remembers it for the next cells with
the same settings.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from vfsd.codecs.cells.tile_codecs import TileCodec
from vfsd.core.psnr import LOSSLESS_PSNR
from vfsd.errors import UsageError
from vfsd.tiling import TileLayout
from vfsd.validation import decibels, whole_number


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """Frames that are to have a layout, of the stored picture, and which of its tiles.

    What lies in tiles that are not stored is read from the original.  Raises `UsageError` for
    tiles that the layout does not have, and for none.
    """

    frames: range
    layout: TileLayout
    tiles: tuple[int, ...] | None = None  #: those to be stored, ascending; None: all

    def __post_init__(self) -> None:
        if self.tiles is None:
            return
        tiles = tuple(sorted(set(self.tiles)))
        if not tiles:
            raise UsageError(f"no tile of {self.layout} is to be stored")
        if not 0 <= tiles[0] <= tiles[-1] < self.layout.count:
            raise UsageError(
                f"tile {tiles[-1]} does not exist: {self.layout} has {self.layout.count}"
            )
        # All of them are the same as None, so that equal plans are equal.
        object.__setattr__(self, "tiles", None if len(tiles) == self.layout.count else tiles)

    @property
    def stored(self) -> tuple[int, ...]:
        """The tiles that are to be stored, ascending."""
        return tuple(range(self.layout.count)) if self.tiles is None else self.tiles

    def whole(self) -> PlannedSegment:
        """The same layout with all of its tiles."""
        return replace(self, tiles=None)


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How cells are encoded.  Raises `UsageError` for a PSNR or a quality that is no number."""

    codec: str = "fast"  #: name of the tile codec
    psnr: float = 40.0  #: dB of luma that every cell has at least, if `quality` is None
    quality: int | None = None  #: one rate factor for all cells instead; of `lossless`, the level

    def __post_init__(self) -> None:
        object.__setattr__(self, "psnr", decibels(self.psnr))
        if self.quality is not None:
            object.__setattr__(self, "quality", whole_number(self.quality, "quality"))

    def parameters(self, codec: TileCodec) -> dict[str, object]:
        """What is noted of it, and has to be equal for tiles to be the same."""
        if codec.is_lossless:
            return {"profile": codec.name}  # the level may change later, the pixels are the same
        aim = {"psnr": self.psnr} if self.quality is None else {"quality": self.quality}
        return {"profile": codec.name, **aim}


MAX_CRF_TRIES = 6
"""How often a cell is encoded until it is good enough."""
_PSNR_MARGIN = 1.5
"""dB above what is wanted from which on the next cell is encoded coarser, to keep half as many."""
_MAX_CRF_STEP = 6.0
"""dB that are given up at once at most: the next cell may be of something else."""


class CrfMemory:
    """Of cells with the same settings.  Thread-safe."""

    def __init__(self, codec: TileCodec, settings: TileSettings) -> None:
        self._codec = codec
        self._settings = settings
        self.aim = settings.psnr  #: dB that a cell needs; others may need more of the next ones
        self._start: dict[Hashable, int] = {}  # what a cell had lately

    def first(self, cell: Hashable) -> int:
        """To begin with: a cell is known again by its place."""
        if self._settings.quality is not None:
            return self._settings.quality
        return self._start.get(cell, self._codec.quality)

    def next(self, quality: int, psnr: float) -> int | None:
        """What to try after this came to `psnr`; None: it is good enough, or as good as can be."""
        if self._settings.quality is not None or psnr >= min(self.aim, LOSSLESS_PSNR):
            return None
        if quality <= self._codec.finest:
            return None
        steps = (self.aim - psnr) / self._codec.decibels
        return max(self._codec.finest, quality - max(1, round(steps)))

    def note(self, cell: Hashable, used: int, psnr: float) -> None:
        """What this cell needed, the same one of the next segment will, too."""
        spare = psnr - self.aim
        excess = min(spare - _PSNR_MARGIN / 2, _MAX_CRF_STEP) if spare > _PSNR_MARGIN else 0.0
        coarser = int(excess / self._codec.decibels)
        self._start[cell] = min(used + coarser, self._codec.coarsest)
