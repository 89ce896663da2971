"""The policies that `benchmarks.workloads` compares, and the test cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST
from vfsd.tiling.policy import (
    BoxWorld,
    ByteDensity,
    CostRates,
    IncrementalMore,
    IncrementalRegret,
    Ledger,
    LedgerParameters,
    Query,
    TileOnFirstQuery,
    TilesOnly,
    TilingPolicy,
    VideoProfile,
    World,
    all_objects,
    every_tile,
    known_queries,
    not_tiled,
    replay_queries,
    wanted_tiles,
)
from vfsd.tiling.policy.ledger import ReadForecast
from vfsd.tiling.policy.worlds import TileSelection

RATES = CostRates(
    DEFAULT_COSTS["h264"], DEFAULT_COSTS["fast"], ENCODE_FAST, ByteDensity(still=0.004, moving=0.05)
)
"""Most bytes of footage of a fixed camera are where something moves."""

Seconds = npt.NDArray[np.float64]
"""After each query, of all decoding and making so far."""


@dataclass(frozen=True)
class Contestant:
    name: str
    make: Callable[[World, Sequence[Query]], TilingPolicy]
    made: TileSelection = every_tile


UNTILED = Contestant("none", lambda world, queries: not_tiled(world))
OURS = Contestant("ledger, wanted tiles", lambda world, queries: Ledger(world), wanted_tiles)
OURS_WHOLE = Contestant("ledger", lambda world, queries: Ledger(world))
PAPERS = (
    Contestant("all", lambda world, queries: all_objects(world)),
    Contestant("more", lambda world, queries: IncrementalMore(world)),
    Contestant("regret", lambda world, queries: IncrementalRegret(world)),
)
CONTESTANTS = (
    UNTILED,
    Contestant("known", known_queries),
    *PAPERS,
    Contestant("lazy", lambda world, queries: TileOnFirstQuery(world)),
    Contestant(
        "regret, wanted tiles", lambda world, queries: IncrementalRegret(world), wanted_tiles
    ),
    OURS_WHOLE,
    OURS,
)


@dataclass(frozen=True, eq=False)
class Case:
    """A workload on one video."""

    footage: VideoProfile
    rates: CostRates
    queries: Sequence[Query]

    def run(self, who: Contestant, truth: World, belief: World) -> Seconds:
        bill = replay_queries(who.make(belief, self.queries), truth, self.queries)
        return np.cumsum(np.array(bill.decoding) + np.array(bill.making))


class Worlds:
    """The world of each video, shared by all contestants because its answers are cached."""

    def __init__(self, reading: TilesOnly | None) -> None:
        self._reading = reading
        self._known: dict[tuple[int, int], BoxWorld] = {}

    def of(self, case: Case, made: TileSelection, rates: CostRates | None = None) -> BoxWorld:
        """The world with the true rates, or one with other rates."""
        key = id(case.footage), id(made)
        if key not in self._known:
            self._known[key] = BoxWorld(case.footage, case.rates, made, self._reading)
        known = self._known[key]
        return known if rates is None else known.at(rates)

    def untiled(self, case: Case) -> Seconds:
        world = self.of(case, every_tile)
        return case.run(UNTILED, world, world)


# ------------------------------------------------------------------------------ variants


def by_eta() -> list[Contestant]:
    def with_eta(eta: float) -> Contestant:
        return Contestant(f"eta {eta:g}", lambda world, queries: IncrementalRegret(world, eta))

    return [with_eta(eta) for eta in (0, 0.5, 1, 2, 5)]


class OwnReads(ReadForecast):
    """Expects each SOT to be read as often as it was read before."""

    def expected_reads(self, sot: int) -> float:
        return self.expected(self.reads(sot))


class MeanReads(ReadForecast):
    """Expects each SOT to be read as often as all SOTs on average."""

    def expected_reads(self, sot: int) -> float:
        return self.expected(self.mean)


def ablated() -> list[Contestant]:
    """Our policy with one parameter changed in each variant, which disables or changes one term."""
    terms = LedgerParameters()
    changed = {
        "as it is": terms,
        "nothing foreseen: no early tilings": replace(terms, horizon=1.0),
        "25 queries foreseen": replace(terms, horizon=25.0),
        "100 queries foreseen": replace(terms, horizon=100.0),
        "no doubt": replace(terms, doubt=0.0),
        "no stake": replace(terms, stake=0.0),
        "as much at stake as was read": replace(terms, stake=1.0),
        "no sure tilings": replace(terms, caution=1e9, lead=1e9),
        "no caution": replace(terms, caution=1.0),
        "hardly a lead (1.01)": replace(terms, lead=1.01),
        "half of eta": replace(terms, eta=0.5),
        "twice of eta": replace(terms, eta=2.0),
    }

    def with_terms(name: str, some: LedgerParameters) -> Contestant:
        return Contestant(name, lambda world, queries: Ledger(world, some), wanted_tiles)

    def with_outlook(
        name: str, kind: type[ReadForecast], horizon: float = terms.horizon
    ) -> Contestant:
        def make(world: World, queries: Sequence[Query]) -> TilingPolicy:
            return Ledger(world, terms, kind(len(world.sots), horizon))

        return Contestant(name, make, wanted_tiles)

    return [
        *(with_terms(name, some) for name, some in changed.items()),
        with_outlook("foreseen by its own reads alone", OwnReads),
        with_outlook("the same, 100 queries foreseen", OwnReads, 100.0),
        with_outlook("foreseen by the mean alone", MeanReads),
    ]


def beliefs(true: CostRates) -> dict[str, CostRates]:
    """Costs that a policy may believe in: each cost halved or doubled."""
    return {
        "true costs": true,
        "encoding at half": true.scaled(decode=1, encode=0.5),
        "encoding at double": true.scaled(decode=1, encode=2),
        "tiles decode at half": replace(true, tiles=true.tiles.times(0.5)),
        "tiles decode at double": replace(true, tiles=true.tiles.times(2)),
    }


def bills(worlds: Worlds, cases: Sequence[Case], who: Sequence[Contestant]) -> dict[str, Any]:
    """The total cost of each contestant by (case, query), relative to reading without tiles."""
    found: dict[str, list[Seconds]] = {one.name: [] for one in who}
    for case in cases:
        whole = float(worlds.untiled(case)[-1])
        for one in who:
            world = worlds.of(case, one.made)
            found[one.name].append(case.run(one, world, world) / whole)
    return {name: np.stack(each) for name, each in found.items()}


def misled(worlds: Worlds, cases: Sequence[Case], who: Sequence[Contestant]) -> dict[str, Any]:
    """The total cost of each contestant with each belief."""
    found: dict[str, list[Seconds]] = {}
    for case in cases:
        whole = float(worlds.untiled(case)[-1])
        for one in who:
            truth = worlds.of(case, one.made)
            for name, rates in beliefs(case.rates).items():
                run = case.run(one, truth, worlds.of(case, one.made, rates)) / whole
                found.setdefault(f"{one.name}: {name}", []).append(run)
    return {name: np.stack(each) for name, each in found.items()}
