"""Matroska files with laced or compressed audio, written element by element."""

from __future__ import annotations

import itertools
import struct
import zlib
from pathlib import Path
from typing import Any

import av

from vfsd.codecs.pyav import tick_seconds

LACINGS = {"none": 0x00, "xiph": 0x02, "fixed": 0x04, "ebml": 0x06}
"""Bits of the flags of a block."""
COMPRESSIONS = ("none", "stripped", "zlib")
_SEGMENT, _CLUSTER, _TRACKS = "18538067", "1f43b675", "1654ae6b"
_CLUSTER_SECONDS = 1


def make_laced(
    path: Path,
    clip: Path,
    *,
    lacing: str = "xiph",
    packets: int = 8,
    groups: bool = False,
    compression: str = "none",
) -> Path:
    """The streams of `clip`, a Matroska file of H.264 and audio, with that many audio packets per
    block.

    `groups` puts audio blocks into BlockGroups with a duration.
    """
    with av.open(str(clip)) as opened:
        video = opened.streams.video[0]
        shown = [packet for packet in opened.demux(video) if packet.size]
        extradata = video.codec_context.extradata or b""
        size = video.codec_context.width, video.codec_context.height
    with av.open(str(clip)) as opened:
        audio = opened.streams.audio[0]
        heard = [one for one in opened.demux(audio) if one.size and (one.pts or 0) >= 0]
        context = audio.codec_context
        codec, private = _codec(context.codec.canonical_name, context.extradata or b"")
        rate, channels = context.sample_rate, context.channels
    prefix = _shared_prefix([bytes(packet) for packet in heard]) if compression != "none" else b""
    entry = _element("d7", _number(1)) + _element("73c5", _number(1)) + _element("83", _number(1))
    entry += _element("86", b"V_MPEG4/ISO/AVC") + _element("63a2", extradata)
    entry += _element("e0", _element("b0", _number(size[0])) + _element("ba", _number(size[1])))
    tracks = _element("ae", entry)
    entry = _element("d7", _number(2)) + _element("73c5", _number(2)) + _element("83", _number(2))
    entry += _element("9c", _number(1)) + _element("86", codec)
    if private:
        entry += _element("63a2", private)
    sound = _element("b5", struct.pack(">d", rate)) + _element("9f", _number(channels))
    if codec.startswith(b"A_PCM"):
        sound += _element("6264", _number(16))
    entry += _element("e1", sound) + _encodings(compression, prefix)
    tracks += _element("ae", entry)
    info = _element("2ad7b1", _number(1_000_000))
    info += _element("4489", struct.pack(">d", 1000.0 * len(shown) / 25))
    body = _element("1549a966", info + _element("4d80", b"test") + _element("5741", b"test"))
    body += _element(_TRACKS, tracks)
    body += _clusters(shown, heard, lacing, packets, groups, compression, prefix)
    head = _element("4286", _number(1)) + _element("42f7", _number(1))
    head += _element("42f2", _number(4)) + _element("42f3", _number(8))
    head += _element("4282", b"matroska") + _element("4287", _number(4))
    head += _element("4285", _number(2))
    path.write_bytes(_element("1a45dfa3", head) + _element(_SEGMENT, body))
    return path


def _codec(name: str, extradata: bytes) -> tuple[bytes, bytes]:
    return {
        "aac": (b"A_AAC", extradata),
        "ac3": (b"A_AC3", b""),
        "mp3": (b"A_MPEG/L3", b""),
        "pcm_s16le": (b"A_PCM/INT/LIT", b""),
    }[name]


def _encodings(compression: str, prefix: bytes) -> bytes:
    if compression == "none":
        return b""
    settings = _element("4254", _number(3)) + _element("4255", prefix)
    if compression == "zlib":
        settings = _element("4254", _number(0))
    one = _element("5031", _number(0)) + _element("5032", _number(1))
    one += _element("5033", _number(0)) + _element("5034", settings)
    return _element("6d80", _element("6240", one))


def _clusters(
    shown: list[av.Packet[Any]],
    heard: list[av.Packet[Any]],
    lacing: str,
    packets: int,
    groups: bool,
    compression: str,
    prefix: bytes,
) -> bytes:
    blocks: list[tuple[int, bytes]] = []
    for packet in shown:
        flags = 0x80 if packet.is_keyframe else 0
        blocks.append((_ms(packet), _element("a3", _block(1, packet, flags, bytes(packet)))))
    per_block = 1 if lacing == "none" else packets
    step = _ms(heard[1]) - _ms(heard[0])
    for first in range(0, len(heard), per_block):
        some = heard[first : first + per_block]
        payloads = [_stored(bytes(packet), compression, prefix) for packet in some]
        data = _laced(payloads, lacing if len(some) > 1 else "none")
        flags = LACINGS[lacing] if len(some) > 1 else 0
        if groups:
            block = _element("a1", _block(2, some[0], flags, data))
            block += _element("9b", _number(step * len(some)))
            blocks.append((_ms(some[0]), _element("a0", block)))
        else:
            blocks.append((_ms(some[0]), _element("a3", _block(2, some[0], flags | 0x80, data))))
    blocks.sort(key=lambda one: one[0] // (1000 * _CLUSTER_SECONDS))
    found = b""
    for number in sorted({time // (1000 * _CLUSTER_SECONDS) for time, _ in blocks}):
        begin = number * 1000 * _CLUSTER_SECONDS
        inside = b"".join(
            block for time, block in blocks if time // (1000 * _CLUSTER_SECONDS) == number
        )
        found += _element(_CLUSTER, _element("e7", _number(begin)) + inside)
    return found


def _ms(packet: av.Packet[Any]) -> int:
    assert packet.pts is not None
    return round(packet.pts * tick_seconds(packet) * 1000)


def _block(track: int, first: av.Packet[Any], flags: int, data: bytes) -> bytes:
    distance = _ms(first) % (1000 * _CLUSTER_SECONDS)
    return bytes((0x80 | track,)) + struct.pack(">hB", distance, flags) + data


def _stored(payload: bytes, compression: str, prefix: bytes) -> bytes:
    if compression == "stripped":
        return payload[len(prefix) :]
    return zlib.compress(payload) if compression == "zlib" else payload


def _laced(payloads: list[bytes], lacing: str) -> bytes:
    if lacing == "none":
        return payloads[0]
    sizes = [len(payload) for payload in payloads]
    head = bytes((len(payloads) - 1,))
    if lacing == "xiph":
        for size in sizes[:-1]:
            head += b"\xff" * (size // 255) + bytes((size % 255,))
    elif lacing == "ebml":
        head += struct.pack(">H", 0x4000 | sizes[0])
        for before, size in itertools.pairwise(sizes[:-1]):
            head += struct.pack(">H", 0x4000 | size - before + 0x1FFF)
    else:
        assert len(set(sizes)) == 1, "fixed-size lacing takes packets of one size"
    return head + b"".join(payloads)


def _shared_prefix(payloads: list[bytes]) -> bytes:
    length = 0
    while length < min(map(len, payloads)) and len({one[length] for one in payloads}) == 1:
        length += 1
    return payloads[0][: min(length, 4)]


def _element(identifier: str, body: bytes) -> bytes:
    return bytes.fromhex(identifier) + (1 << 56 | len(body)).to_bytes(8, "big") + body


def _number(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
