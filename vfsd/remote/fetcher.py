"""`Fetcher`: serves ranges of remote objects from the cache and the bucket.

It runs in one event loop. Ranges are aligned out to blocks, joined across small gaps, cut, and
fetched in parallel. A range that several clients want at the same time is fetched once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.errors import IntegrityError, UnreachableError, UsageError
from vfsd.remote.block_cache import RUN_BYTES, BlockCache, blocks_of, plan_gets
from vfsd.remote.bucket import Bucket, missing_object
from vfsd.remote.fetch_protocol import (
    INTO_CACHE,
    NO_CACHE,
    PAST_CACHE,
    FetchStatus,
    Get,
    Prefetch,
    is_place,
)

GAP_BYTES = 1 << 18
"""Unwanted bytes that cost less to fetch than another request."""
# Of the cache, which a file that was uploaded may take.
_KEPT_PART = 4
# Of prefetches that are not finished; later ones are ignored.
_MOST_PREFETCHED = 256 << 20
# A range whose blocks are evicted faster than they are read is given up.
_MAX_ROUNDS = 8
_TRIM_SECONDS = 5.0
# Whole objects are read in parts of this size, several at a time.
_PART_BYTES = 4 << 20
# Entries of the cache that are counted before other work gets a turn.
_SCANNED = 50

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Flight:
    """A GET in progress, with the blocks that it brings."""

    start: int
    task: asyncio.Task[memoryview]
    is_cached: bool = False


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    hit_bytes: int = 0
    shared: int = 0
    refetched: int = 0
    began: float = field(default_factory=time.monotonic)


class Fetcher:
    """Serves ranges of objects. For one event loop."""

    def __init__(self, bucket: Bucket, cache: BlockCache | None) -> None:
        """Without a `cache`, all answers have the bytes."""
        self._bucket = bucket
        self._cache = cache
        self._flights: dict[str, dict[int, _Flight]] = {}
        self._prefetched = 0
        self._counts = _Counts()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to count and trim the cache."""
        if self._cache is not None:
            self._spawn(self._keep_cache(self._cache))

    async def close(self) -> None:
        """Cancel all work."""
        tasks = [
            *self._tasks,
            *{one.task for own in self._flights.values() for one in own.values()},
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, wanted: Get) -> list[bytes | memoryview] | None:
        """Fetch ranges; return their bytes, or None if the client can read them from the cache.

        Raises `FileNotFoundError`, `UnreachableError`, `IntegrityError`, `UsageError`.
        """
        _require(wanted.place, wanted.size, wanted.ranges)
        self._counts.hits += wanted.hits
        self._counts.hit_bytes += wanted.hit_bytes
        if wanted.way == NO_CACHE:
            return [await self._uncached(wanted, *one) for one in wanted.ranges]
        ranges = [(start, end) for start, end in wanted.ranges if start < end]
        numbers = sorted({number for one in ranges for number in blocks_of(*one)})
        if wanted.way == PAST_CACHE:
            self._counts.refetched += 1
            self._forget(wanted.place, wanted.size, numbers)
        deadline = time.monotonic() + wanted.seconds if wanted.seconds else None
        brought: dict[int, _Flight] = {}
        for _ in range(_MAX_ROUNDS):
            missing = self._missing(wanted.place, wanted.size, numbers)
            missing = [number for number in missing if number not in brought]
            brought |= await self._bring(wanted.place, wanted.size, missing, deadline)
            is_cached = self._cache is not None and all(one.is_cached for one in brought.values())
            if is_cached and wanted.way == INTO_CACHE:
                return None
            found = [self._assembled(wanted, brought, *one) for one in wanted.ranges]
            if None not in found:
                return [one for one in found if one is not None]
        raise UnreachableError("the cache is too small for the reads of all processes")

    def prefetch(self, wanted: Prefetch) -> None:
        """Start to fetch ranges into the cache; return at once."""
        _require(wanted.place, wanted.size, wanted.ranges)
        size = sum(end - start for start, end in wanted.ranges)
        if self._cache is None or self._prefetched + size > _MOST_PREFETCHED:
            return
        self._prefetched += size
        self._spawn(self._prefetch(wanted, size))

    async def put(self, name: str, path: Path, *, keep: bool = False) -> int:
        """Upload a file as `Bucket.put`; `keep` writes its bytes to the cache, if it has room."""
        with path.open("rb") as file:
            # By the descriptor: the name may go while the bytes are sent.
            size = await self._bucket.put(name, Path(f"/proc/self/fd/{file.fileno()}"))
            cache = self._cache
            if keep and cache is not None and is_place(name) and size <= cache.limit // _KEPT_PART:
                for start in range(0, size, RUN_BYTES):
                    data = os.pread(file.fileno(), RUN_BYTES, start)
                    if not data or not cache.write(name, size, start, memoryview(data)):
                        break
                    await asyncio.sleep(0)
        return size

    async def delete(self, names: list[str]) -> None:
        """Delete objects from the bucket and the cache. Raises `UnreachableError`."""
        await self._bucket.delete(names)
        if self._cache is not None:
            for name in names:
                self._cache.drop(name)

    def status(self, pid: int, clients: int, *, inline: bool) -> FetchStatus:
        bucket, cache, counts = self._bucket, self._cache, self._counts
        return FetchStatus(
            pid=pid,
            uptime=time.monotonic() - counts.began,
            clients=clients,
            cost=bucket.cost,
            gets=bucket.gets,
            got_bytes=bucket.got_bytes,
            retries=bucket.retries,
            puts=bucket.puts,
            put_bytes=bucket.put_bytes,
            hits=counts.hits,
            hit_bytes=counts.hit_bytes,
            shared=counts.shared,
            refetched=counts.refetched,
            stream_limit=bucket.limiter.limit,
            cache_objects=0 if cache is None else cache.objects,
            cache_used=0 if cache is None else cache.used,
            cache_limit=0 if cache is None else cache.limit,
            evicted_bytes=0 if cache is None else cache.evicted,
            inline=inline,
            failure=bucket.failure,
        )

    # -- internals

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_cache(self, cache: BlockCache) -> None:
        for count, _ in enumerate(cache.scan()):
            if count % _SCANNED == 0:
                await asyncio.sleep(0)
        while True:
            await asyncio.sleep(_TRIM_SECONDS)
            cache.trim()

    def _missing(self, place: str, size: int, numbers: list[int]) -> list[int]:
        if self._cache is None:
            return numbers
        return [
            number for run in _runs(numbers) for number in self._cache.missing(place, size, run)
        ]

    def _forget(self, place: str, size: int, numbers: list[int]) -> None:
        own = self._flights.get(place, {})
        for number in numbers:
            # Flights that began earlier go on for those who wait for them.
            own.pop(number, None)
        if self._cache is not None:
            for run in _runs(numbers):
                self._cache.forget(place, size, run)

    async def _bring(
        self, place: str, size: int, missing: list[int], deadline: float | None
    ) -> dict[int, _Flight]:
        """Fetch blocks, or wait for those who do; return the finished flight of each."""
        own = self._flights.setdefault(place, {})
        mine: set[_Flight] = set()
        new = [number for number in missing if number not in own]
        barred = frozenset(own)
        for start, end in plan_gets(
            new, size, gap=GAP_BYTES, most=self._bucket.most_at_once, barred=barred
        ):
            mine.add(self._fly(own, place, size, start, end))
        found = {number: own[number] for number in missing}
        if not own:
            self._flights.pop(place, None)
        flights = set(found.values())
        if len(flights) > len(mine):
            self._counts.shared += 1
        if not flights:
            return {}
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        _, pending = await asyncio.wait([flight.task for flight in flights], timeout=left)
        if pending:
            raise UnreachableError(f"the bucket has not sent {place} in time")
        failed = [flight for flight in flights if flight.task.exception() is not None]
        for flight in failed:
            error = flight.task.exception()
            assert error is not None
            # The flight of another client may have begun long ago; this client has time left.
            if flight in mine or not isinstance(error, UnreachableError):
                raise error
        return {number: flight for number, flight in found.items() if flight not in failed}

    def _fly(self, own: dict[int, _Flight], place: str, size: int, start: int, end: int) -> _Flight:
        task = asyncio.get_running_loop().create_task(self._fetched(place, size, start, end))
        flight = _Flight(start, task)
        numbers = blocks_of(start, end)
        for number in numbers:
            own[number] = flight
        self._flights[place] = own

        def land(task: asyncio.Task[memoryview]) -> None:
            for number in numbers:
                if own.get(number) is flight:
                    del own[number]
            if not own and self._flights.get(place) is own:
                del self._flights[place]
            if task.cancelled() or task.exception() is not None or self._cache is None:
                return
            # Before any waiter goes on: callbacks run in the order in which they were added.
            flight.is_cached = self._cache.write(place, size, start, task.result())

        task.add_done_callback(land)
        return flight

    async def _uncached(self, wanted: Get, start: int, end: int) -> bytes:
        """Return the bytes of a range, past the cache."""
        most = min(_PART_BYTES, self._bucket.most_at_once)
        tasks = [
            asyncio.ensure_future(self._fetched(wanted.place, wanted.size, at, min(end, at + most)))
            for at in range(start, end, most)
        ]
        try:
            return b"".join(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def _fetched(self, place: str, size: int, start: int, end: int) -> memoryview:
        try:
            return await self._bucket.get(place, start, end)
        except FileNotFoundError:
            raise missing_object(place) from None

    def _assembled(
        self, wanted: Get, brought: dict[int, _Flight], start: int, end: int
    ) -> bytes | memoryview | None:
        """Return the bytes of a range; None if some were evicted in the meantime."""
        parts: list[bytes | memoryview] = []
        while start < end:
            flight = brought.get(start // BLOCK_BYTES)
            if flight is not None:
                data = flight.task.result()
                stop = min(end, flight.start + len(data))
                parts.append(data[start - flight.start : stop - flight.start])
            else:
                stop = min(end, (start // BLOCK_BYTES + 1) * BLOCK_BYTES)
                while stop < end and stop // BLOCK_BYTES not in brought:
                    stop = min(end, stop + BLOCK_BYTES)
                if self._cache is None:
                    return None
                part = self._cache.read(wanted.place, wanted.size, start, stop)
                if part is None:
                    # The map has bits, the file does not have the bytes: it was cut off.
                    self._forget(wanted.place, wanted.size, list(blocks_of(start, stop)))
                    return None
                parts.append(part)
            start = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _prefetch(self, wanted: Prefetch, size: int) -> None:
        try:
            await self.get(Get(wanted.place, wanted.size, wanted.ranges))
        except (OSError, UnreachableError, IntegrityError) as error:
            _log.debug("prefetch of %s failed: %s", wanted.place, error)
        finally:
            self._prefetched -= size


def _require(place: str, size: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Raise `UsageError` for a name that is not an object's, or a range outside of it."""
    if not is_place(place):
        raise UsageError(f"{place!r} must be the place of an object")
    for start, end in ranges:
        if not 0 <= start <= end <= size:
            raise UsageError(f"the range {start} to {end} must lie in the {size} bytes of {place}")


def _runs(numbers: list[int]) -> list[range]:
    """Return ascending numbers as ranges."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found
