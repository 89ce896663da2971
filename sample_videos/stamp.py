"""The frame number, written into the picture so that it survives lossy coding and scaling.

It stands in the top left corner as 24 black or white cells, two rows of twelve, most significant
bit first, white for one.  A cell is a 40th of the picture wide and a 30th high, but no less than
8 x 8 pixels.  Where neither limit is hit, a scaled copy of the picture reads the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sample_videos.textures import Image

BITS = 24
COLUMNS, ROWS = 12, 2
SMALLEST_WIDTH, SMALLEST_HEIGHT = 8 * COLUMNS, 8 * ROWS

_DARK, _BRIGHT = 96, 160  # a cell's mean between the two is neither black nor white


def _edges(cells: int, cell: float) -> list[int]:
    return [round(edge * max(8.0, cell)) for edge in range(cells + 1)]


def write_frame_number(rgb: Image, number: int) -> None:
    """Stamps `number` (``0 <= number < 2**24``) into `rgb`, height x width x 3, in place."""
    height, width = rgb.shape[:2]
    rows, columns = _edges(ROWS, height / 30), _edges(COLUMNS, width / 40)
    for cell in range(BITS):
        row, column = divmod(cell, COLUMNS)
        value = 255 if number >> (BITS - 1 - cell) & 1 else 0
        rgb[rows[row] : rows[row + 1], columns[column] : columns[column + 1]] = value


def read_frame_number(rgb: npt.NDArray[np.uint8]) -> int:
    """The number stamped into a whole, upright picture: height x width x 3 RGB, or grey.

    Raises `ValueError` where the corner holds no readable stamp.
    """
    height, width = rgb.shape[:2]
    rows, columns = _edges(ROWS, height / 30), _edges(COLUMNS, width / 40)
    if rows[-1] > height or columns[-1] > width:
        raise ValueError(f"a picture of {width}x{height} is too small to hold a frame number")
    number = 0
    for cell in range(BITS):
        row, column = divmod(cell, COLUMNS)
        top, bottom = rows[row], rows[row + 1]
        left, right = columns[column], columns[column + 1]
        # Codecs smear the edges of a cell; its inner half is sound.
        rim_y, rim_x = (bottom - top) // 4, (right - left) // 4
        level = rgb[top + rim_y : bottom - rim_y, left + rim_x : right - rim_x].mean()
        if _DARK < level < _BRIGHT:
            raise ValueError(f"cell {cell} is neither black nor white (mean {level:.0f})")
        number = number << 1 | int(level >= _BRIGHT)
    return number
