"""Workload files: their meaning, and errors that name the mistake.

Reads in the form that policies receive.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.detections import Detection
from vfsd.core.label_query import LabelClause
from vfsd.derive.catalog_world import box_world
from vfsd.derive.workload import LoggedQuery, WorkloadQuery, queries_of_reads, read_workload
from vfsd.errors import NotFoundError, UsageError
from vfsd.tiling import Rect
from vfsd.tiling.policy import Aims, Query


def written(folder: Path, content: Any) -> Path:
    path = folder / "workload.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_workload_file_is_parsed(tmp_path: Path) -> None:
    entries = [
        {"labels": 'car|truck & "left|right"', "span": [0.1, "1:00"], "times": 20},
        {"region": "640x384+16+0", "frames": [300, 600]},
        {"labels": "person", "region": "64x64+0+0", "span": [2, None]},
    ]
    for content in (entries, {"queries": entries}):
        first, second, third = read_workload(written(tmp_path, content))
        assert first.clauses == (
            LabelClause(("car", "truck")),
            LabelClause(("left|right",)),
        )
        assert (first.span, first.times) == ((Fraction(1, 10), Fraction(60)), 20)
        assert (first.region, first.frames) == (None, None)
        assert (second.region, second.frames) == (Rect(16, 0, 656, 384), range(300, 600))
        assert (second.clauses, second.span, second.times) == ((), None, 1)
        assert third.clauses == (LabelClause(("person",)),)
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
        ([{"labels": "car", "span": "0:1"}], ["query 0", '"span"', "0:1"]),
        ([{"labels": "car", "frames": [0, 30, 2]}], ["query 0", '"frames"', "[0, 30, 2]"]),
        ([{"labels": "car", "frames": [0, 3.5]}], ["query 0", '"frames"', "3.5"]),
        ([{"labels": "car", "frames": [5, 5]}], ["query 0", '"frames"', "5 to 5"]),
        ([{"labels": "car", "frames": [0, 1], "span": [0, 1]}], ["query 0", "both"]),
        ([{"labels": "car", "times": 0}], ["query 0", '"times"', "0"]),
        ([{"labels": "car", "times": True}], ["query 0", '"times"', "true"]),
    ],
)
def test_error_names_the_mistake(tmp_path: Path, content: Any, named: list[str]) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        read_workload(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    for part in named:
        assert part in text
    assert caught.value.hint


def test_unreadable_workload_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="file not found"):
        read_workload(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_workload(tmp_path)


def test_queries_accept_the_arguments_of_reads() -> None:
    either = WorkloadQuery(["car", "truck"], span=(0, None), times=3)
    assert either.clauses == (LabelClause(("car", "truck")),)
    assert WorkloadQuery("car|truck").clauses == (LabelClause(("car", "truck")),)
    assert WorkloadQuery(["car|truck"]).clauses == (LabelClause(("car|truck",)),)
    with pytest.raises(UsageError, match="must have"):
        WorkloadQuery()


# --------------------------------------------------------------------------------------------------
# Reads in the form that policies receive


CAR = (40, 50, 80, 90)


def seen(store: Store) -> Video:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.labels.add([Detection(at, "car", CAR) for at in range(len(video))], "test")
    video.labels.add([Detection(at, "red", CAR) for at in range(30, 60)], "test")
    return video


def asked(store: Store, video: Video) -> list[LoggedQuery]:
    store.tools.read_log.close()
    return queries_of_reads(store.catalog.reads(video.info), video.original.media)


def aims(*them: str | Rect) -> Aims:
    return frozenset(them)


def test_scans_become_label_queries(store: Store) -> None:
    video = seen(store)
    other = store.ingest(FOLDER / "portrait.mp4")
    other.labels.add_box(0, "truck", (0, 0, 9, 9), source="test")
    list(video.scan("car", frames=range(10, 20)).crops())
    list(video.scan(["truck", "car"], frames=range(20, 30)).crops())
    list(video.scan([["car", "truck"], ["red"]]).tiles())
    list(video.scan(roi="red", frames=range(30, 60)).tiles())
    assert [one.query for one in asked(store, video)] == [
        Query(range(10, 20), aims("car")),
        Query(range(20, 30), aims("car", "truck")),
        Query(range(30, 60), aims("car|truck & red")),
        Query(range(30, 60), aims("red")),
    ]


def test_region_is_mapped_to_source_pixels(store: Store) -> None:
    video = store.ingest(FOLDER / "portrait.mp4")
    media = video.original.media
    assert media.rotation == 90
    video.read(frames=range(5, 9), region=(0, 20, 40, 100))
    list(video.scan(roi=(0, 20, 40, 100), frames=range(9)).tiles())  # it becomes whole frames
    one, other = asked(store, video)
    assert one.query == Query(range(5, 9), aims(Rect(16, media.height - 48, 112, media.height)))
    assert one.query.aims == other.query.aims
    assert one.at_ns < other.at_ns


def test_separate_frames_are_separate_queries(store: Store) -> None:
    video = seen(store)
    region = (0, 0, 64, 64)
    video.read(frames=range(3, 90, 9), region=region)
    video.read(span=(0, 2), fps=5, region=region)
    video.read(frames=range(7, 8), region=region)
    video.read(span=(0, 1), fps=60, region=region)
    assert [list(one.query.frames) for one in asked(store, video)] == [
        list(range(3, 90, 9)),
        list(range(0, 55, 6)),
        [7],
        list(range(30)),
    ]


def test_reads_of_whole_frames_add_no_queries(store: Store) -> None:
    video = seen(store)
    video.read(span=(0, 1))
    list(video.scan("car", frames=range(20)).frames())
    video.read(frames=range(1), region=(0, 0, 320, 240))
    assert asked(store, video) == []
    assert len(list(store.catalog.reads(video.info))) == 3


def test_labels_round_trip(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.labels.add([Detection(3, "a & b", CAR)], "test")
    list(video.scan(["a & b"]).crops())
    (one,) = asked(store, video)
    assert one.query.aims == aims('"a & b"')
    assert box_world(context_of(video), one.query.aims).touched(one.query) == [0]
