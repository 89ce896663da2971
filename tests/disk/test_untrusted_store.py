"""A store from an untrusted source: its names must not lead outside of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.model import ByteLocation
from vfsd.derive.promotion_candidates import CandidateIndex
from vfsd.disk.checksums import BlockChecksums
from vfsd.disk.disk_reserve import keep_reserve
from vfsd.errors import IntegrityError, StoreError
from vfsd.maintenance import fsck
from vfsd.maintenance.backup import back_up
from vfsd.maintenance.restore import restore
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount.fs import Filesystem
from vfsd.mount.fs.posix import Caller
from vfsd.storage.file_cache import FileCache, cache_file_name

KEYS = (
    "../../../etc/passwd",
    "/etc/passwd",
    "..",
    "",
    "ab",
    "AB" * 32,
    "ab" * 32 + "/..",
    "\0" * 64,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("this must never be read")
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "portrait.mp4", "v.mp4")
    return tmp_path / "store"


def test_keys_must_be_hashes(place: Path) -> None:
    with Store.open(place) as store:
        for key in KEYS:
            with pytest.raises(IntegrityError, match="name must be its hash"):
                store.parts.objects.path(key)


def test_path_outside_the_store_in_a_catalog_is_not_read(place: Path) -> None:
    with Store.open(place) as store:
        node = store.node("v.mp4")
        with store.catalog.writing() as change:
            key = "../../secret"
            change.objects.record(key, 23, now_ns=1)
            change.tree.update(node.ino, object_key=key)
        filesystem = Filesystem(store.parts)
        try:
            with pytest.raises(IntegrityError):
                filesystem.open("/v.mp4", os.O_RDONLY, Caller(0, 0))
        finally:
            filesystem.close()


def test_fsck_reports_invalid_objects(place: Path) -> None:
    with Store.open(place) as store:
        junk = store.parts.objects.path("ab" * 32).with_name("junk")
        junk.parent.mkdir(exist_ok=True)
        junk.touch()
        with store.catalog.writing() as change:
            change.objects.record("../../secret", 23, now_ns=1)
        told = [finding.message for finding in fsck.run(store.parts)]
        assert any(
            "an object's name must be its hash, got '../../secret'" in message for message in told
        )
        assert any("junk must be named by a hash" in message for message in told)
        fsck.collect(store.parts)
        assert not junk.exists()
        assert not fsck.run(store.parts)
    assert (place.parent / "secret").exists()


def test_symlinks_in_place_of_objects_are_not_followed(place: Path, tmp_path: Path) -> None:
    with Store.open(place) as store:
        node = store.node("v.mp4")
        path = store.parts.objects.path(node.object_key or "")
        path.unlink()
        path.symlink_to(tmp_path / "secret")
        filesystem = Filesystem(store.parts)
        try:
            plain = filesystem.create("/plain", 0o644, os.O_RDWR, Caller(0, 0))
            filesystem.write(plain, b"x", 0)
            filesystem.release(plain)
            filesystem.settle()
            spooled = store.parts.directory.spool_file(store.node("plain").ino)
            spooled.unlink()
            spooled.symlink_to(tmp_path / "secret")
            for name in ("/v.mp4", "/plain"):
                with pytest.raises(OSError, match="symbolic links"):
                    filesystem.open(name, os.O_RDONLY, Caller(0, 0))
        finally:
            filesystem.close()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with a user's own files."""
    docs = tmp_path / "docs"
    for name in ("thesis.doc", "7", "1.copy", "tmp/letter", "ab/photo.jpg", "de/index.html"):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_bytes(b"precious" * 1000)
    return docs


def held(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def let_lead(path: Path, target: Path) -> None:
    """Replace a path by a symbolic link."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize(
    "name",
    one_in(
        4,
        [
            "reserve",
            "mount.lock",
            "mount.decoding",
            "mount.rendering",
            "vfsd-backup.json",
            "catalog.sqlite3-wal",
            "catalog.sqlite3-shm",
            "catalog.sqlite3-journal",
            "incoming/catalog.sqlite3",
            "incoming/config.toml",
        ],
    ),
)
@pytest.mark.parametrize("what", ["secret", "empty"])
def test_writes_do_not_follow_symlinks(place: Path, name: str, what: str) -> None:
    (place.parent / "empty").touch()
    before = (place.parent / what).read_bytes()
    let_lead(place / name, place.parent / what)
    for read_only in (True, False):
        with pytest.raises(StoreError, match=f"{name} is a link") as caught:
            Store.open(place, read_only=read_only)
        assert "move the link away" in (caught.value.hint or "")
    assert (place.parent / what).read_bytes() == before
    (place / name).unlink()
    Store.open(place).close()


def test_symlink_created_while_open_is_not_followed(place: Path) -> None:
    with Store.open(place) as store:
        directory = store.parts.directory
        for path in (directory.reserve, directory.mount_lock):
            let_lead(path, place.parent / "secret")
        for action in (
            lambda: keep_reserve(directory),
            lambda: directory.mounted("/mnt").__enter__(),
            lambda: directory.unmounted().__enter__(),
        ):
            with pytest.raises(StoreError, match="is a link"):
                action()
    assert (place.parent / "secret").read_text() == "this must never be read"


@pytest.mark.parametrize("what", ["secret", "empty"])
def test_backup_marker_does_not_follow_symlinks(place: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").touch()
    before = (tmp_path / what).read_bytes()
    with Store.open(place) as store:
        back_up(store.parts, tmp_path / "backup")
        let_lead(tmp_path / "backup" / "vfsd-backup.json", tmp_path / what)
        with pytest.raises(StoreError, match=r"vfsd-backup.json is a link"):
            back_up(store.parts, tmp_path / "backup")
    assert (tmp_path / what).read_bytes() == before


def test_create_does_not_follow_symlinks(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "new" / "vfsd-store.json.tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="is a link"):
        Store.create(tmp_path / "new")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["objects/tmp", "incoming", "incoming/spool"])
def test_directories_with_moving_files_must_not_be_symlinks(
    place: Path, docs: Path, name: str
) -> None:
    before = held(docs)
    let_lead(place / name, docs)
    with pytest.raises(StoreError, match=f"{name} is a link"):
        Store.open(place)
    assert held(docs) == before


@pytest.mark.parametrize("name", one_in(3, ["objects", "spool", "cache"]))
def test_files_behind_links_are_kept(place: Path, docs: Path, name: str) -> None:
    before = held(docs)
    (place / "config.toml").write_text("view_cache_bytes = 9000\n")
    let_lead(place / name, docs)
    with Store.open(place) as store:
        filesystem = Filesystem(store.parts)
        filesystem.recover()
        filesystem.close()
        fsck.collect(store.parts, recording_days=0)
        fsck.run(store.parts, repair=True)
        cache = FileCache(store.parts.directory.cache, store.settings.view_cache_bytes)
        for digit in "0123456789":
            cache.put(cache_file_name("cd" * 32, f"{digit * 64}.0"), bytes(5000))
    assert before.items() <= held(docs).items()


def test_view_cache_entries_lead_to_no_other_files(place: Path, docs: Path) -> None:
    before = held(docs)
    digest = "ab" * 32
    let_lead(place / "cache" / digest, docs)
    with Store.open(place) as store:
        assert CandidateIndex.of_store(store.parts).of(digest) == []
    assert held(docs) == before


def test_object_folders_must_not_be_symlinks(place: Path, docs: Path) -> None:
    key = "ef" * 32
    (docs / key[2:]).write_bytes(b"precious")
    before = held(docs)
    let_lead(place / "objects" / key[:2], docs)
    with Store.open(place) as store:
        with store.catalog.writing() as change:
            change.objects.record(key, 8, now_ns=1)
        fsck.collect(store.parts)
        with pytest.raises(IntegrityError, match="is a link"):
            store.parts.objects.delete(key)
    assert held(docs) == before


@pytest.mark.parametrize("name", one_in(3, ["objects", "spool", "cache"]))
def test_symlink_into_another_store_is_refused(place: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(place, tmp_path / "other")
    let_lead(place / name, tmp_path / "other" / name)
    with pytest.raises(StoreError, match=r"into the store in .*/other"):
        Store.open(place)


def test_restore_removes_cached_views_behind_symlinks(place: Path, tmp_path: Path) -> None:
    with Store.open(place) as store:
        back_up(store.parts, tmp_path / "backup")
    let_lead(place / "cache", tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "precious").touch()
    name = cache_file_name("cd" * 32, f"{'ab' * 32}.0")
    FileCache(place / "cache", 10_000).put(name, b"a view")
    restore(tmp_path / "backup", place)
    assert not FileCache(place / "cache", 10_000).has(name)
    assert (tmp_path / "disk" / "precious").exists()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[tuple[Store, Callable[[str], None]]]:
    """A store with a linked file, and a function that makes its catalog name another."""
    clip = Path(shutil.copy(FOLDER / "portrait.mp4", tmp_path / "clip.mp4"))
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, "v.mp4", link=True)

        def name(path: str) -> None:
            with store.catalog.writing() as change:
                node = change.tree.resolve("v.mp4")
                before = change.integrity.checksums(ByteLocation(None, node.link_path))
                assert before is not None
                change.tree.update(node.ino, link_path=path)
                encoded = (os.fsencode(path),)
                connection = change.tree._connection
                for table in ("physical_videos", "block_sums"):
                    connection.exec_driver_sql(f"UPDATE {table} SET link_path = ?", encoded)
                with suppress(OSError):  # forge the entry of an attacker who knows the file
                    found = os.stat(path)
                    sums = BlockChecksums(
                        found.st_size, 1 << 15, bytes(8 * -(-found.st_size >> 15))
                    )
                    place = ByteLocation(None, path)
                    change.integrity.put_checksums(place, sums, mtime_ns=found.st_mtime_ns)

        yield store, name


def beginning(filesystem: Filesystem) -> bytes:
    handle = filesystem.open("/v.mp4", os.O_RDONLY, Caller(0, 0))
    try:
        return filesystem.read(handle, 100, 0)
    finally:
        filesystem.release(handle)


def test_data_after_the_checksummed_part_is_not_served(
    linked: tuple[Store, Callable[[str], None]], tmp_path: Path
) -> None:
    store, _ = linked
    clip, size = tmp_path / "clip.mp4", FOLDER.joinpath("portrait.mp4").stat().st_size
    filesystem = Filesystem(store.parts)
    try:
        handle = filesystem.open("/v.mp4", os.O_RDONLY, Caller(0, 0))
        assert filesystem.read(handle, 1 << 20, 0) == clip.read_bytes()
        with open(clip, "ab") as file:
            file.write(b"secret")
        assert filesystem.read(handle, 100, size) == b""
        filesystem.release(handle)
        with pytest.raises(IntegrityError, match="has changed"):
            beginning(filesystem)
    finally:
        filesystem.close()


def refusals(store: Store) -> list[str]:
    """Error messages for reads of the bytes and of a frame, and from `fsck` and `scrub`."""
    filesystem = Filesystem(store.parts)
    told = []
    try:
        with pytest.raises(IntegrityError) as caught:
            beginning(filesystem)
        told.append(str(caught.value))
    finally:
        filesystem.close()
    with Store.open(store.path) as again, pytest.raises(IntegrityError) as caught:
        again["v.mp4"].frames([0])
    told.append(str(caught.value))
    told += [one.message for one in fsck.run(store.parts) if one.check == "linked"]
    return told + [one.message for one in Scrubber(store.parts).run()]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("link", "is not a regular file"),
        ("fifo", "is not a regular file"),
        ("/proc/self/environ", "is in /proc"),
        ("/dev/fd/0", "is not a regular file"),
        ("catalog", "is inside the store"),
        ("clip.mp4", "is not an absolute path"),
    ],
)
def test_forged_linked_file_is_refused(
    linked: tuple[Store, Callable[[str], None]], tmp_path: Path, what: str, reason: str
) -> None:
    store, name = linked
    if what == "link":
        (tmp_path / what).symlink_to(tmp_path / "clip.mp4")
    elif what == "fifo":
        os.mkfifo(tmp_path / what)
    paths = {
        "link": str(tmp_path / "link"),
        "fifo": str(tmp_path / "fifo"),
        "catalog": str(store.path / "catalog.sqlite3"),
    }
    name(paths.get(what, what))
    told = refusals(store)
    assert len(told) == 4
    assert all(reason in one for one in told), told


def test_linked_file_with_unknown_checksums_is_not_served(
    linked: tuple[Store, Callable[[str], None]], tmp_path: Path
) -> None:
    store, name = linked
    secret = tmp_path / "secret"
    secret.write_bytes(b"nobody should read this" * 10_000)
    name(str(secret))
    assert all("damaged" in one for one in refusals(store)[:2])
    with store.catalog.writing() as change:
        change.integrity.drop_checksums(ByteLocation(None, str(secret)))
    # The first was compared before.  Reading a frame compares the whole file.
    assert "has changed since it was indexed" in refusals(store)[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what the store's owner may not")
def test_linked_file_unreadable_to_the_owner_is_not_served(
    linked: tuple[Store, Callable[[str], None]], tmp_path: Path
) -> None:
    store, _ = linked
    clip = tmp_path / "clip.mp4"
    os.chown(store.path, 12345, 12345)
    clip.chmod(0o600)
    assert all("may not be read by user 12345" in one for one in refusals(store))
    clip.chmod(0o604)
    assert len(store["v.mp4"].frames([0])) == 1
