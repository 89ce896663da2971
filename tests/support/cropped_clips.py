"""Clips with cropping in the container, made from clips without cropping."""

from __future__ import annotations

import shutil
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
    """A copy of `clip` with a clap box; `clip` is an MP4 with its index after the packets.

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


def recent_ffmpeg() -> str | None:
    """The path of an FFmpeg that applies cropping of containers, or None."""
    try:
        import imageio_ffmpeg
    except ImportError:
        return None
    command = str(imageio_ffmpeg.get_ffmpeg_exe())
    return command if shutil.which(command) else None


_SEEK_HEAD, _CUES = b"\x11\x4d\x9b\x74", b"\x1c\x53\xbb\x6b"
_VIDEO_PATH = (b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b", b"\xae", b"\xe0")
_DISPLAY = (b"\x54\xb0", b"\x54\xba", b"\x54\xb2")


def with_display(path: Path, clip: Path, fields: dict[int, int]) -> Path:
    """A copy of the Matroska file `clip` with these fields in its Video element, by identifier.

    Its own display size is removed, and so is its index.
    """
    added = b"".join(
        _ebml(identifier.to_bytes(2, "big"), number.to_bytes(4, "big"))
        for identifier, number in fields.items()
    )
    path.write_bytes(_rebuilt(clip.read_bytes(), _VIDEO_PATH, added))
    return path


def _rebuilt(data: bytes, path: tuple[bytes, ...], added: bytes) -> bytes:
    made, at = b"", 0
    while at < len(data):
        identifier = data[at : at + 9 - data[at].bit_length()]
        at += len(identifier)
        length = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + length], "big") & (1 << 7 * length) - 1
        at += length
        content = data[at : at + size]
        at += size
        if identifier in (_SEEK_HEAD, _CUES, *_DISPLAY):
            continue
        if path and identifier == path[0]:
            content = _rebuilt(content, path[1:], added)
        made += _ebml(identifier, content)
    return made if path else made + added


def _ebml(identifier: bytes, content: bytes) -> bytes:
    return identifier + (1 << 56 | len(content)).to_bytes(8, "big") + content
