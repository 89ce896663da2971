"""From the displayed frame to the smaller picture that is looked at, and boxes back again."""

from __future__ import annotations

from vfsd.errors import UsageError
from vfsd.tiling import Rect


def fitted(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size with these proportions whose longer side has at most `longest` pixels."""
    if longest < 1:
        raise UsageError(f"a picture of {longest} pixels cannot be looked at")
    scale = min(1.0, longest / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def outward(box: tuple[int, int, int, int], shown: tuple[int, int], full: tuple[int, int]) -> Rect:
    """All pixels of the `full` frame that the box of whole pixels of the `shown` picture touches.

    Sizes are (width, height); the box lies within the picture.
    """
    x1, y1, x2, y2 = box
    (across, down), (width, height) = shown, full
    # In integers: with floats a box at the right edge might reach one pixel further.
    return Rect(
        x1 * width // across,
        y1 * height // down,
        -(-x2 * width // across),
        -(-y2 * height // down),
    )
