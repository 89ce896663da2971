"""Damage to video files, deterministic for a seed: bits, truncation, boxes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

_PARENTS = frozenset(
    b"moov trak mdia minf stbl edts dinf mvex moof traf udta meta RIFF LIST".split()
)
_EXTREMES = (0, 1, 7, 8, 9, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF0)
_VALUES = (0, 1, 0x7F, 0x80, 0xFF)
_DEEPEST = 12
_MOST_UNITS = 20_000


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a file that its container delimits: a box, a chunk, an element, a packet."""

    start: int
    end: int
    size_at: int  #: offset of its size field; -1: it has none
    size_bytes: int
    order: str  #: byte order of the size: "big" or "little"


def units(data: bytes) -> list[Unit]:
    """The units of the detected container, or else start codes or transport packets."""
    if data[:4] == b"RIFF":
        return _chunks(data, 0, len(data), 0)
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return _elements(data, 0, len(data), 0)
    if data[:1] == b"\x47":
        return [Unit(at, at + 188, -1, 0, "big") for at in range(0, len(data) - 187, 188)]
    boxes = _boxes(data, 0, len(data), 0)
    return boxes or _start_codes(data)


def _boxes(data: bytes, start: int, end: int, depth: int) -> list[Unit]:
    found: list[Unit] = []
    at = start
    while at + 8 <= end and len(found) < _MOST_UNITS:
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if size < 8 or at + size > end or not kind.isalnum():
            break
        found.append(Unit(at, at + size, at, 4, "big"))
        if kind in _PARENTS and depth < _DEEPEST:
            found += _boxes(data, at + 8, at + size, depth + 1)
        at += size
    return found


def _chunks(data: bytes, start: int, end: int, depth: int) -> list[Unit]:
    found: list[Unit] = []
    at = start
    while at + 8 <= end and len(found) < _MOST_UNITS:
        size, kind = int.from_bytes(data[at + 4 : at + 8], "little"), data[at : at + 4]
        if at + 8 + size > end:
            break
        found.append(Unit(at, at + 8 + size + size % 2, at + 4, 4, "little"))
        if kind in _PARENTS and depth < _DEEPEST:
            found += _chunks(data, at + 12, at + 8 + size, depth + 1)
        at += 8 + size + size % 2
    return found


def _elements(data: bytes, start: int, end: int, depth: int) -> list[Unit]:
    found: list[Unit] = []
    at = start
    while at + 2 <= end and len(found) < _MOST_UNITS:
        id_bytes = 9 - data[at].bit_length()
        size_at = at + id_bytes
        if id_bytes > 4 or size_at >= end or not data[size_at]:
            break
        size_bytes = 9 - data[size_at].bit_length()
        mask = (1 << 7 * size_bytes) - 1
        size = int.from_bytes(data[size_at : size_at + size_bytes]) & mask
        body = size_at + size_bytes
        stop = end if size == mask else body + size
        if stop > end:
            break
        found.append(Unit(at, stop, size_at, size_bytes, "big"))
        if id_bytes >= 4 and depth < 3:
            found += _elements(data, body, stop, depth + 1)
        at = stop
    return found


def _start_codes(data: bytes) -> list[Unit]:
    starts: list[int] = []
    at = data.find(b"\0\0\1")
    while at >= 0 and len(starts) < _MOST_UNITS:
        starts.append(at)
        at = data.find(b"\0\0\1", at + 3)
    return [Unit(one, end, -1, 0, "big") for one, end in pairwise([*starts, len(data)])]


# --------------------------------------------------------------------------------------- damage


def mutated(data: bytes, seed: int) -> tuple[str, bytes]:
    """(description, damaged bytes); one to three kinds of damage, chosen by the seed."""
    chance = random.Random(seed)
    done = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        name = chance.choice(list(_KINDS))
        data = _KINDS[name](data, chance)
        done.append(name)
    return "+".join(done), data


def _flip(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 2, 8, 64)) if made else 0):
        made[_place(data, chance)] ^= 1 << chance.randrange(8)
    return bytes(made)


def _set_bytes(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    at, count = _place(data, chance), chance.choice((1, 2, 4, 16))
    made[at : at + count] = bytes([chance.choice(_VALUES)]) * len(made[at : at + count])
    return bytes(made)


def _truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _cut_out(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + data[at + chance.choice((1, 4, 100, 4096)) :]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    part = data[at : at + chance.choice((1, 4, 100, 4096))]
    return data[:at] + part + data[at:]


def _duplicate_unit(data: bytes, chance: random.Random) -> bytes:
    unit = _some_unit(data, chance)
    return data if unit is None else data[: unit.end] + data[unit.start :]


def _remove_unit(data: bytes, chance: random.Random) -> bytes:
    unit = _some_unit(data, chance)
    return data if unit is None else data[: unit.start] + data[unit.end :]


def _swap_units(data: bytes, chance: random.Random) -> bytes:
    one, other = _some_unit(data, chance), _some_unit(data, chance)
    if one is None or other is None:
        return data
    if other.start < one.start:
        one, other = other, one
    if one.end > other.start:
        return data
    first, second = data[one.start : one.end], data[other.start : other.end]
    middle = data[one.end : other.start]
    return data[: one.start] + second + middle + first + data[other.end :]


def _set_size(data: bytes, chance: random.Random) -> bytes:
    sized = [unit for unit in units(data) if unit.size_at >= 0]
    if not sized:
        return _set_bytes(data, chance)
    unit = chance.choice(sized)
    most = (1 << 8 * unit.size_bytes) - 1
    value = min(chance.choice((*_EXTREMES, unit.end - unit.start + 1)), most)
    field = value.to_bytes(unit.size_bytes, "big" if unit.order == "big" else "little")
    return data[: unit.size_at] + field + data[unit.size_at + unit.size_bytes :]


def _set_number(data: bytes, chance: random.Random) -> bytes:
    """Write an extreme number at a likely position of a count, a size or an offset: in the head
    of a unit."""
    unit = _some_unit(data, chance)
    if unit is None or unit.end - unit.start < 16:
        return _set_bytes(data, chance)
    at = unit.start + 8 + 4 * chance.randrange(min(16, (unit.end - unit.start - 8) // 4))
    return data[:at] + chance.choice(_EXTREMES).to_bytes(4) + data[at + 4 :]


def _some_unit(data: bytes, chance: random.Random) -> Unit | None:
    found = units(data)
    return chance.choice(found) if found else None


def _place(data: bytes, chance: random.Random) -> int:
    """A random offset, mostly near one of the ends, where headers and indexes are."""
    if not data:
        return 0
    reach = min(len(data), 2048)
    kind = chance.random()
    if kind < 0.4:
        return chance.randrange(reach)
    if kind < 0.6:
        return len(data) - 1 - chance.randrange(reach)
    return chance.randrange(len(data))


_KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": _flip,
    "set": _set_bytes,
    "truncate": _truncate,
    "cut out": _cut_out,
    "repeat": _repeat,
    "duplicate": _duplicate_unit,
    "remove": _remove_unit,
    "swap": _swap_units,
    "size": _set_size,
    "number": _set_number,
}
