"""The label query language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.label_query import clauses_of, format_labels, parse_labels
from vfsd.errors import UsageError


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("car", [["car"]]),
        (" traffic light ", [["traffic light"]]),
        ("car|truck", [["car", "truck"]]),
        ("car | truck&red", [["car", "truck"], ["red"]]),
        ("car,truck & red , blue", [["car", "truck"], ["red", "blue"]]),
        ('"sign,left",car', [["sign,left", "car"]]),
        ('"a|b"&"say ""x"""|c', [["a|b"], ['say "x"', "c"]]),
    ],
)
def test_expressions(text: str, clauses: list[list[str]]) -> None:
    assert parse_labels(text) == clauses


@pytest.mark.parametrize(
    "text",
    ["", "  ", "|", "car|", "&car", "car||x", "car,", ",car", "car,|x", 'car "x"', '"car', '""'],
)
def test_invalid_expressions_show_the_position(text: str) -> None:
    with pytest.raises(UsageError):
        parse_labels(text)


printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
words = st.text(printable, min_size=1, max_size=6).filter(str.strip)


@given(st.lists(st.lists(words, min_size=1, max_size=3), min_size=1, max_size=3))
def test_formatted_expressions_parse_again(clauses: list[list[str]]) -> None:
    assert parse_labels(format_labels(clauses)) == clauses


def test_python_forms() -> None:
    assert clauses_of(None) == ()
    assert clauses_of("a|b & c") == (frozenset({"a", "b"}), frozenset({"c"}))
    assert clauses_of('"a|b"') == (frozenset({"a|b"}),)
    assert clauses_of(["a|b"]) == (frozenset({"a|b"}),)
    assert clauses_of(("a", "b")) == (frozenset({"a", "b"}),)
    assert clauses_of([["a"], ("b", "c")]) == (frozenset({"a"}), frozenset({"b", "c"}))
