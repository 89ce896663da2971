"""Headers of JPEG pictures: what they look like, and which tables they leave to pictures before.

A stream may bring its tables once (ISO/IEC 10918-1, B.5), and decoders keep them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_START, _SCAN, _QUANTISERS, _CODES = 0xD8, 0xDA, 0xDB, 0xC4
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
"""Of others there may be tables of other kinds."""
_STAND_ALONE = (0x00, 0x01, *range(0xD0, 0xD9), 0xFF)
"""What makes no marker of a segment with 0xFF before it."""
_QUANTISER_BYTES = (64, 128)
_COUNTS = 16


@dataclass(frozen=True)
class JpegHeader:
    """What comes before the samples."""

    size: bytes  #: height and width
    lacks_quantisers: bool
    lacks_codes: bool
    brings_codes: bool


def parse_header(packet: bytes) -> JpegHeader | None:
    """None of what is no such picture, as far as can be told here."""
    size, wanted, coded = b"", set[int](), set[int]()
    is_progressive = False
    quantisers, codes = set[int](), set[int]()
    try:
        for kind, segment in _segments(packet):
            if kind == _QUANTISERS:
                quantisers |= set(_quantisers(segment))
            elif kind == _CODES:
                codes |= set(_codes(segment))
            elif kind in _SEQUENTIAL or kind == _PROGRESSIVE:
                is_progressive = kind == _PROGRESSIVE
                size = segment[1:5]
                wanted = {segment[at + 2] for at in range(6, 6 + 3 * segment[5], 3)}
            elif kind == _SCAN:
                for at in range(2, 2 * segment[0] + 1, 2):
                    coded |= {segment[at] >> 4, 0x10 | segment[at] & 0xF}
    except IndexError:
        return None
    if not (size and coded):
        return None
    # Each scan of a progressive picture may bring its own, and names some that it does without.
    lacks_codes = not codes if is_progressive else not coded <= codes
    return JpegHeader(size, not wanted <= quantisers, lacks_codes, bool(codes))


def _segments(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind, payload), up to the first scan's.  Raises `IndexError` where it does not parse."""
    at, kind = packet.find(bytes((0xFF, _START))) + 2, _START
    if at < 2:
        raise IndexError
    while kind != _SCAN:
        # Decoders pass over what lies before a marker.
        while packet[at] != 0xFF or packet[at + 1] in _STAND_ALONE:
            at += 1
        kind, size = packet[at + 1], int.from_bytes(packet[at + 2 : at + 4])
        if size < 2:
            raise IndexError
        yield kind, packet[at + 4 : at + 2 + size]
        at += 2 + size


def _quantisers(segment: bytes) -> Iterator[int]:
    at = 0
    while at < len(segment):
        yield segment[at] & 0xF
        at += 1 + _QUANTISER_BYTES[segment[at] >> 4]


def _codes(segment: bytes) -> Iterator[int]:
    """Numbers of Huffman codes, those of coefficients other than the first with 0x10 besides."""
    at = 0
    while at < len(segment):
        yield segment[at]
        at += 1 + _COUNTS + sum(segment[at + 1 : at + 1 + _COUNTS])
