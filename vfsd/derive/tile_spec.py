"""What is to be tiled, and how: the layouts that `vfsd.derive.retile` is told to make."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vfsd.codecs.cells.tile_codecs import TileCodec
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
