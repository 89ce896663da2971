"""The catalog's public behaviour: finding, tagging, stored bytes, several processes.

Lists longer than a database's limit of variables in one statement.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.catalog_rows import MEDIA, add_file, add_segments, add_video, original, table
from tests.support.sqlite_steps import counted
from tests.support.stores import new_catalog
from vfsd.catalog import ROOT, Catalog, Transaction
from vfsd.catalog.engine import LOG_BYTES
from vfsd.catalog.video_query import VideoFilter, VideoQuery
from vfsd.core.budgets import Pin
from vfsd.core.model import FileState, LoggedRead, Role
from vfsd.errors import (
    BusyError,
    IntegrityError,
    NoStoreError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    StoreVersionError,
    UsageError,
)
from vfsd.tiling import Rect


def test_stored_videos_are_returned_unchanged(catalog: Catalog) -> None:
    with catalog.writing() as change:
        put = add_video(change, "cam1/a.mp4")
    got = catalog.video("cam1/a.mp4")
    assert got == put
    assert got.original.media == MEDIA
    assert (got.name, got.size, got.modified_ns) == ("cam1/a.mp4", 100_048, 77)
    assert got.original.notes == ("odd",)
    assert catalog.provenance(got.original) == [got.original]


def test_finding(catalog: Catalog) -> None:
    with catalog.writing() as change:
        add_video(change, "cam1/a.mp4", key="1" * 64)
        add_video(change, "cam1/deep/b.mkv", key="2" * 64, codec="hevc", container="matroska")
        add_video(change, "cam2/c.mp4", key="3" * 64, frames=1000, rotation=0)
        add_file(change, "cam2/notes.txt")
    a, c = catalog.video("cam1/a.mp4"), catalog.video("cam2/c.mp4")
    catalog.tag(a, "night", "rain")
    catalog.tag(c, "night")
    catalog.set_metadata(c, site="north", lane=3, wet=True)

    def names(*args: str, **what: object) -> list[str]:
        return catalog.find(*args, **what).names()  # type: ignore[arg-type]

    assert names() == ["cam1/a.mp4", "cam1/deep/b.mkv", "cam2/c.mp4"]
    assert names("cam1/*") == ["cam1/a.mp4"]
    assert names("cam1/**") == ["cam1/a.mp4", "cam1/deep/b.mkv"]
    assert names("**/*.mp4") == ["cam1/a.mp4", "cam2/c.mp4"]
    assert names("cam[2-3]/?.mp4") == ["cam2/c.mp4"]
    assert names("nowhere/*") == []
    assert names(codec="hevc") == names(container="matroska") == ["cam1/deep/b.mkv"]
    assert names(codec="HEVC") == names(container="Matroska") == ["cam1/deep/b.mkv"]
    assert names(codec="nobody's") == []
    assert names(tags={"night"}) == ["cam1/a.mp4", "cam2/c.mp4"]
    assert names(tags={"night", "rain"}) == ["cam1/a.mp4"]
    assert names(metadata={"site": "north"}) == ["cam2/c.mp4"]
    assert names(metadata={"lane": 3, "wet": True}) == ["cam2/c.mp4"]
    assert names(metadata={"lane": 4}) == []
    assert names(seconds=(30, None)) == ["cam2/c.mp4"]
    assert names(seconds=(None, 4.0)) == ["cam1/a.mp4", "cam1/deep/b.mkv"]
    assert names(bytes=(200_000, None)) == ["cam2/c.mp4"]
    assert names(width=(400, None)) == ["cam2/c.mp4"]  # the others are rotated: 360 wide
    assert names(modified_ns=(78, None)) == []
    assert len(catalog.find("cam1/**")) == 2
    found = catalog.find("cam2/*").first()
    assert found is not None
    assert (found.name, found.metadata["lane"]) == ("cam2/c.mp4", 3)
    with pytest.raises(UsageError):
        names(metadata={"lane": [1]})
    with pytest.raises(UsageError, match="name must be a pattern, got 5"):
        names(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'night'"):
        names(tags="night")


def test_find_returns_metadata_of_many_videos(catalog: Catalog) -> None:
    names = [f"cam{number % 7}/{number:03}.mp4" for number in range(100)]
    with catalog.writing() as change:
        for number, name in enumerate(names):
            video = add_video(change, name, key=f"{number:064x}", frames=number + 1)
            change.videos.add_tags(video.id, ["all", f"by {number % 3}"][: number % 3])
    found = list(catalog.find())
    assert [video.name for video in found] == sorted(names)
    assert found == [catalog.video(name) for name in sorted(names)]


@pytest.mark.thorough
def test_listing_while_videos_are_added_and_removed(catalog: Catalog) -> None:
    names = [f"{number:03}.mp4" for number in range(300)]
    with catalog.writing() as change:
        for number, name in enumerate(names):
            add_video(change, name, key=f"{number:064x}")
    listing = iter(catalog.find())
    assert next(listing).name == names[0]
    with catalog.writing() as change:  # like a mount
        written, gone = change.tree.resolve(names[-1]), change.tree.resolve(names[-2])
        change.tree.update(written.ino, state=FileState.SPOOLED, object_key=None)
        change.videos.drop_physicals(written.ino)
        change.tree.unlink(ROOT, names[-2], now_ns=9)
        change.tree.delete(gone.ino)
    assert [video.name for video in listing] == names[1:-2]


def test_set_and_remove_tags_and_metadata(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4")
    assert catalog.tag(video, "x", "y").tags == {"x", "y"}
    assert catalog.tag(video, "x").tags == {"x", "y"}
    assert catalog.untag(video, "x", "unknown").tags == {"y"}
    assert catalog.set_metadata(video, a=1, b="two").metadata == {"a": 1, "b": "two"}
    assert catalog.set_metadata(video, a=None).metadata == {"b": "two"}


def test_video_with_hard_links_is_found_once(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "b.mp4")
        change.tree.link(video.ino, ROOT, "a.mp4", now_ns=1)
    assert catalog.find().names() == ["a.mp4"]
    assert catalog.names(video) == ["a.mp4", "b.mp4"]


def test_file_that_is_not_a_video_is_reported(catalog: Catalog) -> None:
    with catalog.writing() as change:
        node = add_file(change, "notes.txt")
        change.tree.update(node.ino, reason="it is text")
    with pytest.raises(NotFoundError, match="it is text"):
        catalog.video("notes.txt")
    with pytest.raises(NotFoundError):
        catalog.video("nothing")


def test_location_of_bytes(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4")
    (found,) = catalog.locate(video.original, range(30, 60))
    assert (found.object_key, found.position, found.size) == ("ab" * 32, 30_048, 30_000)
    gops = list(catalog.gops(video.original))
    assert [(gop.first_frame, gop.frames, gop.position) for gop in gops] == [
        (0, 25, 48),
        (25, 25, 25_048),
        (50, 25, 50_048),
        (75, 25, 75_048),
    ]
    with pytest.raises(OutOfRangeError):
        catalog.locate(video.original, range(90, 101))


def test_new_bytes_keep_number_tags_and_metadata(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4", key="1" * 64)
    catalog.tag(video, "kept")
    with catalog.writing() as change:
        change.videos.drop_physicals(video.ino)
        change.objects.record("2" * 64, 5, now_ns=1)
        change.tree.update(video.ino, object_key="2" * 64)
        again = change.videos.put(
            video.ino, original("2" * 64, frames=50), table(50), digest="2" * 64, now_ns=9
        )
        assert change.objects.forget_unreferenced() == ["1" * 64]
    assert (again.id, set(again.tags), again.original.frames) == (video.id, {"kept"}, 50)
    assert len(catalog.frame_table(again.original)) == 50


def test_derived_encodings_have_a_parent(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4")
        tiled = dataclasses.replace(
            original("c" * 64),
            role=Role.RENDITION,
            object_key=None,
            parent_id=video.original.id,
            parameters={"layout": "2x2"},
        )
        made = change.videos.add_physical(video.id, tiled, table())
    assert [p.role for p in catalog.physicals(video)] == [Role.ORIGINAL, Role.RENDITION]
    assert catalog.provenance(made) == [made, video.original]


def test_find_segments_by_pack(catalog: Catalog) -> None:
    with catalog.writing() as change:
        first = add_segments(change, add_video(change, "a.mp4", key="1" * 64), 3)
        second = add_segments(change, add_video(change, "b.mp4", key="2" * 64), 3)
        shared = dataclasses.replace(second[2], object_key=first[0].object_key)
        change.segments.replace_pack(shared, second[2].object_key)
        assert change.segments.of_pack(first[0].object_key) == [first[0], shared]
        assert change.segments.of_pack(second[1].object_key) == [second[1]]
        assert change.segments.of_pack(second[2].object_key) == []


def test_only_an_original_has_a_frame_table(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4")
        add_segments(change, video, 3)
    tiled = catalog.physicals(video)[1]
    for asked in (catalog.frame_table, catalog.gops, lambda one: catalog.locate(one, range(1))):
        with pytest.raises(UsageError, match="a tiled encoding has no frame table"):
            asked(tiled)


def test_withdrawing_an_original_restores_the_previous_one(
    catalog: Catalog,
) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4")
        before, other = add_segments(change, video, 2, role=Role.RENDITION)
        made = change.segments.publish(dataclasses.replace(before, created_ns=5))
        change.objects.record("c" * 64, 5, now_ns=1)
        change.tree.update(video.ino, object_key="c" * 64)
        changed = change.videos.replace_original(
            video.id, original("c" * 64), table(), digest="c" * 64
        )
        assert [one.id for one in change.segments.renditions(changed.original.id)] == [
            made.id,
            other.id,
        ]
        change.segments.withdraw([made])
        assert [one.id for one in change.segments.renditions(changed.original.id)] == [
            before.id,
            other.id,
        ]


def test_unverified_originals_are_listed_in_pages(catalog: Catalog) -> None:
    with catalog.writing() as change:
        made = [add_video(change, f"{name}.mp4", key=name * 64) for name in "abcdef"]
        change.videos.mark_verified(made[2].original.id)
    wanted = [video for video in reversed(made) if video is not made[2]]
    assert catalog.unverified() == wanted
    first = catalog.unverified(2)
    rest = catalog.unverified(before_id=first[-1].original.id)
    assert [*first, *rest] == wanted
    assert catalog.unverified(before_id=rest[-1].original.id) == []


def test_missing_page_is_an_integrity_error(catalog: Catalog) -> None:
    with catalog.writing() as change:
        video = add_video(change, "a.mp4")
    frames = catalog.frame_table(video.original)
    with closing(sqlite3.connect(_file_of(catalog))) as raw, raw:
        raw.execute("DELETE FROM frame_pages WHERE ordinal = 1")
    raw.close()
    assert frames.frame(0).index == 0
    with pytest.raises(IntegrityError, match="page 1"):
        frames.frame(40)
    with pytest.raises(IntegrityError, match="frame table"):
        catalog.frame_table(video.original)


def test_sql_views_show_every_file_and_video(catalog: Catalog) -> None:
    with catalog.writing() as change:
        add_video(change, "cam1/a.mp4")
        add_file(change, "cam1/notes.txt")
    raw = sqlite3.connect(_file_of(catalog))
    assert raw.execute("SELECT path FROM v_files ORDER BY path").fetchall() == [
        ("cam1",),
        ("cam1/a.mp4",),
        ("cam1/notes.txt",),
    ]
    assert raw.execute("SELECT name, codec, width, frames, seconds FROM v_videos").fetchall() == [
        ("cam1/a.mp4", "h264", 360, 100, 4.0)
    ]
    raw.close()


def test_sql_views_for_other_tools(catalog: Catalog) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    with catalog.writing() as change:
        add_video(change, "a.mp4")
    assert catalog.find().to_arrow().column("frames").to_pylist() == [100]
    assert catalog.find().to_pandas()["name"].tolist() == ["a.mp4"]


# ------------------------------------------------------------------------- opening, processes


def _file_of(catalog: Catalog) -> str:
    return repr(catalog).partition("sqlite:///")[2].rstrip(">")


def test_missing_catalog_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        Catalog.open(f"sqlite:///{tmp_path}/none.sqlite3")


def test_newer_catalog_is_refused(catalog: Catalog) -> None:
    path = _file_of(catalog)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(StoreVersionError, match="9999"):
        Catalog.open(f"sqlite:///{path}")


def test_read_only_reads(catalog: Catalog) -> None:
    with catalog.writing() as change:
        add_video(change, "a.mp4")
    with Catalog.open(f"sqlite:///{_file_of(catalog)}", read_only=True) as reading:
        assert reading.find().names() == ["a.mp4"]
        with pytest.raises(ReadOnlyError), reading.writing():
            pass


def _write_many(url: str, name: str, count: int) -> None:
    with Catalog.open(url) as mine:
        for number in range(count):
            with mine.writing() as change:
                change.tree.create(ROOT, f"{name}{number}", 0o100644, uid=0, gid=0, now_ns=number)


@pytest.mark.thorough
def test_writers_queue_and_readers_never_wait(catalog: Catalog) -> None:
    url = f"sqlite:///{_file_of(catalog)}"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(url, name, 60)) for name in "abc"]
    for writer in writers:
        writer.start()
    looks = 0
    ends = [writer.sentinel for writer in writers]
    while len(wait(ends, 0.005)) < len(ends):
        with catalog.reading() as seen:
            seen.tree.children(ROOT)
        looks += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert looks
    with catalog.reading() as seen:
        assert len(seen.tree.children(ROOT)) == 180


def test_catalog_works_after_a_fork(catalog: Catalog) -> None:
    with catalog.writing() as change:
        add_video(change, "a.mp4")
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def child() -> None:
        with catalog.writing() as change:
            change.tree.create(ROOT, "child", 0o100644, uid=0, gid=0, now_ns=1)
        answers.put(catalog.find().names())

    process = fork.Process(target=child)
    process.start()
    process.join()
    assert answers.get() == ["a.mp4"]
    with catalog.reading() as seen:
        assert seen.tree.lookup(ROOT, "child") is not None


def test_snapshot_is_stable(catalog: Catalog) -> None:
    with catalog.reading() as seen:
        before = seen.tree.children(ROOT)
        other = threading.Thread(
            target=_write_many, args=(f"sqlite:///{_file_of(catalog)}", "x", 3)
        )
        other.start()
        other.join()
        assert seen.tree.children(ROOT) == before
    with catalog.reading() as seen:
        assert len(seen.tree.children(ROOT)) == 3


def test_endless_writer_is_reported(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfsd.catalog.engine.BUSY_SECONDS", 0.2)
    path = _file_of(catalog)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with (
        Catalog.open(f"sqlite:///{path}") as impatient,
        pytest.raises(BusyError, match="another process"),
        impatient.writing(),
    ):
        pass
    blocker.close()


def test_threads_take_turns(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfsd.catalog.engine.BUSY_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as other:

        def write() -> None:
            with catalog.writing() as change:
                add_file(change, "theirs")

        with catalog.writing() as change:
            add_file(change, "ours")
            with pytest.raises(BusyError, match="another thread"):
                other.submit(write).result()
        other.submit(write).result()
        with catalog.reading() as seen:
            assert [name for name, _ in seen.tree.children(ROOT)] == ["ours", "theirs"]


def test_busy_connection_pool_suggests_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vfsd.catalog.engine.BUSY_SECONDS", 0.2)
    with new_catalog(tmp_path / "catalog.sqlite3") as catalog:
        with ExitStack() as kept:
            for _ in range(64):  # all connections of the pool
                kept.enter_context(catalog.reading())
            with pytest.raises(BusyError, match="no free connection"):
                catalog.video("a.mp4")
        assert len(catalog.find()) == 0


def test_changes_by_other_processes_are_noticed(catalog: Catalog) -> None:
    watch = catalog.watch()
    watch.changed()
    assert not watch.changed()
    with catalog.writing() as change:
        add_file(change, "x")
    assert watch.changed()
    assert not watch.changed()
    watch.close()


def test_unreadable_change_counter_counts_as_changed(catalog: Catalog) -> None:
    """Watching raises the error; an earlier change still succeeds."""
    with closing(catalog.watch()) as watch:
        watch.changed()
        with catalog.writing() as change:
            add_file(change, "x")
        with closing(sqlite3.connect(_file_of(catalog))) as raw, raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()
        file = Path(_file_of(catalog))
        whole = file.read_bytes()
        with open(file, "r+b") as damaged:
            damaged.write(bytes(100))
        assert watch.changed()
        assert watch.changed()
        with open(file, "r+b") as mended:
            mended.write(whole[:100])
        watch.changed()
        assert not watch.changed()


def test_damage_is_found(catalog: Catalog, tmp_path: Path) -> None:
    with catalog.writing() as change:
        add_video(change, "a.mp4")
    assert catalog.damage() == []
    with closing(sqlite3.connect(_file_of(catalog))) as raw, raw:
        raw.execute("DELETE FROM objects")
    raw.close()
    assert any("objects" in line for line in catalog.damage())


# ------------------------------------------------------------------------------- the schema


def test_every_table_and_column_is_documented() -> None:
    from vfsd.catalog.schema import metadata

    for schema_table in metadata.tables.values():
        assert schema_table.comment, schema_table.name
        for column in schema_table.columns:
            assert column.comment, f"{schema_table.name}.{column.name}"


def test_the_catalog_runs_on_postgresql(own_database: str) -> None:
    with Catalog.create(own_database) as there:
        with there.writing() as change:
            video = add_video(change, "cam1/a.mp4")
            change.tree.set_xattr(video.ino, b"user.k", b"v")
        there.tag(video, "night")
        there.set_metadata(video, lane=3)
        found = there.find("cam1/*", tags={"night"}, metadata={"lane": 3}, seconds=(1, 9)).first()
        assert found is not None
        assert found.original == video.original
        assert len(there.frame_table(found.original)) == 100
        assert there.watch().changed()
        one = LoggedRead(
            id=0,
            video_id=video.id,
            at_ns=5,
            kind="scan",
            first_frame=3,
            end_frame=9,
            frames=2,
            region=Rect(0, 0, 20, 10),
            size=None,
            labels=(("car", "truck"), ("red",)),
            pixels=5_000_000_000,
            untiled_pixels=6_000_000_000,
            predicted=0.5,
            untiled_predicted=0.75,
            seconds=0.25,
            segments=1,
            tiles=2,
            original_frames=0,
        )
        there.note_reads([(video.digest, one), (video.digest, one), ("cd" * 32, one)], keep=9)
        noted = list(there.reads(video, since=5))
        assert [dataclasses.replace(read, id=0) for read in noted] == [one, one]
        (area,) = there.read_areas(video, range(8, 20))
        assert (area.region, area.labels, area.reads) == (one.region, one.labels, 2)
        assert there.read_areas(video, range(9, 20)) == []
        with there.writing() as change:
            change.tree.unlink(change.tree.resolve("cam1").ino, "a.mp4", now_ns=1)
            change.tree.delete(video.ino)
            assert change.objects.forget_unreferenced() == ["ab" * 32]
        assert there.find().names() == []


def test_file_that_is_not_a_database_is_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite3"
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(IntegrityError, match="damaged"):
        Catalog.open(f"sqlite:///{path}")


def test_large_wal_is_truncated(catalog: Catalog) -> None:
    def write(times: int) -> None:
        for number in range(times):
            with catalog.writing() as change:
                change.tree.set_xattr(ROOT, b"user.x", bytes([number % 256]) * 60_000)

    with catalog.reading() as seen, ThreadPoolExecutor(1) as other:
        seen.tree.node(ROOT)  # from now on the log must keep everything
        other.submit(write, 400).result()
        assert catalog.log_bytes() > LOG_BYTES
    write(2)
    assert 0 < catalog.log_bytes() <= LOG_BYTES


def test_exception_of_a_signal_handler_passes_through_a_statement(
    catalog: Catalog,
) -> None:
    class OutOfTimeError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise OutOfTimeError

    sa.event.listen(catalog._database.engine, "do_execute", interrupt)
    with pytest.raises(OutOfTimeError):
        list(catalog.find())
    sa.event.remove(catalog._database.engine, "do_execute", interrupt)
    assert list(catalog.find()) == []


# --------------------------------------------------------------------------------------------------
# More values than a database takes in one statement


MANY = 700
_VARIABLES = 600
"""A low limit of SQL variables for SQLite, so that tests exceed it soon."""


@contextmanager
def writing(catalog: Catalog) -> Iterator[Transaction]:
    with catalog.writing() as change:
        driver = change.tree._connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, _VARIABLES)
        yield change


@pytest.mark.parametrize("all_of_them", [True, False])
def test_unreferenced_objects(catalog: Catalog, all_of_them: bool) -> None:
    keys = [f"{number:064x}" for number in range(MANY)]
    with writing(catalog) as change:
        kept = add_video(change, "a.mp4", key="f" * 64)
        for key in keys:
            change.objects.record(key, 1, now_ns=1)
        asked = None if all_of_them else [*keys, kept.digest]
        assert sorted(change.objects.forget_unreferenced(asked)) == keys
        assert change.objects.sizes().keys() == {kept.digest}


@pytest.mark.thorough
def test_segments(catalog: Catalog) -> None:
    with writing(catalog) as change:
        video = add_video(change, "a.mp4", key="f" * 64, frames=MANY)
        numbers = [one.id for one in add_segments(change, video, MANY, role=Role.JOINED)]
        change.segments.retire(numbers, now_ns=9)
        change.tiling_decisions.note_undone(numbers, now_ns=9)
        assert all(one.retired_ns == 9 for one in change.segments.all())
        change.segments.restore(numbers)
        assert all(one.retired_ns is None for one in change.segments.all())
        assert {one.id for one in change.segments.sharing(numbers)} == set(numbers)
        change.segments.delete(numbers)
        assert change.segments.all() == []
        assert change.videos.physicals(video.id) == [video.original]


def test_pins(catalog: Catalog) -> None:
    with writing(catalog) as change:
        video = add_video(change, "a.mp4", frames=MANY)
        pins = [
            change.derived_usage.pin(Pin(0, video.id, range(at, at + 1), None, None, 1))
            for at in range(MANY)
        ]
        change.derived_usage.unpin(one.id for one in pins)
        assert change.derived_usage.pins(None) == []


@pytest.mark.thorough
def test_find_takes_linear_time(catalog: Catalog) -> None:
    steps = []
    for start, stop in ((0, 100), (100, 200)):
        with catalog.writing() as change:
            for number in range(start, stop):
                video = add_video(change, f"{number}.mp4", key=f"{number:064x}", frames=1)
                change.videos.add_tags(video.id, ["all", "night"])
                change.videos.set_metadata(video.id, {"site": 3})
        with catalog.reading() as seen, counted(seen.tree._connection) as found:
            query = VideoQuery(
                lambda: nullcontext(seen.tree._connection),
                VideoFilter(tags=frozenset({"all", "night"}), metadata={"site": 3}),
            )
            assert len(query) == stop
        steps.append(found.count)
    assert steps[1] < 2.2 * steps[0]
