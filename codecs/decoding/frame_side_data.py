"""Side data of decoded frames, also of kinds that PyAV does not know, and the display matrix."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from fractions import Fraction
from typing import Any

import av
from av.error import FFmpegError
from av.filter import Graph
from av.sidedata.sidedata import SideData
from av.sidedata.sidedata import Type as SideDataType

from vfsd.codecs.decoding.demuxer import demux_until_error, open_stream
from vfsd.codecs.pyav import decode, frame_side_data
from vfsd.core.model import MediaInfo
from vfsd.disk.checksummed_file import MediaSource

COMPARED_ELSEWHERE = frozenset(
    (
        "DISPLAYMATRIX",  # compared to the bit as the matrix of the file
        "SEI_UNREGISTERED",  # listed in the packets, by the number of each kind
        "GOP_TIMECODE",  # listed in the packets, unless it counts from 0
        "VIDEO_ENC_PARAMS",  # quantizers of the encoding
        "MOTION_VECTORS",  # specific to the encoding
        "REGIONS_OF_INTEREST",  # hints for encoders
        "VIDEO_HINT",
    )
)
"""Kinds that differ between encodings of the same picture, or that are compared elsewhere."""

UNKNOWN = "UNKNOWN"
_NAMES = {
    UNKNOWN: "EXIF, or a newer kind of side data",
    "A53_CC": "closed captions (a53 cc)",
    "DOVI_METADATA": "Dolby Vision metadata",
    "DOVI_RPU_BUFFER": "Dolby Vision RPU",
    "DYNAMIC_HDR_PLUS": "HDR10+ metadata",
    "DYNAMIC_HDR_VIVID": "HDR Vivid metadata",
    "EXIF": "EXIF",  # PyAV 19 and later
    "ICC_PROFILE": "ICC profile",
    "S12M_TIMECODE": "time code (s12m)",
    "MASTERING_DISPLAY_METADATA": "mastering display",
    "SPHERICAL": "spherical projection",
    "STEREO3D": "stereo 3D mode",
}

_PAN_SCAN = struct.Struct("=3i6h")
"""AVPanScan: ID, width and height in 1/16 pixels, and three positions."""

_KINDS = 128
"""Upper bound of FFmpeg's numbers of kinds, which begin at 0."""


def known_side_data(frame: av.VideoFrame) -> list[SideData]:
    """Return the side data of kinds that PyAV knows."""
    found = _all_side_data(frame)
    return (_all_side_data(_known_only(frame)) or []) if found is None else found


def carried_data(frame: av.VideoFrame) -> dict[str, bytes]:
    """Return the side data of a picture by kind, without `COMPARED_ELSEWHERE`.

    Kinds without a name in PyAV are listed as one, `UNKNOWN`, without data.
    """
    found: dict[str, bytes] = {}
    for entry in known_side_data(frame):
        kind = entry.type.name
        if kind == "PANSCAN" and _shows_all(bytes(entry), frame):
            continue  # the MPEG-2 decoder adds it to all pictures
        if kind not in COMPARED_ELSEWHERE:
            found[kind] = found.get(kind, b"") + bytes(entry)
    if has_unknown_side_data(frame):
        found[UNKNOWN] = b""
    return found


def _shows_all(pan_scan: bytes, frame: av.VideoFrame) -> bool:
    """Return whether an AVPanScan is empty, or shows the whole picture."""
    if not any(pan_scan):
        return True
    if len(pan_scan) < _PAN_SCAN.size:
        return False
    _, width, height, *positions = _PAN_SCAN.unpack_from(pan_scan)
    return (width, height) == (16 * frame.width, 16 * frame.height) and not any(positions)


def side_data_title(kind: str) -> str:
    """Return a readable title for a kind of side data."""
    return _NAMES.get(kind, kind.replace("_", " ").lower())


def has_unknown_side_data(frame: av.VideoFrame) -> bool:
    """Return whether the frame has side data of a kind that PyAV does not know."""
    return _all_side_data(frame) is None


def _all_side_data(frame: av.VideoFrame) -> list[SideData] | None:
    """Return all side data; None if PyAV has no name for one of the kinds."""
    try:
        return frame_side_data(frame)
    except ValueError:
        return None


def _known_only(frame: av.VideoFrame) -> av.VideoFrame:
    """Return `frame` without side data of kinds that PyAV does not know."""
    known: set[Any] = {kind.value for kind in SideDataType}
    graph = Graph()
    graph.threads = 1  # the sandbox of an examination forbids threads
    last = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)
    )
    for number in range(_KINDS):
        if number not in known:
            following = graph.add("sidedata", f"mode=delete:type={number}")
            last.link_to(following)
            last = following
    sink = graph.add("buffersink")
    last.link_to(sink)
    graph.configure()
    graph.push(frame)
    pulled = graph.pull()
    assert isinstance(pulled, av.VideoFrame)
    return pulled


DisplayMatrix = tuple[int, int, int, int, int, int, int, int, int]
"""(a, b, u, c, d, v, x, y, w) in fixed point, row by row (ISO/IEC 14496-12, 6.2.2)."""

IDENTITY_MATRIX: DisplayMatrix = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
"""The matrix of pictures that are displayed as they are stored."""

_LAYOUT = struct.Struct("<9i")


def display_matrix(frame: av.VideoFrame) -> DisplayMatrix:
    """Return the display matrix of a decoded picture; `IDENTITY_MATRIX` if it has none."""
    for data in known_side_data(frame):
        if data.type == SideDataType.DISPLAYMATRIX:
            return _LAYOUT.unpack_from(bytes(data))
    return IDENTITY_MATRIX


def file_display_matrix(path: str | os.PathLike[str], media: MediaInfo) -> DisplayMatrix:
    """Return the display matrix of the first decodable picture of a file. Raises `OSError`."""
    first = first_picture(path, media)
    return IDENTITY_MATRIX if first is None else display_matrix(first)


def first_picture(path: str | os.PathLike[str], media: MediaInfo) -> av.VideoFrame | None:
    """Return the first picture from the decoder of the stream, with side data; None if none
    decodes.
    """
    with MediaSource(path) as source:
        opened, stream = open_stream(source, media.container, media.stream_index)
        with opened:
            for packet in demux_until_error(opened, stream):
                with suppress(FFmpegError):
                    for picture in decode(stream.codec_context, packet):
                        return picture
    return None
