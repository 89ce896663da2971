"""Takes the inventory of a file: everything in its headers and packets except samples.

Packet listers find the data that encoded pictures carry besides samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitstreamError, unescaped
from vfsd.codecs.bitstreams.sei_vui import (
    PERSISTENT_TYPES,
    UNSPECIFIED_FORMAT,
    USER_DATA_REGISTERED,
    USER_DATA_UNREGISTERED,
    UUID_BYTES,
    PictureTimingFormat,
    h264_time_codes,
    h264_timing_format,
    mpeg2_signal_type,
    parse_sei,
    parse_signal_type,
    video_format_name,
)
from vfsd.codecs.decoding.demuxer import open_container
from vfsd.codecs.inventory.inventory import Inventory, ItemAdder, ItemCollector, PictureAdder
from vfsd.codecs.inventory.matroska_elements import add_elements
from vfsd.codecs.inventory.mp4_boxes import PICTURES_PATH, FileWindow, add_boxes, without_rates
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

_BOXES = ("mp4", "mov")
_ELEMENTS = ("matroska", "webm")
_PROGRESS_PACKETS = 64
_MAX_CHAPTERS = 10_000


def take_inventory(
    source: MediaSource,
    container: str,
    stream_index: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Return everything that a file holds besides samples, in all its packets and headers.

    Raises `RefusedMediaError` if the file cannot be read to its end, `OSError`.

    Args:
        source: the file
        container: a name of `vfsd.codecs.containers.detect_container`
        stream_index: index of the video stream
        on_progress: called with (bytes done, bytes in total); may raise to cancel
    """
    into = ItemCollector()
    window = FileWindow(source)
    if container in _BOXES:
        add_boxes(window, stream_index, into)
    elif container in _ELEMENTS:
        add_elements(window, stream_index, into)
    try:
        with open_container(source, container) as opened:
            if container not in _BOXES + _ELEMENTS:
                _add_tags(opened, stream_index, into)
            _add_streams(opened, stream_index, into)
            _add_chapters(opened, into)
            _add_packets(opened, stream_index, into, source.size, on_progress)
    except FFmpegError as error:
        source.check()
        raise RefusedMediaError(f"cannot be read to its end: {error}") from error
    source.check()
    return into.items()


def stream_path(stream: Stream, stream_index: int) -> str:
    """Return the name of a stream in paths."""
    return PICTURES_PATH if stream.index == stream_index else f"stream {stream.index}"


def _add_tags(opened: InputContainer, stream_index: int, into: ItemCollector) -> None:
    """Add tags as FFmpeg reads them, for containers whose structure is not listed."""
    for key, value in opened.metadata.items():
        into.add_text(f"tags/file/{key}", value)
    for stream in opened.streams:
        for key, value in stream.metadata.items():
            into.add_text(f"tags/{stream_path(stream, stream_index)}/{key}", value)


def _add_streams(opened: InputContainer, stream_index: int, into: ItemCollector) -> None:
    for stream in opened.streams:
        name = stream_path(stream, stream_index)
        context = stream.codec_context
        disposition = stream.disposition
        if disposition:
            into.add_text(f"{name}/disposition", str(disposition))
        if stream.index == stream_index:
            continue
        codec = "unknown" if context is None else context.codec.canonical_name
        into.add_text(f"{name}/codec", f"{stream.type} {codec}")
        extradata = None if context is None else context.extradata
        if extradata:
            into.add(f"{name}/codec configuration", without_rates(bytes(extradata)))
        layout = getattr(context, "layout", None)
        if layout is not None:
            into.add_text(f"{name}/channel layout", layout.name)
    into.add_text("streams", str(len(opened.streams)))


def _add_chapters(opened: InputContainer, into: ItemCollector) -> None:
    for number, chapter in enumerate(opened.chapters()[:_MAX_CHAPTERS], 1):
        base = chapter["time_base"]
        if base is None:
            continue
        ticks = (chapter["start"], chapter["end"])
        start, end = (float(tick * base.numerator / base.denominator) for tick in ticks)
        title = chapter["metadata"].get("title", "")
        into.add_text(f"chapters/{number}", f"{start:.3f} to {end:.3f} s: {title}")
        for key, value in chapter["metadata"].items():
            if key != "title":
                into.add_text(f"chapters/{number}/{key}", value)


def _add_packets(
    opened: InputContainer,
    stream_index: int,
    into: ItemCollector,
    size: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    listers: dict[int, PacketLister | None] = {}
    pictures = PictureAdder(into)
    for stream in opened.streams:
        context = stream.codec_context
        if stream.index == stream_index and context is not None:
            codec, extradata = context.codec.canonical_name, bytes(context.extradata or b"")
            listers[stream.index] = packet_lister(
                codec, extradata, pictures, f"{PICTURES_PATH}/packets"
            )
    farthest = last = 0
    for number, packet in enumerate(opened.demux()):
        if not packet.size and packet.pts is None and packet.dts is None:
            continue
        stream = packet.stream
        name = stream_path(stream, stream_index)
        _add_side_data(packet, f"{name}/packet side data", into)
        found = listers.get(stream.index)
        if found is not None:
            last = last if packet.pts is None else packet.pts
            pictures.begin(last)
            found(bytes(packet))
        farthest = max(farthest, packet.pos or 0)
        if on_progress is not None and number % _PROGRESS_PACKETS == 0:
            on_progress(farthest, size)
    pictures.finish()


def _add_side_data(packet: Packet[Stream], path: str, into: ItemCollector) -> None:
    try:
        for data in packet.iter_sidedata():
            into.add(f"{path}/{data.data_type}", bytes(data))
    except (ValueError, KeyError):
        into.add(f"{path}/of an unknown kind", b"")


PacketLister = Callable[[bytes], None]
"""Called with the packets of a stream one after the other."""

# nal_unit_type (H.264 table 7-1): slices, parameter sets, delimiters, ends and filler.
_H264_PLAIN = frozenset((1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12))
_HEVC_PLAIN = frozenset((*range(32), 32, 33, 34, 35, 36, 37, 38))
_H264_NAMES = {
    13: "sequence parameter set extension",
    14: "prefix unit",
    15: "subset sequence parameter set",
    19: "auxiliary slice",
    20: "slice extension",
    21: "depth slice extension",
}
_HEVC_NAMES = {62: "Dolby Vision RPU", 63: "Dolby Vision enhancement layer"}
_HEVC_SEI = (39, 40)
_H264_SEI = 6
_PICTURE_TIMING = 1

# payloadType (H.264 and H.265, annex D).
SEI_NAMES = {
    0: "buffering period",
    1: "picture timing",
    2: "pan and scan",
    3: "filler",
    4: "ITU-T T.35 data",
    5: "user data",
    6: "recovery point",
    19: "film grain",
    45: "frame packing",
    47: "display orientation",
    128: "structure of pictures",
    129: "active parameter sets",
    130: "decoding unit",
    132: "picture hash",
    133: "scalable nesting",
    136: "time code",
    137: "mastering display",
    144: "content light level",
    147: "alternative transfer characteristics",
    148: "ambient viewing environment",
    149: "content colour volume",
    165: "alpha channel",
    176: "3D reference displays",
}

# obu_type (AV1, 6.2.2): sequence header, delimiter, frame headers, tile groups, frames, padding.
_OBU_PLAIN = frozenset((1, 2, 3, 4, 6, 7, 15))
_OBU_METADATA = 5
_OBU_NAMES = {1: "content light level", 2: "mastering display", 3: "scalability"}
_OBU_NAMES |= {4: "ITU-T T.35 data", 5: "time code"}

_GROUP_START, _USER_START = 0xB8, 0xB2
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_JPEG_COMMENT = 0xFE


def packet_lister(codec: str, extradata: bytes, into: ItemAdder, path: str) -> PacketLister | None:
    """Return a function that adds the data of packets to `into` below `path`.

    Data of the configuration is added at once. None for codecs whose packets are not parsed.
    """
    if codec in ("h264", "hevc"):
        units = _NalLister(codec, nal.prefix_size(codec, extradata), into, path)
        units.configuration(extradata)
        return units.packet
    if codec == "av1":
        found = _ObuLister(into, path)
        if extradata[:1] == b"\x81":
            found.packet(extradata[4:])
        return found.packet
    if codec in ("mpeg1video", "mpeg2video", "mpeg4"):
        codes = _StartCodeLister(codec == "mpeg4", into, path)
        codes.packet(extradata)
        return codes.packet
    return _JpegLister(into, path).packet if codec == "mjpeg" else None


class _NalLister:
    """Lists NAL units of H.264 and HEVC."""

    def __init__(self, codec: str, prefix: int, into: ItemAdder, path: str) -> None:
        self._codec = codec
        self._prefix = prefix
        self._into = into
        self._path = path
        self._plain = _HEVC_PLAIN if codec == "hevc" else _H264_PLAIN
        self._sei = _HEVC_SEI if codec == "hevc" else (_H264_SEI,)
        self._names = _HEVC_NAMES if codec == "hevc" else _H264_NAMES
        self._sps = nal.HEVC_SPS if codec == "hevc" else nal.H264_SPS
        self._signals: set[tuple[str, str]] = set()
        self._timing = PictureTimingFormat()

    def configuration(self, extradata: bytes) -> None:
        if not self._prefix:
            if extradata:
                self._all(extradata, 0)
            return
        for unit in nal.parameter_sets(self._codec, extradata):
            self._sequence(unit)
        for unit in configured_units(self._codec, extradata):
            self._unit(unit)

    def packet(self, data: bytes) -> None:
        self._all(data, self._prefix)

    def _all(self, data: bytes, prefix: int) -> None:
        try:
            for start, end in nal.nal_units(data, prefix):
                if self._is_plain(data, start, end):
                    if nal.unit_type(self._codec, data[start : start + 1]) == self._sps:
                        self._sequence(data[start:end])
                    continue
                self._unit(data[start:end])
        except BitstreamError:
            self._into.add(f"{self._path}/damaged packet", data)

    def _sequence(self, unit: bytes) -> None:
        try:
            signal = parse_signal_type(self._codec, unit)
            if self._codec == "h264" and unit[0] & 31 == nal.H264_SPS:
                self._timing = h264_timing_format(unit)
        except (BitstreamError, IndexError):
            return  # the set is damaged or unknown
        if signal.overscan is not None:
            self._signal("overscan", "appropriate" if signal.overscan else "not appropriate")
        if signal.video_format not in (None, UNSPECIFIED_FORMAT):
            self._signal("video format", video_format_name(signal.video_format))

    def _signal(self, name: str, text: str) -> None:
        """Add a value once, as sequence parameter sets may repeat it."""
        if (name, text) not in self._signals:
            self._signals.add((name, text))
            self._into.add_text(f"{self._path}/{name}", text)

    def _is_plain(self, data: bytes, start: int, end: int) -> bool:
        first = data[start]
        if self._codec == "hevc":
            layer = (first & 1) << 5 | (data[start + 1] >> 3 if start + 1 < end else 0)
            return first >> 1 & 63 in self._plain and not layer
        return first & 31 in self._plain

    def _unit(self, unit: bytes) -> None:
        kind = nal.unit_type(self._codec, unit)
        layer = (unit[0] & 1) << 5 | unit[1] >> 3 if self._codec == "hevc" and unit[1:] else 0
        if kind in self._sei and not layer:
            for number, payload in parse_sei(unescaped(unit)[2 if self._codec == "hevc" else 1 :]):
                self._message(number, payload)
            return
        if kind in self._plain and not layer:
            return
        name = self._names.get(kind)
        where = f"NAL unit {kind}" + (f" ({name})" if name else "")
        if layer:
            where = f"layer {layer}/{where}"
        self._into.add(f"{self._path}/{where}", unit)

    def _message(self, number: int, payload: bytes) -> None:
        name = SEI_NAMES.get(number)
        where = f"SEI {number}" + (f" ({name})" if name else "")
        if number in PERSISTENT_TYPES:
            self._into.add_lasting(f"{self._path}/{where}", payload)
            return
        text = ""
        if number == USER_DATA_UNREGISTERED:
            where += f" {payload[:UUID_BYTES].hex()}"
            text = payload[UUID_BYTES:].rstrip(b"\0").decode("latin-1")
        elif number == USER_DATA_REGISTERED:
            where += f" {payload[:8].hex()}"
        self._into.add(f"{self._path}/{where}", payload, text)
        if number == _PICTURE_TIMING and self._codec == "h264":
            self._time_codes(payload)

    def _time_codes(self, payload: bytes) -> None:
        """Add the clock timestamps of a picture apart from delays, which each encoding sets."""
        try:
            for code in h264_time_codes(payload, self._timing):
                self._into.add_text(f"{self._path}/time code of SEI 1", code)
        except BitstreamError:
            return  # decoders ignore a message that is too short


def configured_units(codec: str, extradata: bytes) -> Iterator[bytes]:
    """Yield the units of an H.264 or HEVC configuration that are not plain parameter sets."""
    if not nal.prefix_size(codec, extradata):
        with suppress(BitstreamError):
            for start, end in nal.nal_units(extradata, 0) if extradata else ():
                yield extradata[start:end]
    elif codec == "hevc":
        yield from _hvcc_units(extradata)
    else:
        yield from _avcc_extensions(extradata)


def _hvcc_units(record: bytes) -> Iterator[bytes]:
    """Yield all units of an hvcC record (ISO/IEC 14496-15, 8.3.3.1), of any type."""
    at = 23
    for _ in range(record[22]):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        units = _sized_units(record, at + 3, count)
        yield from units
        at += 3 + sum(2 + len(unit) for unit in units)
        if len(units) < count:
            return


def _avcc_extensions(record: bytes) -> Iterator[bytes]:
    """Yield the SPS extensions at the end of an avcC record (ISO/IEC 14496-15, 5.3.3.1)."""
    at = 5
    for mask in (0x1F, 0xFF):
        count = record[at] & mask if at < len(record) else 0
        at += 1
        for _ in range(count):
            at += 2 + int.from_bytes(record[at : at + 2], "big")
    if at + 4 > len(record):
        return
    yield from _sized_units(record, at + 4, record[at + 3])


def _sized_units(record: bytes, at: int, count: int) -> list[bytes]:
    """Return units that follow their size in two bytes.

    There are fewer than `count` if one is empty or the record ends.
    """
    units: list[bytes] = []
    for _ in range(count):
        size = int.from_bytes(record[at : at + 2], "big")
        unit = record[at + 2 : at + 2 + size]
        at += 2 + size
        if not unit:
            break
        units.append(unit)
    return units


class _ObuLister:
    """Lists open bitstream units of AV1."""

    def __init__(self, into: ItemAdder, path: str) -> None:
        self._into = into
        self._path = path

    def packet(self, data: bytes) -> None:
        try:
            for kind, start, end in nal.obu_units(data):
                if kind == _OBU_METADATA:
                    self._metadata(data[start:end])
                elif kind not in _OBU_PLAIN:
                    self._into.add(f"{self._path}/OBU {kind}", data[start:end])
        except BitstreamError:
            self._into.add(f"{self._path}/damaged packet", data)

    def _metadata(self, unit: bytes) -> None:
        at = 1 + (unit[0] >> 2 & 1)
        while at < len(unit) and unit[at] & 0x80:
            at += 1
        content = unit[at + 1 :]
        kind = content[0] if content else 0
        name = _OBU_NAMES.get(kind)
        where = f"metadata OBU {kind}" + (f" ({name})" if name else "")
        self._into.add(f"{self._path}/{where}", content)


class _StartCodeLister:
    """Lists user data and GOP headers of MPEG-1, MPEG-2 and MPEG-4 part 2."""

    def __init__(self, is_mpeg4: bool, into: ItemAdder, path: str) -> None:
        self._into = into
        self._path = path
        self._is_mpeg4 = is_mpeg4
        self._is_first_group = True
        self._video_format: int | None = None

    def packet(self, data: bytes) -> None:
        signal = None if self._is_mpeg4 else mpeg2_signal_type(data)
        if signal is not None and signal.video_format not in (
            self._video_format,
            UNSPECIFIED_FORMAT,
        ):
            self._video_format = signal.video_format
            self._into.add_text(
                f"{self._path}/video format", video_format_name(signal.video_format)
            )
        code = data.find(b"\0\0\1")
        while code >= 0 and code + 3 < len(data):
            following = data.find(b"\0\0\1", code + 4)
            kind = data[code + 3]
            if kind == _USER_START:
                end = len(data) if following < 0 else following
                content = data[code + 4 : end].rstrip(b"\0")
                name = "captions" if content[:4] == b"GA94" else "user data"
                self._into.add(f"{self._path}/{name}", content, content.decode("latin-1"))
            elif kind == _GROUP_START and not self._is_mpeg4 and self._is_first_group:
                self._is_first_group = False
                self._time_code(int.from_bytes(data[code + 4 : code + 8], "big") >> 7)
            code = following

    def _time_code(self, code: int) -> None:
        """Add the time code of the first GOP, unless it is 0. Encoders count on from it."""
        parts = (code >> 19 & 31, code >> 13 & 63, code >> 6 & 63, code & 63)
        if any(parts):
            text = ":".join(f"{part:02}" for part in parts)
            self._into.add_text(f"{self._path}/time code", text)


class _JpegLister:
    """Lists application segments and comments of JPEG pictures, up to the samples."""

    def __init__(self, into: ItemAdder, path: str) -> None:
        self._into = into
        self._path = path

    def packet(self, data: bytes) -> None:
        at = 2
        while at + 4 <= len(data) and data[at] == 0xFF:
            kind = data[at + 1]
            if kind in (_JPEG_SCAN, _JPEG_END):
                return
            size = int.from_bytes(data[at + 2 : at + 4], "big")
            content = data[at + 4 : at + 2 + size]
            if kind == _JPEG_COMMENT:
                self._into.add(f"{self._path}/comment", content, content.decode("latin-1"))
            elif 0xE0 <= kind <= 0xEF:
                name = content[:32].split(b"\0")[0].decode("latin-1")
                name = name if name.isprintable() else ""
                self._into.add(f"{self._path}/APP{kind - 0xE0} {name}".rstrip(), content)
            at += 2 + size
