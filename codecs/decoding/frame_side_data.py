"""Side data of decoded frames, also of kinds that PyAV does not know, and the display matrix that
says how to rotate a frame.
"""

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

from vfsd.codecs.decoding.demuxer import MediaSource, demux_until_error, open_stream
from vfsd.codecs.pyav import decode, frame_side_data
from vfsd.core.model import MediaInfo

COMPARED_ELSEWHERE = frozenset(
    (
        "DISPLAYMATRIX",  # compared to the bit as the matrix of the file
        "SEI_UNREGISTERED",  # listed in the packets, by the number of each kind
        "GOP_TIMECODE",  # listed in the packets, unless it counts from 0
        "VIDEO_ENC_PARAMS",  # quantisers of the encoding
        "MOTION_VECTORS",  # of the encoding
        "REGIONS_OF_INTEREST",  # hints for encoders
        "VIDEO_HINT",
    )
)
"""Kinds that differ between encodings of the same picture, or are compared in other ways."""

UNKNOWN = "UNKNOWN"
_NAMES = {
    UNKNOWN: "EXIF, or something else of a newer kind",
    "A53_CC": "closed captions (a53 cc)",
    "DOVI_METADATA": "Dolby Vision metadata",
    "DOVI_RPU_BUFFER": "Dolby Vision RPU",
    "DYNAMIC_HDR_PLUS": "HDR10+ metadata",
    "DYNAMIC_HDR_VIVID": "HDR Vivid metadata",
    "EXIF": "EXIF",  # known from PyAV 19 on
    "ICC_PROFILE": "ICC profile",
    "S12M_TIMECODE": "time code (s12m)",
    "MASTERING_DISPLAY_METADATA": "mastering display",
    "SPHERICAL": "spherical projection",
    "STEREO3D": "stereo 3D mode",
}

_PAN_SCAN = struct.Struct("=3i6h")
"""Number, width and height in 1/16 pixels, and three positions."""

_KINDS = 128
"""FFmpeg numbers its kinds from 0; it has far fewer."""


def known_side_data(frame: av.VideoFrame) -> list[SideData]:
    """What of it PyAV has a name for."""
    found = _all_side_data(frame)
    return (_all_side_data(_known_only(frame)) or []) if found is None else found


def carried_data(frame: av.VideoFrame) -> dict[str, bytes]:
    """The data of a picture by kind, less `COMPARED_ELSEWHERE`.

    Kinds that PyAV has no name for are listed as one, `UNKNOWN`, without their data.
    """
    found: dict[str, bytes] = {}
    for entry in known_side_data(frame):
        kind = entry.type.name
        if kind == "PANSCAN" and _shows_all(bytes(entry), frame):
            continue  # MPEG-2's decoder adds it to all pictures
        if kind not in COMPARED_ELSEWHERE:
            found[kind] = found.get(kind, b"") + bytes(entry)
    if has_unknown_side_data(frame):
        found[UNKNOWN] = b""
    return found


def _shows_all(pan_scan: bytes, frame: av.VideoFrame) -> bool:
    """Whether an AVPanScan is empty, or shows the whole picture."""
    if not any(pan_scan):
        return True
    if len(pan_scan) < _PAN_SCAN.size:
        return False
    _, width, height, *positions = _PAN_SCAN.unpack_from(pan_scan)
    return (width, height) == (16 * frame.width, 16 * frame.height) and not any(positions)


def side_data_title(kind: str) -> str:
    """A kind of side data for people."""
    return _NAMES.get(kind, kind.replace("_", " ").lower())


def has_unknown_side_data(frame: av.VideoFrame) -> bool:
    """Whether there is something that PyAV has no name for."""
    return _all_side_data(frame) is None


def _all_side_data(frame: av.VideoFrame) -> list[SideData] | None:
    """None: there is something that PyAV has no name for."""
    try:
        return frame_side_data(frame)
    except ValueError:
        return None


def _known_only(frame: av.VideoFrame) -> av.VideoFrame:
    """`frame` with what PyAV has no name for taken off."""
    known: set[Any] = {kind.value for kind in SideDataType}
    graph = Graph()
    graph.threads = 1  # examining may start no thread
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
"""a, b, u, c, d, v, x, y, w: as ISO/IEC 14496-12 has it, row by row, in fixed point."""

IDENTITY_MATRIX: DisplayMatrix = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
"""That of pictures that are shown as they are stored."""

_LAYOUT = struct.Struct("<9i")


def display_matrix(frame: av.VideoFrame) -> DisplayMatrix:
    """What a decoded picture comes with, to the bit; `IDENTITY_MATRIX` where it comes with none."""
    for data in known_side_data(frame):
        if data.type == SideDataType.DISPLAYMATRIX:
            return _LAYOUT.unpack_from(bytes(data))
    return IDENTITY_MATRIX


def file_display_matrix(path: str | os.PathLike[str], media: MediaInfo) -> DisplayMatrix:
    """That of a file: of its first picture that can be decoded.  Raises `OSError`."""
    first = first_picture(path, media)
    return IDENTITY_MATRIX if first is None else display_matrix(first)


def first_picture(path: str | os.PathLike[str], media: MediaInfo) -> av.VideoFrame | None:
    """As the stream's own decoder gives it, with all that it comes with; None: there is none."""
    with MediaSource(path) as source:
        opened, stream = open_stream(source, media.container, media.stream_index)
        with opened:
            for packet in demux_until_error(opened, stream):
                with suppress(FFmpegError):
                    for picture in decode(stream.codec_context, packet):
                        return picture
    return None
