"""Bits, levels and layouts of HEVC.

Ids of HEVC's parameter sets, and key frames without leading frames.
"""

from __future__ import annotations

from fractions import Fraction

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clips import pictures
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import (
    BitReader,
    BitstreamError,
    BitWriter,
    escaped,
    escaped_offset,
    unescaped,
)
from vfsd.codecs.bitstreams.splice_parameter_sets import (
    as_idr_packet,
    free_parameter_set_id,
    parse_hevc_sequence,
    with_parameter_set_id,
    with_pps_id,
)
from vfsd.codecs.containers.muxers import with_start_codes
from vfsd.codecs.encoding.encoder import EncoderSettings, encode_pictures, parameter_sets
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.stitching.hevc_parameter_sets import (
    HEVC_LEVELS,
    LevelRequirements,
    PictureParameterSet,
    SequenceParameterSet,
    VideoParameterSet,
)
from vfsd.codecs.stitching.hevc_tiles import SliceHeaderSyntax
from vfsd.errors import RefusedMediaError

ZEROS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 255]), max_size=40).map(bytes)


@given(ZEROS)
def test_escaping_round_trip(payload: bytes) -> None:
    payload += b"\x80"
    unit = escaped(payload)
    assert unescaped(unit) == payload
    assert not any(code in unit for code in (b"\0\0\0", b"\0\0\1", b"\0\0\2"))


@given(ZEROS, ZEROS)
def test_offsets_in_escaped_units(head: bytes, data: bytes) -> None:
    head += b"\x80"
    unit = escaped(head) + escaped(data + b"\x80")
    assert unit == escaped(head + data + b"\x80")
    assert escaped_offset(unit, len(head)) == len(escaped(head))


@given(st.lists(st.integers(-(2**31), 2**31), max_size=9), st.integers(0, 7))
def test_numbers_round_trip(numbers: list[int], odd: int) -> None:
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


def test_payload_without_end_is_damaged() -> None:
    with pytest.raises(BitstreamError):
        BitReader(b"\0\0").rest()


@given(st.binary(max_size=60))
def test_arbitrary_bytes_as_parameter_sets(data: bytes) -> None:
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
def test_arbitrary_bytes_as_slices(data: bytes) -> None:
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


def test_parameter_sets_round_trip() -> None:
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


# --------------------------------------------------------------------------------------------------
# Ids of HEVC's parameter sets, and key frames without leading frames


def settings(number: int = 0, block: int | None = None) -> EncoderSettings:
    return EncoderSettings(
        codec="hevc",
        width=98,
        height=70,
        quality=24,
        rate=Fraction(25),
        color_range="full",
        number=number,
        smallest_block=block,
    )


def shown(stream: bytes) -> list[int]:
    decoder = av.CodecContext.create("hevc", "r")
    frames = [f for packet in decoder.parse(stream) for f in decoder.decode(packet)]
    frames += [f for packet in decoder.parse(b"") for f in decoder.decode(packet)]
    return [fingerprint(frame) for frame in [*frames, *decoder.decode(None)]]


def coded(chosen: EncoderSettings) -> bytes:
    return b"".join(encode_pictures(chosen, list(pictures(12, 98, 70))))


@pytest.mark.parametrize("number", [1, 7, 15])
def test_streams_with_different_pps_ids_can_be_mixed(number: int) -> None:
    plain, other = settings(), settings(number)
    stream, moved = coded(plain), coded(other)
    # A byte for each frame, and occasionally an emulation prevention byte.
    assert 12 <= len(moved) - len(stream) <= 24
    sets = with_start_codes((*parameter_sets(plain), *parameter_sets(other)))
    alone = shown(with_start_codes(parameter_sets(plain)) + stream)
    assert len(alone) == 12
    assert shown(sets + stream + moved + stream) == 3 * alone
    assert shown(with_start_codes(parameter_sets(other)) + moved) == alone


def test_free_id_is_unused() -> None:
    plain = parameter_sets(settings())
    assert free_parameter_set_id(plain) == 15
    assert free_parameter_set_id((*plain, *parameter_sets(settings(15)))) == 14
    everything = [unit for number in range(1, 16) for unit in parameter_sets(settings(number))]
    assert free_parameter_set_id((*plain, *everything)) is None


@pytest.mark.parametrize(("block", "size"), [(8, (104, 72)), (16, (112, 80)), (32, (128, 96))])
def test_frames_are_coded_in_whole_blocks(block: int, size: tuple[int, int]) -> None:
    (unit,) = (
        unit
        for unit in parameter_sets(settings(3, block))
        if nal.unit_type("hevc", unit) == nal.HEVC_SPS
    )
    told = parse_hevc_sequence(unit)
    assert (told.number, told.video_number, told.size) == (3, 3, size)
    assert told.window == (0, size[0] - 98, 0, size[1] - 70)
    assert told.block_of(98, 70) == block
    assert told.block_of(96, 70) is None


def test_existing_pps_id_is_not_replaced() -> None:
    for unit in parameter_sets(settings(2)):
        with pytest.raises(BitstreamError):
            with_parameter_set_id(unit, 3)
    for start, end in nal.nal_units(coded(settings(2)), 0):
        with pytest.raises(BitstreamError):
            with_pps_id(coded(settings(2))[start:end], 3)
        break


def test_only_key_frames_with_possible_leading_frames_are_marked() -> None:
    cra, idr, trail = (bytes((kind << 1, 1, 0x80, 5)) for kind in (21, 19, 1))
    for unit, kind in ((cra, 18), (idr, 19), (trail, 1)):
        for prefix, packet in ((0, nal.START_CODE + unit), (4, b"\0\0\0\4" + unit)):
            made = as_idr_packet(packet, prefix)
            assert nal.unit_type("hevc", made[4:]) == kind
            assert made[:4] + made[5:] == packet[:4] + packet[5:]
