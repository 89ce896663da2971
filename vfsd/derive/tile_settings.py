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
    """Frames that are to get a layout of the stored picture, and which of its tiles are stored.

    Other tiles are read from the original.  Raises `UsageError` for tiles outside the layout, and
    for no tiles.
    """

    frames: range
    layout: TileLayout
    tiles: tuple[int, ...] | None = None  #: to be stored, ascending; None for all

    def __post_init__(self) -> None:
        if self.tiles is None:
            return
        tiles = tuple(sorted(set(self.tiles)))
        if not tiles:
            raise UsageError(f"at least one tile of {self.layout} must be stored")
        if not 0 <= tiles[0] <= tiles[-1] < self.layout.count:
            raise UsageError(
                f"tile {tiles[-1]} does not exist: {self.layout} has {self.layout.count} tiles"
            )
        # Normalise all tiles to None, so that equal plans compare equal.
        object.__setattr__(self, "tiles", None if len(tiles) == self.layout.count else tiles)

    @property
    def stored(self) -> tuple[int, ...]:
        """The tiles to be stored, ascending."""
        return tuple(range(self.layout.count)) if self.tiles is None else self.tiles

    def whole(self) -> PlannedSegment:
        """Return the same layout with all of its tiles."""
        return replace(self, tiles=None)


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How cells are encoded.  Raises `UsageError` for an invalid PSNR or quality."""

    codec: str = "fast"  #: name of the tile codec
    psnr: float = 40.0  #: minimum luma dB of every cell, unless `quality` is set
    quality: int | None = None  #: a fixed rate factor for all cells; for `lossless`, the level

    def __post_init__(self) -> None:
        object.__setattr__(self, "psnr", decibels(self.psnr))
        if self.quality is not None:
            object.__setattr__(self, "quality", whole_number(self.quality, "quality"))

    def parameters(self, codec: TileCodec) -> dict[str, object]:
        """Return the stored parameters; tiles with equal parameters are interchangeable."""
        if codec.is_lossless:
            return {"profile": codec.name}  # the level may change later without changing pixels
        aim = {"psnr": self.psnr} if self.quality is None else {"quality": self.quality}
        return {"profile": codec.name, **aim}


MAX_CRF_TRIES = 6
"""Maximum number of encodes of a cell."""
_PSNR_MARGIN = 1.5
"""With more than this many dB above the minimum, the next cell is encoded coarser, to keep half of
it."""
_MAX_CRF_STEP = 6.0
"""Maximum dB of one step to a coarser quality, because the content may change."""


class CrfMemory:
    """Finds the rate factors of cells with the same settings.  Thread-safe."""

    def __init__(self, codec: TileCodec, settings: TileSettings) -> None:
        self._codec = codec
        self._settings = settings
        self.aim = settings.psnr  #: dB that a cell needs; subclasses may raise it
        self._start: dict[Hashable, int] = {}  # last rate factor of each cell

    def first(self, cell: Hashable) -> int:
        """Return the initial rate factor of a cell, identified by its position."""
        if self._settings.quality is not None:
            return self._settings.quality
        return self._start.get(cell, self._codec.quality)

    def next(self, quality: int, psnr: float) -> int | None:
        """Return the next rate factor after `quality` gave `psnr`, or None if there is no need or
        no finer one.
        """
        if self._settings.quality is not None or psnr >= min(self.aim, LOSSLESS_PSNR):
            return None
        if quality <= self._codec.finest:
            return None
        steps = (self.aim - psnr) / self._codec.decibels
        return max(self._codec.finest, quality - max(1, round(steps)))

    def note(self, cell: Hashable, used: int, psnr: float) -> None:
        """Remember the rate factor for the same cell of the next segment."""
        spare = psnr - self.aim
        excess = min(spare - _PSNR_MARGIN / 2, _MAX_CRF_STEP) if spare > _PSNR_MARGIN else 0.0
        coarser = int(excess / self._codec.decibels)
        self._start[cell] = min(used + coarser, self._codec.coarsest)
