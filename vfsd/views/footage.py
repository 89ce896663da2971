"""What views of a video are made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vfsd.frametable import FrameTable
from vfsd.model import PhysicalVideo
from vfsd.plan import Tiles


@dataclass(frozen=True)
class Footage:
    """A stored encoding, and where its bytes are."""

    digest: str  #: blake3 of the logical file, hexadecimal
    physical: PhysicalVideo
    table: FrameTable
    path: Path
    tiles: Tiles | None = None  #: what pictures may come from besides

    @property
    def key(self) -> str:
        """Stands for the bytes and for what is known of them, which a full decode may correct."""
        known = self.physical
        tiles = []
        if self.tiles is not None and self.tiles.segments:
            # Other tiles, or the original in their place, are other pixels.
            numbers = [segment.id for segment in self.tiles.segments]
            tiles = [numbers, sorted(self.tiles.costs.by_name.items()), self.tiles.psnr]
            tiles.append(known.cost_factor)
        return "/".join(
            str(part)
            for part in (
                self.digest,
                known.frames,
                known.packets,
                known.first_pts,
                known.end_pts,
                known.verified,
                *tiles,
            )
        )
