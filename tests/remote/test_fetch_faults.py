"""Failures of the bucket, of the fetch process, and of cache files: no wrong byte, no hang."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import cast

import pytest

from tests.remote.test_fetch_client import disk_bytes
from tests.support.disks import mounted
from tests.support.forking import exit_code_of_child
from tests.support.remote_objects import RemoteObjects, wait_until
from tests.support.selection import thorough_but
from vfsd.disk.checksums import (
    BlockChecksummer,
    ChecksummedFile,
    VerifiedBlocks,
)
from vfsd.errors import DamagedFileError, UnreachableError
from vfsd.remote.fetch_client import FetchClient
from vfsd.remote.fetch_protocol import FetchSettings
from vfsd.remote.remote_reader import RemoteReader

_MIB = 1 << 20
_BOUND = 2.0
"""An error may be late by this many seconds."""


@contextmanager
def paused(objects: RemoteObjects) -> Iterator[None]:
    """The server accepts connections, and never answers."""
    objects.server.pause()
    try:
        yield
    finally:
        objects.server.resume()


@contextmanager
def dead(objects: RemoteObjects) -> Iterator[None]:
    objects.server.kill()
    try:
        yield
    finally:
        objects.server.start()


@contextmanager
def busy(objects: RemoteObjects) -> Iterator[None]:
    objects.proxy.faults.busy = True
    try:
        yield
    finally:
        objects.proxy.faults.busy = False


@pytest.mark.parametrize(
    ("fault", "seconds"),
    thorough_but(
        [(paused, 3.0), (dead, 1.0), (busy, 1.0)],
        [(one, seconds) for one in (paused, dead, busy) for seconds in (1.0, 3.0, 20.0)],
    ),
)
def test_error_in_bounded_time(
    objects: RemoteObjects,
    fault: Callable[[RemoteObjects], AbstractContextManager[None]],
    seconds: float,
) -> None:
    client = objects.client(seconds=seconds)
    place = objects.upload(client, 4 * _MIB)
    data = objects.bytes[place]
    reader = objects.reader(client, place)
    assert reader.read(0, 1000) == data[:1000]
    took: list[float] = []

    def read(start: int) -> None:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer"):
            reader.read(start, 1000)
        took.append(time.monotonic() - began)

    with fault(objects):
        threads = [threading.Thread(target=read, args=(n * 100_000,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        assert reader.read(500, 500) == data[500:1000]  # cached bytes can be read
        assert client.status().cache_objects == 1
        for thread in threads:
            thread.join()
    assert len(took) == 8
    assert max(took) < seconds + _BOUND
    assert min(took) > seconds - _BOUND
    began = time.monotonic()
    assert reader.read(100_000, 1000) == data[100_000:101_000]
    assert time.monotonic() - began < _BOUND
    assert client.status().failure is None


def test_busy_bucket_is_asked_more_slowly(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, _MIB)
    reader = objects.reader(client, place)
    time.sleep(1.1)  # the limit is halved once a second at most
    objects.proxy.faults.busy_answers = 2
    assert reader.read(0, _MIB) == objects.bytes[place]
    status = client.status()
    assert status.retries == 2
    assert status.stream_limit <= 40


def test_cut_and_short_responses(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 8 * _MIB)
    reader = objects.reader(client, place)
    objects.proxy.faults.cut = 0.5
    objects.proxy.faults.short = 3
    chance = random.Random(1)
    for _ in range(12):
        start = chance.randrange(8 * _MIB)
        data = reader.read(start, 70_000)
        assert data == objects.bytes[place][start : start + 70_000]
    assert client.status().retries >= 5


def test_process_killed_during_reads(objects: RemoteObjects) -> None:
    client = objects.client()
    place = objects.upload(client, 16 * _MIB)
    data = objects.bytes[place]
    reader = objects.reader(client, place)
    objects.proxy.faults.lag = 0.02
    is_over = threading.Event()
    counts = [0] * 4
    wrong: list[object] = []

    def read(number: int) -> None:
        chance = random.Random(number)
        while not is_over.is_set():
            start = chance.randrange(len(data))
            try:
                if reader.read(start, 9000) != data[start : start + 9000]:
                    wrong.append(start)
            except Exception as error:
                wrong.append(repr(error))
            counts[number] += 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        before = sum(counts)
        wait_until(lambda before=before: sum(counts) > before + 8)
        objects.kill()
    before = sum(counts)
    wait_until(lambda: sum(counts) > before + 8)
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def checked(reader: RemoteReader, data: bytes) -> ChecksummedFile:
    """The reader, compared with the checksums of blocks."""
    summer = BlockChecksummer()
    summer.update(data)
    blocks = VerifiedBlocks(summer.finish())

    def report(ranges: Sequence[range], is_proven: bool) -> DamagedFileError:
        return DamagedFileError("damaged", ranges, is_proven=is_proven)

    return ChecksummedFile("object", reader, lambda _: blocks, report, reader.duplicate)


@pytest.mark.parametrize("seed", thorough_but([0], range(20)))
def test_random_damage_to_cache_files(objects: RemoteObjects, seed: int) -> None:
    client = objects.client()
    place = objects.upload(client, 5 * _MIB, seed=seed)
    data = objects.bytes[place]
    chance = random.Random(seed)
    assert objects.reader(client, place).read(0, len(data)) == data
    for _ in range(8):
        for file in (objects.cache / place, objects.cache / f"{place}.map"):
            size = file.stat().st_size
            with file.open("r+b") as damaged:
                for _ in range(chance.randrange(4)):
                    damaged.seek(chance.randrange(size))
                    damaged.write(chance.randbytes(chance.choice([1, 100, 40_000])))
                if chance.random() < 0.3:
                    damaged.truncate(chance.randrange(size))
                elif file.suffix == ".map":
                    damaged.truncate(size)
        opened = checked(objects.reader(client, place), data)
        for _ in range(10):
            start = chance.randrange(len(data))
            found = opened.read_some(start, 200_000)
            assert found == data[start : start + len(found)]
            assert found
        if chance.random() < 0.3:
            objects.kill()


def test_bound_of_the_cache(objects: RemoteObjects) -> None:
    """Random reads of three times what the cache holds, with kills in between."""
    limit = 16 * _MIB
    clients = [objects.client(cache_bytes=limit) for _ in range(2)]
    places = [objects.upload(clients[0], 6 * _MIB, seed=seed) for seed in range(8)]
    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            most[0] = max(most[0], disk_bytes(objects.cache / "o"))

    def read(client: FetchClient, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            place = chance.choice(places)
            start = chance.randrange(6 * _MIB)
            data = objects.reader(client, place).read(start, chance.choice([1000, 3 * _MIB]))
            assert data == objects.bytes[place][start : start + len(data)]

    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [threading.Thread(target=read, args=(clients[n % 2], n)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    objects.kill()
    for thread in threads:
        thread.join()
    is_over.set()
    watcher.join()
    assert limit // 2 < most[0] < limit + 64 * _MIB
    assert disk_bytes(objects.cache / "o") <= limit + _MIB


def test_full_disk(objects: RemoteObjects, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m", "none") as disk:
        client = objects.client(cache=disk / "cache", cache_bytes=1 << 30)
        place = objects.upload(client, 12 * _MIB)
        data = objects.bytes[place]
        reader = objects.reader(client, place)
        for start in range(0, len(data), _MIB):
            assert reader.read(start, _MIB) == data[start : start + _MIB]
        assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize >= _MIB
        (disk / "other").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096))
        for start in range(0, len(data), _MIB):
            assert reader.read(start, _MIB) == data[start : start + _MIB]
        client.close()
        pid = objects.process(disk / "cache")
        if pid is not None:
            os.kill(pid, 9)
        wait_until(lambda: objects.process(disk / "cache") is None)


def read_epoch(settings: FetchSettings, place: str, data: bytes, seed: int) -> None:
    """Read a whole object in random order, as a worker of a data loader."""
    client = FetchClient(settings)
    reader = client.open(place, len(data))
    starts = list(range(0, len(data), 100_000))
    random.Random(seed).shuffle(starts)
    for start in starts:
        assert reader.read(start, 100_000) == data[start : start + 100_000]
    client.close()


@pytest.mark.parametrize("method", thorough_but(["fork"], ["fork", "spawn"]))
def test_workers_fetch_each_byte_once(objects: RemoteObjects, method: str) -> None:
    client = objects.client()
    place = objects.upload(client, 8 * _MIB)
    data = objects.bytes[place]
    objects.proxy.reset()
    context = cast(SpawnContext, multiprocessing.get_context(method))
    for epoch in range(2):
        workers = [
            context.Process(target=read_epoch, args=(client.settings, place, data, epoch * 2 + n))
            for n in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        # Gaps between blocks may be fetched by both.
        assert objects.proxy.counts.body_bytes <= (1.05 * len(data) if not epoch else 0)
        objects.proxy.reset()


def test_workers_start_one_process(objects: RemoteObjects) -> None:
    first = objects.client()
    place = objects.upload(first, 100_000)
    objects.kill()
    first.close()

    def work() -> None:
        client = FetchClient(objects.settings())
        assert client.open(place, 100_000).read(0, 100_000) == objects.bytes[place]
        (objects.folder / f"pid-{os.getpid()}").write_text(str(client.status().pid))

    workers = [multiprocessing.get_context("fork").Process(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    pids = {path.read_text() for path in objects.folder.glob("pid-*")}
    assert pids == {str(objects.process())}


@pytest.mark.parametrize("forks", thorough_but([20], [20, 1000]))
def test_many_forks(objects: RemoteObjects, forks: int) -> None:
    """While other threads read, each child reads what is cached, and what is not."""
    client = objects.client()
    place = objects.upload(client, 32 * _MIB)
    data = objects.bytes[place]
    reader = objects.reader(client, place)
    is_over = threading.Event()

    def read(start: int) -> None:
        assert reader.read(start, 1000) == data[start : start + 1000]

    def go_on() -> None:
        chance = random.Random(0)
        while not is_over.wait(0.002):
            read(chance.randrange(len(data)))

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(forks):
            start = number * 32_768 % len(data)
            assert exit_code_of_child(partial(read, start)) == 0
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
