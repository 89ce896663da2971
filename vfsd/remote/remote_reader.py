"""`RemoteReader`: reads an object of a bucket through the cache of its home. `UncachedObject` reads
all of one, for checks.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.disk.object_reader import LocalReader, ObjectReader
from vfsd.disk.safe_open import CHUNK
from vfsd.errors import IntegrityError
from vfsd.remote.block_cache import CachedObject, blocks_of
from vfsd.remote.fetch_protocol import INLINE, INTO_CACHE, NO_CACHE, PAST_CACHE, is_place

# Bytes of one request.
_BATCH_BYTES = 32 << 20
# A reader that has read this much in order is followed by prefetches.
_SEQUENTIAL_BYTES = 8 << 20
_MOST_AHEAD = 16 << 20
# Bytes that a check of a whole object has in memory.
_WINDOW_BYTES = 16 << 20


class Fetches(Protocol):
    """The part of `vfsd.remote.fetch_client.FetchClient` that a reader uses."""

    cache: Path

    def get(
        self, place: str, size: int, ranges: Sequence[tuple[int, int]], way: int
    ) -> Sequence[bytes] | None: ...
    def prefetch(self, place: str, size: int, ranges: Sequence[tuple[int, int]]) -> None: ...
    def count_hit(self, size: int) -> None: ...


class RemoteReader:
    """Reads one object; see `vfsd.disk.object_reader.ObjectReader`. Thread-safe, also in forks.

    Bytes are not compared with checksums here. Callers do that, and use `read_again` for bytes
    that do not match.
    """

    is_stable = False

    def __init__(self, client: Fetches, place: str, size: int) -> None:
        """Raises `IntegrityError` if `place` is not the name of an object."""
        if not is_place(place):
            raise IntegrityError(f"{place!r} must be the place of an object")
        self._client = client
        self._place = place
        self._size = size
        self._path = os.path.join(client.cache, place)
        self._files: CachedObject | None = None
        self._copy: LocalReader | None = None
        self._is_closed = False
        self._next = self._streak = self._ahead = 0

    @property
    def size(self) -> int:
        return self._size

    @property
    def identity(self) -> tuple[str, str]:
        return "remote", self._place

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from `position`; fewer than `size` only at the end.

        Raises `FileNotFoundError` if the bucket does not have the object, `UnreachableError`, and
        `IntegrityError` if it has another size.
        """
        end = min(position + size, self._size)
        if end <= position:
            self._require_open()
            return b""
        if end - position > _BATCH_BYTES:
            return b"".join(
                self.read(at, min(_BATCH_BYTES, end - at))
                for at in range(position, end, _BATCH_BYTES)
            )
        data = self._cached(position, end)
        if data is None:
            (data,) = self._fetched([(position, end)])
        self._follow(position, end)
        return data

    def readinto(self, buffer: memoryview, position: int) -> int:
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of half-open ranges, cut off at the end; one request for what is not
        cached. Raises as `read`."""
        wanted = [(min(start, self._size), min(end, self._size)) for start, end in ranges]
        found: list[bytes | None] = []
        batch: list[int] = []
        batch_bytes = 0
        for number, (start, end) in enumerate(wanted):
            if end - start > _BATCH_BYTES or end <= start:
                found.append(self.read(start, end - start))
                continue
            found.append(self._cached(start, end))
            if found[-1] is None:
                if batch_bytes + end - start > _BATCH_BYTES:
                    self._fill(found, wanted, batch)
                    batch, batch_bytes = [], 0
                batch.append(number)
                batch_bytes += end - start
        self._fill(found, wanted, batch)
        return [data for data in found if data is not None]

    def read_again(self, position: int, size: int) -> bytes:
        """Fetch bytes from the bucket again, for those that looked damaged. Raises as `read`."""
        self._require_open()
        end = min(position + size, self._size)
        parts = []
        for at in range(position, end, _BATCH_BYTES):
            one = at, min(end, at + _BATCH_BYTES)
            found = self._client.get(self._place, self._size, [one], PAST_CACHE)
            parts += _all_of(found, [one])
        return b"".join(parts)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        wanted = [(min(start, self._size), min(end, self._size)) for start, end in ranges]
        wanted = [(start, end) for start, end in wanted if not self._has(start, end)]
        if wanted and not self._is_closed:
            self._client.prefetch(self._place, self._size, wanted)

    def cached(self, position: int, size: int) -> int:
        end = min(position + size, self._size)
        files = self._open_files()
        if files is None or end <= position:
            return 0
        missing = 0
        with suppress(OSError):
            for number in files.missing(blocks_of(position, end)):
                start = number * BLOCK_BYTES
                missing += min(end, start + BLOCK_BYTES) - max(position, start)
            return end - position - missing
        return 0

    def descriptor(self) -> int:
        """Return a descriptor of a copy of the object, which the reader closes; see `read`."""
        self._require_open()
        if self._copy is None:
            # Not the file of the cache: its blocks may be evicted at any time.
            with tempfile.TemporaryFile(dir=self._client.cache) as file:
                copy = LocalReader(fd := os.dup(file.fileno()))
            try:
                for at in range(0, self._size, _BATCH_BYTES):
                    data = memoryview(self.read(at, _BATCH_BYTES))
                    while data:
                        data = data[os.write(fd, data) :]
            except BaseException:
                copy.close()
                raise
            # Another thread may have made one.
            if (kept := self.__dict__.setdefault("_whole", copy)) is not copy:
                copy.close()
            self._copy = kept
        return self._copy.fd

    def duplicate(self) -> RemoteReader:
        return RemoteReader(self._client, self._place, self._size)

    def switch_to(self, other: ObjectReader) -> None:
        """Read from another place of the bucket, after a repair; ignores local files."""
        if isinstance(other, RemoteReader):
            self._files = None
            self._place, self._size, self._path = other._place, other._size, other._path

    def close(self) -> None:
        self._is_closed = True
        self._files = None
        if self._copy is not None:
            self._copy.close()

    # -- internals

    def _require_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the object is closed")

    def _open_files(self) -> CachedObject | None:
        files = self._files
        if files is None or files.is_gone:
            files = CachedObject.open(self._path, self._size)
            self._files = None if self._is_closed else files
        return files

    def _cached(self, start: int, end: int) -> bytes | None:
        """Return bytes from the cache files; None if they are not all there."""
        self._require_open()
        files = self._files
        try:
            data = None if files is None else files.read(start, end)
            if data is None:
                # The files may have been deleted, and written again.
                again = self._open_files()
                if again is None or again is files:
                    return None
                data = again.read(start, end)
        except OSError:
            return None
        if data is not None:
            self._client.count_hit(end - start)
        return data

    def _has(self, start: int, end: int) -> bool:
        files = self._open_files()
        with suppress(OSError):
            return end <= start or (files is not None and files.has(start, end))
        return False

    def _fill(
        self, found: list[bytes | None], wanted: Sequence[tuple[int, int]], numbers: Sequence[int]
    ) -> None:
        if numbers:
            data = self._fetched([wanted[number] for number in numbers])
            for number, one in zip(numbers, data, strict=True):
                found[number] = one

    def _fetched(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Fetch ranges that are not cached."""
        found = self._client.get(self._place, self._size, ranges, INTO_CACHE)
        if found is None:
            files = self._open_files()
            read = [self._read_quietly(files, *one) for one in ranges]
            if None not in read:
                return [one for one in read if one is not None]
            # Evicted already, or the cache files are damaged.
            found = self._client.get(self._place, self._size, ranges, INLINE)
        return _all_of(found, ranges)

    def _read_quietly(self, files: CachedObject | None, start: int, end: int) -> bytes | None:
        with suppress(OSError):
            return None if files is None else files.read(start, end)
        return None

    def _follow(self, start: int, end: int) -> None:
        """Prefetch for reads in order, twice as far ahead as was read."""
        if start != self._next:
            self._streak = self._ahead = 0
        self._streak += end - start
        self._next = end
        if self._streak < _SEQUENTIAL_BYTES:
            return
        window = min(2 * self._streak, _MOST_AHEAD)
        if self._ahead - end < window // 2:
            ahead = max(end, self._ahead), min(self._size, end + window)
            self._ahead = ahead[1]
            if ahead[0] < ahead[1]:
                self.prefetch([ahead])


class UncachedObject:
    """The bytes of an object in the bucket, read in order and past the cache.

    A `vfsd.disk.checksums.WholeFile`. Raises `FileNotFoundError` and `UnreachableError`.
    """

    def __init__(self, client: Fetches, place: str, size: int) -> None:
        """`size` is that of the file in the bucket."""
        self._client = client
        self._place = place
        self._size = size
        self._window, self._window_at = b"", 0

    def version(self) -> tuple[int, int, int]:
        # A name in the bucket never gets other bytes.
        return int(self._place.removesuffix(".sums")[-16:], 16), self._size, 0

    def read(self, position: int) -> bytes:
        at = position - self._window_at
        if not 0 <= at < len(self._window):
            end = min(self._size, position + _WINDOW_BYTES)
            self._window, self._window_at, at = self._fetch(position, end), position, 0
        return self._window[at : at + CHUNK]

    def block(self, own: range) -> bytes | None:
        return self._fetch(own.start, min(own.stop, self._size))

    def close(self) -> None:
        self._window = b""

    def _fetch(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        found = self._client.get(self._place, self._size, [(start, end)], NO_CACHE)
        return _all_of(found, [(start, end)])[0]


def _all_of(found: Sequence[bytes] | None, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    if found is None or [*map(len, found)] != [end - start for start, end in ranges]:
        raise OSError(errno.EIO, "the fetch process sent other ranges than it was asked for")
    return list(found)
