"""Reads of remote objects by the fetch process and its cache."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.support.forking import exit_code_of_child
from tests.support.remote_objects import RemoteObjects, wait_until
from tests.support.seaweedfs import ACCESS_KEY, SECRET_KEY
from vfsd.disk.object_reader import ObjectReader
from vfsd.errors import ClosedError, IntegrityError, StoreError, UnreachableError, UsageError
from vfsd.remote.fetch_client import FetchClient
from vfsd.remote.fetch_protocol import fetch_settings

_MIB = 1 << 20


def test_read_and_read_again_from_cache(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 10 * _MIB + 1)
    data = objects.bytes[place]
    objects.proxy.reset()
    reader: ObjectReader = objects.reader(client, place)
    assert reader.size == len(data)
    assert reader.cached(0, len(data)) == 0
    assert reader.read(100_000, 50_000) == data[100_000:150_000]
    # Aligned out to blocks of 32 KiB.
    assert objects.proxy.counts.ranges == ["bytes=98304-163839"]
    assert reader.cached(0, len(data)) == 65_536
    assert reader.cached(90_000, 10_000) == 100_000 - 98_304
    assert reader.read(98_304, 65_536) == data[98_304:163_840]
    assert len(objects.proxy.counts.ranges) == 1
    # Another process, or another open, has the same cache.
    again = objects.reader(objects.client(), place)
    assert again.read(120_000, 10) == data[120_000:120_010]
    assert len(objects.proxy.counts.ranges) == 1
    assert reader.read(len(data) - 5, 100) == data[-5:]
    assert reader.read(len(data), 100) == b""
    buffer = bytearray(70_000)
    assert reader.readinto(memoryview(buffer), 98_304) == 70_000
    assert buffer == data[98_304:168_304]
    status = client.status()
    assert (status.gets, status.shared, status.failure) == (3, 0, None)
    assert status.cache_used == 5 * 32_768 + 4096


def test_read_many_joins_and_cuts(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 20 * _MIB)
    data = objects.bytes[place]
    objects.proxy.reset()
    reader = objects.reader(client, place)
    ranges = [
        (0, 10),
        (200_000, 300_000),
        (15 * _MIB, 15 * _MIB + 1),
        (5, 5),
        (40 * _MIB, 50 * _MIB),
    ]
    assert reader.read_many(ranges) == [data[start:end] for start, end in ranges]
    # The first two are joined across the gap.
    assert sorted(objects.proxy.counts.ranges) == [
        "bytes=0-327679",
        "bytes=15728640-15761407",
    ]
    assert objects.proxy.counts.most_open == 2
    assert reader.read(0, len(data)) == data
    largest = max(
        int(end) - int(start) + 1
        for start, _, end in (one[6:].partition("-") for one in objects.proxy.counts.ranges)
    )
    assert largest <= 8 * _MIB
    objects.proxy.reset()
    assert reader.read_many([(0, len(data)), (1, 2)]) == [data, data[1:2]]
    assert objects.proxy.counts.requests.total() == 0


def test_prefetch(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 2 * _MIB)
    reader = objects.reader(client, place)
    reader.prefetch([(0, _MIB)])
    wait_until(lambda: reader.cached(0, _MIB) == _MIB)
    objects.proxy.reset()
    reader.prefetch([(1, 2)])
    assert reader.read(0, _MIB) == objects.bytes[place][:_MIB]
    assert objects.proxy.counts.requests.total() == 0


def test_same_range_of_two_clients_is_fetched_once(objects: RemoteObjects) -> None:
    first = objects.client()
    place = objects.upload(first, 4 * _MIB)
    objects.proxy.reset()
    objects.proxy.faults.lag = 0.3
    readers = [objects.reader(client, place) for client in (first, objects.client())]
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda one: found.append(one.read(0, 4 * _MIB)), args=(one,))
        for one in readers
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [objects.bytes[place]] * 8
    assert objects.proxy.counts.body_bytes == 4 * _MIB
    assert first.status().shared == 7


def test_damaged_cache_file_is_refetched(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, _MIB)
    data = objects.bytes[place]
    reader = objects.reader(client, place)
    assert reader.read(0, _MIB) == data
    with (objects.cache / place).open("r+b") as file:
        file.seek(40_000)
        file.write(b"damage")
    assert reader.read(32_768, 32_768) != data[32_768:65_536]
    assert reader.read_again(32_768, 32_768) == data[32_768:65_536]
    assert reader.read(0, _MIB) == data
    assert client.status().refetched == 1


@pytest.mark.parametrize("damage", ["data", "map", "head", "both", "link"])
def test_lost_cache_files(objects: RemoteObjects, damage: str) -> None:
    client = objects.client()
    place = objects.upload(client, _MIB)
    reader = objects.reader(client, place)
    assert reader.read(0, 100) == objects.bytes[place][:100]
    file, blocks = objects.cache / place, objects.cache / f"{place}.map"
    if damage == "data":
        os.truncate(file, 10)
    elif damage == "map":
        os.truncate(blocks, 40)
    elif damage == "head":
        with blocks.open("r+b") as head:
            head.write(b"something")
    elif damage == "both":
        file.unlink()
        blocks.unlink()
    else:
        file.rename(objects.folder / "elsewhere")
        file.symlink_to(objects.folder / "elsewhere")
    for one in (reader, objects.reader(client, place)):
        assert one.read(50, 100_000) == objects.bytes[place][50:100_050]


def test_missing_and_shorter_objects(objects: RemoteObjects) -> None:
    client = objects.client(seconds=2.0)
    place = objects.upload(client, 100_000)
    missing = f"o/00/{'0' * 64}-{'0' * 16}"
    assert client.size(place) == 100_000
    assert client.size(missing) is None
    with pytest.raises(FileNotFoundError):
        client.open(missing, 100).read(0, 10)
    with pytest.raises(IntegrityError, match="shorter"):
        client.open(place, 300_000).read(200_000, 10)
    client.delete([place, missing])
    assert client.size(place) is None
    assert not (objects.cache / place).exists()
    with pytest.raises(IntegrityError):
        client.open("../x", 100)


def test_upload_twice(objects: RemoteObjects, tmp_path: Path) -> None:
    client = objects.client()
    place = objects.upload(client, 1000)
    assert client.put(place, objects.folder / "upload") == 1000  # the first answer was lost
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(IntegrityError):
        client.put(place, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        client.put(place, tmp_path / "missing")
    large = objects.upload(client, 20 * _MIB, seed=1)
    assert client.put(large, objects.folder / "upload") == 20 * _MIB
    assert sorted(name for name, _, _ in client.list()) == sorted([place, large])
    (tmp_path / "note").write_bytes(b"{}")
    client.put("store.json", tmp_path / "note")
    assert client.read_file("store.json") == b"{}"


def test_whole_object_as_file(objects: RemoteObjects) -> None:
    client = objects.client(cache_bytes=_MIB)
    place = objects.upload(client, 3 * _MIB)
    reader = objects.reader(client, place)
    assert os.pread(reader.descriptor(), 4 * _MIB, 0) == objects.bytes[place]
    assert reader.descriptor() == reader.descriptor()
    reader.close()
    with pytest.raises(OSError, match="closed"):
        reader.read(0, 1)


def test_small_cache_is_kept_within_its_bound(objects: RemoteObjects) -> None:
    limit = 8 * _MIB
    client = objects.client(cache_bytes=limit)
    places = [objects.upload(client, 3 * _MIB, seed=seed) for seed in range(8)]
    chance = random.Random(5)
    foreign = objects.cache / "o" / "ab" / "notes.txt"
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_bytes(b"mine")
    readers = {place: objects.reader(client, place) for place in places}
    for _ in range(150):
        place = chance.choice(places)
        start = chance.randrange(3 * _MIB)
        data = readers[place].read(start, chance.randrange(1, 300_000))
        assert data == objects.bytes[place][start : start + len(data)]
    assert client.status().evicted_bytes > limit
    assert disk_bytes(objects.cache / "o") <= limit
    assert foreign.read_bytes() == b"mine"
    # A new process counts the same.
    used = client.status().cache_used
    objects.kill()
    wait_until(lambda: client.status().cache_used == used)


def test_restart_after_kill(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 2 * _MIB)
    reader = objects.reader(client, place)
    for part in range(4):
        objects.kill()
        start = part * _MIB // 2
        assert reader.read(start, 1000) == objects.bytes[place][start : start + 1000]


def test_process_ends_without_clients(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 1000)
    assert objects.process() is not None
    client.close()
    wait_until(lambda: objects.process() is None)
    assert not (objects.cache / "fetch.sock").exists()
    with pytest.raises(ClosedError):
        client.open(place, 1000).read(0, 1)


def test_forked_child_connects_again(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 4 * _MIB)
    data = objects.bytes[place]
    reader = objects.reader(client, place)

    def read(start: int) -> None:
        assert reader.read(start, 1000) == data[start : start + 1000]

    read(0)
    for number in range(20):
        assert exit_code_of_child(partial(read, number * 100_000)) == 0
        read(number * 100_000 + 50_000)


def test_fetch_in_the_process(objects: RemoteObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    place = objects.upload(objects.client(), _MIB)
    objects.kill()
    monkeypatch.setenv("VFSD_FETCH", "inline")
    client = objects.client()
    reader = objects.reader(client, place)

    def fails() -> None:
        with pytest.raises(UsageError, match="before a fork"):
            reader.read(700_000, 10)

    def works() -> None:
        assert reader.read(500_000, 10) == objects.bytes[place][500_000:500_010]

    assert exit_code_of_child(works) == 0  # nothing was started yet
    assert reader.read(0, 100) == objects.bytes[place][:100]
    assert client.status().inline
    assert objects.process() is None
    assert exit_code_of_child(fails) == 0
    works()
    # A second one has no right to write the cache, and reads it.
    other = objects.client()
    assert objects.reader(other, place).read(0, 100) == objects.bytes[place][:100]
    assert objects.reader(other, place).read(900_000, 9) == objects.bytes[place][900_000:900_009]
    assert other.status().cache_limit == 0
    monkeypatch.setenv("VFSD_FETCH", "somehow")
    with pytest.raises(UsageError, match="VFSD_FETCH"):
        objects.client()


def test_wrong_credentials(objects: RemoteObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="refuses access") as caught:
        objects.client().size("store.json")
    assert "credentials" in str(caught.value.hint)
    # A new process has the new environment.
    wait_until(lambda: objects.process() is None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert objects.client().size("store.json") is None


def test_new_credentials_in_profile(
    objects: RemoteObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in objects.server.environment:
        monkeypatch.delenv(name)
    file = objects.folder / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    file.write_text(text.format(ACCESS_KEY, SECRET_KEY))
    client = objects.client()
    assert client.size("store.json") is None
    file.write_text(text.format(ACCESS_KEY, "expired"))
    assert client.size("store.json") is None
    pid = objects.process()
    objects.kill()
    with pytest.raises(UnreachableError, match="refuses access"):
        client.size("store.json")
    file.write_text(text.format(ACCESS_KEY, SECRET_KEY))
    assert client.size("store.json") is None
    assert objects.process() != pid


def test_settings_that_the_process_refuses(objects: RemoteObjects) -> None:
    wrong = msgspec.structs.replace(objects.settings(), options={"checksum": "nonsense"})
    client = FetchClient(wrong)
    with pytest.raises(StoreError, match="cannot be opened"):
        client.size("store.json")
    client.close()
    # A client with other settings replaces the process.
    assert objects.client().size("store.json") is None


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("http://bucket/x", {}, "s3://bucket/prefix"),
        ("s3:///x", {}, "s3://bucket/prefix"),
        ("s3://me:secret@bucket/x", {}, "password"),
        ("s3://bucket", {"secret_access_key": "x"}, "must not be stored"),
        ("s3://bucket", {"colour": "x"}, "colour"),
    ],
)
def test_invalid_settings(url: str, options: dict[str, str | bool], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fetch_settings("/nowhere", url, options)


def disk_bytes(folder: Path) -> int:
    """The bytes that all files below a folder take on the disk."""
    found = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found += os.lstat(os.path.join(top, name)).st_blocks * 512
    return found
