"""Made-up tables of costs, for worst cases that no real video has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vfsd.tiling import TileLayout
from vfsd.tiling.policy import Aims, Query, Tiling, TilingCost

WHOLE = 1.0
"""Seconds for reading a whole SOT without tiles."""


def tiling(aims: Aims) -> Tiling:
    """A different tiling for each set of aims: the width of the first column encodes the set."""
    number = sum(1 << "abcd".index(str(aim)) for aim in aims)
    return Tiling.whole(TileLayout((number, 100 - number), (100,)))


@dataclass
class TableWorld:
    """One SOT.  The cost of `query(n)` is in row n: without tiles, and in each tiling or 0."""

    prices: Mapping[Tiling, float]
    rows: Sequence[tuple[float, Mapping[Tiling, float]]] = ()
    aims: Sequence[Aims] = ()
    sots: range = field(default=range(1))
    gops: Sequence[int | None] = (None,)

    def query(self, number: int) -> Query:
        return Query(range(number, number + 1), self.aims[number])

    def touched(self, query: Query) -> list[int]:
        return [0]

    def labels(self, sot: int) -> Aims:
        return Aims().union(*self.aims)

    def tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        found = tiling(aims)
        return found if found in self.prices else None

    def decode(self, sot: int, query: Query, current: Tiling | None) -> float:
        untiled, tiled = self.rows[query.frames.start]
        return untiled if current is None else min(untiled, tiled[current])

    def pixels(self, sot: int, query: Query, current: Tiling | None) -> int:
        return round(1000 * self.decode(sot, query, current))

    def making_cost(self, sot: int, made: Tiling) -> TilingCost:
        return TilingCost(self.prices[made], 0.0)
