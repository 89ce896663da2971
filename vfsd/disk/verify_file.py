"""Looking at all bytes of an object or a linked file: are they those that were stored?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blake3 import blake3

from vfsd.disk.block_checksums import BLOCK_BYTES, BlockChecksummer, BlockChecksums, merged
from vfsd.disk.direct_io import CHUNK, UNREADABLE, DirectFile

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were read since the last call; may wait, or raise."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was found by reading a file from the disk from end to end."""

    size: int  #: bytes that it has
    mtime_ns: int
    is_whole: bool  #: it hashes to what it should
    damage: tuple[range, ...]  #: bytes that are others, or cannot be read; none if `is_whole`
    is_readable: bool  #: the disk has given all of them
    sums: BlockChecksums | None  #: that it should have: if `is_whole`, of what was read


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """A look at a file that was interrupted: its first bytes have been compared with its sums."""

    version: tuple[int, int, int]  #: of the file: inode, size, mtime
    at: int  #: bytes
    damage: tuple[range, ...]  #: among them
    is_second: bool = False  #: the first one, in several goes too, has come to damage


OnCompared = Callable[[Callable[[], VerifyProgress]], None]
"""Called when more has been compared, with what tells how far; which may take a while."""


def version_of(found: os.stat_result) -> tuple[int, int, int]:
    """Another one where another file has the name, or it was written into."""
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
    """Read a file and compare it with its hash, and with its sums where there are any.

    `begun` is an earlier look at it with the same sums, as `on_compared` was told: what that has
    read is not read again, and the rest goes by the sums alone, as the hash is of all bytes.
    Where that comes to damage, the sums may be what is wrong, and the file is looked at once more,
    from its beginning; if this look is interrupted, too, its rest is believed.  Another version of
    the file is looked at from its beginning.

    Whatever is not as it should be is read a second time; what the disk does not let be opened is
    damaged as a whole.  Raises `OSError` for what says nothing of the bytes: `FileNotFoundError`,
    `PermissionError`, or that this process has too many files open.
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
        if not damage:  # nobody knows where
            damage = [range(max(1, first.size))]
    sums = first.sums if is_whole and begun is None else known
    return VerifyResult(
        first.size, found.st_mtime_ns, is_whole, tuple(damage), first.is_readable, sums
    )


def _may_be_right(found: _Pass, known: BlockChecksums | None) -> bool:
    """Whether it is only the sums that say otherwise, which may be wrong."""
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
        self._hasher = blake3()  # of no use behind `begun`, as are the sums
        self._summer = BlockChecksummer()
        self._from = 0 if begun is None else begun.at
        self._is_second = is_second if begun is None else begun.is_second
        self.size = 0
        self.damage: list[range] = [] if begun is None else list(begun.damage)
        self.is_readable = True

    @property
    def digest(self) -> str | None:
        """None where some bytes cannot be read."""
        return self._hasher.hexdigest() if self.is_readable else None

    @property
    def sums(self) -> BlockChecksums:
        return self._summer.finish()

    def run(self) -> None:
        end = self._file.stat().st_size
        at = self._from
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
            # What the disk does not give may come back, and is not passed over the next time.
            if self._known is not None and self.is_readable:
                self._on_compared(partial(self._begun_until, at))
            self._on_bytes(len(data))
        self.size = at

    def _begun_until(self, at: int) -> VerifyProgress:
        """What was found in the first `at` bytes; by now more may have been read."""
        damage = (range(one.start, min(one.stop, at)) for one in self.damage if one.start < at)
        return VerifyProgress(self._version, at, tuple(damage), self._is_second)

    def _note(self, own: range) -> None:
        """Damage, which mostly goes on where the last ended."""
        if self.damage and self.damage[-1].start <= own.start <= self.damage[-1].stop:
            last = self.damage.pop()
            own = range(last.start, max(last.stop, own.stop))
        self.damage.append(own)

    def _in_blocks(self, part: range) -> bytes:
        """What the disk gives of it; zeros in the place of all else."""
        found = bytearray()
        for start in range(part.start, part.stop, BLOCK_BYTES):
            own = range(start, min(part.stop, start + BLOCK_BYTES))
            data = self._file.block(own)
            if data is None or len(data) < len(own):
                self.is_readable = False
                self._note(own)
                data = bytes(len(own))
            found += data
        return bytes(found)

    def _compared(self, known: BlockChecksums, at: int, data: bytes) -> bytes:
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
                self._note(own)
        return data if corrected is None else bytes(corrected)
