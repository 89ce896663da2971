"""Turns a view request into a `ReadPlan`: which frames come from tiles, and which runs of the
original are decoded.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from vfsd.codecs.frames.to_array import RawPixelConverter
from vfsd.core.frame_selection import FrameTimes
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo, Segment
from vfsd.core.view_request import View
from vfsd.disk.block_checksums import merged
from vfsd.errors import DamagedFileError, OutOfRangeError
from vfsd.read.read_output import ReadOutput
from vfsd.read.tile_planner import DecodeCosts, IsGoodEnough, NeededRegion, TileRun, choose_tiles
from vfsd.tiling import Rect

_TIME_EPSILON = 1e-9
"""Rounding tolerance in dB for sums of the same errors."""
_STREAM_FRAMES = 48
"""From this many consecutive frames on, one continuous decode is faster than restarts."""


@dataclass(frozen=True, slots=True)
class AvailableTiles:
    """The tiles that a plan may use besides the original."""

    segments: Sequence[Segment]
    costs: DecodeCosts
    luma: float  #: minimum luma dB of a cell
    joined: Sequence[Segment] = ()
    """stored jointly with another camera's video: whole pictures only"""
    unreadable: tuple[range, ...] = ()  #: frames known to be lost in the original
    psnr: float = 0.0
    """Minimum dB of the result, unless the original itself has less; see `ReadOutput`."""

    @property
    def stored(self) -> Sequence[Segment]:
        """All segments, including joined ones."""
        return [*self.segments, *self.joined] if self.joined else self.segments

    def excluding_frames(self, frames: Sequence[range]) -> AvailableTiles:
        """Return a copy with further frames that the original has lost."""
        return replace(self, unreadable=tuple(merged([*self.unreadable, *frames])))

    def requiring(self, psnr: float) -> AvailableTiles:
        """Return a copy for a reader that requires `psnr` dB instead of the store's minimum
        luma.
        """
        return replace(self, luma=0.0, psnr=psnr)

    def good_for(self, form: ReadOutput, original: PhysicalVideo) -> IsGoodEnough:
        """Return a test for tiles that a read in that form may use together."""
        wanted = min(self.psnr, form.psnr_of_original(original))

        def is_good(segment: Segment, tiles: Sequence[int]) -> bool:
            cells = [segment.cell(tile) for tile in tiles]
            enough = wanted <= 0 or form.psnr_of(cells, segment.picture) >= wanted - _TIME_EPSILON
            return enough and all(cell.psnr >= self.luma for cell in cells)

        return is_good

    def without(self, object_key: str) -> AvailableTiles:
        """Return a copy without the segments of a pack."""
        return replace(
            self,
            segments=[one for one in self.segments if one.object_key != object_key],
            joined=[one for one in self.joined if one.object_key != object_key],
        )


def tiles_avoiding_damage(tiles: AvailableTiles | None, error: DamagedFileError) -> AvailableTiles:
    """Return the tiles for a retry after damage of the original.

    Raises `error` if the damage was known already or there are no tiles.
    """
    if tiles is None or not tiles.stored:
        raise error
    found = tiles.excluding_frames(error.frames or ())
    if found == tiles:
        raise error
    return found


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Which sources to decode, crop and scale to show `frames`.

    The frames in `tiled` come from tiles.  The others come from `runs` of the original `physical`,
    or from one continuous decode of `contiguous`.
    """

    physical: PhysicalVideo
    frames: Ints  #: frame index of each picture of the result, in order; may repeat
    region: Rect
    size: tuple[int, int]  #: of the result
    pixel_format: str  #: of the result
    runs: tuple[DecodeRun, ...]  #: empty if `contiguous` is set
    contiguous: range | None  #: frames of the original to decode continuously
    tiled: tuple[TileRun, ...] = ()  #: by time; a frame is in at most one

    @property
    def form(self) -> ReadOutput:
        """The form of the result."""
        return ReadOutput(self.physical.media, self.region, self.size, self.pixel_format)

    @property
    def needed(self) -> NeededRegion:
        """The part of a picture that the result needs."""
        return _needed_region(self.form)

    @property
    def psnr(self) -> float:
        """Minimum dB of the result against the first original, in its own samples (see
        `ReadOutput`).

        Infinite if it is decoded from the first original, 0 if it was never measured.
        """
        form = self.form
        found = [
            form.psnr_of([run.segment.cell(tile) for tile in run.tiles], run.segment.picture)
            for run in self.tiled
        ]
        if self.runs or self.contiguous is not None or not found:
            found.append(form.psnr_of_original(self.physical))
        return min(found)


def select_frames(view: View, physical: PhysicalVideo, table: FrameTable) -> Ints:
    """Return the frame index of each picture of the result.

    Raises `OutOfRangeError` if the view starts after the end of the video.
    """
    if view.frames is not None:
        first, end, step = view.frames
        if first >= len(table) or (end is not None and end > len(table)):
            raise OutOfRangeError(
                f"frames {first} to {'the end' if end is None else end} were asked for; "
                f"the video has {len(table)}"
            )
        return np.arange(first, len(table) if end is None else end, step, dtype=np.int64)
    times = FrameTimes(physical, table)
    start, stop = view.span or (Fraction(0), None)
    if view.fps is not None:
        return times.at_rate(view.fps, start, stop)
    times.require_before_end(start)
    chosen = times.between(start, stop)
    return np.arange(chosen.start, chosen.stop, dtype=np.int64)


def is_sequential(frames: Ints) -> bool:
    """Return whether one continuous decode is best for these frames."""
    return len(frames) >= _STREAM_FRAMES and bool((np.diff(frames) == 1).all())


def make_plan(
    view: View,
    physical: PhysicalVideo,
    table: FrameTable,
    *,
    pixel_format: str = "rgb24",
    tiles: AvailableTiles | None = None,
) -> ReadPlan:
    """Plan what to decode to show `view`, from `tiles` where they are cheaper.

    Raises `OutOfRangeError` for a region or time outside the video.
    """
    frames = select_frames(view, physical, table)
    return plan_frames(frames, view, physical, table, pixel_format=pixel_format, tiles=tiles)


def plan_pictures(
    frames: Ints,
    needed: NeededRegion,
    form: ReadOutput,
    physical: PhysicalVideo,
    table: FrameTable,
    tiles: AvailableTiles,
) -> ReadPlan:
    """Plan the sources of everything `needed` of `frames` to make pictures of `form`."""
    tiled = choose_tiles(
        frames,
        needed,
        physical,
        table,
        tiles.stored,
        tiles.costs,
        good=tiles.good_for(form, physical),
        unreadable=tiles.unreadable,
    )
    where = (form.region, form.size, form.pixel_format)
    return ReadPlan(physical, frames, *where, (), None, tuple(tiled))


def plan_frames(
    frames: Ints,
    view: View,
    physical: PhysicalVideo,
    table: FrameTable,
    *,
    pixel_format: str = "rgb24",
    tiles: AvailableTiles | None = None,
) -> ReadPlan:
    """Plan what to decode to show `frames` in the region and size of `view`."""
    full = physical.media.frame_rect
    region = view.region or full
    if not full.contains(region):
        raise OutOfRangeError(f"the region {region} reaches outside the frame of {full}")
    size = view.size or (region.width, region.height)
    tiled: list[TileRun] = []
    if tiles is not None and tiles.stored and len(frames):
        form = ReadOutput(physical.media, region, size, pixel_format)
        tiled = choose_tiles(
            frames,
            _needed_region(form),
            physical,
            table,
            tiles.stored,
            tiles.costs,
            good=tiles.good_for(form, physical),
            unreadable=tiles.unreadable,
        )
    own = frames
    if tiled:
        own = frames[~np.isin(frames, [frame for run in tiled for frame in run.frames])]
    runs, contiguous = original_runs(own, table)
    return ReadPlan(physical, frames, region, size, pixel_format, runs, contiguous, tuple(tiled))


def _needed_region(form: ReadOutput) -> NeededRegion:
    scaled = None if form.size == (form.region.width, form.region.height) else form.size
    converter = RawPixelConverter(
        form.media, pixel_format=form.pixel_format, region=form.region, size=scaled
    )
    return converter.needed_scaled


def original_runs(frames: Ints, table: FrameTable) -> tuple[tuple[DecodeRun, ...], range | None]:
    """Return how to decode `frames` without tiles: as runs, or as one continuous range."""
    if is_sequential(frames):
        return (), range(int(frames[0]), int(frames[-1]) + 1)
    return tuple(table.decode_runs(frames.tolist())), None
