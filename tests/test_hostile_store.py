"""A store that somebody else has made: its names lead nowhere but into itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sample_videos import FOLDER
from vfsd import check
from vfsd.errors import IntegrityError
from vfsd.fs import Filesystem
from vfsd.fs.attributes import Caller
from vfsd.store import Store

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
    (tmp_path / "secret").write_text("nobody should read this")
    with Store.create(tmp_path / "store") as store:
        store.ingest(FOLDER / "portrait.mp4", "v.mp4")
    return tmp_path / "store"


def test_a_key_is_a_hash_and_nothing_else(place: Path) -> None:
    with Store.open(place) as store:
        for key in KEYS:
            with pytest.raises(IntegrityError, match="no name of an object"):
                store.parts.objects.path(key)


def test_a_catalog_that_names_a_file_outside_shows_nothing_of_it(place: Path) -> None:
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


def test_fsck_says_what_is_no_object(place: Path) -> None:
    with Store.open(place) as store:
        junk = store.parts.objects.path("ab" * 32).with_name("junk")
        junk.parent.mkdir(exist_ok=True)
        junk.touch()
        with store.catalog.writing() as change:
            change.objects.record("../../secret", 23, now_ns=1)
        told = [finding.message for finding in check.run(store.parts)]
        assert any("'../../secret' is no name of an object" in message for message in told)
        assert any("junk was left" in message for message in told)
        check.collect(store.parts)
        assert not junk.exists()
        assert not check.run(store.parts)
    assert (place.parent / "secret").exists()


def test_links_in_the_place_of_bytes_are_not_followed(place: Path, tmp_path: Path) -> None:
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
