"""Files whose blocks are compared with their checksums when they are first read.

`VerifiedBlocks` records which blocks this process has compared. All readers of a file share it, so
each block is compared only once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vfsd.disk.block_checksums import BlockChecksums, merged
from vfsd.disk.direct_io import open_stored
from vfsd.errors import DamagedFileError, IntegrityError

_READ_BYTES = 4 << 20
"""Blocks are read together up to this size."""


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


FindBlocks = Callable[[int], VerifiedBlocks | None]
"""Returns the state of the blocks of an open file, by descriptor; None: there are no checksums.
Raises `IntegrityError` if the file must not be read without."""
Report = Callable[[Sequence[range], bool], DamagedFileError]
"""Makes the error for damaged byte ranges; True if they were read and differ."""


class ChecksummedFile:
    """An open file that is read at offsets and compared with its checksums. Thread-safe.

    Bytes other than the stored ones are never returned. A block that looks damaged or cannot be
    read is read once more from the disk. If another file has the name by then, for instance a
    restored copy, that one is read from then on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fd: int,
        find: FindBlocks,
        report: Report,
        name: str | None = None,
    ) -> None:
        """`fd` becomes owned by this object; `name` is used in messages (default: `path`)."""
        self.fd = fd
        self.name = os.fspath(path) if name is None else name
        self._path = path
        self._find = find
        self._report = report
        self._is_looked_up = False
        self._blocks: VerifiedBlocks | None = None
        self._switching: VerifiedBlocks | None = None  #: set while another file replaces this one
        self._switch_lock = threading.Lock()

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self.fd).st_size

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
            return os.pread(self.fd, size, position)
        sums = blocks.sums
        end = min(position + size, position // sums.block * sums.block + _READ_BYTES, sums.size)
        wanted = sums.blocks(position, end)
        if not wanted or blocks.seen.find(0, wanted.start, wanted.stop) < 0:
            data = os.pread(self.fd, max(0, end - position), position)
            return data if self._is_current(blocks) else self.read_some(position, size)
        start = wanted.start * sums.block
        data = self._read(start, wanted.stop * sums.block - start)
        if not self._mark_verified(blocks, wanted, data):
            data = b""
            for number in wanted:
                again = self._read_again(blocks, number)
                if again is None or not sums.is_right(number, again):
                    if not data:
                        raise self._report([sums.bytes_of(number)], again is not None)
                    break
                data += again
        return data[position - start : end - start]

    def readinto(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the number of bytes, fewer only at the end.

        Raises `DamagedFileError` if any of them is damaged, `OSError`.
        """
        blocks = self._blocks if self._is_looked_up else self._look_up()
        if blocks is not None:
            buffer = buffer[: self.known(position, len(buffer))]
            block = blocks.sums.block
            end = -(-(position + len(buffer)) // block)
            if blocks.seen.find(0, position // block, end) >= 0:
                self.require(position, len(buffer))
        count = os.preadv(self.fd, (buffer,), position)
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
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    # -- internals

    def _look_up(self) -> VerifiedBlocks | None:
        self._blocks = self._find(self.fd)
        self._is_looked_up = True
        return self._blocks

    def _read(self, position: int, size: int) -> bytes:
        """Return bytes of the file, or nothing on a read error."""
        try:
            return os.pread(self.fd, size, position)
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
        """Read a block from the disk again; None on a read error."""
        own = blocks.sums.bytes_of(number)
        data = self._from_disk(own)
        if data is not None and blocks.sums.is_right(number, data):
            blocks.seen[number] = 1
        elif self._switch_to_successor(blocks):
            return self._from_disk(own)
        return data

    def _from_disk(self, own: range) -> bytes | None:
        """Read bytes from the disk instead of the page cache; None on a read error."""
        with suppress(OSError):
            os.posix_fadvise(self.fd, own.start, len(own), os.POSIX_FADV_DONTNEED)
        try:
            return os.pread(self.fd, len(own), own.start)
        except OSError:
            return None

    def _switch_to_successor(self, blocks: VerifiedBlocks) -> bool:
        """Switch to the file that has the name now; return False if it is still the same.

        The descriptor number stays, for threads that are using it.
        """
        with self._switch_lock:
            if blocks is not self._blocks:
                return True  # another thread has switched already
            try:
                fd = open_stored(self._path)
            except OSError:
                return False
            try:
                if os.path.samestat(os.fstat(fd), os.fstat(self.fd)):
                    return False
                try:
                    found = self._find(fd)
                except IntegrityError:
                    return False  # a file indexed in place that was replaced
                if found is None:
                    return False
                # Not yet `found`: other readers may have verified its blocks already.
                self._switching = self._blocks = VerifiedBlocks(found.sums)
                os.dup2(fd, self.fd, inheritable=False)
                self._blocks = found
                return True
            finally:
                os.close(fd)

    def _is_current(self, blocks: VerifiedBlocks | None) -> bool:
        """Return whether bytes just read without comparison belong to the file of `blocks`."""
        if blocks is self._blocks and (blocks is None or blocks is not self._switching):
            return True
        with self._switch_lock:
            return False


class StoredFile(os.PathLike[str]):
    """The path of an original, opened as a `ChecksummedFile`."""

    def __init__(
        self,
        path: Path,
        find: FindBlocks,
        report: Report,
        opener: Callable[[], int],
        name: str | None = None,
    ) -> None:
        """`opener` returns a descriptor; `name` is used in messages (default: `path`)."""
        self.path = path
        self._name = os.fspath(path) if name is None else name
        self._find = find
        self._report = report
        self._opener = opener

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> ChecksummedFile:
        """Open the file. Raises `OSError`, `IntegrityError` if it is missing or must not be
        opened."""
        return self.of(self._opener())

    def of(self, fd: int) -> ChecksummedFile:
        """Return the file for a descriptor, which it then owns."""
        return ChecksummedFile(self.path, fd, self._find, self._report, self._name)


class OpenFile(NamedTuple):
    """A descriptor with the size of its file, for a process that must not call fstat on it.

    FUSE refuses fstat to all users except the one who mounted it, unless mounted with allow_other.
    """

    fd: int
    size: int  #: bytes


MediaFile = str | os.PathLike[str] | int | OpenFile | ChecksummedFile
"""A path, a descriptor, or an open file."""


class MediaSource:
    """A file that is read at given offsets.

    Opens and closes a path; a descriptor or another open file stays the caller's. Reads use `pread`
    only, so several sources may share a descriptor. Data of a `StoredFile` or `ChecksummedFile` is
    checked against its checksums.
    """

    def __init__(self, file: MediaFile) -> None:
        self._owned = isinstance(file, (str, os.PathLike))
        self._summed: ChecksummedFile | None = None
        self._given: OpenFile | None = None
        if isinstance(file, (StoredFile, ChecksummedFile)):
            self._summed = file.open() if isinstance(file, StoredFile) else file
            self.fd, self.name = self._summed.fd, self._summed.name
        elif isinstance(file, OpenFile):
            self._given = file
            self.fd, self.name = file.fd, f"descriptor {file.fd}"
        elif isinstance(file, int):
            self.fd, self.name = file, f"descriptor {file}"
        else:
            self.fd, self.name = os.open(file, os.O_RDONLY | os.O_CLOEXEC), os.fspath(file)
        self.interrupted_by: BaseException | None = None

    @property
    def shared(self) -> int | OpenFile | ChecksummedFile:
        """The open file, from which other sources can be made as long as this one is open."""
        if self._summed is not None:
            return self._summed
        return self.fd if self._given is None else self._given

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._given.size if self._given is not None else os.fstat(self.fd).st_size

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
        if self._summed is not None:
            return self._summed.read_some(position, size)
        return os.pread(self.fd, size, position)

    def check(self) -> None:
        """Raise the error that interrupted a read inside FFmpeg, which may have ignored it."""
        if self.interrupted_by is not None:
            raise self.interrupted_by

    def close(self) -> None:
        if self._owned and self._summed is not None:
            self._summed.close()
        elif self._owned and self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> MediaSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
