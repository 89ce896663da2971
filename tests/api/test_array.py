"""Lazy arrays, frames and crops follow NumPy's rules of indexing and conversion."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from tests.support.stores import new_store
from vfsd import Detection, Frames, Video
from vfsd.errors import IndexKindError, OutOfRangeError, UsageError

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Video]:
    with new_store(tmp_path_factory.mktemp("array") / "s") as store:
        yield store.ingest(CLIP)


@pytest.fixture(scope="module")
def pixels(video: Video) -> npt.NDArray[np.uint8]:
    return video.read().data


def _keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return basic_indices(shape, allow_newaxis=False)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_an_array_is_indexed_like_one_of_numpy(
    video: Video, pixels: npt.NDArray[np.uint8], data: st.DataObject
) -> None:
    outer = data.draw(_keys(pixels.shape), label="outer")
    expected = pixels[outer]
    part = video[...][outer]
    assert part.shape == np.shape(expected)
    if part.ndim:
        inner = data.draw(_keys(part.shape), label="inner")
        part, expected = part[inner], expected[inner]
    assert part.shape == np.shape(expected)
    found = part.numpy()
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(indices=st.lists(st.integers(-120, 119), min_size=1, max_size=6), row=st.integers(0, 239))
@example([5, 5, -1], 0)
def test_a_list_selects_frames_like_an_index_array(
    video: Video, pixels: npt.NDArray[np.uint8], indices: list[int], row: int
) -> None:
    whole = video[...]
    assert np.array_equal(whole[indices, row].numpy(), pixels[indices, row])
    assert np.array_equal(whole[np.array(indices)][..., 0].numpy(), pixels[indices, ..., 0])


def test_a_mask_selects_frames(video: Video, pixels: npt.NDArray[np.uint8]) -> None:
    mask = np.arange(len(video)) % 50 == 3
    assert np.array_equal(video[...][mask, :8].numpy(), pixels[mask, :8])


@pytest.mark.parametrize("key", [120, (0, 240), (0, 0, -321), (0, 0, 0, 3), (0,) * 5])
def test_an_index_outside_an_array_is_an_index_error(video: Video, key: Any) -> None:
    with pytest.raises(OutOfRangeError):
        video[...][key]


@pytest.mark.parametrize(
    "key", [(0, 1.5), (0, "a"), (0, [1, 2]), (..., 0, ...), (slice(None), slice(0, 4, 0))]
)
def test_a_malformed_index_is_refused(video: Video, key: Any) -> None:
    with pytest.raises(UsageError):
        video[...][key]


@pytest.mark.parametrize("key", [1.5, "0:01", (0.5, 3), slice(0.5, None)])
def test_a_time_is_not_an_index_of_frames(video: Video, key: Any) -> None:
    with pytest.raises(IndexKindError, match="must be ints"):
        video[...][key]


def test_one_time_is_the_frame_on_the_screen(video: Video, pixels: npt.NDArray[np.uint8]) -> None:
    assert video.seconds[1.01].shape == (240, 320, 3)
    assert np.array_equal(video.seconds[1.01].numpy(), pixels[30])
    assert np.array_equal(video.seconds[2:3].seconds["0:00.5", ..., 1].numpy(), pixels[75, ..., 1])


def test_a_video_is_an_array(video: Video, pixels: npt.NDArray[np.uint8]) -> None:
    assert np.array_equal(np.asarray(video), pixels)
    assert np.array_equal(video[..., 0].numpy(), pixels[..., 0])


def test_frames_are_arrays(video: Video, pixels: npt.NDArray[np.uint8]) -> None:
    frames = video[10:20]
    assert (frames.shape, frames.ndim) == ((10, 240, 320, 3), 4)
    assert frames.dtype == np.uint8
    assert isinstance(frames[2:4], Frames)
    assert frames[3].shape == (240, 320, 3)
    assert np.array_equal(frames[2, 10:20, :, 0], pixels[12, 10:20, :, 0])
    assert np.array_equal(frames[..., 1], pixels[10:20, ..., 1])
    assert np.array_equal(frames[3][5:9], pixels[13, 5:9])
    assert np.shares_memory(np.from_dlpack(frames), frames.data)
    assert np.array_equal(np.from_dlpack(frames[3]), pixels[13])
    assert np.array_equal(np.from_dlpack(video[...][7, ::2]), pixels[7, ::2])


def test_crops_are_arrays(video: Video, pixels: npt.NDArray[np.uint8]) -> None:
    video.labels.add([Detection(7, "car", (10, 20, 50, 60))], source="test")
    crop = next(iter(video.scan("car").crops()))
    assert crop.shape == (40, 40, 3)
    assert np.array_equal(np.asarray(crop), pixels[7, 20:60, 10:50])
    assert np.array_equal(crop[..., 0], pixels[7, 20:60, 10:50, 0])
    batch = next(iter(video.scan("car").batches(2, (8, 8))))
    assert (batch.shape, len(batch)) == ((1, 8, 8, 3), 1)
    assert np.array_equal(batch[0], batch.data[0])


def test_frames_are_pickled(video: Video) -> None:
    frames = video[3:5]
    copy = pickle.loads(pickle.dumps(frames))
    assert np.array_equal(copy, frames)
    assert copy.index.tolist() == [3, 4]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_frames_become_tensors(video: Video, pixels: npt.NDArray[np.uint8]) -> None:
    assert np.array_equal(video[3:5].torch().numpy(), pixels[3:5])
    assert np.array_equal(video[...][3:5, ::-1].torch().numpy(), pixels[3:5, ::-1])
