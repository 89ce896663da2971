"""Reads and writes bit strings of H.264 and HEVC.

Covers fixed-width fields, Exp-Golomb numbers (H.264 9.1) and emulation prevention bytes (H.264
7.4.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EMULATION = re.compile(rb"\0\0(?=[\0-\3])")
"""Bytes after which a unit needs an emulation prevention byte (3)."""


class BitstreamError(ValueError):
    """The bytes cannot be parsed."""


@dataclass(frozen=True, slots=True)
class BitString:
    """A piece of a bit string: the lowest `count` bits of `value`."""

    value: int
    count: int


class BitReader:
    """Reads fields of an unescaped payload, most significant bit first.

    Raises `BitstreamError` if the payload ends too early.
    """

    def __init__(self, payload: bytes) -> None:
        self._value = int.from_bytes(payload, "big")
        self._left = self._total = len(payload) * 8

    @property
    def position(self) -> int:
        """The number of bits read."""
        return self._total - self._left

    def bits(self, count: int) -> int:
        """Read an unsigned number of `count` bits."""
        self._left -= count
        if self._left < 0:
            raise BitstreamError("the unit is too short")
        return self._value >> self._left & ((1 << count) - 1)

    def flag(self) -> bool:
        """Read one bit."""
        return bool(self.bits(1))

    def golomb(self) -> int:
        """Read an unsigned Exp-Golomb number, ue(v)."""
        zeros = self._left - (self._value & ((1 << self._left) - 1)).bit_length()
        if zeros > 32:
            raise BitstreamError("an Exp-Golomb number is too long")
        return self.bits(2 * zeros + 1) - 1

    def signed_golomb(self) -> int:
        """Read a signed Exp-Golomb number, se(v)."""
        number = self.golomb()
        return (number + 1) // 2 if number & 1 else -(number // 2)

    def between(self, start: int, end: int) -> BitString:
        """Return the bits ``start <= position < end``, without moving the reader."""
        count = end - start
        return BitString(self._value >> (self._total - end) & ((1 << count) - 1), count)

    def rest(self) -> BitString:
        """Return the bits left before rbsp_trailing_bits (7.3.2.11)."""
        left = self._value & ((1 << self._left) - 1)
        if not left:
            raise BitstreamError("the unit has no stop bit")
        stop = (left & -left).bit_length()
        return BitString(left >> stop, self._left - stop)


class BitWriter:
    """Writes bit fields; the inverse of `BitReader`."""

    def __init__(self) -> None:
        self._value = 0
        self._count = 0

    def bits(self, count: int, value: int) -> None:
        """Write `value` in `count` bits."""
        self._value = self._value << count | value
        self._count += count

    def flag(self, value: bool) -> None:
        self.bits(1, int(value))

    def golomb(self, number: int) -> None:
        """Write an unsigned Exp-Golomb number, ue(v)."""
        self.bits(2 * (number + 1).bit_length() - 1, number + 1)

    def signed_golomb(self, number: int) -> None:
        """Write a signed Exp-Golomb number, se(v)."""
        self.golomb(2 * number - 1 if number > 0 else -2 * number)

    def append(self, bits: BitString) -> None:
        self.bits(bits.count, bits.value)

    def finished(self) -> bytes:
        """Return the bytes, ended by a one and zeros up to a byte boundary.

        This is rbsp_trailing_bits at the end of a payload, and byte_alignment after a slice header.
        """
        self.flag(True)
        self.bits(-self._count % 8, 0)
        return self._value.to_bytes(self._count // 8, "big")


def unescaped(unit: bytes) -> bytes:
    """Return `unit` without emulation prevention bytes."""
    return unit.replace(b"\0\0\3", b"\0\0")


def escaped(payload: bytes) -> bytes:
    """Return `payload` with emulation prevention bytes; its last byte must not be 0."""
    return _EMULATION.sub(b"\0\0\3", payload)


def escaped_offset(unit: bytes, plain: int) -> int:
    """Return the offset in `unit` at which the first `plain` bytes of ``unescaped(unit)`` end."""
    offset, at = plain, unit.find(b"\0\0\3", 0, plain)
    while 0 <= at < offset - 2:
        offset += 1
        at = unit.find(b"\0\0\3", at + 3, offset)
    return offset
