"""The strategies of the paper behave as described there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cost_tables import TableWorld, tiling
from vfsd.tiling import LayoutRules, Rect
from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST
from vfsd.tiling.policy import (
    Aims,
    BoxWorld,
    ByteDensity,
    CostRates,
    IncrementalMore,
    IncrementalRegret,
    LabelBoxes,
    Ledger,
    Query,
    TileOnFirstQuery,
    TilesOnly,
    Tiling,
    VideoProfile,
    World,
    all_objects,
    every_tile,
    known_queries,
    not_tiled,
    regions_of_interest,
    replay_queries,
    wanted_tiles,
)
from vfsd.tiling.policy.interface import AimCombinations

RATES = CostRates(
    DEFAULT_COSTS["h264"], DEFAULT_COSTS["fast"], ENCODE_FAST, ByteDensity(0.004, 0.05)
)
A, B, AB = (tiling(Aims(aims)) for aims in ("a", "b", "ab"))


def footage(places: list[dict[str, tuple[int, int]]]) -> VideoProfile:
    """SOTs of ten frames of 640x480, with one static box of 60x60 per label."""
    seen = [
        {
            label: LabelBoxes(
                np.arange(10) + 10 * sot, np.tile(np.array([(x, y, x + 60, y + 60)]), (10, 1))
            )
            for label, (x, y) in here.items()
        }
        for sot, here in enumerate(places)
    ]
    sots = [range(10 * sot, 10 * sot + 10) for sot in range(len(places))]
    return VideoProfile(640, 480, sots, seen, LayoutRules())


place = st.tuples(st.integers(0, 580), st.integers(0, 420))
some_footage = st.lists(
    st.dictionaries(st.sampled_from(["car", "dog"]), place), min_size=1, max_size=3
).map(footage)
some_queries = st.lists(
    st.builds(
        lambda start, length, aims: Query(range(start, start + length), aims),
        st.integers(0, 29),
        st.integers(1, 20),
        st.sampled_from(
            [
                Aims({"car"}),
                Aims({"dog"}),
                Aims({"car", "dog"}),
                Aims({Rect(100, 100, 300, 200)}),
            ]
        ),
    ),
    max_size=8,
)

CAR = Query(range(10), Aims({"car"}))
DOG = Query(range(10), Aims({"dog"}))
APART = footage([{"car": (0, 0), "dog": (500, 400)}])


@pytest.mark.parametrize("made", [every_tile, wanted_tiles])
@settings(deadline=None)
@given(some_footage, some_queries)
def test_policies_do_not_repeat_tilings_and_are_deterministic(
    made: object, video: VideoProfile, queries: list[Query]
) -> None:
    world = BoxWorld(video, RATES, made)  # type: ignore[arg-type]
    for make in (
        IncrementalMore,
        IncrementalRegret,
        TileOnFirstQuery,
        Ledger,
        all_objects,
        not_tiled,
    ):
        first, second = (replay_queries(make(world), world, queries) for _ in range(2))
        assert first.retiles == second.retiles
        assert first.total == second.total
        there: dict[int, Tiling] = {}
        for _, retile in first.retiles:
            assert there.get(retile.sot) != retile.tiling
            there[retile.sot] = retile.tiling


@settings(deadline=None)
@given(some_footage, some_queries)
def test_known_queries_choose_the_best_candidate(video: VideoProfile, queries: list[Query]) -> None:
    world = BoxWorld(video, RATES)
    asked = {
        sot: Aims().union(*(query.aims for query in queries if sot in world.touched(query)))
        for sot in world.sots
    }
    options = [{None, world.tiling_around(sot, aims)} for sot, aims in asked.items()]
    least = min(
        sum(
            world.decode(sot, query, choice[sot])
            for query in queries
            for sot in world.touched(query)
        )
        for choice in product(*options)
    )
    assert sum(replay_queries(known_queries(world, queries, 1.0), world, queries).decoding) == (
        pytest.approx(least)
    )


def test_known_queries_skip_savings_below_a_fifth() -> None:
    rows = [(1.0, {A: 0.81})]
    world = TableWorld({A: 1.0}, rows, [Aims("a")])
    assert not known_queries(world, [world.query(0)]).start()
    assert known_queries(world, [world.query(0)], alpha=0.9).start()


@settings(deadline=None)
@given(some_footage, some_queries)
def test_reading_only_tiles_is_never_cheaper(video: VideoProfile, queries: list[Query]) -> None:
    """If tiles are always read, a policy cannot decode less."""
    store, paper = BoxWorld(video, RATES), BoxWorld(video, RATES, reading=TilesOnly())
    ours, theirs = (replay_queries(all_objects(world), world, queries) for world in (store, paper))
    assert sum(ours.decoding) <= sum(theirs.decoding) + 1e-12
    whole = replay_queries(not_tiled(store), store, queries)
    assert sum(ours.decoding) <= whole.total + 1e-12


def test_incremental_more_covers_all_queried_objects() -> None:
    world = BoxWorld(APART, RATES)
    made = [
        retile.tiling
        for _, retile in replay_queries(IncrementalMore(world), world, [CAR, DOG, CAR]).retiles
    ]
    assert made == [world.tiling_around(0, CAR.aims), world.tiling_around(0, CAR.aims | DOG.aims)]


def test_lazy_tiles_once() -> None:
    world = BoxWorld(APART, RATES)
    made = [
        retile.tiling
        for _, retile in replay_queries(TileOnFirstQuery(world), world, [CAR, DOG]).retiles
    ]
    assert made == [world.tiling_around(0, CAR.aims)]


def test_regions_at_ingest_are_charged_to_the_first_query() -> None:
    world = BoxWorld(APART, RATES)
    bill = replay_queries(regions_of_interest(world, DOG.aims), world, [CAR, DOG])
    (retile,) = (retile for _, retile in bill.retiles)
    assert bill.making == [world.making_cost(0, retile.tiling).seconds, 0.0]


def told(world: TableWorld, policy: IncrementalRegret) -> list[list[Tiling]]:
    return [
        [retile.tiling for retile in policy.observe(world.query(number))]
        for number in range(len(world.rows))
    ]


def test_regret_waits_for_eta_times_the_price() -> None:
    rows = [(1.0, {A: 0.5})] * 9
    world = TableWorld({A: 2.0}, rows, [Aims("a")] * 9)
    assert told(world, IncrementalRegret(world)) == [*[[]] * 4, [A], *[[]] * 4]
    assert told(world, IncrementalRegret(world, eta=0.0))[0] == [A]


def test_regret_accumulates_for_later_candidates() -> None:
    aims = [Aims("a"), Aims("a"), Aims("b")]
    rows = [(1.0, {A: 0.7, B: 1.0, AB: 0.0})] * 3
    world = TableWorld({A: 9.0, B: 9.0, AB: 2.9}, rows, aims)
    # B is excluded, as its queries save nothing; AB would have saved three seconds.
    assert told(world, IncrementalRegret(world)) == [[], [], [AB]]


def test_single_query_excludes_a_layout() -> None:
    rows = [(1.0, {A: 0.8}), *[(1.0, {A: 0.0})] * 20]
    world = TableWorld({A: 2.0}, rows, [Aims("a")] * 21)
    assert not any(told(world, IncrementalRegret(world)))
    assert any(told(world, IncrementalRegret(world, alpha=0.9)))


def test_combinations_of_few_and_many_targets() -> None:
    few = AimCombinations(few=2)
    assert few.add(Aims("a")) == [Aims("a")]
    assert few.add(Aims("b")) == [Aims("b"), Aims("ab")]
    assert few.add(Aims("a")) == []
    assert few.add(Aims("c")) == [Aims("c"), Aims("abc")]
    assert len(list(few)) == 5


def test_only_wanted_tiles_are_made() -> None:
    whole, wanted = BoxWorld(APART, RATES), BoxWorld(APART, RATES, wanted_tiles)
    large, small = whole.tiling_around(0, CAR.aims), wanted.tiling_around(0, CAR.aims)
    assert large is not None
    assert small is not None
    assert large.layout == small.layout
    assert len(small.tiles) == 1
    assert wanted.making_cost(0, small).seconds < whole.making_cost(0, large).seconds
    assert wanted.decode(0, CAR, small) == whole.decode(0, CAR, large)
    assert wanted.decode(0, DOG, small) == wanted.decode(0, DOG, None)


def test_world_with_other_rates_differs_only_in_costs() -> None:
    world = BoxWorld(APART, RATES)
    dear = world.at(RATES.scaled(decode=1, encode=2))
    tiled = world.tiling_around(0, CAR.aims)
    assert tiled is not None
    assert dear.tiling_around(0, CAR.aims) == tiled
    assert dear.decode(0, CAR, tiled) == world.decode(0, CAR, tiled)
    assert dear.making_cost(0, tiled).seconds > world.making_cost(0, tiled).seconds


def test_region_queries_cover_every_frame() -> None:
    world: World = BoxWorld(APART, RATES)
    query = Query(range(4), Aims({Rect(0, 0, 10, 10)}))
    tiled = world.tiling_around(0, query.aims)
    assert world.touched(query) == [0]
    assert world.pixels(0, query, None) == 4 * 640 * 480
    assert tiled is not None
    assert world.pixels(0, query, tiled) == 4 * tiled.layout.tile(0).area
