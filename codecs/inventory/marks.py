"""Finds the marks of pictures in a file: see `vfsd.codecs.containers.side_data`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import av
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext

from vfsd.codecs.containers import side_data as known
from vfsd.codecs.decoding.context import prepare
from vfsd.codecs.decoding.demuxer import Source, demuxed_to_the_end, open_stream
from vfsd.codecs.decoding.side_data import carried_data, kind_named
from vfsd.codecs.inventory.inband import lister
from vfsd.codecs.inventory.items import Collector
from vfsd.codecs.inventory.matroska_elements import Element, elements
from vfsd.codecs.inventory.mp4_boxes import Box, boxes, first_box, inside
from vfsd.codecs.inventory.window import Window
from vfsd.codecs.pyav import decode
from vfsd.core.model import MediaInfo

_MASTERING = struct.Struct("=20i2i")
_LIGHT = struct.Struct("=2I")
_STEREO = struct.Struct("=2i")
_SPHERICAL = struct.Struct("=4i4I")
_STEREO_NAMES = {0: "mono", 1: "side by side", 2: "top and bottom"}
_EQUIRECTANGULAR = (0, 3)  # in full, and with bounds
_INVERTED = 1
_FIELD_ORDERS = {2: "top field first", 4: "top field first", 3: "bottom field first"}
_FIELD_ORDERS |= {5: "bottom field first"}

_IN_PACKETS = {
    "SEI 137 (mastering display)": known.MASTERING,
    "SEI 144 (content light level)": known.LIGHT,
    "metadata OBU 2 (mastering display)": known.MASTERING,
    "metadata OBU 1 (content light level)": known.LIGHT,
    "SEI 45 (frame packing)": known.STEREO,
}
_DOVI_KINDS = (b"dvcC", b"dvvC", b"dvwC")
_ENTRY_BYTES = 78
_MOST_VALUE = 64
"""Bytes that are read of a value; none that is looked for has as many."""
_MOST_PACKET = 1 << 22
_MOST_PACKETS = 64
"""As many are read until the first picture comes."""


def picture_marks(source: Source, media: MediaInfo) -> dict[str, str]:
    """The marks of the pictures of a file, from its header, first packet and first picture.

    Empty where none can be decoded.  Raises `OSError`, `IntegrityError`.
    """
    opened, stream = open_stream(source, media.container, media.stream_index)
    with opened:
        context = stream.codec_context
        prepare(context)
        packets = list(islice(demuxed_to_the_end(opened, stream), _MOST_PACKETS))
        for packet in (*packets, None):
            with suppress(FFmpegError):
                for frame in decode(context, packet):
                    first = bytes(packets[0])[:_MOST_PACKET]
                    return _marks(source, media, context, frame, first)
    return {}


def _marks(
    source: Source,
    media: MediaInfo,
    context: VideoCodecContext,
    frame: av.VideoFrame,
    packet: bytes,
) -> dict[str, str]:
    found = dict(_of_picture(frame))
    window = Window(source)
    if media.container in ("mp4", "mov"):
        found |= _of_boxes(window, media.stream_index)
    elif media.container in ("matroska", "webm"):
        found |= _of_elements(window, media.stream_index)
    told = _in_packet(context, packet)
    told |= {name for name in found if name not in _WRITTEN}
    if media.interlaced:
        # Coders of fields tell the order in their packets, others in the header alone.
        found[known.FIELDS] = _FIELD_ORDERS.get(int(context.field_order), known.OTHER)
        told.add(known.FIELDS)
    if told & found.keys():
        found[known.IN_PACKETS] = ",".join(sorted(told & found.keys()))
    return found


_WRITTEN = frozenset(
    (
        *(known.MASTERING, known.LIGHT, known.STEREO, known.SPHERICAL, known.DOVI, known.ALPHA),
        *map(kind_named, ("ICC_PROFILE", "AMBIENT_VIEWING_ENVIRONMENT")),
    )
)
"""Marks that a container tells, and packets perhaps; all others are in packets."""


def _name(kind: str) -> str:
    return {
        "MASTERING_DISPLAY_METADATA": known.MASTERING,
        "CONTENT_LIGHT_LEVEL": known.LIGHT,
        "STEREO3D": known.STEREO,
        "SPHERICAL": known.SPHERICAL,
    }.get(kind, kind_named(kind))


def _of_picture(frame: av.VideoFrame) -> Iterator[tuple[str, str]]:
    for kind, data in carried_data(frame).items():
        name = _name(kind)
        value = known.OTHER
        if kind == "MASTERING_DISPLAY_METADATA":
            value = _mastering(data)
        elif kind == "CONTENT_LIGHT_LEVEL" and len(data) >= _LIGHT.size:
            most, average = _LIGHT.unpack_from(data)
            if max(most, average) < 1 << 16:
                value = struct.pack(">HH", most, average).hex()
        elif kind == "STEREO3D" and len(data) >= _STEREO.size:
            way, flags = _STEREO.unpack_from(data)
            name_of_way = _STEREO_NAMES.get(way, known.OTHER)
            value = f"{name_of_way}, right eye first" if flags & _INVERTED else name_of_way
        elif kind == "SPHERICAL":
            value = _spherical(data)
        yield name, value


def _mastering(data: bytes) -> str:
    """From red, green, blue and white (x, y), the least and the most light, as fractions."""
    if len(data) < _MASTERING.size:
        return known.OTHER
    numbers = _MASTERING.unpack_from(data)
    parts = [n / d if d else 0.0 for n, d in zip(numbers[:20:2], numbers[1:20:2], strict=True)]
    if not all(numbers[20:]):
        return known.OTHER
    red, green, blue, white, (least, most) = (parts[at : at + 2] for at in range(0, 10, 2))
    points = [round(one * 50_000) for one in (*green, *blue, *red, *white)]
    lights = [round(one * 10_000) for one in (most, least)]
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


def _in_packet(context: VideoCodecContext, packet: bytes) -> set[str]:
    into = Collector()
    codec, extradata = context.codec.canonical_name, bytes(context.extradata or b"")
    found = lister(codec, extradata, into, "packet")
    if found is not None:
        found(packet)
    paths = (path.removeprefix("packet/") for path in into.items())
    return {_IN_PACKETS[path] for path in paths if path in _IN_PACKETS}


# ---------------------------------------------------------------------------------- containers


def _of_boxes(window: Window, stream_index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in _entries(window, stream_index):
        for one in boxes(window, entry.content + _ENTRY_BYTES, entry.end):
            data = window.read(one.content, min(one.end - one.content, _MOST_VALUE))
            if one.kind in _DOVI_KINDS and known.is_record(data):
                found[known.DOVI] = data.hex()
    return found


def _entries(window: Window, stream_index: int) -> Iterator[Box]:
    """The sample descriptions of a track."""
    moov = first_box(window, None, b"moov")
    traks = [one for one in inside(window, moov) if one.kind == b"trak"] if moov else []
    place = traks[stream_index] if stream_index < len(traks) else None
    for kind in (b"mdia", b"minf", b"stbl", b"stsd"):
        place = place and first_box(window, place, kind)
    if place is not None:
        yield from boxes(window, place.content + 8, place.end)


_SEGMENT, _TRACKS, _TRACK, _VIDEO, _ALPHA = 0x18538067, 0x1654AE6B, 0xAE, 0xE0, 0x53C0
_MAPPING, _MAPPED_TYPE, _MAPPED_DATA, _CLUSTER = 0x41E4, 0x41E7, 0x41ED, 0x1F43B675


def _of_elements(window: Window, stream_index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for track in _tracks(window)[stream_index : stream_index + 1]:
        for one in elements(window, track.content, track.end):
            if one.identifier == _VIDEO:
                for inner in elements(window, one.content, one.end):
                    data = window.read(inner.content, min(inner.end - inner.content, _MOST_VALUE))
                    if inner.identifier == _ALPHA and data.strip(b"\0"):
                        found[known.ALPHA] = known.OTHER
            elif one.identifier == _MAPPING:
                told = {
                    inner.identifier: window.read(
                        inner.content, min(inner.end - inner.content, _MOST_VALUE)
                    )
                    for inner in elements(window, one.content, one.end)
                }
                record = told.get(_MAPPED_DATA, b"")
                if told.get(_MAPPED_TYPE) in _DOVI_KINDS and known.is_record(record):
                    found[known.DOVI] = record.hex()
    return found


def _tracks(window: Window) -> list[Element]:
    for segment in elements(window, 0, window.size):
        if segment.identifier != _SEGMENT:
            continue
        for one in elements(window, segment.content, segment.end):
            if one.identifier == _TRACKS:
                inside = elements(window, one.content, one.end)
                return [track for track in inside if track.identifier == _TRACK]
            if one.identifier == _CLUSTER:
                break
    return []
