"""Frames as Arrow batches, and the blocks that they are read in."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.errors import NotFoundError, OutdatedError, UsageError
from vfsd.tables import frames as frames_module
from vfsd.tables.frames import FrameSource, read_frames

CLIPS = ("traffic.mp4", "open-gop.mkv", "portrait.mp4")

arrow = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("frames") / "store") as made:
        for clip in CLIPS:
            made.ingest(FOLDER / clip, f"cam/{clip}")
        yield made


def _pictures(table: Any) -> np.ndarray:
    found: np.ndarray = table["data"].combine_chunks().to_numpy_ndarray()
    return found


@pytest.mark.parametrize("every", [1, 7])
def test_blocks_have_each_frame_once(
    store: Store, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "_BLOCK_BYTES", 1)
    source = FrameSource(store, every=every)
    blocks = source.blocks()
    for clip in CLIPS:
        video = store[f"cam/{clip}"]
        table = context_of(video).table
        own = [block for block in blocks if block.name == video.name]
        numbers = np.concatenate([block.frames for block in own])
        np.testing.assert_array_equal(numbers, np.arange(0, len(video), every))
        # No two blocks start with the same key packet.
        keys = [table.decode_run(int(block.frames[0])).first_packet for block in own]
        assert sorted(set(keys)) == keys
        assert len(own) > 1 or len(table.keyframes()) == 1
        for block in own:
            last = table.decode_run(int(block.frames[-1])).first_packet
            assert last == table.decode_run(int(block.frames[0])).first_packet
        if every == 1:
            assert sum(one.file_bytes for one in own) <= 1.2 * video.original.size
    assert sum(one.pixel_bytes for one in blocks) == sum(
        len(frames.data.ravel()) for block in blocks for frames in source.read(block)
    )


def test_content_is_that_of_the_videos(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "_BATCH_BYTES", 1 << 20)
    table = read_frames(store, "cam/traffic.mp4").read_all()
    expected = store["cam/traffic.mp4"].read()
    np.testing.assert_array_equal(_pictures(table), expected.data)
    assert table["frame"].to_pylist() == expected.index.tolist()
    assert table["pts"].to_pylist() == expected.pts.tolist()
    assert table["seconds"].to_pylist() == expected.seconds.tolist()
    assert not any(table["damaged"].to_pylist())
    options: dict[str, Any] = {"region": (16, 16, 144, 112), "size": (64, 48), "format": "gray"}
    table = read_frames(store, "cam/traffic.mp4", fps=3, **options).read_all()
    expected = store["cam/traffic.mp4"].read(fps=3, **options)
    assert table["frame"].to_pylist() == expected.index.tolist()
    np.testing.assert_array_equal(_pictures(table)[..., 0], expected.data.squeeze())


def test_source_arrives_by_pickle(store: Store) -> None:
    source = FrameSource(store, "cam/*", every=20, size=(64, 48))
    copy = pickle.loads(pickle.dumps(source))
    for one, other in zip(source.blocks(), copy.blocks(), strict=True):
        (mine,), (theirs,) = source.read(one), copy.read(other)
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_wrong_arguments(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one size"):
        read_frames(store)
    assert read_frames(store, size=(32, 24), every=50).read_all().num_rows == 6
    for options in ({"every": 0}, {"every": 2, "fps": 3}, {"format": "yuv420p"}):
        with pytest.raises(UsageError):
            read_frames(store, **options)
    with pytest.raises(UsageError, match="outside"):
        read_frames(store, region=(0, 0, 9999, 10))
    with pytest.raises(NotFoundError):
        read_frames(store, "none.mp4")
    with new_store(tmp_path / "other") as other:
        other.ingest(FOLDER / "traffic.mp4", "a.mp4")
        reader = read_frames(other)
        other.ingest(FOLDER / "portrait.mp4", "a.mp4", replace=True)
        with pytest.raises((OutdatedError, OSError), match="written again"):
            reader.read_all()


def test_duckdb_polars_and_daft(store: Store) -> None:
    options: dict[str, Any] = {"size": (64, 48), "fps": 5}
    expected = read_frames(store, **options).read_all()
    duckdb = pytest.importorskip("duckdb")
    reader = read_frames(store, **options)
    found = duckdb.from_arrow(reader).aggregate("count(*), sum(frame)").fetchall()
    assert found == [(len(expected), sum(expected["frame"].to_pylist()))]
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(read_frames(store, **options).read_all())
    assert frame["frame"].to_list() == expected["frame"].to_pylist()
    daft = pytest.importorskip("daft")
    rows = (
        daft.from_arrow(read_frames(store, **options).read_all())
        .where(daft.col("name") == "cam/portrait.mp4")
        .to_pydict()
    )
    pictures = store["cam/portrait.mp4"].read(fps=5, size=(64, 48)).data
    np.testing.assert_array_equal(np.stack(rows["data"]), pictures)
