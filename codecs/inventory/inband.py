"""Lists the data that encoded pictures carry besides samples.

These are SEI messages, metadata OBUs, MPEG user data, JPEG application segments, and units that
plain decoders ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from vfsd.codecs.bitstreams import codec_config, nal
from vfsd.codecs.bitstreams.bit_io import BitstreamError, unescaped
from vfsd.codecs.bitstreams.sei_messages import (
    PERSISTENT_TYPES,
    USER_DATA_REGISTERED,
    USER_DATA_UNREGISTERED,
    UUID_BYTES,
    parse_sei,
)
from vfsd.codecs.bitstreams.video_signal import (
    UNSPECIFIED_FORMAT,
    mpeg2_signal_type,
    parse_signal_type,
    video_format_name,
)
from vfsd.codecs.inventory.collector import ItemAdder

PacketLister = Callable[[bytes], None]
"""Called with the packets of a stream one after the other."""

_H264_PLAIN = frozenset((1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12))
"""nal_unit_type (H.264 table 7-1): slices, parameter sets, delimiters, ends and filler."""
_HEVC_PLAIN = frozenset((*range(32), 32, 33, 34, 35, 36, 37, 38))
_H264_NAMES = {
    13: "sequence parameter set extension",
    14: "prefix unit",
    15: "subset sequence parameter set",
    19: "auxiliary slice",
    20: "slice extension",
    21: "depth slice",
}
_HEVC_NAMES = {62: "Dolby Vision RPU", 63: "Dolby Vision enhancement layer"}
_HEVC_SEI = (39, 40)
_H264_SEI = 6

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

_OBU_PLAIN = frozenset((1, 2, 3, 4, 6, 7, 15))
"""obu_type (AV1, 6.2.2): sequence header, delimiter, frame headers, tile groups, frames,
padding.
"""
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
            reported = parse_signal_type(self._codec, unit)
        except (BitstreamError, IndexError):
            return  # the set is damaged or unknown
        if reported.overscan is not None:
            self._signal("overscan", "appropriate" if reported.overscan else "not appropriate")
        if reported.video_format not in (None, UNSPECIFIED_FORMAT):
            self._signal("video format", video_format_name(reported.video_format))

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
            for kind, start, end in codec_config.obu_units(data):
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
        reported = None if self._is_mpeg4 else mpeg2_signal_type(data)
        if reported is not None and reported.video_format not in (
            self._video_format,
            UNSPECIFIED_FORMAT,
        ):
            self._video_format = reported.video_format
            self._into.add_text(
                f"{self._path}/video format", video_format_name(reported.video_format)
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

    def _time_code(self, reported: int) -> None:
        """Add the time code of the first GOP, unless it is 0. Encoders count on from it."""
        parts = (reported >> 19 & 31, reported >> 13 & 63, reported >> 6 & 63, reported & 63)
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
