"""Bit strings of H.264 and HEVC: fixed-width fields, Exp-Golomb numbers and emulation prevention
bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EMULATION = re.compile(rb"\0\0(?=[\0-\3])")
"""Bytes behind which a unit has to have a 3, lest they be taken for a start code."""


class DamagedError(ValueError):
    """The bytes do not parse."""


@dataclass(frozen=True, slots=True)
class BitString:
    """A piece of a bit string: the lowest `count` bits of `value`."""

    value: int
    count: int


class BitReader:
    """Fields of an unescaped payload, most significant bit first.

    Raises `DamagedError` when the payload ends too early.
    """

    def __init__(self, payload: bytes) -> None:
        self._value = int.from_bytes(payload, "big")
        self._left = self._total = len(payload) * 8

    @property
    def position(self) -> int:
        """Bits read so far."""
        return self._total - self._left

    def bits(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise DamagedError("the unit is too short")
        return self._value >> self._left & ((1 << count) - 1)

    def flag(self) -> bool:
        return bool(self.bits(1))

    def golomb(self) -> int:
        """An unsigned Exp-Golomb number."""
        zeros = self._left - (self._value & ((1 << self._left) - 1)).bit_length()
        if zeros > 32:
            raise DamagedError("a number is too long")
        return self.bits(2 * zeros + 1) - 1

    def signed_golomb(self) -> int:
        number = self.golomb()
        return (number + 1) // 2 if number & 1 else -(number // 2)

    def between(self, start: int, end: int) -> BitString:
        """The bits ``start <= position < end``, wherever the reader stands."""
        count = end - start
        return BitString(self._value >> (self._total - end) & ((1 << count) - 1), count)

    def rest(self) -> BitString:
        """What is left before the bit that ends the payload (rbsp_trailing_bits, 7.3.2.11)."""
        left = self._value & ((1 << self._left) - 1)
        if not left:
            raise DamagedError("the end of the unit is not marked")
        stop = (left & -left).bit_length()
        return BitString(left >> stop, self._left - stop)


class BitWriter:
    """The reverse of `BitReader`."""

    def __init__(self) -> None:
        self._value = 0
        self._count = 0

    def bits(self, count: int, value: int) -> None:
        self._value = self._value << count | value
        self._count += count

    def flag(self, value: bool) -> None:
        self.bits(1, int(value))

    def golomb(self, number: int) -> None:
        self.bits(2 * (number + 1).bit_length() - 1, number + 1)

    def signed_golomb(self, number: int) -> None:
        self.golomb(2 * number - 1 if number > 0 else -2 * number)

    def append(self, bits: BitString) -> None:
        self.bits(bits.count, bits.value)

    def finished(self) -> bytes:
        """What was written, a one, and zeros up to the end of a byte: the same at the end of a
        payload (rbsp_trailing_bits) and between a slice's header and data (byte_alignment)."""
        self.flag(True)
        self.bits(-self._count % 8, 0)
        return self._value.to_bytes(self._count // 8, "big")


def unescaped(unit: bytes) -> bytes:
    """`unit` without the bytes that keep start codes out of it."""
    return unit.replace(b"\0\0\3", b"\0\0")


def escaped(payload: bytes) -> bytes:
    """`payload`, whose last byte is not zero, with the bytes that keep start codes out of it."""
    return _EMULATION.sub(b"\0\0\3", payload)


def escaped_offset(unit: bytes, plain: int) -> int:
    """Where in `unit` the first `plain` bytes of ``unescaped(unit)`` end."""
    offset, at = plain, unit.find(b"\0\0\3", 0, plain)
    while 0 <= at < offset - 2:
        offset += 1
        at = unit.find(b"\0\0\3", at + 3, offset)
    return offset
