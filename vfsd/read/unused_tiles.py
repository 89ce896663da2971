"""Which tiles a read could use and does not, and why.  Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Segment
from vfsd.read.plan import ReadPlan, Tiles
from vfsd.read.tile_planner import is_worth_it, original_work, tile_work


class Why(StrEnum):
    """Why tiles are not used."""

    SIZE = "size"
    """Pictures of the size that they were scaled to are of no use to the result."""
    MISSING = "missing"
    """Some that it needs are not stored."""
    QUALITY = "quality"
    """They may be less like the original than is asked for."""
    OTHERS = "others"
    """Other tiles cost less."""
    COST = "cost"
    """They cost no less than the original, or too little less for a prediction to be relied on."""
    TIME = "time"
    """They cost less than the original would alone, which is there no later all the same: several
    cores work at it, or it is decoded for the frames before anyway."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A segment of which frames are wanted that come from elsewhere."""

    segment: Segment
    frames: tuple[int, ...]  #: of the video, ascending: those that come from elsewhere
    tiles: tuple[int, ...]  #: of its layout, that show what is needed; none where `why` is SIZE
    why: Why
    psnr: float | None
    """dB that the result would have at least, 0 where nobody has measured it; of MISSING and SIZE
    None."""
    seconds: float | None  #: CPU time that they would take, predicted; None where `psnr` is
    original_seconds: float  #: that the original takes for the same frames alone

    @property
    def span(self) -> range:
        """From the first of its frames to after the last."""
        return range(self.frames[0], self.frames[-1] + 1)


def passed_over(plan: ReadPlan, table: FrameTable, tiles: Tiles | None) -> tuple[PassedOver, ...]:
    """What `plan`, which was made with `tiles`, leaves unused of them; by time."""
    if tiles is None or not len(plan.frames):
        return ()
    found = _unused(plan, table, tiles)
    return tuple(sorted(found, key=lambda one: (one.frames[0], one.segment.id)))


def _unused(plan: ReadPlan, table: FrameTable, tiles: Tiles) -> Iterator[PassedOver]:
    wanted = sorted(set(plan.frames.tolist()))
    from_tiles = {frame for run in plan.tiled for frame in run.frames}
    used: dict[int, set[int]] = {}
    for run in plan.tiled:
        used.setdefault(run.segment.id, set()).update(run.frames)
    own, needed = tiles.costs.of_original(plan.physical), plan.needed
    good = tiles.good_for(plan.form, plan.physical)
    for segment in tiles.stored:
        mine = used.get(segment.id, ())
        first = bisect_left(wanted, segment.first_frame)
        end = bisect_left(wanted, segment.end_frame, first)
        frames = tuple(frame for frame in wanted[first:end] if frame not in mine)
        if not frames:
            continue
        original = own.seconds(original_work(plan.physical, table, frames))
        area = needed(*segment.picture)
        covering = () if area is None else tuple(segment.layout.covering(area))
        if area is None or not segment.holds(covering):
            why = Why.SIZE if area is None else Why.MISSING
            yield PassedOver(segment, frames, covering, why, None, None, original)
            continue
        cells = [segment.cell(tile) for tile in covering]
        psnr = plan.form.psnr_of(cells, segment.picture)
        work = tile_work(segment, covering, frames[-1])
        seconds = tiles.costs.seconds_of_tiles(segment, work, together=len(covering))
        if not good(segment, covering):
            why = Why.QUALITY
        elif from_tiles.issuperset(frames):
            why = Why.OTHERS
        else:
            why = _dearer(seconds, original)
        yield PassedOver(segment, frames, covering, why, psnr, seconds, original)


def _dearer(tiled: float, original: float) -> Why:
    return Why.TIME if is_worth_it(tiled, original) else Why.COST
