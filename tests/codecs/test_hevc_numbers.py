"""Numbers of HEVC's parameter sets, and key pictures that nothing precedes."""

from __future__ import annotations

from fractions import Fraction

import av
import pytest

from tests.codecs.making import pictures
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitstreamError
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
def test_streams_of_two_numbers_stand_beside_each_other(number: int) -> None:
    plain, other = settings(), settings(number)
    stream, moved = coded(plain), coded(other)
    # A byte for each picture, and now and then one that keeps start codes out.
    assert 12 <= len(moved) - len(stream) <= 24
    sets = with_start_codes((*parameter_sets(plain), *parameter_sets(other)))
    alone = shown(with_start_codes(parameter_sets(plain)) + stream)
    assert len(alone) == 12
    assert shown(sets + stream + moved + stream) == 3 * alone
    assert shown(with_start_codes(parameter_sets(other)) + moved) == alone


def test_a_free_number_is_one_that_no_set_has() -> None:
    plain = parameter_sets(settings())
    assert free_parameter_set_id(plain) == 15
    assert free_parameter_set_id((*plain, *parameter_sets(settings(15)))) == 14
    everything = [unit for number in range(1, 16) for unit in parameter_sets(settings(number))]
    assert free_parameter_set_id((*plain, *everything)) is None


@pytest.mark.parametrize(("block", "size"), [(8, (104, 72)), (16, (112, 80)), (32, (128, 96))])
def test_pictures_are_coded_in_whole_blocks(block: int, size: tuple[int, int]) -> None:
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


def test_what_has_a_number_gets_no_other() -> None:
    for unit in parameter_sets(settings(2)):
        with pytest.raises(BitstreamError):
            with_parameter_set_id(unit, 3)
    for start, end in nal.nal_units(coded(settings(2)), 0):
        with pytest.raises(BitstreamError):
            with_pps_id(coded(settings(2))[start:end], 3)
        break


def test_only_key_pictures_that_others_may_precede_are_marked() -> None:
    cra, idr, trail = (bytes((kind << 1, 1, 0x80, 5)) for kind in (21, 19, 1))
    for unit, kind in ((cra, 18), (idr, 19), (trail, 1)):
        for prefix, packet in ((0, nal.START_CODE + unit), (4, b"\0\0\0\4" + unit)):
            made = as_idr_packet(packet, prefix)
            assert nal.unit_type("hevc", made[4:]) == kind
            assert made[:4] + made[5:] == packet[:4] + packet[5:]
