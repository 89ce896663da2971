"""Stores with objects in a bucket: `vfsd push`, and reads on a host without the files."""

from __future__ import annotations

import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import run_command
from tests.support.forking import exit_code_of_child
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import StoreError, UnreachableError, UsageError
from vfsd.maintenance import fsck
from vfsd.maintenance.push import push, use_bucket
from vfsd.storage.remote_objects import RemoteObjects

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"
NAME = "cam/traffic.mp4"
REGION = (64, 64, 160, 128)
LAST_TILE = (200, 150, 300, 220)
VECTORS = np.random.default_rng(0).normal(size=(120, 24)).astype(np.float16)

pytestmark = pytest.mark.usefixtures("credentials")


@dataclass
class Remote:
    """A store whose objects are only in the bucket."""

    path: Path
    proxy: HttpProxy
    options: dict[str, str | bool]

    def forget(self) -> None:
        """Empty the cache."""
        for client in (self.path / "cache").glob("o"):
            shutil.rmtree(client)
        self.proxy.reset()

    @property
    def requests(self) -> int:
        return sum(self.proxy.counts.requests.values())


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A store with a tiled video, all of it in files."""
    with new_store(tmp_path / "store") as store:
        video = store.ingest(CLIP, NAME)
        video.tiles.retile("uniform:2x2", span=(0, 2))
        video.vectors.add(VECTORS[:100], range(100), "clip")
    return tmp_path / "store"


@pytest.fixture
def remote(local: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer) -> Remote:
    """The same, after a push, on a host that has no file."""
    options = seaweedfs.options(s3_proxy.port)
    with Store.open(local) as store:
        use_bucket(store.parts, f"s3://videos/{store.parts.directory.id}", options)
    with Store.open(local) as store:
        report = push(store.parts)
        assert (report.elsewhere, report.damaged) == (0, ())
        assert push(store.parts).objects == 0
    take_away_objects(local)
    s3_proxy.reset()
    return Remote(local, s3_proxy, options)


def take_away_objects(path: Path) -> None:
    shutil.move(path / "objects", path.with_name("objects"))
    (path / "objects" / "tmp").mkdir(parents=True)


def pixels(store: Store) -> list[np.ndarray]:
    video = store[NAME]
    frames = [0, 11, len(video) - 1]
    # The tiles first: the original is preferred once it is cached.
    return [
        video.read(frames=[7, 20], region=REGION, psnr=20).data,
        video.read(frames=[7, 20], region=REGION, psnr=math.inf).data,
        *(video.read(frames=[frame], psnr=math.inf).data for frame in frames),
    ]


def test_content_is_that_of_the_files(remote: Remote, tmp_path: Path) -> None:
    with Store.open(remote.path) as store:
        seen = pixels(store)
        assert fsck.run(store.parts) == []
    shutil.rmtree(remote.path / "objects")
    shutil.move(tmp_path / "objects", remote.path)
    with Store.open(remote.path) as store:
        for one, other in zip(seen, pixels(store), strict=True):
            np.testing.assert_array_equal(one, other)


def test_vectors_are_fetched_and_added(remote: Remote) -> None:
    with Store.open(remote.path) as store:
        assert np.array_equal(store[NAME].vectors.get().matrix, VECTORS[:100])
        store[NAME].vectors.add(VECTORS[100:], range(100, 120), "clip")
        assert store.nearest(VECTORS[110])[0].frames == range(110, 111)
        assert fsck.run(store.parts, objects=True) == []
        assert list(store.parts.objects.all_keys()) == []
        assert store[NAME].vectors.remove() == 120


def test_cold_frames_and_tiles_need_few_requests(remote: Remote) -> None:
    needed = fetched = 0
    frames = [5, 30, 55, 80]
    with Store.open(remote.path, read_only=True, threads=1) as store:
        video = store[NAME]
        table = context_of(video).table
        requests = 0
        for frame in frames:
            remote.forget()
            assert video.read(frames=[frame], psnr=math.inf).data.any()
            run = table.decode_run(frame)
            needed += int(table.columns(run.first_packet, run.end_packet).size.sum())
            requests += remote.requests
            fetched += remote.proxy.counts.body_bytes
    assert requests == len(frames)
    assert fetched <= needed + 2 * len(frames) * BLOCK_BYTES  # whole blocks
    remote.forget()
    with Store.open(remote.path, read_only=True) as store:
        assert store[NAME].read(frames=[5], region=REGION, psnr=20).data.any()
        assert remote.requests == 1  # the table and the cell together
        assert store[NAME].read(frames=[4], region=REGION, psnr=20).data.any()
        assert remote.requests == 1


def test_packets_of_a_tile_are_fetched_without_the_table(remote: Remote) -> None:
    """The catalog has a copy of the table of each pack; without it, the first reader adds one."""

    def read() -> tuple[np.ndarray, int]:
        remote.forget()
        with Store.open(remote.path, threads=1) as store:
            found = store[NAME].read(frames=[2], region=LAST_TILE, psnr=20).data
            return found, remote.proxy.counts.body_bytes

    def change(statement: str) -> int:
        with closing(sqlite3.connect(remote.path / "catalog.sqlite3")) as raw, raw:
            return raw.execute(statement).rowcount

    with Store.open(remote.path) as store:
        with store.catalog.reading() as seen:
            segments = seen.segments.active(store[NAME].original.id)
        places = {(one.object_key, one.pack_at) for one in segments}
        assert store.catalog.pack_tables.find(places).tables.keys() == places
    truth, exact = read()
    assert remote.requests == 1
    assert exact <= segments[0].cells[-1].size + 2 * BLOCK_BYTES
    wrong = "UPDATE pack_tables SET packed = substr(packed, 1, length(packed) - 1) || x'00'"
    assert change(wrong) == len(places)
    for statement in ("SELECT 1", "DELETE FROM pack_tables"):
        change(statement)
        np.testing.assert_array_equal(read()[0], truth)
    pixels_again, again = read()  # the second copy, made by a reader
    np.testing.assert_array_equal(pixels_again, truth)
    assert again == exact


def test_explain_predicts_the_requests(remote: Remote) -> None:
    on = ("--store", remote.path, "explain", NAME, "--frames", "50:51", "--json")
    remote.forget()
    found = run_command(*on).object["fetch"]
    assert remote.requests == 0
    assert (found["requests"], found["rounds"]) == (1, 1)
    with Store.open(remote.path, read_only=True) as store:
        store[NAME].read(frames=[50])
    assert remote.proxy.counts.body_bytes == found["bytes"]
    again = run_command(*on).object["fetch"]
    assert (again["requests"], again["bytes"], again["cached"]) == (0, 0, found["bytes"])


def test_cached_original_is_preferred_to_tiles_that_are_not(remote: Remote) -> None:
    def planned() -> list[str]:
        found = run_command("--store", remote.path, "explain", NAME, *wanted).object
        assert remote.requests == 0
        return [one["source"] for one in found["sources"]]

    wanted = ("--frames", "3:4", "--region", "96x64+64+64", "--psnr", "20", "--json")
    remote.forget()
    assert planned() == ["tiles"]
    with Store.open(remote.path, read_only=True) as store:
        store[NAME].read(frames=[3], psnr=math.inf)
        remote.proxy.reset()
        assert planned() == ["original"]
        remote.forget()
        assert planned() == ["tiles"]
        store[NAME].read(frames=[3], region=REGION, psnr=20)
        store[NAME].read(frames=[3], psnr=math.inf)
        remote.proxy.reset()
        assert planned() == ["tiles"]


def test_forked_children_read(remote: Remote) -> None:
    with Store.open(remote.path, read_only=True) as store:
        frames = {frame: store[NAME][frame].data for frame in (3, 30, 50)}
        remote.forget()

        def read(frame: int) -> None:
            np.testing.assert_array_equal(store[NAME][frame].data, frames[frame])

        for number in range(6):
            assert exit_code_of_child(partial(read, [3, 30, 50][number % 3])) == 0
            if number % 2:
                remote.forget()
        read(30)


def test_damage_in_the_cache_is_fetched_again(remote: Remote) -> None:
    with Store.open(remote.path, read_only=True) as store:
        before = pixels(store)
    for path in (remote.path / "cache" / "o").rglob("*-*"):
        if path.suffix != ".map":
            data = bytearray(path.read_bytes())
            for start in range(0, len(data), BLOCK_BYTES):
                data[start + 100 : start + 110] = bytes(len(data[start + 100 : start + 110]))
            path.write_bytes(data)
    remote.proxy.reset()
    with Store.open(remote.path, read_only=True) as store:
        for one, other in zip(before, pixels(store), strict=True):
            np.testing.assert_array_equal(one, other)
    assert remote.requests


def test_silent_server_is_an_error_in_time(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(remote.path, read_only=True) as store:
        assert isinstance(store.parts.objects, RemoteObjects)
        store.parts.objects.fetch_seconds = 2.0
        remote.proxy.faults.silent = True
        with pytest.raises(UnreachableError, match="does not answer"):
            store[NAME].read(frames=[5])
        remote.proxy.faults.silent = False
        assert store[NAME].read(frames=[5]).data.any()


def test_push_continues_after_an_interruption(
    local: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    options = seaweedfs.options(s3_proxy.port)
    with Store.open(local) as store:
        with pytest.raises(UsageError, match="no bucket"):
            push(store.parts)
        use_bucket(store.parts, f"s3://videos/{store.parts.directory.id}", options)
    with Store.open(local) as store:
        with pytest.raises(KeyboardInterrupt):
            push(store.parts, on_progress=stop)
        push(store.parts)
        with store.catalog.reading() as seen:
            assert seen.objects.unplaced() == {}
            count = len(seen.objects.sizes())
        assert isinstance(store.parts.objects, RemoteObjects)
        names = [name for name, *_ in store.parts.objects.client.list()]
        places = [name for name in names if "o/" in name]
    assert len(places) == count, names


def test_bucket_of_another_store_is_refused(
    local: Path, tmp_path: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> None:
    options = seaweedfs.options(s3_proxy.port)
    with Store.open(local) as store:
        url = f"s3://videos/{store.parts.directory.id}"
        use_bucket(store.parts, url, options)
        with pytest.raises(UsageError, match="are in s3"):
            use_bucket(store.parts, url + "-2", options)
    with new_store(tmp_path / "other") as other:
        with pytest.raises(StoreError, match="belongs to the store"):
            use_bucket(other.parts, url, options)
        assert StoreDirectory.open(tmp_path / "other").bucket is None


def test_commands(tmp_path: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer) -> None:
    place = tmp_path / "new"
    options = [
        f"--option={name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in seaweedfs.options(s3_proxy.port).items()
    ]
    url = f"s3://videos/{tmp_path.name}"
    assert run_command("init", place, "--option=region=x").code == 2
    assert run_command("init", place, "--objects", "http://x").code == 2
    assert not place.exists()
    assert run_command("init", place, "--objects", url, *options).code == 0
    on = ("--store", str(place))
    assert run_command(*on, "ingest", CLIP).code == 0
    found = run_command(*on, "doctor", "--json").objects
    assert [one["status"] for one in found if one["check"] in ("bucket", "push")] == ["ok"]
    done = run_command(*on, "push", "--json").object
    assert (done["url"], done["objects"], done["damaged"]) == (url, 0, [])
    fetch = run_command(*on, "stats", "--json").object["fetch"]
    assert (fetch["requests"], fetch["failure"]) == (0, None)
    assert "fetching" in run_command(*on, "stats").out


def test_damaged_object_is_not_pushed(
    local: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> None:
    with Store.open(local) as store:
        use_bucket(
            store.parts,
            f"s3://videos/{store.parts.directory.id}",
            seaweedfs.options(s3_proxy.port),
        )
        path = store.parts.originals.path_of(store[NAME].original)
        key = store[NAME].original.object_key
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    done = run_command("--store", local, "push", "--json")
    assert done.code == 30
    assert done.object["damaged"] == [key]
    with Store.open(local) as store, store.catalog.reading() as seen:
        assert list(seen.objects.unplaced()) == [key]


def test_joined_home_reads_what_was_pushed(
    tmp_path: Path, own_database: str, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    options = seaweedfs.options(s3_proxy.port)
    with Store.create(first, catalog_url=own_database) as store:
        store.ingest(CLIP, NAME)
        use_bucket(store.parts, f"s3://videos/{store.parts.directory.id}", options)
    assert run_command("join", second, "--catalog", own_database, "--json").code == 0
    assert StoreDirectory.open(second).bucket == StoreDirectory.open(first).bucket
    with Store.open(second) as store:
        with pytest.raises(UnreachableError, match="file of another home"):
            store[NAME].read(frames=[0])
        assert len(fsck.run(store.parts, repair=True)) == 1
    assert run_command("--store", first, "push", "--json").object["objects"] == 1
    with Store.open(first) as store:
        store[NAME].tiles.retile("uniform:2x2", span=(0, 1))
    for home in (first, second):
        shutil.rmtree(home / "cache" / "o", ignore_errors=True)
    with Store.open(first) as store, Store.open(second) as other:
        for one, more in zip(pixels(store), pixels(other), strict=True):
            np.testing.assert_array_equal(one, more)
        assert fsck.run(other.parts) == []


def test_drop_in_readers_fetch_what_they_read(remote: Remote, local: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    from vfsd.compat.cv2 import VideoCapture
    from vfsd.compat.resolve import close_stores

    right = cv2.VideoCapture(str(CLIP))
    try:
        remote.forget()
        capture = VideoCapture(f"vfsd://{remote.path}//{NAME}")
        assert capture.getBackendName() == "VFSD"
        assert capture.get(cv2.CAP_PROP_FOURCC) == right.get(cv2.CAP_PROP_FOURCC)
        assert capture.set(cv2.CAP_PROP_POS_FRAMES, 30)
        assert np.any(capture.read()[1])
        assert remote.requests == 1
        assert remote.proxy.counts.body_bytes < CLIP.stat().st_size / 2
        assert not VideoCapture(f"vfsd://{remote.path}//{NAME}", cv2.CAP_IMAGES).isOpened()
        assert not capture.set(cv2.CAP_PROP_FORMAT, -1)  # packets are read from a file only
        assert capture.isOpened()
    finally:
        close_stores()
        right.release()
