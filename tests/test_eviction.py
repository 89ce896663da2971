"""Orders of eviction, and how few have to go."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.eviction import Entry, Order, by_worth, faded, lru, lru_vss, victims

ORDERS = (lru, lru_vss, by_worth)

entries = st.lists(
    st.builds(
        Entry,
        id=st.integers(0, 10**6),
        bytes=st.integers(1, 1000),
        used=st.integers(0, 50),
        worth=st.floats(0, 10),
        place=st.integers(0, 3),
        run=st.integers(4, 9),
        redundancy=st.integers(0, 4),
        retired=st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.id,
)


@given(entries, st.integers(0, 20_000))
def test_just_enough_goes(some: list[Entry], wanted: int) -> None:
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


def ids(order: Order, some: list[Entry]) -> list[int]:
    return [one.id for one in order(some)]


def test_lru_vss_spares_the_middle_and_not_what_is_redundant() -> None:
    run = [Entry(at, 10, used=7, worth=1, place=at, run=5) for at in range(5)]
    assert ids(lru_vss, run) == [0, 4, 1, 3, 2]
    assert ids(lru, run) == [0, 1, 2, 3, 4]
    better = dataclasses.replace(run[2], id=9, redundancy=5)  # 7 + 2 * 2 - 5
    assert ids(lru_vss, [*run, better])[:3] == [9, 0, 4]
    recent = Entry(8, 10, used=12, worth=0)
    assert ids(lru_vss, [recent, *run])[-1] == 8


def test_worth_is_by_the_byte() -> None:
    small = Entry(1, 10, used=1, worth=2)
    large = Entry(2, 1000, used=9, worth=20)
    assert ids(by_worth, [small, large]) == [2, 1]
    assert ids(lru, [small, large]) == [1, 2]


def test_what_was_saved_long_ago_counts_less() -> None:
    assert faded(8, 0) == 8
    assert faded(8, 30, half_life=10) == pytest.approx(1)
    assert faded(8, -5) == 8, "numbers of reads may have been counted by others meanwhile"
