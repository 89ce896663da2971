"""Rectangles on a frame, and tile layouts: columns and rows that partition the picture.

A SOT ("sequence of tiles") is a run of frames that share a layout.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, product
from reprlib import repr as shown
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from vfsd.errors import UsageError
from vfsd.validation import whole_number

_GEOMETRY = re.compile(r"(\d{1,9})x(\d{1,9})\+(\d{1,9})\+(\d{1,9})", re.ASCII)
_CORNERS = re.compile(r"\s*".join([r"(\d{1,9}),"] * 3 + [r"(\d{1,9})"]), re.ASCII)


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
    def from_value(cls, region: Region) -> Rect:
        """Convert a caller's value: (x1, y1, x2, y2) of any integer type, or text as for `parse`.

        Raises `UsageError` for other types and lengths.
        """
        corners = region_corners(region)
        try:
            whole = [whole_number(value, "region") for value in corners]
        except UsageError:
            raise region_error(region) from None
        return cls(*whole)

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
        if not isinstance(text, str):
            raise region_error(text)
        return cls.from_value(text)

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


Region = Rect | str | Iterable[SupportsIndex]
"""A `Rect`, (x1, y1, x2, y2), or text as for `Rect.parse`."""


def region_corners(region: Any) -> tuple[Any, Any, Any, Any]:
    """Return x1, y1, x2 and y2 of a region in any of its forms, as the caller gave them.

    The only parser of regions: text becomes ints, and nothing else is converted.  Raises
    `UsageError` for other text, types and lengths.
    """
    if isinstance(region, Rect):
        return region.x1, region.y1, region.x2, region.y2
    if isinstance(region, str):
        corners = _CORNERS.fullmatch(region)
        if corners is not None:
            x1, y1, x2, y2 = map(int, corners.groups())
            return x1, y1, x2, y2
        geometry = _GEOMETRY.fullmatch(region)
        if geometry is None:
            raise region_error(region)
        width, height, x, y = map(int, geometry.groups())
        return x, y, x + width, y + height
    try:
        x1, y1, x2, y2 = region
    except (TypeError, ValueError):
        raise region_error(region) from None
    return x1, y1, x2, y2


def is_region_text(text: str) -> bool:
    """Return whether text has the form of a region, which may be empty."""
    return bool(_CORNERS.fullmatch(text) or _GEOMETRY.fullmatch(text))


def region_error(region: object) -> UsageError:
    return UsageError(
        f"region must be (x1, y1, x2, y2), WxH+X+Y or a Rect, got {shown(region)}",
        hint="for example 400x300+600+0, or 600,0,1000,300 for the same pixels",
    )


_SIZES = r"[1-9][0-9]{0,8}(?:\+[1-9][0-9]{0,8})*"
_LAYOUT = re.compile(f"({_SIZES})x({_SIZES})")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Columns from left to right and rows from top to bottom, which together cover the picture.

    Tiles are numbered from 0, row by row.  An untiled picture has one column and one row.  Raises
    `UsageError` unless there is at least one of each, and all have at least one pixel.
    """

    widths: tuple[int, ...]  #: of the columns, in pixels
    heights: tuple[int, ...]  #: of the rows, in pixels
    column_edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Boundaries of columns: 0 ... `width`."""
    row_edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Boundaries of rows: 0 ... `height`."""

    def __post_init__(self) -> None:
        for sizes, what in ((self.widths, "columns"), (self.heights, "rows")):
            if not sizes or min(sizes) < 1:
                raise UsageError(
                    f"sizes of {what} must be 1 pixel or more, and at least one, got {sizes}"
                )
        # Stored, as they are searched for every box of a query.
        object.__setattr__(self, "column_edges", tuple(accumulate(self.widths, initial=0)))
        object.__setattr__(self, "row_edges", tuple(accumulate(self.heights, initial=0)))

    @classmethod
    def untiled(cls, width: int, height: int) -> TileLayout:
        return cls((width,), (height,))

    @classmethod
    def cut_at(
        cls, width: int, height: int, columns: Iterable[int], rows: Iterable[int]
    ) -> TileLayout:
        """Return a layout with these inner boundaries, in ascending order.

        Raises `UsageError` if they do not ascend, or are outside the picture.
        """
        return cls(_sizes((0, *columns, width)), _sizes((0, *rows, height)))

    @classmethod
    def parse(cls, text: str) -> TileLayout:
        """Parse widths and heights: ``480+960+480x272+808``.  Raises `UsageError`."""
        match = _LAYOUT.fullmatch(text)
        if match is None:
            raise UsageError(
                f"layout must be a grid or widths x heights, got {text!r}",
                hint="for example uniform:3x4 (rows x columns), or 480+960x272+808",
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
        """Return the rectangle of a tile.  Raises `UsageError` for an invalid number."""
        if not 0 <= index < self.count:
            raise UsageError(f"tile {index} does not exist: {self} has {self.count}")
        row, column = divmod(index, self.columns)
        x1, x2 = self.column_edges[column : column + 2]
        y1, y2 = self.row_edges[row : row + 2]
        return Rect(x1, y1, x2, y2)

    def covering(self, rect: Rect) -> list[int]:
        """Return the tiles with a pixel of `rect`, ascending; empty if it is outside."""
        columns = _span(self.column_edges, rect.x1, rect.x2)
        rows = _span(self.row_edges, rect.y1, rect.y2)
        return [row * self.columns + column for row in rows for column in columns]

    def cuts(self, rect: Rect) -> bool:
        """Return whether a boundary between tiles crosses the inside of `rect`."""
        columns = _span(self.column_edges, rect.x1, rect.x2)
        rows = _span(self.row_edges, rect.y1, rect.y2)
        return len(columns) * len(rows) > 1


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """The requirements of a codec on layouts.

    Every inner boundary is a multiple of `align`; the right and lower edges of the picture need not
    be. No tile of a tiled picture is smaller than the minimum, including the last ones.  So a
    picture smaller than that is untiled.

    The defaults are those of tiles that are independent H.264 streams.  Macroblocks have 16 pixels,
    and other boundaries cost bytes if the source was compressed in such blocks.  A tile below 64 x
    64 costs about as much to start as to decode.
    """

    align: int = 16  #: pixels
    minimum_width: int = 64  #: pixels
    minimum_height: int = 64  #: pixels
    maximum_tiles: int | None = None  #: columns times rows; None: no limit
    maximum_columns: int | None = None
    maximum_rows: int | None = None

    def __post_init__(self) -> None:
        demands = (self.align, self.minimum_width, self.minimum_height)
        limits = (self.maximum_tiles, self.maximum_columns, self.maximum_rows)
        if min(demands) < 1 or any(limit is not None and limit < 1 for limit in limits):
            raise UsageError(f"every value must be 1 or more, got {self}")

    def allows_tiles(self, width: int, height: int) -> bool:
        """Return whether a picture of this size can be cut at all."""
        return width >= self.minimum_width and height >= self.minimum_height

    def allows_count(self, layout: TileLayout) -> bool:
        """Return whether the layout respects the limits on columns, rows and tiles."""
        counts = (
            (len(layout.widths), self.maximum_columns),
            (len(layout.heights), self.maximum_rows),
            (layout.count, self.maximum_tiles),
        )
        return all(maximum is None or count <= maximum for count, maximum in counts)

    def check(self, layout: TileLayout) -> None:
        """Raises `UsageError` with the first rule that `layout` violates."""
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
                    f"each {what} of {layout} must have at least {minimum} pixels, got {min(sizes)}"
                )
            if maximum is not None and len(sizes) > maximum:
                raise UsageError(f"{layout} must have at most {maximum} {what}s, got {len(sizes)}")
        if self.maximum_tiles is not None and layout.count > self.maximum_tiles:
            raise UsageError(
                f"{layout} must have at most {self.maximum_tiles} tiles, got {layout.count}"
            )


def _sizes(edges: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(after - before for before, after in pairwise(edges))


def _span(edges: tuple[int, ...], start: int, end: int) -> range:
    """Return the parts between `edges` with a pixel of ``start <= pixel < end``; 0 <= start."""
    return range(bisect_right(edges, start) - 1, min(bisect_left(edges, end), len(edges) - 1))


_UNIFORM = re.compile(r"uniform:(\d{1,4})x(\d{1,4})")


def uniform_layout(
    width: int, height: int, rows: int, columns: int, rules: LayoutRules
) -> TileLayout:
    """Return a layout of `rows` x `columns` tiles of nearly equal size.

    Every boundary is the aligned position nearest to equal division that leaves the minimum size on
    both sides.

    Raises `UsageError` if the minimum size or the maximum number of tiles makes that impossible.
    """
    if rows < 1 or columns < 1:
        raise UsageError(f"rows and columns must be at least 1, got {rows} and {columns}")
    layout = TileLayout.cut_at(
        width,
        height,
        _equal_cuts(width, columns, rules.align, rules.minimum_width, "columns"),
        _equal_cuts(height, rows, rules.align, rules.minimum_height, "rows"),
    )
    rules.check(layout)
    return layout


def _equal_cuts(length: int, parts: int, align: int, minimum: int, what: str) -> list[int]:
    """Return the inner boundaries of `parts` parts of `length` pixels.  Raises `UsageError`."""
    if parts == 1:
        return []
    # Boundaries are multiples of `align`, so all parts but the last have at least this length.
    step = -(-minimum // align) * align
    last = (length - minimum) // align * align
    if step * (parts - 1) > last:
        raise UsageError(
            f"{length} pixels cannot be cut into {parts} {what} of at least {minimum} pixels "
            f"at multiples of {align}"
        )
    cuts: list[int] = []
    for number in range(1, parts):
        nearest = (2 * number * length + parts * align) // (2 * parts * align) * align
        lowest = (cuts[-1] if cuts else 0) + step
        highest = last - (parts - 1 - number) * step
        cuts.append(min(max(nearest, lowest), highest))
    return cuts


def parse_layout(text: str, width: int, height: int, rules: LayoutRules) -> TileLayout:
    """Parse a layout from users: ``uniform:RxC`` (rows and columns), ``untiled``, or its sizes.

    Raises `UsageError`, also if the sizes do not add up to width x height.
    """
    if text == "untiled":
        return TileLayout.untiled(width, height)
    grid = _UNIFORM.fullmatch(text)
    if grid is None:
        layout = TileLayout.parse(text)
        if (layout.width, layout.height) != (width, height):
            raise UsageError(
                f"layout must be for pictures of {width}x{height}, got {text} for "
                f"{layout.width}x{layout.height}",
                hint="uniform:RxC has R rows and C columns",
            )
        return layout
    return uniform_layout(width, height, int(grid.group(1)), int(grid.group(2)), rules)


def layout_around(rect: Rect, width: int, height: int, rules: LayoutRules) -> TileLayout:
    """Return the layout in which the tile around `rect` is as small as `rules` allow.

    At most two more columns and two more rows surround the tile.  Among several positions, it is
    centred on `rect` as well as possible.  The picture is untiled if it is too small to cut, or if
    `rect` needs all of it.  `rect` must be inside the picture.
    """
    untiled = TileLayout.untiled(width, height)
    if not rules.allows_tiles(width, height):
        return untiled
    columns = _roi_spans(rect.x1, rect.x2, width, rules.align, rules.minimum_width)
    rows = _roi_spans(rect.y1, rect.y2, height, rules.align, rules.minimum_height)
    allowed = (
        layout
        for (x1, x2), (y1, y2) in product(columns, rows)
        if rules.allows_count(layout := _layout_of_cuts(width, height, x1, x2, y1, y2))
    )
    return min(allowed, key=lambda layout: _layout_score(layout, rect), default=untiled)


def _roi_spans(
    start: int, end: int, length: int, align: int, minimum: int
) -> list[tuple[int, int]]:
    """Return the best parts of an axis that contain ``start <= pixel < end``: 0, 1 or 2 cuts."""
    found = [(0, length)]
    for begins, ends in (
        (_starts_before(start, align, minimum), [length]),
        ([0], _ends_after(end, length, align, minimum)),
        (_starts_before(start, align, minimum), _ends_after(end, length, align, minimum)),
    ):
        parts = [(first, last) for first, last in product(begins, ends) if last - first >= minimum]
        if parts:
            found.append(min(parts, key=lambda part: _span_score(part, start, end)))
    return found


def _span_score(part: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    first, last = part
    return last - first, abs((start - first) - (last - end))


def _starts_before(start: int, align: int, minimum: int) -> list[int]:
    """Return boundaries at or before `start` that leave a valid part before them."""
    nearest = start // align * align
    lowest = -(-minimum // align) * align
    # A boundary further away than the minimum is never better.
    return list(range(nearest, max(lowest, nearest - minimum - align) - 1, -align))


def _ends_after(end: int, length: int, align: int, minimum: int) -> list[int]:
    nearest = -(-end // align) * align
    highest = min(length - minimum, nearest + minimum + align)
    return list(range(nearest, highest + 1, align))


def _layout_of_cuts(width: int, height: int, x1: int, x2: int, y1: int, y2: int) -> TileLayout:
    columns = [at for at in (x1, x2) if 0 < at < width]
    rows = [at for at in (y1, y2) if 0 < at < height]
    return TileLayout.cut_at(width, height, columns, rows)


def _layout_score(layout: TileLayout, rect: Rect) -> tuple[int, int]:
    """Return the pixels of the tile with `rect`, then the number of tiles."""
    (tile,) = layout.covering(rect)
    return layout.tile(tile).area, layout.count


_SHORTEST = 0.5
# Shortest and longest SOT that aligns with GOPs, as multiples of the target.
_LONGEST = 1.5


def overlaps(some: range, others: range) -> bool:
    """Return whether two runs of frames have any in common."""
    return some.start < others.stop and others.start < some.stop


def frame_intersection(some: range, others: range) -> range:
    """Return the frames that two runs have in common; may be empty."""
    return range(max(some.start, others.start), min(some.stop, others.stop))


def cut_sequences(
    starts_of_gops: Sequence[int] | npt.NDArray[np.integer[Any]],
    frame_seconds: Sequence[float] | npt.NDArray[np.floating[Any]],
    target: float = 1.0,
    maximum_frames: int = 300,
) -> list[range]:
    """Return SOTs of about `target` seconds that cover all frames of a video from 0.

    `starts_of_gops` are key frames, ascending.  `frame_seconds` are the start times of all frames
    and the end of the last one, in seconds, not decreasing.

    A SOT ends at the start of a GOP, or the end of the video, if one lies between 0.5 and 1.5
    targets after its start: at the one nearest to the target.  So it is made from whole GOPs.
    Otherwise it ends at the frame nearest to the target, but not before half of it.  A remainder of
    less than half a target is added to the last SOT.

    The limit `maximum_frames` takes precedence over all of this.  A SOT is longer than 1.5 targets
    only if its last frame is shown for long, or by that remainder.

    TASM uses SOTs of one-second GOPs, which it found to be best.

    Raises `UsageError` without frames, if times or numbers decrease or lie outside the video, or if
    a limit is not positive.
    """
    times = np.asarray(frame_seconds, np.float64)
    keys = np.asarray(starts_of_gops, np.int64) if len(starts_of_gops) else np.zeros(0, np.int64)
    frames = len(times) - 1
    if frames < 1 or not (np.diff(times) >= 0).all():
        raise UsageError("a video must have at least one frame, and times must not decrease")
    if len(keys) and (keys[0] < 0 or keys[-1] >= frames or not (np.diff(keys) > 0).all()):
        raise UsageError(f"key frames must be ascending numbers from 0 to {frames - 1}")
    if not (target > 0 and maximum_frames > 0):
        raise UsageError("target and maximum_frames must be positive")
    ends = [0]
    boundaries = np.append(keys, frames)  # the end of the video counts as a key frame
    while ends[-1] < frames:
        ends.append(_next_end(ends[-1], boundaries, times, target, maximum_frames))
    if (
        len(ends) > 2
        and times[-1] - times[ends[-2]] < _SHORTEST * target
        and frames - ends[-3] <= maximum_frames
    ):
        del ends[-2]
    return [range(start, end) for start, end in pairwise(ends)]


def _next_end(
    start: int,
    keys: npt.NDArray[np.int64],
    times: npt.NDArray[np.float64],
    target: float,
    maximum_frames: int,
) -> int:
    """Return the end of the SOT that starts with frame `start`: the first frame after it."""
    last = min(start + maximum_frames, len(times) - 1)
    # Only possible ends: frames from `start` + 1 to `most`, as times since the start.
    passed = times[start + 1 : last + 1] - times[start]
    shortest = start + 1 + int(np.searchsorted(passed, _SHORTEST * target))
    longest = start + 1 + int(np.searchsorted(passed, _LONGEST * target, side="right"))
    candidates = keys[np.searchsorted(keys, shortest) : np.searchsorted(keys, longest)]
    if len(candidates):
        return int(candidates[np.abs(times[candidates] - times[start] - target).argmin()])
    if shortest > last:
        return last
    return shortest + int(np.abs(passed[shortest - start - 1 :] - target).argmin())
