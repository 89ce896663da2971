"""Checksums of the blocks of a file, to verify a part of it without reading the rest.

Each is BLAKE3 cut to 8 bytes. On current processors that is faster than CRC-32 of zlib. It misses
one error in 2^64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from vfsd.errors import IntegrityError

BLOCK_BYTES = 1 << 15
"""Block size of new checksums. Damage is reported, and reads are refused, in blocks. Half the size
would double the checksums, which now take 1/4096 of the file."""
SUM_BYTES = 8
_MAX_RANGES = 8
"""Ranges in a message."""


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


def text(ranges: Sequence[range]) -> str:
    """Format ranges for messages; the last number is inclusive."""
    shown = [
        f"{one.start}" if len(one) == 1 else f"{one.start} to {one.stop - 1}"
        for one in ranges[:_MAX_RANGES]
    ]
    more = len(ranges) - _MAX_RANGES
    return ", ".join(shown) + (f" and {more} more places" if more > 0 else "")
