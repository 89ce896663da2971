"""Plans a read: which frames come from which source, and what the pictures look like.

`ReadOutput` has a lower bound of their PSNR for each source. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from vfsd.codecs.frames.planes import PixelLayout, chroma_subsampling, raw_layout
from vfsd.codecs.frames.to_array import RawPixelConverter
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import FrameTimes, to_coded_rect
from vfsd.core.model import (
    COLOR_ERROR_FACTOR,
    LOSSLESS_PSNR,
    RANGE_ERROR_FACTOR,
    ROUNDING_ERROR,
    SCALING_ERROR_FACTOR,
    Cell,
    MediaInfo,
    PhysicalVideo,
    PsnrFigures,
    Segment,
    chained_psnr,
    error_from_psnr,
    psnr_from_error,
)
from vfsd.core.view_request import View
from vfsd.disk.checksums import merged
from vfsd.errors import DamagedFileError, OutOfRangeError
from vfsd.read.tile_planner import DecodeCosts, IsGoodEnough, NeededRegion, TileRun, choose_tiles
from vfsd.tiling import Rect
from vfsd.tiling.cost import WEB


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """A region of the displayed frame, scaled, in a layout of `vfsd.codecs.frames.planes`.

    PSNR values are those of the samples of the result: of gray, or the minimum over Y, U and V or
    over R, G and B.
    """

    media: MediaInfo  #: of the original
    region: Rect
    size: tuple[int, int]
    pixel_format: str

    def psnr_of(self, cells: Sequence[Cell], picture: tuple[int, int]) -> float:
        """Return the minimum dB of a result made from `cells` of pictures of size `picture`; 0 if
        unknown.

        The cells cover the region.  For scaled pictures only the measured result is known: whole
        pictures in that size. In full size, a bound for other results follows from the error of the
        planes.
        """
        in_full_size = picture == (self.media.width, self.media.height)
        if in_full_size and all(cell.planes >= LOSSLESS_PSNR for cell in cells):
            return LOSSLESS_PSNR  # equal samples give equal results
        if not in_full_size:
            is_known = self._is_measured and self._is_all_of(picture)
            return min(map(self._figure, cells)) if is_known else 0.0
        if self._is_measured and self._is_unscaled:
            return self._within(cells, self._figure, lambda error: error)
        return self._within(cells, lambda cell: cell.planes, self._carried)

    def psnr_of_original(self, original: PhysicalVideo) -> float:
        """Return the minimum dB against the first original of a result made from `original`.

        Infinite if `original` is the first one.  It follows from the error of the original's
        planes.
        """
        error = original.error
        if error <= 0:
            return math.inf
        is_coded = not self._layout.channels and self._is_measured and self._is_unscaled
        return psnr_from_error(error if is_coded else self._carried(error))

    @property
    def _layout(self) -> PixelLayout:
        return raw_layout(self.pixel_format)

    @property
    def _is_measured(self) -> bool:
        """Whether the PSNR of cells was measured for samples like those of the result."""
        layout, media = self._layout, self.media
        if layout.channels:
            return layout.bits == 8 or media.bit_depth > 8
        name = media.pixel_format
        is_alike = name.startswith("yuv") and chroma_subsampling(name) == layout.subsampled
        return is_alike and layout.bits == media.bit_depth

    @property
    def _is_unscaled(self) -> bool:
        across, down = self._layout.subsampled
        region, area = self.region, to_coded_rect(self.region, self.media)
        is_on_grid = not area.x1 % across and not area.y1 % down
        return is_on_grid and self.size == (region.width, region.height)

    def _is_all_of(self, picture: tuple[int, int]) -> bool:
        """Return whether the result is whole pictures of that size."""
        size = picture if self.media.rotation % 180 == 0 else picture[::-1]
        return self.size == size and self.region == self.media.frame_rect

    def _within(
        self,
        cells: Sequence[Cell],
        figure: Callable[[Cell], float],
        carried: Callable[[float], float],
    ) -> float:
        """Return the dB that corresponds to the largest error of samples in the region."""
        figures = [figure(cell) for cell in cells]
        if min(figures) <= 0:
            return 0.0
        return min(LOSSLESS_PSNR, psnr_from_error(carried(self._largest_error(cells, figures))))

    def _largest_error(self, cells: Sequence[Cell], figures: Sequence[float]) -> float:
        """Return the largest error of samples in the region for cells with the given dB.

        All error of a cell that extends outside the region may lie inside it: the mean square grows
        as the area shrinks. A cell has at most as many chroma samples as if its sides were even,
        and the region has at least its share.

        Cells with odd sides count as if the rows and columns that make them even had no error,
        because measurements of older versions include them in the mean.  For others the bound is
        slightly too low.
        """
        errors = [0.0 if one >= LOSSLESS_PSNR else error_from_psnr(one) for one in figures]
        area = to_coded_rect(self.region, self.media)
        measured = [_with_even_sides(cell.rect) for cell in cells]
        if all(area.contains(cell.rect) for cell in cells):
            shares = [whole / cell.rect.area for cell, whole in zip(cells, measured, strict=True)]
            return max(error * math.sqrt(n) for error, n in zip(errors, shares, strict=True))
        squares = sum(error**2 * whole for error, whole in zip(errors, measured, strict=True))
        return math.sqrt(squares / area.area)

    def _figure(self, cell: Cell) -> float:
        """Return the dB that was measured for such samples."""
        return {0: cell.planes, 1: cell.gray}.get(self._layout.channels, cell.colour)

    def _carried(self, error: float) -> float:
        """Return the largest error of the result if no plane has a larger error than `error`."""
        layout = self._layout
        gain = {0: 1.0, 1: RANGE_ERROR_FACTOR}.get(layout.channels, COLOR_ERROR_FACTOR)
        # Gray is computed from luma pixel by pixel, and so are colours of eight bits.
        is_local = layout.channels == 1 or (layout.channels > 1 and self.media.bit_depth == 8)
        if not (is_local and self._is_unscaled):
            gain *= SCALING_ERROR_FACTOR
        return gain * error + 2 * ROUNDING_ERROR


def _with_even_sides(rect: Rect) -> int:
    """Return the area of a cell after its sides are made even."""
    return (rect.width + rect.width % 2) * (rect.height + rect.height % 2)


def likeness_to_first(
    likeness: PsnrFigures, original: PhysicalVideo, picture: tuple[int, int]
) -> PsnrFigures:
    """Return lower bounds against the first original of pictures that have `likeness` to
    `original`.

    The pictures have the size `picture`.  Values that were not measured stay 0.
    """
    if original.error <= 0:
        return likeness
    media = original.media
    in_full_size = picture == (media.width, media.height)
    bits = None if in_full_size else media.bit_depth

    def coded(figure: float) -> float:
        return chained_psnr(figure, original.error, scaled_to_bits=bits) if figure else 0.0

    def seen(figure: float, pixel_format: str) -> float:
        size = picture if media.rotation % 180 == 0 else picture[::-1]
        form = ReadOutput(media, media.frame_rect, size, pixel_format)
        before = error_from_psnr(form.psnr_of_original(original))
        return chained_psnr(figure, before) if figure else 0.0

    return PsnrFigures(
        coded(likeness.luma),
        seen(likeness.gray, "gray"),
        coded(likeness.planes),
        seen(likeness.colour, "rgb24"),
    )


_WEB_SOURCES = ("yuv420p", "yuvj420p")
"""Pixel formats that `web` stores without a conversion."""

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
        is_enough = self.psnr_test(form, original)
        is_like_web = form.media.pixel_format in _WEB_SOURCES

        def is_good(segment: Segment, tiles: Sequence[int]) -> bool:
            # A browser rendition of other samples was compared after their conversion.
            is_alike = is_like_web or segment.profile != WEB
            lumas = (segment.cell(tile).psnr for tile in tiles)
            return is_alike and is_enough(segment, tiles) and all(one >= self.luma for one in lumas)

        return is_good

    def psnr_test(self, form: ReadOutput, original: PhysicalVideo) -> IsGoodEnough:
        """Return a test for tiles that have the `psnr` of a result in that form, if it is set."""
        wanted = min(self.psnr, form.psnr_of_original(original))

        def is_enough(segment: Segment, tiles: Sequence[int]) -> bool:
            cells = [segment.cell(tile) for tile in tiles]
            return wanted <= 0 or form.psnr_of(cells, segment.picture) >= wanted - _TIME_EPSILON

        return is_enough

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
