"""Headers of JPEG pictures: what they look like, and what they leave to pictures before.

A stream may bring its tables once (ISO/IEC 10918-1, B.5), and decoders keep them.  FFmpeg's keeps
what some encoders say in comments, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_START = b"\xff\xd8"
_END, _SCAN, _QUANTISERS, _CODES, _COMMENT = 0xD9, 0xDA, 0xDB, 0xC4, 0xFE
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
"""Of others there may be tables of other kinds."""
_COMMENT_MARKER = b"\xff\xfe"
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
"""Of a segment; other bytes behind 0xFF have none, or are no marker."""
_RANGE, _TURNED, _FIELDS, _AVID, _POLARITY = (1 << bit for bit in range(5))
_UPSIDE_DOWN = (b"Intel(R) JPEG Library, version 1", b"Metasoft MJPEG Codec")
_POLARITIES = (b"\x01", b"\x02")
_TELLING = 64
"""Bytes of a comment of which more are nothing that is known."""
_TELLING_COMMENT = re.compile(
    rb"\xff\xfe(?=..(?:AVID|CS=ITU601|MULTISCOPE II|%s))" % b"|".join(map(re.escape, _UPSIDE_DOWN)),
    re.DOTALL,
)
"""Of what `_said` may know, wherever it begins: within another comment, too."""
_QUANTISER_BYTES = (64, 128)
_COUNTS = 16
_KEPT = 32
"""Results that are kept of each function; a segment is at most 64 KiB long."""


class JpegHeader(NamedTuple):
    """What comes beside the samples."""

    size: bytes  #: height and width
    lacks_quantisers: bool
    lacks_codes: bool
    brings_codes: bool
    said: int  #: a bit for each matter of which decoders go by a comment in later pictures, too
    is_told: bool  #: whether all that is said so stands before the samples


def parse_header(packet: bytes) -> JpegHeader | None:
    """None of what is no such picture, as far as can be told here."""
    size, parts = b"", 0
    is_progressive = is_coded = lacks_codes = False
    wanted: frozenset[int] = frozenset()
    quantisers: set[int] = set()
    codes: set[int] = set()
    said = 0
    start = packet.find(_START)
    is_told = start <= 0 or not _says_between(packet, 0, start)
    try:
        for kind, segment, end in _segments(packet, start):
            if kind == _QUANTISERS:
                quantisers.update(_quantisers(segment))
            elif kind == _CODES:
                codes.update(_codes(segment))
            elif kind in _SEQUENTIAL or kind == _PROGRESSIVE:
                is_progressive = kind == _PROGRESSIVE
                size = segment[1:5]
                parts = segment[5]
                wanted = _quantisers_of_parts(segment)
            elif kind == _SCAN:
                is_coded = True
                lacks_codes |= not codes.issuperset(_codes_of_scan(segment, is_progressive))
                if not is_progressive and segment[0] == parts:
                    is_told &= not _says_between(packet, end, len(packet))
                    break  # no other scan follows
            elif kind == _COMMENT and (more := _said(segment)):
                said |= more
                is_told &= not is_coded
    except IndexError:
        return None
    if not (size and is_coded):
        return None
    return JpegHeader(size, not wanted <= quantisers, lacks_codes, bool(codes), said, is_told)


@lru_cache(maxsize=_KEPT)
def _said(comment: bytes) -> int:
    """As FFmpeg's decoder reads comments: which range samples have, which row is the first one,
    how fields lie, and which is the first."""
    if comment.startswith(b"AVID"):
        return _AVID | (_POLARITY if comment[12:13] in _POLARITIES else 0)
    text = comment.removesuffix(b"\n").partition(b"\0")[0]
    if text.startswith(_UPSIDE_DOWN):
        return _TURNED
    return {b"CS=ITU601": _RANGE, b"MULTISCOPE II": _FIELDS}.get(text, 0)


def _says_between(packet: bytes, start: int, end: int) -> bool:
    """Whether anything is said where no header is looked for."""
    if packet.find(_COMMENT_MARKER, start, end) < 0:
        return False  # samples hold none; the search for that is faster than by the expression
    for found in _TELLING_COMMENT.finditer(packet, max(start, 0), max(end, 0)):
        at = found.end()
        length = int.from_bytes(packet[at : at + 2])
        if _said(packet[at + 2 : at + min(length, _TELLING)]):
            return True
    return False


def _segments(packet: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """(kind, payload, where it ends), from the start of a picture to its end.  Raises `IndexError`
    where it does not parse.

    Samples between them are passed over.
    """
    if at < 0:
        raise IndexError
    # Decoders pass over what lies before a marker.
    while (marker := _MARKER.search(packet, at)) and (kind := marker[1][0]) != _END:
        at = marker.end()
        size = packet[at] << 8 | packet[at + 1]
        if size < 2:
            raise IndexError
        yield kind, packet[at + 2 : at + size], at + size
        at += size


# Most pictures of a stream have the same segments.
@lru_cache(maxsize=_KEPT)
def _codes_of_scan(segment: bytes, is_progressive: bool) -> frozenset[int]:
    """Numbers of Huffman codes that it is decoded with, as `_codes` gives them."""
    parts = segment[0]
    tables = segment[2 : 2 * parts + 1 : 2]
    if is_progressive:
        first, bits = segment[2 * parts + 1], segment[2 * parts + 3]
        if first:
            return frozenset(0x10 | table & 0xF for table in tables)
        return frozenset() if bits >> 4 else frozenset(table >> 4 for table in tables)
    return frozenset(code for table in tables for code in (table >> 4, 0x10 | table & 0xF))


@lru_cache(maxsize=_KEPT)
def _quantisers_of_parts(segment: bytes) -> frozenset[int]:
    """Numbers of the quantisers that the components of a frame are decoded with."""
    return frozenset(segment[at + 2] for at in range(6, 6 + 3 * segment[5], 3))


@lru_cache(maxsize=_KEPT)
def _quantisers(segment: bytes) -> frozenset[int]:
    """Numbers of the quantisers that a segment brings."""
    found, at = set(), 0
    while at < len(segment):
        found.add(segment[at] & 0xF)
        at += 1 + _QUANTISER_BYTES[segment[at] >> 4]
    return frozenset(found)


@lru_cache(maxsize=_KEPT)
def _codes(segment: bytes) -> frozenset[int]:
    """Numbers of Huffman codes, those of coefficients other than the first with 0x10 besides."""
    found, at = set(), 0
    while at < len(segment):
        found.add(segment[at])
        at += 1 + _COUNTS + sum(segment[at + 1 : at + 1 + _COUNTS])
    return frozenset(found)
