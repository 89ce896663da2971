"""What views of a video are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo, PhysicalVideo, Segment, Sound
from vfsd.disk.checksummed_file import StoredFile
from vfsd.read.context import Tools
from vfsd.read.plan import Tiles
from vfsd.read.tile_planner import Costs
from vfsd.storage.context import Parts
from vfsd.tiling import meet
from vfsd.views.convert import PictureConverter


@dataclass(frozen=True)
class Footage:
    """A stored encoding, and where its bytes are."""

    digest: str  #: blake3 of the logical file, hexadecimal
    physical: PhysicalVideo
    table: FrameTable
    path: StoredFile
    tiles: Tiles | None = None  #: what pictures may come from besides
    sound: tuple[Sound, FrameTable] | None = None  #: as `Catalog.sound` has it
    damage: tuple[range, ...] = ()  #: bytes of the file that are known to be damaged

    def of_quality(self, psnr: float) -> Footage:
        """The same, for who asks for so many dB; infinite: no tiles are taken."""
        if self.tiles is None or psnr == math.inf:
            return replace(self, tiles=None)
        return replace(self, tiles=self.tiles.asking(psnr))

    def serving(self, wanted: PictureConverter, frames: range) -> Footage:
        """The same, without tiles that are of no use for what is `wanted` of those frames."""
        if self.tiles is None:
            return self
        good = self.tiles.good_for(wanted.form, self.physical)

        def serves(segment: Segment) -> bool:
            area = wanted.needed_of(*segment.picture)
            if area is None or not meet(segment.frames, frames):
                return False
            tiles = segment.layout.covering(area)
            return segment.holds(tiles) and good(segment, tiles)

        kept = [segment for segment in self.tiles.segments if serves(segment)]
        return replace(self, tiles=replace(self.tiles, segments=kept))

    @property
    def key(self) -> str:
        """Stands for the bytes and for what is known of them, which a full decode may correct."""
        known = self.physical
        tiles = []
        if self.tiles is not None and self.tiles.stored:
            # Other tiles, or the original in their place, are other pixels.
            numbers = [segment.id for segment in self.tiles.stored]
            tiles = [numbers, sorted(self.tiles.costs.by_name.items())]
            tiles += [self.tiles.luma, self.tiles.psnr, known.cost_factor]
            tiles += self.tiles.unreadable
        sound = self.sound[0].packets if self.sound is not None else None
        return "/".join(
            str(part)
            for part in (
                self.digest,
                known.media.stream_index,
                sound,
                known.frames,
                known.packets,
                known.first_pts,
                known.end_pts,
                known.verified,
                known.damage,
                known.media.rotation,
                known.media.mirrored,
                *sorted((known.media.marks or {}).items()),
                known.media.crop,
                *tiles,
                *self.damage,
            )
        )


def footage_of(parts: Parts, tools: Tools, info: LogicalVideo) -> Footage:
    """What views of a video are made from."""
    original = info.original
    table = parts.catalog.frame_table(original)
    tiles = tiles_of(parts, tools, info)
    sound = parts.catalog.sound(original)
    damage = parts.catalog.damaged_bytes(original)
    return Footage(info.digest, original, table, parts.file_of(original), tiles, sound, damage)


def tiles_of(parts: Parts, tools: Tools, info: LogicalVideo) -> Tiles:
    """As other processes choose them, too: not by what reads have taken in this one."""
    tiles = tools.sources.of(info, float(parts.settings.minimum_psnr))
    return replace(tiles, costs=Costs(tiles.costs.by_name))
