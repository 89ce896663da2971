"""A frame with the tiles of its segment, what was seen there, and where it was read.

Pictures are RGB.  Their size follows from the frame's alone, whatever there is to draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.pixels import in_display, layout_in_display
from vfsd.frametable import FrameTable
from vfsd.layoutfacts import LayoutFacts
from vfsd.model import Cell
from vfsd.plan import plan_frames
from vfsd.reader import Reader
from vfsd.tiling import Rect
from vfsd.tools import Tools
from vfsd.units import clock, human_bytes
from vfsd.view import View

Picture = npt.NDArray[np.uint8]
"""height x width x 3, RGB."""
Colour = tuple[int, int, int]

_SHORTEST_SIDE = 720
"""Smaller frames are enlarged, as letters need room."""
_FONT = cv2.FONT_HERSHEY_DUPLEX
_EDGE: Colour = (255, 220, 40)
_LETTERS: Colour = (255, 255, 255)
_FAINT: Colour = (190, 190, 190)
_GROUND: Colour = (24, 24, 24)
_VEIL = 0.58
"""How much of what lies behind letters is covered."""
_LABELS: tuple[Colour, ...] = (
    (90, 200, 250),
    (120, 230, 120),
    (255, 150, 60),
    (250, 130, 210),
    (180, 160, 255),
    (80, 230, 205),
    (255, 120, 110),
    (205, 220, 120),
)
"""By label; with more of them, some have the same."""
_RAMP: tuple[Colour, ...] = ((40, 70, 235), (140, 40, 230), (235, 30, 140), (255, 40, 30))
"""From where little was read to where most was."""
_COOL, _HOT = 0.22, 0.50
"""How much of the frame these cover."""
_TRAIL, _MOST_TRAIL = 0.26, 0.70
"""How much an outline of a box on another frame covers, and many of them together."""
_MOST_TRAILS = 4000
_LINES = 3
"""Of the headline."""


def picture_size(width: int, height: int) -> tuple[int, int]:
    """(width, height) of the picture of a frame of `width` x `height` displayed pixels."""
    scale = _scale(width, height)
    return width * scale, height * scale + _headline_height(_unit(width * scale, height * scale))


def draw_layout(table: FrameTable, tools: Tools, facts: LayoutFacts) -> Picture:
    """The frame, from the original, with everything drawn on it.

    Raises `IntegrityError` where it cannot be decoded, `OSError`.
    """
    plan = plan_frames(np.array([facts.frame]), View(), facts.video.original, table)
    return draw(Reader(table, tools).execute(plan)[0], facts)


def draw(pixels: Picture, facts: LayoutFacts) -> Picture:
    """`pixels` (displayed) enlarged where the frame is small, below lines of facts."""
    height, width = pixels.shape[:2]
    scale = _scale(width, height)
    picture: Any = pixels.copy()
    if scale > 1:
        size = (width * scale, height * scale)
        picture = cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC)
    unit = _unit(width * scale, height * scale)
    colours = _colours(facts)
    _warm(picture, facts, scale)
    _trails(picture, facts, scale, unit, colours)
    if facts.segment is not None:
        media = facts.video.original.media
        places = [
            (cell, _scaled(in_display(cell.rect, media), scale)) for cell in facts.segment.cells
        ]
        _outline(picture, [place for _, place in places], unit)
        for cell, place in places:
            _number(picture, place, cell, unit)
    _boxes(picture, facts, scale, unit, colours)
    return np.vstack([_headline(picture.shape[1], facts, unit, colours), picture])


def _scale(width: int, height: int) -> int:
    return max(1, math.ceil(_SHORTEST_SIDE / min(height, width)))


def _unit(width: int, height: int) -> float:
    return min(width, height) / _SHORTEST_SIDE


def _scaled(rect: Rect, scale: int) -> Rect:
    return Rect(rect.x1 * scale, rect.y1 * scale, rect.x2 * scale, rect.y2 * scale)


# ---------------------------------------------------------------------------------------- heat


def _warm(picture: Picture, facts: LayoutFacts, scale: int) -> None:
    """Colour what was read: the more often, the warmer and the thicker."""
    most = int(facts.heat.max())
    if not most:
        return
    colours, covers = _ramp_of(facts.heat, most)
    colours, covers = (
        np.repeat(np.repeat(part, scale, axis=0), scale, axis=1) for part in (colours, covers)
    )
    covers = covers[:, :, None]
    picture[...] = (picture * (1 - covers) + colours * covers).astype(np.uint8)


def _ramp_of(
    heat: npt.NDArray[np.int64], most: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(colours, cover) of each pixel of a heat that reaches up to `most`."""
    # By a table: there are far fewer numbers of reads than pixels.
    numbers, inverse = np.unique(heat, return_inverse=True)
    colours, covers = _ramp(_share(numbers, most))
    covers[numbers == 0] = 0
    places = inverse.reshape(heat.shape)
    return colours[places], covers[places]


def _share(numbers: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.float64]:
    """From 0 for a single read to 1 for `most`; by their logarithm, as some areas are read by
    far more than others."""
    if most == 1:
        return np.ones(len(numbers))
    share: npt.NDArray[np.float64] = np.log(np.maximum(numbers, 1)) / math.log(most)
    return share


def _ramp(
    share: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    stops = np.linspace(0, 1, len(_RAMP))
    colours = [np.interp(share, stops, [stop[part] for stop in _RAMP]) for part in range(3)]
    covers = _COOL + (_HOT - _COOL) * share
    return np.stack(colours, axis=-1).astype(np.float32), covers.astype(np.float32)


# --------------------------------------------------------------------------------------- boxes


def _colours(facts: LayoutFacts) -> dict[str, Colour]:
    used = sorted({str(label) for label in facts.boxes.labels})
    return {label: _LABELS[number % len(_LABELS)] for number, label in enumerate(used)}


def _trails(
    picture: Picture, facts: LayoutFacts, scale: int, unit: float, colours: dict[str, Colour]
) -> None:
    """Outlines of boxes on the other frames, thin; where many lie they show more."""
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
        drawn = picture[where] * (1 - part) + np.array(colours[label]) * part
        picture[where] = drawn.astype(np.uint8)


def _boxes(
    picture: Picture, facts: LayoutFacts, scale: int, unit: float, colours: dict[str, Colour]
) -> None:
    """The boxes on the drawn frame, each with its label."""
    thin = max(1, round(2 * unit))
    here = facts.boxes.select(facts.boxes.frames == facts.frame)
    places = []
    for label, corners in zip(here.labels, (here.boxes * scale).round().astype(int), strict=True):
        x1, y1, x2, y2 = corners.tolist()
        for colour, thickness in ((_GROUND, 2 * thin + 1), (colours[str(label)], thin)):
            cv2.rectangle(picture, (x1, y1), (x2 - 1, y2 - 1), colour, thickness)
        places.append((str(label), x1, y1, y2))
    for label, x1, y1, y2 in places:
        _flag(picture, label, (x1, y1, y2), 0.5 * unit, colours[label])


def _flag(
    picture: Picture, text: str, place: tuple[int, int, int], size: float, colour: Colour
) -> None:
    """A label above a box, or below it where there is no room above."""
    x1, y1, y2 = place
    text = _plain(text)
    (width, height), base = cv2.getTextSize(text, _FONT, size, 1)
    full = height + base + round(size * 6)
    top = y1 - full if y1 >= full else min(y2, picture.shape[0] - full)
    left = min(x1, max(0, picture.shape[1] - width - round(size * 12)))
    right = left + width + round(size * 12)
    cv2.rectangle(picture, (left, top), (right, top + full), colour, cv2.FILLED)
    at = (left + round(size * 6), top + full - base - round(size * 2))
    cv2.putText(picture, text, at, _FONT, size, _GROUND, 1, cv2.LINE_AA)


# --------------------------------------------------------------------------------------- tiles


def _outline(picture: Picture, places: list[Rect], unit: float) -> None:
    """Edges that show on bright and on dark ground."""
    thin = max(1, round(2 * unit))
    for colour, thickness in ((_GROUND, 3 * thin), (_EDGE, thin)):
        for place in places:
            cv2.rectangle(picture, (place.x1, place.y1), (place.x2, place.y2), colour, thickness)


def _number(picture: Picture, place: Rect, cell: Cell, unit: float) -> None:
    """Number, size and quality in the upper left corner, as large as there is room for."""
    lines = [f"{cell.tile}", human_bytes(cell.size), f"{cell.psnr:.1f} dB"]
    size = 0.56 * unit
    room = (place.width - 16 * unit, place.height - 16 * unit)
    for shrunk in (1.0, 0.85, 0.7):
        if _fits(lines, size * shrunk, room):
            break
    else:
        lines, shrunk = lines[:1], 0.85  # the number alone
    _write(picture, (place.x1 + round(7 * unit), place.y1 + round(7 * unit)), lines, size * shrunk)


def _fits(lines: list[str], size: float, room: tuple[float, float]) -> bool:
    width, height = _extent(lines, size)
    return width <= room[0] and height <= room[1]


def _extent(lines: list[str], size: float) -> tuple[int, int]:
    """Pixels that lines take with the ground behind them."""
    widest = max(_width(line, size) for line in lines)
    return widest + round(size * 20), len(lines) * _step(size) + round(size * 12)


def _write(picture: Picture, corner: tuple[int, int], lines: list[str], size: float) -> None:
    x, y = corner
    width, height = _extent(lines, size)
    behind = picture[y : y + height, x : x + width]
    behind[...] = (behind * (1 - _VEIL) + np.array(_GROUND) * _VEIL).astype(np.uint8)
    for number, line in enumerate(lines):
        base = (
            x + round(size * 10),
            y + round(size * 3) + (number + 1) * _step(size) - round(size * 7),
        )
        _letter(picture, line, base, size, _EDGE if number == 0 else _LETTERS)


# ------------------------------------------------------------------------------------ headline


def _headline_height(unit: float) -> int:
    return _LINES * _step(0.62 * unit) + 2 * round(12 * unit)


def _headline(width: int, facts: LayoutFacts, unit: float, colours: dict[str, Colour]) -> Picture:
    """A strip above the picture: what is shown, and what its colours mean."""
    strip = np.full((_headline_height(unit), width, 3), _GROUND, np.uint8)
    margin, step = round(12 * unit), _step(0.62 * unit)
    what = f"{facts.video.name}  frame {facts.frame}, {clock(facts.seconds)}"
    size = _shrunk([_plain(what), _plain(_tiles(facts))], 0.62 * unit, width - 2 * margin)
    for number, (line, colour) in enumerate(((what, _LETTERS), (_tiles(facts), _FAINT))):
        base = (margin, margin + (number + 1) * step - round(9 * 0.62 * unit))
        _letter(strip, _plain(line), base, size, colour)
    base = (margin, margin + _LINES * step - round(9 * 0.62 * unit))
    _legend(strip, base, facts, unit, colours)
    return strip


def _tiles(facts: LayoutFacts) -> str:
    frames = f"frames {facts.frames.start}-{facts.frames.stop - 1}"
    segment = facts.segment
    if segment is None:
        return f"untiled, {frames}"
    shown = layout_in_display(segment.layout, facts.video.original.media)
    return (
        f"{shown}, {segment.profile}, {frames}, {human_bytes(segment.size)}, "
        f"from {segment.psnr:.1f} dB"
    )


def _legend(
    strip: Picture,
    base: tuple[int, int],
    facts: LayoutFacts,
    unit: float,
    colours: dict[str, Colour],
) -> None:
    """What the colours of the heat and of boxes mean; of many labels, those seen most."""
    gap, room = round(22 * unit), strip.shape[1] - 2 * base[0]
    heat, *labels = _entries(facts, colours)
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
            _letter(strip, before, (x, base[1]), size, _FAINT)
            x += _width(before, size) + _pad(size)
        if swatch:
            _fill(strip, (x, base[1]), swatch, size)
            x += _swatch_length(swatch, size) + _pad(size)
        _letter(strip, after, (x, base[1]), size, _FAINT)
        x += _width(after, size) + gap


def _fill(strip: Picture, base: tuple[int, int], swatch: Sequence[Colour], size: float) -> None:
    """Colours from left to right, as high as letters are."""
    x, middle, half = base[0], base[1] - round(size * 10), round(size * 9)
    room = strip[max(0, middle - half) : middle + half, x : x + _swatch_length(swatch, size)]
    room[...] = _stretched(swatch, _swatch_length(swatch, size))[: room.shape[1]]


_Entry = tuple[str, Sequence[Colour], str]
"""Text, colours (there may be none), and text behind them."""


def _entries(facts: LayoutFacts, colours: dict[str, Colour]) -> list[_Entry]:
    most = int(facts.heat.max())
    times = "read" if facts.reads == 1 else "reads"
    entries: list[_Entry] = []
    if most > 1:
        entries.append(("read once", _RAMP, f"{most} times, of {facts.reads} {times}"))
    elif most:
        entries.append(("", _RAMP[-1:], f"read once, of {facts.reads} {times}"))
    else:
        entries.append(("", (_GROUND,), "never read"))
    here = facts.boxes.labels[facts.boxes.frames == facts.frame]
    seen = {label: int((facts.boxes.labels == label).sum()) for label in colours}
    for label in sorted(seen, key=lambda one: (-seen[one], one)):
        now = int((here == label).sum())
        entries.append(("", (colours[label],), f"{_plain(label)} {now} of {seen[label]} boxes"))
    return entries


def _legend_width(entries: Sequence[_Entry], size: float, gap: int) -> int:
    total = 0
    for before, swatch, after in entries:
        total += _width(before, size) + _pad(size) if before else 0
        total += _swatch_length(swatch, size) + _pad(size) if swatch else 0
        total += _width(after, size) + gap
    return total - gap


def _swatch_length(swatch: Sequence[Colour], size: float) -> int:
    return round(size * (150 if len(swatch) > 1 else 30))


def _pad(size: float) -> int:
    return round(size * 14)


def _stretched(swatch: Sequence[Colour], length: int) -> Picture:
    """length x 3."""
    at, stops = np.linspace(0, 1, length), np.linspace(0, 1, len(swatch))
    parts = [np.interp(at, stops, [colour[part] for colour in swatch]) for part in range(3)]
    return np.stack(parts, axis=-1).astype(np.uint8)


# ------------------------------------------------------------------------------------- letters


def _plain(text: str) -> str:
    """The font has no other letters."""
    return text.encode("ascii", "replace").decode()


def _step(size: float) -> int:
    """Pixels from one line to the next."""
    return round(size * 34)


def _thickness(size: float) -> int:
    return max(1, round(size * 1.4))


def _width(text: str, size: float) -> int:
    ((width, _), _) = cv2.getTextSize(text, _FONT, size, _thickness(size))
    return int(width)


def _shrunk(lines: Sequence[str], size: float, room: int) -> float:
    """The largest size, from `size` down, in which every line has room."""
    least = 0.3 * size
    while size > least and max(_width(line, size) for line in lines) > room:
        size *= 0.95
    return size


def _letter(
    picture: Picture, text: str, base: tuple[int, int], size: float, colour: Colour
) -> None:
    cv2.putText(picture, text, base, _FONT, size, colour, _thickness(size), cv2.LINE_AA)
