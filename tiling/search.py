"""The search for columns and rows that together make boxes cheap to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vfsd.tiling.cut_search import Axis, Cuts, Table, cheapest, cheapest_by_parts
from vfsd.tiling.wanted_boxes import Ints, Wanted

_DESCENTS = 2
"""Promising starts that are followed to their end.  Against the best of all layouts, two gave just
that in 999 of 1000 random scenes, four in all of them, at one and a half times the work.  With a
largest number of tiles it was 992 of 1000, and the others were up to a fifth dearer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest numbers there may be; None: any."""

    tiles: int | None = None
    columns: int | None = None
    rows: int | None = None

    def columns_beside(self, rows: int) -> int | None:
        """With so many rows."""
        return _least(self.columns, self._shared_by(rows))

    def rows_beside(self, columns: int) -> int | None:
        """With so many columns."""
        return _least(self.rows, self._shared_by(columns))

    def _shared_by(self, parts: int) -> int | None:
        return None if self.tiles is None else self.tiles // parts


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Finds the cuts of two axes.

    The cost of a layout is a sum over its tiles.  So, the rows given, it is a sum over the columns,
    and the best columns can be had exactly; and the other way round.  Taking turns until nothing
    improves ends where neither could be better alone, which need not be the best of all: that
    depends on the rows it starts from, so several are tried.
    """

    columns: Axis
    rows: Axis
    lengths: Table
    """(groups of columns, groups of rows): the frames that a tile is decoded for the boxes that
    are in both groups."""
    together: bool  #: as in `Wanted`
    tile_cost: int
    limits: Limits

    @classmethod
    def of(
        cls, columns: Axis, rows: Axis, wanted: Wanted, tile_cost: int, limits: Limits
    ) -> Search:
        lengths = np.zeros((columns.groups, rows.groups))
        _join(wanted.together).at(lengths, (columns.group, rows.group), wanted.lengths)
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
        uncut, *others = [cuts for _, cuts in cheapest_by_parts(finest, most)]
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
        return _best(costs, self.limits.columns_beside(len(rows) + 1))

    def _best_rows(self, columns: Cuts) -> tuple[float, Cuts]:
        costs = self._costs(self.rows, self.lengths.T, self.columns.parts(columns))
        return _best(costs, self.limits.rows_beside(len(columns) + 1))

    def _costs(self, axis: Axis, lengths: Table, parts: tuple[Ints, Ints]) -> Table:
        """`Axis.costs` of `axis`, with the `parts` of the other axis that hold a box given."""
        firsts, sizes = parts
        join = _join(self.together)
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


def _best(costs: Table, most: int | None) -> tuple[float, Cuts]:
    """The best cuts of an axis into at most so many parts."""
    return cheapest(costs) if most is None else cheapest_by_parts(costs, most)[-1]


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _join(together: bool) -> np.ufunc:
    """How the lengths of boxes in one tile add up to those that are decoded of it."""
    return np.maximum if together else np.add
