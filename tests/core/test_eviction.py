"""Eviction orders, and the minimal set to evict."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.budgets import (
    EvictionCandidate,
    EvictionOrder,
    by_benefit,
    decayed,
    lru_vss,
    victims,
)

ORDERS = (lru_vss, by_benefit)

entries = st.lists(
    st.builds(
        EvictionCandidate,
        id=st.integers(0, 10**6),
        bytes=st.integers(1, 1000),
        age=st.integers(0, 50),
        gain=st.floats(0, 10),
        place=st.integers(0, 3),
        run=st.integers(4, 9),
        redundancy=st.integers(0, 4),
        retired=st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.id,
)


@given(entries, st.integers(0, 20_000))
def test_minimal_set_is_evicted(some: list[EvictionCandidate], wanted: int) -> None:
    for order in ORDERS:
        ranked = order(some)
        assert sorted(one.id for one in ranked) == sorted(one.id for one in some)
        retired = [one.retired for one in ranked]
        assert retired == sorted(retired, reverse=True), "what is retired goes first"
        gone = victims(ranked, wanted)
        freed = sum(one.bytes for one in gone)
        assert freed >= min(wanted, sum(one.bytes for one in some))
        for one in gone:
            assert freed - one.bytes < wanted, "no segment goes for nothing"


def ids(order: EvictionOrder, some: list[EvictionCandidate]) -> list[int]:
    return [one.id for one in order(some)]


def test_lru_vss_spares_the_middle_and_evicts_redundant_data() -> None:
    run = [EvictionCandidate(at, 10, age=5, gain=1, place=at, run=5) for at in range(5)]
    assert ids(lru_vss, run) == [0, 4, 1, 3, 2]

    better = dataclasses.replace(run[2], id=9, redundancy=5)  # -5 + 2 * 2 - 5
    assert ids(lru_vss, [*run, better])[:3] == [9, 0, 4]
    recent = EvictionCandidate(8, 10, age=0, gain=0)
    assert ids(lru_vss, [recent, *run])[-1] == 8


def test_benefit_per_byte_decays() -> None:
    small, large = (
        EvictionCandidate(1, 10, age=3, gain=2),
        EvictionCandidate(2, 1000, age=0, gain=20),
    )

    assert ids(by_benefit, [small, large]) == [1, 2], "0.0125 and 0.02 for a byte"
    assert ids(by_benefit, [dataclasses.replace(small, age=2), large]) == [2, 1]
    assert ids(by_benefit, [dataclasses.replace(small, age=1), large]) == [2, 1]
    assert ids(by_benefit, [dataclasses.replace(small, age=2, redundancy=1), large]) == [1, 2]


def test_old_savings_decay() -> None:
    assert decayed(8, 0) == 8
    assert decayed(8, 30, half_life=10) == pytest.approx(1)
    assert decayed(8, -5) == 8, "another process may have counted more reads"
