"""The semantic index: detections are found by label, time and region, without false results."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import multiprocessing
import sqlite3
from collections import Counter
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.catalog_rows import add_video, original, table
from tests.support.selection import examples, one_in
from vfsd.catalog import Catalog
from vfsd.catalog import detection_query as lookup
from vfsd.catalog.box_grid import bounds, cells, cells_of, units
from vfsd.catalog.detections import Detections
from vfsd.core.detections import Detection, DetectionColumns, LabelSummary, Source
from vfsd.core.frames import frame_ranges
from vfsd.core.label_query import LabelClause, parse_labels
from vfsd.core.model import LogicalVideo
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.tiling import Rect

FRAMES = 100


def _file_of(catalog: Catalog) -> str:
    path = catalog._database.path
    assert path is not None
    return path


@pytest.fixture
def video(catalog: Catalog) -> LogicalVideo:
    with catalog.writing() as change:
        return add_video(change, "cam1/a.mp4", frames=FRAMES)


def columns(count: int, seed: int = 0, frames: int = FRAMES) -> DetectionColumns:
    """Boxes of all sizes and positions, some partly outside of the frame; optional values are
    sometimes missing."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(-50, 600, (count, 2)).round(1)
    sizes = np.exp(rng.uniform(0, 8.5, (count, 2))).round(1)
    names = np.array(["bus", "car", "red", "truck"])
    return DetectionColumns.of(
        rng.integers(0, frames, count),
        names[rng.integers(0, 4, count)],
        np.hstack([first, first + sizes]),
        np.where(rng.random(count) < 0.8, rng.random(count).round(2), np.nan),
        np.where(rng.random(count) < 0.5, rng.integers(0, 9, count), -1),
        [{"lane": int(at % 3), "wet": True} if at % 5 == 0 else None for at in range(count)],
    )


def from_source(rows: DetectionColumns, source: Source) -> list[Detection]:
    return [dataclasses.replace(one, source=source) for one in rows.sorted_by_frame()]


def test_duplicate_check_reads_only_boxes_of_the_same_frames(
    catalog: Catalog, video: LogicalVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"label {number:03}" for number in range(600)]  # more than fit into one statement
    ends = (0, FRAMES - 1)
    box = (0.0, 0.0, 9.0, 9.0)
    catalog.detections.add(video, columns(2000), "s")
    known = [Detection(ends[at % 2], name, box) for at, name in enumerate(names)]
    catalog.detections.add(video, DetectionColumns.from_detections(known), "s")
    read: list[int] = []
    isin = DetectionColumns.isin

    def counted(self: DetectionColumns, others: DetectionColumns) -> Any:
        read.append(len(others))
        return isin(self, others)

    monkeypatch.setattr(DetectionColumns, "isin", counted)
    new = [*known, Detection(0, "car", box), Detection(ends[1], names[0], (1.0, 0.0, 9.0, 9.0))]
    rows = DetectionColumns.from_detections(new)
    with catalog.reading() as seen:
        found = seen.detections.count_known(video.id, rows, Source("s"))
        others = seen.detections.count_known(video.id, rows, Source("t"))
    assert (found, others) == (len(known), 0)
    assert read[0] < len(known) + 100


def test_detections_are_returned_by_frame_in_insertion_order(
    catalog: Catalog, video: LogicalVideo
) -> None:
    first, second = columns(500, 1), columns(300, 2)
    yolo = Source("yolo", "v8n", "8.1", {"imgsz": 640, "classes": [2, 7]})
    assert catalog.detections.add(video, first, yolo) == 500
    catalog.detections.add(video, second, "people")
    expected = from_source(first, yolo) + from_source(second, Source("people"))
    expected.sort(key=lambda one: one.frame)  # stable
    found = catalog.detections.find(video)
    assert list(found) == expected
    assert len(found) == 800
    assert found.first() == expected[0]
    assert found
    assert catalog.detections.sources(video) == [yolo, Source("people")]
    assert list(found.frames()) == sorted({one.frame for one in expected})


def test_single_inserts_equal_one_batch(catalog: Catalog, video: LogicalVideo) -> None:
    rows = columns(60, 3)
    for at in range(60):
        catalog.detections.add(video, rows.select(slice(at, at + 1)), "s")
    assert list(catalog.detections.find(video)) == from_source(rows, Source("s"))


def test_batches_hold_all_boxes_once(there: Catalog) -> None:
    with there.writing() as change:
        video = add_video(change, "cam1/a.mp4", frames=FRAMES)
    there.detections.add(video, columns(300, seed=4), Source("one"))
    query = there.detections.find(video)
    found = [list(batch) for batch in query.batches(64)]
    assert max(map(len, found)) <= 64
    assert len(found) >= 5
    together = sorted(itertools.chain(*found), key=repr)
    assert together == sorted(query, key=repr)


def test_empty_index_finds_nothing(catalog: Catalog, video: LogicalVideo) -> None:
    assert catalog.detections.add(video, DetectionColumns.of([], [], []), "s") == 0
    for found in (
        catalog.detections.find(video),
        catalog.detections.find(video, "car"),
        catalog.detections.find(video, frames=range(5, 5)),
        catalog.detections.find(video, frames=[]),
    ):
        assert list(found) == []
        assert (len(found), found.first(), bool(found)) == (0, None, False)
        assert found.columns().boxes.shape == (0, 4)
        assert found.frames().tolist() == []
    assert [
        *catalog.detections.labels(video),
        *catalog.detections.examined(video),
        *catalog.detections.sources(video),
    ] == []


# ------------------------------------------------------------------------------- finding


def meets(one: Detection, region: tuple[float, float, float, float]) -> bool:
    x1, y1, x2, y2 = one.box
    return x1 < region[2] and x2 > region[0] and y1 < region[3] and y2 > region[1]


@pytest.fixture
def filled(catalog: Catalog, video: LogicalVideo) -> list[Detection]:
    rows = columns(3000, 7)
    catalog.detections.add(video, rows, "s")
    return from_source(rows, Source("s"))


@pytest.mark.parametrize("path", one_in(3, ["places", "time", "either"]))
def test_lookups_equal_a_full_search(
    catalog: Catalog,
    video: LogicalVideo,
    filled: list[Detection],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path == "time":
        monkeypatch.setattr(lookup, "_MOST_CELLS", 0)
    if path == "either":
        monkeypatch.setattr(lookup, "_MOST_SEEKS", 0)
    rng = np.random.default_rng(5)
    for number in range(60):
        x, y = rng.uniform(-100, 900, 2)
        region = (x, y, x + rng.uniform(0.1, 400), y + rng.uniform(0.1, 400))
        start = int(rng.integers(0, FRAMES))
        frames = range(start, int(rng.integers(start, FRAMES + 20)), int(rng.integers(1, 4)))
        labels = [None, "car", ["car", "bus"], "nothing"][number % 4]
        wanted = {"car", "bus"} if isinstance(labels, list) else {labels}
        expected = [
            one
            for one in filled
            if (labels is None or one.label in wanted)
            and one.frame in frames
            and meets(one, region)
        ]
        found = catalog.detections.find(video, labels, frames=frames, region=region)
        assert list(found) == expected
        assert len(found) == len(expected)
        assert list(found.frames()) == sorted({one.frame for one in expected})


def test_frames_may_be_numbers_lists_or_reversed_ranges(
    catalog: Catalog, video: LogicalVideo, filled: list[Detection]
) -> None:
    def numbers(frames: Any) -> list[Detection]:
        return list(catalog.detections.find(video, frames=frames))

    assert numbers(7) == numbers([7]) == [one for one in filled if one.frame == 7]
    some = [1, 50, 3, 50, 99, 400]
    assert numbers(some) == [one for one in filled if one.frame in some]
    assert numbers(range(9, 2, -3)) == [one for one in filled if one.frame in (9, 6, 3)]
    assert numbers(np.arange(1000)) == filled
    assert numbers(-1) == numbers([FRAMES - 1]) == numbers(np.arange(FRAMES) == FRAMES - 1)
    assert numbers(range(-2, 1)) == numbers([-2, -1, 0]) == numbers([0, 98, 99])
    assert numbers(range(-(10**30), 10**30)) == numbers(range(10**30)) == filled
    nonsense: Any
    for nonsense in ([1.5], 2.0, "1", np.ones(5, bool)):
        with pytest.raises(UsageError):
            numbers(nonsense)
        with pytest.raises(UsageError):
            catalog.detections.remove(video, frames=nonsense)
    assert numbers(range(FRAMES)) == filled


def test_conditions_on_box_properties(
    catalog: Catalog, video: LogicalVideo, filled: list[Detection]
) -> None:
    catalog.detections.add(video, columns(50, 8), Source("s", "other"))
    found = list(
        catalog.detections.find(
            video, source=Source("s"), min_confidence=0.5, track=3, attributes={"lane": 0}
        )
    )
    assert found == [
        one
        for one in filled
        if one.confidence is not None
        and one.confidence >= 0.5
        and one.track == 3
        and one.attributes.get("lane") == 0
    ]
    assert found
    assert len(catalog.detections.find(video, source="s")) == 3050
    assert len(catalog.detections.find(video, source="nobody")) == 0
    assert len(catalog.detections.find(video, attributes={"wet": True})) == 610
    with pytest.raises(UsageError):
        catalog.detections.find(video, region=(5, 5, 5, 9))
    nonsense: list[Any] = [5, (0, 0, 1), (0, 0, math.nan, 1), ("a", "b", "c", "d")]
    for region in nonsense:
        with pytest.raises(UsageError, match=r"region must (have|be)"):
            catalog.detections.find(video, region=region)
    end = math.inf
    for far in ((5, 0, end, end), (-end, -end, 5, 5), (-end, -1e30, 1e300, end)):
        assert list(catalog.detections.find(video, source=Source("s"), region=far)) == [
            one for one in filled if meets(one, far)
        ]
    assert len(catalog.detections.find(video, region=(2e6, 0, end, end))) == 0
    assert len(catalog.detections.find(video, track=2**63 - 1)) == 0
    for track in (2**63, 10**30, -1, 1.5, "1"):
        with pytest.raises(UsageError, match="track must be"):
            catalog.detections.find(video, track=track)  # type: ignore[arg-type]
    assert len(catalog.detections.find(video, region=Rect(0, 0, 1, 1))) == sum(
        meets(one, (0, 0, 1, 1)) for one in filled
    )


def test_labels_and_properties_of_the_same_object(catalog: Catalog, video: LogicalVideo) -> None:
    box, near = (10.0, 10.0, 50.0, 40.0), (10.0, 10.0, 50.0, 41.0)
    seen = [
        Detection(1, "car", box),
        Detection(1, "red", box),
        Detection(1, "truck", near),
        Detection(2, "car", box),
        Detection(3, "truck", box, track=4),
        Detection(3, "wet", near),
        Detection(3, "red", near, track=4),
        Detection(4, "red", near, track=4),
        Detection(4, "car", box, track=5),
        Detection(5, "red", near, track=1),  # each source counts separately
        Detection(5, "car", box, track=1),
    ]
    catalog.detections.add(video, DetectionColumns.from_detections(seen[::2]), "a")
    catalog.detections.add(video, DetectionColumns.from_detections(seen[1::2]), "colours")

    def found(*labels: Any, **rest: Any) -> list[tuple[int, str]]:
        return sorted(
            (one.frame, one.label) for one in catalog.detections.find(video, *labels, **rest)
        )

    assert found([["car", "truck"], ["red"]]) == [(1, "car"), (1, "red"), (3, "red"), (3, "truck")]
    assert found([["car", "truck"], ["red"]], source="a") == [(1, "car"), (3, "red"), (3, "truck")]
    assert found([["red"], ["wet"]]) == [(3, "red"), (3, "wet")]
    assert found([["car"], ["red"]]) == [(1, "car"), (1, "red")]
    assert found([["car"], ["nothing"]]) == []
    assert found([["car", "red"]]) == found(["car", "red"])
    assert found(("wet",)) == found("wet") == found([["wet"], ["wet", "x"]]) == [(3, "wet")]
    wrong: Any
    for wrong in ([], [[]], ["car", ["red"]], [1]):
        with pytest.raises(UsageError):
            found(wrong)


def _matches(one: Detection, clauses: list[LabelClause], there: list[Detection]) -> bool:
    """Whether a box matches, by the definition of `DetectionFilter` and nothing else."""

    def is_same(other: Detection) -> bool:
        by_track = one.track is not None and (one.track, one.source) == (other.track, other.source)
        return other.frame == one.frame and (other.box == one.box or by_track)

    mine = {other.label for other in there if is_same(other)}
    holds = [
        (
            bool(mine & {*clause.labels})
            or any(
                key in one.attributes
                and one.attributes[key] == value
                and isinstance(one.attributes[key], bool) == isinstance(value, bool)
                for key, value in clause.attributes
            )
        )
        != clause.negated
        for clause in clauses
    ]
    plain = [clause.labels for clause in clauses if clause.is_plain]
    return all(holds) and (not plain or any(one.label in words for words in plain))


_terms = st.sampled_from(["bus", "car", "red", "truck", "x", "lane=0", "lane=1", "wet=true", "n=2"])
_expressions = st.lists(
    st.tuples(st.sampled_from(["", "not "]), st.lists(_terms, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
).map(lambda parts: " & ".join(word + "|".join(terms) for word, terms in parts))


@given(st.lists(_expressions, min_size=5, max_size=5), st.integers(0, 1000))
@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_expressions_equal_a_full_search(there: Catalog, expressions: list[str], seed: int) -> None:
    catalog = there
    name = f"{len(list(catalog.find()))}.mp4"
    with catalog.writing() as change:
        video = add_video(change, name, frames=FRAMES)
    rows = columns(60, seed, frames=4)
    boxes = rows.boxes.copy()
    boxes[1::3] = boxes[: len(boxes[1::3])]  # several labels of one box
    rows = dataclasses.replace(rows, boxes=boxes)
    catalog.detections.add(video, rows.select(slice(0, 40)), "a")
    catalog.detections.add(video, rows.select(slice(40, 60)), "b")
    kept = list(catalog.detections.find(video))
    for text in expressions:
        expected = [one for one in kept if _matches(one, parse_labels(text), kept)]
        assert list(catalog.detections.find(video, text)) == expected, text


def test_arrow_and_pandas(catalog: Catalog, video: LogicalVideo) -> None:
    catalog.detections.add(
        video,
        DetectionColumns.from_detections(
            [Detection(3, "car", (0, 1, 2, 3.5), 0.5, 7), Detection(4, "bus", (1, 1, 2, 2))]
        ),
        Source("s", "m"),
    )
    pytest.importorskip("pyarrow")
    expected = {
        "frame": [3, 4],
        "label": ["car", "bus"],
        "x1": [0.0, 1.0],
        "y1": [1.0, 1.0],
        "x2": [2.0, 2.0],
        "y2": [3.5, 2.0],
        "confidence": [0.5, None],
        "track": [7, None],
        "source": ["s", "s"],
        "model": ["m", "m"],
        "version": ["", ""],
        "attributes": [None, None],
    }
    assert catalog.detections.find(video).to_arrow().to_pydict() == expected
    pandas = pytest.importorskip("pandas")
    frame = catalog.detections.find(video).to_pandas()
    assert list(frame["label"]) == expected["label"]
    assert list(frame["source"]) == expected["source"]
    assert list(frame["model"]) == expected["model"]
    assert frame["track"][0] == 7
    assert frame["track"][1] is pandas.NA
    assert np.isnan(frame["confidence"][1])


# ------------------------------------------------------------------------------- places


coordinate = st.floats(-2000, 20_000, allow_nan=False)
extent = st.floats(0.001, 9000)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[float, float, float, float]:
    x, y = draw(coordinate), draw(coordinate)
    return x, y, x + draw(extent), y + draw(extent)


@given(boxes(), boxes())
@settings(max_examples=examples(500))
def test_region_index_finds_every_intersecting_box(
    box: tuple[float, float, float, float], region: tuple[float, float, float, float]
) -> None:
    if not meets(Detection(0, "x", box), region):
        return
    array = np.array([box])
    chosen = cells_of(region, 1_000_000)
    assert chosen is not None
    assert cells(array)[0] in chosen
    packed = int(bounds(array)[0])
    x1, y1, x2, y2 = (packed >> shift & 4095 for shift in (36, 24, 12, 0))
    low_x, low_y, high_x, high_y = units(region)
    assert x1 <= high_x
    assert y1 <= high_y
    assert x2 >= low_x
    assert y2 >= low_y


def test_large_region_is_not_split() -> None:
    assert cells_of((0, 0, 3840, 2160), 512) is None
    assert len(cells_of((600, 300, 1000, 600), 512) or ()) < 150


def test_region_query_uses_the_spatial_index(
    catalog: Catalog, video: LogicalVideo, filled: list[Detection]
) -> None:
    with catalog._database.reading() as connection:
        what = lookup.make_filter("car", None, (10, 10, 20, 20), None, None, None, None)
        (one,) = lookup._Search(connection, [video], what).statements()
        text = one.compile(connection, compile_kwargs={"literal_binds": True})
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
    steps = [row[3] for row in plan]
    assert "place USING COVERING INDEX ix_detections_video_id_label_id_cell" in steps[0]
    assert "box USING PRIMARY KEY (video_id=? AND label_id=? AND frame=? AND seq=?)" in steps[1]


# ------------------------------------------------------------------------------- changing


def test_examined_frames_are_merged(catalog: Catalog, video: LogicalVideo) -> None:
    def ranges(source: str | None = None) -> list[tuple[int, int]]:
        return [(e.frames.start, e.frames.stop) for e in catalog.detections.examined(video, source)]

    catalog.detections.mark_examined(video, range(10, 20), "a")
    catalog.detections.mark_examined(video, [range(30, 40), range(0, 5)], "a")
    assert ranges() == [(0, 5), (10, 20), (30, 40)]
    catalog.detections.mark_examined(video, range(18, 31), "a")
    assert ranges() == [(0, 5), (10, 40)]
    catalog.detections.mark_examined(video, [5, 9, 7, 60], "a")
    assert ranges() == [(0, 6), (7, 8), (9, 40), (60, 61)]
    catalog.detections.mark_examined(video, range(0, 100), "b")
    assert ranges("b") == [(0, 100)]
    assert ranges("a")[0] == (0, 6)
    catalog.detections.add(video, DetectionColumns.of([], [], []), "c", examined=range(0, 9, 3))
    assert ranges("c") == [(0, 1), (3, 4), (6, 7)]
    with pytest.raises(OutOfRangeError, match="frame 100 does not exist"):
        catalog.detections.mark_examined(video, range(99, 101), "a")


def test_first_examination_of_a_frame_counts(catalog: Catalog, video: LogicalVideo) -> None:
    rows = DetectionColumns.of(range(10), "car", [(0, 0, 1, 1)] * 10)
    net, other = Source("net", parameters={"every": 1}), Source("net")
    catalog.detections.mark_examined(video, [range(2, 4), range(6, 7), range(9, 20)], net)
    assert catalog.detections.add_unexamined(video, rows, net, np.arange(10)) == 6
    assert [one.frame for one in catalog.detections.find(video)] == [0, 1, 4, 5, 7, 8]
    assert [one.frames for one in catalog.detections.examined(video, net)] == [range(20)]
    assert catalog.detections.add_unexamined(video, rows, net, np.arange(10)) == 0
    assert catalog.detections.add_unexamined(video, rows, other, np.arange(0, 10, 3)) == 4
    assert len(catalog.detections.find(video)) == 10


def test_examined_frames_may_be_numbers_or_a_mask(catalog: Catalog, video: LogicalVideo) -> None:
    nothing = DetectionColumns.of([], [], [])
    mask = np.arange(FRAMES) > 50
    catalog.detections.mark_examined(video, mask, "mask")
    catalog.detections.add(video, nothing, "rows", examined=mask.tolist())
    catalog.detections.mark_examined(video, 5, "one")
    catalog.detections.mark_examined(video, {7, 6}, "set")
    catalog.detections.mark_examined(video, (number for number in (3, 1)), "some")
    catalog.detections.mark_examined(video, [], "none")
    catalog.detections.mark_examined(video, range(8, 2, -2), "back")
    assert {(one.source.name, one.frames) for one in catalog.detections.examined(video)} == {
        ("mask", range(51, FRAMES)),
        ("rows", range(51, FRAMES)),
        ("one", range(5, 6)),
        ("set", range(6, 8)),
        ("some", range(1, 2)),
        ("some", range(3, 4)),
        ("back", range(4, 5)),
        ("back", range(6, 7)),
        ("back", range(8, 9)),
    }
    wrong: Any
    for wrong in ([1.7], np.array([1.0]), mask[:5], "12", 1.5, [range(3), 5], [[1], [2, 3]]):
        with pytest.raises(UsageError):
            catalog.detections.mark_examined(video, wrong, "x")
        with pytest.raises(UsageError):
            catalog.detections.add(video, nothing, "x", examined=wrong)
    for wrong in (-1, [3, -1], range(-3, 3), range(3, -2, -1), [10**30], range(0, 10**12, 2)):
        with pytest.raises(OutOfRangeError, match="does not exist"):
            catalog.detections.mark_examined(video, wrong, "x")
    assert catalog.detections.examined(video, "x") == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20)), max_size=12))
def test_frame_ranges_behave_like_sets(pairs: list[tuple[int, int]]) -> None:
    given = [range(start, start + count) for start, count in pairs]
    merged = frame_ranges(given)
    assert [n for part in merged for n in part] == sorted({n for part in given for n in part})
    assert all(one.stop < other.start for one, other in itertools.pairwise(merged))
    assert frame_ranges([n for part in given for n in part]) == merged


def test_replacing_is_by_source(catalog: Catalog, video: LogicalVideo) -> None:
    v1, v2 = Source("yolo", "n", "1"), Source("yolo", "n", "2")
    catalog.detections.add(video, columns(40, 1), v1, examined=range(50))
    catalog.detections.add(video, columns(30, 2), v2, examined=range(60))
    catalog.detections.add(video, columns(20, 3), v1, examined=range(10), replace=True)
    assert list(catalog.detections.find(video, source=v1)) == from_source(columns(20, 3), v1)
    assert list(catalog.detections.find(video, source=v2)) == from_source(columns(30, 2), v2)
    assert [e.frames for e in catalog.detections.examined(video)] == [range(10), range(60)]
    with pytest.raises(OutOfRangeError):
        catalog.detections.add(video, columns(20, 4, frames=200), v1, replace=True)
    assert len(catalog.detections.find(video, source=v1)) == 20


def test_removing(catalog: Catalog, video: LogicalVideo, filled: list[Detection]) -> None:
    catalog.detections.add(video, columns(100, 9), "other", examined=range(100))
    catalog.detections.mark_examined(video, range(100), "s")
    gone = catalog.detections.remove(video, labels="car", frames=range(10, 30), source="s")
    assert gone == sum(one.label == "car" and 10 <= one.frame < 30 for one in filled)
    assert [e.frames for e in catalog.detections.examined(video, "s")] == [range(100)]
    catalog.detections.remove(video, frames=range(40, 60), source="s")
    assert len(catalog.detections.find(video, source="s", frames=range(40, 60))) == 0
    assert len(catalog.detections.find(video, source="other", frames=range(40, 60))) > 0
    assert [e.frames for e in catalog.detections.examined(video, "s")] == [
        range(40),
        range(60, 100),
    ]
    catalog.detections.remove(video, labels=["bus", "truck"])
    assert {one.label for one in catalog.detections.labels(video)} == {"car", "red"}
    catalog.detections.remove(video, source="s")
    assert catalog.detections.sources(video) == [Source("other")]
    assert catalog.detections.remove(video, labels="unheard of") == 0
    assert catalog.detections.remove(video) == len(columns(100, 9)) - sum(
        label in ("bus", "truck") for label in columns(100, 9).labels
    )
    assert catalog.detections.sources(video) == []


@pytest.mark.parametrize(
    "frames",
    one_in(
        3,
        [
            range(0, 50, 10),
            range(20, 10, -1),
            range(10, 10),
            range(-5, 0),
            range(90, 10**30),
            [3, 1, 2, 1, -1],
            7,
            np.arange(FRAMES) % 3 == 0,
            [],
            np.arange(1, FRAMES - 1),
        ],
    ),
    ids=str,
)
def test_remove_is_limited_to_the_named_frames(
    catalog: Catalog, video: LogicalVideo, filled: list[Detection], frames: Any
) -> None:
    looked = [*range(0, 30), *range(31, 60, 2), *range(70, FRAMES)]
    catalog.detections.mark_examined(video, looked, "s")
    catalog.detections.mark_examined(video, range(FRAMES), "other")
    named = named_by(frames)
    assert list(catalog.detections.find(video, frames=frames)) == [
        one for one in filled if one.frame in named
    ]
    left = [one for one in filled if one.frame not in named]
    assert catalog.detections.remove(video, frames=frames, source="s") == len(filled) - len(left)
    assert list(catalog.detections.find(video)) == left
    ranges = [one.frames for one in catalog.detections.examined(video, "s")]
    assert [n for part in ranges for n in part] == [n for n in looked if n not in named]
    assert all(one.stop < other.start for one, other in itertools.pairwise(ranges))
    assert [one.frames for one in catalog.detections.examined(video, "other")] == [range(FRAMES)]


def named_by(frames: Any) -> set[int]:
    if isinstance(frames, np.ndarray):
        return set(np.arange(FRAMES)[frames].tolist())
    some = [frames] if isinstance(frames, int) else frames[: 2 * FRAMES]
    return {number % FRAMES for number in some if -FRAMES <= number < FRAMES}


def test_partial_replace_is_limited_to_the_named_frames(
    catalog: Catalog, video: LogicalVideo, filled: list[Detection]
) -> None:
    nothing = DetectionColumns.of([], [], [])
    source = filled[0].source
    assert source is not None
    catalog.detections.add(video, nothing, source, replace=range(FRAMES - 1, -1, -10))
    assert list(catalog.detections.find(video)) == [one for one in filled if one.frame % 10 != 9]


def test_labels_of_one_object_are_not_removed(
    catalog: Catalog, video: LogicalVideo, filled: list[Detection]
) -> None:
    wrong: Any = [["car"], ["red"]]
    with pytest.raises(UsageError, match="alternatives"):
        catalog.detections.remove(video, labels=wrong)
    assert list(catalog.detections.find(video)) == filled


def test_removing_a_few_frames_rewrites_only_their_ranges(
    catalog: Catalog, video: LogicalVideo
) -> None:
    """Of a detector that looks at every second frame there are as many ranges as frames."""
    catalog.detections.mark_examined(video, range(0, FRAMES, 2), "s")
    engine = sa.create_engine(f"sqlite:///{_file_of(catalog)}")
    with engine.begin() as connection:
        Detections(connection).remove(video.id, frames=[range(40, 46)])
        changes = connection.execute(sa.text("SELECT total_changes()")).scalar_one()
    engine.dispose()
    assert changes == 3
    frames = [one.frames.start for one in catalog.detections.examined(video, "s")]
    assert frames == [*range(0, 40, 2), *range(46, FRAMES, 2)]


def test_label_summary(catalog: Catalog, video: LogicalVideo) -> None:
    box = (0, 0, 1, 1)
    catalog.detections.add(
        video,
        DetectionColumns.from_detections(
            [
                Detection(3, "car", box, track=1),
                Detection(3, "car", box, track=2),
                Detection(9, "car", box, track=1),
                Detection(5, "bus", box),
            ]
        ),
        "a",
    )
    catalog.detections.add(video, DetectionColumns.of([20], "car", [box], tracks=[1]), "b")
    assert catalog.detections.labels(video) == [
        LabelSummary("bus", 1, 1, 0, 5, 6),
        LabelSummary("car", 4, 3, 3, 3, 21),
    ]
    assert catalog.detections.labels(video, source="b") == [LabelSummary("car", 1, 1, 1, 20, 21)]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"frames": [-1]}, "negative"),
        ({"frames": [0.5]}, "whole numbers, got float"),
        ({"boxes": [[0, 0, 0, 5]]}, "no area"),
        ({"boxes": [[5, 0, 4, 5]]}, "no area"),
        ({"boxes": [[0, 0, float("nan"), 5]]}, "too far outside"),
        ({"boxes": [[0, 0, 1e300, 5]]}, "too far outside"),
        ({"boxes": [[0, 0, 1]]}, "shape"),
        ({"labels": [""]}, "a label must be"),
        ({"labels": [" x"]}, "a label must be"),
        ({"labels": ["a\nb"]}, "a label must be"),
        ({"labels": ["x" * 256]}, "a label must be"),
        ({"labels": ["a", "b"]}, "labels must be"),
        ({"confidences": [float("inf")]}, "infinite"),
        ({"confidences": [10**400]}, "64 bits"),
        ({"tracks": [-5]}, "negative"),
        ({"tracks": [2**63]}, "64 bits"),
        ({"tracks": np.array([2**63], np.uint64)}, "64 bits"),
        ({"tracks": [1.9]}, "track must be .* got 1.9"),
        ({"tracks": np.array([1.9])}, "track must be .*1.9"),
        ({"tracks": [float("inf")]}, "track must be .* got inf"),
        ({"tracks": ["1"]}, "track must be .* got '1'"),
        ({"attributes": [{"a": [1]}]}, "attribute"),
        ({"attributes": [{"a": float("nan")}]}, "attribute"),
        ({"attributes": [{"": 1}]}, "attribute"),
        ({"attributes": [{"a": "x\ud800"}]}, "the attribute .* must not"),
        ({"attributes": [{"a": "x\0"}]}, "the attribute .* must not"),
    ],
)
def test_invalid_columns_are_refused(row: dict[str, Any], what: str) -> None:
    given: dict[str, Any] = {"frames": [1], "labels": ["a"], "boxes": [[0, 0, 1, 1]]} | row
    with pytest.raises(UsageError, match=what):
        DetectionColumns.of(**given)


def test_tracks_may_be_floats_like_in_pandas() -> None:
    given: list[Any] = [[1.0, math.nan, None], np.array([1.0, math.nan, math.nan]), [True, -1, -1]]
    for tracks in given:
        found = DetectionColumns.of([1, 2, 3], "car", [(0, 0, 1, 1)] * 3, tracks=tracks)
        assert [one.track for one in found] == [1, None, None]


def test_abandoned_insert_changes_nothing(catalog: Catalog, video: LogicalVideo) -> None:
    class EnoughError(Exception):
        pass

    def report(done: int, total: int) -> None:
        assert (done, total) == (20_000, 30_000)
        raise EnoughError

    with pytest.raises(EnoughError):
        catalog.detections.add(video, columns(30_000), "s", examined=[1], on_progress=report)
    assert catalog.detections.sources(video) == []


# --------------------------------------------------------------------- videos come and go


def put_again(catalog: Catalog, video: LogicalVideo, key: str) -> LogicalVideo:
    with catalog.writing() as change:
        change.videos.drop_physicals(video.ino)
        change.objects.record(key, 5, now_ns=1)
        change.tree.update(video.ino, object_key=key)
        return change.videos.put(video.ino, original(key), table(), digest=key, now_ns=9)


def test_other_bytes_have_no_detections(catalog: Catalog, video: LogicalVideo) -> None:
    catalog.detections.add(video, columns(10), "s", examined=range(9))
    again = put_again(catalog, video, video.digest)
    assert len(catalog.detections.find(again)) == 10
    other = put_again(catalog, video, "c" * 64)
    assert other.id == video.id
    assert len(catalog.detections.find(other)) == 0
    assert catalog.detections.examined(other) == []
    for work in (
        lambda: catalog.detections.add(video, columns(1), "s"),
        lambda: catalog.detections.mark_examined(video, range(1), "s"),
        lambda: catalog.detections.remove(video),
        lambda: list(catalog.detections.find(video)),
    ):
        with pytest.raises(NotFoundError, match="have changed"):
            work()


def test_detections_are_removed_with_their_video(catalog: Catalog, video: LogicalVideo) -> None:
    catalog.detections.add(video, columns(10), "s", examined=range(9))
    with catalog.writing() as change:
        change.videos.remove(video.ino)
    with pytest.raises(NotFoundError, match="was removed"):
        list(catalog.detections.find(video))
    raw = sqlite3.connect(_file_of(catalog))
    for name in ("detections", "examined"):
        assert raw.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)
    raw.close()


def test_encodings_of_a_video_share_detections(catalog: Catalog, video: LogicalVideo) -> None:
    catalog.detections.add(video, columns(10), "s")
    with catalog.writing() as change:
        change.objects.record("d" * 64, 5, now_ns=1)
        change.videos.add_physical(
            video.id, dataclasses.replace(original("d" * 64), parent_id=video.original.id), table()
        )
    assert len(catalog.detections.find(video)) == 10


def test_videos_do_not_share_detections(catalog: Catalog, video: LogicalVideo) -> None:
    with catalog.writing() as change:
        other = add_video(change, "b.mp4")
    catalog.detections.add(video, columns(10), "s")
    assert len(catalog.detections.find(other)) == 0
    assert catalog.detections.labels(other) == []


_SOURCES = (Source("a"), Source("a", "2"), Source("b"))


def _change(there: Catalog, video: LogicalVideo, rng: np.random.Generator) -> None:
    """Change the boxes of a video in one of the ways that there are."""
    rows = columns(int(rng.integers(0, 60)), int(rng.integers(1 << 30)))
    source = _SOURCES[rng.integers(3)]
    start = int(rng.integers(FRAMES))
    frames = range(start, int(rng.integers(start, FRAMES)) + 1)
    labels = ["car", "red"][: int(rng.integers(1, 3))]
    index = there.detections
    match int(rng.integers(8)):
        case 0 | 1:
            index.add(video, rows, source)
        case 2:
            index.add(video, rows, source, replace=True)
        case 3:
            index.add_unexamined(video, rows, source, np.arange(FRAMES))
        case 4:
            index.remove(video, labels=labels, frames=frames if rng.random() < 0.5 else None)
        case 5:
            index.remove(video, source=source if rng.random() < 0.5 else "a", frames=frames)
        case 6:
            index.remove(video, source="a", labels=labels if rng.random() < 0.5 else None)
        case _:
            order = rng.permutation(FRAMES)
            with there.writing() as change:
                change.detections.renumber(video.id, np.where(order < 90, order, -1))


def test_kept_counts_are_those_of_the_boxes(there: Catalog) -> None:
    rng = np.random.default_rng(3)
    with there.writing() as change:
        videos = [add_video(change, f"cam{at}/a.mp4", frames=FRAMES) for at in range(3)]
    for at, video in enumerate(videos):
        there.detections.add(video, columns(50, at), _SOURCES[at])
    for _ in range(15 + examples(60)):
        _change(there, videos[rng.integers(3)], rng)
        with there.reading() as seen:
            assert seen.box_counts.miscounted() == []
    for chosen in (None, videos[:2]):
        for labels in (None, "car|red", "nothing", "car & not red", "lane=1"):
            for source in (None, "a", _SOURCES[0]):
                among = videos if chosen is None else chosen
                boxes = [
                    (one.label, one.source, video.name)
                    for video in among
                    for one in there.detections.find(video, labels, source=source)
                ]
                found = there.detections.sums_in(chosen, labels, source=source)
                assert {one[:3]: one.boxes for one in found} == Counter(boxes)
                totals = there.detections.sums_in(chosen, labels, source=source, by_video=False)
                assert sum(one.boxes for one in totals) == len(boxes)
    with there.writing() as change:
        change.videos.remove(videos[0].ino)
    with there.reading() as seen:
        assert seen.box_counts.miscounted() == []
        there_still = {one.video_id for one in seen.box_counts.sums(None, by_video=True)}
        assert there_still <= {one.id for one in videos[1:]}
    with there.writing() as change:
        label = change.detections.known_labels(["car"])["car"]
        change.box_counts.add(videos[1].id, change.detections.known_sources("a")[0], {label: 5})
        assert change.box_counts.miscounted() == [videos[1].id]
        change.box_counts.recount(videos[1].id)
        assert change.box_counts.miscounted() == []


def test_boxes_of_several_videos_equal_those_of_each(there: Catalog) -> None:
    with there.writing() as change:
        videos = [add_video(change, f"{at}.mp4", frames=FRAMES) for at in range(5)]
    for at, video in enumerate(videos):
        there.detections.add(video, columns(200, at), "s")
    ranges = [range(10, 100), range(10, 50), range(5, 5), range(10, 100), range(20, 30)]
    area = (100, 100, 400, 300)
    for labels in (None, "car|bus", "not red", "lane=1"):
        for conditions in ({}, {"region": area, "min_confidence": 0.3}):
            given: Any = conditions
            places, rows = there.detections.find_in(videos, labels, ranges=ranges, **given)
            expected = [
                (at, one)
                for at, video in enumerate(videos)
                for one in there.detections.find(video, labels, frames=ranges[at], **given)
            ]
            assert list(zip(places.tolist(), rows, strict=True)) == expected
            sums = there.detections.sums_in(videos, labels, ranges=ranges, **given)
            assert sum(one.boxes for one in sums) == len(expected)


def test_sql_view_shows_every_box(catalog: Catalog, video: LogicalVideo) -> None:
    rows = columns(10)
    catalog.detections.add(video, rows, Source("yolo", "n", "1"))
    raw = sqlite3.connect(_file_of(catalog))
    found = raw.execute(
        "SELECT name, frame, label, x1, y1, x2, y2, confidence, track, source, model, version, "
        "attributes FROM v_detections WHERE name = 'cam1/a.mp4'"
    ).fetchall()
    raw.close()
    assert sorted(row[:7] for row in found) == sorted(
        ("cam1/a.mp4", one.frame, one.label, *one.box) for one in rows
    )
    assert {row[9:12] for row in found} == {("yolo", "n", "1")}
    assert {"lane": 0, "wet": True} in [json.loads(row[12]) for row in found if row[12]]


def _add_many(url: str, source: str, times: int) -> None:
    with Catalog.open(url) as mine:
        video = mine.video("cam1/a.mp4")
        for seed in range(times):
            mine.detections.add(video, columns(100, seed), source, examined=[seed])


@pytest.mark.thorough
def test_concurrent_inserts_and_queries(catalog: Catalog, video: LogicalVideo) -> None:
    url = f"sqlite:///{_file_of(catalog)}"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_add_many, args=(url, name, 20)) for name in "ab"]
    for writer in writers:
        writer.start()
    looks = 0
    ends = [writer.sentinel for writer in writers]
    while len(wait(ends, 0.005)) < len(ends):
        found = catalog.detections.find(video).columns()
        assert len(found) % 100 == 0  # never half a transaction
        looks += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert looks
    assert len(catalog.detections.find(video, source="a")) == 2000
    assert catalog.detections.examined(video, "b")[0].frames == range(20)


# ------------------------------------------------------------------------------- the schema


def test_the_index_works_on_postgresql(own_database: str) -> None:
    with Catalog.create(own_database) as there:
        with there.writing() as change:
            video = add_video(change, "detections.mp4", key="e" * 64)
        rows = columns(2000, 4)
        there.detections.add(video, rows, Source("s", "m", parameters={"a": 1}), examined=range(9))
        expected = from_source(rows, Source("s", "m", parameters={"a": 1}))
        assert list(there.detections.find(video)) == expected
        region = (10.0, 10.0, 300.0, 200.0)
        found = there.detections.find(video, [["car"], ["car"]], frames=range(3, 90), region=region)
        assert list(found) == [
            one
            for one in expected
            if one.label == "car" and 3 <= one.frame < 90 and meets(one, region)
        ]
        assert len(there.detections.find(video, attributes={"lane": 0})) == sum(
            one.attributes.get("lane") == 0 for one in expected
        )
        assert sum(one.boxes for one in there.detections.labels(video)) == 2000
        assert there.detections.remove(video, frames=range(50)) > 0
        put_again(there, video, "f" * 64)
        assert there.detections.sources(video) == []
