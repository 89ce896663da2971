"""Headers of JPEG pictures: what they look like, and which tables they leave to pictures before.

A stream may bring its tables once (ISO/IEC 10918-1, B.5), and decoders keep them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_START = b"\xff\xd8"
_SCAN, _QUANTISERS, _CODES = 0xDA, 0xDB, 0xC4
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
"""Of others there may be tables of other kinds."""
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
"""Of a segment; other bytes behind 0xFF have none, or are no marker."""
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
    at, kind = packet.find(_START), None
    if at < 0:
        raise IndexError
    while kind != _SCAN:
        marker = _MARKER.search(packet, at)  # decoders pass over what lies before it
        if marker is None:
            raise IndexError
        kind, at = marker[1][0], marker.end()
        size = int.from_bytes(packet[at : at + 2])
        if size < 2:
            raise IndexError
        yield kind, packet[at + 2 : at + size]
        at += size


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
