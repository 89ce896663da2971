"""Removed objects in a bucket: their grace, their end, and checks of what is only there."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.cli.conftest import run_command
from tests.support.bucket_files import damage, is_exact, places, recorded_objects, remote_objects_of
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.catalog.bucket_objects import GarbageTotal
from vfsd.catalog.schema import objects
from vfsd.core.model import ByteLocation
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import DamagedFileError, NotFoundError
from vfsd.maintenance import fsck
from vfsd.maintenance.fsck.bucket import collect_bucket, compare
from vfsd.maintenance.push import push, use_bucket
from vfsd.maintenance.scrub import Scrubber, ScrubDamage

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"
NAME = "cam/traffic.mp4"
SMALL = 20 << 10

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def remote(tmp_path: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer) -> Path:
    """A store with a tiled video, all of it only in the bucket, and its copy in files."""
    path = tmp_path / "store"
    with new_store(path) as store:
        store.ingest(CLIP, NAME).tiles.retile("uniform:2x2", span=(0, 2))
    shutil.copytree(path, tmp_path / "copy")
    with Store.open(path) as store:
        url = f"s3://{seaweedfs.bucket}/{store.parts.directory.id}"
        use_bucket(store.parts, url, seaweedfs.options(s3_proxy.port))
    with Store.open(path) as store:
        push(store.parts)
    shutil.rmtree(path / "objects")
    (path / "objects" / "tmp").mkdir(parents=True)
    return path


def scrub(store: Store, **options: object) -> list[ScrubDamage]:
    return list(Scrubber(store.parts, **options).run())  # type: ignore[arg-type]


def test_removed_objects_stay_for_the_grace(remote: Path) -> None:
    with Store.open(remote) as store:
        before = places(store)
        held = store[NAME]
        pixels = held.read(frames=[3]).data
        store.remove(NAME)
        assert recorded_objects(store) == {}
        assert store.catalog.garbage.total().files == len(before)
        assert is_exact(store)
        assert remote_objects_of(store).collect(3600) == (0, 0)
        shutil.rmtree(remote / "cache" / "o")
        assert (held.read(frames=[3]).data == pixels).all()
        files, size = remote_objects_of(store).collect(0)
        assert (files, places(store)) == (len(before), set())
        assert size > CLIP.stat().st_size
        assert store.catalog.garbage.total() == GarbageTotal(0, 0)
        shutil.rmtree(remote / "cache" / "o", ignore_errors=True)
        with pytest.raises(NotFoundError) as caught:
            held.read(frames=[60])
        assert "look it up again" in (caught.value.hint or "")


def test_scrub_judges_the_bucket_and_not_the_cache(
    remote: Path, seaweedfs: SeaweedServer, s3_proxy: HttpProxy
) -> None:
    with Store.open(remote) as store:
        assert scrub(store) == []
        original = store[NAME].original
        place, size = recorded_objects(store)[original.object_key or ""]
        assert not (remote / "cache" / place).exists()
        store[NAME].read(frames=[0])
        damage(store, seaweedfs, place, size - 100)
        s3_proxy.reset()
        assert scrub(store, older_than=3600.0) == []  # not again
        assert s3_proxy.counts.body_bytes < size
        (found,) = scrub(store)
        assert found.ranges[0].start <= size - 100 < found.ranges[0].stop
        assert (found.names, found.repaired) == ((NAME,), None)
        assert [one.check for one in fsck.run(store.parts)] == ["damage"]


def test_scrub_repairs_by_a_new_place(
    remote: Path, seaweedfs: SeaweedServer, tmp_path: Path
) -> None:
    backup = ObjectStore(StoreDirectory.open(tmp_path / "copy"))
    with Store.open(remote) as store, Store.open(remote) as other:
        pixels = store[NAME].read(frames=[70]).data
        for number, (place, size) in enumerate(sorted(recorded_objects(store).values())):
            if number:
                damage(store, seaweedfs, place, size // 2)
            else:
                remote_objects_of(store).client.delete([place])
        before = recorded_objects(store)
        shutil.rmtree(remote / "cache" / "o")
        stale = other[NAME]
        assert remote_objects_of(other).size(
            stale.original.object_key or ""
        )  # it knows the old place
        found = scrub(store, sources=[backup])
        assert [one.repaired for one in found] == ["put back"] * len(before)
        after = recorded_objects(store)
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(before.values())
        assert store.catalog.garbage.total().files == len(before)
        assert list((remote / "objects").glob("??/*")) == []
        assert is_exact(store)
        assert fsck.run(store.parts, deep=True, objects=True) == []
        assert scrub(store) == []
        assert (stale.read(frames=[70], psnr=math.inf).data == pixels).all()
        assert remote_objects_of(store).collect(0).files == len(before)
        assert is_exact(store)


@pytest.mark.thorough
def test_files_and_the_bucket_repair_each_other(
    remote: Path, seaweedfs: SeaweedServer, tmp_path: Path
) -> None:
    shutil.rmtree(remote / "objects")
    shutil.copytree(tmp_path / "copy" / "objects", remote / "objects")
    with Store.open(remote) as store:
        key = store[NAME].original.object_key or ""
        path = remote_objects_of(store).path(key)
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.write(b"damage")
        (found,) = scrub(store)
        assert (found.repaired, path.exists()) == ("put back", False)
        assert fsck.run(store.parts, deep=True) == []
        # The file is back, and the bucket is damaged: this home cannot see that by itself.
        shutil.copy(tmp_path / "copy" / "objects" / key[:2] / key[2:], path)
        place, size = recorded_objects(store)[key]
        damage(store, seaweedfs, place)
        with store.catalog.writing() as change:
            change.integrity.record_inspection(
                ByteLocation(key, None), [range(1000, 2000)], now_ns=time.time_ns()
            )
        (found,) = scrub(store)
        assert found.repaired == "put back"
        assert recorded_objects(store)[key] != (place, size)
        assert scrub(store) == []
        assert is_exact(store)


def test_fsck_of_bytes_in_the_bucket(remote: Path, seaweedfs: SeaweedServer) -> None:
    with Store.open(remote) as store:
        assert fsck.run(store.parts, deep=True, objects=True) == []
        tiles = {one.object_key for one in store.catalog.segments(store[NAME].info)}
        first, second = sorted(tiles)
        damage(store, seaweedfs, recorded_objects(store)[first][0])
        remote_objects_of(store).client.delete([recorded_objects(store)[second][0]])
        found = fsck.run(store.parts, deep=True)
        assert {one.check for one in found} == {"tiles", "content"} or len(found) == 2
        found = fsck.run(store.parts, deep=True, objects=True, repair=True)
        assert all(one.repaired for one in found)
        assert fsck.run(store.parts, deep=True, objects=True, repair=True) == []
        assert recorded_objects(store).keys().isdisjoint(tiles)
        # The original, which nothing can replace here.
        key = store[NAME].original.object_key or ""
        remote_objects_of(store).client.delete([recorded_objects(store)[key][0]])
        (one,) = fsck.run(store.parts, objects=True)
        assert NAME in one.message
        assert "is missing in the bucket" in one.message
        assert {one.check for one in fsck.run(store.parts)} == {"damage"}


def test_bytes_that_nothing_names(remote: Path, seaweedfs: SeaweedServer, tmp_path: Path) -> None:
    key = "ab" * 32
    with Store.open(remote) as store:
        (tmp_path / "file").write_bytes(bytes(SMALL))
        stray = f"o/ab/{key}-{1:016x}"
        remote_objects_of(store).client.put(stray, tmp_path / "file")
        remote_objects_of(store).client.put("notes.txt", tmp_path / "file")
        state = compare(store.parts)
        assert (state.unnamed, state.young, state.foreign) == ({}, {stray: SMALL}, ["notes.txt"])
        count = len(places(store))
        assert collect_bucket(store.parts, lists=True).files == 0
        assert len(places(store)) == count
    on = ("--store", str(remote))
    assert run_command(*on, "config", "object_grace", "59").code == 2
    config = remote / "config.toml"
    assert run_command(*on, "config", "object_grace", "60").code == 0
    config.write_text(config.read_text().replace("object_grace = 60", "object_grace = 1"))
    with Store.open(remote) as store:
        dry = run_command(*on, "gc", "--bucket", "--dry-run", "--json").object["bucket"]
        while not dry["files"]:
            dry = run_command(*on, "gc", "--bucket", "--dry-run", "--json").object["bucket"]
        assert (dry["unnamed"], dry["bytes"]) == ([stray], SMALL)
        assert "belongs to no object" in run_command(*on, "fsck", "--objects").out
        done = run_command(*on, "gc", "--bucket", "--json")
        assert (done.code, done.object["bucket"]["files"]) == (0, 1)
        assert places(store) == {place for place, _ in recorded_objects(store).values()}
        assert is_exact(store)
        remote_objects_of(store).client.delete(
            [place for place, _ in recorded_objects(store).values()]
        )
        done = run_command(*on, "gc", "--bucket", "--json")
        assert (done.code, len(done.object["bucket"]["lost"])) == (30, len(recorded_objects(store)))


def test_bytes_of_an_object_without_a_place(remote: Path) -> None:
    with Store.open(remote) as store:
        before = recorded_objects(store)
        with store.catalog._database.writing() as connection:
            connection.execute(sa.update(objects).values(place=None))
        state = compare(store.parts)
        assert state.stray.keys() == {place for place, _ in before.values()}
        assert (state.unnamed, state.young) == ({}, {})
        # Tiles can be made again, and are dropped before the bucket is listed.
        fsck.run(store.parts, objects=True, repair=True)
        key = store[NAME].original.object_key or ""
        assert recorded_objects(store) == {key: before[key]}
        assert store[NAME].read(frames=[9]).data.any()


def test_options_for_a_bucket_need_one(tmp_path: Path) -> None:
    new_store(tmp_path / "local").close()
    for command in (("gc", "--bucket"), ("fsck", "--objects")):
        done = run_command("--store", tmp_path / "local", *command)
        assert done.code == 2
        assert "no bucket" in done.err


def test_reads_of_lost_and_damaged_objects(remote: Path, seaweedfs: SeaweedServer) -> None:
    region = (64, 64, 160, 128)
    with Store.open(remote) as store:
        video = store[NAME]
        key = video.original.object_key or ""
        tiles = [one.object_key for one in store.catalog.segments(video.info)]
        # All over: the read fetches only the packets that it needs.
        for one in tiles:
            place, size = recorded_objects(store)[one]
            for position in range(size // 8, size, size // 8):
                damage(store, seaweedfs, place, position)
        assert video.read(frames=[5], region=region, psnr=20).data.any()
        # The damaged pack was dropped, and reads go on without it.
        assert tiles[0] not in recorded_objects(store)
        assert store.catalog.garbage.total().files >= 1
        place = recorded_objects(store)[key][0]
        remote_objects_of(store).client.delete([place])
        shutil.rmtree(remote / "cache" / "o", ignore_errors=True)
        with pytest.raises(DamagedFileError, match="cannot be read"):
            store[NAME].read(frames=[70], psnr=math.inf)
        assert any("is missing" in one.message for one in fsck.run(store.parts, deep=True))
    done = run_command("--store", remote, "ingest", CLIP, "--as", NAME)
    assert done.code == 0, done.err
    with Store.open(remote) as store:
        assert recorded_objects(store)[key][0] != place
        assert store[NAME].read(frames=[70], psnr=math.inf).data.any()
        assert fsck.run(store.parts, deep=True, objects=True, repair=True) is not None
        assert is_exact(store)
