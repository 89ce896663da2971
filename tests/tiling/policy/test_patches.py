"""Patches: few, each with its regions in it, and no larger than they have to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vfsd.tiling import Rect
from vfsd.tiling.policy import Query
from vfsd.tiling.policy.region_clusters import cluster_regions, clustered_query


def region(x: int, y: int, size: int = 50) -> Rect:
    return Rect(x, y, x + size, y + size)


def query(*aims: Rect | str, frames: int = 10) -> Query:
    return Query(range(frames), frozenset(aims))


def test_few_regions_stay_what_they_are() -> None:
    some = [region(10 * number, 0) for number in range(5)]
    assert cluster_regions([query(one, "car") for one in some], 5) == {one: one for one in some}
    assert cluster_regions([query("car")]) == {}


def test_regions_that_lie_close_are_one() -> None:
    corners = [(0, 0), (1000, 0), (500, 800)]
    some = [region(x + dx, y + dy) for x, y in corners for dx in (0, 7) for dy in (0, 9)]
    found = cluster_regions([query(one) for one in some], 3)
    assert set(found.values()) == {Rect(x, y, x + 57, y + 59) for x, y in corners}


def test_what_is_read_much_is_made_larger_last() -> None:
    """Of three in a row, the one that is read much stays alone."""
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
def test_a_patch_holds_its_regions(regions: list[Rect], most: int) -> None:
    found = cluster_regions([query(one) for one in regions], most)
    assert set(found) == set(regions)
    assert all(patch.contains(one) for one, patch in found.items())
    assert len(set(found.values())) <= most


def test_thousands_of_regions_are_no_matter() -> None:
    some = [region(17 * x % 1800, 13 * y % 1000, 20 + x) for x in range(60) for y in range(60)]
    found = cluster_regions([query(one) for one in some])
    assert len(found) > 3000
    assert len(set(found.values())) <= 8
    assert all(patch.contains(one) for one, patch in found.items())
    assert Rect.around(found.values()) == Rect.around(some)


def test_labels_are_left_alone() -> None:
    one, patch = region(0, 0), region(0, 0, 80)
    assert clustered_query(query(one, "car"), {one: patch}) == query(patch, "car")
