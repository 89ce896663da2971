"""Unfinished recordings: they are never deleted, and can be recovered as videos."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.dead_writers import killed_recording
from tests.support.writing import is_as_before, smooth
from vfsd.api.store import Store
from vfsd.catalog import BUSY_SECONDS, Transaction
from vfsd.core.pixel_array import Pixels
from vfsd.disk.object_store import digest_file
from vfsd.disk.tempfiles import new_name
from vfsd.errors import (
    BusyError,
    CutOffError,
    ExistsError,
    NotFoundError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)
from vfsd.maintenance import fsck
from vfsd.mount.fs.unlinked_files import recover
from vfsd.write.unfinished_files import UnfinishedRecording, create_partial
from vfsd.write.write_video import publish_file

CLIP = FOLDER / "traffic.mp4"


def be_impatient(store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Limit the wait for the catalog's lock to `seconds`; return the timeouts that would have
    been used."""
    asked: list[float] = []
    writing = store.parts.catalog.writing

    def impatient(patience: float = BUSY_SECONDS) -> AbstractContextManager[Transaction]:
        asked.append(patience)
        return writing(min(patience, seconds))

    monkeypatch.setattr(store.parts.catalog, "writing", impatient)
    return asked


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the lock of the catalog like another writer."""
    path = store.parts.catalog.path
    assert path
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def numbers(store: Store, name: str) -> list[int]:
    """The frame numbers, as `killed_recording` writes them."""
    return [int(value) for value in store[name].read().data[:, 0, 0, 0]]


def test_recording_of_a_killed_writer_can_be_recovered(store: Store) -> None:
    killed_recording(store.path, "cam/live.mp4")
    assert list(store) == []
    (one,) = store.recordings()
    assert one.name == "cam/live.mp4"
    assert one.size == one.path.stat().st_size > 0
    video = store.recover(one)
    assert video.name == "cam/live.mp4"
    assert numbers(store, video.name) == list(range(len(video)))
    assert len(video) > 20
    assert store.recordings() == []
    assert is_as_before(store, ["cam/live.mp4"])
    with pytest.raises(NotFoundError):
        store.recover(one)


@pytest.mark.thorough
def test_recordings_are_not_deleted_by_default(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    killed_recording(store.path, "live.mp4")
    (one,) = store.recordings()
    for repair in (False, True):
        (finding,) = fsck.run(store.parts, repair=repair)
        assert (finding.check, finding.repaired) == ("recordings", False)
        assert "'live.mp4'" in finding.message
        assert "vfsd recover" in finding.message
    assert recover(store.parts).stray == 0
    assert "a recording of 'live.mp4' was not finished" in caplog.text
    found = fsck.collect(store.parts)
    assert (found.files, found.kept) == ([], [one])
    assert store.recordings() == [one]


@pytest.mark.thorough
def test_gc_deletes_old_recordings(store: Store) -> None:
    for name in ("old.mp4", "new.mp4"):
        killed_recording(store.path, name)
    old = next(one for one in store.recordings() if one.name == "old.mp4")
    month_ago = time.time() - 30 * 24 * 3600
    os.utime(old.path, (month_ago, month_ago))
    assert len(fsck.collect(store.parts, dry_run=True).files) == 2
    assert len(fsck.collect(store.parts, recording_days=31).files) == 0
    found = fsck.collect(store.parts)
    assert {path.name.partition(".")[0] for path in found.files} == {old.path.name}
    (new,) = store.recordings()
    assert new.name == "new.mp4"
    os.utime(new.path, (100, 100))  # by a clock that was reset
    assert fsck.collect(store.parts).files == []
    fsck.collect(store.parts, recording_days=0)
    assert store.recordings() == []
    assert is_as_before(store, [])


@pytest.mark.thorough
def test_name_in_use_is_not_taken_by_recovery(store: Store) -> None:
    for name in ("a.mp4", "a.mp4", "b.mp4"):
        killed_recording(store.path, name)
    store.ingest(CLIP, "a.mp4")
    with store.writer("b.mp4", width=64, height=48, fps=20) as writer:
        writer.write(smooth(3, 64, 48))
        made = [store.recover(one).name for one in store.recordings()]
    assert made == ["a-recovered.mp4", "a-recovered-2.mp4", "b-recovered.mp4"]
    assert len(store["a.mp4"]) == 120
    assert len(store["b.mp4"]) == 3
    assert is_as_before(store, sorted(["a.mp4", "b.mp4", *made]))


@pytest.mark.thorough
def test_recovery_under_another_name(store: Store) -> None:
    store.ingest(CLIP, "a.mp4")
    killed_recording(store.path, "live.mp4")
    (one,) = store.recordings()
    with pytest.raises(ExistsError):
        store.recover(one, "a.mp4")
    assert store.recordings() == [one]
    assert store.recover(one, "new/b.mp4").name == "new/b.mp4"
    assert is_as_before(store, ["a.mp4", "new/b.mp4"])


def test_recording_without_frames_is_refused_and_kept(store: Store) -> None:
    file = create_partial(store.parts.objects, "live.mp4")
    file.path.write_bytes(b"not much of a video")
    assert store.recordings() == []  # it is being written
    file.keep_for_recovery()
    (one,) = store.recordings()
    with pytest.raises(RefusedMediaError):
        store.recover(one)
    assert store.recordings() == [one]


@pytest.mark.parametrize("note", ['["name"]', '{"name": "../../a\\u0000"}', "x"])
def test_recording_info_may_have_any_content(store: Store, note: str) -> None:
    path = store.parts.directory.objects_tmp / new_name()
    path.write_bytes(CLIP.read_bytes())
    path.with_name(path.name + ".json").write_text(note)
    for one in store.recordings():
        with pytest.raises(VfsdError):
            store.recover(one)
    fsck.run(store.parts)
    recover(store.parts)
    fsck.collect(store.parts, recording_days=0)
    assert is_as_before(store, [])


def one_begins(store: Store, together: threading.Barrier) -> bool:
    """Start that many concurrent writers of one name; return whether this one got it."""
    together.wait()
    try:
        file = create_partial(store.parts.objects, "live.mp4")
    except BusyError:
        together.wait()
        return False
    together.wait()  # until all have tried
    file.remove()
    return True


def test_only_one_of_many_threads_gets_the_name(store: Store) -> None:
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            got = list(threads.map(lambda _: one_begins(store, together), range(8)))
            assert got.count(True) == 1


def test_only_one_of_many_processes_gets_the_name(store: Store) -> None:
    fork = multiprocessing.get_context("fork")
    together, got = fork.Barrier(4), fork.Value("i", 0)

    def work() -> None:
        for _ in range(20):
            begun = one_begins(store, together)
            with got.get_lock():
                got.value += begun

    children = [fork.Process(target=work) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert got.value == 20


def test_concurrent_recoveries(store: Store) -> None:
    killed_recording(store.path, "live.mp4")
    (one,) = store.recordings()
    with one.claimed():
        assert store.recordings() == []
        with pytest.raises(BusyError):
            store.recover(one)
        assert fsck.collect(store.parts, recording_days=0).files == []
    assert store.recordings() == [one]


def test_published_video_is_not_a_recording(store: Store) -> None:
    """Its writer was killed before it could remove the temporary name."""
    file = create_partial(store.parts.objects, "a.mp4")
    file.path.write_bytes(CLIP.read_bytes())
    publish_file(store.parts, file, False)
    file.keep_for_recovery()
    assert store.recordings() == []
    assert recover(store.parts).stray == 2
    assert is_as_before(store, ["a.mp4"])


def test_removed_video_is_not_a_recording(store: Store) -> None:
    """Its writer was killed in between, and the store was not mounted since."""
    file = create_partial(store.parts.objects, "a.mp4")
    file.path.write_bytes(CLIP.read_bytes())
    publish_file(store.parts, file, False)
    file.keep_for_recovery()
    other = create_partial(store.parts.objects, "b.mp4")
    other.path.write_bytes(CLIP.read_bytes())
    other.keep_for_recovery()
    store.remove("a.mp4")
    (one,) = store.recordings()
    assert one.name == "b.mp4"
    left = store.parts.objects.temporary_files()
    assert {store.parts.objects.main_file(path) for path in left} == {other.path}


def test_unpublished_object_is_a_recording(store: Store) -> None:
    """Its writer was killed when the bytes were already an object, but not yet a video."""
    file = create_partial(store.parts.objects, "a.mp4")
    file.path.write_bytes(CLIP.read_bytes())
    store.parts.objects.adopt(file.path, digest_file(file.path).key)
    file.keep_for_recovery()
    assert len(fsck.collect(store.parts).objects) == 1
    (one,) = store.recordings()
    store.recover(one)
    assert is_as_before(store, ["a.mp4"])


def test_publisher_removes_its_own_temporary_name(store: Store) -> None:
    file = create_partial(store.parts.objects, "a.mp4")
    file.path.write_bytes(CLIP.read_bytes())
    publish_file(store.parts, file, False)
    store.remove("a.mp4")
    assert file.path.exists()
    file.remove()
    assert is_as_before(store, [])


@pytest.mark.parametrize("what", ["recovered", "renamed"])
def test_video_under_another_name_is_not_a_recording(store: Store, what: str) -> None:
    """The process that published it was killed before it could remove the temporary name."""
    file = create_partial(store.parts.objects, "a.mp4")
    file.path.write_bytes(CLIP.read_bytes())
    if what == "recovered":
        file.keep_for_recovery()
        (one,) = store.recordings()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(UnfinishedRecording, "forget", lambda _: None)
            store.recover(one, "b.mp4")
    else:
        publish_file(store.parts, file, False)
        file.keep_for_recovery()
        store.move("a.mp4", "b.mp4")
    assert store.recordings() == []
    assert recover(store.parts).stray == 2
    assert is_as_before(store, ["b.mp4"])


@pytest.mark.parametrize("given", ["stream", "pictures"])
def test_unrepeatable_input_is_kept_while_the_catalog_is_locked(
    store: Store, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    asked = be_impatient(store, monkeypatch, 0.1)
    data, form = (CLIP.read_bytes(), {}) if given == "stream" else (smooth(20, 64, 48), {"fps": 20})
    with locked(store), pytest.raises(BusyError) as caught:
        store.write("a.mp4", data, **form)  # type: ignore[arg-type]
    assert sorted(asked)[:-1] <= [1]  # to take back; a writer does not wait a second time
    monkeypatch.undo()
    (one,) = store.recordings()
    assert str(one.path) in caught.value.__notes__[0]
    assert "vfsd recover" in caught.value.__notes__[0]
    video = store.recover(one)
    assert (video.name, len(video)) == ("a.mp4", 120 if given == "stream" else 20)
    assert is_as_before(store, ["a.mp4"])


def test_stream_is_kept_when_its_name_is_taken(store: Store) -> None:
    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            part = super().read(size)
            if not part:
                store.ingest(CLIP, "a.mp4")
            return part

    with pytest.raises(ExistsError) as caught:
        store.write("a.mp4", Pipe((FOLDER / "mjpeg.avi").read_bytes()))
    (one,) = store.recordings()
    assert str(one.path) in caught.value.__notes__[0]
    assert store.recover(one).name == "a-recovered.mp4"
    assert len(store["a.mp4"]) == 120


class Broken(io.BytesIO):
    """Bytes from a connection that breaks."""

    def read(self, size: int | None = -1, /) -> bytes:
        if part := super().read(min(size or 1, 1000)):
            return part
        raise ConnectionResetError(errno.ECONNRESET, "reset")


@contextmanager
def piped(data: bytes) -> Iterator[IO[bytes]]:
    """A pipe that delivers these bytes."""

    def send() -> None:
        with open(go, "wb") as file:
            file.write(data)

    come, go = os.pipe()
    with open(come, "rb") as pipe, ThreadPoolExecutor(1) as other:
        sent = other.submit(send)
        yield pipe
        sent.result()


def camera(pictures: Pixels, error: Exception) -> Iterator[Pixels]:
    """Yield these frames, then fail."""
    yield from pictures
    raise error


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
@pytest.mark.parametrize(
    ("given", "error"),
    [("pipe", CutOffError), ("connection", ConnectionResetError), ("camera", TimeoutError)],
)
def test_frames_before_a_failure_are_kept(
    store: Store, given: str, error: type[Exception], ending: str
) -> None:
    pixels, name = smooth(7, 64, 48), f"a.{ending}"
    data = pixels.tobytes()[:-100]
    with ExitStack() as opened:
        source: Any = Broken(data)
        if given == "pipe":
            source = opened.enter_context(piped(data))
        elif given == "camera":
            source = camera(pixels[:6], TimeoutError(errno.ETIMEDOUT, "no picture"))
        with pytest.raises(error) as caught:
            store.write(name, source, size=(64, 48), fps=20, codec="ffv1")
    (one,) = store.recordings()
    (note,) = caught.value.__notes__
    assert "6 frames were saved" in note
    assert str(one.path) in note
    assert "vfsd recover" in note
    assert list(store) == []
    video = store.recover(one)
    assert np.array_equal(video.read().data, pixels[:6])
    assert video.duration == Fraction(6, 20)
    assert is_as_before(store, [name])


def test_broken_stream_keeps_received_data(store: Store) -> None:
    data = (FOLDER / "open-gop.mkv").read_bytes()
    with pytest.raises(ConnectionResetError) as caught:
        store.write("a.mkv", Broken(data))
    (one,) = store.recordings()
    assert one.path.read_bytes() == data
    assert str(one.path) in caught.value.__notes__[0]
    assert len(store.recover(one)) > 0
    with pytest.raises(ConnectionResetError):
        store.write("b.mkv", Broken())
    assert is_as_before(store, ["a.mkv"])


def test_failed_write_of_repeatable_input_leaves_nothing(store: Store, tmp_path: Path) -> None:
    """A write that the caller abandons leaves nothing either."""
    form: Any = {"size": (64, 48), "fps": 20}
    data = smooth(3, 64, 48).tobytes()[:-1]
    (tmp_path / "a.rgb").write_bytes(data)
    written: list[int] = []
    with open(tmp_path / "a.rgb", "rb") as file:
        for given in (data, io.BytesIO(data), file):
            with pytest.raises(UsageError, match="after 2 frames 9215 bytes are left"):
                store.write("a.mp4", given, on_progress=written.append, **form)
    assert not written
    with pytest.raises(ConnectionResetError):
        store.write("a.mp4", Broken(data[:5000]), **form)
    with pytest.raises(KeyError):
        store.write("a.mp4", camera(smooth(3, 64, 48), KeyError("mine")), fps=20)
    assert is_as_before(store, [])


def test_unpublished_writer_keeps_its_recording(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(store, monkeypatch, 0.1)
    with locked(store), store.writer("a.mp4", width=64, height=48, fps=20) as writer:
        writer.write(smooth(3, 64, 48))
        with pytest.raises(BusyError):
            writer.close()
        writer.leave()
        writer.leave()
    writer.abandon()
    monkeypatch.undo()
    (one,) = store.recordings()
    assert len(store.recover(one)) == 3
