"""Ownership of temporary files, and removal of those left by dead processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NoReturn

import pytest

import vfsd.disk.tempfiles
import vfsd.mount.fs.open_inodes
from sample_videos import FOLDER
from tests.support.fs_driver import Driver
from tests.support.replaceable_clips import rich_clip
from tests.support.writing import is_as_before, smooth
from vfsd.api.store import Store
from vfsd.disk.tempfiles import NewFile, claimed, delete_file, is_locked, new_name
from vfsd.errors import BusyError, NotFoundError
from vfsd.maintenance import fsck
from vfsd.maintenance.fsck import collect
from vfsd.mount.fs import Filesystem
from vfsd.mount.fs.posix import copy_start
from vfsd.mount.fs.unlinked_files import recover
from vfsd.write.unfinished_files import active_partials, create_partial

CLIP = FOLDER / "traffic.mp4"


def new_path(folder: Path) -> Path:
    return folder / new_name()


def no_locks(*_: object) -> NoReturn:
    raise OSError(errno.ENOLCK, "no locks available")


def nothing_goes(store: Store) -> bool:
    """Whether cleanup by others removes nothing, with and without file locks."""
    return not collect(store.parts).files and not recover(store.parts).stray


@pytest.fixture
def in_another_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where none of our pids exists."""
    monkeypatch.setattr(vfsd.disk.tempfiles, "is_alive", lambda name: False)


# --------------------------------------------------------------------------------- a file


def test_new_file_is_owned_until_closed(tmp_path: Path) -> None:
    new = NewFile(partial(new_path, tmp_path))
    assert is_locked(new.path)
    assert not delete_file(new.path)
    with pytest.raises(BusyError), claimed(new.path):
        pass
    new.close()
    assert not is_locked(new.path)
    with claimed(new.path):
        assert is_locked(new.path)
        assert not delete_file(new.path)
    assert delete_file(new.path)
    assert not new.path.exists()
    with pytest.raises(NotFoundError), claimed(new.path):
        pass


def test_cleanup_before_the_lock_only_costs_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process cleans up between the creation of the file and its lock."""
    names = [tmp_path / f"{os.getpid()}-{number}" for number in range(3)]
    hold = vfsd.disk.tempfiles.hold
    times = iter(names[:2])

    def late(file: FileIO) -> bool:
        for name in times:
            assert delete_file(name)
            break
        return hold(file)

    monkeypatch.setattr(vfsd.disk.tempfiles, "hold", late)
    coming = iter(names)
    with NewFile(lambda: next(coming)) as new:
        assert new.path == names[2]
        assert is_locked(new.path)
    assert list(tmp_path.iterdir()) == []


def test_files_are_created_during_cleanup(tmp_path: Path) -> None:
    done = threading.Event()

    def take_all() -> None:
        while not done.is_set():
            for path in tmp_path.iterdir():
                delete_file(path)

    thread = threading.Thread(target=take_all)
    thread.start()
    try:
        for _ in range(300):
            with NewFile(partial(new_path, tmp_path)) as new:
                new.file.write(b"x")
                assert new.path.read_bytes() == b"x"
    finally:
        done.set()
        thread.join()


def test_large_file_with_writes_at_any_offset(tmp_path: Path) -> None:
    """Its bytes are flushed to the disk during the writes."""
    chunk = os.urandom(5 << 20)
    with NewFile(partial(new_path, tmp_path)) as new:
        for _ in range(8):
            assert new.file.write(chunk) == len(chunk)
        new.file.seek(7)
        assert new.file.write(b"head") == 4
        for _ in range(4):
            new.file.write(chunk)
        expected = bytearray(chunk * 8)
        expected[7:11] = b"head"
        expected[11 : 11 + 4 * len(chunk)] = chunk * 4
        assert new.path.read_bytes() == expected


def test_pid_decides_without_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    new = NewFile(partial(new_path, tmp_path))
    assert is_locked(new.path)
    assert not delete_file(new.path)
    left = tmp_path / "999999999-x"
    left.touch()
    assert not is_locked(left)
    assert delete_file(left)
    new.remove()


def test_store_works_without_file_locks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with Store.open(store.path) as other:
        assert fsck.run(other.parts, repair=True) == []
        assert fsck.collect(other.parts).files == []


def test_symlink_is_deleted_but_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "mine", tmp_path / new_name()
    target.write_text("mine")
    link.symlink_to(target)
    assert not is_locked(link)
    assert delete_file(link)
    assert target.read_text() == "mine"


# ---------------------------------------------------------------------- who is whose pid by now

_WRITER = """
    import os, sys
    import numpy as np
    from vfsd import Store
    with Store.open(sys.argv[1]) as store:
        with store.writer("cam.mp4", width=64, height=48, fps=20, codec="ffv1") as writer:
            for number in range(100000):
                writer.write(np.full((48, 64, 3), number % 251, np.uint8))
                print(number, flush=True)
"""


@pytest.fixture
def writing(store: Store) -> Iterator[subprocess.Popen[str]]:
    """A process that has written a second or two of cam.mp4, and continues."""
    command = [sys.executable, "-c", textwrap.dedent(_WRITER), str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while int(process.stdout.readline()) < 50:
            pass
        yield process
        process.kill()


def test_dead_writer_is_detected_despite_a_reused_pid(
    store: Store, writing: subprocess.Popen[str]
) -> None:
    """In containers, each has its own process 1."""
    parts = store.parts
    (file,) = active_partials(parts.objects)
    alive = os.getpid()
    with store.growing("cam.mp4") as growing:
        writing.send_signal(signal.SIGKILL)
        writing.wait()
        for path in parts.objects.temporary_files():
            path.rename(path.with_name(path.name.replace(str(writing.pid), str(alive), 1)))
        assert is_locked(file.path) is False
        assert sum(1 for _ in growing.follow()) == len(growing) > 20
    assert list(active_partials(parts.objects)) == []
    with pytest.raises(NotFoundError):
        store.growing("cam.mp4")
    store.write("cam.mp4", smooth(3, 64, 48), fps=25)
    assert len(store["cam.mp4"]) == 3


# ------------------------------------------------------------------ whose pid says nothing


@pytest.mark.usefixtures("in_another_container")
def test_replacement_in_progress_is_not_a_leftover(tmp_path: Path, store: Store) -> None:
    video = store.ingest(rich_clip(tmp_path / "rich.mp4"), "a.mp4")
    video.policy.set("original=replaceable,psnr=36")
    seen = set()

    def on_progress(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            assert store.parts.objects.temporary_files()
            assert nothing_goes(store)

    video.policy.replace_original(psnr=36, on_progress=on_progress)
    assert len(seen) > 1
    assert is_as_before(store, ["a.mp4"])


@pytest.mark.usefixtures("in_another_container")
def test_good_copy_is_not_a_leftover_before_its_swap(store: Store) -> None:
    original = store.ingest(CLIP, "a.mp4").original
    assert original.object_key
    objects = store.parts.objects
    with objects.verified_copy(CLIP, original.object_key) as copy:
        assert nothing_goes(store)
        objects.exchange(copy, original.object_key)
    assert is_as_before(store, ["a.mp4"])


@pytest.mark.usefixtures("in_another_container")
def test_mount_copy_for_writing_is_not_a_leftover(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ingest(CLIP, "a.mp4")
    looks = []

    def copy(source: int, target: int, length: int) -> None:
        copy_start(source, target, length)
        looks.append(list(store.parts.directory.spool_copies()))
        assert nothing_goes(store)

    monkeypatch.setattr(vfsd.mount.fs.open_inodes, "copy_start", copy)
    fs = Filesystem(store.parts)
    it = Driver(fs)
    with it.opened("/a.mp4", os.O_RDWR) as handle:
        fs.write(handle, b"free", 4)
    assert len(looks) == 1
    assert len(looks[0]) == 1
    assert it.read("/a.mp4")[4:8] == b"free"
    fs.close()
    left = store.parts.directory.new_spool_copy(7)
    left.write_bytes(b"half a copy")
    assert collect(store.parts).files == [left]
    assert not left.exists()


@pytest.mark.usefixtures("in_another_container")
def test_new_file_is_not_a_leftover(store: Store) -> None:
    file = create_partial(store.parts.objects, "a.mp4")
    assert nothing_goes(store)
    file.remove()
    assert store.parts.objects.temporary_files() == []
