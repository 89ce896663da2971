"""Stores, videos and what they make arrive in other processes by pickle."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.stores import new_store
from vfsd import Detection, Store, Video
from vfsd.api.bulk_reads import Scan
from vfsd.api.video import context_of
from vfsd.errors import NoStoreError, StoreError

T = TypeVar("T")
CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("pickling") / "s") as made:
        video = made.ingest(CLIP, "cam/a.mp4")
        boxes = [Detection(frame, "car", (10, 20, 50, 60)) for frame in (3, 70, 8)]
        video.labels.add(boxes, source="test")
        yield made


@pytest.fixture(scope="module")
def video(store: Store) -> Video:
    return store["cam/a.mp4"]


def _copy(thing: T) -> T:
    copied: T = pickle.loads(pickle.dumps(thing))
    return copied


def _work(
    store: Store, video: Video, scan: Scan, span: Callable[[int], npt.NDArray[np.uint8]]
) -> tuple[Any, ...]:
    crops = [(crop.frame, crop.data) for crop in scan.crops()]
    read = video[[9, 4]].data
    is_shared = context_of(store["cam/a.mp4"]).tools is context_of(video).tools
    return os.getpid(), read, crops, span(2), store["cam/a.mp4"] == video, is_shared


def _rows(video: Video, frame: int) -> npt.NDArray[np.uint8]:
    return video[...][frame, ::2].numpy()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_process_of_any_start_method_reads_the_same_bits(
    store: Store, video: Video, method: str
) -> None:
    scan = video.scan("car")
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        array = video[...][40:50, ::3]
        pixels = pool.submit(np.asarray, array).result()
        found = pool.submit(_work, store, video, scan, _Rows(video)).result()
    pid, read, crops, rows, is_equal, is_shared = found
    assert pid != os.getpid()
    assert np.array_equal(pixels, array.numpy())
    assert np.array_equal(read, video[[9, 4]].data)
    assert [frame for frame, _ in crops] == [3, 8, 70]
    for (_, data), crop in zip(crops, scan.crops(), strict=True):
        assert np.array_equal(data, crop.data)
    assert np.array_equal(rows, _rows(video, 2))
    assert is_equal
    assert is_shared


class _Rows:
    """A callable that holds a video, as data sets do."""

    def __init__(self, video: Video) -> None:
        self._video = video

    def __call__(self, frame: int) -> npt.NDArray[np.uint8]:
        return _rows(self._video, frame)


def test_all_objects_of_a_process_share_one_store(store: Store, video: Video) -> None:
    copies = [_copy(video), _copy(_copy(video)), _copy(store)["cam/a.mp4"]]
    assert len({id(context_of(one).parts) for one in copies}) == 1
    assert context_of(copies[0]).parts is not context_of(video).parts


def test_copies_of_a_video_are_equal_and_have_one_hash(store: Store, video: Video) -> None:
    other = store.ingest(CLIP, "cam/other.mp4")
    assert {video, _copy(video), store["cam/a.mp4"]} == {video}
    assert video != other
    assert video != "cam/a.mp4"
    store.remove("cam/other.mp4")


def test_closing_an_unpickled_store_leaves_the_others_open(store: Store) -> None:
    one, two = _copy(store), _copy(store)
    with one:
        pass
    assert two["cam/a.mp4"][5].shape == one["cam/a.mp4"][5].shape == (240, 320, 3)


def test_the_way_of_opening_is_kept(store: Store) -> None:
    with Store.open(store.path, read_only=True, threads=3) as opened:
        copied = _copy(opened)
        context = context_of(_copy(opened["cam/a.mp4"]))
    assert context.parts.read_only
    assert context.tools.threads == 3
    assert len(copied) == 1


def test_plans_and_explanations_are_pickled(video: Video) -> None:
    explained = video.explain(frames=range(10), region=(0, 0, 64, 64))
    assert str(_copy(explained)) == str(explained)
    assert len(_copy(video.scan(roi="car"))) == len(video.scan(roi="car"))
    tags = _copy(video.tiles), _copy(video.labels), _copy(video.views), _copy(video.policy)
    assert all(tags)


def test_a_store_is_opened_when_it_is_used_and_must_be_the_same(tmp_path: Path) -> None:
    with new_store(tmp_path / "s") as made:
        dumped = pickle.dumps(made.ingest(CLIP))
    shutil.move(tmp_path / "s", tmp_path / "elsewhere")
    video = pickle.loads(dumped)
    assert video.name == "traffic.mp4"  # the record came by pickle
    with pytest.raises(NoStoreError):
        video[0]
    with new_store(tmp_path / "s"):
        pass
    with pytest.raises(StoreError, match="another store"):
        video[0]
    shutil.rmtree(tmp_path / "s")
    shutil.move(tmp_path / "elsewhere", tmp_path / "s")
    assert video[0].shape == (240, 320, 3)


def test_a_process_closes_its_stores_at_exit(video: Video, tmp_path: Path) -> None:
    (tmp_path / "video").write_bytes(pickle.dumps(video))
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[7].index)"
    run = [sys.executable, "-W", "error::ResourceWarning", "-c", program]
    with (tmp_path / "video").open("rb") as stdin:
        done = subprocess.run(
            run, stdin=stdin, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_a_video_that_is_being_written_is_refused(store: Store) -> None:
    with store.writer("live.mp4", width=64, height=64, fps=10) as writer:
        for _ in range(60):
            writer.write(np.zeros((1, 64, 64, 3), np.uint8))
        growing = store.growing("live.mp4")
        with pytest.raises(TypeError, match="still being written"):
            pickle.dumps(growing)
    store.remove("live.mp4")
