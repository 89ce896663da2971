"""Strategies of tiling side by side: TASM's and ours, on one video and one workload.

TASM's tile whole pictures, as TASM has nothing else; ours make only the tiles that hold what is
wanted, as the original stays.  Reading is the same for all: as the store's planner would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from vfsd.errors import UsageError
from vfsd.tiling import Rect, TileLayout, uniform
from vfsd.tiling.policy import (
    Aims,
    BoxWorld,
    Fixed,
    Footage,
    IncrementalMore,
    IncrementalRegret,
    Lazy,
    Ledger,
    Making,
    Original,
    Policy,
    Query,
    Rates,
    Reading,
    Seen,
    Tiling,
    World,
    all_objects,
    every_tile,
    known_queries,
    not_tiled,
    wanted_tiles,
)
from vfsd.tiling.policy.box_world import Made
from vfsd.tiling.policy.offline import foreseen
from vfsd.tiling.policy.region_clusters import InPatches, patched, patches

_GRIDS = ((1, 2), (2, 1), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (4, 6), (6, 6))
"""Rows and columns of uniform layouts that are tried: the best where regions are everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A workload on one video, and what is known of both."""

    footage: Footage
    rates: Rates
    reading: Reading
    queries: Sequence[Query]
    there: Mapping[int, Tiling] = field(default_factory=dict)
    """Tilings that SOTs have by now."""
    takes_parts: bool = True  #: whether tiles that nobody wants may be left out


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to decide what to tile."""

    name: str
    title: str
    make: Callable[[World, Ground], Policy]
    is_ours: bool = False  #: makes wanted tiles only, where the tile codec takes that


# ------------------------------------------------------------------------------------- worlds


class _Delegate:
    """A world that asks another one."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def sots(self) -> range:
        return self._world.sots

    def touched(self, query: Query) -> Sequence[int]:
        return self._world.touched(query)

    def labels(self, sot: int) -> Aims:
        return self._world.labels(sot)

    def around(self, sot: int, aims: Aims) -> Tiling | None:
        return self._world.around(sot, aims)

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        return self._world.decode(sot, query, tiling)

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        return self._world.pixels(sot, query, tiling)

    def making(self, sot: int, tiling: Tiling) -> Making:
        return self._world.making(sot, tiling)


class Standing(_Delegate):
    """Some tilings are there, and take nothing to make."""

    def __init__(self, world: World, there: Mapping[int, Tiling]) -> None:
        super().__init__(world)
        self._there = there

    def making(self, sot: int, tiling: Tiling) -> Making:
        made = self._world.making(sot, tiling)
        return Making(0.0, made.bytes) if self._there.get(sot) == tiling else made


class _Remembered(_Delegate):
    """What takes long to work out is worked out once.

    The same regions are cut out alike in all SOTs of the same length.
    """

    def __init__(self, world: World, sots: Sequence[range]) -> None:
        super().__init__(world)
        self._sots = sots
        self._known: dict[tuple[int, Aims], Tiling | None] = {}

    def around(self, sot: int, aims: Aims) -> Tiling | None:
        if not all(isinstance(aim, Rect) for aim in aims):
            return self._world.around(sot, aims)
        key = len(self._sots[sot]), aims
        if key not in self._known:
            self._known[key] = self._world.around(sot, aims)
        return self._known[key]


class _RememberedOriginal:
    """The same parts of it are asked for in every tiling."""

    def __init__(self, original: Original) -> None:
        self.work = lru_cache(maxsize=None)(original.work)


class Ground:
    """What strategies share: what one of them asked of a world, the next need not work out."""

    def __init__(self, case: Case) -> None:
        original = case.footage.original
        if original is not None:
            footage = replace(case.footage, original=_RememberedOriginal(original))
            case = replace(case, footage=footage)
        self.case = case
        self.patches = patches(case.queries)
        self._made: Made = wanted_tiles if case.takes_parts else every_tile
        self._ours = self._world(self._made)
        self._papers = self._world(every_tile)

    def world(self, *, is_ours: bool) -> World:
        return self._ours if is_ours else self._papers

    def _world(self, made: Made) -> World:
        case = self.case
        world = BoxWorld(case.footage, case.rates, made, case.reading)
        return _Remembered(world, case.footage.sots)

    def in_patches(self, policy: Policy) -> Policy:
        return InPatches(policy, self.patches)

    def foreseen(self, world: World) -> Policy:
        case = self.case
        thought = [patched(query, self.patches) for query in case.queries]
        found = foreseen(world, case.queries, thought, case.there, self._uniform)
        return Fixed(world, found)

    @cached_property
    def _grids(self) -> Sequence[TileLayout]:
        footage = self.case.footage
        found = []
        for rows, columns in _GRIDS:
            try:
                grid = uniform(footage.width, footage.height, rows, columns, footage.rules)
            except UsageError:
                continue
            found.append(grid)
        return found

    def _uniform(self, sot: int, queries: Sequence[Query]) -> Iterator[Tiling]:
        """Uniform layouts, with the tiles that the queries touch."""
        if not any(isinstance(aim, Rect) for query in queries for aim in query.aims):
            return
        wanted = _looked_at(self.case.footage, sot, queries)
        for grid in self._grids:
            yield self._made(grid, wanted, self.case.footage.sots[sot].start)


def _looked_at(footage: Footage, sot: int, queries: Sequence[Query]) -> Seen:
    """All that the queries may look for in a SOT."""
    last, seen = footage.sots[sot][-1], footage.seen[sot]
    aims = {aim for query in queries for aim in query.aims}
    rects = [(one.x1, one.y1, one.x2, one.y2) for one in aims if isinstance(one, Rect)]
    boxes = [seen[aim] for aim in aims if isinstance(aim, str) and aim in seen]
    return Seen(
        np.concatenate([np.full(len(rects), last, np.int64), *(one.frames for one in boxes)]),
        np.concatenate([np.array(rects, np.int64).reshape(-1, 4), *(one.corners for one in boxes)]),
    )


# --------------------------------------------------------------------------------- strategies

PRESENT = "present"

STRATEGIES = (
    Strategy("none", "not tiled", lambda world, ground: not_tiled(world)),
    Strategy(
        PRESENT,
        "as it is",
        lambda world, ground: Fixed(world, ground.case.there),
    ),
    Strategy(
        "known",
        "known queries, known objects",
        lambda world, ground: known_queries(world, ground.case.queries),
    ),
    Strategy("all", "all objects", lambda world, ground: all_objects(world)),
    Strategy("lazy", "lazy", lambda world, ground: ground.in_patches(Lazy(world))),
    Strategy(
        "more", "incremental, more", lambda world, ground: ground.in_patches(IncrementalMore(world))
    ),
    Strategy(
        "regret",
        "incremental, regret",
        lambda world, ground: ground.in_patches(IncrementalRegret(world)),
    ),
    Strategy(
        "ledger",
        "ours, query by query",
        lambda world, ground: ground.in_patches(Ledger(world)),
        is_ours=True,
    ),
    Strategy(
        "foreseen",
        "ours, queries known",
        lambda world, ground: ground.foreseen(world),
        is_ours=True,
    ),
)
"""TASM's (ICDE 2021, sections IV and V; "lazy" from earlier versions of it) and ours."""
