"""Each check finds its own broken invariant, repairs it, and then finds nothing."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path, PurePath
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog import ROOT, Catalog
from vfsd.catalog.videos import Objects
from vfsd.core.model import FileState, TilingDecision
from vfsd.derive.proposals import Proposal
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.disk import safe_open, store_layout
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, DamagedFileError, IntegrityError
from vfsd.maintenance import fsck
from vfsd.maintenance.fsck import derived, objects, originals
from vfsd.maintenance.fsck.finding import Finding
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount.fs.unlinked_files import recover
from vfsd.storage.reclaim import reclaim
from vfsd.tiling import TileLayout
from vfsd.write.frame_index import restore_original_file
from vfsd.write.ingest_file import SourceFile, is_ingested
from vfsd.write.unfinished_files import classify_spooled_file

CLIP = FOLDER / "traffic.mp4"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        opened.ingest(CLIP, "cam/a.mp4")
        yield opened


def sql(store: Store, statement: str) -> None:
    with closing(sqlite3.connect(store.path / "catalog.sqlite3")) as raw, raw:
        raw.execute(statement)
    raw.close()


def finds_and_repairs(store: Store, name: str, *, deep: bool = False) -> None:
    found = fsck.run(store.parts, deep=deep)
    assert {finding.check for finding in found} == {name}, found
    assert not any(finding.repaired for finding in found)
    repaired = fsck.run(store.parts, repair=True, deep=deep)
    assert all(finding.repaired for finding in repaired if finding.check == name)
    assert fsck.run(store.parts, deep=deep) == []


def before(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, action: Callable[[], object]
) -> None:
    """Runs an action at the next call of a method, to simulate a concurrent process."""
    method = getattr(owner, name)
    times = iter([action])

    def called(*args: Any, **kwargs: Any) -> Any:
        for each in times:
            each()
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, called)


def tune_once(store: Store, frames: range) -> TilingDecision:
    video = store["cam/a.mp4"]
    plan = PlannedSegment(frames, TileLayout.parse("160+160x240"), (0,))
    nothing = frozenset[int]()
    return store.tuner().make(
        Proposal(video.info, plan, TileSettings(), (), 1, 0.1, 1, 1.0, 0.5, nothing)
    )


def in_the_place_of(path: Path, what: str) -> None:
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.with_name("elsewhere"))


def object_of(store: Store) -> Path:
    return store.parts.originals.path_of(store["cam/a.mp4"].original)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_unreadable_private_files_are_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    paths = {}
    for name in ("bad.txt", "worse.txt", "good.txt"):
        with store.catalog.writing() as change:
            node = change.tree.create(
                ROOT, name, 0o100644, uid=0, gid=0, now_ns=1, state=FileState.PLAIN
            )
        paths[name] = store.parts.directory.spool_file(node.ino)
        paths[name].write_bytes(bytes(3 << 20))
    assert fsck.run(store.parts, deep=True) == []
    broken = {path.stat().st_ino for name, path in paths.items() if name != "good.txt"}

    def failing(read: Callable[..., Any]) -> Callable[..., Any]:
        def called(fd: int, what: Any, at: int) -> Any:
            if at >= 1 << 20 and os.fstat(fd).st_ino in broken:
                raise OSError(number, os.strerror(number))
            return read(fd, what, at)

        return called

    monkeypatch.setattr(os, "pread", failing(os.pread))
    monkeypatch.setattr(os, "preadv", failing(os.preadv))
    assert fsck.run(store.parts) == []
    for repair in (False, True):
        found = fsck.run(store.parts, repair=repair, deep=True)
        assert [(one.check, one.repaired) for one in found] == [("private", False)] * 2
        for name, one in zip(("bad.txt", "worse.txt"), found, strict=True):
            assert f"the bytes of {name!r}" in one.message
            assert f"{paths[name]}, cannot be read: {os.strerror(number)}" in one.message


def test_sound_store_has_no_findings(store: Store) -> None:
    assert fsck.run(store.parts, deep=True) == []


def test_inconsistent_catalog_rows(store: Store) -> None:
    sql(store, "DELETE FROM nodes WHERE ino IN (SELECT ino FROM videos)")
    found = fsck.run(store.parts)
    (broken,) = [finding for finding in found if finding.check == "catalog"]
    assert "videos refers to a missing nodes" in broken.message
    assert not broken.repaired
    assert "leads to inode" in "".join(one.message for one in found if one.check == "links")


def test_orphans(store: Store) -> None:
    with store.catalog.writing() as change:
        for name in ("gone", "back"):
            node = change.tree.create(
                ROOT, name, 0o100644, uid=0, gid=0, now_ns=1, state=FileState.PLAIN
            )
            store.parts.directory.spool_file(node.ino).write_text(name)
            change.tree.unlink(ROOT, name, now_ns=2)
            former = (ROOT, name) if name == "back" else None
            change.tree.orphan(node.ino, now_ns=2, former=former)
    found = fsck.run(store.parts, repair=True)
    assert {finding.check for finding in found} == {"orphans", "spool"}
    assert fsck.run(store.parts) == []
    assert [name for name, _ in store.entries()] == ["back", "cam"]


def test_pending(store: Store) -> None:
    with store.catalog.writing() as change:
        node = change.tree.create(
            ROOT, "b.mp4", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.SPOOLED
        )
        shutil.copy(CLIP, store.parts.directory.spool_file(node.ino))
    finds_and_repairs(store, "pending")
    assert "b.mp4" in store


def test_links(store: Store) -> None:
    sql(store, "UPDATE nodes SET nlink = 7 WHERE ino IN (SELECT ino FROM videos)")
    finds_and_repairs(store, "links")


def test_unreachable_file_is_recovered(store: Store) -> None:
    sql(store, "DELETE FROM entries WHERE name = CAST('a.mp4' AS BLOB)")
    found = fsck.run(store.parts, repair=True)
    assert {finding.check for finding in found} == {"links"}
    assert fsck.run(store.parts) == []
    (name,) = list(store)
    assert name.startswith(fsck.LOST_AND_FOUND)


def test_names_added_during_a_repair_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(store, "UPDATE nodes SET nlink = 7 WHERE ino IN (SELECT ino FROM videos)")
    node = store.node("cam/a.mp4")

    def link() -> None:
        with store.catalog.writing() as change:
            change.tree.link(node.ino, ROOT, "second.mp4", now_ns=1)

    before(monkeypatch, store.parts.catalog, "writing", link)
    (found,) = fsck.run(store.parts, repair=True)
    assert found.repaired
    assert store.node("cam/a.mp4").nlink == 2


def test_mount_waits_for_the_deletion_of_orphans(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans might be files that another process has just opened in the mount."""
    monkeypatch.setattr(store_layout, "_LOCK_SECONDS", 0.0)
    with store.catalog.writing() as change:
        node = change.tree.create(
            ROOT, "open", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.PLAIN
        )
        change.tree.unlink(ROOT, "open", now_ns=2)
        change.tree.orphan(node.ino, now_ns=2)
    store.parts.directory.spool_file(node.ino).write_bytes(b"x")

    def mount() -> None:
        with ExitStack() as mounts, pytest.raises(BusyError, match="is being repaired"):
            mounts.enter_context(store.parts.directory.mounted("/somewhere"))

    before(monkeypatch, store.parts.catalog, "writing", mount)
    (found, *_) = fsck.run(store.parts, repair=True)
    assert found.check == "orphans"
    with store.catalog.reading() as seen:
        assert seen.tree.orphans() == []
    with store.parts.directory.mounted("/somewhere"):
        pass


def test_mount_waits_for_a_check_of_the_mount_lock(store: Store) -> None:
    directory = store.parts.directory
    with ExitStack() as looking:
        assert looking.enter_context(directory.unmounted())
        threading.Timer(0.05, looking.pop_all().close).start()
        with directory.mounted("/somewhere"), directory.unmounted() as alone:
            assert not alone


def test_mount_waits_for_an_ending_mount(store: Store) -> None:
    """An ending mount still holds the lock after it has cleared its lock file."""
    directory = store.parts.directory
    with ExitStack() as other:
        other.enter_context(directory.mounted("/elsewhere"))
        os.truncate(directory.mount_lock, 0)
        threading.Timer(0.05, other.pop_all().close).start()
        with directory.mounted("/somewhere"):
            assert directory.mounted_by() == {"pid": os.getpid(), "place": "/somewhere"}


@pytest.mark.parametrize("repair", one_in(2, [False, True]))
def test_file_promoted_in_between_has_no_missing_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch, repair: bool
) -> None:
    with store.catalog.writing() as change:
        node = change.tree.create(
            ROOT, "b.mp4", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.SPOOLED
        )
        shutil.copy(CLIP, store.parts.directory.spool_file(node.ino))
    with store.parts.directory.mounted("/somewhere"):
        directory = store.parts.directory
        before(
            monkeypatch, directory, "spool_file", lambda: classify_spooled_file(store.parts, node)
        )
        assert fsck.run(store.parts, repair=repair) == []
    assert store.node("b.mp4").state is FileState.VIDEO
    assert list(store.parts.directory.spooled()) == []


def test_missing_and_extra_private_files(store: Store) -> None:
    store.parts.directory.spool_file(4711).write_bytes(b"x")
    finds_and_repairs(store, "spool")
    with store.catalog.writing() as change:
        change.tree.create(
            ROOT, "lost.txt", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.PLAIN
        )
    finds_and_repairs(store, "spool")
    assert "lost" in str(store.node("lost.txt").reason)


@pytest.mark.parametrize("what", one_in(3, ["directory", "pipe", "link"]))
def test_obstacle_at_private_bytes_is_reported(store: Store, what: str) -> None:
    with store.catalog.writing() as change:
        node = change.tree.create(
            ROOT, "notes", 0o100644, uid=0, gid=0, now_ns=1, state=FileState.PLAIN
        )
    path = store.parts.directory.spool_file(node.ino)
    path.touch()
    in_the_place_of(path, what)
    for repair in (False, True):
        (found,) = fsck.run(store.parts, repair=repair)
        assert (found.check, found.repaired) == ("spool", False)
        assert str(path) in found.message
    assert not path.with_name("elsewhere").exists()


@pytest.mark.thorough
def test_tiles_with_changed_packs(store: Store) -> None:
    video = store["cam/a.mp4"]
    exact = video.read(region=(0, 0, 20, 20), psnr=float("inf")).data
    paths = [
        store.parts.objects.path(segment.object_key)
        for segment in video.tiles.retile("uniform:2x2")
    ]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-10])
    paths[2].write_bytes(b"no pack" * 1000)
    finds_and_repairs(store, "tiles")
    assert [path.exists() for path in paths] == [False, False, False, True]
    assert (video.read(region=(0, 0, 20, 20), psnr=float("inf")).data == exact).all()


@pytest.mark.parametrize("what", one_in(3, ["directory", "pipe", "link"]))
def test_tiles_with_an_irregular_file_as_pack(store: Store, what: str) -> None:
    (segment,) = store["cam/a.mp4"].tiles.retile("uniform:2x2", span=(0, 1))
    in_the_place_of(store.parts.objects.path(segment.object_key), what)
    finds_and_repairs(store, "tiles")
    assert not store.catalog.segments(store["cam/a.mp4"].info)


@pytest.mark.parametrize("deep", one_in(3, [False, True]))
@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_obstacle_at_an_object_is_repaired(store: Store, what: str, deep: bool) -> None:
    in_the_place_of(object_of(store), what)
    for repair in (False, True):
        found = fsck.run(store.parts, repair=repair, deep=deep)
        assert "objects" in {one.check for one in found}
        assert not any(one.repaired for one in found)
    store.ingest(CLIP, "cam/again.mp4")
    assert fsck.run(store.parts, deep=deep) == []


def test_directories_among_objects(store: Store) -> None:
    for name in ("ab/short", "ab/" + 62 * "c"):
        (store.parts.directory.objects / name).mkdir(parents=True)
    finds_and_repairs(store, "garbage")


@pytest.mark.thorough
def test_foreign_directory_among_objects_is_kept(store: Store) -> None:
    theirs = store.parts.directory.objects / "ab" / (62 * "c")
    theirs.mkdir(parents=True)
    (theirs / "notes.txt").touch()
    for repair in (False, True):
        (found,) = fsck.run(store.parts, repair=repair)
        assert (found.check, found.repaired) == ("garbage", False)
    assert (theirs / "notes.txt").exists()


def test_decisions_without_matching_tiles(store: Store) -> None:
    made = [tune_once(store, frames) for frames in (range(0, 30), range(30, 60), range(60, 90))]
    sql(store, f"UPDATE decisions SET end_frame = 31 WHERE id = {made[0].id}")
    sql(store, f"UPDATE decisions SET undone_ns = 5 WHERE id = {made[1].id}")
    finds_and_repairs(store, "decisions")
    states = {one.id: (one.state, one.undone_ns) for one in store.catalog.decisions()}
    assert states == {
        made[0].id: ("gone", None),
        made[1].id: ("in use", None),
        made[2].id: ("in use", None),
    }


def test_tiles_with_a_flipped_bit(store: Store) -> None:
    segment = store["cam/a.mp4"].tiles.retile("uniform:2x2")[1]
    path = store.parts.objects.path(segment.object_key)
    content = bytearray(path.read_bytes())
    content[segment.cells[2].position + 50] ^= 4
    path.write_bytes(content)
    finds_and_repairs(store, "content", deep=True)
    assert not path.exists()


def test_missing_or_short_object_stays_a_finding(store: Store) -> None:
    path = object_of(store)
    path.chmod(0o600)
    os.truncate(path, 1000)
    (found,) = fsck.run(store.parts, repair=True)
    assert (found.check, found.repaired) == ("objects", False)
    path.unlink()
    (found,) = fsck.run(store.parts, repair=True)
    assert "missing" in found.message


def test_missing_unneeded_object_is_dropped(store: Store) -> None:
    """This occurs when a damaged pack was dropped and the process was killed before its cleanup."""
    with store.catalog.writing() as change:
        change.objects.record("e" * 64, 5, now_ns=1)
    finds_and_repairs(store, "objects")


@pytest.mark.thorough
def test_unrecorded_object_of_an_ingest_is_not_garbage(store: Store) -> None:
    """An ingest waits for another writer while its bytes are already in place."""
    stored, found = store.parts.objects, [Finding("", "")]
    before = set(stored.all_keys())

    def look() -> None:
        with Store.open(store.path) as looking:
            found[:] = fsck.run(looking.parts)

    with Store.open(store.path) as ingesting:
        ingest = threading.Thread(target=ingesting.ingest, args=(FOLDER / "portrait.mp4",))
        looking = threading.Thread(target=look)
        with store.catalog.writing():
            ingest.start()
            while set(stored.all_keys()) == before:
                assert ingest.is_alive()
                time.sleep(0.01)
            looking.start()
            looking.join(0.5)  # enough to see the object and to wait
        ingest.join()
        looking.join()
    assert found == []
    assert "portrait.mp4" in store


def test_garbage(store: Store) -> None:
    (store.parts.directory.objects_tmp / f"999999999-{'0' * 32}").write_bytes(b"x")
    stray = store.parts.objects.path("f" * 64)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"y")
    finds_and_repairs(store, "garbage")
    assert not stray.exists()


def test_foreign_files_next_to_the_settings_are_kept(store: Store) -> None:
    settings = store.parts.directory.settings
    store.settings.save(settings)
    copies = ["my-settings.toml", "config-2026.toml", "1-config.toml", ".config.toml.old.tmp"]
    for name in copies:
        settings.with_name(name).write_text("# mine")
    fsck.collect(store.parts)
    fsck.run(store.parts, repair=True)
    recover(store.parts)
    assert all(settings.with_name(name).exists() for name in copies)
    # of a process killed in `save`
    left = settings.with_name(f".config.toml.999999999-{'0' * 32}.tmp")
    left.write_text("half")
    finds_and_repairs(store, "garbage")
    assert not left.exists()


@pytest.mark.parametrize(
    "name",
    one_in(
        3,
        [
            "vfsd-store.json.tmp",
            f".vfsd-store.json.999999999-{'0' * 32}.tmp",
            f".suspects.json.999999999-{'0' * 32}.tmp",
        ],
    ),
)
def test_staged_file_of_a_killed_writer(store: Store, name: str) -> None:
    left = store.path / name
    left.write_text("half")
    finds_and_repairs(store, "garbage")
    assert not left.exists()


@pytest.mark.thorough
def test_video_without_a_frame_table_is_reindexed(store: Store) -> None:
    sql(store, "DELETE FROM frame_pages")
    finds_and_repairs(store, "videos")
    assert store["cam/a.mp4"][5].index == 5
    for table in ("frame_pages", "sound_pages", "sounds", "physical_videos"):
        sql(store, f"DELETE FROM {table}")
    finds_and_repairs(store, "videos")
    assert store["cam/a.mp4"][5].index == 5


def test_video_removed_during_fsck_is_not_a_finding(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsck, "_CHECKS", (("videos", originals.videos),))
    looks = iter([None, lambda: store.remove("cam/a.mp4")])  # once all have been listed
    reading = store.parts.catalog.reading

    def look() -> Any:
        action = next(looks, None)
        if action is not None:
            action()
        return reading()

    monkeypatch.setattr(store.parts.catalog, "reading", look)
    assert fsck.run(store.parts, repair=True) == []
    assert list(store) == []


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["frame_pages", "sound_pages"])
def test_video_removed_during_reindexing_is_not_a_finding(
    store: Store, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    sql(store, f"DELETE FROM {lost}")
    before(monkeypatch, store.parts.catalog, "writing", lambda: store.remove("cam/a.mp4"))
    monkeypatch.setattr(fsck, "_CHECKS", (("videos", originals.videos),))
    assert fsck.run(store.parts, repair=True) == []
    assert list(store) == []


@pytest.mark.thorough
def test_objects_and_tiles_removed_during_fsck_are_not_findings(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store["cam/a.mp4"].tiles.retile("uniform:2x2")

    def remove() -> None:
        if "cam/a.mp4" in store:
            store.remove("cam/a.mp4")

    before(monkeypatch, derived, "_pack_fault", remove)
    assert fsck.run(store.parts) == []
    store.ingest(CLIP, "cam/a.mp4")
    before(monkeypatch, objects, "_fault", remove)
    assert fsck.run(store.parts) == []
    assert list(store) == []


@pytest.mark.thorough
def test_audio_without_an_index_is_reindexed(store: Store) -> None:
    before = store.catalog.sound(store["cam/a.mp4"].original)
    assert before is not None
    sql(store, "DELETE FROM sound_pages")
    finds_and_repairs(store, "videos")
    after = store.catalog.sound(store["cam/a.mp4"].original)
    assert after is not None
    assert (after[0], after[1].packets) == (before[0], before[0].packets)
    sql(store, "DELETE FROM frame_pages")  # and everything is checked again
    finds_and_repairs(store, "videos")
    again = store.catalog.sound(store["cam/a.mp4"].original)
    assert again is not None
    assert again[0] == before[0]


def flip_page(store: Store, table: str, at: int = 100) -> None:
    """Flip a bit in the first page, like bit rot."""
    with closing(sqlite3.connect(store.path / "catalog.sqlite3")) as raw, raw:
        number, page = raw.execute(f"SELECT rowid, data FROM {table} LIMIT 1").fetchone()
        page = page[:at] + bytes([page[at] ^ 4]) + page[at + 1 :]
        raw.execute(f"UPDATE {table} SET data = ? WHERE rowid = ?", (page, number))
    raw.close()


@pytest.mark.parametrize("is_verified", one_in(2, [False, True]))
def test_damaged_table_page_is_rebuilt(store: Store, is_verified: bool) -> None:
    if is_verified:
        store["cam/a.mp4"].verify()
    else:
        sql(store, "UPDATE physical_videos SET verified = 0")
    video = store["cam/a.mp4"]
    with store.catalog.reading() as seen:
        good = list(seen.videos.pages(video.original.id))
    for at in (2, 5, 100, -1):
        flip_page(store, "frame_pages", at)
        with Store.open(store.path) as other, pytest.raises(IntegrityError, match="frame table"):
            other["cam/a.mp4"].frames([5])
        finds_and_repairs(store, "videos")
        with store.catalog.reading() as seen:
            assert list(seen.videos.pages(video.original.id)) == good
    sql(store, "UPDATE frame_pages SET data = zeroblob(length(data))")
    finds_and_repairs(store, "videos")
    assert store["cam/a.mp4"].original == video.original


@pytest.mark.thorough
def test_rebuilding_a_table_keeps_tiles(store: Store) -> None:
    made = store["cam/a.mp4"].tiles.retile("uniform:2x2")
    flip_page(store, "frame_pages")
    finds_and_repairs(store, "videos")
    assert store.catalog.segments(store["cam/a.mp4"].info) == made


@pytest.mark.parametrize(
    "change",
    one_in(
        3,
        [
            "frame_pages SET first_pts = first_pts - 1",
            "frame_pages SET last_pts = last_pts + 512",
            "frame_pages SET key_packet = 7",
            "physical_videos SET first_pts = first_pts + 512",
            "sound_pages SET last_pts = last_pts + 1",
        ],
    ),
)
def test_counts_that_contradict_the_pages(store: Store, change: str) -> None:
    before = store["cam/a.mp4"]
    sql(store, f"UPDATE {change}")
    finds_and_repairs(store, "videos")
    after = store["cam/a.mp4"].original
    assert (after.frames, after.first_pts) == (before.original.frames, before.original.first_pts)


def test_damaged_audio_page_is_rebuilt(store: Store) -> None:
    flip_page(store, "sound_pages")
    finds_and_repairs(store, "videos")


def test_lost_frames_are_unknown_without_a_table(store: Store) -> None:
    path = object_of(store)
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:-100] + bytes(100))
    flip_page(store, "frame_pages")
    (found,) = Scrubber(store.parts).run()
    assert found.frames is None
    told = [one.message for one in fsck.run(store.parts) if one.check == "damage"]
    file = store.parts.originals.file_of(store["cam/a.mp4"].original).open()
    with closing(file), pytest.raises(DamagedFileError) as caught:
        file.require(0, len(data))
    assert caught.value.frames is None
    for message in (found.message, *told, str(caught.value)):
        assert "which frames need them is not known: the frame table is damaged" in message


def test_verify_rebuilds_a_damaged_table(store: Store) -> None:
    video = store["cam/a.mp4"]
    made = video.tiles.retile("uniform:2x2")
    flip_page(store, "frame_pages")
    with Store.open(store.path) as other:
        again = other["cam/a.mp4"]
        assert again.verify()
        assert again[5].index == 5
        assert not again.verify()
    assert store.catalog.segments(store["cam/a.mp4"].info) == made
    sql(store, "DELETE FROM frame_pages")
    with Store.open(store.path) as other:
        assert other["cam/a.mp4"].verify()
        assert other["cam/a.mp4"][5].index == 5
    assert fsck.run(store.parts) == []


@pytest.mark.parametrize("link", one_in(2, [False, True]))
def test_repeated_ingest_rebuilds_a_damaged_table(tmp_path: Path, link: bool) -> None:
    source = SourceFile(CLIP, "a.mp4", CLIP.stat().st_size)
    with new_store(tmp_path / "store") as store:
        store.ingest(CLIP, "a.mp4", link=link)
        assert is_ingested(store.parts, source)
        assert not restore_original_file(store.parts, source)
        flip_page(store, "frame_pages")
        assert restore_original_file(store.parts, source)
        assert store["a.mp4"][5].index == 5
        assert not restore_original_file(store.parts, source)
        if not link:  # and undetected damage
            path = store.parts.originals.path_of(store["a.mp4"].original)
            path.chmod(0o600)
            path.write_bytes(bytes(CLIP.stat().st_size))
            flip_page(store, "frame_pages")
            assert restore_original_file(store.parts, source)
            assert fsck.run(store.parts, deep=True) == []


@pytest.mark.thorough
def test_videos_with_wrong_object_keys(store: Store) -> None:
    video = store["cam/a.mp4"]
    made = video.tiles.retile("uniform:2x2")
    sql(store, f"UPDATE videos SET digest = '{'0' * 64}'")
    assert list(Scrubber(store.parts).run()) == []
    finds_and_repairs(store, "digests")
    assert store["cam/a.mp4"].info.digest == video.info.digest
    assert store.catalog.segments(store["cam/a.mp4"].info) == made


def test_changed_linked_file(store: Store, tmp_path: Path) -> None:
    mine = Path(shutil.copy(CLIP, tmp_path / "mine.mp4"))
    store.ingest(mine, link=True)
    with open(mine, "ab") as file:
        file.write(b"more")
    (found,) = fsck.run(store.parts)
    assert (found.check, found.repaired) == ("linked", False)
    mine.unlink()
    (found,) = fsck.run(store.parts)
    assert "is missing" in found.message


@pytest.mark.thorough
def test_linked_file_being_written_is_not_reindexed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Path(shutil.copy(CLIP, tmp_path / "mine.mp4"))
    video = store.ingest(mine, link=True)
    sql(store, f"DELETE FROM frame_pages WHERE physical_id = {video.original.id}")
    examiner = store.parts.examiner
    examine = examiner.examine_open

    def and_then_append(fd: int, called: str) -> object:
        found = examine(fd, called)
        with open(mine, "ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(examiner, "examine_open", and_then_append)
    for _ in range(2):  # and its current bytes were never stored
        found = [one for one in fsck.run(store.parts, repair=True) if one.check == "videos"]
        assert [one.repaired for one in found] == [False]
    monkeypatch.undo()
    shutil.copy(CLIP, mine)
    found = [one for one in fsck.run(store.parts, repair=True) if one.check == "videos"]
    assert [one.repaired for one in found] == [True]


def test_unreadable_object_is_reported_but_not_as_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = object_of(store)

    def opened(asked: Any, flags: int = 0) -> int:
        if Path(asked) == path:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return open_stored(asked, flags)

    open_stored = safe_open.open_stored
    monkeypatch.setattr(safe_open, "open_stored", opened)
    for repair in (False, True):
        (found,) = fsck.run(store.parts, deep=True, repair=repair)
        assert (found.check, found.repaired) == ("permissions", False)
        assert "'cam/a.mp4'" in found.message or "cam/a.mp4" in found.message


@pytest.mark.parametrize("is_known", [False, True])
def test_wrong_checksums_are_corrected(store: Store, is_known: bool) -> None:
    sql(store, "UPDATE block_sums SET sums = zeroblob(length(sums))")
    with Store.open(store.path, read_only=not is_known) as other, pytest.raises(DamagedFileError):
        other["cam/a.mp4"].frames([5])
    assert [one.check for one in fsck.run(store.parts)] == ["damage"] * is_known
    found = fsck.run(store.parts, deep=True)
    assert [one.check for one in found] == ["damage"] * is_known + ["sums"]
    found = fsck.run(store.parts, repair=True, deep=not is_known)
    assert [(one.check, one.repaired) for one in found] == [
        ("damage" if is_known else "sums", True)
    ]
    assert fsck.run(store.parts, deep=True) == []
    with Store.open(store.path) as other:
        assert len(other["cam/a.mp4"].frames([5]).data) == 1


def test_deep_repair_adds_missing_checksums(store: Store) -> None:
    sql(store, "DELETE FROM block_sums")
    assert fsck.run(store.parts, repair=True, deep=True) == []
    with store.catalog.reading() as seen:
        assert seen.integrity.checksums(store["cam/a.mp4"].original.place) is not None


@pytest.mark.thorough
def test_wrong_object_sizes_are_corrected(store: Store) -> None:
    store["cam/a.mp4"].tiles.retile("uniform:2x2")
    with store.catalog.reading() as seen:
        sums = seen.integrity.checksums(store["cam/a.mp4"].original.place)
        segments = seen.segments.all()
    sql(store, "UPDATE objects SET size = 5")
    finds_and_repairs(store, "objects")
    with store.catalog.reading() as seen:
        assert seen.integrity.checksums(store["cam/a.mp4"].original.place) == sums
        assert seen.segments.all() == segments
        sizes = seen.objects.sizes()
    assert all(store.parts.objects.path(key).stat().st_size == sizes[key] for key in sizes)


def lose_row(store: Store) -> Path:
    """Delete the catalog row of the video's object; return the object's path."""
    sql(store, "DELETE FROM objects")
    return object_of(store)


def test_object_without_a_row_is_recorded_again(store: Store) -> None:
    lose_row(store)
    found = fsck.run(store.parts, repair=True)
    assert all(one.repaired for one in found if one.check == "objects")
    assert any("which holds cam/a.mp4, is not recorded" in one.message for one in found)
    assert fsck.run(store.parts, deep=True) == []


def test_scrub_covers_an_object_without_a_row(store: Store, tmp_path: Path) -> None:
    path = lose_row(store)
    (found,) = Scrubber(store.parts).run()
    assert (found.names, found.repaired) == (("cam/a.mp4",), "recorded")
    assert list(Scrubber(store.parts).run()) == []
    copy = Path(shutil.copytree(store.path, tmp_path / "copy"))
    lose_row(store)
    for spoil in (lambda: path.write_bytes(b"other"), path.unlink):
        path.chmod(0o600)
        spoil()
        (found,) = Scrubber(store.parts).run()
        assert (found.names, found.repaired) == (("cam/a.mp4",), None)
        told = fsck.run(store.parts, repair=True)
        assert any("is not recorded" in one.message and not one.repaired for one in told)
    with pytest.raises(DamagedFileError):
        store["cam/a.mp4"].read(frames=[3])
    (found,) = Scrubber(store.parts, sources=[ObjectStore(StoreDirectory.open(copy))]).run()
    assert found.repaired == "put back"
    assert fsck.run(store.parts, deep=True) == []


def test_repeated_ingest_records_the_object_again(store: Store) -> None:
    lose_row(store).unlink()
    assert restore_original_file(store.parts, SourceFile(CLIP, "cam/a.mp4", CLIP.stat().st_size))
    fsck.run(store.parts, repair=True)
    assert fsck.run(store.parts, deep=True) == []


def test_every_check_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents list all checks and no others."""
    text = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    section = text.partition("## Findings of `vfsd fsck`")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `([a-z]+)`", section, re.MULTILINE)
    folder = Path(fsck.__file__).parent
    made = set(
        re.findall(r'Finding\(\s*"([a-z]+)"', "".join(map(Path.read_text, folder.glob("*.py"))))
    )
    made |= {"bucket", *(name for name, _ in (*fsck._CHECKS, *fsck._DEEP))}
    assert sorted(told) == sorted(made)
    assert sorted(re.findall(r"^([a-z]+)  ", fsck.__doc__ or "", re.MULTILINE)) == sorted(made)


def test_content(store: Store) -> None:
    path = object_of(store)
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(5000)
        file.write(b"\0\1\2\3")
    assert fsck.run(store.parts) == []
    (found,) = fsck.run(store.parts, deep=True)
    assert found.check == "content"


def test_gc_takes_only_unreferenced_files(store: Store) -> None:
    stray = store.parts.objects.path("e" * 64)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"12345")
    store.parts.directory.spool_file(4711).write_bytes(b"123")
    planned = fsck.collect(store.parts, dry_run=True)
    assert planned.bytes == 8
    assert stray.exists()
    assert fsck.collect(store.parts) == planned
    assert not stray.exists()
    assert object_of(store).read_bytes() == CLIP.read_bytes()
    assert fsck.collect(store.parts).bytes == 0


def test_many_unreferenced_files_are_deleted_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [store.parts.objects.put_bytes(b"%d" % number, "garbage").key for number in range(60)]
    writing, begun = Catalog.writing, list[None]()

    def counted(self: Catalog, patience: float | None = None) -> Any:
        begun.append(None)
        return writing(self, patience)

    monkeypatch.setattr(Catalog, "writing", counted)
    assert sorted(fsck.collect(store.parts).objects) == sorted(keys)
    assert len(begun) < 10


def test_undeletable_objects_are_looked_up_in_linear_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 60
    for number in range(count):
        folder = store.parts.objects.path(f"{number:064x}")
        folder.mkdir(parents=True)
        (folder / "file").touch()
    compared = list[None]()
    equal = PurePath.__eq__

    def counted(self: PurePath, other: object) -> bool:
        compared.append(None)
        return equal(self, other)

    monkeypatch.setattr(PurePath, "__eq__", counted)
    found = fsck.collect(store.parts)
    assert (len(found.stuck), found.objects, found.files, found.bytes) == (count, [], [], 0)
    assert len(compared) < 10 * count


def test_bulk_deletion_lets_other_writers_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = store.parts
    keys = [parts.objects.put_bytes(b"%d" % number, "garbage").key for number in range(25)]
    with store.catalog.writing() as change:
        for key in keys:
            change.objects.record(key, 2, now_ns=1)
    asked: list[str] = []
    is_recorded = Objects.is_recorded

    def noted(self: Objects, key: str) -> bool:
        asked.append(key)
        return is_recorded(self, key)

    taken: list[str] = []

    def in_between(seconds: float) -> None:
        taken.append(next(key for key in keys if key not in {*asked, *taken}))
        with store.catalog.writing() as change:  # no transaction is open here
            change.objects.record(taken[-1], 2, now_ns=1)

    monkeypatch.setattr(Objects, "is_recorded", noted)
    monkeypatch.setattr("vfsd.storage.reclaim._BATCH_FILES", 10)
    monkeypatch.setattr("vfsd.storage.reclaim.time.sleep", in_between)
    assert sorted(reclaim(parts)) == sorted(keys)
    assert len(taken) == 2
    assert {key for key in keys if parts.objects.exists(key)} == set(taken)
    taken.clear()
    asked.clear()
    monkeypatch.setattr("vfsd.storage.reclaim._BATCH_SECONDS", 0)
    assert len(reclaim(parts)) == 2
    assert len(taken) == 1
