"""OBUs, the units of AV1 (sections 5.3 and 5.5): those that containers treat in their own way.

MP4 and Matroska want a record (av1C) with the sequence header ahead of all packets, and packets
without temporal delimiters.
"""

from __future__ import annotations

from collections.abc import Iterator

from vfsd.codecs.bitstreams.bit_io import BitReader, DamagedError

_SEQUENCE_HEADER, _TEMPORAL_DELIMITER = 1, 2
_HIGH_TIER_LEVEL = 8
"""Sequence level indices from here on come with a tier."""


def units(packet: bytes) -> Iterator[tuple[int, int, int]]:
    """(type, start, end) of each OBU, its header included.  Raises `DamagedError`."""
    at = 0
    while at < len(packet):
        start, head = at, packet[at]
        at += 1 + (head >> 2 & 1)
        if not head & 2:  # no size: the last one
            yield head >> 3 & 15, start, len(packet)
            return
        size = shift = 0
        while True:
            if at >= len(packet) or shift > 28:
                raise DamagedError("an OBU does not fit")
            byte = packet[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += size
        if at > len(packet):
            raise DamagedError("an OBU does not fit")
        yield head >> 3 & 15, start, at


def without_delimiter(packet: bytes) -> bytes:
    """A temporal unit as containers want it."""
    return b"".join(packet[a:b] for kind, a, b in units(packet) if kind != _TEMPORAL_DELIMITER)


def sequence_header(packet: bytes) -> bytes:
    """The first one in a temporal unit.  Raises `DamagedError` where there is none."""
    for kind, start, end in units(packet):
        if kind == _SEQUENCE_HEADER:
            return packet[start:end]
    raise DamagedError("no sequence header")


def av1c(header: bytes, *, is_deep: bool) -> bytes:
    """The av1C record of a 4:2:0 stream (AV1 in ISOBMFF, 2.3.3) with this sequence header.

    `is_deep`: samples have 10 bits, not 8.  Raises `DamagedError`.
    """
    ((_, _, end),) = units(header)
    reader = BitReader(header[2:end])  # the header of an OBU so small takes two bytes
    profile = reader.bits(3)
    reader.flag()  # still picture
    tier = 0
    if reader.flag():
        level = reader.bits(5)
    else:
        if reader.flag():
            raise DamagedError("timing information is not read")
        reader.flag()  # initial display delays
        reader.bits(5)  # number of operating points
        reader.bits(12)
        level = reader.bits(5)
        tier = reader.bits(1) if level >= _HIGH_TIER_LEVEL else 0
    subsampled = 0b1100
    return bytes((0x81, profile << 5 | level, tier << 7 | is_deep << 6 | subsampled, 0)) + header
