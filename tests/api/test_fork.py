"""An open store in a forked child: the child can use it, in any state of the parent."""

from __future__ import annotations

import gc
import importlib
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.forking import exit_code_of_child
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core import process_control
from vfsd.core.process_control import ForkGate, leak, prepare_before_fork, reset_after_fork
from vfsd.errors import UsageError


@pytest.fixture
def video(store: Store, wide_clip: Path) -> Iterator[Video]:
    """A video so large that its decoder has threads, which do not exist in a child."""
    store.ingest(wide_clip, "cam1/a.mp4")
    with Store.open(store.path, threads=2) as opened:
        yield opened["cam1/a.mp4"]


class Counted:
    """Counts its resets."""

    def __init__(self) -> None:
        self.times = 0
        reset_after_fork(self)

    def after_fork(self) -> None:
        self.times += 1


def require(is_so: bool) -> None:
    if not is_so:
        raise AssertionError


def test_objects_reset_only_in_the_child() -> None:
    one = Counted()
    assert exit_code_of_child(lambda: require(one.times == 1)) == 0
    assert one.times == 0


def test_a_child_imports_a_module_that_another_thread_was_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python does not reset the lock of that module in the child."""
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    entered = threading.Event()

    def load() -> None:
        entered.set()
        importlib.import_module("slow_import")

    importing = threading.Thread(target=load)
    importing.start()
    assert entered.wait(30)
    while "slow_import" not in sys.modules:
        time.sleep(0.001)
    code = exit_code_of_child(lambda: importlib.import_module("slow_import"), seconds=10)
    importing.join(30)
    sys.modules.pop("slow_import")
    assert code == 0


class Gated:
    """Has a gate that is shut during a fork; `late` makes a fork by one thread wait."""

    def __init__(self, late: threading.Event) -> None:
        self.gate = ForkGate()
        self.shut = threading.Event()
        self._first = threading.get_ident()
        self._late = late
        prepare_before_fork(self)

    def before_fork(self) -> None:
        self.gate.close(1)
        if threading.get_ident() != self._first:
            self.shut.set()
            self._late.wait(30)

    def after_fork_in_parent(self) -> None:
        self.gate.open()


def test_fork_leaves_gates_of_other_threads_shut() -> None:
    late, entered = threading.Event(), threading.Event()
    one = Gated(late)

    def enter() -> None:
        with one.gate.entered():
            entered.set()

    def fork() -> None:
        # Not by os.fork(), which can deadlock the threads after an import of
        # concurrent.futures.
        process_control._prepare_all()
        process_control._resume_all()

    with ThreadPoolExecutor(2) as others:
        try:
            forked = others.submit(fork)
            assert one.shut.wait(30)
            fork()
            entering = others.submit(enter)
            assert not entered.wait(0.2)
        finally:
            late.set()
        forked.result(30)
        entering.result(30)
    assert entered.is_set()


class Making:
    """Creates another instance of itself in each fork callback, and counts the callbacks."""

    def __init__(self, depth: int) -> None:
        self.told: list[str] = []
        self.next: Making | None = None
        self._depth = depth
        prepare_before_fork(self)

    def before_fork(self) -> None:
        self.told.append("fork")
        if self._depth and self.next is None:
            self.next = Making(self._depth - 1)

    def after_fork_in_parent(self) -> None:
        self.told.append("on")


def test_objects_created_during_fork_preparation() -> None:
    first = Making(1)
    assert exit_code_of_child(lambda: None) == 0
    assert first.next is not None
    assert first.told == first.next.told == ["fork", "on"]


def test_fork_registration_keeps_no_object_alive() -> None:
    gone = weakref.ref(Counted())
    gc.collect()
    assert gone() is None


def test_permanent_registration_keeps_objects_alive() -> None:
    one = Counted()
    gone = weakref.ref(one)
    leak(one)
    del one
    gc.collect()
    assert gone() is not None


def test_child_reads_after_a_read_of_its_parent(video: Video) -> None:
    expected = video.read(frames=[7]).data
    assert len(video.read(frames=[5])) == 1

    def read() -> None:
        np.testing.assert_array_equal(video.read(frames=[7]).data, expected)

    assert exit_code_of_child(read) == 0
    np.testing.assert_array_equal(video.read(frames=[7]).data, expected)


def test_child_reads_tiles_after_its_parent(video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    corner = (8, 8, 72, 72)
    expected = video.read(region=corner, psnr=0).data

    def read() -> None:
        found = video.read(frames=[3, 9], region=corner, psnr=0).data
        np.testing.assert_array_equal(found, expected[[3, 9]])

    assert exit_code_of_child(read) == 0


@pytest.mark.thorough
def test_child_exits_normally(store: Store, video: Video) -> None:
    """The interpreter frees all remaining objects at exit."""
    program = (
        "import os, sys\n"
        "from tests.support.forking import exit_code\n"
        "from vfsd.api.store import Store\n"
        "video = Store.open(sys.argv[1], threads=2)['cam1/a.mp4']\n"
        "video.read(frames=[5])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(2 + len(video.read(frames=[7])))\n"
        "sys.exit(exit_code(child))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, store.path], timeout=120)
    assert done.returncode == 3


def test_child_drops_reads_of_its_parent(video: Video) -> None:
    frames = video.iterate()
    first = next(frames)

    def drop() -> None:
        nonlocal frames
        del frames
        gc.collect()
        require(np.array_equal(next(video.iterate()).data, first.data))

    assert exit_code_of_child(drop) == 0
    assert len(list(frames)) == len(video) - 1


def test_child_drops_scans_of_its_parent(video: Video) -> None:
    crops = video.scan(roi=(0, 0, 64, 64)).areas()
    next(crops)

    def drop() -> None:
        nonlocal crops
        del crops
        gc.collect()
        require(next(video.scan(roi=(0, 0, 64, 64)).areas()) is not None)

    assert exit_code_of_child(drop) == 0
    assert list(crops)


def test_child_cannot_continue_a_read_of_its_parent(video: Video) -> None:
    frames = video.iterate()
    next(frames)

    def go_on() -> None:
        with pytest.raises(UsageError, match="before a fork"):
            for _ in frames:
                pass

    assert exit_code_of_child(go_on) == 0
    assert len(list(frames)) == len(video) - 1


def test_child_cannot_continue_a_batch_of_its_parent(store: Store) -> None:
    store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    reads = store.read_many([("a.mp4", {"frames": [number]}) for number in range(20)])
    first = next(reads)
    unbegun = store.read_many([("a.mp4", {"frames": [0]})])

    def go_on() -> None:
        with pytest.raises(UsageError, match="before a fork"):
            next(reads)
        require(np.array_equal(next(unbegun).data, first.data))

    def drop() -> None:
        nonlocal reads
        del reads
        gc.collect()

    assert exit_code_of_child(go_on) == 0
    assert exit_code_of_child(drop) == 0
    assert len(list(reads)) == 19


@pytest.mark.thorough
@pytest.mark.slow
def test_fork_while_threads_read(store: Store) -> None:
    """These threads may hold any locks of vfsd or SQLite at the fork."""
    video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    ended = threading.Event()

    def read(seed: int) -> None:
        random_frame = random.Random(seed)
        while not ended.is_set():
            video.read(frames=[random_frame.randrange(len(video))])
            assert store["a.mp4"].width == video.width

    def child(frame: int) -> None:
        require(len(video.read(frames=[frame])) == 1)
        require(
            context_of(store["a.mp4"]).table.frame_pts(frame)
            == context_of(video).table.frame_pts(frame)
        )

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read, seed) for seed in range(3)]
        try:
            for number in range(30):
                assert exit_code_of_child(partial(child, number % len(video))) == 0, number
        finally:
            ended.set()
        for reader in readers:
            reader.result()


def test_writes_of_a_child_survive_closing_in_the_parent(store: Store, video: Video) -> None:
    """SQLite removes the log of a file when it sees no other process with the file open."""
    parents_store = Store.open(store.path)
    info = parents_store["cam1/a.mp4"].info
    parents_store.catalog.tag(info, "parent")
    store.close()
    opened, closed = os.pipe(), os.pipe()

    def child() -> None:
        with parents_store.catalog.reading() as seen:
            seen.tree.resolve("cam1/a.mp4")
        os.write(opened[1], b"x")
        os.read(closed[0], 1)
        parents_store.catalog.tag(info, "child")

    def close_meanwhile() -> None:
        os.read(opened[0], 1)
        parents_store.close()
        os.write(closed[1], b"x")

    with ThreadPoolExecutor(1) as other:
        closing = other.submit(close_meanwhile)
        assert exit_code_of_child(child) == 0
        closing.result()
    for end in (*opened, *closed):
        os.close(end)
    with Store.open(store.path) as again:
        assert again["cam1/a.mp4"].info.tags == {"parent", "child"}


def test_a_fork_waits_for_transactions_of_other_threads(store: Store) -> None:
    begun, left = threading.Event(), threading.Event()

    def write() -> None:
        with store.catalog.writing() as change:
            change.tree.create(1, "file", 0o100644, uid=0, gid=0, now_ns=1)
            begun.set()
            left.wait(0.2)  # the event is not set yet: the fork happens during the transaction
            left.set()

    def child() -> None:
        require(left.is_set())
        with store.catalog.writing() as change:
            change.tree.create(1, "other", 0o100644, uid=0, gid=0, now_ns=1)

    with ThreadPoolExecutor(1) as other:
        writing = other.submit(write)
        begun.wait()
        assert exit_code_of_child(child) == 0
        writing.result()
    assert [name for name, _ in store.entries()] == ["file", "other"]


@pytest.mark.parametrize("how", one_in(3, ["an error", "the end of the block", "sys.exit"]))
def test_child_leaves_an_open_writer_to_its_parent(store: Store, video: Video, how: str) -> None:
    pictures = video.read(frames=range(8)).data

    def leave() -> None:
        with writer:
            with pytest.raises(UsageError, match="before a fork"):
                writer.write(pictures)
            if how == "an error":
                raise ZeroDivisionError
            if how == "sys.exit":
                sys.exit(3)

    def child() -> None:
        with suppress(ZeroDivisionError, SystemExit):
            leave()
        require(writer.unfinished.path.exists())

    with store.writer("b.mp4", width=960, height=540, fps=25, lossless=True) as writer:
        writer.write(pictures[:4])
        assert exit_code_of_child(child) == 0
        writer.write(pictures[4:])
    assert len(writer.video) == len(pictures)
    assert writer.video.verify() is False
