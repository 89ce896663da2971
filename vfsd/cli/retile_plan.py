"""Plans, layout files and estimates for ``vfsd retile`` and ``vfsd render``.

Users give layouts and regions of the displayed frame; segments store those of the coded picture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from vfsd.api.reading import displayed_size
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.cell_encoders import TileCodec, tile_codec
from vfsd.codecs.frames.to_array import needed_area
from vfsd.codecs.frames.transforms import require_smaller
from vfsd.core.frames import to_coded_layout
from vfsd.core.label_query import parse_labels
from vfsd.core.model import MediaInfo, Segment
from vfsd.core.process_control import available_cores
from vfsd.core.view_request import Size
from vfsd.derive.rendition_plan import GopLength, browser_plan, gop_frames
from vfsd.derive.retile import SegmentSample, missing_segments, sample_segment
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.tile_planner import original_work, tile_work
from vfsd.records.tile_records import SEGMENT_FIELDS, SHOW_FIELDS
from vfsd.tiling import Rect, TileLayout, coarse_layout, fine_layout, parse_layout
from vfsd.tiling.cost import DecodeWork
from vfsd.tiling.layout import layout_around
from vfsd.validation import no_such_file

Span = tuple[Fraction, Fraction | None]
Plans = list[PlannedSegment]

_UNIFORM = re.compile(r"uniform:(\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class LayoutAround:
    """Layouts around detected objects."""

    labels: str  #: an expression of `vfsd.core.label_query`
    coarse: bool  #: one tile for all boxes, instead of separate tiles
    padding: int  #: pixels around each box

    def plan(self, video: Video, span: Span | None, seconds: float, codec: str) -> Plans:
        """Plan segments around the boxes; empty where tiles would not pay. Raises `UsageError`."""
        return video.tiles.around(
            parse_labels(self.labels),
            partition=coarse_layout if self.coarse else fine_layout,
            span=span,
            codec=codec,
            padding=self.padding,
            seconds_each=seconds,
        )


@dataclass(frozen=True, slots=True)
class RetileOrder:
    """The tiles that the user requests. One of `layout`, `regions`, `boxes`, `file`, `size` is
    set.
    """

    layout: str | None
    regions: tuple[Rect, ...]  #: of the displayed frame
    boxes: LayoutAround | None
    file: Path | None
    span: Span | None
    seconds: float  #: approximate length of a segment
    whole: bool  #: store all tiles, not only those with regions or boxes
    settings: TileSettings
    size: Size | None = None  #: whole frames in this size
    gop: GopLength = None  #: frames, or "auto"; None: as planned, or a segment
    browser: int | None = None  #: greatest width of a browser rendition

    def plan(self, video: Video) -> list[PlannedSegment]:
        """Every requested segment. Raises `UsageError`, `OutOfRangeError`."""
        if self.browser is not None:
            return browser_plan(context_of(video), self.browser, self.span)
        media = video.original.media
        picture = None if self.size is None else coded_size(self.size, media, self.gop)
        gop = gop_frames(context_of(video), self.gop, picture, self.settings)
        planned = self._planned(video, gop)
        return planned if gop is None else [replace(one, gop=gop) for one in planned]

    def _planned(self, video: Video, gop: int | None) -> list[PlannedSegment]:
        media = video.original.media
        codec = tile_codec(self.settings.codec, media)
        if self.file is not None:
            known = {"show": frozenset({"schema", *SHOW_FIELDS}), "segment": SEGMENT_FIELDS.keys()}
            planned = read_layout_file(
                self.file,
                len(video),
                lambda text: layout_of_text(text, media, codec),
                {kind: frozenset(keys) for kind, keys in known.items()},
            )
            chosen = video.frames_in(self.span)
            return [
                one
                for one in planned
                if one.frames.start < chosen.stop and chosen.start < one.frames.stop
            ]
        if self.size is not None:
            layout = TileLayout.untiled(*coded_size(self.size, media, self.gop))
            sequences = context_of(video).sequences(self.span, self.seconds, gop)
            return [PlannedSegment(frames, layout) for frames in sequences]
        if self.boxes is not None:
            planned = self.boxes.plan(video, self.span, self.seconds, self.settings.codec)
            return [one.whole() for one in planned] if self.whole else planned
        wanted = None
        if self.layout is not None:
            layout = layout_of_text(self.layout, media, codec)
        else:
            needed = self.needed(media)
            layout = layout_around(needed, media.width, media.height, codec.rules)
            if codec.takes_parts and not self.whole:
                wanted = tuple(layout.covering(needed))
        sequences = context_of(video).sequences(self.span, self.seconds, gop)
        return [PlannedSegment(frames, layout, wanted) for frames in sequences]

    def needed(self, media: MediaInfo) -> Rect:
        """The area of the coded picture that a read of the regions decodes."""
        for region in self.regions:
            if not media.frame_rect.contains(region):
                raise OutOfRangeError(
                    f"the region {region} must be within the frame of "
                    f"{media.display_width}x{media.display_height}"
                )
        return needed_area(media, "rgb24", Rect.around(self.regions), None)


def coded_size(size: Size, media: MediaInfo, gop: GopLength = None) -> tuple[int, int]:
    """The size of the coded picture for a size of the displayed frame.

    Raises `UsageError`, also for the size of the video without a `gop`.
    """
    width, height = shown = displayed_size(size, media)
    if media.rotation in (90, 270):
        width, height = height, width
    require_smaller(width, height, media)
    if (width, height) == (media.width, media.height) and gop is None:
        raise UsageError(
            f"size must differ from the frame size, got {shown[0]}x{shown[1]}",
            hint="give a GOP length with `--gop`, or use `vfsd retile`",
        )
    return width, height


def layout_of_text(text: str, media: MediaInfo, codec: TileCodec) -> TileLayout:
    """The layout of the coded picture for a layout of the displayed frame.

    Raises `UsageError` if it does not fit the picture or the rules of the codec.
    """
    grid = _UNIFORM.fullmatch(text)
    if grid is not None and media.rotation in (90, 270):
        return _turned_grid(f"uniform:{grid[2]}x{grid[1]}", media, codec)
    if grid is not None or text == "untiled":
        return parse_layout(text, media.width, media.height, codec.rules)
    layout = TileLayout.parse(text)
    if (layout.width, layout.height) != (media.display_width, media.display_height):
        raise UsageError(
            f"the layout {text} is for frames of {layout.width}x{layout.height}, not of "
            f"{media.display_width}x{media.display_height}"
        )
    turned = to_coded_layout(layout, media)
    try:
        codec.rules.check(turned)
    except UsageError as error:
        hint = "use uniform:RxC, or regions with --roi, whose edges move to allowed positions"
        if media.is_turned:
            hint = _orientation_hint(media, turned)
        raise UsageError(str(error), hint=hint) from error
    return turned


def _turned_grid(text: str, media: MediaInfo, codec: TileCodec) -> TileLayout:
    """Raises `UsageError` with rows and columns of the coded picture."""
    try:
        return parse_layout(text, media.width, media.height, codec.rules)
    except UsageError as error:
        raise UsageError(str(error), hint=_orientation_hint(media, text)) from error


def _orientation_hint(media: MediaInfo, cut: object) -> str:
    how = [f"rotated by {media.rotation} degrees"] if media.rotation else []
    how += ["mirrored"] if media.mirrored else []
    return f"the picture is stored {' and '.join(how)}, with the layout {cut}"


@dataclass(frozen=True, slots=True)
class RetileEstimate:
    """Size, time and gain of tiles, estimated from one segment."""

    planned: Sequence[PlannedSegment]
    missing: Sequence[PlannedSegment]
    sample: SegmentSample | None  #: None if nothing is missing
    bytes: int  #: of the missing segments
    seconds: float  #: to make them
    read: DecodeWork  #: a read of the regions, or of an average tile, of all planned segments
    read_seconds: float
    untiled: DecodeWork  #: the same from the original
    untiled_seconds: float

    @property
    def frames(self) -> int:
        return sum(len(one.frames) for one in self.missing)

    @property
    def tiles(self) -> int:
        return sum(len(one.stored) for one in self.missing)


def estimate(store: Store, video: Video, order: RetileOrder, jobs: int | None) -> RetileEstimate:
    """Encode one segment in memory, and extrapolate from it. Nothing is stored."""
    planned = order.plan(video)
    wanted = missing_segments(store.parts, video.info, planned, order.settings)
    if not wanted:
        return RetileEstimate(planned, (), None, 0, 0.0, DecodeWork(), 0.0, DecodeWork(), 0.0)
    middle = wanted[len(wanted) // 2]
    one = sample_segment(
        store.parts, store.tools.pool, video.info, context_of(video).table, middle, order.settings
    )
    frames = sum(len(plan.frames) for plan in wanted)
    share = frames / len(middle.frames)
    workers = max(1, min(jobs or available_cores(), available_cores(), len(wanted)))
    costs = context_of(video).costs
    segment = _segment_like(one, video)
    tiles: Sequence[int] = one.tiles
    parts = len(tiles)  # a read of an average tile
    if order.regions:
        tiles, parts = one.layout.covering(order.needed(video.original.media)), 1
    whole = tile_work(segment, tiles, one.frames)
    ratio = sum(len(plan.frames) for plan in planned) / len(one.frames) / parts
    read = DecodeWork(
        round(whole.starts * len(planned) / parts),
        round(whole.pictures * ratio),
        round(whole.pixels * ratio),
        whole.bytes * ratio,
    )
    all_frames = [frame for plan in planned for frame in plan.frames]
    untiled = original_work(video.original, context_of(video).table, all_frames)
    return RetileEstimate(
        planned,
        wanted,
        one,
        round(one.bytes * share),
        one.seconds * share / workers,
        read,
        costs.seconds_of_tiles(segment, read, together=len(tiles) // parts),
        untiled,
        costs.of_original(video.original).seconds(untiled),
    )


def _segment_like(one: SegmentSample, video: Video) -> Segment:
    return Segment(
        id=0,
        physical_id=0,
        original_id=video.original.id,
        first_frame=one.frames.start,
        end_frame=one.frames.stop,
        layout=one.layout,
        profile=one.profile,
        object_key="",
        size=one.bytes,
        psnr=one.psnr,
        created_ns=0,
        retired_ns=None,
        cells=one.cells,
        gop=one.gop,
    )


_REQUIRED = ("frames", "layout")
_TILES = "tiles"
_GOP = "gop"


def read_layout_file(
    path: Path,
    frames: int,
    as_layout: Callable[[str], TileLayout],
    known: Mapping[str, frozenset[str]],
) -> list[PlannedSegment]:
    """The segments in a file, for a video of `frames` frames.

    `known` has the allowed keys of the object ("show") and of each segment ("segment"). Raises
    `UsageError` with the wrong key or value, `NotFoundError`.
    """
    entries, allowed = _entries(path, known)
    planned: list[PlannedSegment] = []
    for number, entry in enumerate(entries):
        where = f"{path}: segment {number}"
        if not isinstance(entry, dict):
            raise UsageError(f'{where} must be an object with "frames" and "layout"')
        _check_keys(where, entry, allowed)
        for key in _REQUIRED:
            if key not in entry:
                raise UsageError(f'{where} has no "{key}"')
        layout = _layout(where, entry["layout"], as_layout)
        planned.append(
            PlannedSegment(
                _frames(where, entry["frames"], frames),
                layout,
                _tiles(where, entry, layout),
                _gop(where, entry),
            )
        )
    planned.sort(key=lambda one: one.frames.start)
    for before, after in pairwise(planned):
        if after.frames.start < before.frames.stop:
            raise UsageError(f"{path}: frame {after.frames.start} is in two segments")
    return planned


def _entries(path: Path, known: Mapping[str, frozenset[str]]) -> tuple[list[Any], frozenset[str]]:
    """The segments, and the allowed keys of each."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise no_such_file(path) from None
    except (ValueError, RecursionError) as error:  # also for numbers with too many digits
        raise UsageError(
            f"{path} must be a JSON file: {error}", hint="write one with `vfsd layout show --json`"
        ) from error
    if isinstance(content, list):
        return content, frozenset((*_REQUIRED, _TILES, _GOP))
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise UsageError(
            f'{path} must have a list "segments"', hint="write one with `vfsd layout show --json`"
        )
    _check_keys(str(path), content, known["show"])
    return content["segments"], known["segment"]


def _check_keys(where: str, entry: Mapping[str, Any], allowed: frozenset[str]) -> None:
    unknown = sorted(set(entry) - allowed)
    if unknown:
        raise UsageError(
            f"{where} has an unknown key {unknown[0]!r}",
            hint=f"known keys: {', '.join(sorted(allowed))}",
        )


def _frames(where: str, given: Any, frames: int) -> range:
    whole = isinstance(given, list) and len(given) == 2 and all(type(at) is int for at in given)
    if not whole:
        raise UsageError(f'"frames" of {where} must be [first, end], as in [0, 30], got {given!r}')
    first, end = given
    if not 0 <= first < end <= frames:
        raise UsageError(f'"frames" of {where} must be within 0 to {frames}, got {first} to {end}')
    return range(first, end)


def _layout(where: str, given: Any, as_layout: Callable[[str], TileLayout]) -> TileLayout:
    if not isinstance(given, str):
        raise UsageError(f'"layout" of {where} must be text, got {given!r}')
    try:
        return as_layout(given)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from error


def _gop(where: str, entry: Mapping[str, Any]) -> int | None:
    given = entry.get(_GOP)
    if given is not None and (type(given) is not int or given < 1):
        raise UsageError(f'"gop" of {where} must be a number of frames, got {given!r}')
    return given


def _tiles(where: str, entry: Mapping[str, Any], layout: TileLayout) -> tuple[int, ...] | None:
    """The numbers of the tiles to store, from numbers or from objects of `vfsd layout show`."""
    given = entry.get(_TILES)
    if given is None:
        return None
    entries = given if isinstance(given, list) else []
    numbers: list[Any] = [one.get("tile") if isinstance(one, dict) else one for one in entries]
    if not numbers or any(type(one) is not int for one in numbers):
        raise UsageError(
            f'"tiles" of {where} must be a list of numbers, got {given!r}',
            hint="leave it out to store all tiles",
        )
    wrong = [one for one in numbers if not 0 <= one < layout.count]
    if wrong:
        raise UsageError(
            f"tile numbers of {where} must be 0 to {layout.count - 1} for {layout}, got {wrong[0]}"
        )
    return tuple(numbers)
