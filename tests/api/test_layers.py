"""Layers: maps of frames, exact counts, and what happens to them with their files."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd import DetectionColumns, Store, Video
from vfsd.api.layer import Layer
from vfsd.core.cell_index import Maps
from vfsd.core.detections import Source
from vfsd.errors import (
    ExistsError,
    ForbiddenError,
    IntegrityError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    UnknownLabelWarning,
    UsageError,
)
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.scrub import Scrubber

WIDTH, HEIGHT, FRAMES = 320, 240, 120


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")


def blobs(count: int, width: int = WIDTH, height: int = HEIGHT, dtype: str = "uint8") -> Maps:
    """Soft spots that move over a black map."""
    top = np.iinfo(dtype).max
    y, x = np.mgrid[:height, :width]
    maps = np.empty((count, height, width), dtype)
    for at in range(count):
        far = np.hypot(x - at * 3 % width, y - (40 + at) % height)
        maps[at] = np.clip(top * (1 - far / (20 + at % 30)), 0, top).astype(dtype)
    return maps


def counted(maps: Maps, region: tuple[int, int, int, int], low: float, high: float) -> list[int]:
    x1, y1, x2, y2 = region
    part = maps[:, y1:y2, x1:x2].astype(np.int64)
    found: list[int] = ((low <= part) & (part < high)).sum((1, 2)).tolist()
    return found


def require_exact(layer: Layer, maps: Maps, regions: list[tuple[int, int, int, int]]) -> None:
    """Compare all queries with counts of all pixels."""
    for region, (low, high) in zip(regions, [(1, 60), (100, 256), (153, 154)] * 9, strict=False):
        true = np.array(counted(maps, region, low, high))
        assert layer.count(region, low=low, high=high).tolist() == true.tolist()
        for limit in {0, int(np.median(true)), int(true.max())}:
            found, work = layer.where(region, low=low, high=high, more_than=limit, explain=True)
            assert found.tolist() == layer.frames[true > limit].tolist()
            assert work.maps == len(maps) == work.by_runs + work.by_maps + work.decoded
        for ascending in (False, True):
            hits = layer.top(7, region, low=low, high=high, ascending=ascending)
            order = np.lexsort((np.arange(len(true)), true if ascending else -true))[:7]
            assert [(one.frame, one.count) for one in hits] == [
                (int(layer.frames[at]), int(true[at])) for at in order
            ]


REGIONS = [(0, 0, 320, 240), (50, 50, 250, 200), (33, 1, 47, 239), (0, 0, 1, 1), (64, 64, 128, 96)]


def test_a_layer_of_all_frames(store: Store, video: Video) -> None:
    maps = blobs(FRAMES)
    layer = video.layers.add("saliency", maps, source=Source("gradcam", version="3"))
    assert (layer.file, layer.size, layer.bits) == ("cam1/a.saliency.mkv", (320, 240), 8)
    assert layer.source == Source("gradcam", version="3")
    assert np.array_equal(layer.frames, np.arange(FRAMES))
    assert np.array_equal(layer[17], maps[17])
    assert np.array_equal(layer[-1], maps[-1])
    part = layer.read(span=(1, 2), region=(10, 20, 50, 60))
    chosen = video.frames_in((1, 2))
    assert part.frames.tolist() == list(chosen)
    assert np.array_equal(part.codes, maps[chosen.start : chosen.stop, 20:60, 10:50])
    # The file is an ordinary video of the store, with an index of at most 5 %.
    file = store[layer.file]
    assert file.codec == "ffv1"
    assert len(file) == FRAMES
    assert layer.index_bytes is not None
    assert layer.index_bytes <= 0.05 * file.original.size
    assert store.budget.usage().indexes == layer.index_bytes
    require_exact(layer, maps, REGIONS)
    assert list(video.layers) == ["saliency"]
    assert pickle.loads(pickle.dumps(layer))[5].sum() == maps[5].sum()
    assert fsck.run(store.parts, deep=True) == []


def test_some_frames_in_16_bits_and_another_size(video: Video) -> None:
    frames = range(0, FRAMES, 10)
    maps = blobs(len(frames), 80, 60, "uint16")
    layer = video.layers.add("depth", maps, frames=frames, scale=0.001, zero=-1, unit="m")
    assert layer.frames.tolist() == list(frames)
    assert np.array_equal(layer[30], maps[3])
    with pytest.raises(OutOfRangeError, match="no map for frame 31") as error:
        layer[31]
    assert "frame 30" in str(error.value.hint)
    read = layer.read(frames=[0, 5, 10])
    assert read.frames.tolist() == [0, 10]
    assert read.values[1, 7, 9] == -1 + 0.001 * maps[1, 7, 9]
    # Values, not codes; regions in pixels of the video, counts of those of the map.
    values = -1 + 0.001 * maps[:, 10:40, 20:60]
    found = layer.count((80, 40, 240, 160), low=3.5, high=20)
    assert found.tolist() == ((values >= 3.5) & (values < 20)).sum((1, 2)).tolist()
    share = layer.where((80, 40, 240, 160), low=0.0, share=0.3)
    assert share.tolist() == [10 * at for at in np.flatnonzero((values >= 0).mean((1, 2)) > 0.3)]
    with pytest.raises(UsageError, match="does not fit") as error2:
        layer.count((81, 40, 240, 160), low=3)
    assert "160x120+80+40" in str(error2.value.hint)
    within = layer.count((80, 40, 240, 160), low=3.5, high=20, span=(1, 2))
    assert len(within) == sum(30 <= at < 60 for at in frames) or len(within) == 3


def test_boxes_are_regions(store: Store, video: Video) -> None:
    maps = blobs(FRAMES, 160, 120)
    layer = video.layers.add("mask", maps)
    rng = np.random.default_rng(3)
    boxes = np.sort(rng.uniform(-20, 340, (200, 2, 2)), axis=1).reshape(200, 4)
    frames = rng.integers(0, FRAMES, 200)
    video.labels.add(DetectionColumns.of(np.sort(frames), "car", boxes), "net")
    columns, counts = layer.count_boxes("car", low=100)
    assert len(columns) == 200
    for box, frame, count in zip(columns.boxes, columns.frames, counts, strict=True):
        x1, y1 = np.floor(np.clip(box[:2], 0, None) / 2).astype(int)
        x2, y2 = np.ceil(np.clip(box[2:], None, (320, 240)) / 2).astype(int)
        part = maps[frame, y1:y2, x1:x2] if x1 < x2 and y1 < y2 else maps[frame, :0]
        assert count == (part >= 100).sum()
    hits = layer.top(9, boxes="car", low=100)
    assert [one.count for one in hits] == sorted(counts.tolist(), reverse=True)[:9]
    assert all(one.box is not None and one.box.frame == one.frame for one in hits)
    with pytest.warns(UnknownLabelWarning):
        assert layer.top(9, boxes="bicycle", low=100) == []


def test_the_best_of_several_videos(store: Store, video: Video) -> None:
    maps = blobs(FRAMES)
    other = store.ingest(FOLDER / "traffic.mp4", "cam2/b.mp4")
    video.layers.add("saliency", maps)
    other.layers.add("saliency", maps[::-1])
    store.ingest(FOLDER / "traffic.mp4", "cam3/c.mp4")
    region = (50, 50, 250, 200)
    hits = store.top(30, "saliency", "cam*/*", region=region, low=153)
    true = counted(maps, region, 153, 256)
    both = [(-count, "cam1/a.mp4", at) for at, count in enumerate(true)]
    both += [(-count, "cam2/b.mp4", at) for at, count in enumerate(reversed(true))]
    wanted = [(name, at, -count) for count, name, at in sorted(both)[:30]]
    assert [(one.video, one.frame, one.count) for one in hits] == wanted
    with pytest.raises(NotFoundError, match="no video has a layer"):
        store.top(3, "depth", low=1)


def test_refusals_change_nothing(store: Store, video: Video) -> None:
    maps = blobs(3)
    names = set(store)
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (maps, {}, "needs the numbers"),
        (maps, {"frames": [0, 5, 5]}, "ascending"),
        (maps, {"frames": [0, 5, 120]}, "ascending"),
        (maps, {"frames": [0, 5]}, "number for each"),
        (maps, {"frames": [0, 5, 6.5]}, "whole numbers"),
        (maps, {"frames": range(3), "scale": 0}, "scale"),
        (maps / 255, {"frames": range(3)}, "uint8, uint16 or bool"),
        ([maps[0], maps[1][:9]], {"frames": range(2)}, "alike"),
        ([], {"frames": []}, "at least one"),
        (blobs(3, 640, 480), {"frames": range(3)}, "larger"),
        ("cam1/a.mp4", {}, "one channel"),
    ]
    for given, arguments, message in refused:
        with pytest.raises(UsageError, match=message):
            video.layers.add("m", given, **arguments)
    for name in ("", "a/b", ".a", " a", "x" * 300):
        with pytest.raises(UsageError, match="name of a layer"):
            video.layers.add(name, maps, frames=range(3))
    with pytest.raises(NotFoundError):
        video.layers.add("m", "no.mkv")
    assert set(store) == names
    assert len(video.layers) == 0
    layer = video.layers.add("m", maps, frames=range(3))
    with pytest.raises(ExistsError, match="already"):
        video.layers.add("m", maps, frames=range(3))
    with pytest.raises(ForbiddenError, match="layers of its own"):
        store[layer.file].layers.add("n", maps, frames=range(3))
    with pytest.raises(ExistsError, match="a layer already"):
        store.ingest(FOLDER / "traffic.mp4", "b.mp4").layers.add("n", layer.file, frames=range(3))
    for wrong in ({}, {"low": 5, "high": 5}, {"low": "a"}, {"low": float("nan")}):
        with pytest.raises(UsageError):
            layer.count(**wrong)
    with pytest.raises(OutOfRangeError):
        layer.count((0, 0, 321, 240), low=1)
    with pytest.raises(UsageError):
        layer.top(0, low=1)
    assert fsck.run(store.parts) == []


def test_files_of_layers_and_their_videos(store: Store, video: Video, tmp_path: Path) -> None:
    maps = blobs(FRAMES)
    video.layers.add("mask", maps)
    # Names do not matter.
    store.move("cam1/a.mp4", "new/v.mp4")
    store.move("cam1/a.mask.mkv", "masks/m.mkv")
    video = store["new/v.mp4"]
    assert video.layers["mask"].file == "masks/m.mkv"
    key = stored_index(store, video)
    # The samples of a layer are never encoded again.
    store["masks/m.mkv"].policy.set("original=replaceable,psnr=30")
    with pytest.raises(ForbiddenError, match=r"is the layer mask of new/v\.mp4"):
        store["masks/m.mkv"].policy.replace_original()
    # Without the layer the file is an ordinary video, and can be a layer again.
    assert video.layers.remove("mask") == "masks/m.mkv"
    assert list(video.layers) == []
    assert not store.parts.objects.exists(key)
    assert len(store["masks/m.mkv"]) == FRAMES
    layer = video.layers.add("again", "masks/m.mkv", unit="%")
    assert np.array_equal(layer[3], maps[3])
    assert layer.meaning.unit == "%"
    # A layer does not outlive its bytes.
    store.ingest(FOLDER / "traffic.mp4", "masks/m.mkv", replace=True)
    with pytest.raises(NotFoundError, match="no layer 'again'"):
        video.layers["again"]
    # Without its file a layer is gone, and without its video its file is an ordinary one.
    video.layers.add("one", maps)
    key = stored_index(store, video, "one")
    store.remove("new/v.one.mkv")
    assert len(video.layers) == 0
    assert not store.parts.objects.exists(key)
    video.layers.add("two", maps)
    store.remove("new/v.mp4")
    assert store["new/v.two.mkv"].layers.get("two") is None
    other = store.ingest(FOLDER / "traffic.mp4", "c.mp4")
    assert len(other.layers.add("two", "new/v.two.mkv")) == FRAMES
    assert fsck.run(store.parts) == []


def stored_index(store: Store, video: Video, name: str = "mask") -> str:
    stored = video.layers[name].maps.stored_index
    assert stored is not None
    assert store.parts.objects.exists(stored.object_key)
    return stored.object_key


def test_an_index_may_go(store: Store, video: Video, tmp_path: Path) -> None:
    maps = blobs(FRAMES)
    layer = video.layers.add("mask", maps)
    key = stored_index(store, video)
    file = store[layer.file]
    true = counted(maps, REGIONS[1], 100, 256)
    # A budget without room: answers are the same, and the index is made in memory.
    file.budget.set(0)
    assert layer.index_bytes is None
    assert not store.parts.objects.exists(key)
    assert video.layers["mask"].count(REGIONS[1], low=100).tolist() == true
    assert layer.index_bytes is None
    file.budget.set(None)
    assert layer.make_index() == layer.index_bytes is not None
    key = stored_index(store, video)
    # Damage is noticed by queries, and repaired by all that look for it.
    for repair in (
        lambda: None,
        lambda: fsck.run(store.parts, repair=True, deep=True),
        lambda: list(Scrubber(store.parts).run()),
    ):
        path = store.parts.objects.local_path(key)
        assert path is not None
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[-3] ^= 255
        path.write_bytes(data)
        repair()
        assert video.layers["mask"].count(REGIONS[1], low=100).tolist() == true
        assert stored_index(store, video) == key
        assert fsck.run(store.parts, deep=True) == []
    path = store.parts.objects.local_path(key)
    assert path is not None
    path.unlink()
    (finding,) = fsck.run(store.parts, repair=True)
    assert "index of a layer" in finding.message
    assert finding.repaired
    assert layer.index_bytes is None
    # Backups have layers, with derived data also the indexes.
    layer.make_index()
    for derived in (True, False):
        back_up(store.parts, tmp_path / "copy", derived=derived)
        with Store.open(tmp_path / "copy", read_only=True) as copy:
            copied = copy["cam1/a.mp4"].layers["mask"]
            assert (copied.index_bytes is not None) == derived
            assert copied.count(REGIONS[1], low=100).tolist() == true
            with pytest.raises(ReadOnlyError):
                copy["cam1/a.mp4"].layers.remove("mask")
    with Store.open(tmp_path / "copy") as copy:
        assert fsck.run(copy.parts, deep=True) == []


def test_a_linked_file_that_was_written_is_noticed(
    store: Store, video: Video, tmp_path: Path
) -> None:
    maps = blobs(FRAMES)
    path = tmp_path / "maps.mkv"
    store[video.layers.add("mask", maps).file].save(path)
    store.ingest(path, "linked.mkv", link=True)
    layer = video.layers.add("linked", "linked.mkv")
    assert layer.count(low=100).tolist() == counted(maps, REGIONS[0], 100, 256)
    with path.open("r+b") as file:
        file.seek(-9, 2)
        file.write(b"different")
    for opened in (layer, video.layers["linked"]):
        with pytest.raises(IntegrityError):
            opened.count(low=100)


def test_wrong_numbers_of_frames_are_noticed(store: Store, video: Video) -> None:
    video.layers.add("mask", blobs(FRAMES))
    with store.catalog.connected() as connection:
        connection.exec_driver_sql("UPDATE physical_videos SET frames = 121 WHERE codec = 'h264'")
    with pytest.raises(IntegrityError, match="120 maps for 121 frames"):
        store["cam1/a.mp4"].layers["mask"]


def test_pixels_of_layers_are_not_logged_as_reads(store: Store, video: Video) -> None:
    layer = video.layers.add("mask", blobs(FRAMES))
    layer.count((1, 1, 99, 99), low=100)
    store.tools.read_log.flush()
    assert list(store.catalog.reads()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_random_layers(video: Video, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, scale = ("uint8", 1) if seed % 2 else ("uint16", 257)
    width, height = [(320, 240), (160, 120), (64, 48)][seed % 3]
    values = rng.integers(0, 256, (FRAMES, height, width)) * (blobs(FRAMES, width, height) > 90)
    layer = video.layers.add("noise", (values * scale).astype(dtype), scale=1 / scale)
    step = 320 // width
    edges = [sorted(rng.choice(width + 1, 2, replace=False).tolist()) for _ in range(12)]
    downs = [sorted(rng.choice(height + 1, 2, replace=False).tolist()) for _ in range(12)]
    for (x1, x2), (y1, y2) in zip(edges, downs, strict=True):
        low, high = sorted(rng.choice(257, 2, replace=False).tolist())
        true = counted(values, (x1, y1, x2, y2), low, high)
        region = (x1 * step, y1 * step, x2 * step, y2 * step)
        assert layer.count(region, low=low, high=high).tolist() == true
        for first, second in pairwise(sorted(set(true))[:3]):
            found = layer.where(region, low=low, high=high, more_than=(first + second) / 2)
            assert found.tolist() == np.flatnonzero(np.array(true) >= second).tolist()
