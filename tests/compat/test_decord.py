"""`VideoReader` against decord's own, and what decord's tests of its reader check.

Those tests read files of decord's repository, which tests here find in VFSD_FOOTAGE.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from vfsd import Store
from vfsd.compat.decord import DECORDError, DECORDLimitReachedError, VideoReader, bridge, cpu


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


# -- the rest of the interface


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
