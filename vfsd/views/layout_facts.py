"""Collects the facts of a layout picture, and writes them around the frame.

`layout_facts` reads the tiles, detections and reads of a range of frames from the catalog.
`add_margins` writes above the frame which one it is, the layout, and the widths of its columns;
left of it the heights of the rows; below it the scale of the heat map, the colors of labels, and
size and quality of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.core.detections import DetectionColumns
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import to_display_layout
from vfsd.core.model import Cell, LogicalVideo, PhysicalVideo, ReadArea, Segment
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.tiling import Rect

Picture = npt.NDArray[np.uint8]
"""height x width x 3, RGB."""
Color = tuple[int, int, int]

FONT = cv2.FONT_HERSHEY_DUPLEX
TEXT_COLOR: Color = (255, 255, 255)
BACKGROUND_COLOR: Color = (24, 24, 24)
"""Drawn behind text."""


def ascii_text(text: str) -> str:
    """Replace characters that the font does not have."""
    return text.encode("ascii", "replace").decode()


def line_height(size: float) -> int:
    """Return the pixels from one line to the next."""
    return round(size * 34)


def _thickness(size: float) -> int:
    return max(1, round(size * 1.4))


def text_width(text: str, size: float) -> int:
    """Return the width of a line in pixels."""
    ((width, _), _) = cv2.getTextSize(text, FONT, size, _thickness(size))
    return int(width)


def size_for(lines: Sequence[str], size: float, room: int) -> float:
    """Return the largest font size, at most `size`, at which every line fits into `room` pixels."""
    least = 0.3 * size
    while size > least and max(text_width(line, size) for line in lines) > room:
        size *= 0.95
    return size


def write_line(
    picture: Picture, text: str, base: tuple[int, int], size: float, colour: Color
) -> None:
    """Draw one line; `base` is the left end of its baseline, (x, y)."""
    cv2.putText(picture, text, base, FONT, size, colour, _thickness(size), cv2.LINE_AA)


def write_outlined(
    picture: Picture, text: str, base: tuple[int, int], size: float, colour: Color
) -> None:
    """Draw one line like `write_line`, readable on any ground and without hiding it."""
    wide = _thickness(size) + 2
    cv2.putText(picture, text, base, FONT, size, BACKGROUND_COLOR, wide, cv2.LINE_AA)
    write_line(picture, text, base, size, colour)


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


HEAT_COLORS: tuple[Color, ...] = ((40, 70, 235), (140, 40, 230), (235, 30, 140), (255, 40, 30))
"""From rarely read to often read."""
EDGE_COLOR: Color = (255, 220, 40)
"""Tile edges and tile numbers."""
FAINT_COLOR: Color = (190, 190, 190)
LABEL_COLORS: tuple[Color, ...] = (
    (90, 200, 250),
    (120, 230, 120),
    (255, 150, 60),
    (250, 130, 210),
    (180, 160, 255),
    (80, 230, 205),
    (255, 120, 110),
    (205, 220, 120),
)
"""Boxes, one color for each label; reused if there are more labels."""
# Opacity of the heat map for a single read and for the most frequent.
_COOL, _HOT = 0.30, 0.58
_GROUND = 128
_EXACT_SHADES = 48
_TITLE, _SMALL = 0.62, 0.46
_TABLE_LINES = 4
_MORE = "and {} more labels"


@dataclass(frozen=True, slots=True)
class Margins:
    """Pixels around the frame."""

    left: int
    top: int
    right: int
    bottom: int


def margins(unit: float) -> Margins:
    """Return the margins; `unit` is the scale relative to the smallest picture."""
    title = 2 * line_height(_TITLE * unit) + round(14 * unit)
    table = _TABLE_LINES * line_height(_SMALL * unit)
    return Margins(
        left=round(54 * unit),
        top=title + round(30 * unit),
        right=round(18 * unit),
        bottom=round(60 * unit) + table + round(8 * unit),
    )


def add_margins(
    picture: Picture, facts: LayoutFacts, scale: int, unit: float, colors: dict[str, Color]
) -> Picture:
    """Return `picture`, a drawn frame, with its margins."""
    around = margins(unit)
    height, width = picture.shape[:2]
    whole = np.full(
        (around.top + height + around.bottom, around.left + width + around.right, 3),
        BACKGROUND_COLOR,
        np.uint8,
    )
    whole[around.top : around.top + height, around.left : around.left + width] = picture
    _write_title(whole, facts, unit, around)
    _draw_rulers(whole, facts, scale, unit, around)
    below = around.top + height
    used = _draw_heat_scale(whole, facts, unit, (around.left, below))
    _legend(whole, (used, below + round(26 * unit)), facts, unit, colors)
    _write_tiles(whole, facts, unit, (around.left, below + round(60 * unit)))
    return whole


def _write_title(whole: Picture, facts: LayoutFacts, unit: float, around: Margins) -> None:
    what = ascii_text(f"{facts.video.name}  frame {facts.frame}, {clock_text(facts.seconds)}")
    tiles = ascii_text(_tiles_line(facts))
    room = whole.shape[1] - around.left - around.right
    step = line_height(_TITLE * unit)
    for number, (line, color) in enumerate(((what, TEXT_COLOR), (tiles, FAINT_COLOR))):
        size = size_for([line], _TITLE * unit, room)
        base = (around.left, round(10 * unit) + (number + 1) * step - round(6 * unit))
        write_line(whole, line, base, size, color)


def _tiles_line(facts: LayoutFacts) -> str:
    frames = f"frames {facts.frames.start}-{facts.frames.stop - 1}"
    segment = facts.segment
    if segment is None:
        return f"untiled, {frames}"
    shown = to_display_layout(segment.layout, facts.video.original.media)
    grid = f"{len(shown.heights)}x{len(shown.widths)} tiles"
    if not segment.is_whole:
        grid = f"{len(segment.cells)} of {grid}"
    return (
        f"{grid}, {segment.profile}, {frames}, {human_bytes(segment.size)}, "
        f"from {segment.psnr:.1f} dB"
    )


def _draw_rulers(
    whole: Picture, facts: LayoutFacts, scale: int, unit: float, around: Margins
) -> None:
    """Draw the edges of columns and rows, and their pixels where there is space."""
    media = facts.video.original.media
    widths: tuple[int, ...] = (media.display_width,)
    heights: tuple[int, ...] = (media.display_height,)
    if facts.segment is not None:
        shown = to_display_layout(facts.segment.layout, media)
        widths, heights = tuple(shown.widths), tuple(shown.heights)
    size, thin, tick = 0.42 * unit, max(1, round(1.5 * unit)), round(8 * unit)
    at = around.left
    for width in (*widths, 0):
        left = min(max(0, at - thin // 2), whole.shape[1] - thin)
        whole[around.top - tick : around.top, left : left + thin] = EDGE_COLOR
        text, room = str(width), width * scale
        if width and text_width(text, size) + round(6 * unit) <= room:
            x = at + (room - text_width(text, size)) // 2
            base = (x, around.top - tick - round(5 * unit))
            write_line(whole, text, base, size, FAINT_COLOR)
        at += room
    at = around.top
    for height in (*heights, 0):
        top = max(0, at - thin // 2)
        whole[top : top + thin, around.left - tick : around.left] = EDGE_COLOR
        text, room = str(height), height * scale
        if height and round(26 * size) <= room:
            x = around.left - tick - round(5 * unit) - text_width(text, size)
            write_line(
                whole, text, (max(0, x), at + (room + round(20 * size)) // 2), size, FAINT_COLOR
            )
        at += room


def _draw_heat_scale(
    whole: Picture, facts: LayoutFacts, unit: float, corner: tuple[int, int]
) -> int:
    """Draw the colors of the heat map with numbers of reads; return the end on the right."""
    x, y = corner[0], corner[1] + round(14 * unit)
    high, size = round(13 * unit), _SMALL * unit
    most, base = int(facts.heat.max()), y + round(12 * unit)
    if not most:
        write_line(whole, "never read", (x, base), size, FAINT_COLOR)
        return x + text_width("never read", size) + round(26 * unit)
    length = round((220 if most > 1 else 40) * unit)
    steps = np.arange(length) * _EXACT_SHADES // length / (_EXACT_SHADES - 1)
    shades = _shades(steps if most > 1 else np.zeros(length))
    whole[y : y + high, x : x + length] = shades.round().astype(np.uint8)
    ticks = heat_ticks(most) if most > 1 else []
    ends = share(np.array(ticks, np.int64), most) * (length - 1)
    for number, at in zip(ticks, ends.round().astype(int).tolist(), strict=True):
        whole[y + high : y + high + round(4 * unit), x + at : x + at + max(1, round(unit))] = (
            FAINT_COLOR
        )
        left = max(x, x + at - text_width(str(number), 0.9 * size) // 2)
        write_line(whole, str(number), (left, y + high + round(19 * unit)), 0.9 * size, FAINT_COLOR)
    text = f"times read, of {facts.reads} reads" if most > 1 else "read once"
    write_line(whole, text, (x + length + round(12 * unit), base), size, FAINT_COLOR)
    return x + length + text_width(text, size) + round(38 * unit)


def _shades(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the colors of the heat map over gray, x 3."""
    colors, covers = ramp(shares)
    shades: npt.NDArray[np.float32] = colors * covers[:, None] + _GROUND * (1 - covers[:, None])
    return shades


def heat_ticks(most: int) -> list[int]:
    """Return at most six numbers from 1 to `most` that are far apart on a logarithmic scale."""
    if most <= 4:
        return list(range(1, most + 1))
    steps = [2**n for n in range(most.bit_length())] if most < 50 else []
    for decade in range(len(str(most))):
        steps += [] if most < 50 else [10**decade]
    # Numbers that are too close to the last one would overlap it.
    steps = [step for step in steps if step == 1 or step * 1.45 < most]
    return [*steps[:: -(-len(steps) // 5)], most]


def share(numbers: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.float64]:
    """Map counts to 0 for a single read up to 1 for `most`.

    The scale is logarithmic, because some areas are read far more often than others.
    """
    if most == 1:
        return np.zeros(len(numbers))
    share: npt.NDArray[np.float64] = np.log(np.maximum(numbers, 1)) / math.log(most)
    return share


def ramp(
    share: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    stops = np.linspace(0, 1, len(HEAT_COLORS))
    colors = [np.interp(share, stops, [stop[part] for stop in HEAT_COLORS]) for part in range(3)]
    covers = _COOL + (_HOT - _COOL) * share
    return np.stack(colors, axis=-1).astype(np.float32), covers.astype(np.float32)


def _legend(
    whole: Picture,
    base: tuple[int, int],
    facts: LayoutFacts,
    unit: float,
    colors: dict[str, Color],
) -> None:
    """Draw the colors of labels, limited to the most frequent ones."""
    gap, room = round(20 * unit), whole.shape[1] - base[0] - round(18 * unit)
    labels = _legend_entries(facts, colors)
    for shown in range(len(labels), -1, -1):
        entries: list[_LegendEntry] = labels[:shown]
        if shown < len(labels):
            entries = [*entries, (None, _MORE.format(len(labels) - shown))]
        size = _SMALL * unit
        while size > 0.38 * unit and _legend_width(entries, size, gap) > room:
            size *= 0.95
        if _legend_width(entries, size, gap) <= room:
            break
    x = base[0]
    for color, text in entries:
        if color is not None:
            side = round(24 * size)
            whole[base[1] - round(22 * size) : base[1] + round(2 * size), x : x + side] = color
            x += side + round(12 * size)
        write_line(whole, text, (x, base[1]), size, FAINT_COLOR)
        x += text_width(text, size) + gap


# The color, if any, and the text after it.
_LegendEntry = tuple[Color | None, str]


def _legend_entries(facts: LayoutFacts, colors: dict[str, Color]) -> list[_LegendEntry]:
    here = facts.boxes.labels[facts.boxes.frames == facts.frame]
    seen = {label: int((facts.boxes.labels == label).sum()) for label in colors}
    return [
        (
            colors[label],
            f"{ascii_text(label)} {int((here == label).sum())} of {seen[label]} boxes",
        )
        for label in sorted(seen, key=lambda one: (-seen[one], one))
    ]


def _legend_width(entries: Sequence[_LegendEntry], size: float, gap: int) -> int:
    return sum(
        text_width(text, size) + gap + (0 if color is None else round(36 * size))
        for color, text in entries
    )


def _write_tiles(whole: Picture, facts: LayoutFacts, unit: float, corner: tuple[int, int]) -> None:
    """Write size and quality of the tiles, of the largest ones if there are many."""
    size, step = _SMALL * unit, line_height(_SMALL * unit)
    x, y = corner
    segment = facts.segment
    if segment is None:
        text = "No tile is stored of these frames: reads decode the original."
        write_line(whole, text, (x, y + step - round(5 * unit)), size, FAINT_COLOR)
        return
    gap = round(24 * unit)
    room = whole.shape[1] - x - round(18 * unit)
    names = [(f"{cell.tile}", _cell_text(cell)) for cell in segment.cells]
    number_width = max(text_width(name, size) for name, _ in names) + round(10 * unit)
    widest = max(number_width + text_width(text, size) for _, text in names) + gap
    columns = max(1, (room + gap) // widest)
    cells = sorted(segment.cells, key=lambda cell: cell.tile)
    space = columns * _TABLE_LINES
    rest: list[Cell] = []
    if len(cells) > space:
        by_size = sorted(cells, key=lambda cell: (-cell.size, cell.tile))
        shown = (_TABLE_LINES - 1) * columns
        cells, rest = by_size[:shown], by_size[shown:]
    lines = -(-len(cells) // columns)
    for number, cell in enumerate(cells):
        left, base = x + number % columns * widest, y + (number // columns + 1) * step
        base -= round(5 * unit)
        write_line(whole, f"{cell.tile}", (left, base), size, EDGE_COLOR)
        write_line(whole, _cell_text(cell), (left + number_width, base), size, FAINT_COLOR)
    if rest:
        text = (
            f"and {len(rest)} smaller, {human_bytes(sum(one.size for one in rest))} together, "
            f"from {min(one.psnr for one in rest):.1f} dB"
        )
        write_line(whole, text, (x, y + (lines + 1) * step - round(5 * unit)), size, FAINT_COLOR)


def _cell_text(cell: Cell) -> str:
    return f"{human_bytes(cell.size)}  {cell.psnr:.1f} dB"


def exact_colors() -> list[Color]:
    """Return the colors that a picture of few colors must keep, the important ones first."""
    shades = _shades(np.linspace(0, 1, _EXACT_SHADES)).round().astype(int).tolist()
    return [
        BACKGROUND_COLOR,
        EDGE_COLOR,
        TEXT_COLOR,
        FAINT_COLOR,
        *LABEL_COLORS,
        *((red, green, blue) for red, green, blue in shades),
    ]
