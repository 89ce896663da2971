"""Clips with side data: boxes, elements and messages that are inserted here."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer

from vfsd.codecs.containers.tracks import make_box, make_full_box

ENTRY_FIELDS = 78
"""Bytes of a video sample description before the boxes in it."""


def noisy_clip(path: Path, message: bytes = b"", *, sound: bool = True, rate: int = 25) -> Path:
    """Ten noise frames; each video packet starts with `message`, a NAL unit."""
    rng = np.random.default_rng(7)
    with av.open(str(path), "w") as out:
        options = {"crf": "2", "preset": "ultrafast", "tune": "zerolatency"}
        pictures = out.add_stream("libx264", rate=rate, options=options)
        pictures.width, pictures.height, pictures.pix_fmt = 96, 80, "yuv420p"
        heard = out.add_stream("aac", rate=48000) if sound else None
        for number in range(10):
            picture = rng.integers(60, 120, (120, 96), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            _mux(out, pictures.encode(frame), message)
            if heard is not None:
                wave = np.sin(np.arange(1920) * 0.05 + number * 96)[None].astype(np.float32)
                tone = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
                tone.sample_rate, tone.pts = 48000, number * 1920
                out.mux(heard.encode(tone))
        _mux(out, pictures.encode(None), message)
        if heard is not None:
            out.mux(heard.encode(None))
    return path


def _mux(
    out: OutputContainer, packets: Sequence[av.Packet[av.VideoStream]], message: bytes
) -> None:
    for packet in packets:
        told = av.Packet(b"\0\0\0\1" + message + bytes(packet)) if message else packet
        told.stream, told.time_base = packet.stream, packet.time_base
        told.pts, told.dts, told.duration = packet.pts, packet.dts, packet.duration
        told.is_keyframe = packet.is_keyframe
        out.mux(told)


def sei(kind: int, payload: bytes) -> bytes:
    """A unit of H.264 with one supplemental message; `payload` needs no emulation prevention."""
    return b"\x06" + bytes((kind, len(payload))) + payload + b"\x80"


def with_box(path: Path, place: str, added: bytes) -> Path:
    """Append a box to the box at `place` of a file with its moov box at the end.

    `place` is like ``moov/trak 1/udta``; empty for the file itself.
    """
    data = path.read_bytes()
    path.write_bytes(_added(data, [part for part in place.split("/") if part], added, 0))
    return path


def fast_start(path: Path) -> Path:
    """The same file with the moov box before the samples."""
    found = list(_boxes(path.read_bytes()))
    moov = next(body for name, body in found if name == b"moov")
    growth = 8 + len(moov)
    parts = [make_box(*one) for one in found if one[0] not in (b"moov", b"mdat")]
    last = [make_box(*one) for one in found if one[0] == b"mdat"]
    growth += sum(len(make_box(*one)) for one in _behind_samples(found))
    path.write_bytes(
        b"".join((parts[0], make_box(b"moov", _moved(moov, growth)), *parts[1:], *last))
    )
    return path


def _behind_samples(found: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Boxes other than moov that followed the samples, and now precede them."""
    names = [name for name, _ in found]
    return [one for one in found[names.index(b"mdat") + 1 :] if one[0] != b"moov"]


def _moved(data: bytes, growth: int) -> bytes:
    parts = []
    for name, body in _boxes(data):
        if name in (b"trak", b"mdia", b"minf", b"stbl"):
            body = _moved(body, growth)
        elif name == b"stco":
            offsets = struct.unpack(f">{(len(body) - 8) // 4}I", body[8:])
            body = body[:8] + struct.pack(f">{len(offsets)}I", *(one + growth for one in offsets))
        parts.append(make_box(name, body))
    return b"".join(parts)


def _added(data: bytes, place: list[str], added: bytes, skip: int) -> bytes:
    """`data` are boxes after `skip` bytes of other data."""
    if not place:
        return data + added
    kind, _, number = place[0].partition(" ")
    wanted = int(number or 0)
    parts, found = [data[:skip]], False
    for name, body in _boxes(data[skip:]):
        if name == kind.encode("latin-1"):
            if wanted == 0:
                body, found = _added(body, place[1:], added, _skip(name, body)), True
            wanted -= 1
        parts.append(make_box(name, body))
    if not found:
        parts.append(make_box(kind.encode("latin-1"), _added(b"", place[1:], added, 0)))
    return b"".join(parts)


def _skip(name: bytes, body: bytes) -> int:
    if name == b"stsd":
        return 8
    if name in (b"avc1", b"hvc1", b"hev1", b"mp4v", b"vp09", b"av01"):
        return ENTRY_FIELDS
    return 4 if name == b"meta" and body[4:8] != b"hdlr" else 0


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + size]
        at += size


def value_at(path: Path, place: str) -> bytes | None:
    """The content of the box at `place`; None if it does not exist."""
    data = path.read_bytes()
    skip = 0
    for part in place.split("/"):
        kind, _, number = part.partition(" ")
        found = [body for name, body in _boxes(data[skip:]) if name == kind.encode("latin-1")]
        if len(found) <= int(number or 0):
            return None
        data = found[int(number or 0)]
        skip = _skip(kind.encode("latin-1"), data)
    return data


def spherical() -> bytes:
    """An sv3d box: equirectangular, looking straight ahead."""
    return make_box(
        b"sv3d",
        make_full_box(b"svhd", 0, 0, b"vfsd\0"),
        make_box(
            b"proj",
            make_full_box(b"prhd", 0, 0, bytes(12)),
            make_full_box(b"equi", 0, 0, bytes(16)),
        ),
    )


def element(identifier: str, body: bytes) -> bytes:
    """A Matroska element."""
    return bytes.fromhex(identifier) + (1 << 56 | len(body)).to_bytes(8, "big") + body


def with_element(path: Path, added: bytes) -> Path:
    """Append an element to the segment of a Matroska file."""
    data = bytearray(path.read_bytes())
    at = data.index(bytes.fromhex("18538067")) + 4
    size = int.from_bytes(data[at : at + 8], "big") & (1 << 56) - 1
    assert data[at] == 1
    assert at + 8 + size == len(data)
    data[at : at + 8] = (1 << 56 | size + len(added)).to_bytes(8, "big")
    path.write_bytes(data + added)
    return path
