"""The tile layout of a video as text and as pictures with tiles, detections and reads.

The pictures are the files `layout.png` and `layout/SECONDS.png` below `NAME@/`.  Nothing but tile
numbers, boxes and labels is written on the frame; `layout_facts` has the rest.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.encoding.encoder import palette_png, palette_png_size
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import FrameTimes, to_display_layout, to_display_rect
from vfsd.core.model import Cell, LogicalVideo, PhysicalVideo, Segment
from vfsd.core.timebase import seconds
from vfsd.core.view_request import View
from vfsd.errors import NotFoundError, UsageError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import plan_frames
from vfsd.tiling import Rect
from vfsd.tiling.layout import uniform_layout
from vfsd.views.layout_facts import (
    BACKGROUND_COLOR,
    EDGE_COLOR,
    FONT,
    LABEL_COLORS,
    Color,
    LayoutFacts,
    Picture,
    add_margins,
    ascii_text,
    exact_colors,
    layout_facts,
    margins,
    ramp,
    share,
    text_width,
    write_outlined,
)
from vfsd.views.render_context import RenderContext
from vfsd.views.view_input import ViewInput
from vfsd.views.view_slots import DecodedFrames, FixedSizeSlots, Slots

# Smaller frames are enlarged, because the labels need space.
_SHORTEST_SIDE = 720
# Opacity of the outline of one box of another frame, and of many that overlap.
_TRAIL, _MOST_TRAIL = 0.26, 0.70
_MOST_TRAILS = 4000
# Where no tile is stored: the share of the brightness that is left, and the lines across it.
_DIMMED, _HATCH = 0.48, 24
# Share of a tile that its number may cover.
_MAX_NUMBER_SHARE = 0.12


def picture_size(width: int, height: int) -> tuple[int, int]:
    """Return (width, height) of the picture of a frame of `width` x `height` displayed pixels."""
    scale = _scale(width, height)
    around = margins(_unit(width * scale, height * scale))
    return (
        around.left + width * scale + around.right,
        around.top + height * scale + around.bottom,
    )


def frame_place(width: int, height: int) -> Rect:
    """Return where the frame is in its picture."""
    scale = _scale(width, height)
    around = margins(_unit(width * scale, height * scale))
    return Rect(around.left, around.top, around.left + width * scale, around.top + height * scale)


def draw_layout(table: FrameTable, tools: ReadContext, facts: LayoutFacts) -> Picture:
    """Decode the frame from the original and draw the facts on it.

    Raises `IntegrityError` if the frame cannot be decoded, `OSError`.
    """
    plan = plan_frames(np.array([facts.frame]), View(), facts.video.original, table)
    return draw_facts(PlanExecutor(table, tools).execute(plan)[0], facts)


def draw_facts(pixels: Picture, facts: LayoutFacts) -> Picture:
    """Draw the facts on and around `pixels`, the displayed frame, enlarged if it is small."""
    height, width = pixels.shape[:2]
    scale = _scale(width, height)
    picture: Any = pixels.copy()
    if scale > 1:
        size = (width * scale, height * scale)
        picture = cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC)
    unit = _unit(width * scale, height * scale)
    colors = _colors(facts)
    media = facts.video.original.media
    cells = () if facts.segment is None else facts.segment.cells
    places = [(cell, _scaled(to_display_rect(cell.rect, media), scale)) for cell in cells]
    _dim_outside(picture, [place for _, place in places], unit)
    _draw_heat(picture, facts, scale)
    _draw_trails(picture, facts, scale, unit, colors)
    _draw_outline(picture, [place for _, place in places], unit)
    _draw_tile_numbers(picture, places, unit)
    _draw_boxes(picture, facts, scale, unit, colors)
    return add_margins(picture, facts, scale, unit, colors)


def _scale(width: int, height: int) -> int:
    return max(1, math.ceil(_SHORTEST_SIDE / min(height, width)))


def _unit(width: int, height: int) -> float:
    return min(width, height) / _SHORTEST_SIDE


def _scaled(rect: Rect, scale: int) -> Rect:
    return Rect(rect.x1 * scale, rect.y1 * scale, rect.x2 * scale, rect.y2 * scale)


def _dim_outside(picture: Picture, stored: Iterable[Rect], unit: float) -> None:
    """Make the area gray, dim and hatched where no tile is stored."""
    outside = np.ones(picture.shape[:2], bool)
    for place in stored:
        outside[place.y1 : place.y2, place.x1 : place.x2] = False
    if not outside.any():
        return
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32) * _DIMMED
    gap, thin = max(8, round(14 * unit)), max(1, round(1.5 * unit))
    rows, columns = np.indices(gray.shape, np.int32)
    gray += _HATCH * ((rows + columns) % gap < thin)
    picture[outside] = gray.astype(np.uint8)[outside][:, None]


def _draw_heat(picture: Picture, facts: LayoutFacts, scale: int) -> None:
    """Color the areas that were read: the more often, the warmer and the more opaque."""
    most = int(facts.heat.max())
    if not most:
        return
    colors, covers = _ramp_of(facts.heat, most)
    colors, covers = (
        np.repeat(np.repeat(part, scale, axis=0), scale, axis=1) for part in (colors, covers)
    )
    covers = covers[:, :, None]
    picture[...] = (picture * (1 - covers) + colors * covers).astype(np.uint8)


def _ramp_of(
    heat: npt.NDArray[np.int64], most: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return (colors, opacity) for each pixel of a heat map with maximum `most`."""
    # A lookup table is faster: there are far fewer distinct counts than pixels.
    numbers, inverse = np.unique(heat, return_inverse=True)
    colors, covers = ramp(share(numbers, most))
    covers[numbers == 0] = 0
    places = inverse.reshape(heat.shape)
    return colors[places], covers[places]


def _colors(facts: LayoutFacts) -> dict[str, Color]:
    used = sorted({str(label) for label in facts.boxes.labels})
    return {label: LABEL_COLORS[number % len(LABEL_COLORS)] for number, label in enumerate(used)}


def _draw_trails(
    picture: Picture, facts: LayoutFacts, scale: int, unit: float, colors: dict[str, Color]
) -> None:
    """Draw thin outlines of the boxes of the other frames; overlapping outlines are more opaque."""
    thin = max(1, round(unit))
    others = facts.boxes.select(facts.boxes.frames != facts.frame)
    others = others.select(slice(None, None, -(-len(others) // _MOST_TRAILS) or 1))
    for label in sorted({str(label) for label in others.labels}):
        cover = np.zeros(picture.shape[:2], np.float32)
        mine = others.select(others.labels == label)
        for x1, y1, x2, y2 in (mine.boxes * scale).round().astype(int).tolist():
            for rows, columns in (
                (slice(y1, y1 + thin), slice(x1, x2)),
                (slice(max(0, y2 - thin), y2), slice(x1, x2)),
                (slice(y1, y2), slice(x1, x1 + thin)),
                (slice(y1, y2), slice(max(0, x2 - thin), x2)),
            ):
                cover[rows, columns] += _TRAIL
        where = np.nonzero(cover)
        part = np.minimum(cover[where], _MOST_TRAIL)[:, None]
        drawn = picture[where] * (1 - part) + np.array(colors[label]) * part
        picture[where] = drawn.astype(np.uint8)


def _draw_boxes(
    picture: Picture, facts: LayoutFacts, scale: int, unit: float, colors: dict[str, Color]
) -> None:
    """Draw the boxes of the frame itself, each with its label."""
    thin = max(1, round(2 * unit))
    here = facts.boxes.select(facts.boxes.frames == facts.frame)
    places = []
    for label, corners in zip(here.labels, (here.boxes * scale).round().astype(int), strict=True):
        x1, y1, x2, y2 = corners.tolist()
        for color, thickness in ((BACKGROUND_COLOR, 2 * thin + 1), (colors[str(label)], thin)):
            cv2.rectangle(picture, (x1, y1), (x2 - 1, y2 - 1), color, thickness)
        places.append((str(label), x1, y1, y2))
    for label, x1, y1, y2 in places:
        _draw_label(picture, label, (x1, y1, y2), 0.5 * unit, colors[label])


def _draw_label(
    picture: Picture, text: str, place: tuple[int, int, int], size: float, color: Color
) -> None:
    """Draw a label above a box, or below it if there is no space above."""
    x1, y1, y2 = place
    text = ascii_text(text)
    (width, height), base = cv2.getTextSize(text, FONT, size, 1)
    full = height + base + round(size * 6)
    top = y1 - full if y1 >= full else min(y2, picture.shape[0] - full)
    left = min(x1, max(0, picture.shape[1] - width - round(size * 12)))
    right = left + width + round(size * 12)
    cv2.rectangle(picture, (left, top), (right, top + full), color, cv2.FILLED)
    at = (left + round(size * 6), top + full - base - round(size * 2))
    cv2.putText(picture, text, at, FONT, size, BACKGROUND_COLOR, 1, cv2.LINE_AA)


def _draw_outline(picture: Picture, places: list[Rect], unit: float) -> None:
    """Draw tile edges that are visible on bright and on dark ground."""
    thin = max(1, round(1.5 * unit))
    for color, thickness in ((BACKGROUND_COLOR, thin + 2), (EDGE_COLOR, thin)):
        for place in places:
            last = (min(place.x2, picture.shape[1] - 1), min(place.y2, picture.shape[0] - 1))
            cv2.rectangle(picture, (place.x1, place.y1), last, color, thickness)


def _draw_tile_numbers(picture: Picture, places: list[tuple[Cell, Rect]], unit: float) -> None:
    """Write the number in the upper left corner of each tile where that hides little of it.

    All have the same size, the largest that suits all tiles, or else the smallest.
    """
    size = 0.36 * unit
    for larger in (0.6 * unit, 0.5 * unit, 0.42 * unit):
        if all(_number_fits(cell, place, larger, unit) for cell, place in places):
            size = larger
            break
    gap = round(5 * unit)
    for cell, place in places:
        if _number_fits(cell, place, size, unit):
            base = (place.x1 + gap, place.y1 + gap + round(22 * size))
            write_outlined(picture, str(cell.tile), base, size, EDGE_COLOR)


def _number_fits(cell: Cell, place: Rect, size: float, unit: float) -> bool:
    gap = round(5 * unit)
    width, height = text_width(str(cell.tile), size) + gap, round(22 * size) + gap
    is_small = width * height <= _MAX_NUMBER_SHARE * place.width * place.height
    return is_small and width + gap <= place.width and height + gap <= place.height


LAYOUT_DIR = "layout"
LAYOUT_FILE = "layout.png"
_LAYOUT_PATH = re.compile(r"layout/([0-9]{1,9}(?:\.[0-9]{1,18})?)\.png")
# Ranges that are listed individually.
_MAX_LAYOUTS = 32
_UNTILED = "untiled"


class LayoutView:
    """A picture of the current state of the catalog, drawn when it is first read.

    Its size follows from the size of the frame, so it is known before the picture is drawn.
    """

    storable = range(0)
    is_work = True
    memory = 0

    def __init__(self, digest: str, size: tuple[int, int], draw: Callable[[], Picture]) -> None:
        self.key = uuid.uuid4().hex  # each reader gets a new picture
        self.digest = digest
        self.slots: Slots = FixedSizeSlots(0, palette_png_size(*size), 1)
        self._draw = draw
        self._data: bytes | None = None

    def make(self, slot: int, context: RenderContext) -> bytes:
        if not slot:
            return b""
        if self._data is None:  # the cache may have evicted it before the end of the read
            self._data = palette_png(self._draw(), exact_colors())
        return self._data

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        """Return None: looking at the reads of a video is not a read."""
        return None


def layout_names(source: ViewInput, most: int) -> list[tuple[str, bool]]:
    """List a picture for each second; empty if there are more than `most`."""
    count = source.physical.duration.__ceil__()
    return [(f"{second}.png", False) for second in range(count if count <= most else 0)]


def layout_view(
    catalog: Catalog, tools: ReadContext, video: LogicalVideo, source: ViewInput, path: str
) -> LayoutView:
    """Return the picture at `path`.  Raises `NotFoundError`, `OutOfRangeError`."""
    segments = source.tiles.segments if source.tiles is not None else ()
    frame = None if path == LAYOUT_FILE else _frame_of(source, path)
    at = frame
    if at is None:
        at = segments[0].first_frame if segments else 0
    here = [segment for segment in segments if at in segment.frames]
    segment = max(here, key=lambda one: one.created_ns, default=None)
    frames = _second(source, at) if segment is None else segment.frames
    media = source.physical.media

    def draw() -> Picture:
        facts = layout_facts(catalog, video, source.table, segment, frames, frame)
        return draw_layout(source.table, tools, facts)

    size = picture_size(media.display_width, media.display_height)
    return LayoutView(video.digest, size, draw)


def _frame_of(source: ViewInput, path: str) -> int:
    match = _LAYOUT_PATH.fullmatch(path)
    if match is None:
        raise NotFoundError(f"no such view: {path!r}")
    return FrameTimes(source.physical, source.table).at(seconds(match[1]))


def _second(source: ViewInput, frame: int) -> range:
    """Return the frames that appear in the same second of the timeline."""
    physical, table = source.physical, source.table
    shown = (table.frame_pts(frame) - physical.first_pts) * physical.time_base
    second, times = Fraction(shown.__floor__()), FrameTimes(physical, table)
    found = times.between(second, second + 1)
    # A rounded timestamp may fall into the second before the nominal one.
    return found if frame in found else times.between(second + 1, second + 2)


def layout_text(original: PhysicalVideo, table: FrameTable, segments: Sequence[Segment]) -> str:
    """Return rows x columns of the displayed frame, with seconds, for each range of the same
    layout.

    If only some of the tiles are stored, their number comes first.  `segments` are the ones that
    reads may use; without any, the text is ``untiled``.
    """
    if not segments:
        return _UNTILED
    pieces = list(_layout_spans(original, segments))
    stretches = [list(group) for _, group in groupby(pieces, lambda piece: piece[1])]
    texts = [
        f"{stretch[0][1]} {_seconds(original, table, stretch[0][0].start)}"
        f"-{_seconds(original, table, stretch[-1][0].stop)}s"
        for stretch in stretches[:_MAX_LAYOUTS]
    ]
    if len(stretches) > _MAX_LAYOUTS:
        texts.append(f"and {len(stretches) - _MAX_LAYOUTS} more")
    return ", ".join(texts)


def _layout_spans(
    original: PhysicalVideo, segments: Sequence[Segment]
) -> Iterator[tuple[range, str]]:
    """Yield (frames, layout) without gaps; where segments overlap, the newest wins."""
    edges = {0, original.frames}
    for segment in segments:
        edges |= {segment.first_frame, segment.end_frame}
    for start, end in pairwise(sorted(edges)):
        here = [segment for segment in segments if start in segment.frames]
        newest = max(here, key=lambda one: one.id, default=None)
        yield range(start, end), _UNTILED if newest is None else _layout_name(original, newest)


def _layout_name(original: PhysicalVideo, segment: Segment) -> str:
    shown = to_display_layout(segment.layout, original.media)
    cut = f"{len(shown.heights)}x{len(shown.widths)}"
    if not segment.is_whole:
        cut = f"{len(segment.cells)} of {cut}"
    return f"uniform {cut}" if _is_uniform(original, segment) else cut


def _is_uniform(original: PhysicalVideo, segment: Segment) -> bool:
    layout, media = segment.layout, original.media
    try:
        rules = tile_codec(segment.profile, media).rules
        rows, columns = len(layout.heights), len(layout.widths)
        return layout == uniform_layout(media.width, media.height, rows, columns, rules)
    except UsageError:  # the codec or layout is not supported any more
        return False


def _seconds(original: PhysicalVideo, table: FrameTable, frame: int) -> str:
    if frame >= len(table):
        return f"{float(original.duration):.6g}"
    ticks = table.frame_pts(frame) - original.first_pts
    return f"{float(ticks * original.time_base):.6g}"
