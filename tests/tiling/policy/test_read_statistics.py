"""Future queries are predicted from recent ones, without fitting noise.

Patches: few, each containing its regions, and no larger than necessary.

Prefix sums over any run of frames, against counting.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import decoded_frames
from vfsd.tiling.policy import Aims, Query
from vfsd.tiling.policy.interface import cluster_regions, clustered_query
from vfsd.tiling.policy.ledger import ReadForecast
from vfsd.tiling.policy.worlds import DecodeExtent

A, B = Aims("a"), Aims("b")


def told(sots: int, horizon: float, queries: list[list[int]]) -> ReadForecast:
    outlook = ReadForecast(sots, horizon)
    for touched in queries:
        outlook.observe(A, touched)
    return outlook


def naively(sots: int, horizon: float, queries: list[list[int]]) -> list[float]:
    """The formula, evaluated from all queries at once."""
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
def test_incremental_estimate_equals_the_formula(
    some: tuple[int, list[list[int]]], horizon: float
) -> None:
    sots, queries = some
    outlook = told(sots, horizon, queries)
    assert [outlook.expected_reads(sot) for sot in range(sots)] == pytest.approx(
        naively(sots, horizon, queries), abs=1e-6
    )


def test_random_coincidence_is_not_evidence() -> None:
    rng = np.random.default_rng(5)
    evenly = [[int(rng.integers(60))] for _ in range(200)]
    outlook = told(60, 100.0, evenly)
    expected = [outlook.expected_reads(sot) for sot in range(60)]
    most = max(outlook.reads(sot) for sot in range(60))
    assert most > 3  # 1.7 of 100 queries are expected
    assert max(expected) < 2.5


def test_constant_reads_are_expected_to_continue() -> None:
    outlook = told(60, 50.0, [[7]] * 200)
    assert outlook.expected_reads(7) == pytest.approx(50, rel=0.1)
    assert outlook.expected_reads(8) < 0.1


def test_ended_reads_are_not_expected() -> None:
    outlook = told(60, 50.0, [[7]] * 200 + [[8]] * 200)
    assert outlook.expected_reads(7) < 2
    assert outlook.expected_reads(8) > 45


def test_first_query_predicts_nothing() -> None:
    assert told(3, 50.0, [[0, 1, 2]]).expected_reads(0) == 0.0


def test_persistence_expects_as_many_queries_as_there_were() -> None:
    few, many = ([[0, 1]] * count for count in (20, 400))
    for queries, coming in ((few, 50), (many, 400)):
        outlook = ReadForecast(2, 50.0, persistence=1.0)
        for touched in queries:
            outlook.observe(A, touched)
        assert outlook.expected_reads(0) / told(2, 50.0, queries).expected_reads(0) == (
            pytest.approx(coming / 50)
        )


def test_shares_count_exclusive_queries_only() -> None:
    outlook = ReadForecast(1, 1000.0)
    for aims in (A, A, B, A | B):
        outlook.observe(aims, [0])
    assert outlook.share(A) == pytest.approx(0.5, abs=0.01)
    assert outlook.share(B) == pytest.approx(0.25, abs=0.01)
    assert outlook.share(A | B) == pytest.approx(1.0)


# --------------------------------------------------------------------------------------------------
# Patches: few, each containing its regions, and no larger than necessary


def region(x: int, y: int, size: int = 50) -> Rect:
    return Rect(x, y, x + size, y + size)


def query(*aims: Rect | str, frames: int = 10) -> Query:
    return Query(range(frames), frozenset(aims))


def test_few_regions_are_not_merged() -> None:
    some = [region(10 * number, 0) for number in range(5)]
    assert cluster_regions([query(one, "car") for one in some], 5) == {one: one for one in some}
    assert cluster_regions([query("car")]) == {}


def test_nearby_regions_are_merged() -> None:
    corners = [(0, 0), (1000, 0), (500, 800)]
    some = [region(x + dx, y + dy) for x, y in corners for dx in (0, 7) for dy in (0, 9)]
    found = cluster_regions([query(one) for one in some], 3)
    assert set(found.values()) == {Rect(x, y, x + 57, y + 59) for x, y in corners}


def test_frequently_read_region_is_merged_last() -> None:
    """The most frequently read of three adjacent regions stays separate."""
    much, near, far = region(0, 0), region(60, 0), region(125, 0)
    found = cluster_regions([query(much, frames=1000), query(near), query(far)], 2)
    assert found == {much: much, near: Rect(60, 0, 175, 50), far: Rect(60, 0, 175, 50)}


@given(
    st.lists(
        st.builds(region, st.integers(0, 900), st.integers(0, 900), st.integers(1, 100)),
        max_size=40,
    ),
    st.integers(1, 6),
)
def test_patch_contains_its_regions(regions: list[Rect], most: int) -> None:
    found = cluster_regions([query(one) for one in regions], most)
    assert set(found) == set(regions)
    assert all(patch.contains(one) for one, patch in found.items())
    assert len(set(found.values())) <= most


def test_thousands_of_regions_are_clustered_fast() -> None:
    some = [region(17 * x % 1800, 13 * y % 1000, 20 + x) for x in range(60) for y in range(60)]
    found = cluster_regions([query(one) for one in some])
    assert len(found) > 3000
    assert len(set(found.values())) <= 8
    assert all(patch.contains(one) for one, patch in found.items())
    assert Rect.around(found.values()) == Rect.around(some)


def test_labels_are_not_clustered() -> None:
    one, patch = region(0, 0), region(0, 0, 80)
    assert clustered_query(query(one, "car"), {one: patch}) == query(patch, "car")


# --------------------------------------------------------------------------------------------------
# Prefix sums over any run of frames, against counting


SOT = range(40, 52)
corner = st.tuples(st.integers(0, 180), st.integers(0, 130))
size = st.tuples(st.integers(1, 60), st.integers(1, 60))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(list(SOT)), corner, size), max_size=12),
    st.sampled_from(["160x120", "40+120x120", "40+40+80x30+60+30"]),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_prefix_sums_equal_counting(
    seen: list[tuple[int, tuple[int, int], tuple[int, int]]], text: str, start: int, stop: int
) -> None:
    layout = TileLayout.parse(text)
    frames = np.array([frame for frame, _, _ in seen], np.int64)
    boxes = [Rect(x, y, x + w, y + h) for _, (x, y), (w, h) in seen]
    corners = np.array([(r.x1, r.y1, r.x2, r.y2) for r in boxes], np.int64).reshape(-1, 4)
    reach = DecodeExtent(layout, corners, frames, SOT)
    inside = (frames >= SOT.start + start) & (frames < SOT.start + stop)
    counted = decoded_frames(layout, corners[inside], frames[inside], SOT.start)
    assert reach.lengths(start, stop).tolist() == counted.tolist()
