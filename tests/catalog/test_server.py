"""A catalog on a server: waiting, missing write permission, and error messages."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.catalog_rows import add_file, add_video
from tests.support.forking import exit_code_of_child
from tests.support.postgresql import PostgresqlServer
from vfsd.api.store import Store
from vfsd.catalog import ROOT, Catalog
from vfsd.catalog.database_url import has_password, redacted_url, require_database
from vfsd.catalog.schema import metadata, tags
from vfsd.catalog.server_connections import ChangeCounter, HostChanges
from vfsd.errors import (
    BusyError,
    ExistsError,
    NoSpaceError,
    NoStoreError,
    ReadOnlyError,
    StoreError,
    UnreachableError,
    UsageError,
)
from vfsd.mount.fuse import callback_context
from vfsd.mount.mount_log import RepeatFilter

_SECRET = "hunter2"


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def run(url: str, *statements: str) -> None:
    with connected(url) as connection, connection.begin():
        for one in statements:
            connection.exec_driver_sql(one)


def as_user(url: str, name: str) -> str:
    return url.replace("//vfsd@", f"//{name}@")


def test_waiting_for_another_writer_times_out(own_database: str) -> None:
    with Catalog.create(own_database) as there, connected(own_database) as other:
        with other.begin():
            other.exec_driver_sql("SELECT * FROM alembic_version FOR UPDATE")
            with (
                pytest.raises(BusyError, match=r"writing to the catalog for 0\.3 seconds"),
                there.writing(patience=0.3),
            ):
                pass
        with there.writing(patience=0.3) as change:
            add_file(change, "a")


def test_log_entry_does_not_wait_for_a_locked_row(own_database: str) -> None:
    with Catalog.create(own_database) as there, connected(own_database) as other, other.begin():
        other.exec_driver_sql("LOCK TABLE reads IN ACCESS EXCLUSIVE MODE")
        with (
            pytest.raises(BusyError, match="for 1 seconds"),
            there._database.unwatched_writing() as connection,
        ):
            connection.exec_driver_sql("DELETE FROM reads")


def test_log_entry_waits_for_the_write_lock(own_database: str) -> None:
    with Catalog.create(own_database) as there, Catalog.open(own_database) as other:
        with there.writing() as change:
            add_file(change, "a")
            with (
                pytest.raises(BusyError, match="for 1 seconds"),
                other._database.unwatched_writing(),
            ):
                pass
        with (
            other._database.unwatched_writing(),
            pytest.raises(BusyError),
            there.writing(patience=0.3),
        ):
            pass


def test_nested_write_of_one_thread_is_refused(there: Catalog) -> None:
    with there.writing() as change:
        add_file(change, "a")
        with pytest.raises(AssertionError, match="would deadlock"), there.writing(patience=1):
            pass
        with pytest.raises(BusyError, match="this thread"), there._database.unwatched_writing():
            pass
    with there.writing() as change:
        add_file(change, "b")


def test_threads_take_turns(there: Catalog) -> None:
    def make(number: int) -> None:
        with there.writing() as change:
            add_file(change, f"{number}")

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    with there.reading() as seen:
        assert len(seen.tree.children(ROOT)) == 8


def test_waiting_threads_leave_connections_to_the_writer(own_database: str) -> None:
    with Catalog.create(own_database) as there:
        failed: list[BaseException] = []

        def make(number: int) -> None:
            try:
                with there.writing(patience=20) as change:
                    assert there.find().names() == []
                    add_file(change, f"{number}")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(20)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert failed == []
        with there.writing(), ThreadPoolExecutor(1) as pool:

            def write() -> None:
                with there.writing(patience=0.2):
                    pass

            with pytest.raises(BusyError, match="another thread"):
                pool.submit(write).result()


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (tags.insert().values(video_id=1, tag="night"), True),
        (tags.insert().values(video_id=1, tag="night").returning(tags.c.tag), True),
        (tags.update().where(tags.c.tag == "old").values(tag="new"), True),
        (tags.delete(), True),
        (sa.text("DELETE FROM tags"), True),
        (sa.text(" insert into tags values (1, 'night')"), True),
        (sa.text("WITH gone AS (DELETE FROM tags RETURNING tag) SELECT * FROM gone"), True),
        (sa.text("CREATE TABLE other (id int)"), True),
        (tags.update().where(tags.c.tag == "none").values(tag="new"), False),
        (sa.text("DELETE FROM tags WHERE tag = 'none'"), False),
        (sa.select(tags), False),
        (sa.text("SELECT * FROM tags"), False),
    ],
)
def test_changes_are_counted(own_database: str, change: sa.Executable, counts: bool) -> None:
    with Catalog.create(own_database) as there:
        with there.writing() as first:
            video = add_video(first, "a.mp4")
            first.videos.add_tags(video.id, ["old"])
        with closing(there.watch()) as watch:
            watch.changed()
            with there._database.writing() as connection:
                connection.execute(change)
            assert watch.changed() == counts


def test_missing_write_permission_is_reported(own_database: str) -> None:
    with Catalog.create(own_database) as there, there.writing() as change:
        add_video(change, "a.mp4")
    run(
        own_database,
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    )
    with Catalog.open(as_user(own_database, "reader")) as there:
        video = there.video("a.mp4")
        with pytest.raises(ReadOnlyError, match="lacks a privilege") as caught:
            there.tag(video, "night")
        assert "GRANT" in str(caught.value.hint)
    run(
        own_database,
        "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO reader",
    )
    with Catalog.open(as_user(own_database, "reader")) as there:
        with there.writing() as change:
            add_video(change, "b.mp4", key="b" * 64)
        assert there.tag(video, "night").tags == {"night"}
    run(own_database, "DROP OWNED BY reader", "DROP ROLE reader")
    name = sa.make_url(own_database).database
    run(own_database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with (
        Catalog.open(own_database) as there,
        pytest.raises(ReadOnlyError, match="is read-only"),
    ):
        there.tag(video, "night")


def test_granted_rights_apply_to_later_tables(own_database: str) -> None:
    to_come = "ALTER DEFAULT PRIVILEGES FOR ROLE vfsd IN SCHEMA public GRANT"
    run(
        own_database,
        "DROP ROLE IF EXISTS worker",
        "CREATE ROLE worker LOGIN",
        f"{to_come} SELECT, INSERT, UPDATE, DELETE ON TABLES TO worker",
        f"{to_come} USAGE ON SEQUENCES TO worker",
    )
    with Catalog.create(own_database):
        pass
    with Catalog.open(as_user(own_database, "worker")) as there:
        with there.writing() as change:
            add_video(change, "a.mp4")
        assert there.tag(there.video("a.mp4"), "night").tags == {"night"}
    run(own_database, "DROP OWNED BY worker", "DROP ROLE worker")


@pytest.mark.parametrize(
    "change",
    [
        ("/postgres?", "/fullhd?"),
        ("/postgres?", "/busy_street?"),
        ("//vfsd@", "//unlocked@"),
        ("host=", "host=/nowhere"),
    ],
)
def test_refused_connection_is_reported(
    postgresql: PostgresqlServer, change: tuple[str, str]
) -> None:
    """Error words within names must not matter."""
    with pytest.raises(UnreachableError, match="cannot be reached") as caught:
        Catalog.open(postgresql.url.replace(*change))
    assert "pgpass" in str(caught.value.hint)


def test_server_out_of_connections(own_database: str) -> None:
    """The server answers, but without an error code before a connection exists."""
    with Catalog.create(own_database):
        pass
    run(own_database, "DROP ROLE IF EXISTS late", "CREATE ROLE late LOGIN CONNECTION LIMIT 0")
    with pytest.raises(BusyError, match=r"has no connection left.*late") as caught:
        Catalog.open(as_user(own_database, "late"))
    assert "max_connections" in str(caught.value.hint)
    run(own_database, "DROP ROLE late")


def test_unknown_driver_options_are_refused(own_database: str) -> None:
    with pytest.raises(StoreError, match='invalid connection option "foo"'):
        Catalog.open(own_database + "&foo=bar")


def test_connection_ended_by_the_server(
    own_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = sa.make_url(own_database).database
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' "
    with Catalog.create(own_database) as there:

        def look() -> None:
            with there._database.reading() as connection:
                run(own_database, end + "AND pid <> pg_backend_pid()")
                connection.exec_driver_sql("SELECT 1")

        with pytest.raises(UnreachableError, match="is gone") as caught:
            look()
        assert "continue" in str(caught.value.hint)
        with caplog.at_level("INFO"):
            assert [len(there.find()) for _ in range(2)] == [0, 0]  # it reconnects by itself
        assert [one.message for one in caplog.records] == ["the catalog's server answers again"]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("25P03", UnreachableError, "closed a connection"),
        ("53100", NoSpaceError, "full"),
        ("53300", BusyError, "no connection left"),
        ("40001", BusyError, "at the same time"),
        ("40P01", BusyError, "at the same time"),
        ("57014", BusyError, "cancelled the statement"),
        ("57P01", UnreachableError, "is gone"),
        ("28P01", UnreachableError, "password"),
        ("42501", ReadOnlyError, "lacks a privilege"),
    ],
)
def test_server_errors_are_mapped_by_code(
    own_database: str, code: str, kind: type[Exception], words: str
) -> None:
    raising = f"DO $$ BEGIN RAISE 'locked, busy, full' USING ERRCODE = '{code}'; END $$"
    with Catalog.create(own_database) as there:
        with pytest.raises(kind, match=words) as caught, there._database.reading() as connection:
            connection.exec_driver_sql(raising)
        assert type(caught.value) is kind


def test_programming_errors_are_not_mapped(own_database: str) -> None:
    with (
        Catalog.create(own_database) as there,
        pytest.raises(sa.exc.ProgrammingError),
        there._database.reading() as connection,
    ):
        connection.exec_driver_sql("SELECT busy FROM locked")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://u:{_SECRET}@h/d",
        f"postgresql+psycopg://h/d?password={_SECRET}&user=u",
        f"postgresql+psycopg://h/d?sslpassword={_SECRET}&passfile=/{_SECRET}",
    ],
)
def test_passwords_are_not_shown(url: str) -> None:
    assert has_password(url)
    assert _SECRET not in redacted_url(url)
    assert "***" in redacted_url(url)


@pytest.mark.parametrize("login", [f"u:pa@ss:{_SECRET}", f"u:pa@{_SECRET}", f"u:a@b@{_SECRET}:1"])
def test_unquoted_at_sign_in_password_is_refused_and_redacted(login: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_database(f"postgresql+psycopg://{login}@h/d")
    assert "%40" in str(caught.value.hint)
    assert _SECRET not in "".join(traceback.format_exception(caught.value))


def test_urls_without_a_password_are_shown() -> None:
    for url in ("postgresql+psycopg://u@h/d?sslmode=require", "sqlite:////a/b c.sqlite3"):
        assert not has_password(url)
        assert redacted_url(url) == url


def test_passwords_are_redacted_in_errors(own_database: str, tmp_path: Path) -> None:
    url = f"{own_database}&password={_SECRET}"
    with pytest.raises(NoStoreError) as caught:
        Catalog.open(url)
    assert _SECRET not in str(caught.value)
    assert "pg_restore" in str(caught.value.hint)
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    with Store.create(folder, catalog_url=url) as store:
        assert "password=***" in repr(store.catalog)
    assert stat.S_IMODE((folder / "vfsd-store.json").stat().st_mode) == 0o600
    with pytest.raises(ExistsError, match=re.escape("password=***")):
        Store.create(tmp_path / "other", catalog_url=url)


def test_lost_connection_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.addFilter(sparing := RepeatFilter())
    try:
        for number in range(5):
            gone = UnreachableError(f"gone for {number} seconds")
            assert callback_context.errno_of(gone, "getattr", f"/{number}".encode()) == errno.EIO
        for name in (b"/a", b"/b"):
            callback_context.errno_of(NoSpaceError("full"), "write", name)
    finally:
        caplog.handler.removeFilter(sparing)
    said = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert said == ["getattr '/0': gone for 0 seconds", "write '/a': full", "write '/b': full"]


def test_silent_server_counts_as_lost(own_database: str) -> None:
    def told(url: str) -> dict[str, str]:
        with Catalog.create(url) as there, there._database.reading() as connection:
            driver: Any = connection.connection.driver_connection
            found: dict[str, str] = driver.info.get_parameters()
            return found

    usual = told(own_database)
    assert (usual["keepalives_idle"], usual["tcp_user_timeout"]) == ("30", "60000")
    asked = told(f"{own_database}&keepalives_idle=7")
    assert (asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("7", "60000")


def test_sql_views_escape_names_of_any_bytes(own_database: str) -> None:
    odd = {
        b"a\xffb": "a\\377b",
        b"\xed\xa0\x80": "\\355\\240\\200",  # half of a character
        b"\xc0\xaf": "\\300\\257",  # a slash, at greater length
        b"\xf4\x90\x80\x80": "\\364\\220\\200\\200",  # beyond the last one
        b"back\\slash\xff": "back\\\\slash\\377",
    }
    whole = ["a.mp4", "back\\slash", "é", "\u0800", "\ud7ff", "\uffff", "\U00010000", "\U0010ffff"]
    with Catalog.create(own_database) as there:
        with there.writing() as change:
            for name in [*map(os.fsdecode, odd), *whole]:
                add_file(change, f"folder/{name}")
            add_video(change, "folder/\udcff/video.mp4")
        with there._database.reading() as connection:
            told = connection.exec_driver_sql("SELECT path FROM v_files").scalars().all()
            videos = connection.exec_driver_sql("SELECT name FROM v_videos").scalars().all()
            for view in sa.inspect(connection).get_view_names():
                connection.exec_driver_sql(f"SELECT * FROM {view}").all()
    names = [*odd.values(), *whole, "\\377", "\\377/video.mp4"]
    assert sorted(told) == sorted(["folder", *(f"folder/{name}" for name in names)])
    assert videos == ["folder/\\377/video.mp4"]


def test_server_has_comments_on_tables_and_columns(own_database: str) -> None:
    Catalog.create(own_database).close()
    with connected(own_database) as connection:
        inspector = sa.inspect(connection)
        for table in metadata.sorted_tables:
            assert inspector.get_table_comment(table.name)["text"] == table.comment
            told = {one["name"]: one["comment"] for one in inspector.get_columns(table.name)}
            assert told == {column.name: column.comment for column in table.columns}, table.name


@pytest.mark.thorough
def test_processes_of_a_home_ask_the_server_together(own_database: str, tmp_path: Path) -> None:
    """Counted for processes that look for changes all the time."""
    seconds, processes = 3.0, 6
    Catalog.create(own_database).close()

    def asked(share: bool) -> int:
        results = tmp_path / f"asked-{share}"
        results.mkdir()

        def look(number: int) -> None:
            with closing(Catalog.open(own_database, staleness=1.0)) as catalog:
                if share:
                    catalog.share_changes(tmp_path / "changes")
                count = 0
                counter = catalog._database.server.counter
                ask = counter._ask

                def counted() -> int:
                    nonlocal count
                    count += 1
                    return ask()

                counter.number()
                counter._ask = counted
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    counter.number()
                    time.sleep(0.005)
                (results / str(number)).write_text(str(count))

        with ThreadPoolExecutor(processes) as threads:
            looks = [partial(look, number) for number in range(processes)]
            assert list(threads.map(exit_code_of_child, looks)) == [0] * processes
        return sum(int(one.read_text()) for one in results.iterdir())

    assert asked(share=True) <= asked(share=False) * 2 / 3


def test_answers_of_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    answers = iter(range(10, 20))
    one, other = (ChangeCounter(lambda: next(answers), 60.0) for _ in range(2))
    one.host = other.host = HostChanges(path)
    assert (one.number(), other.number()) == (10, 10)
    assert one.number(now=True) == 11  # asks in any case
    third = ChangeCounter(lambda: next(answers), 60.0)
    third.host = HostChanges(path)
    third.note_own(12)
    assert third.number() == 12  # the answer in the file is from before its commit
    for damage in (b"", b"short", os.urandom(20), None):
        if damage is None:
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(damage)
        fresh = ChangeCounter(lambda: next(answers), 60.0)
        fresh.host = HostChanges(path)
        before = fresh.number()
        assert before is not None
        assert before > 12
