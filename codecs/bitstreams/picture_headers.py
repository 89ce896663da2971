"""What the bytes of one packet say about its picture: its size for each codec, the headers of JPEG
pictures, and the bits of `PacketTrait` in which inspectors report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from vfsd.codecs.bitstreams.bit_io import BitReader, DamagedError
from vfsd.codecs.bitstreams.codec_config import av1_sequence_header


class PacketTrait:
    """Bits of a whole number; not an `IntFlag`, which costs more than reading the packet."""

    STARTS = 1  #: decoding that starts here is exact, for all that is shown after it
    RESETS = 2  #: and nothing that follows is shown before it
    LEADING = 4  #: shown before the key picture it follows, and needs what lies before that
    UNREFERENCED = 8  #: no other picture needs it
    HIDDEN = 16  #: shows no picture
    PARAMETERS = 32  #: holds every kind of parameter set that decoding needs
    FOREIGN = 64  #: holds a parameter set that the codec configuration does not
    ODD = 128  #: something that only a decode can judge
    DAMAGED = 256  #: does not parse
    UNPACKED = 512  #: shows a picture that the packet before holds; the decoder needs both
    SUBLAYER = 0x7000  #: HEVC: a number, that of the temporal sub-layer


PictureSize = tuple[int, ...]
"""Numbers that are the same for pictures of the same size."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE_BYTES = slice(16, 24)
_VP8_START = b"\x9d\x01\x2a"
_VP9_SYNC = 0x498342
_VP9_RGB = 7
_PRORES_MAGIC = b"icpf"
_JPEG2000_MAGIC = b"\xff\x4f\xff\x51"
_JPEG2000_SIZE_AT = 16
_MAGICYUV_MAGIC = b"MAGY"
_MAGICYUV_SIZE_BYTES = slice(16, 24)


def picture_size_reader(codec: str) -> Callable[[bytes], PictureSize | None] | None:
    """What tells the size of pictures of that codec; it gives None where a packet does not tell."""
    return _SIZE_READERS.get(codec)


def _vp8_size(packet: bytes) -> PictureSize | None:
    """Of a key picture (RFC 6386, 9.1)."""
    if len(packet) < 10 or packet[0] & 1 or packet[3:6] != _VP8_START:
        return None
    return tuple(int.from_bytes(packet[at : at + 2], "little") & 0x3FFF for at in (6, 8))


def _vp9_size(packet: bytes) -> PictureSize | None:
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


def _av1_size(packet: bytes) -> PictureSize | None:
    """All that is told of a sequence of pictures: encoders tell the same of each."""
    try:
        return tuple(av1_sequence_header(packet))
    except DamagedError:
        return None


def _png_size(packet: bytes) -> PictureSize | None:
    return tuple(packet[_PNG_SIZE_BYTES]) if packet.startswith(_PNG_SIGNATURE) else None


def _prores_size(packet: bytes) -> PictureSize | None:
    """(SMPTE RDD 36, 5.1)"""
    return tuple(packet[16:20]) if packet[4:8] == _PRORES_MAGIC and len(packet) >= 20 else None


def _jpeg2000_size(packet: bytes) -> PictureSize | None:
    """(ISO/IEC 15444-1, A.5.1), whether or not it has a file's boxes around it."""
    start = packet.find(_JPEG2000_MAGIC)
    at = start + len(_JPEG2000_MAGIC) + 4  # the length of the segment, what the decoder has to know
    return tuple(packet[at : at + _JPEG2000_SIZE_AT]) if start >= 0 else None


def _magicyuv_size(packet: bytes) -> PictureSize | None:
    return tuple(packet[_MAGICYUV_SIZE_BYTES]) if packet.startswith(_MAGICYUV_MAGIC) else None


def _flv1_size(packet: bytes) -> PictureSize | None:
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
_SIZE_READERS = {
    "flv1": _flv1_size,
    "vp8": _vp8_size,
    "vp9": _vp9_size,
    "av1": _av1_size,
    "png": _png_size,
    "prores": _prores_size,
    "jpeg2000": _jpeg2000_size,
    "magicyuv": _magicyuv_size,
}


_SOI = b"\xff\xd8"
_EOI, _SOS, _DQT, _DHT, _COM = 0xD9, 0xDA, 0xDB, 0xC4, 0xFE
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
"""Of others there may be tables of other kinds."""
_COMMENT_MARKER = b"\xff\xfe"
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
"""Of a segment; other bytes behind 0xFF have none, or are no marker."""
_RANGE, _TURNED, _FIELDS, _AVID, _POLARITY = (1 << bit for bit in range(5))
_UPSIDE_DOWN = (b"Intel(R) JPEG Library, version 1", b"Metasoft MJPEG Codec")
_POLARITIES = (b"\x01", b"\x02")
_SETTINGS_SEARCH_BYTES = 64
"""Bytes of a comment of which more are nothing that is known."""
_SETTINGS_COMMENT = re.compile(
    rb"\xff\xfe(?=..(?:AVID|CS=ITU601|MULTISCOPE II|%s))" % b"|".join(map(re.escape, _UPSIDE_DOWN)),
    re.DOTALL,
)
"""Of what `_said` may know, wherever it begins: within another comment, too."""
_QUANTISER_BYTES = (64, 128)
_COUNTS = 16
_CACHED_SEGMENTS = 32
"""Results that are kept of each function; a segment is at most 64 KiB long."""


class JpegHeader(NamedTuple):
    """What comes beside the samples."""

    size: bytes  #: height and width
    lacks_quantisers: bool
    lacks_codes: bool
    brings_codes: bool
    said: int  #: a bit for each matter of which decoders go by a comment in later pictures, too
    is_told: bool  #: whether all that is said so stands before the samples


def parse_jpeg_header(packet: bytes) -> JpegHeader | None:
    """None of what is no such picture, as far as can be told here."""
    size, parts = b"", 0
    is_progressive = is_coded = lacks_codes = False
    wanted: frozenset[int] = frozenset()
    quantisers: set[int] = set()
    codes: set[int] = set()
    said = 0
    start = packet.find(_SOI)
    is_told = start <= 0 or not _has_settings_between(packet, 0, start)
    try:
        for kind, segment, end in _segments(packet, start):
            if kind == _DQT:
                quantisers.update(_quantisation_tables(segment))
            elif kind == _DHT:
                codes.update(_huffman_tables(segment))
            elif kind in _SEQUENTIAL or kind == _PROGRESSIVE:
                is_progressive = kind == _PROGRESSIVE
                size = segment[1:5]
                parts = segment[5]
                wanted = _component_quantisation_tables(segment)
            elif kind == _SOS:
                is_coded = True
                lacks_codes |= not codes.issuperset(_scan_huffman_tables(segment, is_progressive))
                if not is_progressive and segment[0] == parts:
                    is_told &= not _has_settings_between(packet, end, len(packet))
                    break  # no other scan follows
            elif kind == _COM and (more := _decoder_settings(segment)):
                said |= more
                is_told &= not is_coded
    except IndexError:
        return None
    if not (size and is_coded):
        return None
    return JpegHeader(size, not wanted <= quantisers, lacks_codes, bool(codes), said, is_told)


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _decoder_settings(comment: bytes) -> int:
    """As FFmpeg's decoder reads comments: which range samples have, which row is the first one,
    how fields lie, and which is the first."""
    if comment.startswith(b"AVID"):
        return _AVID | (_POLARITY if comment[12:13] in _POLARITIES else 0)
    text = comment.removesuffix(b"\n").partition(b"\0")[0]
    if text.startswith(_UPSIDE_DOWN):
        return _TURNED
    return {b"CS=ITU601": _RANGE, b"MULTISCOPE II": _FIELDS}.get(text, 0)


def _has_settings_between(packet: bytes, start: int, end: int) -> bool:
    """Whether anything is said where no header is looked for."""
    if packet.find(_COMMENT_MARKER, start, end) < 0:
        return False  # samples hold none; the search for that is faster than by the expression
    for found in _SETTINGS_COMMENT.finditer(packet, max(start, 0), max(end, 0)):
        at = found.end()
        length = int.from_bytes(packet[at : at + 2])
        if _decoder_settings(packet[at + 2 : at + min(length, _SETTINGS_SEARCH_BYTES)]):
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
    while (marker := _MARKER.search(packet, at)) and (kind := marker[1][0]) != _EOI:
        at = marker.end()
        size = packet[at] << 8 | packet[at + 1]
        if size < 2:
            raise IndexError
        yield kind, packet[at + 2 : at + size], at + size
        at += size


# Most pictures of a stream have the same segments.
@lru_cache(maxsize=_CACHED_SEGMENTS)
def _scan_huffman_tables(segment: bytes, is_progressive: bool) -> frozenset[int]:
    """Numbers of Huffman codes that it is decoded with, as `_codes` gives them."""
    parts = segment[0]
    tables = segment[2 : 2 * parts + 1 : 2]
    if is_progressive:
        first, bits = segment[2 * parts + 1], segment[2 * parts + 3]
        if first:
            return frozenset(0x10 | table & 0xF for table in tables)
        return frozenset() if bits >> 4 else frozenset(table >> 4 for table in tables)
    return frozenset(code for table in tables for code in (table >> 4, 0x10 | table & 0xF))


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _component_quantisation_tables(segment: bytes) -> frozenset[int]:
    """Numbers of the quantisers that the components of a frame are decoded with."""
    return frozenset(segment[at + 2] for at in range(6, 6 + 3 * segment[5], 3))


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _quantisation_tables(segment: bytes) -> frozenset[int]:
    """Numbers of the quantisers that a segment brings."""
    found, at = set(), 0
    while at < len(segment):
        found.add(segment[at] & 0xF)
        at += 1 + _QUANTISER_BYTES[segment[at] >> 4]
    return frozenset(found)


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _huffman_tables(segment: bytes) -> frozenset[int]:
    """Numbers of Huffman codes, those of coefficients other than the first with 0x10 besides."""
    found, at = set(), 0
    while at < len(segment):
        found.add(segment[at])
        at += 1 + _COUNTS + sum(segment[at + 1 : at + 1 + _COUNTS])
    return frozenset(found)
