"""Boxes come in from tables of other libraries and from tuples, and malformed ones are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tables.conftest import NAMES
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.errors import ExtraMissingError, UsageError

pyarrow = pytest.importorskip("pyarrow")

ROWS: dict[str, list[Any]] = {
    "frame": [3, 1],
    "label": ["car", "bus"],
    "x1": [1.0, 2.0],
    "y1": [1.5, 2.5],
    "x2": [5.0, 6.0],
    "y2": [7.0, 8.5],
    "confidence": [0.5, None],
    "track": [None, 4],
}
EXPECTED = [
    (1, "bus", (2.0, 2.5, 6.0, 8.5), None, 4),
    (3, "car", (1.0, 1.5, 5.0, 7.0), 0.5, None),
]


@pytest.fixture
def video(store: Store) -> Iterator[Video]:
    video = store[NAMES[0]]
    yield video
    for source in video.labels.sources():
        video.labels.remove(source=source)


def stored(video: Video) -> list[tuple[Any, ...]]:
    return [
        (one.frame, one.label, one.box, one.confidence, one.track) for one in video.labels.query()
    ]


def of_pyarrow() -> Any:
    return pyarrow.table(ROWS)


def of_pyarrow_words() -> Any:
    table = pyarrow.table(ROWS)
    at = table.column_names.index("label")
    return table.set_column(at, "label", table["label"].dictionary_encode())


def of_narrow_types() -> Any:
    kinds = {"frame": pyarrow.int16(), "x1": pyarrow.float32(), "track": pyarrow.uint8()}
    columns = {name: pyarrow.array(ROWS[name], kinds.get(name)) for name in reversed(ROWS)}
    return pyarrow.RecordBatchReader.from_batches(
        pyarrow.table(columns).schema, pyarrow.table(columns).to_batches(1)
    )


def of_polars() -> Any:
    polars = pytest.importorskip("polars")
    if not hasattr(polars.DataFrame, "__arrow_c_stream__"):
        pytest.skip("needs polars 1.3")
    return polars.DataFrame(ROWS)


def of_pandas() -> Any:
    pandas = pytest.importorskip("pandas")
    if not hasattr(pandas.DataFrame, "__arrow_c_stream__"):
        pytest.skip("needs pandas 2.2")
    return pandas.DataFrame(ROWS, index=["p", "q"]).astype({"track": "Int64"})


def of_pandas_floats() -> Any:
    """pandas reads whole numbers with gaps as floats, unless told otherwise."""
    pandas = pytest.importorskip("pandas")
    if not hasattr(pandas.DataFrame, "__arrow_c_stream__"):
        pytest.skip("needs pandas 2.2")
    return pandas.DataFrame(ROWS)


def of_duckdb() -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.sql(
        "SELECT * FROM (VALUES (3, 'car', [1.0, 1.5, 5, 7], 0.5, NULL),"
        "(1, 'bus', [2, 2.5, 6, 8.5], NULL, 4)) t(frame, label, box, confidence, track)"
    )


def of_tuples() -> Any:
    return [(3, "car", (1.0, 1.5, 5.0, 7.0), 0.5), (1, "bus", [2.0, 2.5, 6.0, 8.5], None, 4)]


@pytest.mark.parametrize(
    "make",
    [
        of_pyarrow,
        of_pyarrow_words,
        of_narrow_types,
        of_polars,
        of_pandas,
        of_pandas_floats,
        of_duckdb,
        of_tuples,
    ],
)
def test_boxes_come_in(video: Video, make: Any) -> None:
    assert video.labels.add(make(), "net") == 2
    assert stored(video) == EXPECTED


def test_an_exported_table_comes_back(store: Store, video: Video) -> None:
    names = [one for one in NAMES if one != video.name]
    other = store[names[0]]
    exported = other.labels.query(frames=range(45)).to_arrow()
    assert video.labels.add(exported) == exported.num_rows == 3
    assert list(video.labels.query()) == list(other.labels.query(frames=range(45)))
    with pytest.raises(UsageError, match=r"has boxes of 'cam1/traffic.mp4'"):
        video.labels.add(store.to_arrow("detections", other.name))
    before = stored(video)
    assert video.labels.add(store.to_arrow("detections", video.name), "net", replace=True) == 3
    assert len(stored(video)) == len(before) + 3


def test_attributes_are_objects(video: Video) -> None:
    table = pyarrow.table(
        {
            "frame": [1, 2, 3],
            "label": ["a"] * 3,
            "box": [[1, 2, 3, 4]] * 3,
            "attributes": pyarrow.array(
                [[("lane", "3")], None, [("wet", "yes")]],
                pyarrow.map_(pyarrow.string(), pyarrow.string()),
            ),
        }
    )
    video.labels.add(table, "map")
    struct = pyarrow.array([{"lane": 3}, {"lane": None}, None])
    video.labels.add(table.set_column(3, "attributes", struct), "struct")
    text = pyarrow.array(['{"lane": 3}', "{}", None])
    video.labels.add(table.set_column(3, "attributes", text), "text")
    found = {
        name: [dict(one.attributes) for one in video.labels.query(source=name)]
        for name in ("map", "struct", "text")
    }
    assert found == {
        "map": [{"lane": "3"}, {}, {"wet": "yes"}],
        "struct": [{"lane": 3}, {}, {}],
        "text": [{"lane": 3}, {}, {}],
    }


def changed(**columns: Any) -> Any:
    return pyarrow.table(
        {name: values for name, values in {**ROWS, **columns}.items() if values is not None}
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (changed(frame=[1.5, 2.0]), "frame must be whole numbers"),
        (changed(frame=["1", "x"]), "frame must be whole numbers"),
        (changed(frame=[1, None]), "frame must be a number in every row, got null"),
        (changed(frame=None), "no column 'frame'"),
        (changed(label=[1, 2]), "label must be text, got 1"),
        (changed(label=["a", None]), "label must be text in every row"),
        (changed(x1=[1, None]), "x1 must be a number in every row"),
        (changed(x1=[9.0, 9.0]), "row 0: the box has no area"),
        (changed(score=[1.0, 2.0]), "no column 'score'"),
        (changed(y2=None), "no column 'y2'"),
        (changed(box=[[1, 2, 3, 4]] * 2), "has a box and corners"),
        (changed(x1=None, y1=None, x2=None, y2=None, box=[[1, 2, 3]] * 2), "a box must be"),
        (changed(attributes=["{", "{}"]), "attributes must be JSON objects"),
        (changed(attributes=["[1]", "{}"]), "attributes must be JSON objects"),
        (changed(track=[-3, 1]), "the track number is negative"),
        ([(1, "car")], "a box must have 3 to 5 values"),
        ([(1, "car", (1, 2, 3, 4), 0.5, 1, 2)], "a box must have 3 to 5 values"),
        ([(1, "car", 5)], "box"),
        ("frame,label", "detections must be"),
    ],
)
def test_malformed_tables_are_refused(video: Video, table: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        video.labels.add(table, "net")
    assert stored(video) == []


def test_a_near_name_is_suggested(video: Video) -> None:
    with pytest.raises(UsageError) as caught:
        video.labels.add(changed(confidnce=[1.0, 2.0]), "net")
    assert caught.value.hint == "rename it to 'confidence'"


def test_tables_need_pyarrow(video: Video, monkeypatch: pytest.MonkeyPatch) -> None:
    table = of_pyarrow()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExtraMissingError):
        video.labels.add(table, "net")
    assert video.labels.add(of_tuples(), "net") == 2
