"""A full disk: operations that are refused, operations that work, and the state afterwards."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import vfsd.mount.fs.classify
from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.fault.state import difference, image_of, state_of
from tests.support.fs_driver import Driver, failing
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.model import FileState
from vfsd.core.pixel_array import Pixels
from vfsd.core.retention_policy import Action
from vfsd.derive.derived_data import drop_tiles
from vfsd.disk.disk_reserve import RESERVE_BYTES
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import NoSpaceError
from vfsd.maintenance import fsck
from vfsd.maintenance.age import RetentionExecutor
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount.fs import Filesystem
from vfsd.storage.quarantine import Quarantine

CLIP, OTHER = FOLDER / "traffic.mp4", FOLDER / "portrait.mp4"


@pytest.fixture
def place(small_disk: Path) -> Path:
    """A store with a video on a small disk."""
    with new_store(small_disk / "store") as store:
        store.ingest(CLIP, "a.mp4")
    return small_disk / "store"


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """Fill the rest of the disk that holds the store."""
    other = place.with_name("other")
    with open(other, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(place).f_bavail == 0
    yield
    other.unlink(missing_ok=True)


def tag_on(store: Store) -> None:
    """Add many tags, since SQLite's log may still have free space."""
    info = store.catalog.video("a.mp4")
    for number in range(10_000):
        store.catalog.tag(info, f"tag{number}")


def fill(fs: Filesystem, handle: int) -> int:
    """Write until the disk is full; return the number of bytes."""
    size = 0

    def write_more() -> None:
        nonlocal size
        size += fs.write(handle, bytes(1 << 18), size)

    error = ""
    while not error:
        error = failing(write_more)
    assert error == "ENOSPC"
    return size


def is_sound(store: Store) -> bool:
    return fsck.run(store.parts, deep=True) == []


def test_read_and_delete(place: Path) -> None:
    with filled(place):
        for _ in range(3):
            with Store.open(place) as store:
                assert list(store) == ["a.mp4"]
                assert store["a.mp4"].read(frames=[0]).data.any()
        with Store.open(place) as store:
            store.remove("a.mp4")
            assert len(store) == 0
            assert store.parts.directory.reserve.stat().st_size < RESERVE_BYTES
        other = place.with_name("other")
        os.truncate(other, other.stat().st_size - RESERVE_BYTES)
        # Free space goes to the reserve first, and only then to videos.
        with Store.open(place) as store:
            store.ingest(OTHER, "b.mp4")
            assert is_sound(store)
    with Store.open(place) as store:
        assert store.parts.directory.reserve.stat().st_size == RESERVE_BYTES
        assert list(store) == ["b.mp4"]


_DECODING = """
import os, signal, sys
from pathlib import Path
from vfsd.api.store import Store
from vfsd.disk.store_layout import StoreDirectory
from vfsd.disk.object_store import ObjectStore
from vfsd.storage.quarantine import Quarantine
with Store.open(sys.argv[1]) as store:
    suspects, original = store.parts.quarantine, store["a.mp4"].original
    with suspects.record_decoding(store.parts.directory.decoding_note):
        print(original.id, store.parts.directory.decoding_note, flush=True)
        input()
        with suspects.decoding(original):
            store["a.mp4"].read(frames=[0])
            if sys.argv[2] == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.parametrize("ending", one_in(4, ["well", "crash"]))
@pytest.mark.parametrize("is_full_before", [False, True])
def test_decoding_note_in_reserve(place: Path, is_full_before: bool, ending: str) -> None:
    with ExitStack() as stack:
        if is_full_before:
            stack.enter_context(filled(place))
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", _DECODING, place, ending],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        assert child.stdout is not None
        told = child.stdout.readline().strip()
        if not is_full_before:
            stack.enter_context(filled(place))
        _, said = child.communicate("\n")
        number, path = told.split(" ", 1)
        note = Path(path)
        if ending == "crash":
            assert child.returncode == -signal.SIGSEGV, said
            assert Quarantine.crashed(note) == ([int(number)], "Segmentation fault")
        else:
            assert child.returncode == 0, said
            assert not note.exists()


def test_decoding_without_note(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store.open(place) as store:
        note = store.parts.directory.decoding_note
        with filled(place):
            store.parts.directory.reserve.unlink()
            with filled(place), store.parts.quarantine.record_decoding(note):
                assert not note.exists()
                assert "disk is full" in caplog.text
                assert store["a.mp4"].read(frames=[0]).data.any()


@pytest.mark.thorough
def test_drop_tiles(place: Path) -> None:
    with Store.open(place) as store:
        video = store["a.mp4"]
        video.tiles.retile("uniform:2x2", jobs=1)
        with filled(place):
            assert drop_tiles(store.parts, video.info, range(len(video)))
            assert video.read(frames=[0]).data.any()
            assert is_sound(store)


def test_retention_policy(place: Path) -> None:
    with Store.open(place) as store:
        store.ingest(OTHER, "b.mp4")
        store.set_policy("a.mp4", "delete-below=1G")
        with filled(place):
            with pytest.raises(NoSpaceError):
                tag_on(store)
            ager = RetentionExecutor(store.parts, list(store.find()), is_clock_right=True)
            (due,) = ager.plan().due
            assert ager.apply(due, lambda *_: None).action is Action.DELETED
            assert list(store) == ["b.mp4"]
        assert is_sound(store)


@pytest.mark.parametrize(
    "say",
    one_in(
        3,
        [
            lambda store: store.set_policy("a.mp4", "delete-below=1G"),
            lambda store: store.set_policy("later/", "delete-below=1G"),
            lambda store: store["a.mp4"].policy.hold("case 17"),
            lambda store: store["held.mp4"].policy.release("closed"),
            lambda store: store["a.mp4"].budget.pin(),
            lambda store: store["held.mp4"].budget.unpin(),
            lambda store: store["a.mp4"].budget.set("1M"),
        ],
    ),
    ids=["policy", "policy of a directory", "hold", "release", "pin", "unpin", "budget"],
)
def test_eviction_report(place: Path, say: Callable[[Store], object]) -> None:
    with Store.open(place) as store:
        held = store.ingest(OTHER, "held.mp4")
        held.policy.hold("case 17")
        held.budget.pin()
        with filled(place):
            with pytest.raises(NoSpaceError):
                tag_on(store)
            say(store)
        assert is_sound(store)


def test_partial_undo(small_disk: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.mp4"
    large.write_bytes(
        OTHER.read_bytes() + struct.pack(">I4s", 1 << 20, b"free") + bytes((1 << 20) - 8)
    )
    with new_store(small_disk / "store") as store:
        for path in (large, CLIP):
            store.ingest(path)
        back_up(store.parts, tmp_path / "backup")
        for name in store:
            path = store.parts.originals.path_of(store[name].original)
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        with store.catalog.writing() as change:
            for at_ns, name in enumerate(("large.mp4", "traffic.mp4"), 1):
                change.integrity.record_inspection(store[name].original.place, (), now_ns=at_ns)
    with filled(small_disk / "store"):
        other = small_disk / "other"
        os.truncate(other, other.stat().st_size - (1 << 19))
        with Store.open(small_disk / "store") as store:
            scrubber = Scrubber(
                store.parts, sources=[ObjectStore(StoreDirectory.open(tmp_path / "backup"))]
            )
            told = {one.names: one.repaired for one in scrubber.run()}
            assert told == {("large.mp4",): None, ("traffic.mp4",): "put back"}
            assert [type(error) for error in scrubber.stuck] == [NoSpaceError]


def test_ingest_refused(place: Path) -> None:
    with Store.open(place) as store, filled(place):
        video, before = store["a.mp4"], state_of(store)
        image = image_of(place)
        actions: list[Callable[[], object]] = [
            lambda: store.ingest(OTHER, "b.mp4"),
            lambda: store.ingest(OTHER, "a.mp4", replace=True),
            lambda: video.tiles.retile("uniform:2x2", jobs=1),
            lambda: video.save(place.with_name("out.mkv")),
        ]
        for action in actions:
            with pytest.raises(NoSpaceError):
                action()
            assert state_of(store) == before
            assert difference(image_of(place), image) == ""
        assert sorted(path.name for path in place.parent.iterdir()) == ["other", place.name]
    with Store.open(place) as store:
        store.ingest(OTHER, "a.mp4", replace=True)
        store["a.mp4"].tiles.retile("uniform:1x1", jobs=1)
        assert is_sound(store)


def test_catalog_full(place: Path) -> None:
    with Store.open(place) as store:
        video = store["a.mp4"]
        with filled(place):
            with pytest.raises(NoSpaceError, match="full"):
                tag_on(store)
            written = set(store.catalog.video("a.mp4").tags)
        store.catalog.tag(video.info, "after")
        assert set(store.catalog.video("a.mp4").tags) == {*written, "after"}
        assert is_sound(store)


def test_growing_file(place: Path) -> None:
    with Store.open(place) as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        handle = it.create("/grows")
        size = fill(fs, handle)
        it.close(handle)
        fs.settle()
        assert it.read("/grows") == bytes(size)
        with filled(place):
            fs.unlink("/grows")
            fs.delete_pending()
        it.write("/after", b"there is room")
        fs.close()
        assert is_sound(store)


def test_judged_when_space_returns(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vfsd.mount.fs.classify, "_RETRY_SECONDS", 0.2)
    with Store.open(place) as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        handle = it.create("/v.mp4")
        fs.write(handle, OTHER.read_bytes(), 0)
        with filled(place):
            with pytest.raises(NoSpaceError):
                tag_on(store)
            it.close(handle)
            assert fs.settle()
            assert store.node("v.mp4").state is FileState.SPOOLED
        end = time.monotonic() + 30
        while store.node("v.mp4").state is FileState.SPOOLED:
            assert time.monotonic() < end, "the file is not judged again"
            time.sleep(0.05)
        assert store.node("v.mp4").state is FileState.VIDEO
        fs.close()
        assert is_sound(store)


def noisy() -> Iterator[Pixels]:
    """Endless pictures that compress badly."""
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, 255, (120, 160, 3), np.uint8)


@pytest.mark.parametrize("ending", one_in(2, ["mp4", "mkv"]))
@pytest.mark.parametrize("room", ["never", "at once"])
def test_recording_kept(place: Path, ending: str, room: str) -> None:
    name = f"live.{ending}"
    with Store.open(place) as store, filled(place):
        other = place.with_name("other")
        os.truncate(other, other.stat().st_size - 1_000_000)
        writer = store.writer(name, width=160, height=120, fps=5, codec="ffv1", format="rgb24")

        def record() -> None:
            with writer:
                for picture in islice(noisy(), 1000):
                    writer.write(picture)
                    if room == "at once" and not os.statvfs(place).f_bavail:
                        other.unlink(missing_ok=True)  # FFmpeg may not have noticed it yet

        with pytest.raises(NoSpaceError) as caught:
            record()
        assert len(caught.value.__notes__) == 1
        assert "vfsd recover" in caught.value.__notes__[0]
        other.unlink(missing_ok=True)
        (one,) = store.recordings()
        video = store.recover(one)
        assert video.name == name
        assert 3 < len(video) <= writer.frames
        for found, wanted in zip(video.read(format="rgb24").data, noisy(), strict=False):
            assert np.array_equal(found, wanted)
        assert is_sound(store)


@pytest.mark.thorough
def test_repeated_write_error(place: Path) -> None:
    with Store.open(place) as store, filled(place):
        os.truncate(place.with_name("other"), 2 << 20)
        writer = store.writer("live.mp4", width=160, height=120, fps=5, quality=1)
        with pytest.raises(NoSpaceError) as caught:
            writer.write(islice(noisy(), 10_000))
        place.with_name("other").unlink()
        with pytest.raises(NoSpaceError):
            writer.write(next(noisy()))
        with pytest.raises(NoSpaceError):
            writer.close()
        assert len(caught.value.__notes__) == 1
        (one,) = store.recordings()
        assert len(store.recover(one)) > 3


def test_stream_kept(place: Path) -> None:
    data = CLIP.read_bytes() + bytes(16 << 20)
    with Store.open(place) as store:
        with filled(place):
            os.truncate(place.with_name("other"), 1 << 20)
            with pytest.raises(NoSpaceError) as caught:
                store.write("live.mp4", io.BytesIO(data))
        assert "vfsd recover" in caught.value.__notes__[0]
        (one,) = store.recordings()
        assert len(store.recover(one)) == len(store["a.mp4"])
        assert is_sound(store)


@pytest.mark.thorough
def test_recording_hint(
    place: Path,
) -> None:
    with filled(place):
        os.truncate(place.with_name("other"), 1 << 20)
        with (
            Store.open(place) as store,
            pytest.raises(NoSpaceError) as caught,
            store.writer("live.mp4", width=160, height=120, fps=5, quality=1) as writer,
        ):
            writer.write(islice(noisy(), 10_000))
        assert "`vfsd gc --recordings 0`" in caught.value.__notes__[0]
        for command in ("doctor", "fsck"):
            told = run_command("-s", place, command)
            (line,) = (one for one in told.out.splitlines() if "'live.mp4'" in one)
            assert "--recordings 0`" in told.out[told.out.index(line) :]
        before = os.statvfs(place)
        assert run_command("-s", place, "gc", "--recordings", "0").code == 0
        after = os.statvfs(place)
        assert (after.f_bavail - before.f_bavail) * after.f_frsize > 500_000
        with Store.open(place) as store:
            assert not store.recordings()
            assert is_sound(store)


def test_doctor(place: Path) -> None:
    with filled(place):
        told = run_command("-s", place, "doctor", "--json")
        (found,) = (one for one in told.objects if one["check"] == "catalog")
        assert (found["status"], found["message"]) == ("ok", "1 videos")


@pytest.mark.parametrize(
    "words",
    [
        ("config", "workers", "2"),
        ("ingest", OTHER, "--as", "b.mp4"),
        ("read", "a.mp4", "OUT", "--span", "0-2"),
    ],
)
def test_error_names_remedy(place: Path, words: tuple[str | Path, ...]) -> None:
    given = [place.with_name("out.mkv") if word == "OUT" else word for word in words]
    with filled(place):
        told = run_command("-s", place, *given, "--json")
        assert told.code == NoSpaceError.exit_code
        (failure,) = (json.loads(line) for line in told.err.splitlines() if "exit_code" in line)
        names = ("config.toml", "portrait.mp4", "out.mkv")
        assert any(name in failure["message"] for name in names)
        assert "free space on the disk" in failure["hint"]


@pytest.mark.thorough
def test_fill_and_delete_repeatedly(small_disk: Path) -> None:
    with new_store(small_disk / "store") as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        for number in range(4):
            it.write(f"/f{number}", bytes(1 << 19))
        for number in range(4, 120):
            handle = it.create(f"/f{number}")
            fill(fs, handle)
            it.close(handle)
            fs.unlink(f"/f{number - 4}")
            fs.delete_pending()
        fs.settle()
        assert sorted(it.names("/")) == sorted(f"f{number}" for number in range(116, 120))
        fs.close()
        assert is_sound(store)


@pytest.mark.thorough
def test_unlink_frees_nothing(place: Path) -> None:
    with Store.open(place) as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        for number in range(150):
            it.mkdir(f"/d{number}")
        with filled(place):
            for number in range(75):
                fs.rmdir(f"/d{number}")
            fs.close()
            for number in range(75, 150):
                store.remove(f"d{number}")
        assert is_sound(store)


def test_reserve_before_writers(place: Path) -> None:
    with Store.open(place) as store:
        reserve = store.parts.directory.reserve
        fs = Filesystem(store.parts)
        it = Driver(fs)
        it.write("/old0", bytes(1 << 19))
        it.write("/old1", bytes(1 << 19))
        handle = it.create("/grows")
        os.truncate(reserve, RESERVE_BYTES - (3 << 18))  # as a deletion may have to
        with filled(place):
            fs.unlink("/old0")
            fs.delete_pending()
            assert RESERVE_BYTES - (3 << 18) < reserve.stat().st_size < RESERVE_BYTES
            assert failing(fs.write, handle, b"x", 0) == "ENOSPC"
            assert failing(fs.fallocate, handle, 0, 0, 1) == "ENOSPC"
            assert failing(it.mkdir, "/more") == "ENOSPC"
            fs.unlink("/old1")
            fs.delete_pending()
            assert reserve.stat().st_size == RESERVE_BYTES
            assert fs.write(handle, b"x", 0) == 1
            it.mkdir("/more")
        it.close(handle)
        fs.close()
        assert is_sound(store)


def test_unlinked_file_deleted_on_close(place: Path) -> None:
    with Store.open(place) as store:
        fs = Filesystem(store.parts)
        it = Driver(fs)
        handles = [it.create(f"/f{number}") for number in range(100)]
        with filled(place):
            for number, handle in enumerate(handles):
                fs.unlink(f"/f{number}")
                it.close(handle)
        fs.close()
        assert is_sound(store)
