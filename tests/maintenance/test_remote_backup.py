"""Backups in a bucket: complete, incremental, checked, and restored."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.support.disks import mounted
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.detections import Detection
from vfsd.errors import ExistsError, NoSpaceError, NoStoreError, UnreachableError, UsageError
from vfsd.maintenance import backup_bucket, fsck
from vfsd.maintenance.backup_bucket import BackupBucket
from vfsd.maintenance.push import push, use_bucket
from vfsd.maintenance.remote_backup import (
    back_up_to_bucket,
    check_backup,
    list_backups,
    restore_from_bucket,
)
from vfsd.remote.fetch_client import FetchClient
from vfsd.remote.fetch_protocol import fetch_settings
from vfsd.write.tree_edits import put_file

NAME = "cam/traffic.mp4"
NOTE = b"not a video\n" * 1000
_SECONDS = 300.0


@dataclass
class Target:
    """A prefix for backups, behind a proxy that counts."""

    url: str
    options: dict[str, str | bool]
    proxy: HttpProxy

    @property
    def words(self) -> list[str]:
        """Arguments of commands."""
        pairs = [f"{name}={str(value).lower()}" for name, value in self.options.items()]
        return [self.url, *(word for pair in pairs for word in ("--option", pair))]

    @property
    def puts(self) -> int:
        return self.proxy.counts.requests["PUT"] + self.proxy.counts.requests["POST"]


@pytest.fixture
def target(
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Target:
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    prefix = f"{tmp_path.parent.name}-{tmp_path.name}"
    return Target(f"s3://videos/{prefix}", seaweedfs.options(s3_proxy.port), s3_proxy)


def fill(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4", NAME)
    video.tiles.retile("uniform:2x2", span=(0, 1))
    video.labels.add([Detection(3, "car", (10, 20, 50, 60))], source="test")
    put(store, "note.txt", NOTE)


def put(store: Store, name: str, data: bytes) -> None:
    with store.parts.objects.new_file() as new:
        new.file.write(data)
        put_file(store.parts, new, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as made:
        fill(made)
        yield made


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of all objects and files of a sound store, by their names."""
    assert run_command("-s", path, "fsck", "--deep").code == 0
    with Store.open(path) as store:
        found = {
            key: store.parts.objects.path(key).read_bytes()
            for key in store.parts.objects.all_keys()
        }
        for name in ("note.txt", "other.txt"):
            with suppress(Exception):
                found[name] = store.parts.private_file(store.node(name)).read_bytes()
        for video in store.find():
            found[video.name] = video.read(frames=[0, 5]).data.tobytes()
            boxes = [(one.frame, one.label) for one in video.labels.query()]
            found[f"{video.name} labels"] = repr(boxes).encode()
    return found


def test_every_byte_comes_back(store: Store, target: Target, tmp_path: Path) -> None:
    on = ("-s", tmp_path / "store")
    run_command(*on, "config", "verify", "false")
    first = run_command(*on, "backup", *target.words, "--json").object
    assert (first["videos"], first["files"]) == (1, 1)
    assert first["copied"] == first["bytes"]
    before = contents(tmp_path / "store")
    # A second one copies what is new.
    again = run_command(*on, "backup", *target.words, "--json").object
    assert (again["copied"], again["bytes"]) == (0, first["bytes"])
    store.ingest(FOLDER / "portrait.mp4", "new.mp4")
    put(store, "other.txt", b"new")
    added = run_command(*on, "backup", *target.words, "--json").object
    assert added["copied"] == (FOLDER / "portrait.mp4").stat().st_size + 3
    assert run_command("backups", "check", *target.words).code == 0
    names = [one["name"] for one in run_command("backups", "ls", *target.words, "--json").objects]
    assert len(names) == 3
    assert len(run_command("backups", "ls", *target.words).lines) == 4
    restored = run_command("restore", *target.words, tmp_path / "new", "--json").object
    assert restored["copied"] >= added["bytes"]
    assert contents(tmp_path / "new") == contents(tmp_path / "store")
    assert (tmp_path / "new" / "config.toml").read_text().strip()
    run_command("restore", *target.words, tmp_path / "old", "--at", names[1])
    assert contents(tmp_path / "old") == before
    # Into the store, which has most of it.
    store.remove(NAME)
    store.close()
    assert run_command(*on, "gc").code == 0
    back = run_command("restore", *target.words, tmp_path / "store", "--json").object
    assert back["copied"] < added["bytes"]
    assert contents(tmp_path / "store") == contents(tmp_path / "new")


def test_without_tiles(store: Store, target: Target, tmp_path: Path) -> None:
    full = back_up_to_bucket(store.parts, target.url, target.options)
    done = back_up_to_bucket(store.parts, target.url, target.options, derived=False)
    assert (done.copied, done.bytes < full.bytes) == (0, True)
    restore_from_bucket(target.url, target.options, tmp_path / "new")
    with Store.open(tmp_path / "new") as found:
        assert fsck.run(found.parts, deep=True) == []
        with found.catalog.reading() as seen:
            assert seen.segments.all() == []


def test_catalog_of_a_server(
    own_database: str, target: Target, tmp_path: Path, seaweedfs: SeaweedServer
) -> None:
    with Store.create(tmp_path / "store", catalog_url=own_database) as store:
        fill(store)
        use_bucket(store.parts, f"{target.url}-objects", seaweedfs.options())
    before = contents(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        push(store.parts)
        # The objects are only in the bucket of the store.
        shutil.rmtree(tmp_path / "store" / "objects")
        (tmp_path / "store" / "objects" / "tmp").mkdir(parents=True)
        done = back_up_to_bucket(store.parts, target.url, target.options)
        assert (done.videos, done.files, done.damaged, done.unread) == (1, 1, (), ())
        with pytest.raises(UsageError, match="has the objects"):
            back_up_to_bucket(store.parts, f"{target.url}-objects", target.options)
    restore_from_bucket(target.url, target.options, tmp_path / "new")
    assert contents(tmp_path / "new") == before
    with Store.open(tmp_path / "new") as store:
        assert store.parts.directory.has_own_catalog
        store.ingest(FOLDER / "portrait.mp4", "new.mp4")


def test_killed_backup_is_continued(store: Store, target: Target, tmp_path: Path) -> None:
    for number in range(60):
        put(store, f"{number}.bin", os.urandom(20_000))
    target.proxy.faults.lag = 0.02
    command = [sys.executable, "-m", "vfsd", "-s", str(tmp_path / "store"), "backup"]
    running = subprocess.Popen([*command, *target.words])
    deadline = time.monotonic() + _SECONDS
    while target.puts < 25:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    with pytest.raises(NoStoreError, match="no finished backup"):
        restore_from_bucket(target.url, target.options, tmp_path / "new")
    uploaded = target.puts
    target.proxy.reset()
    done = back_up_to_bucket(store.parts, target.url, target.options)
    assert 0 < done.copied < done.bytes
    assert target.puts <= 60 - uploaded + 40
    restore_from_bucket(target.url, target.options, tmp_path / "new")
    assert contents(tmp_path / "new") == contents(tmp_path / "store")


def test_two_at_once(store: Store, target: Target, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(back_up_to_bucket, store.parts, target.url, target.options)
            for _ in range(2)
        ]
        for one in both:
            assert one.result().damaged == ()
    assert len(list(list_backups(target.url, target.options))) == 2
    assert check_backup(target.url, target.options).damaged == ()
    restore_from_bucket(target.url, target.options, tmp_path / "new")
    assert contents(tmp_path / "new") == contents(tmp_path / "store")


def _spoil(target: Target, folder: Path, key: str) -> str:
    """Replace the copy of an object by other bytes of the same size."""
    with BackupBucket.opened(target.url, target.options) as bucket:
        bucket.look()
        name, size = bucket.copy_of(key, None), bucket.size(key)
    assert name is not None
    assert size is not None
    (folder / "spoiled").write_bytes(bytes(size))
    settings = fetch_settings(folder / "spoiling", target.url, target.options)
    settings = msgspec.structs.replace(settings, idle_seconds=1.0)
    with closing(FetchClient(settings)) as client:
        client.delete([name])
        client.put(name, folder / "spoiled")
    return name


def test_damage_in_the_bucket(store: Store, target: Target, tmp_path: Path) -> None:
    back_up_to_bucket(store.parts, target.url, target.options)
    key = store[NAME].original.place.object_key
    assert key is not None
    name = _spoil(target, tmp_path, key)
    found = run_command("backups", "check", *target.words, "--json")
    assert found.code == 30
    assert (found.object["damaged"], found.object["spoiled"]) == ([key], [name])
    lost = run_command("restore", *target.words, tmp_path / "lost", "--json")
    assert (lost.code, lost.object["missing"]) == (30, [key])
    # The listing alone does not show it.
    assert back_up_to_bucket(store.parts, target.url, target.options).copied == 0
    path = tmp_path / "store"
    repaired = run_command("-s", path, "backup", *target.words, "--check", "--json").object
    assert repaired["copied"] == (FOLDER / "traffic.mp4").stat().st_size
    # The next one knows the damaged copy without reading it.
    assert back_up_to_bucket(store.parts, target.url, target.options).copied == 0
    assert check_backup(target.url, target.options).damaged == ()
    restore_from_bucket(target.url, target.options, tmp_path / "new")
    assert contents(tmp_path / "new") == contents(tmp_path / "store")


def test_damage_in_the_store(store: Store, target: Target, tmp_path: Path) -> None:
    other = store.ingest(FOLDER / "portrait.mp4", "other.mp4").original.place.object_key
    assert other is not None
    path = store.parts.objects.path(other)
    path.chmod(0o600)
    path.write_bytes(bytes(path.stat().st_size))
    found = run_command("-s", tmp_path / "store", "backup", *target.words, "--json")
    assert (found.code, found.object["damaged"]) == (30, [other])
    report = restore_from_bucket(target.url, target.options, tmp_path / "new")
    assert report.missing == (other,)
    with Store.open(tmp_path / "new") as restored:
        assert len(restored[NAME].read(frames=[3])) == 1


def test_silent_bucket(
    store: Store,
    target: Target,
    seaweedfs: SeaweedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    back_up_to_bucket(store.parts, target.url, target.options)
    quick = partial(fetch_settings, seconds=2.0)
    monkeypatch.setattr(backup_bucket, "fetch_settings", quick)
    seaweedfs.pause()
    try:
        for action in (
            partial(back_up_to_bucket, store.parts),
            check_backup,
            partial(restore_from_bucket, target=tmp_path / "new"),
        ):
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="does not answer"):
                action(target.url, target.options)
            assert time.monotonic() - began < 60
    finally:
        seaweedfs.resume()
    assert back_up_to_bucket(store.parts, target.url, target.options).copied == 0


def test_full_disk(store: Store, target: Target, tmp_path: Path) -> None:
    put(store, "big.bin", os.urandom(6 << 20))
    back_up_to_bucket(store.parts, target.url, target.options)
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "none") as small:
        with pytest.raises(NoSpaceError, match="no room"):
            restore_from_bucket(target.url, target.options, small / "new")
        assert not (small / "new" / "vfsd-store.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        restore_from_bucket(target.url, target.options, small / "new")
        assert contents(small / "new") == contents(tmp_path / "store")


def test_prefixes_of_others_are_refused(store: Store, target: Target, tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="no backup found"):
        check_backup(target.url, target.options)
    back_up_to_bucket(store.parts, target.url, target.options)
    with (
        new_store(tmp_path / "another") as another,
        pytest.raises(ExistsError, match="of another store"),
    ):
        back_up_to_bucket(another.parts, target.url, target.options)
    with pytest.raises(ExistsError, match="of another store"):
        restore_from_bucket(target.url, target.options, tmp_path / "another")
    assert run_command("-s", store.path, "backup", tmp_path / "d", "--check").code == 2
    assert run_command("restore", tmp_path / "d", tmp_path / "e", "--at", "x").code == 2
