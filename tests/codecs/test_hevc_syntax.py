"""Bits, levels and layouts of HEVC."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.codecs.bitstreams.bit_io import (
    BitReader,
    BitstreamError,
    BitWriter,
    escaped,
    escaped_offset,
    unescaped,
)
from vfsd.codecs.bitstreams.hevc_parameter_sets import (
    HEVC_LEVELS,
    LevelRequirements,
    PictureParameterSet,
    SequenceParameterSet,
    VideoParameterSet,
)
from vfsd.codecs.bitstreams.hevc_slices import SliceHeaderSyntax
from vfsd.errors import RefusedMediaError

ZEROS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 255]), max_size=40).map(bytes)


@given(ZEROS)
def test_escaping_is_undone(payload: bytes) -> None:
    payload += b"\x80"
    unit = escaped(payload)
    assert unescaped(unit) == payload
    assert not any(code in unit for code in (b"\0\0\0", b"\0\0\1", b"\0\0\2"))


@given(ZEROS, ZEROS)
def test_places_in_escaped_units(head: bytes, data: bytes) -> None:
    head += b"\x80"
    unit = escaped(head) + escaped(data + b"\x80")
    assert unit == escaped(head + data + b"\x80")
    assert escaped_offset(unit, len(head)) == len(escaped(head))


@given(st.lists(st.integers(-(2**31), 2**31), max_size=9), st.integers(0, 7))
def test_numbers_come_back(numbers: list[int], odd: int) -> None:
    writer = BitWriter()
    writer.bits(odd, 0)
    for number in numbers:
        writer.signed_golomb(number)
        writer.golomb(abs(number))
        writer.flag(number > 0)
    reader = BitReader(writer.finished())
    assert reader.bits(odd) == 0
    for number in numbers:
        assert reader.signed_golomb() == number
        assert reader.golomb() == abs(number)
        assert reader.flag() == (number > 0)
    assert reader.rest().count == 0


def test_a_payload_without_an_end_is_damaged() -> None:
    with pytest.raises(BitstreamError):
        BitReader(b"\0\0").rest()


@given(st.binary(max_size=60))
def test_any_bytes_are_sets_or_damaged_or_refused(data: bytes) -> None:
    for kind, parse in (
        (32, VideoParameterSet.parse),
        (33, SequenceParameterSet.parse),
        (34, PictureParameterSet.parse),
    ):
        for unit in (data, bytes((kind << 1, 1)) + data):
            try:
                parsed = parse(unit)
            except (BitstreamError, RefusedMediaError):
                continue
            if not (isinstance(parsed, PictureParameterSet) and parsed.uniform):
                assert parse(parsed.write()) == parsed


# Sets as kvazaar writes them for 384x256 in 2x2 tiles.
SEQUENCE = (
    "4201020160000003008000000300000300780000a0021c801e05cb924ca26a0404020800001f480003a98040"
)
PICTURE = "4401c071809920"


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_slices_or_damaged_or_refused(data: bytes) -> None:
    sequence = SequenceParameterSet.parse(bytes.fromhex(SEQUENCE))
    syntax = SliceHeaderSyntax(sequence, PictureParameterSet.parse(bytes.fromhex(PICTURE)))
    for unit in (data, b"\x26\1" + data, b"\2\1" + data):
        try:
            part = syntax.parse(unit)
        except (BitstreamError, RefusedMediaError):
            continue
        again = syntax.parse(syntax.write(part, part.address))
        assert again.traits == part.traits
        assert (again.before, again.slice_qp, again.after) == (
            part.before,
            part.slice_qp,
            part.after,
        )
        assert again.unit[again.data_at :] == part.unit[part.data_at :]


def test_sets_are_read_and_written() -> None:
    unit = bytes.fromhex(SEQUENCE)
    sequence = SequenceParameterSet.parse(unit)
    assert (sequence.width, sequence.height, sequence.tree_block) == (1080, 1920, 64)
    assert (sequence.coding_block, sequence.order_bits) == (8, 4)
    assert sequence.rate == Fraction(30000, 1001)
    assert sequence.write() == unit
    assert PictureParameterSet.parse(bytes.fromhex(PICTURE)).write() == bytes.fromhex(PICTURE)


@pytest.mark.parametrize(
    ("demand", "level"),
    [
        (LevelRequirements(1920, 1088, 1, 1, 4, Fraction(30)), 4),
        (LevelRequirements(1920, 1088, 4, 4, 4, Fraction(30)), 4),
        (LevelRequirements(1920, 1088, 4, 4, 4, Fraction(60)), 4.1),
        (LevelRequirements(1920, 1088, 6, 4, 4, Fraction(30)), 5),  # level 4 has five columns
        (LevelRequirements(1920, 1088, 4, 11, 4, Fraction(30)), 5),
        (LevelRequirements(1920, 1088, 4, 4, 4, Fraction(30), 13_200_000), 4),
        (LevelRequirements(1920, 1088, 4, 4, 4, Fraction(30), 13_200_001), 4.1),
        (LevelRequirements(1920, 1088, 4, 4, 7, Fraction(30)), 5),  # six buffers at full size
        (LevelRequirements(3840, 2160, 8, 8, 4, Fraction(60)), 5.1),
        (LevelRequirements(8192, 4320, 8, 8, 4), 6),
        (LevelRequirements(320, 240, 1, 1, 4, Fraction(30)), 2),
        (LevelRequirements(8, 4216, 1, 1, 4, Fraction(30)), 4),  # long and narrow
        (LevelRequirements(8, 4224, 1, 1, 4, Fraction(30)), 5),
        (LevelRequirements(8192, 8192, 1, 1, 4), None),
        (LevelRequirements(1920, 1088, 21, 1, 4), None),
    ],
)
def test_levels(demand: LevelRequirements, level: float | None) -> None:
    found = demand.lowest_level()
    assert (found and found.idc / 30) == level


def test_buffers_of_a_level() -> None:
    level = next(level for level in HEVC_LEVELS if level.idc == 120)
    sizes = (level.samples // 4, level.samples // 2, level.samples * 3 // 4, level.samples)
    assert [level.buffers(size) for size in sizes] == [16, 12, 8, 6]
