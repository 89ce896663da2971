"""The strategies of TASM (ICDE 2021), for comparison with `Ledger`, and offline optima.

`offline_tilings` returns the best tilings for queries known beforehand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vfsd.tiling.policy.interface import (
    AimCombinations,
    Aims,
    CurrentTilings,
    Query,
    Retile,
    Tiling,
    World,
)

ALPHA = 0.8
"""A layout must save a fifth of the pixels (TASM, section IV-B)."""


class FixedTilings:
    """Makes the same tilings whatever the queries are; without tilings: TASM's "not tiled"."""

    def __init__(self, world: World, tilings: Mapping[int, Tiling]) -> None:
        self._current = CurrentTilings(world)
        self._tilings = dict(sorted(tilings.items()))

    def start(self) -> list[Retile]:
        return [self._current.put(sot, tiling) for sot, tiling in self._tilings.items()]

    def observe(self, query: Query) -> list[Retile]:
        return []


def not_tiled(world: World) -> FixedTilings:
    """Return a policy without tiles."""
    return FixedTilings(world, {})


def all_objects(world: World) -> FixedTilings:
    """Return TASM's "all objects": every SOT tiled around all its known objects (section V-D)."""
    return FixedTilings(
        world, _tilings_around(world, ((sot, world.labels(sot)) for sot in world.sots))
    )


def regions_of_interest(world: World, aims: Aims) -> FixedTilings:
    """Return a policy that tiles at ingest around cheap detections, such as motion
    (section IV-D).
    """
    return FixedTilings(world, _tilings_around(world, ((sot, aims) for sot in world.sots)))


def known_queries(world: World, queries: Sequence[Query], alpha: float = ALPHA) -> FixedTilings:
    """Return TASM's "known queries, known objects" (section IV-B): the best with full foresight.

    The only candidate of a SOT is the tiling around the objects that are queried there.  It is made
    unless it decodes more than `alpha` of the pixels, or takes longer than no tiles.  As in the
    paper, the cost of making it does not count.
    """
    asked: dict[int, list[Query]] = {}
    for query in queries:
        for sot in world.touched(query):
            asked.setdefault(sot, []).append(query)
    aims = ((sot, Aims().union(*(query.aims for query in mine))) for sot, mine in asked.items())
    found = _tilings_around(world, aims)

    def total(sot: int, tiling: Tiling | None) -> float:
        return sum(world.decode(sot, query, tiling) for query in asked[sot])

    def pixels(sot: int, tiling: Tiling | None) -> int:
        return sum(world.pixels(sot, query, tiling) for query in asked[sot])

    return FixedTilings(
        world,
        {
            sot: tiling
            for sot, tiling in found.items()
            if pixels(sot, tiling) <= alpha * pixels(sot, None)
            and total(sot, tiling) < total(sot, None)
        },
    )


def _tilings_around(world: World, aims: Iterable[tuple[int, Aims]]) -> dict[int, Tiling]:
    found = ((sot, world.tiling_around(sot, these)) for sot, these in aims)
    return {sot: tiling for sot, tiling in found if tiling is not None}


class IncrementalMore:
    """TASM's "incremental, more" (section IV-C).

    After each query, every SOT that it touched is tiled around all aims ever queried there.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._current = CurrentTilings(world)
        self._asked: dict[int, Aims] = {}

    def start(self) -> list[Retile]:
        return []

    def observe(self, query: Query) -> list[Retile]:
        retiles = []
        for sot in self._world.touched(query):
            self._asked[sot] = self._asked.get(sot, Aims()) | query.aims
            tiling = self._world.tiling_around(sot, self._asked[sot])
            if tiling is not None and tiling != self._current[sot]:
                retiles.append(self._current.put(sot, tiling))
        return retiles


class TileOnFirstQuery:
    """Tiles a SOT around the aims of its first query, and never again.

    Early versions of TASM's paper mention it along with its eager and edge variants.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._current = CurrentTilings(world)

    def start(self) -> list[Retile]:
        return []

    def observe(self, query: Query) -> list[Retile]:
        retiles = []
        for sot in self._world.touched(query):
            tiling = self._world.tiling_around(sot, query.aims)
            if tiling is not None and self._current[sot] is None:
                retiles.append(self._current.put(sot, tiling))
        return retiles


@dataclass(slots=True)
class _RegretState:
    past: list[tuple[Query, float]] = field(default_factory=list)
    """Queries that touched it, each with the seconds that it took with the tiling at that time."""
    regret: dict[Aims, float] = field(default_factory=dict)
    barred: set[Aims] = field(default_factory=set)


class IncrementalRegret:
    """Re-tiles a SOT as soon as that would have saved `eta` times its price.

    The regret of a layout is the saving that it would have brought past queries.  A new layout is
    credited for all queries so far, each against the layout at that time.  Re-tiling a SOT resets
    its regrets.  A layout is barred from a SOT permanently once any query there decodes at least
    `alpha` of the untiled pixels with it.

    It follows the paper, not its code: regrets are exact, ties are broken by size and name, and a
    combination counts once.
    """

    def __init__(self, world: World, eta: float = 1.0, alpha: float = ALPHA) -> None:
        self._world = world
        self._eta = eta
        self._alpha = alpha
        self._current = CurrentTilings(world)
        self._alternatives = AimCombinations()
        self._sots: dict[int, _RegretState] = {}

    def start(self) -> list[Retile]:
        return []

    def observe(self, query: Query) -> list[Retile]:
        for aims in self._alternatives.add(query.aims):
            for sot, state in self._sots.items():
                state.regret[aims] = 0.0
                for past, seconds in state.past:
                    self._credit(sot, state, aims, past, seconds)
        for sot in self._world.touched(query):
            state = self._sots.setdefault(sot, _RegretState())
            seconds = self._world.decode(sot, query, self._current[sot])
            state.past.append((query, seconds))
            for aims in self._alternatives:
                self._credit(sot, state, aims, query, seconds)
        # A new combination may be due in any SOT.
        due = ((sot, self._due_aims(sot, state)) for sot, state in sorted(self._sots.items()))
        return [self._retile(sot, aims) for sot, aims in due if aims is not None]

    def _credit(
        self, sot: int, state: _RegretState, aims: Aims, query: Query, seconds: float
    ) -> None:
        tiling = self._world.tiling_around(sot, aims)
        if tiling is None or aims in state.barred:
            return
        untiled = self._world.pixels(sot, query, None)
        if self._world.pixels(sot, query, tiling) >= self._alpha * untiled:
            state.barred.add(aims)
            state.regret.pop(aims, None)
            return
        saved = seconds - self._world.decode(sot, query, tiling)
        state.regret[aims] = state.regret.get(aims, 0.0) + saved

    def _due_aims(self, sot: int, state: _RegretState) -> Aims | None:
        """Return the combination with most regret, if that is enough."""
        open_to = [
            aims
            for aims in state.regret
            if self._world.tiling_around(sot, aims) not in (None, self._current[sot])
        ]
        if not open_to:
            return None
        best = max(open_to, key=lambda aims: state.regret[aims])
        tiling = self._world.tiling_around(sot, best)
        assert tiling is not None
        enough = state.regret[best] > self._eta * self._current.price(sot, tiling)
        return best if enough else None

    def _retile(self, sot: int, aims: Aims) -> Retile:
        tiling = self._world.tiling_around(sot, aims)
        assert tiling is not None
        self._sots[sot].regret.clear()
        return self._current.put(sot, tiling)


MAX_CANDIDATES = 40
"""Maximum number of combinations per SOT; later ones are not tried."""
# Number of distinct queries of a SOT in the first comparison of candidates.
_SAMPLE = 32
# Number of candidates in the final comparison with all queries.
_FINAL = 2

ExtraCandidates = Callable[[int, Sequence[Query]], Iterable[Tiling]]
"""Returns more candidates for a SOT with these queries."""


def offline_tilings(
    world: World,
    queries: Sequence[Query],
    aims_of: Sequence[Query],
    there: Mapping[int, Tiling],
    extra: ExtraCandidates,
) -> dict[int, Tiling]:
    """Return the tiling of each SOT that minimizes the cost of making it and reading all queries.

    A SOT has no entry if no tiling beats the original.  The result never costs more than the
    existing tilings, or than no tiles.

    TASM's "known queries, known objects" has a single candidate, and omits its price.

    Args:
        world: Costs.
        queries: The queries to optimize for.
        aims_of: For each query, the query whose aims generate its candidates.
        there: Existing tilings, which cost nothing to make.
        extra: More candidates.
    """
    asked: dict[int, list[int]] = {}
    for number, query in enumerate(queries):
        for sot in world.touched(query):
            asked.setdefault(sot, []).append(number)
    found = {}
    for sot, numbers in sorted(asked.items()):
        mine = [queries[number] for number in numbers]
        combinations = AimCombinations()
        for number in numbers:
            combinations.add(aims_of[number].aims)
        around = (world.tiling_around(sot, aims) for aims in list(combinations)[:MAX_CANDIDATES])
        some = [*around, *extra(sot, mine), there.get(sot)]
        candidates = [one for one in dict.fromkeys(some) if one is not None and one.tiles]
        best = _best(world, sot, candidates, mine, there.get(sot))
        if best is not None:
            found[sot] = best
    return found


def _best(
    world: World,
    sot: int,
    candidates: Sequence[Tiling],
    queries: Sequence[Query],
    there: Tiling | None,
) -> Tiling | None:
    counted = list(Counter(queries).items())

    def total(tiling: Tiling | None, some: Sequence[tuple[Query, int]]) -> float:
        made = tiling is None or tiling == there
        price = 0.0 if made or tiling is None else world.making_cost(sot, tiling).seconds
        times = sum(count for _, count in counted) / sum(count for _, count in some)
        return price + times * sum(
            count * world.decode(sot, query, tiling) for query, count in some
        )

    sample = counted[:: -(-len(counted) // _SAMPLE)]
    ranked = sorted(candidates, key=lambda tiling: total(tiling, sample))[:_FINAL]
    last: list[Tiling | None] = [None, *ranked]
    if there is not None and there not in ranked:
        last.append(there)
    # Of equals the first wins: one that need not be made.
    return min(last, key=lambda tiling: total(tiling, counted))
