"""What-if: what a read would cost in layouts that do not exist.

As TASM's what-if interface does, and with the bytes that such tiles would have, as far as they can
be told beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vfsd.codecs.cells.tile_codecs import TILE_CODECS
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import Cell, PhysicalVideo, Segment
from vfsd.derive.tile_spec import PlannedSegment, TileSettings
from vfsd.read.tile_planner import Costs, TileRun, choose_tiles, in_full_size, original_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import Work

_BYTES_OF_ORIGINAL = {"fast": 1.9, "small": 0.6, "stitchable": 1.3, "lossless": 26}
"""How many times as many bytes as the original tiles have, where the video has none yet.

For `fast` the median of 37 filmed clips of 270x480 to 3840x2160 in 3x3 tiles of 40 dB; half of them
lie between 1.3 and 2.6.  `small` and `stitchable` stand to it as they do for the same pictures.
For `lossless` the median of seven clips, of which the least have 5 and the most 155 times as many.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a read would take."""

    seconds: float  #: CPU time of decoding, each part from where it is cheapest
    untiled_seconds: float  #: all of it from the original
    work: Work  #: on tiles
    untiled: Work  #: on the original, were all of it read from there

    @property
    def gain(self) -> float:
        """The share of the time that is saved: 0 to 1."""
        return 1 - self.seconds / self.untiled_seconds if self.untiled_seconds else 0.0


def estimate(
    frames: Ints,
    needed: Rect,
    physical: PhysicalVideo,
    table: FrameTable,
    planned: Sequence[PlannedSegment],
    costs: Costs,
    *,
    settings: TileSettings,
    known: Sequence[Segment] = (),
) -> Estimate:
    """Reading `needed`, of the stored pictures, of `frames`, had `planned` been made.

    `known` are segments that there are: tiles to be made are taken to have as many bytes for each
    pixel as they.
    """
    wanted = sorted(set(frames.tolist()))
    untiled = original_work(physical, table, wanted)
    density = bytes_per_pixel(settings.codec, known, untiled.bytes / max(1, untiled.pixels))
    segments = [_imagined(number, plan, settings, density) for number, plan in enumerate(planned)]
    runs = choose_tiles(
        frames,
        in_full_size(physical.media, needed),
        physical,
        table,
        segments,
        costs,
        good=lambda *_: True,
    )
    tiled = {frame for run in runs for frame in run.frames}
    rest = [frame for frame in wanted if frame not in tiled]
    rule = costs.of_original(physical)
    seconds = rule.seconds(original_work(physical, table, rest)) + sum(
        costs.seconds_of_tiles(run.segment, run.work, together=len(run.tiles)) for run in runs
    )
    return Estimate(seconds, rule.seconds(untiled), _work(runs), untiled)


def bytes_per_pixel(codec: str, known: Sequence[Segment], original: float) -> float:
    """Of tiles of that tile codec: as those of `known` have.

    Where there are none, by what the `original` has.
    """
    like = [segment for segment in known if segment.profile == codec]
    if not like:
        return _BYTES_OF_ORIGINAL[codec] * original
    pixels = sum(cell.rect.area * len(segment.frames) for segment in like for cell in segment.cells)
    return sum(segment.size for segment in like) / pixels


def _imagined(number: int, plan: PlannedSegment, settings: TileSettings, density: float) -> Segment:
    count = len(plan.frames)
    quality = settings.quality
    if quality is None:
        quality = TILE_CODECS[settings.codec].quality
    rects = {tile: plan.layout.tile(tile) for tile in plan.stored}
    cells = tuple(
        Cell(tile, rect, 0, round(density * rect.area * count), quality, settings.psnr)
        for tile, rect in rects.items()
    )
    return Segment(
        id=-1 - number,
        physical_id=-1,
        original_id=0,
        first_frame=plan.frames.start,
        end_frame=plan.frames.stop,
        layout=plan.layout,
        profile=settings.codec,
        object_key="",
        size=sum(cell.size for cell in cells),
        psnr=settings.psnr,
        created_ns=0,
        retired_ns=None,
        cells=cells,
    )


def _work(runs: Sequence[TileRun]) -> Work:
    total = Work()
    for run in runs:
        total += run.work
    return total
