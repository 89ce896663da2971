"""The label query language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.label_query import (
    LabelClause,
    Scalar,
    clauses_of,
    format_labels,
    parse_labels,
    wanted_labels,
)
from vfsd.errors import UsageError


def clause(*labels: str, negated: bool = False, **attributes: Scalar) -> LabelClause:
    return LabelClause(labels, tuple(attributes.items()), negated)


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("car", [clause("car")]),
        (" traffic light ", [clause("traffic light")]),
        ("car|truck", [clause("car", "truck")]),
        ("car | truck&red", [clause("car", "truck"), clause("red")]),
        ("car,truck & red , blue", [clause("car", "truck"), clause("red", "blue")]),
        ('"sign,left",car', [clause("sign,left", "car")]),
        ('"a|b"&"say ""x"""|c', [clause("a|b"), clause('say "x"', "c")]),
        ("car & not red|blue", [clause("car"), clause("red", "blue", negated=True)]),
        ('not"a b" & not  c', [clause("a b", negated=True), clause("c", negated=True)]),
        ("not & notable | not", [clause("not"), clause("notable", "not")]),
        ('"not red" | "a=b"', [clause("not red", "a=b")]),
        ("not ", [clause("not")]),
        ("lane=3", [clause(lane=3)]),
        (
            "car|lane = 2.5|wet=true|color=dark red & not kind=a=b",
            [clause("car", lane=2.5, wet=True, color="dark red"), clause(negated=True, kind="a=b")],
        ),
        ('n="3"|empty=""', [clause(n="3", empty="")]),
    ],
)
def test_expressions(text: str, clauses: list[LabelClause]) -> None:
    assert parse_labels(text) == clauses


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "|", "car|", "&car", "car||x", "car,", ",car", "car,|x", 'car "x"', '"car'),
        *('""', "car|not red", "=3", "a=", "a=|b", "car & =", 'a="x', "a & not & b &"),
    ],
)
def test_invalid_expressions_show_the_position(text: str) -> None:
    with pytest.raises(UsageError):
        parse_labels(text)


printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
words = st.text(printable, min_size=1, max_size=6).filter(str.strip)
words |= st.sampled_from(["not", "not a", "a=b", "=", "3", "true"])
values = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
pairs = st.tuples(words, values | words | st.just(""))
clauses_made = st.builds(
    LabelClause,
    st.lists(words, max_size=3).map(tuple),
    st.lists(pairs, max_size=2).map(tuple),
    st.booleans(),
).filter(lambda one: bool(one.labels or one.attributes))


@given(st.lists(clauses_made, min_size=1, max_size=3))
def test_formatted_expressions_parse_again(clauses: list[LabelClause]) -> None:
    assert parse_labels(format_labels(clauses)) == clauses


def test_python_forms() -> None:
    assert clauses_of(None) == ()
    assert clauses_of("a|b & c") == (clause("a", "b"), clause("c"))
    assert clauses_of('"a|b"') == clauses_of(["a|b"]) == (clause("a|b"),)
    assert clauses_of(("a", "b")) == (clause("a", "b"),)
    assert clauses_of([["a"], ("b", "c")]) == (clause("a"), clause("b", "c"))
    assert clauses_of(parse_labels("not a")) == (clause("a", negated=True),)
    assert wanted_labels("a|b & not c & d=3") == {"a", "b"}
