"""Files of workloads: what they mean, and that a mistake in one is named."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from vfsd.derive.workload import WorkloadQuery, read_workload
from vfsd.errors import NotFoundError, UsageError
from vfsd.tiling import Rect


def written(folder: Path, content: Any) -> Path:
    path = folder / "workload.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_workload_is_what_the_file_says(tmp_path: Path) -> None:
    entries = [
        {"labels": 'car|truck & "left|right"', "span": [0.1, "1:00"], "times": 20},
        {"region": "640x384+16+0", "frames": [300, 600]},
        {"labels": "person", "region": "64x64+0+0", "span": [2, None]},
    ]
    for content in (entries, {"queries": entries}):
        first, second, third = read_workload(written(tmp_path, content))
        assert first.clauses == (frozenset({"car", "truck"}), frozenset({"left|right"}))
        assert (first.span, first.times) == ((Fraction(1, 10), Fraction(60)), 20)
        assert (first.region, first.frames) == (None, None)
        assert (second.region, second.frames) == (Rect(16, 0, 656, 384), range(300, 600))
        assert (second.clauses, second.span, second.times) == ((), None, 1)
        assert third.clauses == (frozenset({"person"}),)
        assert third.region == Rect(0, 0, 64, 64)
        assert third.span == (2, None)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", ["must be a JSON file"]),
        ('{"queries": [], "queries": []}', ["'queries' twice"]),
        ({"query": []}, ["'query'"]),
        ({}, ["must have a list", '"queries"']),
        ([], ["at least one query"]),
        ([3], ["query 0", "must be a JSON object"]),
        ([{}], ["query 0", '"labels"', '"region"']),
        ([{"labels": "car"}, {"label": "car"}], ["query 1", "'label'"]),
        ([{"labels": "car|"}], ["query 0", '"labels"', "'car|'"]),
        ([{"labels": ["car"]}], ["query 0", '"labels"', '["car"]']),
        ([{"region": "640x384"}], ["query 0", '"region"', "640x384"]),
        ([{"region": "0x10+0+0"}], ["query 0", '"region"', "at least one pixel"]),
        ([{"labels": "car", "span": [5, 2]}], ["query 0", '"span"', "5 to 2"]),
        ([{"labels": "car", "span": [-1, 2]}], ["query 0", '"span"', "-1 to 2"]),
        ([{"labels": "car", "span": [0, True]}], ["query 0", '"span"', "true"]),
        ('[{"labels": "car", "span": [0, NaN]}]', ["query 0", '"span"', "nan"]),
        ([{"labels": "car", "span": "0:1"}], ["query 0", '"span"', '"0:1"']),
        ([{"labels": "car", "frames": [0, 30, 2]}], ["query 0", '"frames"', "[0, 30, 2]"]),
        ([{"labels": "car", "frames": [0, 3.5]}], ["query 0", '"frames"', "3.5"]),
        ([{"labels": "car", "frames": [5, 5]}], ["query 0", '"frames"', "5 to 5"]),
        ([{"labels": "car", "frames": [0, 1], "span": [0, 1]}], ["query 0", "both"]),
        ([{"labels": "car", "times": 0}], ["query 0", '"times"', "0"]),
        ([{"labels": "car", "times": True}], ["query 0", '"times"', "true"]),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, content: Any, named: list[str]) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        read_workload(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    for part in named:
        assert part in text
    assert caught.value.hint


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="file not found"):
        read_workload(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_workload(tmp_path)


def test_queries_in_python_take_what_reads_take() -> None:
    either = WorkloadQuery(["car", "truck"], span=(0, None), times=3)
    assert either.clauses == (frozenset({"car", "truck"}),)
    assert WorkloadQuery("car|truck").clauses == (frozenset({"car", "truck"}),)
    assert WorkloadQuery(["car|truck"]).clauses == (frozenset({"car|truck"}),)
    with pytest.raises(UsageError, match="must have"):
        WorkloadQuery()
