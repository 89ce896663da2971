"""What a packet says itself of how large its picture is.

Where that changes on the way, and nothing else tells, a decode would have to find it.
"""

from __future__ import annotations

from collections.abc import Callable

from vfsd.codecs.bitstreams.bit_io import BitReader, DamagedError
from vfsd.codecs.bitstreams.obu import sequence_header

PictureSize = tuple[int, ...]
"""Numbers that are the same for pictures of the same size."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE = slice(16, 24)
_VP8_START = b"\x9d\x01\x2a"
_VP9_SYNC = 0x498342
_VP9_RGB = 7
_PRORES = b"icpf"
_JPEG2000 = b"\xff\x4f\xff\x51"
_JPEG2000_SIZE = 16
_MAGICYUV = b"MAGY"
_MAGICYUV_SIZE = slice(16, 24)


def picture_size(codec: str) -> Callable[[bytes], PictureSize | None] | None:
    """What tells the size of pictures of that codec; it gives None where a packet does not tell."""
    return _TOLD_BY.get(codec)


def _vp8(packet: bytes) -> PictureSize | None:
    """Of a key picture (RFC 6386, 9.1)."""
    if len(packet) < 10 or packet[0] & 1 or packet[3:6] != _VP8_START:
        return None
    return tuple(int.from_bytes(packet[at : at + 2], "little") & 0x3FFF for at in (6, 8))


def _vp9(packet: bytes) -> PictureSize | None:
    """Of a key picture (VP9 bitstream specification, 6.2)."""
    bits = BitReader(packet[:16])
    try:
        bits.bits(2)
        profile = bits.bits(1) | bits.bits(1) << 1
        if profile == 3:
            bits.bits(1)
        if bits.flag() or bits.flag():  # one is shown again; it is no key picture
            return None
        bits.bits(2)
        if bits.bits(24) != _VP9_SYNC:
            return None
        bits.bits(1 if profile >= 2 else 0)  # depth
        if bits.bits(3) != _VP9_RGB:
            bits.bits(4 if profile & 1 else 1)  # range, sampling
        else:
            bits.bits(1 if profile & 1 else 0)
        return bits.bits(16) + 1, bits.bits(16) + 1
    except DamagedError:
        return None


def _av1(packet: bytes) -> PictureSize | None:
    """All that is told of a sequence of pictures: encoders tell the same of each."""
    try:
        return tuple(sequence_header(packet))
    except DamagedError:
        return None


def _png(packet: bytes) -> PictureSize | None:
    return tuple(packet[_PNG_SIZE]) if packet.startswith(_PNG) else None


def _prores(packet: bytes) -> PictureSize | None:
    """(SMPTE RDD 36, 5.1)"""
    return tuple(packet[16:20]) if packet[4:8] == _PRORES and len(packet) >= 20 else None


def _jpeg2000(packet: bytes) -> PictureSize | None:
    """(ISO/IEC 15444-1, A.5.1), whether or not it has a file's boxes around it."""
    start = packet.find(_JPEG2000)
    at = start + len(_JPEG2000) + 4  # the length of the segment, what the decoder has to know
    return tuple(packet[at : at + _JPEG2000_SIZE]) if start >= 0 else None


def _magicyuv(packet: bytes) -> PictureSize | None:
    return tuple(packet[_MAGICYUV_SIZE]) if packet.startswith(_MAGICYUV) else None


def _flv1(packet: bytes) -> PictureSize | None:
    """Sorenson's H.263: behind a start code, a format and the time."""
    bits = BitReader(packet[:16])
    try:
        bits.bits(17 + 5 + 8)
        form = bits.bits(3)
        return form, bits.bits(_FLV1_BITS.get(form, 0))
    except DamagedError:
        return None


_FLV1_BITS = {0: 16, 1: 32}
"""That tell the size, where the three bits before do not."""
_TOLD_BY = {
    "flv1": _flv1,
    "vp8": _vp8,
    "vp9": _vp9,
    "av1": _av1,
    "png": _png,
    "prores": _prores,
    "jpeg2000": _jpeg2000,
    "magicyuv": _magicyuv,
}
