"""Uniform layouts keep to the rules, and are as equal as these let them be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.errors import UsageError
from vfsd.tiling import LayoutRules, uniform_layout


def test_a_picture_that_divides_evenly_is_divided_evenly() -> None:
    assert (
        str(uniform_layout(1920, 1088, 4, 5, LayoutRules()))
        == "384+384+384+384+384x272+272+272+272"
    )
    assert str(uniform_layout(1920, 1080, 2, 1, LayoutRules())) == "1920x544+536"


@given(
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 70),
    st.integers(1, 100),
)
def test_uniform_layouts(
    width: int, height: int, rows: int, columns: int, align: int, minimum: int
) -> None:
    rules = LayoutRules(align, minimum, minimum)
    step = -(-minimum // align) * align
    possible = all(
        parts == 1 or step * (parts - 1) + minimum <= length
        for parts, length in ((columns, width), (rows, height))
    ) and (rows * columns == 1 or min(width, height) >= minimum)
    if not possible:
        with pytest.raises(UsageError):
            uniform_layout(width, height, rows, columns, rules)
        return
    layout = uniform_layout(width, height, rows, columns, rules)
    rules.check(layout)
    assert (layout.width, layout.height) == (width, height)
    assert (layout.rows, layout.columns) == (rows, columns)
    for edges, parts, length in (
        (layout.column_edges, columns, width),
        (layout.row_edges, rows, height),
    ):
        if length / parts >= step + align:  # the minimum has no say
            for number, edge in enumerate(edges[1:-1], 1):
                assert abs(edge - number * length / parts) <= align / 2


@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (1, -1)])
def test_there_is_at_least_one_row_and_column(rows: int, columns: int) -> None:
    with pytest.raises(UsageError):
        uniform_layout(640, 480, rows, columns, LayoutRules())


def test_the_largest_number_of_tiles_is_kept() -> None:
    with pytest.raises(UsageError, match="at most 5"):
        uniform_layout(640, 480, 2, 3, LayoutRules(maximum_tiles=5))
