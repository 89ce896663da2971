"""Removing on two homes with one bucket: collectors that run at once, are killed or come late."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa

from tests.cli.conftest import run_command
from tests.support.bucket_files import (
    bytes_at,
    damage,
    is_exact,
    make_home,
    places,
    recorded_objects,
    remote_objects_of,
)
from tests.support.http_proxy import HttpProxy
from tests.support.postgresql import PostgresqlServer
from tests.support.remote_objects import running_process, wait_until
from tests.support.seaweedfs import SeaweedServer
from vfsd.api.store import Store
from vfsd.catalog.bucket_objects import UPLOAD_SECONDS, database_time
from vfsd.catalog.schema import ROOT, entries, nodes, uploads
from vfsd.errors import LeaseLostError
from vfsd.maintenance import fsck
from vfsd.maintenance.fsck.bucket import collect_bucket, compare
from vfsd.maintenance.scrub import Scrubber
from vfsd.mount import background_work
from vfsd.storage.reclaim import drop_segments
from vfsd.write.ingest_file import pending_bytes

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"
NAME = "a.mp4"
_SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("credentials")


@dataclass
class Homes:
    """Two homes of a store."""

    paths: tuple[Path, Path]
    proxy: HttpProxy

    def opened(self, number: int = 0) -> Store:
        return Store.open(self.paths[number], staleness=0)


@pytest.fixture
def homes(
    tmp_path: Path, own_database: str, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> Homes:
    first, second = tmp_path / "first", tmp_path / "second"
    make_home(first, own_database, seaweedfs.options(s3_proxy.port))
    assert run_command("join", second, "--catalog", own_database).code == 0
    return Homes((first, second), s3_proxy)


def write_small(store: Store, name: str, seed: int) -> None:
    """Write a video; the same seed makes the same bytes."""
    pictures = np.random.default_rng(seed).integers(0, 256, (12, 128, 128, 3), np.uint8)
    store.write(name, pictures, fps=25)


def make_garbage(store: Store, count: int) -> set[str]:
    """Fill the bucket with files that are garbage; return their places."""
    file = store.path / "file"
    file.write_bytes(bytes(100))
    client = remote_objects_of(store).client
    made = set()
    for number in range(count):
        key = f"{number % 256:02x}{number:062x}"
        made.add(place := f"o/{key[:2]}/{key}-{number:016x}")
        store.catalog.uploads.begin(place, key, 100)
        client.put(place, file)
        store.catalog.uploads.abandon(place)
    return made


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vfsd", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def set_grace(homes: Homes, seconds: int) -> None:
    for path in homes.paths:
        (path / "config.toml").write_text(f"object_grace = {seconds}\n")


def test_two_collectors_share_the_work(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    with homes.opened(0) as store:
        store.ingest(CLIP, NAME)
        kept = places(store)
        made = make_garbage(store, 60)
        assert places(store) == kept | made
    set_grace(homes, 1)
    time.sleep(1.1)
    with ExitStack() as stack:
        both = [stack.enter_context(start("-s", path, "gc", "--json")) for path in homes.paths]
        done = [msgspec.json.decode(one.communicate(timeout=_SECONDS)[0])["bucket"] for one in both]
        assert [one.returncode for one in both] == [0, 0]
    assert sum(one["files"] for one in done) == len(made)
    with homes.opened(0) as store:
        assert places(store) == kept
        assert store.catalog.garbage.total().files == 0
        assert is_exact(store)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["collector", "fetch process"])
def test_killed_collector_loses_nothing(homes: Homes, victim: str) -> None:
    with homes.opened(0) as store:
        store.ingest(CLIP, NAME)
        kept = places(store)
        made = make_garbage(store, 20)
    set_grace(homes, 1)
    time.sleep(1.1)
    homes.proxy.reset()
    homes.proxy.faults.silent = True
    try:
        with start("-s", homes.paths[1], "gc") as process:
            wait_until(lambda: sum(homes.proxy.counts.requests.values()), _SECONDS)
            fetching = running_process(homes.paths[1] / "cache" / "fetch.lock")
            assert fetching is not None
            with homes.opened(0) as store:
                # The turn is free, and the others find nothing that is due.
                with store.catalog.writing(1.0) as change:
                    change.videos.add_tags(1, ["seen"])
                assert remote_objects_of(store).collect(1).files == 0
            if victim == "collector":
                process.kill()
            else:
                os.kill(fetching, signal.SIGKILL)
                homes.proxy.faults.silent = False
            process.communicate(timeout=_SECONDS)
            assert process.returncode == (-9 if victim == "collector" else 0)
    finally:
        homes.proxy.faults.silent = False
    with homes.opened(0) as store:
        left = store.catalog.garbage.total().files
        assert left == (len(made) if victim == "collector" else 0)
        wait_until(lambda: not remote_objects_of(store).collect(0).files, _SECONDS)
        assert places(store) == kept
        assert is_exact(store)


def test_late_delete_harms_no_new_object(homes: Homes) -> None:
    with homes.opened(0) as store, homes.opened(1) as other:
        pixels = store.ingest(CLIP, NAME).read(frames=[5]).data
        old = places(store)
        other.remove(NAME)
        assert remote_objects_of(store).collect(0).files == len(old)
        again = store.ingest(CLIP, NAME)
        assert places(store).isdisjoint(old)
        # A request that was retried, or answered late.
        remote_objects_of(other).client.delete(sorted(old))
        assert is_exact(store)
        assert (other[NAME].read(frames=[5]).data == pixels).all()
        assert (again.read(frames=[5]).data == pixels).all()


def test_abandoned_upload_becomes_garbage(homes: Homes, tmp_path: Path) -> None:
    key = "ab" * 32
    place = f"o/ab/{key}-{1:016x}"
    (tmp_path / "file").write_bytes(b"x" * 100)
    with homes.opened(0) as store, homes.opened(1) as other:
        store.catalog.uploads.begin(place, key, 100)
        remote_objects_of(store).client.put(place, tmp_path / "file")
        assert remote_objects_of(other).collect(0).files == 0  # its lease is valid
        assert is_exact(other)
        with store.catalog._database.appending() as connection:
            past = database_time(connection, -1)
            connection.execute(sa.update(uploads).values(expires=past))
        assert remote_objects_of(other).collect(UPLOAD_SECONDS).files == 0
        assert store.catalog.garbage.total().files == 1
        with pytest.raises(LeaseLostError), store.catalog.writing() as change:
            change.objects.record_upload(key, 100, place, now_ns=1)
        assert remote_objects_of(other).collect(0).files == 1
        assert places(store) == set()


@pytest.mark.thorough
def test_restored_database_finds_all_bytes(
    homes: Homes, own_database: str, postgresql: PostgresqlServer
) -> None:
    with homes.opened(0) as store:
        video = store.ingest(CLIP, NAME)
        video.tiles.retile("uniform:1x2", span=(0, 1))
        write_small(store, "small.mp4", 1)
        before = recorded_objects(store)
    dumped = postgresql.dump(own_database)
    with homes.opened(1) as store:
        drop_segments(store.parts, store.catalog.segments(store[NAME].info))
        store.remove("small.mp4")
        store.remove(NAME)
        write_small(store, "new.mp4", 2)
        new = recorded_objects(store)
        assert collect_bucket(store.parts, lists=True).files == 0
    postgresql.restore(own_database, dumped)
    with homes.opened(0) as store:
        assert recorded_objects(store) == before
        for place, size in before.values():
            assert len(bytes_at(store, place)) == size
        assert fsck.run(store.parts, deep=True) == []
        state = compare(store.parts)
        assert (state.lost, state.unnamed) == ([], {})
        assert state.young.keys() == {place for place, _ in new.values()}
        assert collect_bucket(store.parts, lists=True).files == 0
        assert store[NAME].read(frames=[20]).data.any()


@pytest.mark.thorough
def test_each_way_to_remove_leaves_garbage(homes: Homes) -> None:
    seen: list[tuple[object, ...]] = []

    with homes.opened(1) as store:

        def run(*words: str, makes: int = 1) -> None:
            before = store.catalog.garbage.total().files
            done = run_command("--store", homes.paths[0], *words)
            seen.append((*words, done.code))
            assert done.code == 0, (words, done.err)
            assert store.catalog.garbage.total().files >= before + makes, seen
            assert store.catalog.garbage.unnamed(places(store)) == set(), seen

        for name in ("dir/a.mp4", "dir/b.mp4"):
            write_small(store, name, 3)
        name = "dir/a.mp4"
        for number, layout in enumerate(("uniform:1x2", "uniform:2x1", "uniform:2x2")):
            run("retile", name, "--layout", layout, makes=number // 2)
        run("layout", "drop", name, "-y", "--retired")
        run("layout", "drop", name, "-y")
        run("render", name, "--size", "64x64", makes=0)
        run("rendition", "drop", name, "-y")
        run("retile", name, "--layout", "uniform:1x2", "--codec", "lossless", makes=0)
        run("compress", name, "--level", "19")
        run("budget", "set", name, "1")
        store.ingest(CLIP, "dir/c.mp4")
        run("policy", "set", "dir/c.mp4", "original=replaceable,psnr=30", makes=0)
        run("verify", "dir/c.mp4", makes=0)
        run("replace", "dir/c.mp4", "--codec", "h264", "--psnr", "30")
        run("policy", "set", "dir/", "original=keep,delete-above=1", makes=0)
        run("rm", name, makes=0)  # the other one has the same bytes
        run("age", "--apply", "--clock-is-right")
        run("rm", "dir/c.mp4")
        assert recorded_objects(store) == {}
        remote_objects_of(store).collect(0)
        assert places(store) == set()


def steps(rng: random.Random, stores: tuple[Store, Store]) -> Iterator[str]:
    """Do random work on random homes, forever."""
    while True:
        store = stores[rng.randrange(2)]
        names = [video.name for video in store.catalog.find()]
        name = rng.choice(names) if names else ""
        action = rng.choice(("write", "write", "retile", "retile", "render", "drop", "rm", "gc"))
        if action == "write" or not name:
            action = "write"
            new = f"{rng.randrange(4)}.mp4"
            if new not in names:
                write_small(store, new, rng.randrange(3))
        elif action == "retile":
            store[name].tiles.retile(rng.choice(("uniform:1x2", "uniform:2x1")))
        elif action == "render":
            store[name].renditions.make((64, 64))
        elif action == "drop":
            info = store[name].info
            made = [*store.catalog.segments(info), *store.catalog.renditions(info)]
            drop_segments(store.parts, made[:1])
        elif action == "rm":
            store.remove(name)
        else:
            fsck.collect(store.parts)
            collect_bucket(store.parts, lists=bool(rng.randrange(2)))
            remote_objects_of(store).collect(0)
        yield action


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(number, marks=pytest.mark.thorough) for number in range(1, 6))]
)
def test_random_work_leaves_nothing_behind(homes: Homes, seed: int) -> None:
    rng = random.Random(seed)
    with homes.opened(0) as store, homes.opened(1) as other:
        done = []
        for number, action in enumerate(steps(rng, (store, other))):
            done.append(action)
            assert store.catalog.garbage.unnamed(places(other)) == set(), done
            if number >= (60 if seed else 15):
                break
        assert is_exact(store), done
        assert fsck.run(other.parts, deep=True, objects=True) == []
        remote_objects_of(other).collect(0)
        assert places(store) == {place for place, _ in recorded_objects(store).values()}
        assert is_exact(store), done


def test_mount_collects_garbage(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_work, "_COLLECT_SECONDS", 0.05)
    with homes.opened(0) as store:
        store.ingest(CLIP, NAME)
        kept = places(store)
        make_garbage(store, 5)
        homes.proxy.faults.silent = True
        remote_objects_of(store).fetch_seconds = 2.0
        with closing(background_work.BucketCollector(remote_objects_of(store), 0)):
            wait_until(lambda: sum(homes.proxy.counts.requests.values()) > 2, _SECONDS)
            homes.proxy.faults.silent = False
            wait_until(lambda: not store.catalog.garbage.total().files, _SECONDS)
        assert places(store) == kept
    late = run_command("--store", homes.paths[0], "doctor", "--json").objects
    assert "garbage" not in [one["check"] for one in late]


def test_two_repairs_of_the_bucket_at_once(homes: Homes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    with homes.opened(0) as store, homes.opened(1) as other:
        strays = {f"o/ab/{'ab' * 32}-{number:016x}": 100 for number in range(5)}
        for place in strays:
            remote_objects_of(store).client.put(place, tmp_path / "file")
        state = compare(store.parts)
        assert state.young == strays
        for one in (store, other):
            one.catalog.garbage.adopt(strays, 0)
        assert store.catalog.garbage.total().files == len(strays)
        assert remote_objects_of(other).collect(0).files == len(strays)
        assert places(store) == set()


def test_scrub_of_files_that_are_not_videos(homes: Homes, seaweedfs: SeaweedServer) -> None:
    data = bytes(range(256)) * 400
    with (
        homes.opened(0) as store,
        pending_bytes(store.parts, data, "a file") as arrival,
        arrival.recorded() as change,
    ):
        values = {
            "mode": 0o100644,
            **dict.fromkeys(("uid", "gid", "atime_ns", "mtime_ns", "ctime_ns"), 0),
            **{"nlink": 1, "size": len(data), "state": "stored", "object_key": arrival.key},
        }
        connection = change._connection
        made = connection.execute(sa.insert(nodes).values(values).returning(nodes.c.ino))
        name = {"parent": ROOT, "name": b"notes.bin", "ino": made.scalar_one()}
        connection.execute(sa.insert(entries).values(name))
    with homes.opened(1) as store:
        assert list(Scrubber(store.parts).run()) == []
        place, _ = recorded_objects(store)[arrival.key]
        damage(store, seaweedfs, place)
        (found,) = Scrubber(store.parts).run()
        assert (found.names, found.repaired) == (("notes.bin",), None)
        remote_objects_of(store).client.delete([place])
        assert "notes.bin" in fsck.run(store.parts, objects=True)[-1].message
        assert recorded_objects(store).keys() == {arrival.key}
