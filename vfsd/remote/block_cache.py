"""Cached blocks of remote objects: sparse files, each with a map of the blocks that it has.

``o/ab/PLACE`` has the bytes of an object at their positions, ``o/ab/PLACE.map`` a head and a record
for each run of 4 MiB: generation, whether it was used, and a bit for each block. A bit is set after
the bytes of its block are written. `CachedObject` is used by all processes; `BlockCache` writes and
evicts, in one process.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.disk.disk_reserve import RESERVE_BYTES
from vfsd.disk.safe_open import STORED_FLAGS
from vfsd.disk.tempfiles import NO_SPACE
from vfsd.remote.fetch_protocol import is_place

RUN_BLOCKS = 128
RUN_BYTES = RUN_BLOCKS * BLOCK_BYTES
"""The unit of eviction."""

_HEAD = struct.Struct("<8sQ16x")
_MAGIC = b"vfsdmap1"
# Generation, used, bits.
_RECORD = struct.Struct("<IB3x16s")
_USED = 4
_BITS = 8
_MAP = ".map"
# Disk space of a map.
_MAP_BYTES = 4096
_PUNCH = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_MAX_OPEN = 256
# Space that stays free for the store, at most.
_KEEP_FREE = 1 << 30
_LEAST_DEFAULT = 1 << 30

_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def blocks_of(start: int, end: int) -> range:
    """Return the blocks with any of the bytes ``start <= byte < end``."""
    return range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))


class CachedObject:
    """The two files of an object. Thread-safe; the files close with the last reference.

    Another process may evict blocks at any time. `read` notices that, as each eviction changes the
    generation of a run before and after its bytes go.
    """

    __slots__ = ("_data", "_is_marking", "_map", "size")

    def __init__(self, data: int, blocks: int, size: int, *, is_marking: bool = True) -> None:
        """Take over the descriptors of both files."""
        self._data = data
        self._map = blocks
        self._is_marking = is_marking
        self.size = size  #: of the object, in bytes

    def __del__(self) -> None:
        # Not in a `close`: another thread could be reading, and would get the bytes of whichever
        # file has the number next.
        for fd in (self._map, self._data):
            with suppress(OSError):
                os.close(fd)

    @classmethod
    def open(cls, path: str, size: int) -> CachedObject | None:
        """Open the files of an object of `size` bytes; None if they are missing or invalid."""
        flags, is_marking = os.O_RDWR | STORED_FLAGS, True
        try:
            try:
                blocks = os.open(path + _MAP, flags)
            except PermissionError:
                flags, is_marking = os.O_RDONLY | STORED_FLAGS, False
                blocks = os.open(path + _MAP, flags)
            try:
                data = os.open(path, flags)
            except OSError:
                os.close(blocks)
                return None
        except OSError:
            return None
        found = cls(data, blocks, size, is_marking=is_marking)
        return found if found._is_valid() else None

    @classmethod
    def create(cls, path: str, size: int) -> CachedObject:
        """Create empty files, in place of invalid ones. Raises `OSError`."""
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _remove_files(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | STORED_FLAGS
        data = os.open(path, flags, 0o600)
        try:
            blocks = os.open(path + _MAP, flags, 0o600)
        except OSError:
            os.close(data)
            raise
        made = cls(data, blocks, size)
        os.ftruncate(data, size)
        # The records first: a map with a head is complete.
        os.ftruncate(blocks, _map_size(size))
        os.pwrite(blocks, _HEAD.pack(_MAGIC, size), 0)
        return made

    @property
    def is_gone(self) -> bool:
        """Whether the files were deleted or cut off."""
        return os.fstat(self._map).st_nlink == 0 or os.fstat(self._data).st_size != self.size

    @property
    def allocated(self) -> int:
        """Bytes that the data file takes on the disk."""
        return os.fstat(self._data).st_blocks * 512

    def read(self, start: int, end: int) -> bytes | None:
        """Return bytes ``start <= byte < end`` of the object; None unless all are cached.

        Raises `OSError`.
        """
        at, count = self._records(start, end)
        before = os.pread(self._map, count, at)
        if not _has(before, start, end):
            return None
        data = os.pread(self._data, end - start, start)
        after = os.pread(self._map, count, at)
        if len(data) != end - start:
            return None
        if before != after and not (_has(after, start, end) and _same_generation(before, after)):
            return None
        if self._is_marking:
            self._mark_used(after, at)
        return data

    def has(self, start: int, end: int) -> bool:
        """Return whether all of these bytes are cached."""
        at, count = self._records(start, end)
        return _has(os.pread(self._map, count, at), start, end)

    def missing(self, wanted: range) -> list[int]:
        """Return those of the blocks `wanted` that are not cached."""
        if not wanted:
            return []
        start = wanted.start * BLOCK_BYTES
        at, count = self._records(start, wanted.stop * BLOCK_BYTES)
        records = os.pread(self._map, count, at)
        bits = b"".join(one[_BITS:] for one in _split(records)).ljust(count, b"\0")
        known = int.from_bytes(bits, "little") >> wanted.start % RUN_BLOCKS
        if known & (1 << len(wanted)) - 1 == (1 << len(wanted)) - 1:
            return []
        return [number for index, number in enumerate(wanted) if not known >> index & 1]

    # -- for the process that writes

    def write(self, start: int, data: memoryview) -> dict[int, int]:
        """Write whole blocks, and return how many are new in each run. Raises `OSError`."""
        written = 0
        while written < len(data):
            written += os.pwrite(self._data, data[written:], start + written)
        new = {}
        wanted = blocks_of(start, start + len(data))
        for run in range(wanted.start // RUN_BLOCKS, -(-wanted.stop // RUN_BLOCKS)):
            own = range(
                max(wanted.start, run * RUN_BLOCKS), min(wanted.stop, (run + 1) * RUN_BLOCKS)
            )
            mask = ((1 << len(own)) - 1) << own.start % RUN_BLOCKS
            known = self._bits(run)
            if known | mask != known:
                bits = (known | mask).to_bytes(RUN_BLOCKS // 8, "little")
                os.pwrite(self._map, bits, _position(run) + _BITS)
            new[run] = (known | mask).bit_count() - known.bit_count()
        return new

    def forget(self, wanted: range) -> dict[int, int]:
        """Clear the bits of blocks; return how many of each run had one. Raises `OSError`."""
        gone = {}
        for run in range(wanted.start // RUN_BLOCKS, -(-wanted.stop // RUN_BLOCKS)):
            own = range(
                max(wanted.start, run * RUN_BLOCKS), min(wanted.stop, (run + 1) * RUN_BLOCKS)
            )
            known = self._bits(run)
            left = known & ~(((1 << len(own)) - 1) << own.start % RUN_BLOCKS)
            self._change_generation(run)
            os.pwrite(self._map, left.to_bytes(RUN_BLOCKS // 8, "little"), _position(run) + _BITS)
            self._change_generation(run)
            gone[run] = known.bit_count() - left.bit_count()
        return gone

    def drop_run(self, run: int) -> None:
        """Clear a run and free its disk space. Raises `OSError`."""
        self._change_generation(run)
        os.pwrite(self._map, bytes(RUN_BLOCKS // 8), _position(run) + _BITS)
        self._punch(run * RUN_BYTES, RUN_BYTES)
        # Again: a reader that took the new generation with the old bits must notice.
        self._change_generation(run)

    def punch_unknown(self) -> None:
        """Free the space of blocks without a bit: a killed process left them. Raises `OSError`."""
        for run in range(_runs(self.size)):
            bits = self._bits(run)
            for index in range(RUN_BLOCKS):
                if not bits >> index & 1:
                    self._punch((run * RUN_BLOCKS + index) * BLOCK_BYTES, BLOCK_BYTES)

    def take_used(self, run: int) -> bool:
        """Return whether a run was read since the last call."""
        at = _position(run) + _USED
        if os.pread(self._map, 1, at) in (b"", b"\0"):
            return False
        os.pwrite(self._map, b"\0", at)
        return True

    def counts(self) -> dict[int, int]:
        """Return the number of cached blocks of each run that has any."""
        found = {}
        records = os.pread(self._map, _map_size(self.size), _HEAD.size)
        for run, record in enumerate(_split(records)):
            if count := int.from_bytes(record[_BITS:], "little").bit_count():
                found[run] = count
        return found

    # -- internals

    def _records(self, start: int, end: int) -> tuple[int, int]:
        """Return position and length of the records for bytes in the map."""
        first, last = start // RUN_BYTES, (end - 1) // RUN_BYTES
        return _position(first), (last - first + 1) * _RECORD.size

    def _bits(self, run: int) -> int:
        at = _position(run) + _BITS
        return int.from_bytes(os.pread(self._map, RUN_BLOCKS // 8, at), "little")

    def _change_generation(self, run: int) -> None:
        at = _position(run)
        number = int.from_bytes(os.pread(self._map, _USED, at), "little") + 1
        os.pwrite(self._map, (number & 0xFFFFFFFF).to_bytes(_USED, "little"), at)

    def _mark_used(self, records: bytes, at: int) -> None:
        for index in range(0, len(records), _RECORD.size):
            if not records[index + _USED]:
                with suppress(OSError):  # a full disk
                    os.pwrite(self._map, b"\1", at + index + _USED)

    def _punch(self, start: int, length: int) -> None:
        if _libc.fallocate(self._data, _PUNCH, start, length) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def _is_valid(self) -> bool:
        return (
            os.pread(self._map, _HEAD.size, 0) == _HEAD.pack(_MAGIC, self.size)
            and os.fstat(self._map).st_size == _map_size(self.size)
            and os.fstat(self._data).st_size == self.size
        )


class BlockCache:
    """Writes blocks below ``CACHE/o`` and evicts the least recently used runs. Not thread-safe.

    One process has it at a time. Only files with names of objects are touched.
    """

    def __init__(self, cache: Path, limit: int = 0) -> None:
        """`limit` is in bytes; 0 stands for a tenth of the disk, at least 1 GiB."""
        self._cache = cache
        self._files: OrderedDict[str, CachedObject] = OrderedDict()  # the latest ones
        # Blocks of each run, the next victim first.
        self._runs: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._objects: dict[str, int] = {}  # runs of each object
        self._sizes: dict[str, int] = {}
        disk = os.statvfs(cache)
        self._disk = disk.f_frsize * disk.f_blocks
        self.limit = limit or max(_LEAST_DEFAULT, self._disk // 10)
        self.used = 0  #: bytes on the disk
        self.evicted = 0  #: bytes, since the start
        self.is_ready = False  #: whether all files are counted

    @property
    def objects(self) -> int:
        """Number of objects with cached blocks."""
        return len(self._objects)

    def scan(self) -> Iterator[None]:
        """Count the files that are there; yields after each. Nothing is written before the end."""
        found: list[tuple[int, str, int]] = []
        top = self._cache / "o"
        for folder in sorted(_entries(top)):
            for name in _entries(top / folder):
                place = f"o/{folder}/{name.removesuffix(_MAP)}"
                yield
                if not is_place(place):
                    continue
                path = self._path(place)
                if name.endswith(_MAP):
                    if not os.path.lexists(path):
                        _remove_files(path)
                    continue
                with suppress(OSError):
                    status = os.lstat(path)
                    found.append((status.st_mtime_ns, place, status.st_size))
        for _, place, size in sorted(found):
            yield
            try:
                self._count(place, size)
            except OSError as error:
                _log.warning("%s is dropped from the cache: %s", place, error)
                _remove_files(self._path(place))
        self.is_ready = True
        self.trim()

    def missing(self, place: str, size: int, wanted: range) -> list[int]:
        """Return those of the blocks `wanted` that are not cached."""
        files = self._open(place, size)
        try:
            return list(wanted) if files is None else files.missing(wanted)
        except OSError:
            return list(wanted)

    def read(self, place: str, size: int, start: int, end: int) -> bytes | None:
        """Return bytes of an object; None unless all are cached."""
        files = self._open(place, size)
        try:
            return None if files is None else files.read(start, end)
        except OSError:
            return None

    def write(self, place: str, size: int, start: int, data: memoryview) -> bool:
        """Write whole blocks from `start`; return False if there is no space for them."""
        if not self.is_ready:
            return False
        needed = len(data) + (0 if place in self._objects else _MAP_BYTES)
        if not self._make_space(needed):
            return False
        try:
            files = self._open(place, size)
            if files is None:
                files = CachedObject.create(self._path(place), size)
                self._files[place] = files
            self._add(place, size, files.write(start, data))
        except OSError as error:
            if error.errno in NO_SPACE:
                self._make_space(len(data) + self._keep_free)
            else:
                _log.warning("the cache cannot be written: %s", error)
            self._recount(place, size)
            return False
        return True

    def forget(self, place: str, size: int, wanted: range) -> None:
        """Drop blocks that are damaged."""
        if (files := self._open(place, size)) is not None:
            with suppress(OSError):
                files.forget(wanted)
            self._recount(place, size)

    def drop(self, place: str) -> None:
        """Drop an object."""
        if is_place(place):
            self._uncount(place)
            self._files.pop(place, None)
            _remove_files(self._path(place))

    def trim(self) -> None:
        """Evict what exceeds the limit, or is needed as free space by others."""
        self._make_space(0)

    # -- internals

    @property
    def _keep_free(self) -> int:
        return RESERVE_BYTES + min(_KEEP_FREE, self._disk // 50)

    def _make_space(self, needed: int) -> bool:
        """Evict until `needed` bytes can be written within the limit; False if they cannot."""
        if needed > self.limit:
            return False
        while self.used + needed > self.limit:
            if not self._evict():
                return False
        while needed + self._keep_free > self._free():
            if not self._evict():
                return False
        return True

    def _free(self) -> int:
        disk = os.statvfs(self._cache)
        return disk.f_bavail * disk.f_frsize

    def _evict(self) -> bool:
        """Evict one run, the least recently used; False if there is none."""
        # Each run gets a second chance if it was read. After a round, no marks are left.
        for _ in range(len(self._runs) + 1):
            if not self._runs:
                return False
            place, run = next(iter(self._runs))
            try:
                files = self._open(place, self._sizes[place])
                if files is not None and files.take_used(run):
                    self._runs.move_to_end((place, run))
                    continue
                if files is not None:
                    self._drop_run(files, place, run)
            except OSError as error:  # no holes on this file system
                _log.debug("%s is dropped from the cache: %s", place, error)
                self.drop(place)
            break
        return True

    def _drop_run(self, files: CachedObject, place: str, run: int) -> None:
        blocks = self._runs[place, run]
        files.drop_run(run)
        self.evicted += blocks * BLOCK_BYTES
        if self._objects[place] == 1:
            self.drop(place)
        else:
            self._remove(place, run)

    def _path(self, place: str) -> str:
        return os.path.join(self._cache, place)

    def _open(self, place: str, size: int) -> CachedObject | None:
        files = self._files.get(place)
        if files is not None and files.size == size and not files.is_gone:
            self._files.move_to_end(place)
            return files
        self._files.pop(place, None)
        files = CachedObject.open(self._path(place), size)
        if files is None:
            self._uncount(place)
            return None
        self._files[place] = files
        if len(self._files) > _MAX_OPEN:
            self._files.popitem(last=False)
        return files

    def _count(self, place: str, size: int) -> None:
        files = CachedObject.open(self._path(place), size)
        if files is None or not (counts := files.counts()):
            _remove_files(self._path(place))
            return
        if files.allocated > (sum(counts.values()) + 2) * BLOCK_BYTES:
            files.punch_unknown()
        self._add(place, size, counts)

    def _recount(self, place: str, size: int) -> None:
        self._uncount(place)
        with suppress(OSError):
            if (files := self._open(place, size)) is not None:
                self._add(place, size, files.counts())

    def _add(self, place: str, size: int, counts: dict[int, int]) -> None:
        for run, count in counts.items():
            key = place, run
            if key not in self._runs:
                self._runs[key] = 0
                if place not in self._objects:
                    self.used += _MAP_BYTES
                self._objects[place] = self._objects.get(place, 0) + 1
                self._sizes[place] = size
            self._runs[key] += count
            self._runs.move_to_end(key)
            self.used += count * BLOCK_BYTES

    def _remove(self, place: str, run: int) -> None:
        self.used -= self._runs.pop((place, run)) * BLOCK_BYTES
        self._objects[place] -= 1
        if not self._objects[place]:
            del self._objects[place], self._sizes[place]
            self.used -= _MAP_BYTES

    def _uncount(self, place: str) -> None:
        if place in self._objects:
            for run in range(_runs(self._sizes[place])):
                if (place, run) in self._runs:
                    self._remove(place, run)


def plan_gets(
    missing: Sequence[int], size: int, *, gap: int, most: int, barred: frozenset[int] = frozenset()
) -> list[tuple[int, int]]:
    """Return the half-open byte ranges to get for missing blocks, in ascending order.

    Args:
        missing: Numbers of blocks, ascending.
        size: Size of the object in bytes.
        gap: Two blocks with at most this many unwanted bytes between them share a range.
        most: Maximum size of a range in bytes, at least one block.
        barred: Blocks that no range may have.
    """
    found: list[tuple[int, int]] = []
    first = previous = -1
    most_blocks = max(1, most // BLOCK_BYTES)
    for number in missing:
        between = number - previous - 1
        if (
            first >= 0
            and between * BLOCK_BYTES <= gap
            and number - first < most_blocks
            and barred.isdisjoint(range(previous + 1, number))
        ):
            previous = number
            continue
        if first >= 0:
            found.append((first * BLOCK_BYTES, min(size, (previous + 1) * BLOCK_BYTES)))
        first = previous = number
    if first >= 0:
        found.append((first * BLOCK_BYTES, min(size, (previous + 1) * BLOCK_BYTES)))
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    return found


def _runs(size: int) -> int:
    return -(-size // RUN_BYTES)


def _map_size(size: int) -> int:
    return _HEAD.size + _runs(size) * _RECORD.size


def _position(run: int) -> int:
    return _HEAD.size + run * _RECORD.size


def _split(records: bytes) -> list[bytes]:
    return [records[at : at + _RECORD.size] for at in range(0, len(records), _RECORD.size)]


def _has(records: bytes, start: int, end: int) -> bool:
    """Return whether records have the bits of all blocks of a range of bytes."""
    wanted = blocks_of(start, end)
    first = wanted.start // RUN_BLOCKS
    for run in range(first, (wanted.stop - 1) // RUN_BLOCKS + 1):
        at = (run - first) * _RECORD.size + _BITS
        bits = int.from_bytes(records[at : at + RUN_BLOCKS // 8], "little")
        own = range(max(wanted.start, run * RUN_BLOCKS), min(wanted.stop, (run + 1) * RUN_BLOCKS))
        mask = ((1 << len(own)) - 1) << own.start % RUN_BLOCKS
        if bits & mask != mask:
            return False
    return True


def _same_generation(one: bytes, other: bytes) -> bool:
    return all(
        one[at : at + _USED] == other[at : at + _USED] for at in range(0, len(one), _RECORD.size)
    )


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove_files(path: str) -> None:
    for one in (path + _MAP, path):
        with suppress(OSError):
            os.unlink(one)
