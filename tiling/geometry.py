"""Rectangles on a frame."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from vfsd.errors import UsageError
from vfsd.validation import whole_numbers

_GEOMETRY = re.compile(r"(\d{1,9})x(\d{1,9})\+(\d{1,9})\+(\d{1,9})")
_CORNERS = re.compile(r"(\d{1,9}),\s*(\d{1,9}),\s*(\d{1,9}),\s*(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Rect:
    """Pixels ``x1 <= x < x2`` and ``y1 <= y < y2`` of the displayed full frame.

    Raises `UsageError` if it has no pixel or a negative edge.
    """

    x1: int
    y1: int
    x2: int
    y2: int

    def __post_init__(self) -> None:
        if not (0 <= self.x1 < self.x2 and 0 <= self.y1 < self.y2):
            raise UsageError(
                "region must have at least one pixel, got "
                f"({self.x1}, {self.y1}, {self.x2}, {self.y2})",
                hint="a region is (x1, y1, x2, y2) with 0 <= x1 < x2 and 0 <= y1 < y2",
            )

    @classmethod
    def from_value(cls, region: Rect | str | Iterable[SupportsIndex]) -> Rect:
        """Convert a caller's value: (x1, y1, x2, y2) of any integer type, or text as for `parse`.

        Raises `UsageError` for other types and lengths.
        """
        if isinstance(region, str):
            return cls.parse(region)
        if isinstance(region, Rect):
            region = (region.x1, region.y1, region.x2, region.y2)
        return cls(*whole_numbers(region, ("x1", "y1", "x2", "y2"), "region"))

    @classmethod
    def of_size(cls, width: int, height: int) -> Rect:
        return cls(0, 0, width, height)

    @classmethod
    def around(cls, rects: Iterable[Rect]) -> Rect:
        """Return the bounding rectangle of `rects`, which must not be empty."""
        some = tuple(rects)
        return cls(
            min(rect.x1 for rect in some),
            min(rect.y1 for rect in some),
            max(rect.x2 for rect in some),
            max(rect.y2 for rect in some),
        )

    @classmethod
    def parse(cls, text: str) -> Rect:
        """Parse ``WxH+X+Y`` or ``X1,Y1,X2,Y2``.  Raises `UsageError`."""
        corners = _CORNERS.fullmatch(text)
        if corners is not None:
            return cls(*map(int, corners.groups()))
        match = _GEOMETRY.fullmatch(text)
        if match is None:
            raise UsageError(
                f"region must be WxH+X+Y or X1,Y1,X2,Y2, got {text!r}",
                hint="for example 400x300+600+0, or 600,0,1000,300 for the same pixels",
            )
        width, height, x, y = map(int, match.groups())
        return cls(x, y, x + width, y + height)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}+{self.x1}+{self.y1}"

    @property
    def width(self) -> int:
        return self.x2 - self.x1

    @property
    def height(self) -> int:
        return self.y2 - self.y1

    @property
    def area(self) -> int:
        return self.width * self.height

    def contains(self, other: Rect) -> bool:
        return (
            self.x1 <= other.x1
            and self.y1 <= other.y1
            and other.x2 <= self.x2
            and other.y2 <= self.y2
        )

    def intersection(self, other: Rect) -> Rect | None:
        """Return the common pixels, or None."""
        x1, y1 = max(self.x1, other.x1), max(self.y1, other.y1)
        x2, y2 = min(self.x2, other.x2), min(self.y2, other.y2)
        return Rect(x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None

    def moved(self, dx: int, dy: int) -> Rect:
        return Rect(self.x1 + dx, self.y1 + dy, self.x2 + dx, self.y2 + dy)
