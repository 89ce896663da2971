"""Tilings for known queries: the cheapest for each SOT, including the cost of making it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.cost_tables import TableWorld, tiling
from tests.tiling.policy.test_strategies import RATES, footage, some_footage, some_queries
from vfsd.tiling import LayoutRules, uniform_layout
from vfsd.tiling.policy import (
    Aims,
    BoxWorld,
    FixedTilings,
    Query,
    Tiling,
    VideoProfile,
    replay_queries,
    wanted_tiles,
)
from vfsd.tiling.policy.tasm_policies import offline_tilings
from vfsd.tiling.policy.worlds import CheapestSource

SETS = [Aims(aims) for aims in ("a", "b", "ab")]
TILINGS = [tiling(aims) for aims in SETS]
cost = st.floats(0, 1)


@given(
    prices=st.lists(st.floats(0, 20), min_size=3, max_size=3),
    rows=st.lists(st.tuples(cost, cost, cost, cost), min_size=1, max_size=30),
)
def test_offline_tiling_is_optimal(
    prices: list[float], rows: list[tuple[float, float, float, float]]
) -> None:
    world = TableWorld(
        dict(zip(TILINGS, prices, strict=True)),
        [(untiled, dict(zip(TILINGS, tiled, strict=True))) for untiled, *tiled in rows],
        [SETS[number % 2] for number in range(len(rows))],
    )
    queries = [world.query(number) for number in range(len(rows))]

    def total(made: Tiling | None) -> float:
        price = 0.0 if made is None else world.prices[made]
        return price + sum(world.decode(0, query, made) for query in queries)

    found = offline_tilings(world, queries, queries, {}, lambda sot, mine: ())
    candidates = TILINGS if len(rows) > 1 else TILINGS[:1]
    assert total(found.get(0)) <= min(map(total, [None, *candidates])) + 1e-9


@given(some_footage, some_queries)
def test_offline_tiling_costs_at_most_the_present_one(
    boxes: VideoProfile, queries: list[Query]
) -> None:
    world = BoxWorld(boxes, RATES, wanted_tiles, CheapestSource())
    grid = Tiling.whole(uniform_layout(640, 480, 2, 3, LayoutRules()))
    there = dict.fromkeys(world.sots, grid)
    free = offline_tilings(world, queries, queries, there, lambda sot, mine: ())
    paid = offline_tilings(world, queries, queries, {}, lambda sot, mine: (grid,))

    def decoding(tilings: dict[int, Tiling]) -> float:
        return sum(replay_queries(FixedTilings(world, tilings), world, queries).decoding)

    def making(tilings: dict[int, Tiling]) -> float:
        return sum(world.making_cost(sot, one).seconds for sot, one in tilings.items())

    mine = {sot: one for sot, one in free.items() if one != grid}
    assert decoding(free) + making(mine) <= decoding(there) + 1e-9
    assert decoding(paid) + making(paid) <= decoding({}) + 1e-9


def test_existing_tiling_is_kept_unless_a_new_one_pays() -> None:
    world = BoxWorld(footage([{"car": (100, 100)}]), RATES, wanted_tiles)
    there = {0: Tiling.whole(uniform_layout(640, 480, 4, 4, LayoutRules()))}
    car = Query(range(10), Aims({"car"}))
    assert offline_tilings(world, [car], [car], there, lambda sot, mine: ()) == there
    many = [car] * 10_000
    found = offline_tilings(world, many, many, there, lambda sot, mine: ())
    assert found == {0: world.tiling_around(0, car.aims)}
