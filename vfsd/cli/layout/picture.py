"""A frame with the tiles of its segment drawn over it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.cli.layout.records import displayed, start_of
from vfsd.cli.output import clock
from vfsd.cli.writing import whole_file
from vfsd.codecs.pixels import in_display
from vfsd.errors import UsageError
from vfsd.model import Cell, Segment
from vfsd.tiling import Rect
from vfsd.units import human_bytes
from vfsd.video import Video

Picture = npt.NDArray[np.uint8]

_ENDINGS = (".png", ".jpg", ".jpeg")
_SHORTEST_SIDE = 720
"""Smaller frames are enlarged, as letters need room."""
_FONT = cv2.FONT_HERSHEY_DUPLEX
_EDGE, _LETTERS, _FAINT, _GROUND = (40, 220, 255), (255, 255, 255), (190, 190, 190), (24, 24, 24)
"""Colours, as BGR."""
_VEIL = 0.62
"""How much of what lies behind letters is covered."""


def write_picture(video: Video, segment: Segment, frame: int, out: str, *, replace: bool) -> None:
    """Write a frame of the original with the tiles of `segment`.

    Raises `UsageError` for other endings than .png and .jpg, `ExistsError`.
    """
    ending = Path(out).suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"{out!r} is no picture that can be written", hint="name a .png or .jpg")
    pixels = video.frames([frame], format="bgr24", psnr=math.inf)[0].data
    drawn = draw_tiles(np.asarray(pixels), video, segment, frame)
    done, data = cv2.imencode(ending, drawn)
    if not done:
        raise UsageError(f"a picture of {drawn.shape[1]}x{drawn.shape[0]} cannot be a {ending}")
    with whole_file(Path(out), replace) as file:
        file.write(data.tobytes())


def draw_tiles(pixels: Picture, video: Video, segment: Segment, frame: int) -> Picture:
    """`pixels` (BGR, displayed) enlarged where it is small, with tiles and a line of facts."""
    height, width = pixels.shape[:2]
    scale = max(1, math.ceil(_SHORTEST_SIDE / min(height, width)))
    picture: Any = pixels.copy()
    if scale > 1:
        size = (width * scale, height * scale)
        picture = cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC)
    unit = min(picture.shape[:2]) / 720
    media = video.original.media
    places = [(cell, _scaled(in_display(cell.rect, media), scale)) for cell in segment.cells]
    _outline(picture, [place for _, place in places], unit)
    for cell, place in places:
        _label(picture, place, cell, unit)
    return np.vstack([_headline(picture.shape[1], video, segment, frame, unit), picture])


def _scaled(rect: Rect, scale: int) -> Rect:
    return Rect(rect.x1 * scale, rect.y1 * scale, rect.x2 * scale, rect.y2 * scale)


def _outline(picture: Picture, places: list[Rect], unit: float) -> None:
    """Edges that show on bright and on dark ground."""
    thin = max(1, round(2 * unit))
    for colour, thickness in ((_GROUND, 3 * thin), (_EDGE, thin)):
        for place in places:
            cv2.rectangle(picture, (place.x1, place.y1), (place.x2, place.y2), colour, thickness)


def _label(picture: Picture, place: Rect, cell: Cell, unit: float) -> None:
    """Number, size and quality in the upper left corner, as large as there is room for."""
    lines = [f"{cell.tile}", human_bytes(cell.size), f"{cell.psnr:.1f} dB"]
    size = 0.8 * unit
    room = (place.width - 16 * unit, place.height - 16 * unit)
    for shrunk in (1.0, 0.85, 0.7, 0.6, 0.5):
        if _fits(lines, size * shrunk, room):
            break
    else:
        lines, shrunk = lines[:1], 0.6  # the number alone
    _write(picture, (place.x1 + round(7 * unit), place.y1 + round(7 * unit)), lines, size * shrunk)


def _fits(lines: list[str], size: float, room: tuple[float, float]) -> bool:
    width, height = _extent(lines, size)
    return width <= room[0] and height <= room[1]


def _step(size: float) -> int:
    """Pixels from one line to the next."""
    return round(size * 34)


def _thickness(size: float) -> int:
    return max(1, round(size * 1.4))


def _extent(lines: list[str], size: float) -> tuple[int, int]:
    """Pixels that lines take with the ground behind them."""
    widest = max(cv2.getTextSize(line, _FONT, size, _thickness(size))[0][0] for line in lines)
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
        colour = _EDGE if number == 0 else _LETTERS
        cv2.putText(picture, line, base, _FONT, size, colour, _thickness(size), cv2.LINE_AA)


def _headline(width: int, video: Video, segment: Segment, frame: int, unit: float) -> Picture:
    """A strip above the picture: what is shown."""
    size = 0.62 * unit
    name = video.name.encode("ascii", "replace").decode()
    what = f"{name}  frame {frame}, {clock(start_of(video, frame))}"
    tiles = (
        f"{displayed(video, segment)}, {segment.profile}, frames {segment.first_frame}-"
        f"{segment.end_frame - 1}, {human_bytes(segment.size)}, from {segment.psnr:.1f} dB"
    )
    margin = round(12 * unit)
    while (
        size > 0.2 * unit
        and max(
            cv2.getTextSize(line, _FONT, size, _thickness(size))[0][0] for line in (what, tiles)
        )
        > width - 2 * margin
    ):
        size *= 0.95
    step = _step(size)
    strip = np.full((2 * step + 2 * margin, width, 3), _GROUND, np.uint8)
    for number, (line, colour) in enumerate(((what, _LETTERS), (tiles, _FAINT))):
        base = (margin, margin + (number + 1) * step - round(size * 9))
        cv2.putText(strip, line, base, _FONT, size, colour, _thickness(size), cv2.LINE_AA)
    return strip
