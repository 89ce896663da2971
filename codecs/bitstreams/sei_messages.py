"""SEI messages of H.264 and HEVC (annex D of both) that a re-encoding can carry unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitstreamError, escaped, unescaped

SEI_CODECS = ("h264", "hevc")
USER_DATA_UNREGISTERED, USER_DATA_REGISTERED = 5, 4
UUID_BYTES = 16
_PREFIX, _SUFFIX = 39, 40
_H264_SEI = nal.H264_SEI

_SHARED_TYPES = frozenset((USER_DATA_REGISTERED, USER_DATA_UNREGISTERED))
"""Types that both codecs share: ITU-T T.35 and user data."""
PERSISTENT_TYPES = frozenset((137, 144, 147, 148, 149))
"""Types that persist until the next key picture, which repeats them.

Mastering display, content light level, transfer, ambient light, content color volume. Decoders of
the two codecs keep them for different times.
"""
_CODEC_TYPES = {
    "h264": frozenset((2, *PERSISTENT_TYPES)),
    "hevc": frozenset((2, 136, *PERSISTENT_TYPES)),
}
"""More types that can be carried within a codec, including pan-scan and time code."""
_ENCODER_UUIDS = (
    bytes.fromhex("dc45e9bde6d948b7962cd820d923eeef"),  # x264
    bytes.fromhex("2ca2de09b51747dbbb55a4fe7fc2fc4e"),  # x265
)
_DOLBY_VISION = bytes.fromhex("b5003b")

SeiMessage = tuple[int, bytes]
"""(payloadType, payload)"""


def parse_sei(payload: bytes) -> Iterator[SeiMessage]:
    """Yield the messages of an unescaped SEI unit without its NAL header."""
    payload = payload.rstrip(b"\0").removesuffix(b"\x80")
    at, end = 0, len(payload)
    while at + 2 <= end:
        numbers = []
        for _ in range(2):
            number = 0
            while at < end and payload[at] == 0xFF:
                number, at = number + 255, at + 1
            if at >= end:
                return
            numbers.append(number + payload[at])
            at += 1
        kind, size = numbers
        yield kind, payload[at : at + size]
        at += size


def carried_types(before: str, after: str) -> frozenset[int]:
    """Return the payload types that can be carried from one codec to another."""
    if before not in SEI_CODECS or after not in SEI_CODECS:
        return frozenset()
    return _SHARED_TYPES | (_CODEC_TYPES[before] if before == after else frozenset())


def carried_messages(
    before: str, after: str, packet: bytes, prefix: int
) -> tuple[tuple[SeiMessage, ...], ...]:
    """Return the messages of a packet of codec `before` that `after` can carry, by unit.

    `prefix` is the size of length prefixes; see `nal.prefix_size`.
    """
    kinds = carried_types(before, after)
    try:
        units = [packet[a:b] for a, b in nal.nal_units(packet, prefix)] if kinds else []
    except BitstreamError:
        return ()
    found = (carried_unit_messages(before, kinds, unit) for unit in units)
    return tuple(one for one in found if one)


def carried_unit_messages(codec: str, kinds: frozenset[int], unit: bytes) -> tuple[SeiMessage, ...]:
    """Return the messages of `kinds` in a NAL unit; empty for other units and layers."""
    head = 2 if codec == "hevc" else 1
    kind = nal.unit_type(codec, unit)
    is_message = kind in (_PREFIX, _SUFFIX) if codec == "hevc" else kind == _H264_SEI
    if not is_message or (codec == "hevc" and (unit[0] & 1 or unit[1] >> 3)):
        return ()
    found = parse_sei(unescaped(unit)[head:])
    return tuple(one for one in found if one[0] in kinds and _describes_pictures(*one))


def _describes_pictures(kind: int, payload: bytes) -> bool:
    """Return whether a message describes the pictures rather than their encoding."""
    if kind == USER_DATA_UNREGISTERED:
        return not payload.startswith(_ENCODER_UUIDS)
    return kind != USER_DATA_REGISTERED or not payload.startswith(_DOLBY_VISION)


def sei_unit(codec: str, reported: tuple[SeiMessage, ...]) -> bytes:
    """Return a NAL unit with messages, without a start code."""
    body = b"".join(
        _sei_number(kind) + _sei_number(len(payload)) + payload for kind, payload in reported
    )
    head = bytes((_PREFIX << 1, 1)) if codec == "hevc" else bytes((_H264_SEI,))
    return head + escaped(body + b"\x80")


def _sei_number(value: int) -> bytes:
    return b"\xff" * (value // 255) + bytes((value % 255,))


def with_sei_messages(
    codec: str, packet: bytes, reported: tuple[tuple[SeiMessage, ...], ...]
) -> bytes:
    """Insert units of messages before the first slice of an Annex B packet."""
    if not reported:
        return packet
    added = b"".join(nal.START_CODE + sei_unit(codec, one) for one in reported)
    for start, end in nal.nal_units(packet, 0):
        if nal.holds_slice(codec, nal.unit_type(codec, packet[start:end])):
            at = start - 3
            at -= at > 0 and packet[at - 1] == 0
            return packet[:at] + added + packet[at:]
    raise BitstreamError("the packet has no slice")
