"""Files whose blocks are compared with their sums when they are first read.

What a process has seen to be right once it does not look at again: a map of the blocks is shared by
all who have the same file open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from vfsd.disk.block_checksums import BlockChecksums, merged
from vfsd.disk.direct_io import open_stored
from vfsd.errors import DamagedFileError, IntegrityError

_READ_BYTES = 4 << 20
"""Blocks are read together up to as many bytes."""


class VerifiedBlocks:
    """The sums of one file, and which blocks this process has seen to be right.

    Threads may use it at the same time: a block that two have compared is right twice.
    """

    __slots__ = ("seen", "sums")

    def __init__(self, sums: BlockChecksums) -> None:
        self.sums = sums
        self.seen = bytearray(len(sums))  #: 1: it is right

    @property
    def memory(self) -> int:
        """Bytes."""
        return len(self.seen) + len(self.sums.sums)


FindBlocks = Callable[[int], VerifiedBlocks | None]
"""Given a descriptor: what is known of the blocks of that very file; None: nothing.  Raises
`IntegrityError` where it is not to be read without."""
Report = Callable[[Sequence[range], bool], DamagedFileError]
"""Given the bytes that are damaged, and whether they were read and are others; makes the error."""


class ChecksummedFile:
    """An open file that is read at offsets, and whose blocks are compared when first read.

    Bytes that are not those that were stored are never given away.  Where a block looks damaged, or
    the disk fails to read it, it is read once more, from the disk; and where another file has taken
    the name meanwhile, as when a good copy was put back, that is read from then on.  Thread-safe.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fd: int,
        find: FindBlocks,
        report: Report,
        name: str | None = None,
    ) -> None:
        """`fd` becomes this object's own; `name` is what messages call it (default: `path`)."""
        self.fd = fd
        self.name = os.fspath(path) if name is None else name
        self._path = path
        self._find = find
        self._report = report
        self._is_known = False
        self._blocks: VerifiedBlocks | None = None
        self._between: VerifiedBlocks | None = None  #: while another file takes this one's place
        self._succession = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self.fd).st_size

    @property
    def sums(self) -> BlockChecksums | None:
        """What its blocks are compared with; None: it has none."""
        blocks = self._blocks if self._is_known else self._look_up()
        return None if blocks is None else blocks.sums

    def read_some(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on, but one at least where there is one.

        Raises `DamagedFileError` where the first of them is damaged, `OSError`.
        """
        blocks = self._blocks if self._is_known else self._look_up()
        if blocks is None:
            return os.pread(self.fd, size, position)
        sums = blocks.sums
        end = min(position + size, position // sums.block * sums.block + _READ_BYTES, sums.size)
        wanted = sums.blocks(position, end)
        if not wanted or blocks.seen.find(0, wanted.start, wanted.stop) < 0:
            data = os.pread(self.fd, max(0, end - position), position)
            return data if self._is_still_of(blocks) else self.read_some(position, size)
        start = wanted.start * sums.block
        data = self._read(start, wanted.stop * sums.block - start)
        if not self._are_right(blocks, wanted, data):
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
        """Fill `buffer` from `position` on; how many bytes that were, fewer only at the end.

        Raises `DamagedFileError` where any of them is damaged, `OSError`.
        """
        blocks = self._blocks if self._is_known else self._look_up()
        if blocks is not None:
            buffer = buffer[: self.known(position, len(buffer))]
            block = blocks.sums.block
            end = -(-(position + len(buffer)) // block)
            if blocks.seen.find(0, position // block, end) >= 0:
                self.require(position, len(buffer))
        count = os.preadv(self.fd, (buffer,), position)
        return count if self._is_still_of(blocks) else self.readinto(buffer, position)

    def known(self, position: int, size: int) -> int:
        """How many of those bytes there were when the sums were made: others are not the file's."""
        blocks = self._blocks if self._is_known else self._look_up()
        return size if blocks is None else max(0, min(size, blocks.sums.size - position))

    def require(
        self, position: int, size: int, *, on_progress: Callable[[int], None] | None = None
    ) -> None:
        """Look at those bytes.  Raises as `readinto` does, of all that is damaged there.

        `on_progress` is told of the bytes done since the last call; it may raise to give up.
        """
        blocks = self._blocks if self._is_known else self._look_up()
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
        """The bytes of damaged ones among these blocks, and whether any of them could be read."""
        if blocks.seen.find(0, some.start, some.stop) < 0:
            return [], False
        start = some.start * blocks.sums.block
        data = self._read(start, some.stop * blocks.sums.block - start)
        if self._are_right(blocks, some, data):
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

    # -- inside

    def _look_up(self) -> VerifiedBlocks | None:
        self._blocks = self._find(self.fd)
        self._is_known = True
        return self._blocks

    def _read(self, position: int, size: int) -> bytes:
        """Empty where the disk does not give them."""
        try:
            return os.pread(self.fd, size, position)
        except OSError:
            return b""

    def _are_right(self, blocks: VerifiedBlocks, wanted: range, data: bytes) -> bool:
        """Note those blocks of `wanted`, which `data` begins with, that are right."""
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
        """A block as the disk has it now; None where it does not give it."""
        own = blocks.sums.bytes_of(number)
        data = self._from_disk(own)
        if data is not None and blocks.sums.is_right(number, data):
            blocks.seen[number] = 1
        elif self._take_successor(blocks):
            return self._from_disk(own)
        return data

    def _from_disk(self, own: range) -> bytes | None:
        """None where the disk does not give them."""
        with suppress(OSError):
            os.posix_fadvise(self.fd, own.start, len(own), os.POSIX_FADV_DONTNEED)
        try:
            return os.pread(self.fd, len(own), own.start)
        except OSError:
            return None

    def _take_successor(self, blocks: VerifiedBlocks) -> bool:
        """Read the file from now on that has the name now; whether it is another one than that
        which `blocks` are of.

        The number of the descriptor stays, for whoever reads by it at the moment.
        """
        with self._succession:
            if blocks is not self._blocks:
                return True  # another thread was here first
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
                    return False  # it was indexed in place, and is another file now
                if found is None:
                    return False
                # All of the successor may have been seen already, by others who have it open.
                self._between = self._blocks = VerifiedBlocks(found.sums)
                os.dup2(fd, self.fd, inheritable=False)
                self._blocks = found
                return True
            finally:
                os.close(fd)

    def _is_still_of(self, blocks: VerifiedBlocks | None) -> bool:
        """Whether what was just read, uncompared, is of the file whose blocks those are."""
        if blocks is self._blocks and (blocks is None or blocks is not self._between):
            return True
        with self._succession:
            return False


class StoredFile(os.PathLike[str]):
    """The path of an original; opened as a `ChecksummedFile` by whoever reads its packets."""

    def __init__(
        self,
        path: Path,
        find: FindBlocks,
        report: Report,
        opener: Callable[[], int],
        name: str | None = None,
    ) -> None:
        """`opener` gives a descriptor; `name` is what messages call it, where not by its path."""
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
        """Raises `OSError`, `IntegrityError` for what may not be opened or is not there."""
        return self.of(self._opener())

    def of(self, fd: int) -> ChecksummedFile:
        """The same, of a descriptor, which becomes its own."""
        return ChecksummedFile(self.path, fd, self._find, self._report, self._name)
