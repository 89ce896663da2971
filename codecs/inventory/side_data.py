"""Side data of a stream, in its header, first packet and first picture.

It covers kinds that PyAV does not know, and the display matrix.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import islice
from typing import Any

import av
from av.error import FFmpegError
from av.filter import Graph
from av.sidedata.sidedata import SideData
from av.sidedata.sidedata import Type as SideDataType
from av.video.codeccontext import VideoCodecContext

from vfsd.codecs.containers import tracks as known
from vfsd.codecs.decoding.demuxer import demux_until_error, open_stream
from vfsd.codecs.frames.planes import ALPHA, plane_bytes
from vfsd.codecs.inventory.file_inventory import packet_lister
from vfsd.codecs.inventory.inventory import ItemCollector
from vfsd.codecs.inventory.matroska_elements import MatroskaElement, iter_elements
from vfsd.codecs.inventory.mp4_boxes import (
    FileWindow,
    Mp4Box,
    child_boxes,
    first_mp4_box,
    iter_boxes,
)
from vfsd.codecs.pyav import configure_decoder, decode, frame_side_data
from vfsd.core.model import MediaInfo
from vfsd.disk.checksums import MediaFile, MediaSource

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
LCEVC = "LCEVC"
"""Data that turns the decoded base layer into a picture of another size or finer detail."""

_NAMES = {
    UNKNOWN: "EXIF, or a newer kind of side data",
    "A53_CC": "closed captions (a53 cc)",
    "DOVI_METADATA": "Dolby Vision metadata",
    "DOVI_RPU_BUFFER": "Dolby Vision RPU",
    "DYNAMIC_HDR_PLUS": "HDR10+ metadata",
    "DYNAMIC_HDR_VIVID": "HDR Vivid metadata",
    "EXIF": "EXIF",  # PyAV 19 and later
    "ICC_PROFILE": "ICC profile",
    LCEVC: "LCEVC enhancement layer",
    "S12M_TIMECODE": "time code (s12m)",
    "MASTERING_DISPLAY_METADATA": "mastering display",
    "SPHERICAL": "spherical projection",
    "STEREO3D": "stereo 3D mode",
}

# AVPanScan: ID, width and height in 1/16 pixels, and three positions.
_PAN_SCAN = struct.Struct("=3i6h")

# Upper bound of FFmpeg's numbers of kinds, which begin at 0.
_KINDS = 128
# Numbers of kinds that only later versions of PyAV name.
_LATER_KINDS = {28: LCEVC}


def known_side_data(frame: av.VideoFrame) -> list[SideData]:
    """Return the side data of kinds that PyAV knows."""
    found = _all_side_data(frame)
    return (_all_side_data(_known_only(frame)) or []) if found is None else found


def carried_data(frame: av.VideoFrame) -> dict[str, bytes]:
    """Return the side data of a picture by kind, without `COMPARED_ELSEWHERE`.

    Kinds without a name in PyAV have no data. Those in `_LATER_KINDS` have a name, the others are
    listed as one, `UNKNOWN`.
    """
    found: dict[str, bytes] = {}
    for entry in known_side_data(frame):
        kind = entry.type.name
        if kind == "PANSCAN" and _shows_all(bytes(entry), frame):
            continue  # the MPEG-2 decoder adds it to all pictures
        if kind not in COMPARED_ELSEWHERE:
            found[kind] = found.get(kind, b"") + bytes(entry)
    if _all_side_data(frame) is None:
        later = {name for number, name in _LATER_KINDS.items() if _has_kind(frame, number)}
        others = _all_side_data(_without_kinds(frame, _LATER_KINDS)) is None
        found |= dict.fromkeys(sorted(later) + [UNKNOWN] * others, b"")
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


def has_lcevc(frame: av.VideoFrame) -> bool:
    """Return whether `frame` is the base layer of an LCEVC picture."""
    return LCEVC in carried_data(frame)


def _all_side_data(frame: av.VideoFrame) -> list[SideData] | None:
    """Return all side data; None if PyAV has no name for one of the kinds."""
    try:
        return frame_side_data(frame)
    except ValueError:
        return None


def _known_only(frame: av.VideoFrame) -> av.VideoFrame:
    """Return `frame` without side data of kinds that PyAV does not know."""
    known: set[Any] = {kind.value for kind in SideDataType}
    return _without_kinds(frame, (number for number in range(_KINDS) if number not in known))


def _without_kinds(frame: av.VideoFrame, numbers: Iterable[int]) -> av.VideoFrame:
    found = _filtered(frame, (f"mode=delete:type={number}" for number in numbers))
    assert found is not None
    return found


def _has_kind(frame: av.VideoFrame, number: int) -> bool:
    return _filtered(frame, (f"mode=select:type={number}",)) is not None


def _filtered(frame: av.VideoFrame, arguments: Iterable[str]) -> av.VideoFrame | None:
    """Return `frame` from a chain of FFmpeg's filters ``sidedata``; None if one drops it."""
    graph = Graph()
    graph.threads = 1  # the sandbox of an examination forbids threads
    last = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)
    )
    for each in arguments:
        following = graph.add("sidedata", each)
        last.link_to(following)
        last = following
    sink = graph.add("buffersink")
    last.link_to(sink)
    graph.configure()
    graph.push(frame)
    try:
        pulled = graph.pull()
    except BlockingIOError:
        return None
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


def file_display_matrix(path: MediaFile, media: MediaInfo) -> DisplayMatrix:
    """Return the display matrix of the first decodable picture of a file. Raises `OSError`."""
    first = first_picture(path, media)
    return IDENTITY_MATRIX if first is None else display_matrix(first)


def first_picture(path: MediaFile, media: MediaInfo) -> av.VideoFrame | None:
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


_MASTERING = struct.Struct("=20i2i")
_LIGHT = struct.Struct("=2I")
_STEREO = struct.Struct("=2i")
_SPHERICAL = struct.Struct("=4i4I")
_STEREO_NAMES = {0: "mono", 1: "side by side", 2: "top and bottom"}
_EQUIRECTANGULAR = (0, 3)  # AVSphericalProjection: full, and with bounds
_INVERTED = 1
_FIELD_ORDERS = {2: "top field first", 4: "top field first", 3: "bottom field first"}
_FIELD_ORDERS |= {5: "bottom field first"}

_IN_PACKETS = {
    "SEI 137 (mastering display)": known.MASTERING_DISPLAY,
    "SEI 144 (content light level)": known.CONTENT_LIGHT,
    "metadata OBU 2 (mastering display)": known.MASTERING_DISPLAY,
    "metadata OBU 1 (content light level)": known.CONTENT_LIGHT,
    "SEI 45 (frame packing)": known.STEREO,
}
# FFmpeg's palettes have native 32-bit words with alpha in the highest byte.
_PALETTE_ALPHA = 3 if sys.byteorder == "little" else 0
_OPAQUE = 255
_DOVI_KINDS = (b"dvcC", b"dvvC", b"dvwC")
_ENTRY_BYTES = 78
# Most bytes to read of a value; relevant values are shorter.
_MAX_VALUE = 64
_MAX_PACKET = 1 << 22
# Most packets to read until the first picture.
_MAX_PACKETS = 64


def find_side_data(source: MediaSource, media: MediaInfo) -> dict[str, str]:
    """Return the side data of a file's pictures; empty if no picture decodes.

    Raises `OSError`, `IntegrityError`.
    """
    opened, stream = open_stream(source, media.container, media.stream_index)
    with opened:
        context = stream.codec_context
        configure_decoder(context)
        packets = list(islice(demux_until_error(opened, stream), _MAX_PACKETS))
        for packet in (*packets, None):
            with suppress(FFmpegError):
                for frame in decode(context, packet):
                    first = bytes(packets[0])[:_MAX_PACKET]
                    return _stream_side_data(source, media, context, frame, first)
    return {}


def _stream_side_data(
    source: MediaSource,
    media: MediaInfo,
    context: VideoCodecContext,
    frame: av.VideoFrame,
    packet: bytes,
) -> dict[str, str]:
    found = dict(_frame_side_data(frame))
    window = FileWindow(source)
    if media.container in ("mp4", "mov"):
        found |= _box_side_data(window, media.stream_index)
    elif media.container in ("matroska", "webm"):
        found |= _element_side_data(window, media.stream_index)
    in_packet = _packet_side_data(context, packet)
    in_packet |= {name for name in found if name not in _WRITTEN_NAMES}
    if frame.format.name == "pal8" and _has_transparent_color(frame):
        found[ALPHA] = known.OTHER
        in_packet.add(ALPHA)
    if media.interlaced:
        # Packets of interlaced codecs also signal the field order; other codecs need the header.
        found[known.FIELD_ORDER] = _FIELD_ORDERS.get(int(context.field_order), known.OTHER)
        in_packet.add(known.FIELD_ORDER)
    if in_packet & found.keys():
        found[known.IN_PACKETS] = ",".join(sorted(in_packet & found.keys()))
    return found


# Side data of containers, which packets may repeat; all other side data is in packets.
_WRITTEN_NAMES = frozenset(
    (
        *(
            known.MASTERING_DISPLAY,
            known.CONTENT_LIGHT,
            known.STEREO,
            known.SPHERICAL,
            known.DOVI,
            ALPHA,
        ),
        *map(side_data_title, ("ICC_PROFILE", "AMBIENT_VIEWING_ENVIRONMENT")),
    )
)


def _written_name(kind: str) -> str:
    return {
        "MASTERING_DISPLAY_METADATA": known.MASTERING_DISPLAY,
        "CONTENT_LIGHT_LEVEL": known.CONTENT_LIGHT,
        "STEREO3D": known.STEREO,
        "SPHERICAL": known.SPHERICAL,
    }.get(kind, side_data_title(kind))


def _frame_side_data(frame: av.VideoFrame) -> Iterator[tuple[str, str]]:
    for kind, data in carried_data(frame).items():
        name = _written_name(kind)
        value = known.OTHER
        if kind == "MASTERING_DISPLAY_METADATA":
            value = _mastering(data)
        elif kind == "CONTENT_LIGHT_LEVEL" and len(data) >= _LIGHT.size:
            highest, average = _LIGHT.unpack_from(data)
            if max(highest, average) < 1 << 16:
                value = struct.pack(">HH", highest, average).hex()
        elif kind == "STEREO3D" and len(data) >= _STEREO.size:
            way, flags = _STEREO.unpack_from(data)
            name_of_way = _STEREO_NAMES.get(way, known.OTHER)
            value = f"{name_of_way}, right eye first" if flags & _INVERTED else name_of_way
        elif kind == "SPHERICAL":
            value = _spherical(data)
        yield name, value


def _mastering(data: bytes) -> str:
    """Return the mdcv content of an AVMasteringDisplayMetadata.

    That has fractions: red, green, blue and white (x, y), then least and most luminance.
    """
    if len(data) < _MASTERING.size:
        return known.OTHER
    numbers = _MASTERING.unpack_from(data)
    parts = [n / d if d else 0.0 for n, d in zip(numbers[:20:2], numbers[1:20:2], strict=True)]
    if not all(numbers[20:]):
        return known.OTHER
    red, green, blue, white, (lowest, highest) = (parts[at : at + 2] for at in range(0, 10, 2))
    points = [round(one * 50_000) for one in (*green, *blue, *red, *white)]
    lights = [round(one * 10_000) for one in (highest, lowest)]
    if not all(0 <= one < 1 << 16 for one in points) or not all(0 <= x < 1 << 32 for x in lights):
        return known.OTHER
    return struct.pack(">8H2I", *points, *lights).hex()


def _spherical(data: bytes) -> str:
    if len(data) < _SPHERICAL.size:
        return known.OTHER
    projection, yaw, pitch, roll, left, top, right, bottom = _SPHERICAL.unpack_from(data)
    if projection not in _EQUIRECTANGULAR:
        return known.OTHER
    numbers = (yaw, pitch, roll, top, bottom, left, right)
    return " ".join(("equirectangular", *map(str, numbers)))


def _has_transparent_color(frame: av.VideoFrame) -> bool:
    """Return whether a color of a ``pal8`` picture's palette, used or not, is transparent."""
    _, palette = plane_bytes(frame)
    return bool((palette.reshape(-1, 4)[:, _PALETTE_ALPHA] < _OPAQUE).any())


def _packet_side_data(context: VideoCodecContext, packet: bytes) -> set[str]:
    into = ItemCollector()
    codec, extradata = context.codec.canonical_name, bytes(context.extradata or b"")
    found = packet_lister(codec, extradata, into, "packet")
    if found is not None:
        found(packet)
    paths = (path.removeprefix("packet/") for path in into.items())
    return {_IN_PACKETS[path] for path in paths if path in _IN_PACKETS}


def _box_side_data(window: FileWindow, stream_index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in _entries(window, stream_index):
        for one in iter_boxes(window, entry.content + _ENTRY_BYTES, entry.end):
            data = window.read(one.content, min(one.end - one.content, _MAX_VALUE))
            if one.kind in _DOVI_KINDS and known.is_dovi_record(data):
                found[known.DOVI] = data.hex()
    return found


def _entries(window: FileWindow, stream_index: int) -> Iterator[Mp4Box]:
    """Yield the sample entries of a track."""
    moov = first_mp4_box(window, None, b"moov")
    traks = [one for one in child_boxes(window, moov) if one.kind == b"trak"] if moov else []
    place = traks[stream_index] if stream_index < len(traks) else None
    for kind in (b"mdia", b"minf", b"stbl", b"stsd"):
        place = place and first_mp4_box(window, place, kind)
    if place is not None:
        yield from iter_boxes(window, place.content + 8, place.end)


_SEGMENT, _TRACKS, _TRACK, _VIDEO, _ALPHA = 0x18538067, 0x1654AE6B, 0xAE, 0xE0, 0x53C0
_MAPPING, _MAPPED_TYPE, _MAPPED_DATA, _CLUSTER = 0x41E4, 0x41E7, 0x41ED, 0x1F43B675


def _element_side_data(window: FileWindow, stream_index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for track in _tracks(window)[stream_index : stream_index + 1]:
        for one in iter_elements(window, track.content, track.end):
            if one.identifier == _VIDEO:
                for inner in iter_elements(window, one.content, one.end):
                    data = window.read(inner.content, min(inner.end - inner.content, _MAX_VALUE))
                    if inner.identifier == _ALPHA and data.strip(b"\0"):
                        found[ALPHA] = known.OTHER
            elif one.identifier == _MAPPING:
                values = {
                    inner.identifier: window.read(
                        inner.content, min(inner.end - inner.content, _MAX_VALUE)
                    )
                    for inner in iter_elements(window, one.content, one.end)
                }
                record = values.get(_MAPPED_DATA, b"")
                if values.get(_MAPPED_TYPE) in _DOVI_KINDS and known.is_dovi_record(record):
                    found[known.DOVI] = record.hex()
    return found


def _tracks(window: FileWindow) -> list[MatroskaElement]:
    for segment in iter_elements(window, 0, window.size):
        if segment.identifier != _SEGMENT:
            continue
        for one in iter_elements(window, segment.content, segment.end):
            if one.identifier == _TRACKS:
                inside = iter_elements(window, one.content, one.end)
                return [track for track in inside if track.identifier == _TRACK]
            if one.identifier == _CLUSTER:
                break
    return []
