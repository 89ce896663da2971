"""Layouts around boxes: TASM's PARTITION(s, O), coarse and fine.

`CutSearch` looks for columns and rows that together make the boxes cheapest to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfsd.tiling.decode_work import TILE_COST, Boxes, FrameNumbers, Ints, WantedBoxes
from vfsd.tiling.layout import LayoutRules, TileLayout

CostTable = npt.NDArray[np.float64]
"""Costs in pixels; infinite where something is not allowed.  Exact up to 2**53."""

Cuts = tuple[int, ...]
"""Inner boundaries as numbers of stops, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The positions at which no box is cut, and the boxes that lie between two of them.

    Boxes between the same two neighbouring stops are a group: they are in the same part whatever
    the cuts are.  Groups are numbered from 0; stretches without a box have no number.
    """

    stops: Ints  #: ascending: 0, every position that may be a boundary, the length
    minimum: int  #: pixels that a part has at least
    group: Ints  #: of each box
    groups_before: Ints  #: of each stop: how many groups lie before it

    @classmethod
    def of(cls, starts: Ints, ends: Ints, length: int, align: int, minimum: int) -> Axis:
        """The axis of `length` pixels with boxes that take up ``starts[i] <= pixel < ends[i]``.

        Boundaries are multiples of `align`.
        """
        # covered[i]: boxes that position i * align lies strictly inside.
        edges = np.zeros(length // align + 2, np.int64)
        np.add.at(edges, starts // align + 1, 1)
        np.subtract.at(edges, -(-ends // align), 1)
        covered = np.cumsum(edges)
        positions = np.arange(-(-minimum // align), max(0, length - minimum) // align + 1)
        inner = positions[covered[positions] == 0] * align
        stops = np.concatenate(([0], inner, [length]))
        taken, group = np.unique(np.searchsorted(stops, starts, "right") - 1, return_inverse=True)
        return cls(stops, minimum, group, np.searchsorted(taken, np.arange(len(stops))))

    @property
    def groups(self) -> int:
        return int(self.groups_before[-1])

    def cuts_around_groups(self) -> Cuts:
        """A cut as close as can be on either side of every group, whatever the minimum is."""
        before = np.flatnonzero(np.diff(self.groups_before))
        around = {*before.tolist(), *(before + 1).tolist()} - {0, len(self.stops) - 1}
        return tuple(sorted(around))

    def parts(self, cuts: Cuts) -> tuple[Ints, Ints]:
        """Of the parts that hold a box: the first group in each, and their lengths in pixels."""
        stops = np.array((0, *cuts, len(self.stops) - 1))
        before = self.groups_before[stops]
        holds = before[1:] > before[:-1]
        return before[:-1][holds], np.diff(self.stops[stops])[holds]

    def costs(self, per_pixel: CostTable, fixed: CostTable) -> CostTable:
        """``costs[end, start]``: of the part between two stops; infinite where it is too short.

        A part that holds the groups ``first <= group < end`` costs ``fixed[first, end]`` and
        ``per_pixel[first, end]`` for each pixel of its length.  The axis may always stay uncut.
        """
        length = self.stops[:, None] - self.stops[None, :]
        groups = self.groups_before
        costs = per_pixel.T[groups].take(groups, axis=1) * length
        costs += fixed.T[groups].take(groups, axis=1)
        costs[length < self.minimum] = np.inf
        costs[-1, 0] = per_pixel[0, -1] * self.stops[-1] + fixed[0, -1]
        return costs


def cheapest_cuts(costs: CostTable) -> tuple[float, Cuts]:
    """The cheapest way to cut an axis of these `Axis.costs` into parts, and what it costs."""
    to = np.full(len(costs), np.inf)  # the cheapest way to each stop
    to[0] = 0
    start = np.zeros(len(costs), np.int64)  # of the last part on that way
    for end in range(1, len(costs)):
        ways = to[:end] + costs[end, :end]
        start[end] = ways.argmin()
        to[end] = ways[start[end]]
    cuts: list[int] = []
    stop = int(start[-1])
    while stop:
        cuts.append(stop)
        stop = int(start[stop])
    return float(to[-1]), tuple(reversed(cuts))


def cheapest_cuts_by_parts(costs: CostTable, most: int | None = None) -> list[tuple[float, Cuts]]:
    """The cheapest ways to cut an axis into at most 1, 2, 3 ... `most` parts.

    The list ends where more parts make nothing cheaper.
    """
    to = costs[:, 0]
    found = [(float(to[-1]), Cuts())]
    ways_to: list[Cuts] = [()] * len(costs)
    while most is None or len(found) < most:
        ways = costs + to
        start = ways.argmin(axis=1)
        better = ways.min(axis=1) < to
        if not better.any():
            break
        ways_to = [
            (*ways_to[begin], begin) if improved else before
            for begin, improved, before in zip(
                start.tolist(), better.tolist(), ways_to, strict=True
            )
        ]
        to = np.minimum(to, ways.min(axis=1))
        found.append((float(to[-1]), ways_to[-1]))
    return found


_DESCENTS = 2
"""Promising starts that are followed to their end.  Against the best of all layouts, two gave just
that in 999 of 1000 random scenes, four in all of them, at one and a half times the work.  With a
largest number of tiles it was 992 of 1000, and the others were up to a fifth dearer."""


@dataclass(frozen=True, slots=True)
class CutLimits:
    """The largest numbers there may be; None: any."""

    tiles: int | None = None
    columns: int | None = None
    rows: int | None = None

    def columns_beside(self, rows: int) -> int | None:
        """With so many rows."""
        return _cheaper_costs(self.columns, self._shared_by(rows))

    def rows_beside(self, columns: int) -> int | None:
        """With so many columns."""
        return _cheaper_costs(self.rows, self._shared_by(columns))

    def _shared_by(self, parts: int) -> int | None:
        return None if self.tiles is None else self.tiles // parts


@dataclass(frozen=True, slots=True, eq=False)
class CutSearch:
    """Finds the cuts of two axes.

    The cost of a layout is a sum over its tiles.  So, the rows given, it is a sum over the columns,
    and the best columns can be had exactly; and the other way round.  Taking turns until nothing
    improves ends where neither could be better alone, which need not be the best of all: that
    depends on the rows it starts from, so several are tried.
    """

    columns: Axis
    rows: Axis
    lengths: CostTable
    """(groups of columns, groups of rows): the frames that a tile is decoded for the boxes that
    are in both groups."""
    together: bool  #: as in `Wanted`
    tile_cost: int
    limits: CutLimits

    @classmethod
    def of(
        cls, columns: Axis, rows: Axis, wanted: WantedBoxes, tile_cost: int, limits: CutLimits
    ) -> CutSearch:
        lengths = np.zeros((columns.groups, rows.groups))
        _combine_lengths(wanted.together).at(lengths, (columns.group, rows.group), wanted.lengths)
        return cls(columns, rows, lengths, wanted.together, tile_cost, limits)

    def best(self, rows: Cuts) -> tuple[Cuts, Cuts]:
        """The columns and the rows of the cheapest layout that was found.

        It is no dearer than any layout with these `rows`, nor than an uncut picture.
        """
        around = self.rows.cuts_around_groups()
        # Rows of every number that could pay if the columns were cut wherever they can be.
        finest = self._costs(
            self.rows, self.lengths.T, self.columns.parts(self.columns.cuts_around_groups())
        )
        most = self.limits.rows_beside(1)
        uncut, *others = [cuts for _, cuts in cheapest_cuts_by_parts(finest, most)]
        if self.limits.tiles is None:
            others.append(around)
        elif self.limits.tiles > 1:
            # Where rows cost columns, the best ones are often few: any single cut may be a start.
            others += [(cut,) for cut in around]
        others = sorted(set(others), key=lambda start: (self._best_columns(start)[0], start))
        ends = [self._descend(start) for start in (uncut, rows, *others[:_DESCENTS])]
        return min(ends, key=lambda end: (end[0], (len(end[1]) + 1) * (len(end[2]) + 1)))[1:]

    def _descend(self, rows: Cuts) -> tuple[float, Cuts, Cuts]:
        """Where taking turns from `rows` ends: the cost, the columns and the rows."""
        best: tuple[float, Cuts, Cuts] = (np.inf, (), rows)
        while True:
            _, columns = self._best_columns(best[2])
            cost, rows = self._best_rows(columns)
            if cost >= best[0]:
                return best
            best = cost, columns, rows

    def _best_columns(self, rows: Cuts) -> tuple[float, Cuts]:
        costs = self._costs(self.columns, self.lengths, self.rows.parts(rows))
        return _best_cuts(costs, self.limits.columns_beside(len(rows) + 1))

    def _best_rows(self, columns: Cuts) -> tuple[float, Cuts]:
        costs = self._costs(self.rows, self.lengths.T, self.columns.parts(columns))
        return _best_cuts(costs, self.limits.rows_beside(len(columns) + 1))

    def _costs(self, axis: Axis, lengths: CostTable, parts: tuple[Ints, Ints]) -> CostTable:
        """`Axis.costs` of `axis`, with the `parts` of the other axis that hold a box given."""
        firsts, sizes = parts
        join = _combine_lengths(self.together)
        lengths = join.reduceat(lengths, firsts, axis=1)
        groups = len(lengths)
        # joined[first, last, part]: of the tile from group `first` to `last`; 0 if last < first.
        joined = join.accumulate(np.triu(np.ones((groups, groups)))[..., None] * lengths, axis=1)
        tiles = np.minimum(joined, 1) if self.together else joined
        per_pixel = np.zeros((groups + 1, groups + 1))
        fixed = np.zeros((groups + 1, groups + 1))
        per_pixel[:-1, 1:] = joined @ sizes
        fixed[:-1, 1:] = tiles.sum(axis=2) * self.tile_cost
        return axis.costs(per_pixel, fixed)


def _best_cuts(costs: CostTable, most: int | None) -> tuple[float, Cuts]:
    """The best cuts of an axis into at most so many parts."""
    return cheapest_cuts(costs) if most is None else cheapest_cuts_by_parts(costs, most)[-1]


def _cheaper_costs(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _combine_lengths(together: bool) -> np.ufunc:
    """How the lengths of boxes in one tile add up to those that are decoded of it."""
    return np.maximum if together else np.add


def coarse_layout(
    boxes: Boxes, width: int, height: int, rules: LayoutRules, *, padding: int = 0
) -> TileLayout:
    """The layout of a picture with the smallest tile that holds all `boxes`.

    Its edges are extended through the picture, so there are up to 9 tiles.  Boxes are enlarged by
    `padding` pixels on each side, as far as there is a picture.  Without a box in the picture it
    is untiled, as it is where no smaller tile keeps to the `rules`.

    Raises `UsageError` as `Wanted.of` does.
    """
    corners = WantedBoxes.of(boxes, None, 0).within(width, height, padding).corners
    if not len(corners) or not rules.allows_tiles(width, height):
        return TileLayout.untiled(width, height)
    (x1, y1), (x2, y2) = corners[:, :2].min(axis=0).tolist(), corners[:, 2:].max(axis=0).tolist()
    ways = [
        (
            (columns[1] - columns[0]) * (rows[1] - rows[0]),
            TileLayout.cut_at(
                width, height, _inner_cuts(columns, width), _inner_cuts(rows, height)
            ),
        )
        for columns in _enclosures(x1, x2, width, rules.align, rules.minimum_width)
        for rows in _enclosures(y1, y2, height, rules.align, rules.minimum_height)
    ]
    return min(
        (way for way in ways if rules.allows_count(way[1])),
        key=lambda way: (way[0], way[1].count),
    )[1]


def _enclosures(
    start: int, end: int, length: int, align: int, minimum: int
) -> Iterable[tuple[int, int]]:
    """The stretches of an axis that may be the one tile around ``start <= pixel < end``: all of
    it, the shortest at either edge of the picture, and the shortest anywhere."""
    first = -(-minimum // align) * align  # the lowest boundary
    last = (length - minimum) // align * align  # the highest

    def end_from(begin: int) -> int:
        """Where the shortest stretch that begins there and holds `end` ends."""
        boundary = -(-max(end, begin + minimum) // align) * align
        return boundary if boundary <= last else length

    yield 0, length
    yield 0, end_from(0)
    begin = min(start // align * align, last)
    if begin < first:
        return
    yield begin, length
    # A begin further left helps only as long as the minimum, not a box, says where it ends.
    begins = range(begin, max(first, min(begin, end - minimum - align)) - 1, -align)
    yield min(((at, end_from(at)) for at in begins), key=lambda stretch: stretch[1] - stretch[0])


def _inner_cuts(stretch: tuple[int, int], length: int) -> tuple[int, ...]:
    return tuple(edge for edge in stretch if 0 < edge < length)


def fine_layout(
    boxes: Boxes,
    width: int,
    height: int,
    rules: LayoutRules,
    *,
    frames: FrameNumbers | None = None,
    first_frame: int = 0,
    padding: int = 0,
    tile_cost: int = TILE_COST,
) -> TileLayout:
    """A layout of a picture in which `boxes` are cheap to read and none is cut.

    Cheap is ``decoded_pixels(layout, boxes, frames, first_frame).cost(tile_cost)``: see there for
    `frames`.  Boxes are enlarged by `padding` pixels on each side, as far as there is a picture.
    The layout keeps to `rules`, and is never dearer than that of `coarse` or an untiled one.
    Without a box in the picture it is untiled.

    It is a local optimum: neither its columns nor its rows could be placed better alone.  Mostly
    it is the best of all layouts, with which the tests compare it.

    Raises `UsageError` as `Wanted.of` does.
    """
    wanted = WantedBoxes.of(boxes, frames, first_frame).within(width, height, padding)
    if not len(wanted.corners) or not rules.allows_tiles(width, height):
        return TileLayout.untiled(width, height)
    x1, y1, x2, y2 = wanted.corners.T
    across = Axis.of(x1, x2, width, rules.align, rules.minimum_width)
    down = Axis.of(y1, y2, height, rules.align, rules.minimum_height)
    start = coarse_layout(wanted.corners, width, height, rules).row_edges[1:-1]
    limits = CutLimits(rules.maximum_tiles, rules.maximum_columns, rules.maximum_rows)
    search = CutSearch.of(across, down, wanted, tile_cost, limits)
    columns, rows = search.best(tuple(np.searchsorted(down.stops, start).tolist()))
    return TileLayout.cut_at(
        width, height, across.stops[list(columns)].tolist(), down.stops[list(rows)].tolist()
    )
