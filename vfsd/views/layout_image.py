"""A frame with the tiles of its segment, what was seen there, and where it was read.

Pictures are RGB.  Their size follows from the frame's alone, whatever there is to draw.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Cell
from vfsd.core.orientation import in_display
from vfsd.core.text_image import FONT, GROUND, Colour, Picture, extent, plain, write_block
from vfsd.core.timebase import human_bytes
from vfsd.core.view_request import View
from vfsd.read.context import Tools
from vfsd.read.executor import Reader
from vfsd.read.plan import plan_frames
from vfsd.tiling import Rect
from vfsd.views.layout_facts import LayoutFacts
from vfsd.views.layout_headline import RAMP, headline, headline_height

_SHORTEST_SIDE = 720
"""Smaller frames are enlarged, as letters need room."""
_EDGE: Colour = (255, 220, 40)
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
_COOL, _HOT = 0.22, 0.50
"""How much of the frame these cover."""
_TRAIL, _MOST_TRAIL = 0.26, 0.70
"""How much an outline of a box on another frame covers, and many of them together."""
_MOST_TRAILS = 4000


def picture_size(width: int, height: int) -> tuple[int, int]:
    """(width, height) of the picture of a frame of `width` x `height` displayed pixels."""
    scale = _scale(width, height)
    return width * scale, height * scale + headline_height(_unit(width * scale, height * scale))


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
    return np.vstack([headline(picture.shape[1], facts, unit, colours), picture])


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
    stops = np.linspace(0, 1, len(RAMP))
    colours = [np.interp(share, stops, [stop[part] for stop in RAMP]) for part in range(3)]
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
        for colour, thickness in ((GROUND, 2 * thin + 1), (colours[str(label)], thin)):
            cv2.rectangle(picture, (x1, y1), (x2 - 1, y2 - 1), colour, thickness)
        places.append((str(label), x1, y1, y2))
    for label, x1, y1, y2 in places:
        _flag(picture, label, (x1, y1, y2), 0.5 * unit, colours[label])


def _flag(
    picture: Picture, text: str, place: tuple[int, int, int], size: float, colour: Colour
) -> None:
    """A label above a box, or below it where there is no room above."""
    x1, y1, y2 = place
    text = plain(text)
    (width, height), base = cv2.getTextSize(text, FONT, size, 1)
    full = height + base + round(size * 6)
    top = y1 - full if y1 >= full else min(y2, picture.shape[0] - full)
    left = min(x1, max(0, picture.shape[1] - width - round(size * 12)))
    right = left + width + round(size * 12)
    cv2.rectangle(picture, (left, top), (right, top + full), colour, cv2.FILLED)
    at = (left + round(size * 6), top + full - base - round(size * 2))
    cv2.putText(picture, text, at, FONT, size, GROUND, 1, cv2.LINE_AA)


# --------------------------------------------------------------------------------------- tiles


def _outline(picture: Picture, places: list[Rect], unit: float) -> None:
    """Edges that show on bright and on dark ground."""
    thin = max(1, round(2 * unit))
    for colour, thickness in ((GROUND, 3 * thin), (_EDGE, thin)):
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
    corner = (place.x1 + round(7 * unit), place.y1 + round(7 * unit))
    write_block(picture, corner, lines, size * shrunk, _EDGE)


def _fits(lines: list[str], size: float, room: tuple[float, float]) -> bool:
    width, height = extent(lines, size)
    return width <= room[0] and height <= room[1]
