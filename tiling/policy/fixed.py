"""Policies that have made up their mind before the first query.

TASM: A Tile-Based Storage Manager for Video Analytics (ICDE 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vfsd.tiling.policy.base import Tilings
from vfsd.tiling.policy.query import Aims, Query, Retile, Tiling
from vfsd.tiling.policy.world import World

ALPHA = 0.8
"""A layout has to save a fifth of the pixels (TASM, section IV-B)."""


class Fixed:
    """Makes the same tilings whatever the queries are; none of them: TASM's "not tiled"."""

    def __init__(self, world: World, tilings: Mapping[int, Tiling]) -> None:
        self._current = Tilings(world)
        self._tilings = dict(sorted(tilings.items()))

    def start(self) -> list[Retile]:
        return [self._current.put(sot, tiling) for sot, tiling in self._tilings.items()]

    def tell(self, query: Query) -> list[Retile]:
        return []


def not_tiled(world: World) -> Fixed:
    """No tiles at all."""
    return Fixed(world, {})


def all_objects(world: World) -> Fixed:
    """TASM's "all objects": every SOT around all that is known to be there (section V-D)."""
    return Fixed(world, _around(world, ((sot, world.labels(sot)) for sot in world.sots)))


def regions_of_interest(world: World, aims: Aims) -> Fixed:
    """Tiling at ingest around what is cheap to find, as what moves (TASM, section IV-D)."""
    return Fixed(world, _around(world, ((sot, aims) for sot in world.sots)))


def known_queries(world: World, queries: Sequence[Query], alpha: float = ALPHA) -> Fixed:
    """TASM's "known queries, known objects" (section IV-B): the best that can be foreseen.

    The only candidate of a SOT is the tiling around the objects that are queried there.  It is
    made unless it decodes more than `alpha` of the pixels, or takes longer than no tiles.  As in
    the paper, what making it costs does not count.
    """
    asked: dict[int, list[Query]] = {}
    for query in queries:
        for sot in world.touched(query):
            asked.setdefault(sot, []).append(query)
    aims = ((sot, Aims().union(*(query.aims for query in mine))) for sot, mine in asked.items())
    found = _around(world, aims)

    def total(sot: int, tiling: Tiling | None) -> float:
        return sum(world.decode(sot, query, tiling) for query in asked[sot])

    def pixels(sot: int, tiling: Tiling | None) -> int:
        return sum(world.pixels(sot, query, tiling) for query in asked[sot])

    return Fixed(
        world,
        {
            sot: tiling
            for sot, tiling in found.items()
            if pixels(sot, tiling) <= alpha * pixels(sot, None)
            and total(sot, tiling) < total(sot, None)
        },
    )


def _around(world: World, aims: Iterable[tuple[int, Aims]]) -> dict[int, Tiling]:
    found = ((sot, world.around(sot, these)) for sot, these in aims)
    return {sot: tiling for sot, tiling in found if tiling is not None}
