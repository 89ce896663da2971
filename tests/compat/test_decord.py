"""`VideoReader` against decord's own, and what decord's tests of its reader check.

Those tests read files of decord's repository, which tests here find in VFSD_FOOTAGE.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vfsd import Store
from vfsd.compat import quality
from vfsd.compat.decord import (
    DECORDError,
    DECORDLimitReachedError,
    VideoLoader,
    VideoReader,
    bridge,
    cpu,
)


def opened(store: Store, footage: Path, name: str) -> VideoReader:
    path = footage / "odd" / f"decord_{name}"
    if not path.exists():
        pytest.skip(f"no {path.name} in the footage")
    store.ingest(path, name)
    reader: VideoReader = VideoReader(f"vfsd://{store.path}//{name}", cpu(0))
    return reader


# -- what decord's tests check


@pytest.mark.footage
def test_length_slices_and_random_frames(store: Store, footage: Path) -> None:
    reader = opened(store, footage, "flipping_a_pancake.mkv")
    assert len(reader) == 310
    assert reader[:10].shape[0] == 10
    numbers = random.Random(1).sample(range(310), 10)
    batch = reader.get_batch(numbers)
    for number, frame in zip(numbers, batch, strict=True):
        np.testing.assert_array_equal(reader[number].asnumpy(), frame)
    assert np.allclose(reader.get_frame_timestamp(range(5))[:, 0], [0, 0.033, 0.067, 0.1, 0.133])


@pytest.mark.footage
@pytest.mark.thorough
def test_all_frames_in_order_and_at_once(store: Store, footage: Path) -> None:
    reader = opened(store, footage, "flipping_a_pancake.mkv")
    everything = reader[:]
    assert everything.shape[0] == 310
    for number in range(310):
        np.testing.assert_array_equal(reader[number], everything[number])
    with open(footage / "odd" / "decord_flipping_a_pancake.mkv", "rb") as file:
        peer = pytest.importorskip("decord")
        theirs = VideoReader(file)
        assert isinstance(theirs, peer.VideoReader)
        assert len(theirs) == 310
        np.testing.assert_array_equal(theirs[10].asnumpy(), everything[10])


@pytest.mark.footage
def test_damaged_frames_raise(store: Store, footage: Path) -> None:
    reader = opened(store, footage, "corrupted.mp4")
    with pytest.raises(DECORDError):
        reader.get_batch(range(40))
    url = f"vfsd://{store.path}//corrupted.mp4"
    assert VideoReader(url, fault_tol=1000).get_batch(range(40)).shape[0] == 40
    with pytest.raises(DECORDLimitReachedError):
        VideoReader(url, fault_tol=0.001).get_batch(range(40))


@pytest.mark.footage
def test_rotated_video(store: Store, footage: Path) -> None:
    reader = opened(store, footage, "rot90.mov")
    assert (reader[0].shape, reader[:].shape) == ((568, 320, 3), (3, 568, 320, 3))
    scaled = VideoReader(f"vfsd://{store.path}//rot90.mov", height=300, width=200)
    assert scaled[0].shape == (300, 200, 3)


@pytest.mark.footage
def test_times_of_frames_stored_out_of_order(store: Store, footage: Path) -> None:
    reader = opened(store, footage, "unordered.mov")
    assert reader.get_frame_timestamp(range(4))[:, 0].tolist() == [0, 0.03125, 0.0625, 0.09375]


# -- against decord


@pytest.mark.parametrize("name", ["traffic.mp4", "portrait.mp4"])
def test_results_are_those_of_decord(named: Path, clips: Path, name: str) -> None:
    pytest.importorskip("decord")
    ours, theirs = VideoReader(f"cam1/{name}"), VideoReader(str(clips / name))
    assert type(theirs) is not type(ours)
    assert len(ours) == len(theirs)
    numbers = [*range(0, len(ours), 7), 3, 3, -1]
    mine, other = ours.get_batch(numbers), theirs.get_batch(numbers)
    np.testing.assert_array_equal(mine.asnumpy(), other.asnumpy())
    assert ours.get_key_indices() == theirs.get_key_indices()
    assert ours.get_avg_fps() == pytest.approx(theirs.get_avg_fps())
    np.testing.assert_allclose(
        ours.get_frame_timestamp(range(len(ours))),
        theirs.get_frame_timestamp(range(len(ours))),
        atol=1e-3,
    )


# shuffle 0 visits batches in order; the others have the same batches of each video in some order.
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize(
    ("frames", "interval", "skip"),
    [(2, 0, 0), (3, 1, 4), (9, 2, 1), (15, 2, 0), (22, 1, 0), (44, 0, 0), (120, 0, 0), (1, 0, 43)],
)
def test_loader_has_the_batches_of_decord(
    named: Path, clips: Path, frames: int, interval: int, skip: int, shuffle: int
) -> None:
    pytest.importorskip("decord")
    names = ["late-start.mp4", "portrait.mp4"]
    settings: Any = (cpu(0), (frames, 24, 32, 3), interval, skip, shuffle)
    ours = VideoLoader([f"cam1/{name} " for name in names], *settings)
    theirs = VideoLoader([str(clips / name) for name in names], *settings)
    assert type(theirs) is not type(ours)
    assert len(ours) == len(theirs)
    found, expected = ([(places.asnumpy(), data) for data, places in one] for one in (ours, theirs))
    if shuffle:
        for batches in (found, expected):
            batches.sort(key=lambda batch: batch[0].tolist())
    for (places, data), (other_places, other_data) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(places, other_places)
        assert data.shape == other_data.shape == (frames, 24, 32, 3)
    ours.reset()
    assert len(list(ours)) == len(found)


def test_loader_reads_the_frames_that_it_names(named: Path) -> None:
    loader = VideoLoader(
        ["cam1/traffic.mp4", "cam1/late-start.mp4"], [cpu(0)], (4, 120, 160, 3), 2, 5, 2
    )
    orders = []
    for _ in range(2):
        orders.append([places.asnumpy().tolist() for _, places in loader])
        loader.reset()
    assert orders[0] != orders[1]
    data, places = loader.next()
    reader = VideoReader(["cam1/traffic.mp4", "cam1/late-start.mp4"][places[0, 0]], None, 160, 120)
    np.testing.assert_array_equal(data.asnumpy(), reader.get_batch(places[:, 1]).asnumpy())
    mixed = [
        places[0].tolist()
        for _, places in VideoLoader(["cam1/traffic.mp4"] * 2, cpu(0), (2, 24, 32, 3), 0, 0, 1)
    ]
    for video in range(2):
        firsts = [frame for of, frame in mixed if of == video]
        assert firsts == sorted(firsts)
    with pytest.raises(DECORDError, match="shuffle must be"):
        VideoLoader(["cam1/traffic.mp4"], cpu(0), (2, 24, 32, 3), 0, 0, 3)
    with pytest.raises(DECORDError, match="shape must be"):
        VideoLoader(["cam1/traffic.mp4"], cpu(0), (0, 24, 32, 3), 0, 0, 0)


# -- the rest of the interface


def test_readers_show_the_region_that_quality_names(named: Path) -> None:
    whole = VideoReader("cam1/traffic.mp4")
    with quality(region=(21, 10, 101, 70)):
        part = VideoReader("cam1/traffic.mp4")
        scaled = VideoReader("cam1/traffic.mp4", width=40, height=30)
    with (
        quality(region="320x240+1+0"),
        pytest.raises(DECORDError, match="reaches outside the frame"),
    ):
        VideoReader("cam1/traffic.mp4")
    np.testing.assert_array_equal(part[7], whole[7].asnumpy()[10:70, 21:101])
    assert scaled[7].shape == (30, 40, 3)


def test_positions(named: Path) -> None:
    reader = VideoReader("cam1/late-start.mp4")
    everything = [frame.asnumpy() for frame in (reader.next() for _ in range(45))]
    with pytest.raises(StopIteration):
        reader.next()
    np.testing.assert_array_equal(reader[7], everything[7])
    np.testing.assert_array_equal(reader.next(), everything[8])
    reader.skip_frames(3)
    np.testing.assert_array_equal(reader.next(), everything[12])
    for seek in (reader.seek, reader.seek_accurate):
        seek(20)
        np.testing.assert_array_equal(reader.next(), everything[20])
    np.testing.assert_array_equal(reader[-1], everything[-1])
    np.testing.assert_array_equal(reader[40:1:-9], everything[40:1:-9])
    assert len(list(iter(reader))) == 45
    assert reader.get_frame_timestamp(0).shape == (2,)
    assert reader.get_frame_timestamp([1, 2]).shape == (2, 2)


def test_numbers_out_of_bounds(named: Path) -> None:
    reader = VideoReader("cam1/late-start.mp4")
    with pytest.raises(IndexError, match="Index: 45 out of bound: 45"):
        reader[45]
    with pytest.raises(IndexError, match="Out of bound"):
        reader.get_batch([1, 45])
    with pytest.raises(IndexError, match="negative"):
        reader.get_batch([-46])
    with pytest.raises(AssertionError):
        reader.seek(45)
    with pytest.raises(AssertionError):
        reader.skip_frames(0)


def test_bridges(named: Path) -> None:
    reader = VideoReader("cam1/late-start.mp4")
    native = reader[3]
    assert native.shape == (240, 320, 3)
    assert type(native.asnumpy()) is np.ndarray
    assert native.to_dlpack() is not None
    try:
        bridge.set_bridge("numpy")
        assert type(reader[3]) is np.ndarray
        np.testing.assert_array_equal(reader[3], native)
    finally:
        bridge.reset_bridge()
    assert hasattr(reader[3], "asnumpy")


def test_sources_that_lead_nowhere(named: Path, tmp_path: Path) -> None:
    with pytest.raises(DECORDError, match=r"none\.mp4"):
        VideoReader("vfsd://cam1/none.mp4")
    pytest.importorskip("decord")
    with pytest.raises((DECORDError, RuntimeError)):
        VideoReader(str(tmp_path / "none.mp4"))
