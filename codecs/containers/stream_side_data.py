"""Side data that a container header gives for all pictures of a stream.

Covers HDR metadata, stereo, spherical video, Dolby Vision and field order, and their form in MP4
and Matroska.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from vfsd.codecs.containers.isobmff import make_box, make_full_box

MASTERING_DISPLAY = "mastering display"
"""The content of an mdcv box: 24 bytes in hexadecimal digits.

Chromaticities of green, blue, red and white in 1/50000, then most and least cd/m² in 1/10000.
"""
CONTENT_LIGHT = "content light level"
"""The content of a clli box, MaxCLL and MaxFALL: 4 bytes in hexadecimal digits."""
STEREO = "stereo 3D mode"
"""``mono``, ``side by side`` or ``top and bottom``; also the last two with ``, right eye
first``.
"""
SPHERICAL = "spherical projection"
"""``equirectangular``, then yaw, pitch, roll in 1/65536 degrees, and four bounds (top, bottom,
left, right) in 1/2**32."""
DOVI = "Dolby Vision configuration"
"""The record of 24 bytes in hexadecimal digits."""
FIELD_ORDER = "field order"
"""``top field first`` or ``bottom field first``, for interlaced pictures."""
ALPHA = "alpha channel"
"""An alpha channel in BlockAdditions of Matroska, one for each picture."""
IN_PACKETS = "in packets"
"""Key of a comma-separated list: names of the side data that packets contain."""

OTHER = "-"
"""The value of side data that is present but cannot be written."""

_STEREO_BOX = {"mono": 0, "top and bottom": 1, "side by side": 2}
_STEREO_MODE = {
    "mono": 0,
    "side by side": 1,
    "top and bottom": 3,
    "side by side, right eye first": 11,
    "top and bottom, right eye first": 2,
}
_FIELD_BOX = {"top field first": b"\2\1", "bottom field first": b"\2\6"}
_FIELD_ORDER = {"top field first": 1, "bottom field first": 6}
_INTERLACED = 1
_DOVI_BYTES = 24

StreamSideData = Mapping[str, str]


def side_data_names(marks: StreamSideData | None) -> list[str]:
    """Return the names of all side data, in alphabetical order."""
    return sorted(set(marks or {}) - {IN_PACKETS})


def packet_side_data(marks: StreamSideData | None) -> frozenset[str]:
    """Return the names of side data that packets contain, and so do copies of packets."""
    reported = (marks or {}).get(IN_PACKETS, "")
    return frozenset(name for name in reported.split(",") if name)


def container_side_data(container: str, marks: StreamSideData | None) -> dict[str, str]:
    """Return the side data that a header of `container` (mp4, matroska or another) can hold."""
    if container == "mp4":
        return {name: value for name, value in (marks or {}).items() if _boxes(name, value)}
    if container == "matroska":
        return {name: value for name, value in (marks or {}).items() if _is_element(name, value)}
    return {}


def side_data_boxes(marks: StreamSideData | None) -> bytes:
    """Return the side data boxes of a visual sample entry."""
    return b"".join(_boxes(name, value) for name, value in (marks or {}).items())


def _boxes(name: str, value: str) -> bytes:
    if value == OTHER:
        return b""
    if name == MASTERING_DISPLAY:
        return make_box(b"mdcv", bytes.fromhex(value))
    if name == CONTENT_LIGHT:
        return make_box(b"clli", bytes.fromhex(value))
    if name == STEREO and value in _STEREO_BOX:
        return make_full_box(b"st3d", 0, 0, bytes((_STEREO_BOX[value],)))
    if name == SPHERICAL:
        pose, bounds = _projection(value)
        projection = make_full_box(b"equi", 0, 0, struct.pack(">4I", *bounds))
        header = make_full_box(b"prhd", 0, 0, struct.pack(">3i", *pose))
        maker = make_full_box(b"svhd", 0, 0, b"vfsd\0")
        return make_box(b"sv3d", maker, make_box(b"proj", header, projection))
    if name == DOVI:
        record = bytes.fromhex(value)
        return make_box(_dovi_kind(record), record)
    if name == FIELD_ORDER and value in _FIELD_BOX:
        return make_box(b"fiel", _FIELD_BOX[value])
    return b""


def _projection(value: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    numbers = tuple(map(int, value.split()[1:]))
    return numbers[:3], numbers[3:7]


def _dovi_kind(record: bytes) -> bytes:
    """Return the box kind for a record by its profile (Dolby Vision Streams in ISOBMFF, 3.2).

    Raises `ValueError` for bytes that are not a record.
    """
    if not is_dovi_record(record):
        raise ValueError(f"a Dolby Vision record must have {_DOVI_BYTES} bytes, got {len(record)}")
    profile = record[2] >> 1
    return b"dvcC" if profile <= 7 else b"dvvC" if profile <= 10 else b"dvwC"


def _is_element(name: str, value: str) -> bool:
    if value == OTHER:
        return False
    known = {STEREO: value in _STEREO_MODE, FIELD_ORDER: value in _FIELD_ORDER}
    return known.get(name, name in (MASTERING_DISPLAY, CONTENT_LIGHT, SPHERICAL, DOVI))


def side_data_track_elements(marks: StreamSideData | None) -> list[tuple[str, bytes]]:
    """Return (identifier, content) of elements for a TrackEntry."""
    if DOVI not in (marks or {}):
        return []
    record = bytes.fromhex((marks or {})[DOVI])
    kind, extra = _element("41e7", _dovi_kind(record)), _element("41ed", record)
    return [("41e4", kind + extra)]


def side_data_video_elements(marks: StreamSideData | None) -> list[tuple[str, bytes]]:
    """Return (identifier, content) of elements for the Video element of a track."""
    reported = marks or {}
    found: list[tuple[str, bytes]] = []
    if reported.get(FIELD_ORDER) in _FIELD_ORDER:
        found += [
            ("9a", bytes((_INTERLACED,))),
            ("9d", bytes((_FIELD_ORDER[reported[FIELD_ORDER]],))),
        ]
    if reported.get(STEREO) in _STEREO_MODE:
        found.append(("53b8", bytes((_STEREO_MODE[reported[STEREO]],))))
    if SPHERICAL in reported:
        pose, bounds = _projection(reported[SPHERICAL])
        private = struct.pack(">I4I", 0, *bounds)
        angles = zip(("7673", "7674", "7675"), pose, strict=True)
        parts = [_element(name, struct.pack(">d", angle / 65536)) for name, angle in angles]
        content = _element("7671", b"\1") + _element("7672", private) + b"".join(parts)
        found.append(("7670", content))
    return found


def side_data_colour_elements(marks: StreamSideData | None) -> bytes:
    """Return elements for a Colour element, besides the color codes."""
    reported = marks or {}
    content = b""
    if CONTENT_LIGHT in reported:
        most, average = struct.unpack(">HH", bytes.fromhex(reported[CONTENT_LIGHT]))
        content += _element("55bc", struct.pack(">H", most))
        content += _element("55bd", struct.pack(">H", average))
    if MASTERING_DISPLAY in reported:
        *points, most, least = struct.unpack(">8H2I", bytes.fromhex(reported[MASTERING_DISPLAY]))
        # An mdcv box begins with green; Matroska begins with red.
        order = ("55d3", "55d4", "55d5", "55d6", "55d1", "55d2", "55d7", "55d8")
        parts = [
            _element(name, struct.pack(">d", point / 50_000))
            for name, point in zip(order, points, strict=True)
        ]
        parts.append(_element("55d9", struct.pack(">d", most / 10_000)))
        parts.append(_element("55da", struct.pack(">d", least / 10_000)))
        content += _element("55d0", b"".join(parts))
    return content


def _element(identifier: str, body: bytes) -> bytes:
    return bytes.fromhex(identifier) + (1 << 56 | len(body)).to_bytes(8, "big") + body


def is_dovi_record(record: bytes) -> bool:
    """Return whether bytes have the size of a Dolby Vision configuration record."""
    return len(record) == _DOVI_BYTES
