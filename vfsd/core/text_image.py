"""Draws text on pictures."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""height x width x 3, RGB."""
Color = tuple[int, int, int]

FONT = cv2.FONT_HERSHEY_DUPLEX
TEXT_COLOR: Color = (255, 255, 255)
BACKGROUND_COLOR: Color = (24, 24, 24)
"""Drawn behind text."""
# Opacity of the background.
_BACKGROUND_ALPHA = 0.58


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


def extent(lines: list[str], size: float) -> tuple[int, int]:
    """Return (width, height) in pixels of a block of lines with its background."""
    widest = max(text_width(line, size) for line in lines)
    return widest + round(size * 20), len(lines) * line_height(size) + round(size * 12)


def write_block(
    picture: Picture, corner: tuple[int, int], lines: list[str], size: float, first: Color
) -> None:
    """Draw lines on a darkened background with the top left `corner`; `first` colours line one."""
    x, y = corner
    width, height = extent(lines, size)
    behind = picture[y : y + height, x : x + width]
    behind[...] = (
        behind * (1 - _BACKGROUND_ALPHA) + np.array(BACKGROUND_COLOR) * _BACKGROUND_ALPHA
    ).astype(np.uint8)
    for number, line in enumerate(lines):
        base = (
            x + round(size * 10),
            y + round(size * 3) + (number + 1) * line_height(size) - round(size * 7),
        )
        write_line(picture, line, base, size, first if number == 0 else TEXT_COLOR)
