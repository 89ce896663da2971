"""Clips whose container crops pictures, made of clips that do not."""

from __future__ import annotations

import struct
from pathlib import Path

import av

_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd")
_ENTRY = 86
"""Bytes of a video sample entry, its head included, ahead of the boxes in it."""


def with_aperture(
    path: Path,
    clip: Path,
    width: tuple[int, int],
    height: tuple[int, int],
    across: tuple[int, int] = (0, 1),
    down: tuple[int, int] = (0, 1),
) -> Path:
    """A copy of `clip`, an MP4 whose index stands behind its packets, with a clap box.

    Sizes and offsets are fractions of pixels.
    """
    told = struct.pack(">II", *width) + struct.pack(">II", *height)
    told += struct.pack(">iI", *across) + struct.pack(">iI", *down)
    box = struct.pack(">I4s", 8 + len(told), b"clap") + told
    data = bytearray(clip.read_bytes())
    at, end, places = 0, len(data), []
    for kind in _PARENTS:
        at = _child(data, at, end, kind)
        places.append(at)
        end = at + int.from_bytes(data[at : at + 4], "big")
        at += 16 if kind == b"stsd" else 8
    places.append(at)
    entry = int.from_bytes(data[at : at + 4], "big")
    data[at + entry : at + entry] = box
    for place in places:
        size = int.from_bytes(data[place : place + 4], "big") + len(box)
        data[place : place + 4] = size.to_bytes(4, "big")
    path.write_bytes(bytes(data))
    return path


def _child(data: bytearray, start: int, end: int, kind: bytes) -> int:
    at = start
    while at < end:
        if data[at + 4 : at + 8] == kind:
            return at
        at += int.from_bytes(data[at : at + 4], "big")
    raise AssertionError(f"there is no {kind!r}")


def in_matroska(path: Path, clip: Path) -> Path:
    """The same packets, cropped by PixelCrop elements as far as FFmpeg writes them."""
    with av.open(str(clip)) as opened, av.open(str(path), "w", format="matroska") as output:
        stream = output.add_stream_from_template(opened.streams.video[0])
        for packet in opened.demux(opened.streams.video[0]):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    return path
