"""The bound of the ledger policy holds for any input, and the policy is useful."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cost_tables import TableWorld, tiling
from vfsd.errors import UsageError
from vfsd.tiling.policy import (
    Aims,
    Ledger,
    LedgerParameters,
    Query,
    ReplayCost,
    Tiling,
    replay_queries,
)

A, B, AB = (tiling(Aims(aims)) for aims in ("a", "b", "ab"))
ALL = Aims("ab")


def at_once(world: TableWorld) -> float:
    """The lowest cost of no tiles and of each candidate made before the first query."""
    queries = [world.query(number) for number in range(len(world.rows))]
    ways: list[tuple[Tiling | None, float]] = [(None, 0.0), *world.prices.items()]
    return min(price + sum(world.decode(0, query, one) for query in queries) for one, price in ways)


def bill(world: TableWorld, terms: LedgerParameters) -> ReplayCost:
    queries = [world.query(number) for number in range(len(world.rows))]
    return replay_queries(Ledger(world, terms), world, queries)


def check(world: TableWorld, terms: LedgerParameters) -> None:
    done = bill(world, terms)
    never = sum(untiled for untiled, _ in world.rows)
    assert done.total <= terms.bound_untiled * never * (1 + 1e-9)
    assert done.total <= terms.bound_offline(len(world.prices)) * at_once(world) * (1 + 1e-9)


shares = st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0])
prices = st.floats(1.0, 20.0)
rows = st.tuples(st.floats(0.01, 1.0), shares, shares, shares).map(
    lambda row: (row[0], {A: row[0] * row[1], B: row[0] * row[2], AB: row[0] * row[3]})
)
some_terms = st.builds(
    LedgerParameters,
    eta=st.sampled_from([0.5, 1.0, 3.0]),
    caution=st.sampled_from([1.0, 2.0, 5.0]),
    lead=st.sampled_from([1.05, 1.25, 2.0]),
    stake=st.sampled_from([0.0, 0.1, 5.0]),
    horizon=st.sampled_from([1.0, 5.0, 50.0, 1000.0]),
    persistence=st.sampled_from([0.0, 1.0]),
    doubt=st.sampled_from([0.0, 8.0]),
)


@settings(deadline=None)
@given(st.tuples(prices, prices, prices), st.lists(rows, max_size=80), some_terms)
def test_bounds_hold_for_random_queries(
    price: tuple[float, float, float],
    rows: list[tuple[float, dict[Tiling, float]]],
    terms: LedgerParameters,
) -> None:
    world = TableWorld(dict(zip((A, B, AB), price, strict=True)), rows, [ALL] * len(rows))
    check(world, terms)


@settings(deadline=None)
@given(st.tuples(prices, prices, prices), st.integers(1, 300), some_terms)
def test_bounds_hold_against_an_adaptive_adversary(
    price: tuple[float, float, float], count: int, terms: LedgerParameters
) -> None:
    """No query benefits from the tiles made by then, but each would from all others."""
    world = TableWorld(dict(zip((A, B, AB), price, strict=True)), [], [ALL] * count)
    policy, current, spent = Ledger(world, terms), None, 0.0
    written: list[tuple[float, dict[Tiling, float]]] = []
    world.rows = written
    for number in range(count):
        written.append((1.0, {one: float(one == current) for one in world.prices}))
        spent += world.decode(0, world.query(number), current)
        for retile in policy.observe(world.query(number)):
            assert retile.tiling != current
            current = retile.tiling
            spent += world.prices[current]
    never = sum(untiled for untiled, _ in written)
    assert spent <= terms.bound_untiled * never * (1 + 1e-9)
    assert spent <= terms.bound_offline(3) * at_once(world) * (1 + 1e-9)


@settings(deadline=None)
@given(st.lists(rows, max_size=60), some_terms)
def test_replay_gives_the_same_decisions(
    rows: list[tuple[float, dict[Tiling, float]]], terms: LedgerParameters
) -> None:
    world = TableWorld({A: 1.0, B: 2.0, AB: 3.0}, rows, [ALL] * len(rows))
    assert bill(world, terms).retiles == bill(world, terms).retiles


FORESEES_NOTHING = 1.0


def test_useful_tiling_is_made_once_it_pays_off() -> None:
    world = TableWorld({A: 5.0}, [(1.0, {A: 0.0})] * 12, [Aims("a")] * 12)
    ((number, retile),) = bill(
        world, LedgerParameters(horizon=FORESEES_NOTHING, caution=2.0)
    ).retiles
    assert (number, retile.tiling, retile.price) == (9, A, 5.0)  # after ten seconds


def test_tiling_with_small_gain_is_not_made() -> None:
    world = TableWorld({A: 5.0}, [(1.0, {A: 0.95})] * 400, [Aims("a")] * 400)
    assert bill(world, LedgerParameters()).total == pytest.approx(400.0)


def test_small_gain_over_many_queries_is_made_eventually() -> None:
    world = TableWorld({A: 5.0}, [(1.0, {A: 0.75})] * 120, [Aims("a")] * 120)
    ((number, _),) = bill(world, LedgerParameters(horizon=FORESEES_NOTHING, caution=5.0)).retiles
    assert number == 99  # 25 seconds saved


def test_first_query_triggers_no_tiling() -> None:
    world = TableWorld({A: 1.0}, [(1.0, {A: 0.0})] * 2, [Aims("a")] * 2)
    assert [number for number, _ in bill(world, LedgerParameters(stake=5.0)).retiles] == [1]


def test_cheap_tilings_are_made_early_within_reads_and_funds() -> None:
    world = TableWorld({A: 5.0}, [(1.0, {A: 0.0})] * 12, [Aims("a")] * 12)
    ((number, _),) = bill(world, LedgerParameters(stake=0.0)).retiles
    assert number == 4  # five seconds were read
    ((number, _),) = bill(world, LedgerParameters(stake=0.25)).retiles
    assert number == 3  # four, and a quarter of that
    ((number, _),) = bill(world, LedgerParameters(stake=0.0, eta=0.5)).retiles
    assert number == 2  # three count twice


def test_reads_fund_only_the_first_early_tiling() -> None:
    rows = [(1.0, {A: 0.5, B: 1.0})] * 20 + [(1.0, {A: 1.0, B: 0.0})] * 30
    world = TableWorld({A: 4.0, B: 9.0}, rows, [ALL] * 50)
    made = [
        (number, one.tiling) for number, one in bill(world, LedgerParameters(stake=0.0)).retiles
    ]
    assert made == [(3, A)]  # and eight seconds saved, which is too little for another
    made = [
        (number, one.tiling) for number, one in bill(world, LedgerParameters(stake=0.1)).retiles
    ]
    assert [tiling for _, tiling in made] == [A, B]


def test_alternating_labels_cause_no_oscillation() -> None:
    aims = [Aims("a"), Aims("b")] * 150
    rows = [(1.0, {A: 0.05, B: 1.0, AB: 0.1}), (1.0, {A: 1.0, B: 0.05, AB: 0.1})] * 150
    done = bill(TableWorld({A: 4.0, B: 4.0, AB: 4.0}, rows, aims), LedgerParameters())
    assert [retile.tiling for _, retile in done.retiles] == [AB]
    assert done.total < 0.15 * 300


def test_reads_of_other_sots_count_as_evidence() -> None:
    """The second of two SOTs is read for one of two labels that the first is read for."""

    class Two(TableWorld):
        sots = range(2)

        def touched(self, query: Query) -> list[int]:
            return [int(query.frames.start >= 40)]

    rows = [(1.0, {A: 0.0, B: 1.0, AB: 0.1})] * 48
    for label, expected in (("a", 1), ("b", 0)):
        aims = [Aims(label)] * 40 + [Aims("a")] * 8
        world = Two({A: 4.0, B: 4.0, AB: 4.0}, rows, aims, range(2))
        soon = [
            one
            for number, one in bill(world, LedgerParameters()).retiles
            if one.sot and number < 44
        ]
        assert len(soon) == expected


def test_lasting_change_of_queries_is_followed() -> None:
    aims = [Aims("a")] * 50 + [Aims("b")] * 400
    rows = [(1.0, {A: 0.0, B: 1.0})] * 50 + [(1.0, {A: 1.0, B: 0.0})] * 400
    done = bill(TableWorld({A: 4.0, B: 4.0}, rows, aims), LedgerParameters())
    assert [retile.tiling for _, retile in done.retiles] == [A, B]
    assert done.total < 0.2 * 450


@pytest.mark.parametrize(
    "terms",
    [
        LedgerParameters(caution=1.0, horizon=FORESEES_NOTHING),
        # Without the certain tiling, an early one would soon follow.
        LedgerParameters(caution=1.0, horizon=5.5, doubt=0.0, stake=5.0),
    ],
)
def test_better_tiling_replaces_a_paid_one_after_a_margin(
    terms: LedgerParameters,
) -> None:
    aims = [Aims("a"), *[Aims("b")] * 39]
    rows = [(1.0, {A: 0.0, B: 1.0})] * 10 + [(1.0, {A: 1.0, B: 0.0})] * 30
    done = bill(TableWorld({A: 4.0, B: 4.0}, rows, aims), terms)
    # 4 + 24 seconds, of 4 + 10: 23 more queries would not be twice as much.
    assert [(number, one.tiling) for number, one in done.retiles] == [(4, A), (33, B)]


def test_storage_has_a_cost() -> None:
    class Large(TableWorld):
        def making_cost(self, sot, made):  # type: ignore[no-untyped-def]
            return replace(super().making_cost(sot, made), bytes=1000.0)

    world = Large({A: 2.0}, [(1.0, {A: 0.0})] * 12, [Aims("a")] * 12)
    assert bill(world, LedgerParameters(byte_seconds=0.001)).retiles[0][1].price == 3.0
    assert not bill(world, LedgerParameters(byte_seconds=1.0)).retiles


@pytest.mark.parametrize(
    "wrong",
    [
        {"eta": 0.0},
        {"lead": 1.0},
        {"caution": 0.5},
        {"stake": -1.0},
        {"horizon": 0.5},
        {"doubt": -1.0},
        {"most": 0},
    ],
)
def test_invalid_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        replace(LedgerParameters(), **wrong)  # type: ignore[arg-type]
