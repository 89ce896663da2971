"""LeRobot data sets: written, imported by link, and read by LeRobot and Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.clips import make_clip
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.datasets.lerobot import episodes_of, export_lerobot, import_lerobot
from vfsd.errors import ExistsError, NotFoundError, UsageError

pq = pytest.importorskip("pyarrow.parquet")

TOP = "observation.images.top"
ACTIONS = np.arange(160, dtype=np.float32).reshape(80, 2)


@pytest.fixture
def clips(store: Store, tmp_path: Path) -> list[Video]:
    """Two clips of 40 frames at 25 frames a second."""
    return [
        store.ingest(make_clip(tmp_path / f"{name}.mp4", "libx264", options={"g": "10"}), name)
        for name in ("a.mp4", "b.mp4")
    ]


@pytest.fixture
def made(clips: list[Video], tmp_path: Path) -> Path:
    """A data set of two episodes."""
    out = tmp_path / "set"
    columns = {"action": ACTIONS, "next.done": np.zeros(80, np.bool_)}
    assert export_lerobot(out, {TOP: clips}, task="Pick the cube", columns=columns) == 2
    return out


def test_packets_are_copied(clips: list[Video], made: Path, store: Store) -> None:
    assert sorted(path.name for path in made.rglob("*.mp4")) == ["file-000.mp4", "file-001.mp4"]
    for number, clip in enumerate(clips):
        again = store.ingest(
            made / f"videos/{TOP}/chunk-000/file-{number:03}.mp4", f"again{number}"
        )
        assert np.array_equal(again[:].data, clip[:].data)
        before = clip.original.media.codec, len(clip.keyframes)
        assert (again.original.media.codec, len(again.keyframes)) == before


def test_tables(made: Path) -> None:
    info = json.loads((made / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_frames"]) == ("v3.0", 25, 80)
    assert info["features"][TOP]["shape"] == [64, 96, 3]
    assert info["features"]["action"] == {"dtype": "float32", "shape": [2], "names": None}
    data = pq.read_table(made / "data/chunk-000/file-000.parquet").to_pydict()
    assert data["index"] == list(range(80))
    assert data["frame_index"] == [*range(40), *range(40)]
    assert data["episode_index"] == [0] * 40 + [1] * 40
    assert data["action"][41] == [82, 83]
    assert data["timestamp"][41] == pytest.approx(0.04)
    rows = pq.read_table(made / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(one["dataset_from_index"], one["dataset_to_index"]) for one in rows] == [
        (0, 40),
        (40, 80),
    ]
    assert [one[f"videos/{TOP}/file_index"] for one in rows] == [0, 1]
    stats = json.loads((made / "meta/stats.json").read_text())
    assert stats["action"]["mean"] == ACTIONS.mean(axis=0).tolist()
    assert 0 < stats[TOP]["mean"][0][0][0] < 1


def test_import_by_link(made: Path, store: Store, clips: list[Video]) -> None:
    videos = import_lerobot(store, made, "bots/pick")
    assert [video.name for video in videos] == [
        f"bots/pick/videos/{TOP}/chunk-000/file-{number:03}.mp4" for number in (0, 1)
    ]
    (episode,) = episodes_of(videos[1])
    assert (episode.number, episode.frames, episode.tasks) == (1, range(40), ("Pick the cube",))
    assert episodes_of(clips[0]) == []
    (box, *_) = videos[1].labels.query("Pick the cube", span=(1, 1.04))
    assert (box.frame, box.track, box.box) == (25, 1, (0, 0, 96, 64))
    assert videos[0].metadata["lerobot"]["camera"] == TOP
    assert {name for name, _ in store.entries("bots/pick")} == {"data", "meta", "videos"}
    assert {name for name, _ in store.entries("bots/pick/meta")} == {
        "episodes",
        "info.json",
        "stats.json",
        "tasks.parquet",
    }
    with pytest.raises(ExistsError):
        import_lerobot(store, made, "bots/pick")


def test_episodes_of_one_file(made: Path, store: Store, tmp_path: Path) -> None:
    """An import with two episodes in one file is exported with both, and the same packets."""
    path = made / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    for one, (first, end) in zip(rows, [(0, 15), (15, 40)], strict=True):
        one |= {"length": end - first, f"videos/{TOP}/file_index": 0}
        one |= {f"videos/{TOP}/from_timestamp": first / 25, f"videos/{TOP}/to_timestamp": end / 25}
    rows[1]["tasks"] = ["Place it"]
    pyarrow = pytest.importorskip("pyarrow")
    pq.write_table(pyarrow.Table.from_pylist(rows), path)
    (made / f"videos/{TOP}/chunk-000/file-001.mp4").unlink()
    (video,) = import_lerobot(store, made, "bots")
    assert [(one.frames, one.tasks) for one in episodes_of(video)] == [
        (range(15), ("Pick the cube",)),
        (range(15, 40), ("Place it",)),
    ]
    assert export_lerobot(tmp_path / "again", {TOP: [video]}) == 2
    again = pq.read_table(tmp_path / "again/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(one["length"], one[f"videos/{TOP}/from_timestamp"]) for one in again] == [
        (15, 0),
        (25, 0.6),
    ]
    tasks = pq.read_table(tmp_path / "again/meta/tasks.parquet").to_pydict()
    assert tasks == {"task_index": [0, 1], "task": ["Pick the cube", "Place it"]}


def test_refused_sets(made: Path, store: Store) -> None:
    (made / f"videos/{TOP}/chunk-000/file-001.mp4").unlink()
    with pytest.raises(NotFoundError, match=r"file-001\.mp4"):
        import_lerobot(store, made, "bots")
    info = made / "meta/info.json"
    info.write_text(info.read_text().replace("v3.0", "v2.1"))
    with pytest.raises(UsageError, match=r"must be v3\.0, got 'v2\.1'"):
        import_lerobot(store, made, "bots")
    info.unlink()
    with pytest.raises(NotFoundError, match=r"info\.json"):
        import_lerobot(store, made, "bots")
    assert "bots" not in {name for name, _ in store.entries()}


def test_refused_videos(clips: list[Video], store: Store, tmp_path: Path) -> None:
    out = tmp_path / "set"
    variable = store.ingest(FOLDER / "variable-rate.mp4", "variable.mp4")
    for cameras, text in (
        ({TOP: [variable]}, "constant rate"),
        ({TOP: clips, "wrist": clips[:1]}, "equal numbers"),
        ({}, "equal numbers"),
        ({TOP: [clips[0], variable]}, "size"),
        ({TOP: clips[:1], "wrist": [variable]}, "40 frames"),
    ):
        with pytest.raises(UsageError, match=text):
            export_lerobot(out, cameras)
    with pytest.raises(UsageError, match="a row for each of 80 frames"):
        export_lerobot(out, {TOP: clips}, columns={"action": ACTIONS[1:]})
    assert not out.exists()


@pytest.fixture
def mounted(made: Path, store: Store, tmp_path: Path, mountable: None) -> Iterator[Path]:
    """The data set in a mount."""
    from vfsd.mount import control

    import_lerobot(store, made, "bots/pick")
    place = tmp_path / "mnt"
    place.mkdir()
    control.mount(store.path, place, (), log_file=tmp_path / "log")
    yield place / "bots/pick"
    control.unmount(place)


@pytest.mark.thorough
def test_lerobot_reads_a_mounted_set(mounted: Path, clips: list[Video]) -> None:
    dataset = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    found = dataset.LeRobotDataset("local/pick", root=mounted, video_backend="torchcodec")
    assert (found.num_episodes, found.num_frames, found.fps) == (2, 80, 25)
    item = found[57]
    assert (item["task"], item["action"].tolist()) == ("Pick the cube", [114, 115])
    pixels = (item[TOP].numpy() * 255).round().astype(int).transpose(1, 2, 0)
    assert np.abs(pixels - clips[1][17].data.astype(int)).max() <= 2


def test_hugging_face_reads_a_mounted_set(mounted: Path) -> None:
    datasets = pytest.importorskip("datasets")
    cache = str(mounted.parents[2] / "cache")
    files = str(mounted / "data/*/*.parquet")
    found = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    assert found[41]["action"] == [82, 83]
