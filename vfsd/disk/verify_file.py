"""Reads all bytes of an object or linked file and compares them with its hash and checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blake3 import blake3

from vfsd.disk.block_checksums import BLOCK_BYTES, BlockChecksummer, BlockChecksums, merged
from vfsd.disk.direct_io import CHUNK, UNREADABLE, DirectFile

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


def version_of(found: os.stat_result) -> tuple[int, int, int]:
    """Return a value that changes if the file is replaced or written to."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def verify_stored_file(
    path: str | os.PathLike[str],
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
        opened = DirectFile(path)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        lost = range(known.size) if known is not None and known.size else range(1)
        return VerifyResult(0, 0, False, (lost,), False, known)
    with opened as file:
        found = file.stat()
        version = version_of(found)
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
    return VerifyResult(
        first.size, found.st_mtime_ns, is_whole, tuple(damage), first.is_readable, sums
    )


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
        file: DirectFile,
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
        end = self._file.stat().st_size
        at = self._start
        while at < end:
            try:
                data = self._file.read(at)
            except PermissionError:  # a server may deny reads of an open file
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
