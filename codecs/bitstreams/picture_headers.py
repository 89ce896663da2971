"""Header fields of a single packet: the size of its picture by codec, and the headers of JPEG.

`PacketTrait` has the bits in which inspectors report.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from vfsd.codecs.bitstreams.nal import BitReader, BitstreamError, av1_sequence_header


class PacketTrait:
    """Bits of an integer. An `IntFlag` would cost more than reading the packet."""

    STARTS = 1  #: decoding may start here; all pictures shown later are exact
    RESETS = 2  #: no following packet is shown before it
    LEADING = 4  #: shown before its key picture, and needs packets before that
    UNREFERENCED = 8  #: no other picture refers to it
    HIDDEN = 16  #: shows no picture
    PARAMETERS = 32  #: holds every kind of parameter set that decoding needs
    FOREIGN = 64  #: holds a parameter set that the codec configuration lacks
    ODD = 128  #: only a decode can judge it
    DAMAGED = 256  #: cannot be parsed
    UNPACKED = 512  #: shows a picture of the previous packet; the decoder needs both
    SUBLAYER = 0x7000  #: HEVC: mask of the number of the temporal sub-layer


PictureSize = tuple[int, ...]
"""Numbers that are equal for pictures of equal size."""

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
    """Return a function that reads the picture size of a packet, or None without a size in it."""
    return _SIZE_READERS.get(codec)


def _vp8_size(packet: bytes) -> PictureSize | None:
    """Return the size of a key picture (RFC 6386, 9.1)."""
    if len(packet) < 10 or packet[0] & 1 or packet[3:6] != _VP8_START:
        return None
    return tuple(int.from_bytes(packet[at : at + 2], "little") & 0x3FFF for at in (6, 8))


def _vp9_size(packet: bytes) -> PictureSize | None:
    """Return the size of a key picture (VP9 bitstream specification, 6.2)."""
    bits = BitReader(packet[:16])
    try:
        bits.bits(2)
        profile = bits.bits(1) | bits.bits(1) << 1
        if profile == 3:
            bits.bits(1)
        if bits.flag() or bits.flag():  # show_existing_frame, or not a key frame
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
    except BitstreamError:
        return None


def _av1_size(packet: bytes) -> PictureSize | None:
    """Return the whole sequence header, since encoders repeat it unchanged."""
    try:
        return tuple(av1_sequence_header(packet))
    except BitstreamError:
        return None


def _png_size(packet: bytes) -> PictureSize | None:
    return tuple(packet[_PNG_SIZE_BYTES]) if packet.startswith(_PNG_SIGNATURE) else None


def _prores_size(packet: bytes) -> PictureSize | None:
    """Return the size (SMPTE RDD 36, 5.1)."""
    return tuple(packet[16:20]) if packet[4:8] == _PRORES_MAGIC and len(packet) >= 20 else None


def _jpeg2000_size(packet: bytes) -> PictureSize | None:
    """Return the size (ISO/IEC 15444-1, A.5.1), with or without the boxes of a file."""
    start = packet.find(_JPEG2000_MAGIC)
    at = start + len(_JPEG2000_MAGIC) + 4  # after Lsiz and Rsiz
    return tuple(packet[at : at + _JPEG2000_SIZE_AT]) if start >= 0 else None


def _magicyuv_size(packet: bytes) -> PictureSize | None:
    return tuple(packet[_MAGICYUV_SIZE_BYTES]) if packet.startswith(_MAGICYUV_MAGIC) else None


def _flv1_size(packet: bytes) -> PictureSize | None:
    """Return the size of Sorenson H.263, after start code, format and time."""
    bits = BitReader(packet[:16])
    try:
        bits.bits(17 + 5 + 8)
        form = bits.bits(3)
        return form, bits.bits(_FLV1_BITS.get(form, 0))
    except BitstreamError:
        return None


# Bits of an explicit size, by the three bits of the format.
_FLV1_BITS = {0: 16, 1: 32}
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
# SOF markers (ISO/IEC 10918-1, table B.1). Others may use other kinds of tables.
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_COMMENT_MARKER = b"\xff\xfe"
# A marker of a segment; other bytes after 0xFF have no segment, or are not markers.
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
_RANGE, _TURNED, _FIELDS, _AVID, _POLARITY = (1 << bit for bit in range(5))
_UPSIDE_DOWN = (b"Intel(R) JPEG Library, version 1", b"Metasoft MJPEG Codec")
_POLARITIES = (b"\x01", b"\x02")
# Most bytes of a comment to search; known settings are shorter.
_SETTINGS_SEARCH_BYTES = 64
# A comment with settings at any offset, even within another comment.
_SETTINGS_COMMENT = re.compile(
    rb"\xff\xfe(?=..(?:AVID|CS=ITU601|MULTISCOPE II|%s))" % b"|".join(map(re.escape, _UPSIDE_DOWN)),
    re.DOTALL,
)
_QUANTISER_BYTES = (64, 128)
_COUNTS = 16
# Cached results of each function; segments are at most 64 KiB long.
_CACHED_SEGMENTS = 32


class JpegHeader(NamedTuple):
    """The header of a JPEG picture."""

    size: bytes  #: height and width
    lacks_quantizers: bool  #: a needed quantization table is missing
    lacks_codes: bool  #: a needed Huffman table is missing
    has_codes: bool  #: it has Huffman tables
    settings: int  #: bits of settings in comments, which decoders also apply to later pictures
    settings_first: bool  #: whether all settings precede the samples


class _RepeatedHeader(NamedTuple):
    """The bytes of a header that the next picture is likely to repeat."""

    before: bytes  #: up to the only segment of Huffman tables, or up to the samples
    codes: (
        frozenset[int] | None
    )  #: numbers of the tables in that segment; None: there is no `after`
    after: bytes  #: from the end of that segment to the samples
    header: JpegHeader


class JpegHeaderParser:
    """Parses the headers of the pictures of one stream."""

    def __init__(self) -> None:
        self._repeated: _RepeatedHeader | None = None

    def parse(self, packet: bytes) -> JpegHeader | None:
        """Parse the segments of a picture; None if that fails."""
        # Pictures of a stream differ in optimal Huffman tables at most, so nearly all are parsed
        # here. That takes a third of the time.
        last = self._repeated
        if last is not None and packet.startswith(last.before):
            end = len(last.before)
            codes = None
            if last.codes is not None:
                length = int.from_bytes(packet[end : end + 2])
                try:
                    codes = _huffman_tables(packet[end + 2 : end + length])
                except IndexError:
                    return None
                end += length
            if (
                codes == last.codes
                and packet.startswith(last.after, end)
                and packet.find(_COMMENT_MARKER, end) < 0
            ):
                return last.header
        return self._parse(packet)

    def _parse(self, packet: bytes) -> JpegHeader | None:
        self._repeated = None
        size, parts = b"", 0
        is_progressive = is_coded = lacks_codes = False
        wanted: frozenset[int] = frozenset()
        quantisers: frozenset[int] = frozenset()
        codes: frozenset[int] = frozenset()
        tables: list[tuple[int, int]] = []  # start and end of each segment of Huffman tables
        settings = 0
        start = packet.find(_SOI)
        if start < 0:
            return None
        settings_first = not _has_settings_between(packet, 0, start)
        at, is_whole = start, False
        try:
            # Decoders skip bytes before a marker.
            while (marker := _MARKER.search(packet, at)) and (kind := marker[1][0]) != _EOI:
                begin = marker.end()
                length = packet[begin] << 8 | packet[begin + 1]
                if length < 2:
                    return None
                at = begin + length
                segment = packet[begin + 2 : at]
                if kind == _DQT:
                    quantisers |= _quantisation_tables(segment)
                elif kind == _DHT:
                    codes |= _huffman_tables(segment)
                    tables.append((begin, at))
                elif kind in _SEQUENTIAL or kind == _PROGRESSIVE:
                    is_progressive = kind == _PROGRESSIVE
                    size = segment[1:5]
                    parts = segment[5]
                    wanted = _component_quantisation_tables(segment)
                elif kind == _SOS:
                    is_coded = True
                    lacks_codes |= not codes >= _scan_huffman_tables(segment, is_progressive)
                    if not is_progressive and segment[0] == parts:
                        is_whole = True
                        break  # no other scan follows
                elif kind == _COM and (more := _decoder_settings(segment)):
                    settings |= more
                    settings_first &= not is_coded
        except IndexError:
            return None
        if is_whole:
            settings_first &= not _has_settings_between(packet, at, len(packet))
        if not (size and is_coded):
            return None
        header = JpegHeader(
            size, not wanted <= quantisers, lacks_codes, bool(codes), settings, settings_first
        )
        if is_whole and settings_first:
            if len(tables) == 1:
                (begin, end), own = tables[0], codes
                self._repeated = _RepeatedHeader(packet[:begin], own, packet[end:at], header)
            else:
                self._repeated = _RepeatedHeader(packet[:at], None, b"", header)
        return header


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _decoder_settings(comment: bytes) -> int:
    """Return the settings that FFmpeg's decoder reads from a comment.

    These are the sample range, vertical flip, the layout of fields, and their order.
    """
    if comment.startswith(b"AVID"):
        return _AVID | (_POLARITY if comment[12:13] in _POLARITIES else 0)
    text = comment.removesuffix(b"\n").partition(b"\0")[0]
    if text.startswith(_UPSIDE_DOWN):
        return _TURNED
    return {b"CS=ITU601": _RANGE, b"MULTISCOPE II": _FIELDS}.get(text, 0)


def _has_settings_between(packet: bytes, start: int, end: int) -> bool:
    """Return whether there are decoder settings where no header is expected."""
    if packet.find(_COMMENT_MARKER, start, end) < 0:
        return False  # samples contain no marker; this search is faster than the expression
    for found in _SETTINGS_COMMENT.finditer(packet, max(start, 0), max(end, 0)):
        at = found.end()
        length = int.from_bytes(packet[at : at + 2])
        if _decoder_settings(packet[at + 2 : at + min(length, _SETTINGS_SEARCH_BYTES)]):
            return True
    return False


# Most pictures of a stream have the same segments.
@lru_cache(maxsize=_CACHED_SEGMENTS)
def _scan_huffman_tables(segment: bytes, is_progressive: bool) -> frozenset[int]:
    """Return the numbers of Huffman tables that a scan uses, as `_huffman_tables` numbers them."""
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
    """Return the numbers of quantization tables that the components of a frame use."""
    return frozenset(segment[at + 2] for at in range(6, 6 + 3 * segment[5], 3))


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _quantisation_tables(segment: bytes) -> frozenset[int]:
    """Return the numbers of quantization tables in a DQT segment."""
    found, at = set(), 0
    while at < len(segment):
        found.add(segment[at] & 0xF)
        at += 1 + _QUANTISER_BYTES[segment[at] >> 4]
    return frozenset(found)


def _huffman_tables(segment: bytes) -> frozenset[int]:
    """Return the numbers of Huffman tables in a DHT segment, plus 0x10 for AC tables."""
    found, at = set(), 0
    while at < len(segment):
        found.add(segment[at])
        at += 1 + _COUNTS + sum(segment[at + 1 : at + 1 + _COUNTS])
    return frozenset(found)
