"""Cache files: random reads, writes and evictions against a model; plans of GETs; the parts of
`vfsd.remote.bucket` that need no server."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.selection import thorough_but
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.remote.block_cache import (
    RUN_BYTES,
    BlockCache,
    CachedObject,
    blocks_of,
    plan_gets,
)
from vfsd.remote.bucket import CostMeter, StreamLimiter, s3_config
from vfsd.remote.fetch_protocol import FetchCost, is_place


def place_of(number: int) -> str:
    return f"o/{number:02x}/{number:02x}{'5' * 62}-{number:016x}"


def byte_pattern(number: int, size: int) -> bytes:
    """Bytes that are never zero, and differ from block to block."""
    block = bytes(range(1, 252)) * (BLOCK_BYTES // 251 + 1)
    whole = b"".join(
        (number * 131 + index).to_bytes(4, "little").replace(b"\0", b"\1")
        + block[: BLOCK_BYTES - 4]
        for index in range(-(-size // BLOCK_BYTES))
    )
    return whole[:size]


def ready(folder: Path, limit: int) -> BlockCache:
    cache = BlockCache(folder, limit)
    for _ in cache.scan():
        pass
    return cache


def disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


SIZES = [1, BLOCK_BYTES, 300_001, RUN_BYTES, 2 * RUN_BYTES + 5]
ACTIONS = st.tuples(
    st.sampled_from(["write", "read", "read", "forget", "reopen", "drop"]),
    st.integers(0, len(SIZES) - 1),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 3 * RUN_BYTES),
)


@given(st.lists(ACTIONS, max_size=40), st.sampled_from([RUN_BYTES, 1 << 30]))
def test_bytes_of_the_cache(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[str, int, float, int]],
    limit: int,
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cache = ready(folder, limit)
    data = [byte_pattern(number, size) for number, size in enumerate(SIZES)]
    readers: dict[int, CachedObject] = {}
    for verb, number, where, length in actions:
        place, size = place_of(number), SIZES[number]
        start = int(where * size)
        end = min(size, start + length)
        if verb == "write":
            first = start // BLOCK_BYTES * BLOCK_BYTES
            last = min(size, -(-end // BLOCK_BYTES) * BLOCK_BYTES)
            if cache.write(place, size, first, memoryview(data[number])[first:last]):
                assert cache.read(place, size, start, end) == data[number][start:end]
        elif verb == "forget":
            cache.forget(place, size, blocks_of(start, end))
            assert cache.read(place, size, start, end) is None
        elif verb == "drop":
            cache.drop(place)
        elif verb == "reopen":
            used, objects = cache.used, cache.objects
            cache = ready(folder, limit)
            assert (cache.used, cache.objects) == (used, objects)
        found = cache.read(place, size, start, end)
        assert found in (None, data[number][start:end])
        reader = readers.get(number) or CachedObject.open(str(folder / place), size)
        if reader is not None:
            readers[number] = reader
            assert reader.read(start, end) in (None, data[number][start:end])
            if not reader.is_gone:
                assert reader.has(start, end) == (found is not None)
                missing = reader.missing(blocks_of(start, end))
                assert (missing == []) == (found is not None)
        assert cache.used <= limit
        assert disk_bytes(folder) <= limit + 16 * 4096


def test_space_of_a_killed_writer_is_freed(tmp_path: Path) -> None:
    cache = ready(tmp_path, 1 << 30)
    place, size = place_of(1), 3 * RUN_BYTES
    cache.write(place, size, 0, memoryview(byte_pattern(1, BLOCK_BYTES)))
    with (tmp_path / place).open("r+b") as file:
        file.seek(RUN_BYTES)
        file.write(byte_pattern(1, RUN_BYTES))  # without bits
    assert disk_bytes(tmp_path) > RUN_BYTES
    again = ready(tmp_path, 1 << 30)
    assert disk_bytes(tmp_path) <= BLOCK_BYTES + 8192
    assert again.read(place, size, 0, BLOCK_BYTES) == byte_pattern(1, BLOCK_BYTES)


def test_runs_that_were_read_stay(tmp_path: Path) -> None:
    cache = ready(tmp_path, 4 * 200_000)
    data = byte_pattern(0, 100_000)
    for number in range(4):
        cache.write(place_of(number), 100_000, 0, memoryview(data))
    reader = CachedObject.open(str(tmp_path / place_of(0)), 100_000)
    assert reader is not None
    for number in range(4, 40):
        cache.write(place_of(number), 100_000, 0, memoryview(data))
        reader.read(0, 10)
    assert cache.read(place_of(0), 100_000, 0, 100) is not None
    assert cache.read(place_of(2), 100_000, 0, 100) is None


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    foreign = [tmp_path / "o" / name for name in ("x", "ab/notes", "ab/notes.map", f"{'a' * 64}/0")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    cache = ready(tmp_path, 100_000)
    for number in range(9):
        cache.write(place_of(number), 90_000, 0, memoryview(byte_pattern(number, 90_000)))
    assert cache.evicted > 0
    assert [path.read_bytes() for path in foreign] == [b"mine"] * 4


@pytest.mark.parametrize("seconds", thorough_but([1.0], [1.0, 20.0]))
def test_reads_during_evictions(tmp_path: Path, seconds: float) -> None:
    """Another process reads while runs are evicted and written again."""
    size = 2 * RUN_BYTES
    data = byte_pattern(3, size)
    cache = ready(tmp_path, 1 << 30)
    place = place_of(3)
    cache.write(place, size, 0, memoryview(data))
    child = os.fork()
    if not child:
        code = 1
        try:
            files = None
            while os.getppid() != 1 and not (tmp_path / "end").exists():
                for start in range(0, size - 200_000, 150_000):
                    if files is None or files.is_gone:
                        files = CachedObject.open(str(tmp_path / place), size)
                        continue
                    found = files.read(start, start + 200_000)
                    if found not in (None, data[start : start + 200_000]):
                        os._exit(3)
            code = 0
        finally:
            os._exit(code)
    files = CachedObject.open(str(tmp_path / place), size)
    assert files is not None
    deadline = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < deadline:
        files.drop_run(rounds % 2)
        start = rounds % 2 * RUN_BYTES
        files.write(start, memoryview(data)[start : start + RUN_BYTES])
        rounds += 1
    (tmp_path / "end").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rounds > 20


@given(
    st.sets(st.integers(0, 400)),
    st.integers(0, 20),
    st.integers(1, 64),
    st.sets(st.integers(0, 400)),
)
def test_plan_of_gets(missing: set[int], gap: int, most: int, others: set[int]) -> None:
    size = 400 * BLOCK_BYTES + 17
    barred = frozenset(others - missing)
    plan = plan_gets(
        sorted(missing), size, gap=gap * BLOCK_BYTES, most=most * BLOCK_BYTES, barred=barred
    )
    covered = [number for start, end in plan for number in blocks_of(start, end)]
    assert len(covered) == len(set(covered))
    assert missing <= set(covered)
    assert barred.isdisjoint(covered)
    for start, end in plan:
        assert start % BLOCK_BYTES == 0
        assert end % BLOCK_BYTES == 0 or end == size
        assert 0 < end - start <= most * BLOCK_BYTES
        own = sorted(missing & set(blocks_of(start, end)))
        assert (own[0], own[-1]) == (start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES)
        assert all(later - number - 1 <= gap for number, later in pairwise(own))


def test_places() -> None:
    key = "ab" + "0" * 62
    assert is_place(f"o/ab/{key}-{'1' * 16}")
    assert is_place(f"o/ab/{key}-{'1' * 16}.sums")
    for other in (f"o/aa/{key}-{'1' * 16}", f"o/ab/{key}", f"o/ab/{key}-{'1' * 16}/x", "o/ab/x"):
        assert not is_place(other)


def test_measured_costs() -> None:
    meter = CostMeter()
    first = meter.cost(8)
    assert first.wait == pytest.approx(FetchCost().wait)
    assert first.byte == pytest.approx(FetchCost().byte)
    for number in range(2000):
        size = 40_000 * (1 + number % 20)
        meter.add(size, 0.1 + size * 2e-7)
    assert meter.cost(8).wait == pytest.approx(0.1, rel=0.01)
    assert meter.cost(8).byte == pytest.approx(2e-7, rel=0.01)
    for _ in range(2000):
        meter.add(32_768, 0.01)  # all of one size
    assert 0 <= meter.cost(8).wait <= 0.011


def test_limiter() -> None:
    async def run() -> None:
        limiter = StreamLimiter(4)
        assert [limiter.start(1) for _ in range(5)] == [True] * 4 + [False]
        waiting = [limiter.wait(1) for _ in range(3)]
        waiting[0].cancel()
        limiter.end(1)
        await asyncio.sleep(0)
        assert [one.done() for one in waiting] == [True, True, False]
        assert not limiter.start(1)  # others wait already
        limiter._halved -= 2
        limiter.halve()
        limiter.halve()
        assert 2 <= limiter.limit < 2.1
        limiter.end(1)
        assert not waiting[2].done()
        limiter.end(1)
        limiter.end(1)
        assert waiting[2].done()
        # A large body waits until others have ended.
        assert not limiter.start(1 << 30)

    asyncio.run(run())


def test_credentials(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B%\n"
        "[work]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E\n"
    )
    (tmp_path / ".aws" / "config").write_text("[profile work]\nregion = eu-central-1\n")
    home = {"HOME": str(tmp_path)}
    found = s3_config({}, home)
    assert (found["access_key_id"], found["secret_access_key"]) == ("A", "B%")
    assert "region" not in found
    found = s3_config({"profile": "work", "path_style": True, "checksum": "none"}, home)
    assert found == {
        "access_key_id": "C",
        "secret_access_key": "D",
        "session_token": "E",
        "region": "eu-central-1",
        "virtual_hosted_style_request": False,
    }
    # Those in the environment come first; obstore reads them itself.
    env = home | {"AWS_ACCESS_KEY_ID": "F", "AWS_SECRET_ACCESS_KEY": "G", "AWS_REGION": "x"}
    found = s3_config({"endpoint": "http://127.0.0.1:1"}, env)
    assert found == {
        "endpoint": "http://127.0.0.1:1",
        "region": "x",
        "checksum_algorithm": "sha256",
    }
