"""The tile layout of a video as text and as pictures with tiles, detections and reads.

The pictures are the files `layout.png` and `layout/SECONDS.png` below `NAME@/`.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.encoding.encoder import uncompressed_png, uncompressed_png_size
from vfsd.core.detections import DetectionColumns
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import FrameTimes, to_display_layout, to_display_rect
from vfsd.core.model import Cell, LogicalVideo, PhysicalVideo, ReadArea, Segment
from vfsd.core.text_image import (
    BACKGROUND_COLOR,
    FONT,
    TEXT_COLOR,
    Color,
    Picture,
    ascii_text,
    extent,
    line_height,
    size_for,
    text_width,
    write_block,
    write_line,
)
from vfsd.core.timebase import clock_text, human_bytes, seconds
from vfsd.core.view_request import View
from vfsd.errors import NotFoundError, UsageError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import plan_frames
from vfsd.tiling import Rect
from vfsd.tiling.layout import uniform_layout
from vfsd.views.render_context import RenderContext
from vfsd.views.view_input import ViewInput
from vfsd.views.view_slots import DecodedFrames, FixedSizeSlots, Slots

HEAT_COLORS: tuple[Color, ...] = ((40, 70, 235), (140, 40, 230), (235, 30, 140), (255, 40, 30))
"""From rarely read to often read."""
_FAINT: Color = (190, 190, 190)
_LINES = 3
# Smaller frames are enlarged, because the labels need space.
_SHORTEST_SIDE = 720
_EDGE: Color = (255, 220, 40)
# Colors of labels, reused if there are more labels.
_LABELS: tuple[Color, ...] = (
    (90, 200, 250),
    (120, 230, 120),
    (255, 150, 60),
    (250, 130, 210),
    (180, 160, 255),
    (80, 230, 205),
    (255, 120, 110),
    (205, 220, 120),
)
# Opacity of the heat map for a single read and for the most frequent.
_COOL, _HOT = 0.22, 0.50
# Opacity of the outline of one box of another frame, and of many that overlap.
_TRAIL, _MOST_TRAIL = 0.26, 0.70
_MOST_TRAILS = 4000
LAYOUT_DIR = "layout"
LAYOUT_FILE = "layout.png"
_LAYOUT_PATH = re.compile(r"layout/([0-9]{1,9}(?:\.[0-9]{1,18})?)\.png")
# Ranges that are listed individually.
_MAX_LAYOUTS = 32
_UNTILED = "untiled"


def headline_height(unit: float) -> int:
    """Return the height in pixels; `unit` is the scale relative to the smallest picture."""
    return _LINES * line_height(0.62 * unit) + 2 * round(12 * unit)


def headline(width: int, facts: LayoutFacts, unit: float, colors: dict[str, Color]) -> Picture:
    """Draw the strip above the picture: the frame, the layout and the legend of the colors."""
    strip = np.full((headline_height(unit), width, 3), BACKGROUND_COLOR, np.uint8)
    margin, step = round(12 * unit), line_height(0.62 * unit)
    what = f"{facts.video.name}  frame {facts.frame}, {clock_text(facts.seconds)}"
    size = size_for(
        [ascii_text(what), ascii_text(_tiles_line(facts))], 0.62 * unit, width - 2 * margin
    )
    for number, (line, color) in enumerate(((what, TEXT_COLOR), (_tiles_line(facts), _FAINT))):
        base = (margin, margin + (number + 1) * step - round(9 * 0.62 * unit))
        write_line(strip, ascii_text(line), base, size, color)
    base = (margin, margin + _LINES * step - round(9 * 0.62 * unit))
    _legend(strip, base, facts, unit, colors)
    return strip


def _tiles_line(facts: LayoutFacts) -> str:
    frames = f"frames {facts.frames.start}-{facts.frames.stop - 1}"
    segment = facts.segment
    if segment is None:
        return f"untiled, {frames}"
    shown = to_display_layout(segment.layout, facts.video.original.media)
    return (
        f"{shown}, {segment.profile}, {frames}, {human_bytes(segment.size)}, "
        f"from {segment.psnr:.1f} dB"
    )


def _legend(
    strip: Picture,
    base: tuple[int, int],
    facts: LayoutFacts,
    unit: float,
    colors: dict[str, Color],
) -> None:
    """Draw the colors of the heat map and of the labels, limited to the most frequent labels."""
    gap, room = round(22 * unit), strip.shape[1] - 2 * base[0]
    heat, *labels = _legend_entries(facts, colors)
    shown = len(labels)
    while True:
        size = 0.55 * unit
        entries = [heat, *labels[:shown]]
        if shown < len(labels):
            entries.append(("", (), f"and {len(labels) - shown} more labels"))
        while size > 0.38 * unit and _legend_width(entries, size, gap) > room:
            size *= 0.95
        if not shown or _legend_width(entries, size, gap) <= room:
            break
        shown -= 1
    x = base[0]
    for before, swatch, after in entries:
        if before:
            write_line(strip, before, (x, base[1]), size, _FAINT)
            x += text_width(before, size) + _padded_strip(size)
        if swatch:
            _color_ramp(strip, (x, base[1]), swatch, size)
            x += _swatch_length(swatch, size) + _padded_strip(size)
        write_line(strip, after, (x, base[1]), size, _FAINT)
        x += text_width(after, size) + gap


def _color_ramp(
    strip: Picture, base: tuple[int, int], swatch: Sequence[Color], size: float
) -> None:
    """Draw colors from left to right, as high as the letters."""
    x, middle, half = base[0], base[1] - round(size * 10), round(size * 9)
    room = strip[max(0, middle - half) : middle + half, x : x + _swatch_length(swatch, size)]
    room[...] = _stretched(swatch, _swatch_length(swatch, size))[: room.shape[1]]


# Text before the colors, the colors (may be empty), and the text after them.
_LegendEntry = tuple[str, Sequence[Color], str]


def _legend_entries(facts: LayoutFacts, colors: dict[str, Color]) -> list[_LegendEntry]:
    most = int(facts.heat.max())
    times = "read" if facts.reads == 1 else "reads"
    entries: list[_LegendEntry] = []
    if most > 1:
        entries.append(("read once", HEAT_COLORS, f"{most} times, of {facts.reads} {times}"))
    elif most:
        entries.append(("", HEAT_COLORS[-1:], f"read once, of {facts.reads} {times}"))
    else:
        entries.append(("", (BACKGROUND_COLOR,), "never read"))
    here = facts.boxes.labels[facts.boxes.frames == facts.frame]
    seen = {label: int((facts.boxes.labels == label).sum()) for label in colors}
    for label in sorted(seen, key=lambda one: (-seen[one], one)):
        now = int((here == label).sum())
        entries.append(("", (colors[label],), f"{ascii_text(label)} {now} of {seen[label]} boxes"))
    return entries


def _legend_width(entries: Sequence[_LegendEntry], size: float, gap: int) -> int:
    total = 0
    for before, swatch, after in entries:
        total += text_width(before, size) + _padded_strip(size) if before else 0
        total += _swatch_length(swatch, size) + _padded_strip(size) if swatch else 0
        total += text_width(after, size) + gap
    return total - gap


def _swatch_length(swatch: Sequence[Color], size: float) -> int:
    return round(size * (150 if len(swatch) > 1 else 30))


def _padded_strip(size: float) -> int:
    return round(size * 14)


def _stretched(swatch: Sequence[Color], length: int) -> Picture:
    """Return the colors interpolated to an array of length x 3."""
    at, stops = np.linspace(0, 1, length), np.linspace(0, 1, len(swatch))
    parts = [np.interp(at, stops, [color[part] for color in swatch]) for part in range(3)]
    return np.stack(parts, axis=-1).astype(np.uint8)


def picture_size(width: int, height: int) -> tuple[int, int]:
    """Return (width, height) of the picture of a frame of `width` x `height` displayed pixels."""
    scale = _scale(width, height)
    return width * scale, height * scale + headline_height(_unit(width * scale, height * scale))


def draw_layout(table: FrameTable, tools: ReadContext, facts: LayoutFacts) -> Picture:
    """Decode the frame from the original and draw the facts on it.

    Raises `IntegrityError` if the frame cannot be decoded, `OSError`.
    """
    plan = plan_frames(np.array([facts.frame]), View(), facts.video.original, table)
    return draw_facts(PlanExecutor(table, tools).execute(plan)[0], facts)


def draw_facts(pixels: Picture, facts: LayoutFacts) -> Picture:
    """Draw the facts on `pixels`, the displayed frame, enlarged if it is small."""
    height, width = pixels.shape[:2]
    scale = _scale(width, height)
    picture: Any = pixels.copy()
    if scale > 1:
        size = (width * scale, height * scale)
        picture = cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC)
    unit = _unit(width * scale, height * scale)
    colors = _colors(facts)
    _draw_heat(picture, facts, scale)
    _draw_trails(picture, facts, scale, unit, colors)
    if facts.segment is not None:
        media = facts.video.original.media
        places = [
            (cell, _scaled(to_display_rect(cell.rect, media), scale))
            for cell in facts.segment.cells
        ]
        _draw_outline(picture, [place for _, place in places], unit)
        for cell, place in places:
            _draw_tile_number(picture, place, cell, unit)
    _draw_boxes(picture, facts, scale, unit, colors)
    return np.vstack([headline(picture.shape[1], facts, unit, colors), picture])


def _scale(width: int, height: int) -> int:
    return max(1, math.ceil(_SHORTEST_SIDE / min(height, width)))


def _unit(width: int, height: int) -> float:
    return min(width, height) / _SHORTEST_SIDE


def _scaled(rect: Rect, scale: int) -> Rect:
    return Rect(rect.x1 * scale, rect.y1 * scale, rect.x2 * scale, rect.y2 * scale)


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
    colors, covers = _ramp(_share(numbers, most))
    covers[numbers == 0] = 0
    places = inverse.reshape(heat.shape)
    return colors[places], covers[places]


def _share(numbers: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.float64]:
    """Map counts to 0 for a single read up to 1 for `most`.

    The scale is logarithmic, because some areas are read far more often than others.
    """
    if most == 1:
        return np.ones(len(numbers))
    share: npt.NDArray[np.float64] = np.log(np.maximum(numbers, 1)) / math.log(most)
    return share


def _ramp(
    share: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    stops = np.linspace(0, 1, len(HEAT_COLORS))
    colors = [np.interp(share, stops, [stop[part] for stop in HEAT_COLORS]) for part in range(3)]
    covers = _COOL + (_HOT - _COOL) * share
    return np.stack(colors, axis=-1).astype(np.float32), covers.astype(np.float32)


def _colors(facts: LayoutFacts) -> dict[str, Color]:
    used = sorted({str(label) for label in facts.boxes.labels})
    return {label: _LABELS[number % len(_LABELS)] for number, label in enumerate(used)}


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
    thin = max(1, round(2 * unit))
    for color, thickness in ((BACKGROUND_COLOR, 3 * thin), (_EDGE, thin)):
        for place in places:
            cv2.rectangle(picture, (place.x1, place.y1), (place.x2, place.y2), color, thickness)


def _draw_tile_number(picture: Picture, place: Rect, cell: Cell, unit: float) -> None:
    """Write number, size and quality in the upper left corner of a tile, as large as fits."""
    lines = [f"{cell.tile}", human_bytes(cell.size), f"{cell.psnr:.1f} dB"]
    size = 0.56 * unit
    room = (place.width - 16 * unit, place.height - 16 * unit)
    for shrunk in (1.0, 0.85, 0.7):
        if _fits(lines, size * shrunk, room):
            break
    else:
        lines, shrunk = lines[:1], 0.85  # the number alone
    corner = (place.x1 + round(7 * unit), place.y1 + round(7 * unit))
    write_block(picture, corner, lines, size * shrunk, _EDGE)


def _fits(lines: list[str], size: float, room: tuple[float, float]) -> bool:
    width, height = extent(lines, size)
    return width <= room[0] and height <= room[1]


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
        self.slots: Slots = FixedSizeSlots(0, uncompressed_png_size(*size), 1)
        self._draw = draw
        self._data: bytes | None = None

    def make(self, slot: int, context: RenderContext) -> bytes:
        if not slot:
            return b""
        if self._data is None:  # the cache may have evicted it before the end of the read
            self._data = uncompressed_png(self._draw())
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


Heat = npt.NDArray[np.int64]
"""height x width: the number of reads of each pixel."""


@dataclass(frozen=True, eq=False, slots=True)
class LayoutFacts:
    """A segment of tiles, or a range of frames without tiles, and one frame of it."""

    video: LogicalVideo
    segment: Segment | None
    frames: range  #: of the segment, or of the range without tiles
    frame: int  #: one of them
    seconds: Fraction  #: when the frame appears
    boxes: DetectionColumns  #: detections on `frames`, clipped to the displayed frame
    heat: Heat  #: of the displayed frame
    reads: int  #: reads that touched `frames`


def layout_facts(
    catalog: Catalog,
    video: LogicalVideo,
    table: FrameTable,
    segment: Segment | None,
    frames: range,
    frame: int | None,
) -> LayoutFacts:
    """Collect what the catalog knows of `frames`, which are those of `segment` if it is given.

    Without `frame`, the facts are about the frame with detections nearest to the middle.  Raises
    `NotFoundError` if the video's bytes have changed.
    """
    media = video.original.media
    width, height = media.display_width, media.display_height
    boxes = catalog.detections.find(video, frames=frames).columns().clipped(width, height)
    if frame is None:
        frame = _middle(frames, boxes)
    areas = catalog.read_areas(video, frames)
    read = ((area.reads, _read_rects(catalog, video, frames, area)) for area in areas)
    return LayoutFacts(
        video,
        segment,
        frames,
        frame,
        _start(video.original, table, frame),
        boxes,
        read_counts(read, width, height),
        sum(area.reads for area in areas),
    )


def read_counts(read: Iterable[tuple[int, Sequence[Rect]]], width: int, height: int) -> Heat:
    """Count the reads of each pixel from pairs (times, areas); overlapping areas count once."""
    # A pixel's count is the sum of all steps above it and to its left.
    steps = np.zeros((height + 1, width + 1), np.int64)
    together = np.zeros((height, width), np.int64)
    for times, rects in read:
        if len(rects) == 1:
            (rect,) = rects
            steps[rect.y1, rect.x1] += times
            steps[rect.y2, rect.x2] += times
            steps[rect.y1, rect.x2] -= times
            steps[rect.y2, rect.x1] -= times
        else:
            mask = np.zeros((height, width), bool)
            for rect in rects:
                mask[rect.y1 : rect.y2, rect.x1 : rect.x2] = True
            together[mask] += times
    heat: Heat = steps.cumsum(0).cumsum(1)[:height, :width] + together
    return heat


def _read_rects(
    catalog: Catalog, video: LogicalVideo, frames: range, area: ReadArea
) -> Sequence[Rect]:
    """Return the areas that were read in `frames`: for a scan, the boxes of its labels."""
    media = video.original.media
    if area.kind != "scan" or area.region == media.frame_rect:
        return [area.region]
    labels = None if area.labels is None else [list(clause) for clause in area.labels]
    found = catalog.detections.find(video, labels, frames=frames, region=area.region).columns()
    rects = (one.rect(media.display_width, media.display_height) for one in found)
    return [rect for rect in rects if rect is not None]


def _middle(frames: range, boxes: DetectionColumns) -> int:
    middle = frames[len(frames) // 2]
    if not len(boxes):
        return middle
    return int(boxes.frames[np.abs(boxes.frames - middle).argmin()])


def _start(original: PhysicalVideo, table: FrameTable, frame: int) -> Fraction:
    """Return the time in seconds at which a frame appears, or the duration after the last frame."""
    if frame >= len(table):
        return original.duration
    return (table.frame_pts(frame) - original.first_pts) * original.time_base


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
