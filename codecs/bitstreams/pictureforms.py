"""What a packet says itself of how large its picture is, and how it is sampled.

Where that changes on the way, and nothing else tells, a decode would have to find it.
"""

from __future__ import annotations

from collections.abc import Callable

from vfsd.codecs.bitstreams.bits import BitReader, DamagedError

PictureForm = tuple[int, ...]
"""Numbers that are the same for pictures of the same form."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_HEADER = slice(16, 26)  # width, height, bits, kind of colours
_VP8_START = b"\x9d\x01\x2a"
_VP9_SYNC = 0x498342
_VP9_RGB = 7
_PRORES = b"icpf"


def picture_form(codec: str) -> Callable[[bytes], PictureForm | None] | None:
    """What tells the form of pictures of that codec; it gives None where a packet does not tell."""
    return {"vp8": _vp8, "vp9": _vp9, "png": _png, "prores": _prores}.get(codec)


def _vp8(packet: bytes) -> PictureForm | None:
    """Of a key picture (RFC 6386, 9.1)."""
    if len(packet) < 10 or packet[0] & 1 or packet[3:6] != _VP8_START:
        return None
    return tuple(int.from_bytes(packet[at : at + 2], "little") & 0x3FFF for at in (6, 8))


def _vp9(packet: bytes) -> PictureForm | None:
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
        depth = bits.bits(1) if profile >= 2 else 0
        sampling = 0
        if bits.bits(3) != _VP9_RGB:
            bits.bits(1)
            sampling = bits.bits(3) if profile & 1 else 0
        else:
            sampling = bits.bits(1) if profile & 1 else 0
        return profile, depth, sampling, bits.bits(16) + 1, bits.bits(16) + 1
    except DamagedError:
        return None


def _png(packet: bytes) -> PictureForm | None:
    return tuple(packet[_PNG_HEADER]) if packet.startswith(_PNG) else None


def _prores(packet: bytes) -> PictureForm | None:
    """(SMPTE RDD 36, 5.1)"""
    if packet[4:8] != _PRORES or len(packet) < 21:
        return None
    return *packet[16:20], packet[20] >> 6
