"""Writes and reads boxes of ISO/IEC 14496-12, and builds the mdia box of a track."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def make_box(kind: bytes, *contents: bytes) -> bytes:
    """Return a box."""
    body = b"".join(contents)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def make_full_box(kind: bytes, version: int, flags: int, body: bytes) -> bytes:
    """Return a FullBox."""
    return make_box(kind, struct.pack(">I", version << 24 | flags), body)


def media_box(
    timescale: int,
    handler: bytes,
    name: bytes,
    header: bytes,
    entry: bytes,
    language: str | None = None,
) -> bytes:
    """Return the mdia box of a track with all samples in fragments.

    `header` is the vmhd or smhd box, `entry` the sample entry for stsd.
    """
    nothing = struct.pack(">I", 0)
    fields = struct.pack(">4IHH", 0, 0, timescale, 0, _language(language), 0)
    return make_box(
        b"mdia",
        make_full_box(b"mdhd", 0, 0, fields),
        make_full_box(b"hdlr", 0, 0, struct.pack(">I4s12x", 0, handler) + name + b"\0"),
        make_box(
            b"minf",
            header,
            make_box(
                b"dinf",
                make_full_box(
                    b"dref", 0, 0, struct.pack(">I", 1) + make_full_box(b"url ", 0, 1, b"")
                ),
            ),
            make_box(
                b"stbl",
                make_full_box(b"stsd", 0, 0, struct.pack(">I", 1) + entry),
                make_full_box(b"stts", 0, 0, nothing),
                make_full_box(b"stsc", 0, 0, nothing),
                make_full_box(b"stsz", 0, 0, nothing + nothing),
                make_full_box(b"stco", 0, 0, nothing),
            ),
        ),
    )


def _language(code: str | None) -> int:
    """Return a packed ISO 639-2 code of three letters; "und" for anything else."""
    known = code if code and len(code) == 3 and code.isascii() and code.islower() else "und"
    first, second, third = (ord(letter) - 0x60 for letter in known)
    return first << 10 | second << 5 | third


def parse_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, body) of each box.

    A box that is cut off has all remaining bytes. Ends at bytes that are not a box.
    """
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1 and at + 16 <= len(data):
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = len(data) - at
        if size < head:
            return
        yield kind, data[at + head : at + size]
        at += size


def find_box(data: bytes, *path: bytes) -> bytes | None:
    """Return the body of the first box at a path of kinds; None if there is none."""
    for kind in path:
        found = next((body for name, body in parse_boxes(data) if name == kind), None)
        if found is None:
            return None
        data = found
    return data
