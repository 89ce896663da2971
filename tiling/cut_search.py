"""One direction of a picture: where it may be cut, and where it is best cut.

A picture has two: the columns, along x, and the rows, along y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfsd.tiling.wanted_boxes import Ints

Table = npt.NDArray[np.float64]
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

    def costs(self, per_pixel: Table, fixed: Table) -> Table:
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


def cheapest(costs: Table) -> tuple[float, Cuts]:
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


def cheapest_by_parts(costs: Table, most: int | None = None) -> list[tuple[float, Cuts]]:
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
