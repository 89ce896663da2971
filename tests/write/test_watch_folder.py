"""Files that another recorder writes into a folder become videos when they are complete."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.core.capture_time import capture_source
from vfsd.errors import UsageError
from vfsd.write.watch_folder import FolderWatcher, WatchOptions

CLIP = FOLDER / "fragmented.mp4"
OTHER = FOLDER / "traffic.mp4"
DEADLINE = 60.0


class Watch:
    """A watcher whose folder is listed when the test says so."""

    def __init__(self, store: Store, folder: Path, files: str = "link", settle: float = 0) -> None:
        self.events: list[str] = []
        self._watcher = FolderWatcher(
            *(store.parts, "cam", folder, WatchOptions(files, settle)),
            captured=capture_source("name:%Y-%m-%d/%H-%M-%S"),
            on_event=self.events.append,
        )
        self.look = self._watcher.look


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recorder" / "2026-05-01"
    made.mkdir(parents=True)
    return made


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.05)


def test_half_written_files_wait(store: Store, folder: Path) -> None:
    """For their writer to close them, for silence, and for their last name."""
    watch = Watch(store, folder.parent)
    data = CLIP.read_bytes()
    with open(folder / "10-00-00.mp4", "wb", 0) as writer:
        writer.write(data[:100_000])
        watch.look()  # valid fragments, but more may come
        writer.write(data[100_000:])
        watch.look()
        assert list(store) == []
    shutil.copy(CLIP, folder / "10-01-00.mp4.part")
    shutil.copy(CLIP, folder / ".10-02-00.mp4.Ab3k")
    watch.look()
    assert list(store) == ["cam/2026-05-01/10-00-00.mp4"]
    (folder / "10-01-00.mp4.part").rename(folder / "10-01-00.mp4")
    watch.look()
    assert len(store) == 2
    video = store["cam/2026-05-01/10-01-00.mp4"]
    assert video.captured_at == datetime(2026, 5, 1, 10, 1, tzinfo=UTC)
    assert video.original.link_path == str(folder / "10-01-00.mp4")
    assert watch.events == []
    # A recorder that writes over a network has no open file here: silence must do.
    slow = Watch(store, folder.parent, settle=3600)
    shutil.copy(CLIP, folder / "10-03-00.mp4")
    slow.look()
    assert len(store) == 2


def test_what_is_no_video_is_reported_once(store: Store, folder: Path) -> None:
    watch = Watch(store, folder.parent)
    (folder / "10-00-00.mp4").write_bytes(OTHER.read_bytes()[:5000])  # its index never came
    (folder / "notes.txt").write_text("of the recorder")
    for _ in range(3):
        watch.look()
    assert len(watch.events) == 2
    assert all("left alone" in text for text in watch.events)
    shutil.copy(OTHER, folder / "10-00-00.mp4")  # repaired
    watch.look()
    assert list(store) == ["cam/2026-05-01/10-00-00.mp4"]


def test_restart_takes_nothing_twice(store: Store, folder: Path) -> None:
    shutil.copy(CLIP, folder / "10-00-00.mp4")
    Watch(store, folder.parent).look()
    before = store["cam/2026-05-01/10-00-00.mp4"].info
    again = Watch(store, folder.parent)
    again.look()
    assert store["cam/2026-05-01/10-00-00.mp4"].info == before
    assert again.events == []
    shutil.copy(OTHER, folder / "10-00-00.mp4")  # another file of that name
    again.look()
    assert "exists" in again.events[0] or "taken" in again.events[0]


def test_moved_files_are_deleted_when_they_are_stored(store: Store, folder: Path) -> None:
    path = folder / "10-00-00.mp4"
    shutil.copy(CLIP, path)
    Watch(store, folder.parent, "copy").look()
    assert path.exists()
    # As after a kill between the two steps.
    Watch(store, folder.parent, "move").look()
    assert not path.exists()
    assert store["cam/2026-05-01/10-00-00.mp4"].original.object_key is not None
    shutil.copy(OTHER, path)  # never instead of other bytes
    watch = Watch(store, folder.parent, "move")
    watch.look()
    assert path.exists()
    assert watch.events
    shutil.copy(OTHER, folder / "10-01-00.mp4")
    watch.look()
    assert not (folder / "10-01-00.mp4").exists()
    assert len(store) == 2


def test_linked_files_that_go_are_reported(store: Store, folder: Path) -> None:
    watch = Watch(store, folder.parent)
    for name in ("10-00-00.mp4", "10-01-00.mp4", "10-02-00.mp4"):
        shutil.copy(CLIP, folder / name)
    (folder / "notes.txt").write_text("no video")
    watch.look()
    assert len(watch.events) == 1  # the text
    (folder / "10-00-00.mp4").unlink()
    (folder / "10-01-00.mp4").rename(folder / "10-05-00.mp4")
    (folder / "notes.txt").unlink()
    watch.look()
    watch.look()
    said = [event.split(":")[0] for event in watch.events[1:]]
    assert said == [f"cam/2026-05-01/10-0{n}-00.mp4 cannot be read" for n in (0, 1)]
    assert sorted(store)[-1] == "cam/2026-05-01/10-05-00.mp4"
    assert len(store) == 4
    copying = Watch(store, folder.parent, "copy")
    shutil.copy(OTHER, folder / "10-06-00.mp4")
    copying.look()
    (folder / "10-06-00.mp4").unlink()
    copying.look()
    assert copying.events == []


def test_lost_disk_is_waited_for(store: Store, folder: Path) -> None:
    watch = Watch(store, folder.parent)
    shutil.copy(CLIP, folder / "10-00-00.mp4")
    watch.look()
    away = folder.parent.with_name("away")
    folder.parent.rename(away)
    with pytest.raises(FileNotFoundError):
        watch.look()
    away.rename(folder.parent)
    shutil.copy(CLIP, folder / "10-01-00.mp4")
    watch.look()
    assert len(store) == 2


@pytest.mark.thorough
def test_command_watches_until_a_signal(store: Store, folder: Path) -> None:
    command = [sys.executable, "-m", "vfsd", "-s", str(store.path), "record", "cam"]
    options = ["--watch", str(folder.parent), "--settle", "0.5"]
    for name in ("10-00-00.mp4", "10-00-30.mp4"):
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
            shutil.copy(CLIP, folder / name)
            wait_for(partial(store.__contains__, f"cam/2026-05-01/{name}"))
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0
        assert out.decode() == f"cam/2026-05-01/{name}\n"


def test_folders_that_cannot_be_watched(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        Watch(store, tmp_path / "none")
    with pytest.raises(UsageError, match="store's own"):
        Watch(store, store.parts.directory.location)
    with pytest.raises(UsageError, match="files must be"):
        WatchOptions("steal")
