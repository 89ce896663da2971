"""Homes: making them, recognising copies and moved directories, and their commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from sample_videos import FOLDER
from tests.cli.conftest import Result, run_command
from vfsd.api.store import Store
from vfsd.core.model import FileState
from vfsd.errors import (
    BusyError,
    ExistsError,
    NoStoreError,
    NotFoundError,
    StoreError,
    StoreVersionError,
    UsageError,
)
from vfsd.maintenance import fsck
from vfsd.maintenance.homes import claim_home, forget_home, list_homes
from vfsd.storage.homes import join_store, mount_lease
from vfsd.write.tree_edits import put_file
from vfsd.write.unfinished_files import create_partial

CLIP = FOLDER / "traffic.mp4"
_MARKER = "vfsd-store.json"


@pytest.fixture
def first(tmp_path: Path, own_database: str) -> Path:
    """The directory of a store with its catalog on a server."""
    Store.create(tmp_path / "first", catalog_url=own_database).close()
    return tmp_path / "first"


def _execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def _marker(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / _MARKER).read_text())
    return found


def _put(store: Store, name: str, data: bytes) -> None:
    with store.parts.objects.new_file() as new:
        new.file.write(data)
        put_file(store.parts, new, name)


def test_second_store_is_refused(first: Path, tmp_path: Path, own_database: str) -> None:
    with pytest.raises(ExistsError, match="already a catalog") as caught:
        Store.create(tmp_path / "second", catalog_url=own_database)
    assert "vfsd join" in str(caught.value.hint)
    assert not (tmp_path / "second").exists()


def test_joined_home_shares_videos(first: Path, tmp_path: Path, own_database: str) -> None:
    second = tmp_path / "second"
    with Store.open(first) as store:
        store.ingest(CLIP, "of-first.mp4")
        _put(store, "note.txt", b"only there")
    join_store(second, own_database, None)
    assert _marker(first)["format"] == 1
    assert "home" not in _marker(first)
    assert _marker(second)["format"] == 2
    assert _marker(second)["id"] == _marker(first)["id"]
    with Store.open(second) as store:
        store.ingest(CLIP, "of-second.mp4")
        assert list(store) == ["of-first.mp4", "of-second.mp4"]
        assert len(store["of-first.mp4"].read(frames=[3])) == 1
        with pytest.raises(BusyError, match=r"'note.txt' is in home .* on "):
            store.parts.private_file(store.node("note.txt"))
        assert [(one.is_own, one.files) for one in list_homes(store.parts)] == [
            (False, 1),
            (True, 0),
        ]
    with Store.open(first) as store:
        node = store.node("note.txt")
        assert store.parts.private_file(node).read_bytes() == b"only there"
        assert (node.state, node.home) == (FileState.PLAIN, _marker(first)["id"])
        assert store.node("of-second.mp4").home is None


def test_joining_with_given_objects(first: Path, tmp_path: Path, own_database: str) -> None:
    with Store.open(first) as store:
        store.ingest(CLIP, "a.mp4")
    (tmp_path / "empty").mkdir()
    for objects in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(UsageError):
            join_store(tmp_path / "second", own_database, objects)
    assert not (tmp_path / "second").exists()
    join_store(tmp_path / "second", own_database, first / "objects")
    _execute(own_database, "UPDATE homes SET host = 'elsewhere'")
    with pytest.raises(UsageError, match="must be given"):
        join_store(tmp_path / "third", own_database, None)


def test_catalogs_that_cannot_be_joined(tmp_path: Path, own_database: str) -> None:
    Store.create(tmp_path / "local").close()
    url = f"sqlite:///{tmp_path}/local/catalog.sqlite3"
    with pytest.raises(UsageError, match="PostgreSQL"):
        join_store(tmp_path / "second", url, None)
    with pytest.raises(NoStoreError):
        join_store(tmp_path / "second", own_database, None)
    with pytest.raises(UsageError):
        claim_home(tmp_path / "local")
    with Store.open(tmp_path / "local") as store:
        assert list_homes(store.parts) == []
        assert store.catalog.home is None


def test_store_of_an_older_version_can_be_joined(
    first: Path, tmp_path: Path, own_database: str
) -> None:
    _execute(own_database, "DELETE FROM homes")
    join_store(tmp_path / "second", own_database, first / "objects")
    for path in (first, tmp_path / "second"):
        with Store.open(path) as store:
            assert len(list_homes(store.parts)) == 2


def test_older_vfsd_refuses_a_joined_home(
    first: Path, tmp_path: Path, own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    join_store(tmp_path / "second", own_database, None)
    monkeypatch.setattr("vfsd.disk.store_layout.SHARED_FORMAT", 1)
    with pytest.raises(StoreVersionError, match="format 2") as caught:
        Store.open(tmp_path / "second")
    assert caught.value.exit_code == 11


def test_copy_is_refused(first: Path, tmp_path: Path, own_database: str) -> None:
    with Store.open(first) as store:
        store.ingest(CLIP, "a.mp4")
        _put(store, "note.txt", b"first")
    copy = tmp_path / "copy"
    shutil.copytree(first, copy, symlinks=True)
    with pytest.raises(StoreError, match=rf"is a copy of the home in {first} on ") as caught:
        Store.open(copy)
    assert "vfsd join" in str(caught.value.hint)
    with Store.open(copy, read_only=True) as store:
        assert len(store["a.mp4"].read(frames=[0])) == 1
        with pytest.raises(BusyError, match="is in home"):
            store.parts.private_file(store.node("note.txt"))
    Store.open(first).close()


@contextmanager
def _opened_somewhere(path: Path) -> Iterator[None]:
    with Store.open(path) as store:
        assert len(list_homes(store.parts)) == 1
        yield


def test_moved_directory_goes_on_working(first: Path, tmp_path: Path) -> None:
    with Store.open(first) as store:
        _put(store, "note.txt", b"first")
    moved = first.rename(tmp_path / "moved")
    for read_only in (True, False):
        with Store.open(moved, read_only=read_only) as store:
            node = store.node("note.txt")
            assert store.parts.private_file(node).read_bytes() == b"first"
    # To another disk: every inode changes.
    copy = tmp_path / "other-disk"
    shutil.copytree(moved, copy, symlinks=True)
    shutil.rmtree(moved)
    with Store.open(copy) as store:
        assert store.parts.private_file(store.node("note.txt")).read_bytes() == b"first"
        assert [one.home.place for one in list_homes(store.parts)] == [str(copy)]


def test_directory_with_two_paths_is_one_home(first: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(first)
    for path in (tmp_path / "link", first):
        with _opened_somewhere(path):
            pass


def test_directory_from_another_machine_must_be_claimed(first: Path, own_database: str) -> None:
    _execute(own_database, "UPDATE homes SET machine = 'other', host = 'elsewhere'")
    with pytest.raises(StoreError, match="on elsewhere") as caught:
        Store.open(first)
    assert "homes claim" in str(caught.value.hint)
    claimed = claim_home(first)
    assert claimed.place == str(first)
    Store.open(first).close()


def test_container_without_a_machine_id_keeps_its_home(first: Path, own_database: str) -> None:
    _execute(own_database, "UPDATE homes SET machine = '', host = 'name-of-the-last-start'")
    Store.open(first).close()


def test_mounted_home_is_neither_claimed_nor_forgotten(
    first: Path, tmp_path: Path, own_database: str
) -> None:
    join_store(tmp_path / "second", own_database, None)
    with Store.open(first) as store, Store.open(tmp_path / "second") as other:
        home = store.parts.directory.home
        with mount_lease(store.parts, tmp_path / "mnt"):
            for action in (lambda: claim_home(first), lambda: forget_home(other.parts, home)):
                with pytest.raises(BusyError, match="mounted at"):
                    action()
        with pytest.raises(UsageError, match="itself"):
            forget_home(store.parts, home)
        with pytest.raises(NotFoundError):
            forget_home(store.parts, "unknown")
        forget_home(other.parts, home)
    with pytest.raises(StoreError, match="was removed from the catalog"):
        Store.open(first)
    with pytest.raises(NotFoundError, match="no home"):
        claim_home(first)


def test_recordings_of_a_forgotten_home_are_kept(
    first: Path, tmp_path: Path, own_database: str
) -> None:
    join_store(tmp_path / "second", own_database, None)
    with Store.open(tmp_path / "second") as gone:
        home = gone.parts.directory.home
        partial = create_partial(gone.parts.objects, "lost.mp4")
        partial.path.write_bytes(CLIP.read_bytes())
        partial.keep_for_recovery()
    with Store.open(first) as store:
        assert store.recordings() == []
        assert not list(fsck.run(store.parts, repair=True))
        forget_home(store.parts, home)
        (recording,) = store.recordings()
        assert store.recover(recording).name == "lost.mp4"
        assert not list(fsck.run(store.parts))
        assert not (store.parts.directory.objects / f"tmp-{home}").exists()


def test_interrupted_join_can_be_repeated(
    first: Path, tmp_path: Path, own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError("no power")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="no power"):
            join_store(tmp_path / "second", own_database, None)
    with pytest.raises(NoStoreError):
        Store.open(tmp_path / "second")
    join_store(tmp_path / "second", own_database, None)
    with Store.open(tmp_path / "second") as store:
        assert len(list_homes(store.parts)) == 2


def test_lease_is_taken_over_only_when_it_has_expired(
    first: Path, tmp_path: Path, own_database: str
) -> None:
    with Store.open(first) as store, Store.open(first) as other:
        with mount_lease(store.parts, tmp_path / "a"):
            _execute(own_database, "UPDATE mounts SET machine = 'other'")
            with (
                pytest.raises(BusyError, match=r"mounted at .*/a on .* s ago"),
                mount_lease(other.parts, tmp_path / "b"),
            ):
                pass
            store.ingest(CLIP, "a.mp4")
            _execute(own_database, "UPDATE mounts SET beat = beat - interval '61 seconds'")
            store.catalog.require_lease()
            with mount_lease(other.parts, tmp_path / "b"):
                for change in (
                    lambda: store.ingest(CLIP, "b.mp4"),
                    store.catalog.require_lease,
                ):
                    with pytest.raises(StoreError, match="taken over"):
                        change()
                other.ingest(CLIP, "c.mp4")
        assert list(other) == ["a.mp4", "c.mp4"]


def test_heartbeat_does_not_wait_for_writers(first: Path, tmp_path: Path) -> None:
    with Store.open(first) as store, Store.open(first) as other:
        lease = store.catalog.take_lease(list_homes(store.parts)[0].home, str(tmp_path))
        with other.catalog.writing():
            lease.beat()
        lease.release()


def test_commands(first: Path, tmp_path: Path, own_database: str) -> None:
    second = tmp_path / "second"
    joined = run_command("join", second, "--catalog", own_database, "--json").object
    home = joined["home"]
    assert joined["store"] == str(second)
    assert (joined["id"], home) == (_marker(first)["id"], _marker(second)["home"])
    with Store.open(second) as store:
        _put(store, "note.txt", b"of the second")

    def run(*args: str) -> Result:
        return run_command("-s", first, *args)

    assert [(one["own"], one["files"], one["mount"]) for one in run("homes", "--json").objects] == [
        (True, 0, None),
        (False, 1, None),
    ]
    assert "(here)" in run("homes").out
    reason = run("info", "note.txt", "--json").object["reason"]
    assert reason.startswith(f"is in home {home} on ")
    assert "1 file is in home" in run("fsck").err
    assert str(_marker(first)["id"]) in run("stats").out
    assert "one of several" in run("doctor").out
    listed = run("homes", "forget", home)
    assert listed.out == "note.txt\n"
    assert "--yes" in listed.err
    (removed,) = run("homes", "forget", home, "--yes", "--json").objects
    assert (removed["name"], removed["removed"]) == ("note.txt", True)
    with Store.open(first) as store, pytest.raises(NotFoundError):
        store.node("note.txt")
    assert run("homes", "claim").out.endswith(f"{first}\n")
