"""Layouts of tiles: how a picture is cut by lines that run through all of it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from vfsd.errors import UsageError
from vfsd.tiling.geometry import Rect

_SIZES = r"[1-9][0-9]{0,8}(?:\+[1-9][0-9]{0,8})*"
_LAYOUT = re.compile(f"({_SIZES})x({_SIZES})")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Columns from left to right and rows from top to bottom; together they are the picture.

    Tiles are numbered from 0, row by row.  A picture that is not cut has one column and one row.
    Raises `UsageError` when there is no column or row, or one that holds no pixel.
    """

    widths: tuple[int, ...]  #: of the columns, in pixels
    heights: tuple[int, ...]  #: of the rows, in pixels
    column_edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Where columns begin, and where the last one ends: 0 ... `width`."""
    row_edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Where rows begin, and where the last one ends: 0 ... `height`."""

    def __post_init__(self) -> None:
        for sizes, what in ((self.widths, "columns"), (self.heights, "rows")):
            if not sizes or min(sizes) < 1:
                raise UsageError(
                    f"sizes of {what} must be 1 pixel or more, and at least one, got {sizes}"
                )
        # Kept, since they are searched for every box of a query.
        object.__setattr__(self, "column_edges", tuple(accumulate(self.widths, initial=0)))
        object.__setattr__(self, "row_edges", tuple(accumulate(self.heights, initial=0)))

    @classmethod
    def untiled(cls, width: int, height: int) -> TileLayout:
        return cls((width,), (height,))

    @classmethod
    def cut_at(
        cls, width: int, height: int, columns: Iterable[int], rows: Iterable[int]
    ) -> TileLayout:
        """A picture cut at these inner boundaries, given in ascending order.

        Raises `UsageError` where they are not, or do not lie inside the picture.
        """
        return cls(_sizes((0, *columns, width)), _sizes((0, *rows, height)))

    @classmethod
    def parse(cls, text: str) -> TileLayout:
        """From the widths, an x and the heights: ``480+960+480x272+808``.  Raises `UsageError`."""
        match = _LAYOUT.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is not a layout of tiles",
                hint="write uniform:RxC (rows x columns), or widths x heights: 480+960x272+808",
            )
        widths, heights = (tuple(map(int, sizes.split("+"))) for sizes in match.groups())
        return cls(widths, heights)

    def __str__(self) -> str:
        return "x".join("+".join(map(str, sizes)) for sizes in (self.widths, self.heights))

    @property
    def width(self) -> int:
        return self.column_edges[-1]

    @property
    def height(self) -> int:
        return self.row_edges[-1]

    @property
    def columns(self) -> int:
        return len(self.widths)

    @property
    def rows(self) -> int:
        return len(self.heights)

    @property
    def count(self) -> int:
        return self.columns * self.rows

    @property
    def is_untiled(self) -> bool:
        return self.count == 1

    @property
    def tiles(self) -> tuple[Rect, ...]:
        return tuple(
            Rect(x1, y1, x2, y2)
            for y1, y2 in pairwise(self.row_edges)
            for x1, x2 in pairwise(self.column_edges)
        )

    def tile(self, index: int) -> Rect:
        """Raises `UsageError` where there is no such tile."""
        if not 0 <= index < self.count:
            raise UsageError(f"tile {index} does not exist: {self} has {self.count}")
        row, column = divmod(index, self.columns)
        x1, x2 = self.column_edges[column : column + 2]
        y1, y2 = self.row_edges[row : row + 2]
        return Rect(x1, y1, x2, y2)

    def covering(self, rect: Rect) -> list[int]:
        """The tiles that hold a pixel of `rect`, ascending; none where it lies outside."""
        columns = _span(self.column_edges, rect.x1, rect.x2)
        rows = _span(self.row_edges, rect.y1, rect.y2)
        return [row * self.columns + column for row in rows for column in columns]

    def cuts(self, rect: Rect) -> bool:
        """Whether a boundary between tiles runs through the inside of `rect`."""
        columns = _span(self.column_edges, rect.x1, rect.x2)
        rows = _span(self.row_edges, rect.y1, rect.y2)
        return len(columns) * len(rows) > 1


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """What a codec demands of a layout.

    Every inner boundary is a multiple of `align` from the picture's origin; the picture's own
    right and lower edges lie where they lie.  No tile of a tiled picture is smaller than the
    minimum, the last of a row or column included, so a picture that is itself smaller is untiled.

    The defaults are those of tiles that are streams of their own in H.264: its macroblocks have 16
    pixels, and a boundary elsewhere costs bytes where the source was compressed in such blocks; a
    tile below 64 x 64 costs about as much to start as to decode.
    """

    align: int = 16  #: pixels
    minimum_width: int = 64  #: pixels
    minimum_height: int = 64  #: pixels
    maximum_tiles: int | None = None  #: columns times rows; None: as many as there is room for
    maximum_columns: int | None = None
    maximum_rows: int | None = None

    def __post_init__(self) -> None:
        demands = (self.align, self.minimum_width, self.minimum_height)
        limits = (self.maximum_tiles, self.maximum_columns, self.maximum_rows)
        if min(demands) < 1 or any(limit is not None and limit < 1 for limit in limits):
            raise UsageError(f"{self} cannot be kept: every value has to be 1 or more")

    def allows_tiles(self, width: int, height: int) -> bool:
        """Whether a picture of this size is large enough to be cut at all."""
        return width >= self.minimum_width and height >= self.minimum_height

    def allows_count(self, layout: TileLayout) -> bool:
        """Whether it has no more columns, rows and tiles than may be."""
        counts = (
            (len(layout.widths), self.maximum_columns),
            (len(layout.heights), self.maximum_rows),
            (layout.count, self.maximum_tiles),
        )
        return all(maximum is None or count <= maximum for count, maximum in counts)

    def check(self, layout: TileLayout) -> None:
        """Raises `UsageError`, naming the first rule that `layout` breaks."""
        if layout.is_untiled:
            return
        columns = self.minimum_width, self.maximum_columns
        rows = self.minimum_height, self.maximum_rows
        for edges, sizes, minimum, maximum, what in (
            (layout.column_edges, layout.widths, *columns, "column"),
            (layout.row_edges, layout.heights, *rows, "row"),
        ):
            for edge in edges[1:-1]:
                if edge % self.align:
                    raise UsageError(
                        f"the {what}s of {layout} must end at multiples of {self.align}, got {edge}"
                    )
            if min(sizes) < minimum:
                raise UsageError(
                    f"{layout} has a {what} of {min(sizes)} pixels, fewer than {minimum}"
                )
            if maximum is not None and len(sizes) > maximum:
                raise UsageError(f"{layout} has {len(sizes)} {what}s, more than {maximum}")
        if self.maximum_tiles is not None and layout.count > self.maximum_tiles:
            raise UsageError(f"{layout} has {layout.count} tiles, more than {self.maximum_tiles}")


def _sizes(edges: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(after - before for before, after in pairwise(edges))


def _span(edges: tuple[int, ...], start: int, end: int) -> range:
    """Which of the parts between `edges` hold a pixel of ``start <= pixel < end``, 0 <= start."""
    return range(bisect_right(edges, start) - 1, min(bisect_left(edges, end), len(edges) - 1))
