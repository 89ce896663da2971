"""Headers of JPEG pictures: what they look like, and which tables they leave to pictures before.

A stream may bring its tables once (ISO/IEC 10918-1, B.5), and decoders keep them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_START, _SCAN, _QUANTISERS, _CODES = 0xD8, 0xDA, 0xDB, 0xC4
_FRAMES = (0xC0, 0xC1)
"""Sequential ones; of all others a scan may bring tables, too, or there are other ones."""
_QUANTISER_BYTES = (64, 128)
_COUNTS = 16


@dataclass(frozen=True)
class JpegHeader:
    """What comes before the samples."""

    form: bytes  #: bits of a sample, the size, and how components share pixels
    lacks_quantisers: bool
    lacks_codes: bool
    brings_codes: bool


def parse_header(packet: bytes) -> JpegHeader | None:
    """None of what is no such picture, as far as can be told here."""
    form, wanted, coded = b"", set[int](), set[int]()
    quantisers, codes = set[int](), set[int]()
    try:
        for kind, segment in _segments(packet):
            if kind == _QUANTISERS:
                quantisers |= set(_quantisers(segment))
            elif kind == _CODES:
                codes |= set(_codes(segment))
            elif kind in _FRAMES:
                components = [segment[at : at + 3] for at in range(6, 6 + 3 * segment[5], 3)]
                form = segment[:6] + b"".join(component[:2] for component in components)
                wanted = {component[2] for component in components}
            elif kind == _SCAN:
                for at in range(2, 2 * segment[0] + 1, 2):
                    coded |= {segment[at] >> 4, 0x10 | segment[at] & 0xF}
    except IndexError:
        return None
    if not (form and coded):
        return None
    return JpegHeader(form, not wanted <= quantisers, not coded <= codes, bool(codes))


def _segments(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind, payload), up to the first scan's.  Raises `IndexError` where it does not parse."""
    if packet[0] != 0xFF or packet[1] != _START:
        raise IndexError
    at, kind = 2, _START
    while kind != _SCAN:
        while packet[at + 1] == 0xFF:  # it may be repeated
            at += 1
        kind, size = packet[at + 1], int.from_bytes(packet[at + 2 : at + 4])
        if packet[at] != 0xFF or size < 2:
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
