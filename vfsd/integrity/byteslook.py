"""Looking at all bytes of an object or a linked file: are they those that were stored?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from vfsd.integrity.blocksums import BLOCK_BYTES, BlockSummer, BlockSums, merged
from vfsd.integrity.diskfile import CHUNK, UNREADABLE, DiskFile

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were read since the last call; may wait, or raise."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found by reading a file from the disk from end to end."""

    size: int  #: bytes that it has
    mtime_ns: int
    is_whole: bool  #: it hashes to what it should
    damage: tuple[range, ...]  #: bytes that are others, or cannot be read; none if `is_whole`
    is_readable: bool  #: the disk has given all of them
    sums: BlockSums | None  #: that it should have: if `is_whole`, of what was read


def look_at(
    path: str | os.PathLike[str], digest: str, known: BlockSums | None, on_bytes: OnBytes
) -> Looked:
    """Read a file and compare it with its hash, and with its sums where there are any.

    Whatever is not as it should be is read a second time; what the disk does not let be opened is
    damaged as a whole.  Raises `OSError` for what says nothing of the bytes: `FileNotFoundError`,
    `PermissionError`, or that this process has too many files open.
    """
    try:
        opened = DiskFile(path)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        lost = range(known.size) if known is not None and known.size else range(1)
        return Looked(0, 0, False, (lost,), False, known)
    with opened as file:
        found = file.stat()
        first = _Pass(file, known, on_bytes)
        first.run()
        if first.digest != digest and known is None:
            first = _Pass(file, None, on_bytes)
            first.run()
    is_whole = first.digest == digest
    damage: list[range] = []
    if not is_whole:
        damage = merged([*first.damage, *_other_size(known, first.size)])
        if not damage:  # nobody knows where
            damage = [range(max(1, first.size))]
    sums = first.sums if is_whole else known
    return Looked(first.size, found.st_mtime_ns, is_whole, tuple(damage), first.is_readable, sums)


def _other_size(known: BlockSums | None, size: int) -> list[range]:
    if known is None or known.size == size:
        return []
    return [range(min(known.size, size), max(known.size, size))]


class _Pass:
    """One reading of a file."""

    def __init__(self, file: DiskFile, known: BlockSums | None, on_bytes: OnBytes) -> None:
        self._file = file
        self._known = known
        self._on_bytes = on_bytes
        self._hasher = blake3()
        self._summer = BlockSummer()
        self.size = 0
        self.damage: list[range] = []
        self.is_readable = True

    @property
    def digest(self) -> str | None:
        """None where some bytes cannot be read."""
        return self._hasher.hexdigest() if self.is_readable else None

    @property
    def sums(self) -> BlockSums:
        return self._summer.finish()

    def run(self) -> None:
        end = self._file.stat().st_size
        at = 0
        while at < end:
            try:
                data = self._file.read(at)
            except PermissionError:  # as a server may say of a file that was opened
                raise
            except OSError:
                data = self._in_blocks(range(at, min(end, at + CHUNK)))
            if not data:
                break  # it was cut off meanwhile
            if self._known is not None:
                data = self._compared(self._known, at, data)
            self._hasher.update(data)
            self._summer.update(data)
            at += len(data)
            self._on_bytes(len(data))
        self.size = at

    def _in_blocks(self, part: range) -> bytes:
        """What the disk gives of it; zeros in the place of all else."""
        found = bytearray()
        for start in range(part.start, part.stop, BLOCK_BYTES):
            own = range(start, min(part.stop, start + BLOCK_BYTES))
            data = self._file.block(own)
            if data is None or len(data) < len(own):
                self.is_readable = False
                self.damage.append(own)
                data = bytes(len(own))
            found += data
        return bytes(found)

    def _compared(self, known: BlockSums, at: int, data: bytes) -> bytes:
        """Note which blocks are others, at a second look, too; the bytes as they are then."""
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
                self.damage.append(own)
        return data if corrected is None else bytes(corrected)
