"""Checksums of blocks: computed when a file arrives, compared when it is read (`ChecksummedFile`),
and compared for whole files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from blake3 import blake3

from vfsd.disk.object_reader import LocalReader, ObjectReader
from vfsd.disk.safe_open import CHUNK, UNREADABLE
from vfsd.errors import DamagedFileError, IntegrityError

BLOCK_BYTES = 1 << 15
"""Block size of new checksums. Damage is reported, and reads are refused, in blocks. Half the size
would double the checksums, which now take 1/4096 of the file."""
SUM_BYTES = 8
# Ranges in a message.
_MAX_RANGES = 8


@dataclass(frozen=True, slots=True)
class BlockChecksums:
    """The checksums of all blocks of one file.

    Raises `IntegrityError` if their number does not match `size`.
    """

    size: int  #: bytes of the file
    block: int  #: bytes of a block; the last one may be shorter
    sums: bytes  #: `SUM_BYTES` for each block

    def __post_init__(self) -> None:
        if self.block < 1 or len(self.sums) != SUM_BYTES * len(self):
            raise IntegrityError(
                f"there are {len(self.sums)} bytes of sums for a file of {self.size} bytes"
            )

    def __len__(self) -> int:
        """Number of blocks."""
        return -(-self.size // self.block)

    def blocks(self, position: int, end: int) -> range:
        """Return the numbers of the blocks with any of the bytes ``position <= byte < end``."""
        return range(position // self.block, -(-min(end, self.size) // self.block))

    def bytes_of(self, number: int) -> range:
        """Return the half-open range of bytes of a block."""
        return range(number * self.block, min(self.size, (number + 1) * self.block))

    def is_right(self, number: int, data: bytes | memoryview) -> bool:
        """Return whether `data` matches the checksum and length of a block."""
        at = SUM_BYTES * number
        return len(data) == len(self.bytes_of(number)) and self.sums[
            at : at + SUM_BYTES
        ] == block_checksum(data)


class BlockChecksummer:
    """Computes the checksums of a file from its bytes in order."""

    def __init__(self) -> None:
        self._size = 0
        self._sums = bytearray()
        self._hasher = blake3()

    def update(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            part = left[: BLOCK_BYTES - self._size % BLOCK_BYTES]
            self._hasher.update(part)
            self._size += len(part)
            left = left[len(part) :]
            if self._size % BLOCK_BYTES == 0:
                self._end_block()

    def finish(self) -> BlockChecksums:
        """Return the checksums. Call it once, after all bytes."""
        if self._size % BLOCK_BYTES:
            self._end_block()
        return BlockChecksums(self._size, BLOCK_BYTES, bytes(self._sums))

    def _end_block(self) -> None:
        self._sums += self._hasher.digest(SUM_BYTES)
        self._hasher = blake3()


def block_checksum(data: bytes | memoryview) -> bytes:
    """Return the checksum of one block."""
    return blake3(data).digest(SUM_BYTES)


def merged(ranges: Iterable[range]) -> list[range]:
    """Return the union of ranges in ascending order; adjacent ranges are joined."""
    found: list[range] = []
    for one in sorted(ranges, key=lambda each: each.start):
        if found and one.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.stop))
        elif one:
            found.append(one)
    return found


def ranges_text(ranges: Sequence[range]) -> str:
    """Format ranges for messages; the last number is inclusive."""
    shown = [
        f"{one.start}" if len(one) == 1 else f"{one.start} to {one.stop - 1}"
        for one in ranges[:_MAX_RANGES]
    ]
    more = len(ranges) - _MAX_RANGES
    return ", ".join(shown) + (f" and {more} more places" if more > 0 else "")


# Blocks are read together up to this size.
_READ_BYTES = 4 << 20


class VerifiedBlocks:
    """The checksums of one file, and which blocks this process has compared successfully.

    Thread-safe: at worst two threads compare the same block.
    """

    __slots__ = ("seen", "sums")

    def __init__(self, sums: BlockChecksums) -> None:
        self.sums = sums
        self.seen = bytearray(len(sums))  #: 1: compared successfully

    @property
    def memory(self) -> int:
        """Size of both in bytes."""
        return len(self.seen) + len(self.sums.sums)


FindBlocks = Callable[[ObjectReader], VerifiedBlocks | None]
"""Returns the state of the blocks of an open file; None: there are no checksums.
Raises `IntegrityError` if the file must not be read without."""
OpenReader = Callable[[], ObjectReader]
"""Opens the file that has a name now. Raises `OSError`."""
Report = Callable[[Sequence[range], bool], DamagedFileError]
"""Makes the error for damaged byte ranges; True if they were read and differ."""


class ChecksummedFile:
    """An open file that is read at offsets and compared with its checksums. Thread-safe.

    Bytes other than the stored ones are never returned. A block that looks damaged or cannot be
    read is read once more, past the caches. If another file has the name by then, for instance a
    restored copy, that one is read from then on.
    """

    def __init__(
        self,
        name: str,
        reader: ObjectReader,
        find: FindBlocks,
        report: Report,
        reopen: OpenReader,
    ) -> None:
        """`reader` becomes owned by this object; `name` is used in messages."""
        self.name = name
        self._reader = reader
        self._reopen = reopen
        self._find = find
        self._report = report
        self._is_looked_up = False
        self._blocks: VerifiedBlocks | None = None
        self._switching: VerifiedBlocks | None = None  #: set while another file replaces this one
        self._switch_lock = threading.Lock()

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._reader.size

    @property
    def identity(self) -> Hashable:
        """See `ObjectReader.identity`."""
        return self._reader.identity

    def descriptor(self) -> int:
        """Return a descriptor of all bytes; see `ObjectReader.descriptor`."""
        return self._reader.descriptor()

    @property
    def sums(self) -> BlockChecksums | None:
        """The checksums of the file; None: there are none."""
        blocks = self._blocks if self._is_looked_up else self._look_up()
        return None if blocks is None else blocks.sums

    def read_some(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`; at least one unless that is the end.

        Raises `DamagedFileError` if the first of them is damaged, `OSError`.
        """
        blocks = self._blocks if self._is_looked_up else self._look_up()
        if blocks is None:
            return self._reader.read(position, size)
        if not self._reader.is_stable:
            blocks = VerifiedBlocks(blocks.sums)
        sums = blocks.sums
        end = min(position + size, position // sums.block * sums.block + _READ_BYTES, sums.size)
        wanted = sums.blocks(position, end)
        if not wanted:
            return b""
        if blocks.seen.find(0, wanted.start, wanted.stop) < 0:
            data = self._reader.read(position, end - position)
            return data if self._is_current(blocks) else self.read_some(position, size)
        start = wanted.start * sums.block
        return self._compared(blocks, wanted)[position - start : end - start]

    def readinto(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the number of bytes, fewer only at the end.

        Raises `DamagedFileError` if any of them is damaged, `OSError`.
        """
        blocks = self._blocks if self._is_looked_up else self._look_up()
        if blocks is not None and not self._reader.is_stable:
            return self._read_all_into(buffer, position)
        if blocks is not None:
            buffer = buffer[: self.known(position, len(buffer))]
            block = blocks.sums.block
            end = -(-(position + len(buffer)) // block)
            if blocks.seen.find(0, position // block, end) >= 0:
                self.require(position, len(buffer))
        count = self._reader.readinto(buffer, position)
        return count if self._is_current(blocks) else self.readinto(buffer, position)

    def known(self, position: int, size: int) -> int:
        """Return how many of these bytes the checksums cover; later bytes do not belong to the
        file."""
        blocks = self._blocks if self._is_looked_up else self._look_up()
        return size if blocks is None else max(0, min(size, blocks.sums.size - position))

    def require(
        self, position: int, size: int, *, on_progress: Callable[[int], None] | None = None
    ) -> None:
        """Compare these bytes. Raises as `readinto`, for all damage in the range.

        `on_progress` is called with the bytes done since the last call; it may raise to cancel.
        """
        blocks = self._blocks if self._is_looked_up else self._look_up()
        if blocks is None:
            return
        wanted = blocks.sums.blocks(position, position + size)
        at_once = max(1, _READ_BYTES // blocks.sums.block)
        damaged: list[range] = []
        is_proven = False
        for first in range(wanted.start, wanted.stop, at_once):
            some = range(first, min(wanted.stop, first + at_once))
            found, is_read = self._damage_in(blocks, some)
            damaged += found
            is_proven = is_proven or is_read
            if on_progress is not None:
                on_progress(blocks.sums.bytes_of(some[-1]).stop - blocks.sums.bytes_of(first).start)
        if damaged:
            raise self._report(merged(damaged), is_proven)

    def _damage_in(self, blocks: VerifiedBlocks, some: range) -> tuple[list[range], bool]:
        """Return the damaged byte ranges among these blocks, and whether any of them could be
        read."""
        if blocks.seen.find(0, some.start, some.stop) < 0:
            return [], False
        start = some.start * blocks.sums.block
        data = self._read(start, some.stop * blocks.sums.block - start)
        if self._mark_verified(blocks, some, data):
            return [], False
        damaged, is_read = [], False
        for number in some:
            again = None if blocks.seen[number] else self._read_again(blocks, number)
            if blocks.seen[number] or (again and blocks.sums.is_right(number, again)):
                continue
            damaged.append(blocks.sums.bytes_of(number))
            is_read = is_read or again is not None
        return damaged, is_read

    def close(self) -> None:
        self._reader.close()

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch half-open ranges that will be read; see `ObjectReader.prefetch`."""
        self._reader.prefetch(ranges)

    def cached(self, position: int, size: int) -> int:
        """See `ObjectReader.cached`."""
        return self._reader.cached(position, size)

    # -- internals

    def _look_up(self) -> VerifiedBlocks | None:
        self._blocks = self._find(self._reader)
        self._is_looked_up = True
        return self._blocks

    def _read_all_into(self, buffer: memoryview, position: int) -> int:
        """Do the work of `readinto` by `read_some`."""
        done = 0
        while done < len(buffer):
            data = self.read_some(position + done, len(buffer) - done)
            if not data:
                break
            buffer[done : done + len(data)] = data
            done += len(data)
        return done

    def _compared(self, blocks: VerifiedBlocks, wanted: range) -> bytes:
        """Return whole blocks, compared; fewer if one is damaged, but at least the first one.

        Raises `DamagedFileError`.
        """
        sums = blocks.sums
        start = wanted.start * sums.block
        data = self._read(start, wanted.stop * sums.block - start)
        if self._mark_verified(blocks, wanted, data):
            return data
        data = b""
        for number in wanted:
            again = self._read_again(blocks, number)
            if again is None or not sums.is_right(number, again):
                if not data:
                    raise self._report([sums.bytes_of(number)], again is not None)
                break
            data += again
        return data

    def _read(self, position: int, size: int) -> bytes:
        """Return bytes of the file, or nothing on a read error."""
        try:
            return self._reader.read(position, size)
        except OSError:
            return b""

    def _mark_verified(self, blocks: VerifiedBlocks, wanted: range, data: bytes) -> bool:
        """Compare the blocks of `wanted`, at the start of `data`; return whether all match."""
        sums, seen = blocks.sums, blocks.seen
        view = memoryview(data)
        all_right = True
        for number in wanted:
            if seen[number]:
                continue
            own = sums.bytes_of(number)
            at = own.start - wanted.start * sums.block
            if sums.is_right(number, view[at : at + len(own)]):
                seen[number] = 1
            else:
                all_right = False
        return all_right

    def _read_again(self, blocks: VerifiedBlocks, number: int) -> bytes | None:
        """Read a block again, past the caches; None on a read error."""
        own = blocks.sums.bytes_of(number)
        before = None if self._reader.is_stable else self._reader.identity
        data = self._past_caches(own)
        if data is not None and blocks.sums.is_right(number, data):
            blocks.seen[number] = 1
        elif self._switch_to_successor(blocks, before):
            return self._past_caches(own)
        return data

    def _past_caches(self, own: range) -> bytes | None:
        """Read bytes from where they are stored; None on a read error."""
        try:
            return self._reader.read_again(own.start, len(own))
        except OSError:
            return None

    def _switch_to_successor(self, blocks: VerifiedBlocks, before: Hashable) -> bool:
        """Switch to the file that has the name now; return False if it is still the same.

        `before` is the identity of a reader that is not stable, when the block was read.

        The reader stays the same object, for threads that are using it.
        """
        with self._switch_lock:
            is_same = blocks is self._blocks if before is None else before == self._reader.identity
            if not is_same:
                return True  # another thread has switched already
            try:
                reader = self._reopen()
            except OSError:
                return False
            try:
                if reader.identity == self._reader.identity:
                    return False
                try:
                    found = self._find(reader)
                except IntegrityError:
                    return False  # a file indexed in place that was replaced
                if found is None:
                    return False
                # Not yet `found`: other readers may have verified its blocks already.
                self._switching = self._blocks = VerifiedBlocks(found.sums)
                self._reader.switch_to(reader)
                self._blocks = found
                return True
            finally:
                reader.close()

    def _is_current(self, blocks: VerifiedBlocks | None) -> bool:
        """Return whether bytes just read without comparison belong to the file of `blocks`."""
        if blocks is self._blocks and (blocks is None or blocks is not self._switching):
            return True
        with self._switch_lock:
            return False


class StoredFile:
    """An original, opened as a `ChecksummedFile`."""

    def __init__(
        self,
        name: str,
        find: FindBlocks,
        report: Report,
        opener: OpenReader,
        reopen: OpenReader | None = None,
    ) -> None:
        """`name` is used in messages.

        `reopen` opens the file that has the name after damage (default: `opener`).
        """
        self.name = name
        self._find = find
        self._report = report
        self._opener = opener
        self._reopen = reopen or opener

    def __str__(self) -> str:
        return self.name

    def open(self) -> ChecksummedFile:
        """Open the file. Raises `OSError`, `IntegrityError` if it is missing or must not be
        opened."""
        return self.of(self._opener())

    def of(self, reader: ObjectReader) -> ChecksummedFile:
        """Return the file for a reader, which it then owns."""
        return ChecksummedFile(self.name, reader, self._find, self._report, self._reopen)


class OpenFile(NamedTuple):
    """A descriptor with the size of its file, for a process that must not call fstat on it.

    FUSE refuses fstat to all users except the one who mounted it, unless mounted with allow_other.
    """

    fd: int
    size: int  #: bytes


MediaFile = str | os.PathLike[str] | int | OpenFile | StoredFile | ChecksummedFile
"""A path, a descriptor, or an open file."""


class MediaSource:
    """A file that is read at given offsets.

    Opens and closes a path; a descriptor or another open file stays the caller's. Reads use `pread`
    only, so several sources may share a file. Data of a `StoredFile` or `ChecksummedFile` is
    checked against its checksums.
    """

    def __init__(self, file: MediaFile) -> None:
        self._owned = isinstance(file, (str, os.PathLike, StoredFile))
        self._given: OpenFile | None = None
        self._file: ChecksummedFile | LocalReader
        if isinstance(file, (StoredFile, ChecksummedFile)):
            self._file = file.open() if isinstance(file, StoredFile) else file
            self.name = file.name
        elif isinstance(file, OpenFile):
            self._given = file
            self._file, self.name = LocalReader(file.fd), f"descriptor {file.fd}"
        elif isinstance(file, int):
            self._file, self.name = LocalReader(file), f"descriptor {file}"
        else:
            self._file = LocalReader(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
            self.name = os.fspath(file)
        self.interrupted_by: BaseException | None = None

    @property
    def shared(self) -> int | OpenFile | ChecksummedFile:
        """The open file, from which other sources can be made as long as this one is open."""
        if isinstance(self._file, ChecksummedFile):
            return self._file
        return self._file.fd if self._given is None else self._given

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._given.size if self._given is not None else self._file.size

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch half-open ranges that will be read; see `ObjectReader.prefetch`."""
        self._file.prefetch(ranges)

    def cached(self, position: int, size: int) -> int:
        """See `vfsd.disk.object_reader.ObjectReader.cached`."""
        return self._file.cached(position, size)

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on; fewer only at the end of the file."""
        data = self.read_some(position, size)
        while len(data) < size:
            more = self.read_some(position + len(data), size - len(data))
            if not more:
                break
            data += more
        return data

    def read_some(self, position: int, size: int) -> bytes:
        """Return 1 to `size` bytes from `position` on; empty at the end of the file.

        Raises `DamagedFileError` if the first byte is damaged.
        """
        return self._file.read_some(position, size)

    def check(self) -> None:
        """Raise the error that interrupted a read inside FFmpeg, which may have ignored it."""
        if self.interrupted_by is not None:
            raise self.interrupted_by

    def close(self) -> None:
        if self._owned:
            self._file.close()
        else:  # later reads fail, whatever becomes of the caller's file
            self._file = LocalReader(-1)

    def __enter__(self) -> MediaSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OnBytes = Callable[[int], None]
"""Called with the number of bytes read since the last call; may wait or raise."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of reading a file completely from the disk."""

    size: int  #: bytes
    mtime_ns: int
    is_whole: bool  #: it hashes to its digest
    damage: tuple[range, ...]  #: ranges of bytes that differ or cannot be read; none if `is_whole`
    is_readable: bool  #: all bytes could be read
    sums: BlockChecksums | None  #: the valid ones; if `is_whole`, those just computed


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The state of an interrupted verification: the first bytes have been compared."""

    version: tuple[int, int, int]  #: inode, size, mtime of the file
    at: int  #: bytes compared so far
    damage: tuple[range, ...]  #: among them
    is_second: bool = False  #: the first pass has found damage


OnCompared = Callable[[Callable[[], VerifyProgress]], None]
"""Called after more bytes were compared, with a function that returns the progress. May take a
while."""


class WholeFile(Protocol):
    """An open file that is read from start to end, past all caches."""

    def version(self) -> tuple[int, int, int]:
        """Return the inode, size and mtime, or values that differ for other bytes as well."""
        ...

    def read(self, position: int) -> bytes:
        """Return bytes from `position`, up to the end of its `CHUNK`; none only at the end."""
        ...

    def block(self, own: range) -> bytes | None:
        """Read some bytes of a chunk separately; None on a read error."""
        ...

    def close(self) -> None: ...


def verify_stored_file(
    open_file: Callable[[], WholeFile],
    digest: str,
    known: BlockChecksums | None,
    on_bytes: OnBytes,
    *,
    begun: VerifyProgress | None = None,
    on_compared: OnCompared = lambda tell: None,
) -> VerifyResult:
    """Read a file and compare it with its hash, and with its checksums if there are any.

    `begun` is an earlier progress with the same checksums, as passed to `on_compared`. The bytes it
    covers are not read again, and the rest is compared with the checksums only, since the hash
    needs all bytes. If that finds damage, the checksums may be wrong, and the file is read once
    more from the start. If that second pass is interrupted as well, its rest is trusted. Another
    version of the file is read from the start.

    Bytes that differ are read a second time. A file that cannot be opened is damaged as a whole.
    Raises `OSError` for errors that say nothing about the bytes: `FileNotFoundError`,
    `PermissionError`, or too many open files.
    """
    try:
        opened = open_file()
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        lost = range(known.size) if known is not None and known.size else range(1)
        return VerifyResult(0, 0, False, (lost,), False, known)
    with closing(opened) as file:
        version = file.version()
        if known is None or (begun is not None and begun.version != version):
            begun = None
        first = _Pass(file, known, on_bytes, version, begun, on_compared)
        first.run()
        if begun is not None and not begun.is_second and _may_be_right(first, known):
            begun = None
            first = _Pass(file, known, on_bytes, version, None, on_compared, is_second=True)
            first.run()
        if first.digest != digest and known is None:
            first = _Pass(file, None, on_bytes, version)
            first.run()
    if begun is None or known is None:
        is_whole = first.digest == digest
    else:
        is_whole = first.is_readable and not _differs(first, known)
    damage: list[range] = []
    if not is_whole:
        damage = merged([*first.damage, *_other_size(known, first.size)])
        if not damage:  # the position is unknown
            damage = [range(max(1, first.size))]
    sums = first.sums if is_whole and begun is None else known
    return VerifyResult(first.size, version[2], is_whole, tuple(damage), first.is_readable, sums)


def _may_be_right(found: _Pass, known: BlockChecksums | None) -> bool:
    """Return whether only the checksums disagree, which may be wrong themselves."""
    return found.is_readable and known is not None and _differs(found, known)


def _differs(found: _Pass, known: BlockChecksums) -> bool:
    return bool(found.damage) or known.size != found.size


def _other_size(known: BlockChecksums | None, size: int) -> list[range]:
    if known is None or known.size == size:
        return []
    return [range(min(known.size, size), max(known.size, size))]


class _Pass:
    """One reading of a file."""

    def __init__(
        self,
        file: WholeFile,
        known: BlockChecksums | None,
        on_bytes: OnBytes,
        version: tuple[int, int, int],
        begun: VerifyProgress | None = None,
        on_compared: OnCompared = lambda tell: None,
        *,
        is_second: bool = False,
    ) -> None:
        self._file = file
        self._known = known
        self._on_bytes = on_bytes
        self._version = version
        self._on_compared = on_compared
        self._hasher = blake3()  # incomplete after `begun`, like the checksums
        self._checksummer = BlockChecksummer()
        self._start = 0 if begun is None else begun.at
        self._is_second = is_second if begun is None else begun.is_second
        self.size = 0
        self.damage: list[range] = [] if begun is None else list(begun.damage)
        self.is_readable = True

    @property
    def digest(self) -> str | None:
        """The hash; None if some bytes cannot be read."""
        return self._hasher.hexdigest() if self.is_readable else None

    @property
    def sums(self) -> BlockChecksums:
        return self._checksummer.finish()

    def run(self) -> None:
        end = self._file.version()[1]
        at = self._start
        while at < end:
            try:
                data = self._file.read(at)
            except (PermissionError, FileNotFoundError):  # from a server, of an open file
                raise
            except OSError:
                data = self._read_blocks(range(at, min(end, at + CHUNK)))
            if not data:
                break  # truncated in the meantime
            if self._known is not None:
                data = self._compare(self._known, at, data)
            self._hasher.update(data)
            self._checksummer.update(data)
            at += len(data)
            # Unreadable bytes may become readable, so the next run must not skip them.
            if self._known is not None and self.is_readable:
                self._on_compared(partial(self._progress_at, at))
            self._on_bytes(len(data))
        self.size = at

    def _progress_at(self, at: int) -> VerifyProgress:
        """Return the progress at byte `at`; more may have been read since."""
        damage = (range(one.start, min(one.stop, at)) for one in self.damage if one.start < at)
        return VerifyProgress(self._version, at, tuple(damage), self._is_second)

    def _add_damage(self, own: range) -> None:
        """Record damage, merged with the last range if they touch."""
        if self.damage and self.damage[-1].start <= own.start <= self.damage[-1].stop:
            last = self.damage.pop()
            own = range(last.start, max(last.stop, own.stop))
        self.damage.append(own)

    def _read_blocks(self, part: range) -> bytes:
        """Read a range block by block, with zeros for blocks that cannot be read."""
        found = bytearray()
        for start in range(part.start, part.stop, BLOCK_BYTES):
            own = range(start, min(part.stop, start + BLOCK_BYTES))
            data = self._file.block(own)
            if data is None or len(data) < len(own):
                self.is_readable = False
                self._add_damage(own)
                data = bytes(len(own))
            found += data
        return bytes(found)

    def _compare(self, known: BlockChecksums, at: int, data: bytes) -> bytes:
        """Compare blocks, reading different ones a second time; return the bytes of that."""
        view = memoryview(data)
        corrected: bytearray | None = None
        for number in known.blocks(at, at + len(data)):
            own = known.bytes_of(number)
            if known.is_right(number, view[own.start - at : own.stop - at]):
                continue
            again = self._file.block(own)
            if again is not None and known.is_right(number, again):
                corrected = corrected or bytearray(data)
                corrected[own.start - at : own.stop - at] = again
            else:
                self._add_damage(own)
        return data if corrected is None else bytes(corrected)
