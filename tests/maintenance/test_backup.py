"""Backups: a store's state at one moment, copied during concurrent writes."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.fs_driver import Driver
from tests.support.killing import killed_at_rename
from tests.support.next_revision import NEXT, next_program
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog import ROOT
from vfsd.core.model import FileState
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import CATALOG, StoreDirectory
from vfsd.errors import (
    BusyError,
    ExistsError,
    IntegrityError,
    NoSpaceError,
    NoStoreError,
    UsageError,
)
from vfsd.maintenance import backup, fsck
from vfsd.maintenance.backup import back_up, is_ctime_settled
from vfsd.maintenance.restore import restore
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount.fs import Filesystem
from vfsd.storage import catalog_swap
from vfsd.write.unfinished_files import classify_spooled_file

CLIPS = ("traffic.mp4", "portrait.mp4", "mjpeg.avi")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with some videos and tiles."""
    path = tmp_path_factory.mktemp("made") / "store"
    with new_store(path) as opened:
        for clip in CLIPS:
            opened.ingest(FOLDER / clip)
        opened["traffic.mp4"].tiles.retile("uniform:2x2", span=(0, 1))
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Store]:
    """A copy of that store, for one test."""
    with Store.open(shutil.copytree(made, tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def same(store: Store, target: Path, psnr: float | None = None) -> bool:
    with Store.open(target) as copy:
        if fsck.run(copy.parts, deep=True) or list(copy) != list(store):
            return False
        for name in store:
            mine, other = store[name], copy[name]
            if mine.info.digest != other.info.digest:
                return False
            pictures = mine.frames([5], psnr=psnr), other.frames([5], psnr=psnr)
            if not np.array_equal(pictures[0].data, pictures[1].data):
                return False
    return True


def test_backup_is_a_store(store: Store, target: Path) -> None:
    told: list[tuple[int, int]] = []
    done = back_up(store.parts, target, on_progress=lambda *now: told.append(now))
    assert (done.videos, done.linked, done.damaged) == (3, (), ())
    assert done.copied == done.bytes == told[-1][0] == told[-1][1]
    assert same(store, target)
    with Store.open(target) as copy:
        assert copy.catalog.segments(copy["traffic.mp4"].info)
        assert copy.settings == store.settings


def test_backup_copies_new_and_deletes_removed_files(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    store.remove("mjpeg.avi")
    new = store.ingest(FOLDER / "open-gop.mkv", "new/b.mkv")
    done = back_up(store.parts, target)
    assert done.copied == new.original.size
    assert same(store, target)
    assert set(ObjectStore(store.parts.directory).all_keys()) == {
        path.parent.name + path.name for path in target.glob("objects/??/*")
    }
    assert back_up(store.parts, target).copied == 0


def test_late_error_says_that_the_backup_is_complete(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    store.ingest(FOLDER / "open-gop.mkv", "new/b.mkv")
    marker = target / "vfsd-store.json"

    def take_its_name(done: int, total: int) -> None:
        if marker.is_file():
            marker.unlink()
            marker.mkdir()

    with pytest.raises(IsADirectoryError) as caught:
        back_up(store.parts, target, on_progress=take_its_name)
    assert caught.value.__notes__ == [
        "the backup is complete; run the command again to remove leftovers"
    ]
    marker.rmdir()
    back_up(store.parts, target)
    assert same(store, target)


def test_backup_without_derived_data(store: Store, target: Path) -> None:
    done = back_up(store.parts, target, derived=False)
    assert done.bytes == sum(video.original.size for video in store.find())
    assert same(store, target, psnr=math.inf)  # tiles may be the cheaper source there
    with Store.open(target) as copy:
        assert copy.catalog.segments(copy["traffic.mp4"].info) == []


@pytest.mark.parametrize("name", one_in(3, ["a%20b", "st%41", "50%off", "what? #1", "%3F"]))
def test_directory_names_with_url_characters(tmp_path: Path, name: str) -> None:
    """These names have another meaning in a URL."""
    for plain in ("a b", "stA"):
        (tmp_path / plain).mkdir()
    with Store.create(tmp_path / name) as store:
        store.ingest(FOLDER / "portrait.mp4", "a.mp4")
        assert (tmp_path / name / "catalog.sqlite3").exists()
        back_up(store.parts, tmp_path / f"{name}.backup")
    restore(tmp_path / f"{name}.backup", tmp_path / f"{name}.again")
    for copy in ("", ".backup", ".again"):
        with Store.open(tmp_path / f"{name}{copy}") as store:
            assert list(store) == ["a.mp4"]
            assert fsck.run(store.parts, deep=True) == []
    assert [list((tmp_path / plain).iterdir()) for plain in ("a b", "stA")] == [[], []]


def test_external_catalog_is_in_the_backup(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    with Store.create(tmp_path / "mine", catalog_url=url) as store:
        store.ingest(FOLDER / "portrait.mp4", "a.mp4")
        back_up(store.parts, tmp_path / "backup")
        store.remove("a.mp4")
        with Store.open(tmp_path / "backup") as copy:
            assert list(copy) == ["a.mp4"]
            copy.remove("a.mp4")
        back_up(store.parts, tmp_path / "backup")
        store.ingest(FOLDER / "portrait.mp4", "b.mp4")
        back_up(store.parts, tmp_path / "backup")
    with pytest.raises(UsageError, match="outside its directory"):
        restore(tmp_path / "backup", tmp_path / "mine")
    restore(tmp_path / "backup", tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        assert list(store) == ["b.mp4"]
        assert fsck.run(store.parts, deep=True) == []


def test_linked_files_are_reported(store: Store, target: Path) -> None:
    store.ingest(FOLDER / "open-gop.mkv", "outside.mkv", link=True)
    done = back_up(store.parts, target)
    assert done.linked == ("outside.mkv",)
    assert same(store, target)


def test_damage_is_reported_and_not_copied(store: Store, target: Path) -> None:
    video = store["portrait.mp4"]
    (segment,) = store.catalog.segments(store["traffic.mp4"].info)
    for key in (video.info.digest, segment.object_key):
        path = store.parts.objects.path(key)
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    done = back_up(store.parts, target)
    assert set(done.damaged) == {video.info.digest, segment.object_key}
    with Store.open(target) as copy:
        assert [(one.check, one.repaired) for one in fsck.run(copy.parts, deep=True)] == [
            ("objects", False)
        ]
        assert copy.catalog.segments(copy["traffic.mp4"].info) == []


def _flip(path: Path) -> None:
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _scrub(target: Path) -> None:
    with Store.open(target) as copy:
        assert [one.repaired for one in Scrubber(copy.parts).run()] == [None]


@pytest.mark.parametrize("cannot_tell", [False, True])
def test_damaged_copy_is_copied_again(store: Store, target: Path, cannot_tell: bool) -> None:
    back_up(store.parts, target)
    info = store["portrait.mp4"].info
    _flip(ObjectStore(StoreDirectory.open(target)).path(info.digest))
    _scrub(target)
    if cannot_tell:
        with (target / CATALOG).open("r+b") as file:
            file.write(bytes(4096))
    done = back_up(store.parts, target)
    assert (done.copied, done.damaged) == (info.original.size, ())
    assert same(store, target)


def test_locked_backup_is_not_compared(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison would be useless, since the catalog of the backup cannot be replaced."""
    back_up(store.parts, target)
    asked: list[str] = []
    is_intact = ObjectStore.is_intact

    def counted(objects: ObjectStore, key: str, size: int | None) -> bool:
        asked.append(key)
        return is_intact(objects, key, size)

    monkeypatch.setattr(ObjectStore, "is_intact", counted)
    monkeypatch.setattr(backup, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(catalog_swap, "WAIT_SECONDS", 0.2)
    with closing(sqlite3.connect(target / CATALOG, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(BusyError, match="another process"):
            back_up(store.parts, target)
    assert asked == []
    back_up(store.parts, target)
    assert asked == []
    assert same(store, target)


def test_damage_of_a_backup_is_kept_without_a_good_copy(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    digest = store["portrait.mp4"].info.digest
    path = ObjectStore(StoreDirectory.open(target)).path(digest)
    kept = path.read_bytes()
    _flip(path)
    _scrub(target)
    _flip(store.parts.objects.path(digest))
    for _ in range(2):
        done = back_up(store.parts, target)
        assert (done.copied, done.damaged) == (0, (digest,))
        with Store.open(target) as copy:
            assert [one.check for one in fsck.run(copy.parts)] == ["damage"]
    store.parts.objects.path(digest).write_bytes(kept)
    assert back_up(store.parts, target).damaged == ()
    assert same(store, target)


def test_known_damage_of_the_store_is_not_recorded_in_the_backup(
    store: Store, target: Path
) -> None:
    back_up(store.parts, target)
    _flip(store.parts.objects.path(store["portrait.mp4"].info.digest))
    _scrub(store.path)
    assert back_up(store.parts, target).damaged == ()
    with Store.open(target) as copy:
        assert fsck.run(copy.parts, deep=True) == []


@pytest.mark.parametrize("what", ["folder", "object"])
def test_obstacle_in_the_backup_is_not_blamed_on_the_store(
    store: Store, target: Path, what: str
) -> None:
    back_up(store.parts, target)
    info = store.ingest(FOLDER / "open-gop.mkv", "b.mkv").info
    path = ObjectStore(StoreDirectory.open(target)).path(info.digest)
    taken = path.parent if what == "folder" else path / "of somebody"
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text("his")
    with pytest.raises(IntegrityError, match=f"{path.parent}.*directory"):
        back_up(store.parts, target)
    with Store.open(target) as copy:
        assert sorted(copy) == sorted(CLIPS)
    taken.unlink()
    assert back_up(store.parts, target).damaged == ()
    assert same(store, target)


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_object_with_wrong_bytes_does_not_harm_the_backup(
    store: Store, target: Path, clip: str
) -> None:
    """Neither existing objects nor later ones are affected."""
    back_up(store.parts, target)
    good = store[clip].info.digest
    wrong = store.ingest(FOLDER / "open-gop.mkv").info.digest
    path = store.parts.objects.path(wrong)
    kept = path.read_bytes()
    path.write_bytes(store.parts.objects.path(good).read_bytes())
    for _ in range(2):
        done = back_up(store.parts, target)
        assert done.damaged == (wrong,)
        with Store.open(target) as copy:
            assert copy.parts.objects.is_intact(good, None)
            assert not copy.parts.objects.exists(wrong)
    path.write_bytes(kept)
    assert back_up(store.parts, target).damaged == ()
    assert same(store, target)


def test_files_in_use_are_no_finding_in_a_backup(store: Store, target: Path) -> None:
    with store.catalog.writing() as change:
        for name in ("coming.mp4", "open.txt"):
            node = change.tree.create(
                ROOT, name, 0o100644, uid=0, gid=0, now_ns=1, state=FileState.SPOOLED
            )
            store.parts.directory.spool_file(node.ino).write_bytes(b"half")
        change.tree.unlink(ROOT, "open.txt", now_ns=2)
        change.tree.orphan(node.ino, now_ns=2)
    back_up(store.parts, target)
    with Store.open(target) as copy:
        for repair in (False, True):
            assert fsck.run(copy.parts, deep=True, repair=repair) == []
        assert fsck.unfinished_file_count(copy.parts) == 2
    assert {one.check for one in fsck.run(store.parts)} == {"orphans", "pending"}
    assert fsck.unfinished_file_count(store.parts) == 0


def test_damaged_frame_table_is_reported_and_can_be_rebuilt(store: Store, target: Path) -> None:
    assert back_up(store.parts, target).tables == ()
    with closing(sqlite3.connect(store.path / "catalog.sqlite3")) as raw, raw:
        raw.execute(
            "UPDATE frame_pages SET data = zeroblob(length(data)) WHERE physical_id = ?",
            (store["portrait.mp4"].original.id,),
        )
    assert back_up(store.parts, target).tables == ("portrait.mp4",)
    with Store.open(target) as copy:
        (found,) = fsck.run(copy.parts, repair=True)
        assert (found.check, found.repaired) == ("videos", True)
        assert copy["portrait.mp4"][3].index == 3


def test_video_with_an_invalid_row_does_not_stop_the_backup(store: Store, target: Path) -> None:
    broken, *others = store.find()
    original = broken.info.original.id
    with closing(sqlite3.connect(store.path / "catalog.sqlite3")) as database, database:
        database.execute("UPDATE physical_videos SET parameters = '{' WHERE id = ?", [original])
    done = back_up(store.parts, target)
    assert (done.videos, done.tables) == (len(others) + 1, (broken.name,))
    with Store.open(target) as copy:
        assert all(copy[one.name].info == one.info for one in others)
        path = copy.parts.objects.path(broken.info.digest)
        assert path.read_bytes() == store.parts.objects.path(broken.info.digest).read_bytes()


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_obstacle_at_an_object_is_reported_and_not_copied(
    store: Store, target: Path, what: str
) -> None:
    """Everything else is copied, as when the disk cannot read one object."""
    digest = store["portrait.mp4"].info.digest
    path = store.parts.objects.path(digest)
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.with_name("elsewhere"))
    assert back_up(store.parts, target).damaged == (digest,)
    store.ingest(FOLDER / "portrait.mp4", "again.mp4")
    assert back_up(store.parts, target).damaged == ()
    assert same(store, target)


@pytest.mark.parametrize("what", ["gone", "directory", "link", "loop"])
def test_unreadable_private_files_are_reported_and_kept(
    store: Store, target: Path, what: str
) -> None:
    with store.catalog.writing() as change:
        node = change.tree.create(
            ROOT, "notes", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.PLAIN
        )
    path = store.parts.directory.spool_file(node.ino)
    path.write_text("of monday")
    assert back_up(store.parts, target).unread == ()
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "link":
        path.symlink_to(FOLDER / "traffic.mp4")
    elif what == "loop":
        path.symlink_to(path)
    assert back_up(store.parts, target).unread == ("notes",)
    store.close()
    assert restore(target, store.path).emptied == ()
    assert path.read_text() == "of monday"


def test_file_written_during_the_copy_is_copied_again(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = Filesystem(store.parts)
    it = Driver(fs)
    it.write("/notes.txt", b"old words")
    spool = store.parts.directory.spool_file(store.node("notes.txt").ino)
    fs.close()
    os.utime(spool, ns=(1, 1))
    copystat = shutil.copystat

    def write_and_then(source: Path, copy: Path) -> None:
        if source == spool:  # its bytes are copied, but not its times
            spool.write_bytes(b"new words")
        copystat(source, copy)

    monkeypatch.setattr(shutil, "copystat", write_and_then)
    back_up(store.parts, target)
    monkeypatch.undo()
    copy = target / "spool" / spool.name
    assert (copy.read_bytes(), copy.stat().st_mtime_ns) == (b"old words", 1)
    back_up(store.parts, target)
    assert copy.read_bytes() == b"new words"
    assert copy.stat().st_mtime_ns == spool.stat().st_mtime_ns
    assert back_up(store.parts, target).copied == 0


def test_file_with_reset_times_is_copied_again(store: Store, target: Path) -> None:
    it = Driver(Filesystem(store.parts))
    it.write("/index.db", b"old words")
    it.fs.close()
    spool = store.parts.directory.spool_file(store.node("index.db").ino)
    copy = target / "spool" / spool.name
    os.utime(spool, (1_700_000_000, 1_700_000_000))
    back_up(store.parts, target)
    before = spool.stat()
    spool.write_bytes(b"new words")
    os.utime(spool, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert back_up(store.parts, target).copied == len(b"new words")
    assert copy.read_bytes() == b"new words"


def test_file_changed_in_the_backup_is_copied_again(store: Store, target: Path) -> None:
    it = Driver(Filesystem(store.parts))
    it.write("/index.db", b"old words")
    it.fs.close()
    back_up(store.parts, target)
    (copy,) = (target / "spool").iterdir()
    before = copy.stat()
    copy.write_bytes(b"bad words")
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    back_up(store.parts, target)
    assert copy.read_bytes() == b"old words"


@pytest.mark.parametrize("notes", one_in(2, [b"", b"[1]", b'{"2": {}}', b"\xff"]))
def test_missing_manifest_causes_a_full_copy(store: Store, target: Path, notes: bytes) -> None:
    it = Driver(Filesystem(store.parts))
    it.write("/index.db", b"words")
    it.fs.close()
    back_up(store.parts, target)
    (target / "vfsd-backup-files.json").write_bytes(notes)
    assert back_up(store.parts, target).copied == len(b"words")
    assert same(store, target)


def test_change_within_the_clock_tick_of_the_copy_is_copied_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a")
    found = file.stat()
    missed = 0
    for content in range(200):
        told = is_ctime_settled(found)
        file.write_bytes(bytes([content]))
        after = file.stat()
        missed += told and after.st_ctime_ns == found.st_ctime_ns
        found = after
    assert missed == 0


@pytest.mark.thorough
def test_kill_leaves_the_last_backup_or_the_new_one(store: Store, tmp_path: Path) -> None:
    it = Driver(Filesystem(store.parts))
    for name in "ab":
        it.write(f"/{name}.txt", b"monday")
    back_up(store.parts, tmp_path / "monday")
    for name in "ab":
        it.write(f"/{name}.txt", b"")
    it.fs.close()
    store.remove("portrait.mp4")
    store.ingest(FOLDER / "open-gop.mkv")
    StoreSettings(verify=False).save(store.parts.directory.settings)
    found = []
    for number in range(20):
        target = tmp_path / str(number)
        shutil.copytree(tmp_path / "monday", target)

        def work(count: Callable[[], None], target: Path = target) -> None:
            with Store.open(store.path) as mine:
                count()
                back_up(mine.parts, target)

        was_killed = killed_at_rename(number, work)
        with Store.open(target) as copy:
            fsck.run(copy.parts, repair=True)
            assert fsck.run(copy.parts, deep=True) == []
            with copy.catalog.reading() as seen:
                waiting = seen.tree.files_in_state(FileState.SPOOLED)
            for node in waiting:  # like a mount of the restored store
                classify_spooled_file(copy.parts, node)
            sizes = {copy.node(f"{name}.txt").size for name in "ab"}
            private = {path.stat().st_size for _, path in copy.parts.directory.spooled()}
            assert sizes == private
            found.append((tuple(copy), sizes, copy.settings.verify))
            fsck.collect(copy.parts)
            assert not (target / "incoming").exists()
        if not was_killed:
            break
    assert number > 5
    old = (("mjpeg.avi", "portrait.mp4", "traffic.mp4"), {len(b"monday")}, True)
    new = (("mjpeg.avi", "open-gop.mkv", "traffic.mp4"), {0}, False)
    at = found.index(new)
    assert found == [old] * at + [new] * (len(found) - at)
    assert at > 0


def test_gc_in_the_backup_keeps_new_objects(store: Store, target: Path) -> None:
    """The copied objects are not referenced yet."""
    back_up(store.parts, target)
    store.ingest(FOLDER / "open-gop.mkv")
    store.ingest(FOLDER / "odd-size.webm")
    collected: list[int] = []

    def meanwhile(done: int, total: int) -> None:
        if done == total and len(collected) < 2:
            with Store.open(target) as copy:
                collected.append(len(fsck.collect(copy.parts).objects))

    back_up(store.parts, target, on_progress=meanwhile)
    assert collected[0] > 0
    assert same(store, target)


def test_backup_waits_for_open_readers(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    store.remove("portrait.mp4")
    looking = Store.open(target)
    assert "portrait.mp4" in looking
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(back_up, store.parts, target)
        with pytest.raises(FutureTimeoutError):
            under_way.result(timeout=0.5)
        assert looking["portrait.mp4"].read(frames=[3]).data.any()
        looking.close()
        under_way.result()
    assert same(store, target)


def test_backup_fails_while_a_reader_keeps_it_open(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_swap, "WAIT_SECONDS", 0.2)
    back_up(store.parts, target)
    store.remove("portrait.mp4")
    with Store.open(target) as looking:
        with pytest.raises(BusyError, match="open"):
            back_up(store.parts, target)
        assert looking["portrait.mp4"].read(frames=[3]).data.any()
    back_up(store.parts, target)
    assert same(store, target)


def test_other_directories_are_not_overwritten(store: Store, target: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        back_up(store.parts, store.path / "backup")
    with pytest.raises(UsageError):
        back_up(store.parts, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ExistsError, match="neither"):
        back_up(store.parts, tmp_path / "mine")
    with new_store(tmp_path / "other") as other:
        back_up(other.parts, target)
    with pytest.raises(ExistsError, match="another store"):
        back_up(store.parts, target)
    with pytest.raises(ExistsError, match="neither"):
        back_up(store.parts, tmp_path / "other")


@pytest.mark.parametrize("sign", ["{", "[]", '{"for": 1}'])
def test_invalid_backup_sign_is_reported(store: Store, target: Path, sign: str) -> None:
    back_up(store.parts, target)
    path = StoreDirectory.open(target).backup_sign
    path.write_text(sign)
    with pytest.raises(ExistsError, match="must name the store of the backup") as raised:
        back_up(store.parts, target)
    assert "empty that file" in (raised.value.hint or "")
    path.write_text("")
    back_up(store.parts, target)
    assert same(store, target)


@pytest.mark.parametrize("table", one_in(3, ["labels", "decisions", "segments"]))
def test_damaged_catalog_keeps_the_last_backup(store: Store, target: Path, table: str) -> None:
    """This holds for damage that a backup reads, and for damage that it does not read."""
    names = list(store)
    back_up(store.parts, target)
    store.close()
    _damage(store.path / "catalog.sqlite3", table)
    with (
        Store.open(store.path) as damaged,
        pytest.raises(IntegrityError, match="is damaged: "),
    ):
        back_up(damaged.parts, target)
    with Store.open(target) as copy:
        assert list(copy) == names
        assert fsck.run(copy.parts, deep=True) == []
    restore(target, store.path)
    with Store.open(store.path) as restored:
        assert fsck.run(restored.parts) == []


def test_damaged_backup_is_not_restored(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    store.close()
    _damage(target / "catalog.sqlite3", "labels")
    with pytest.raises(IntegrityError, match="is damaged: "):
        restore(target, store.path)
    with Store.open(store.path) as kept:
        assert fsck.run(kept.parts) == []


def _damage(catalog: Path, table: str) -> None:
    """Overwrite the first page of a table with zeros."""
    with closing(sqlite3.connect(catalog)) as raw:
        (page,) = raw.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", [table]
        ).fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with open(catalog, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))


def test_backup_with_an_empty_catalog_is_rebuilt(store: Store, target: Path) -> None:
    """A full disk or a power cut may leave an empty file."""
    back_up(store.parts, target)
    StoreDirectory.open(target).catalog_file.write_bytes(b"")
    assert back_up(store.parts, target).copied == 0
    assert same(store, target)


def test_damage_found_without_a_catalog_stays_known(store: Store, target: Path) -> None:
    """The backup has damaged bytes and no catalog, and the store has lost the object."""
    back_up(store.parts, target)
    key = store["traffic.mp4"].info.digest
    theirs, mine = ObjectStore(StoreDirectory.open(target)).path(key), store.parts.objects.path(key)
    theirs.chmod(0o600)
    with theirs.open("r+b") as file:
        file.seek(3000)
        file.write(b"XXXX")
    StoreDirectory.open(target).catalog_file.write_bytes(b"")
    good = mine.read_bytes()
    mine.unlink()
    for _ in range(2):
        assert back_up(store.parts, target).damaged == (key,)
        with Store.open(target) as copy, copy.catalog.reading() as seen:
            (found,) = seen.integrity.damaged()
            assert (found.place.object_key, found.damage) == (key, (range(len(good)),))
    mine.write_bytes(good)
    done = back_up(store.parts, target)
    assert (done.damaged, done.copied) == ((), len(good))
    assert theirs.read_bytes() == good
    with Store.open(target) as copy, copy.catalog.reading() as seen:
        assert seen.integrity.damaged() == []


def spoil(directory: StoreDirectory, statement: str) -> None:
    with closing(sqlite3.connect(directory.catalog_file, isolation_level=None)) as raw:
        raw.execute(statement)


@pytest.mark.parametrize("table", ["nodes", "inspections"])
def test_backup_without_a_catalog_table_is_rebuilt(store: Store, target: Path, table: str) -> None:
    back_up(store.parts, target)
    spoil(StoreDirectory.open(target), f"DROP TABLE {table}")
    assert back_up(store.parts, target).copied == 0
    assert same(store, target)


def test_interrupted_backup_keeps_the_last_catalog(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    directory = StoreDirectory.open(target)
    with next_program():
        Store.open(target).close()
    store.ingest(FOLDER / "open-gop.mkv")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(store.parts, target, on_progress=stop)
    with closing(sqlite3.connect(directory.catalog_file)) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchone() == (NEXT,)


def test_full_disk_keeps_the_last_backup(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(store.parts, target)
    before = list(store)
    store.ingest(FOLDER / "open-gop.mkv")

    def full(*_: object, **__: object) -> None:
        raise NoSpaceError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "verified_copy_of", full)
        for place in (target, other := target.with_name("other")):
            with pytest.raises(NoSpaceError, match=f"in {place}"):
                back_up(store.parts, place)
    with pytest.raises(NoStoreError, match="never been finished"):
        restore(other, target.with_name("restored"))
    assert not target.with_name("restored").exists()
    with Store.open(target) as copy:
        assert list(copy) == before
        assert fsck.run(copy.parts, deep=True) == []
    back_up(store.parts, target)
    assert same(store, target)


def test_backup_during_writes(store: Store, target: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            with Store.open(store.path) as mine:
                while not stop.is_set():
                    for clip in ("open-gop.mkv", "odd-size.webm"):
                        mine.ingest(FOLDER / clip, f"x/{clip}")
                    mine["portrait.mp4"].tiles.retile("uniform:1x2", span=(0, 1))
                    mine["portrait.mp4"].tiles.retile("uniform:2x1", span=(0, 1))
                    mine.remove("x", recursive=True)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=come_and_go)
    writer.start()
    try:
        for _ in range(4):
            back_up(store.parts, target)
            with Store.open(target) as copy:
                assert set(CLIPS) <= set(copy)
                assert fsck.run(copy.parts, deep=True) == []
    finally:
        stop.set()
        writer.join()
    assert failures == []


def test_kill_during_the_copy(store: Store, target: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from vfsd.maintenance.backup import back_up\n"
        "from vfsd.api.store import Store\n"
        "def told(done, total):\n"
        "    if done >= total * float(sys.argv[3]):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    back_up(store.parts, Path(sys.argv[2]), on_progress=told)\n"
    )

    def killed(share: float) -> None:
        done = subprocess.run(
            [sys.executable, "-c", program, store.path, target, str(share)], check=False
        )
        assert done.returncode == -signal.SIGKILL

    killed(0.3)
    assert not (target / "vfsd-store.json").exists()
    assert back_up(store.parts, target).damaged == ()
    before = list(store)
    store.ingest(FOLDER / "open-gop.mkv")
    killed(1.0)
    with Store.open(target) as copy:
        assert list(copy) == before
    back_up(store.parts, target)
    assert same(store, target)


def test_waiting_finish_leaves_the_next_backup_alone(store: Store, target: Path) -> None:
    back_up(store.parts, target)
    directory = StoreDirectory.open(target)
    coming = directory.incoming
    coming.spool.mkdir(parents=True)
    shutil.copy(directory.catalog_file, coming.catalog_file)
    finishing = threading.Thread(target=catalog_swap.finish, args=(directory,))
    held = os.open(target, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    finishing.start()
    while not _is_waited_for(target):
        assert finishing.is_alive()
    coming.catalog_file.unlink()  # like the process that renamed it
    laid = coming.spool / "7"
    laid.write_bytes(b"of the next backup")
    os.close(held)
    finishing.join()
    assert laid.exists()


def _is_waited_for(directory: Path) -> bool:
    """Whether a process is blocked on a lock of the directory (proc(5))."""
    number = directory.stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return any("-> FLOCK" in line and f":{number} " in line for line in lines)


def lose_row(store: Store, name: str) -> str:
    """Delete the catalog row of a video's object; return the object's key."""
    key = store[name].info.digest
    with closing(sqlite3.connect(store.path / "catalog.sqlite3")) as raw, raw:
        raw.execute("UPDATE objects SET key = 'd' || substr(key, 2) WHERE key = ?", (key,))
    raw.close()
    return key


def test_object_without_a_catalog_row_is_copied(tmp_path: Path, target: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "portrait.mp4", "a.mp4")
        key = lose_row(store, "a.mp4")
        told: list[tuple[int, int]] = []
        done = back_up(store.parts, target, on_progress=lambda *now: told.append(now))
        assert done.copied == done.bytes == told[-1][0] == told[-1][1]
        assert back_up(store.parts, target).copied == 0
        store.parts.objects.path(key).unlink()
        assert back_up(store.parts, target).damaged == ()  # the backup has a good copy
        assert back_up(store.parts, tmp_path / "other").damaged == (key,)
    with Store.open(target) as copy:
        assert fsck.run(copy.parts, deep=True) == []
        lose_row(copy, "a.mp4")
    assert restore(target, tmp_path / "new").missing == ()
    assert ObjectStore(StoreDirectory.open(tmp_path / "new")).is_intact(key, None)
    copy.parts.objects.path(key).unlink()
    assert restore(target, tmp_path / "newer").missing == (key,)
