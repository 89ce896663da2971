"""Of queries to come what the latest were like is expected, not what chance made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfsd.tiling.policy import Aims
from vfsd.tiling.policy.ledger import ReadForecast

A, B = Aims("a"), Aims("b")


def told(sots: int, horizon: float, queries: list[list[int]]) -> ReadForecast:
    outlook = ReadForecast(sots, horizon)
    for touched in queries:
        outlook.observe(A, touched)
    return outlook


def naively(sots: int, horizon: float, queries: list[list[int]]) -> list[float]:
    """The formula, from all queries at once."""
    counts = (1 - 1 / horizon) ** np.arange(len(queries))[::-1]
    reads = np.zeros(sots)
    for count, touched in zip(counts, queries, strict=True):
        reads[touched] += count
    mean, variance = reads.mean(), reads.var()
    chance = mean * (counts**2).sum() / counts.sum()
    own = max(0.0, 1 - chance / variance) if variance else 0.0
    some = horizon * (1 - 1 / counts.sum()) * (mean + own * (reads - mean)) / counts.sum()
    return [float(one) for one in some]


@settings(deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda sots: st.tuples(
            st.just(sots),
            st.lists(st.lists(st.integers(0, sots - 1), unique=True), min_size=1, max_size=40),
        )
    ),
    st.sampled_from([1.0, 3.0, 50.0]),
)
def test_it_is_the_formula(some: tuple[int, list[list[int]]], horizon: float) -> None:
    sots, queries = some
    outlook = told(sots, horizon, queries)
    assert [outlook.expected_reads(sot) for sot in range(sots)] == pytest.approx(
        naively(sots, horizon, queries), abs=1e-6
    )


def test_chance_is_not_taken_for_a_reason() -> None:
    rng = np.random.default_rng(5)
    evenly = [[int(rng.integers(60))] for _ in range(200)]
    outlook = told(60, 100.0, evenly)
    expected = [outlook.expected_reads(sot) for sot in range(60)]
    most = max(outlook.reads(sot) for sot in range(60))
    assert most > 3  # of 100 queries, 1.7 are to be expected
    assert max(expected) < 2.5


def test_what_is_read_all_the_time_is_expected_to_be() -> None:
    outlook = told(60, 50.0, [[7]] * 200)
    assert outlook.expected_reads(7) == pytest.approx(50, rel=0.1)
    assert outlook.expected_reads(8) < 0.1


def test_what_is_no_longer_read_is_not_expected() -> None:
    outlook = told(60, 50.0, [[7]] * 200 + [[8]] * 200)
    assert outlook.expected_reads(7) < 2
    assert outlook.expected_reads(8) > 45


def test_the_first_query_founds_no_expectation() -> None:
    assert told(3, 50.0, [[0, 1, 2]]).expected_reads(0) == 0.0


def test_shares_are_of_queries_that_look_for_nothing_else() -> None:
    outlook = ReadForecast(1, 1000.0)
    for aims in (A, A, B, A | B):
        outlook.observe(aims, [0])
    assert outlook.share(A) == pytest.approx(0.5, abs=0.01)
    assert outlook.share(B) == pytest.approx(0.25, abs=0.01)
    assert outlook.share(A | B) == pytest.approx(1.0)
