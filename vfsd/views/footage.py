"""What views of a video are made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vfsd.frametable import FrameTable
from vfsd.model import PhysicalVideo, Sound
from vfsd.plan import Tiles


@dataclass(frozen=True)
class Footage:
    """A stored encoding, and where its bytes are."""

    digest: str  #: blake3 of the logical file, hexadecimal
    physical: PhysicalVideo
    table: FrameTable
    path: Path
    tiles: Tiles | None = None  #: what pictures may come from besides
    sound: tuple[Sound, FrameTable] | None = None  #: as `Catalog.sound` has it

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
        sound = self.sound[0].packets if self.sound is not None else None
        return "/".join(
            str(part)
            for part in (
                self.digest,
                sound,
                known.frames,
                known.packets,
                known.first_pts,
                known.end_pts,
                known.verified,
                *tiles,
            )
        )
