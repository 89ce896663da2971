"""Exported tables hold what the catalog and the frame tables say, and stream in bounded memory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tables.conftest import NAMES
from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.core.arrow_tables import TABLES
from vfsd.core.detections import DetectionColumns
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import PhysicalVideo
from vfsd.errors import NotFoundError, UsageError

pyarrow = pytest.importorskip("pyarrow")
arrow = pytest.importorskip("vfsd.tables.sql")

SHOWN = {"word": "string", "strings": "list of string", "floats": "list of float32"}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"


def rows(store: Store, table: str, names: Any = None, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.to_arrow(table, names, **options).read_all().to_pylist()
    return found


@pytest.mark.parametrize("table", TABLES)
def test_columns_have_the_documented_types(store: Store, table: str) -> None:
    reader = store.to_arrow(table)
    assert reader.schema.names == list(TABLES[table])
    for field in reader.schema:
        assert field.metadata[b"comment"].decode() == TABLES[table][field.name].text
    found = reader.read_all()
    assert found.num_rows
    found.validate(full=True)
    for name, column in TABLES[table].items():
        assert column.nullable or not found.column(name).null_count


def test_page_lists_all_columns() -> None:
    block = PAGE.read_text().partition("```text\n")[2].partition("```")[0]
    listed: dict[str, list[str]] = {}
    for line in block.splitlines():
        if not line.startswith(" "):
            table = line
            listed[table] = []
            continue
        name, kind, text = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        column = TABLES[table][name]
        listed[table].append(name)
        assert kind == SHOWN.get(column.type, column.type)
        assert text == column.text + " (or null)" * column.nullable
    assert listed == {table: list(columns) for table, columns in TABLES.items()}


def test_videos(store: Store) -> None:
    found = rows(store, "videos")
    assert [row["name"] for row in found] == list(NAMES)
    for row in found:
        video = store[row["name"]]
        assert (row["frames"], row["width"], row["height"]) == (
            *video.shape[:3:2],
            video.height,
        )
        assert row["seconds"] == float(video.duration)
        assert row["fps"] == float(video.fps)
        assert row["digest"] == video.info.digest
    assert store.catalog.find().to_arrow().to_pylist() == found


def test_vectors(store: Store) -> None:
    found = rows(store, "vectors")
    stored = store[NAMES[0]].vectors.get()
    assert [row["vector"] for row in found] == stored.matrix.tolist()
    assert [[row["first_frame"], row["end_frame"]] for row in found] == stored.frames.tolist()
    assert {(row["name"], row["source"], row["model"]) for row in found} == {
        (NAMES[0], "clip", "small")
    }
    assert len(rows(store, "vectors", columns=["end_frame"])) == len(found)


def test_frames(store: Store) -> None:
    for name in NAMES:
        video = store[name]
        table, original = store.catalog.frame_table(video.original), video.original
        found = rows(store, "frames", name)
        assert len(found) == len(video)
        for number, row in enumerate(found):
            entry = table.frame(number)
            assert row == {
                "name": name,
                "frame": number,
                "pts": entry.pts,
                "seconds": float((entry.pts - original.first_pts) * original.time_base),
                "duration": float(entry.duration * original.time_base),
                "key": entry.is_key,
                "packet": entry.packet,
                "position": entry.position,
                "size": entry.size,
            }


def test_detections(store: Store) -> None:
    found = rows(store, "detections", "cam1/**")
    assert [(row["frame"], row["label"], row["confidence"], row["track"]) for row in found] == [
        (2, "car", None, None),
        (5, "car", 0.5, 7),
        (2, "bus", 0.25, None),
        (90, "bus", 1.0, 8),
    ]
    assert {(row["source"], row["model"], row["version"]) for row in found} == {("net", "m", "2")}
    assert [row["attributes"] and json.loads(row["attributes"]) for row in found] == [
        None,
        {"lane": 3},
        None,
        {"wet": True},
    ]
    video = store["cam1/traffic.mp4"]
    for row in found:
        assert row["seconds"] == video.frames([row["frame"]])[0].seconds
    exported = video.labels.query().to_arrow().to_pylist()
    for row in found:
        del row["name"], row["seconds"]
    assert sorted(map(str, found)) == sorted(map(str, exported))


def test_reads(store: Store) -> None:
    found = rows(store, "reads", columns=["name", "first_frame", "end_frame", "x1", "y2", "width"])
    # Other tests read single frames of the same store.
    (row,) = (one for one in found if one["end_frame"] == 30)
    assert row == {
        "name": "cam1/traffic.mp4",
        "first_frame": 0,
        "end_frame": 30,
        "x1": 10,
        "y2": 100,
        "width": 40,
    }


def test_tiles(store: Store) -> None:
    found = rows(store, "tiles")
    video = store["cam1/portrait.mp4"]
    segments = store.catalog.segments(video.info)
    assert len(found) == sum(len(one.cells) for one in segments)
    first = [row for row in found if row["first_frame"] == 0]
    # Turned upright, as the video is shown; together they cover the picture.
    assert {(row["width"], row["height"]) for row in found} == {(video.width, video.height)}
    area = sum((row["x2"] - row["x1"]) * (row["y2"] - row["y1"]) for row in first)
    assert area == video.width * video.height
    assert sum(row["size"] for row in found) == sum(
        cell.size for one in segments for cell in one.cells
    )


def test_names_and_columns_are_checked(store: Store) -> None:
    assert [row["name"] for row in rows(store, "videos", ["cam2/*", NAMES[0]])] == [
        NAMES[0],
        NAMES[2],
    ]
    assert rows(store, "videos", "nothing/**") == []
    assert rows(store, "frames", [], columns=["frame"]) == []
    for table, names, columns, error in [
        ("frame", None, None, UsageError),
        ("frames", None, ["nam"], UsageError),
        ("frames", None, "name", UsageError),
        ("frames", [3], None, UsageError),
        ("frames", "no.mp4", None, NotFoundError),
    ]:
        with pytest.raises(error):
            store.to_arrow(table, names, columns=columns)  # type: ignore[arg-type]


def test_nothing_is_read_before_the_stream_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    inner = Catalog.frame_table

    def frame_table(catalog: Catalog, physical: PhysicalVideo) -> FrameTable:
        asked.append("table")
        return inner(catalog, physical)

    monkeypatch.setattr(Catalog, "frame_table", frame_table)
    reader = store.to_arrow("frames")
    assert not asked
    reader.read_all()
    assert len(asked) == 3
    # Numbers of frames need no table.
    asked.clear()
    assert len(rows(store, "detections", columns=["frame"])) == 5
    assert not asked


def test_batches_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(store, "frames")
    monkeypatch.setattr(arrow, "BATCH_ROWS", 50)
    sizes = [batch.num_rows for batch in store.to_arrow("frames")]
    assert max(sizes) <= 50
    assert sum(sizes) == len(whole)
    assert rows(store, "frames") == whole
    # Labels of several videos are words of one stream.
    assert len(rows(store, "detections")) == 5


def test_pages_of_boxes_join_to_all(store: Store) -> None:
    video = store["cam2/open-gop.mkv"]
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 90, 700)
    labels = [f"l{number}" for number in rng.integers(0, 3, 700)]
    boxes = np.column_stack([np.zeros(700), np.arange(700), np.ones(700), np.arange(700) + 1])
    video.labels.add(DetectionColumns.of(frames, labels, boxes), "many")
    queries = [
        video.labels.query(source="many"),
        video.labels.query("l0|l2"),
        video.labels.query("l1", frames=range(10, 70, 3)),
        video.labels.query(frames=[1, 5, 80]),
        video.labels.query(region=(0, 100, 5, 300)),
        video.labels.query("car"),
        video.labels.query(frames=range(0)),
    ]
    for query in queries:
        whole = query.columns()
        for size in (7, 100, 10_000):
            parts = list(query.batches(size))
            assert max(map(len, parts), default=0) <= size
            assert sorted(map(str, (one for part in parts for one in part))) == sorted(
                map(str, whole)
            )
    assert video.labels.remove(source="many") == 700
