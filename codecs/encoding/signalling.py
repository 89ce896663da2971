"""Signalling that a new encoding repeats from the original stream.

Covers the colors of the container and the VUI, and SEI messages by timestamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitstreamError
from vfsd.codecs.bitstreams.sei_vui import (
    PERSISTENT_TYPES,
    SEI_CODECS,
    SeiMessage,
    SignalType,
    carried_messages,
    carried_types,
    carried_unit_messages,
    mpeg2_signal_type,
    parse_signal_type,
)
from vfsd.codecs.decoding.demuxer import demux_until_error, open_stream
from vfsd.codecs.frames.color import (
    FULL_RANGE,
    LIMITED_RANGE,
    MATRICES,
    PRIMARIES,
    RANGES,
    TRANSFERS,
    color_codes,
)
from vfsd.codecs.inventory.file_inventory import configured_units
from vfsd.codecs.pyav import exact_fraction
from vfsd.core.model import MediaInfo
from vfsd.disk.checksums import MediaFile, MediaSource
from vfsd.errors import RefusedMediaError

SeiUnits = tuple[tuple[SeiMessage, ...], ...]


# Kinds of side data that decoders return for SEI messages, by payloadType (H.264 D.1).
_SIDE_DATA = {
    4: ("A53_CC", "AFD", "DYNAMIC_HDR_PLUS", "DYNAMIC_HDR_VIVID"),
    136: ("S12M_TIMECODE",),
    137: ("MASTERING_DISPLAY_METADATA",),
    144: ("CONTENT_LIGHT_LEVEL",),
    148: ("AMBIENT_VIEWING_ENVIRONMENT",),
}
_PATH = re.compile(r"pictures/packets/SEI (\d+)\b(?!.*\) b5003b)")


def is_carried_message(path: str, before: str, after: str) -> bool:
    """Return whether an inventory path is an SEI message that a new file carries."""
    found = _PATH.match(path)
    return found is not None and int(found[1]) in carried_types(before, after)


def carried_side_data(before: str, after: str) -> frozenset[str]:
    """Return the kinds of frame side data that come from carried SEI messages."""
    kinds = carried_types(before, after)
    return frozenset(name for kind, names in _SIDE_DATA.items() if kind in kinds for name in names)


class SeiReader:
    """The SEI messages of a file's packets by timestamp; a context manager.

    Ask for times roughly in packet order, since messages of earlier packets are dropped. Raises
    `IntegrityError`, `OSError`.
    """

    def __init__(self, source: MediaSource, media: MediaInfo, codec: str) -> None:
        self._codecs = (media.codec, codec)
        self._found: dict[int, SeiUnits] = {}
        self._passed: int | None = None  # dts of the last packet read
        self._opened, stream = open_stream(source, media.container, media.stream_index)
        extradata = bytes(stream.codec_context.extradata or b"")
        self._prefix = nal.prefix_size(media.codec, extradata)
        self._packets: Iterator[Packet[VideoStream]] = iter(())
        self._lasting: dict[int, bytes] = {}  # persistent payloads in effect, by type
        if all(one in SEI_CODECS for one in self._codecs):
            self._packets = demux_until_error(self._opened, stream)
            kinds = carried_types(*self._codecs)
            units = configured_units(media.codec, extradata)
            found = (carried_unit_messages(media.codec, kinds, unit) for unit in units)
            for unit in found:
                self._lasting.update(one for one in unit if one[0] in PERSISTENT_TYPES)

    def at(self, pts: int, *, is_key: bool) -> SeiUnits:
        """Return the messages for the packet at `pts`, in ticks.

        A key packet repeats persistent messages of earlier packets.
        """
        units = self._of_packet(pts)
        transient = [[one for one in unit if one[0] not in PERSISTENT_TYPES] for unit in units]
        lasting = {kind: data for unit in units for kind, data in unit if kind in PERSISTENT_TYPES}
        self._lasting |= lasting
        if is_key:
            lasting = self._lasting
        return tuple(tuple(one) for one in (list(lasting.items()), *transient) if one)

    def _of_packet(self, pts: int) -> SeiUnits:
        while pts not in self._found and (self._passed is None or self._passed <= pts):
            packet = next(self._packets, None)
            if packet is None:
                break
            if packet.pts is not None:
                messages = carried_messages(*self._codecs, bytes(packet), self._prefix)
                self._found[packet.pts] = messages
            if packet.dts is not None:
                self._passed = packet.dts
        return self._found.pop(pts, ())

    def close(self) -> None:
        self._opened.close()


_UNSPECIFIED = 2
_FIRST_PACKETS = 4
_SPS = {"h264": nal.H264_SPS, "hevc": nal.HEVC_SPS}


@dataclass(frozen=True, slots=True)
class StreamSignalling:
    """Signalling fields of a stream, from its container or its packets.

    Color numbers are those of ISO/IEC 23091-2; 2 means unspecified.
    """

    color_range: int  #: AVColorRange: 0 unspecified, 1 limited, 2 full
    color_space: int
    color_primaries: int
    color_transfer: int
    video_format: int | None  #: index of `VIDEO_FORMATS`
    overscan: bool | None
    sample_aspect_ratio: Fraction  #: 1 if unspecified

    def fields(self, codec: str, media: MediaInfo) -> dict[str, int]:
        """Return equivalent options of FFmpeg's filters h264_metadata and hevc_metadata.

        `media` takes precedence, since decoders prefer packets to the container. Overscan is
        omitted for HEVC, whose filter lacks the option.
        """
        codes = color_codes(None, media.color_space, media.color_primaries, media.color_transfer)
        found: dict[str, int] = {}
        if media.color_range or self.color_range:
            is_full = media.color_range == "full" or (
                not media.color_range and self.color_range == FULL_RANGE
            )
            found["video_full_range_flag"] = int(is_full)
        for name, first, number in (
            ("colour_primaries", codes.primaries, self.color_primaries),
            ("transfer_characteristics", codes.transfer, self.color_transfer),
            ("matrix_coefficients", codes.matrix, self.color_space),
        ):
            if first != _UNSPECIFIED or number != _UNSPECIFIED:
                found[name] = number if first == _UNSPECIFIED else first
        if self.video_format is not None:
            found["video_format"] = self.video_format
        if self.overscan is not None and codec == "h264":
            found["overscan_appropriate_flag"] = int(self.overscan)
        return found


def file_signalling(path: MediaFile, media: MediaInfo) -> StreamSignalling:
    """Return the signalling of a file's pictures. Raises `OSError`, `IntegrityError`."""
    with MediaSource(path) as source:
        opened, stream = open_stream(source, media.container, media.stream_index)
        with opened:
            context = stream.codec_context
            numbers = (
                int(context.color_range),
                int(context.colorspace),
                int(context.color_primaries),
                int(context.color_trc),
            )
            aspect = exact_fraction(stream.sample_aspect_ratio) or Fraction(1)
            signal = packet_signal_type(media.codec, bytes(context.extradata or b""))
            if signal is None:
                packets = islice(demux_until_error(opened, stream), _FIRST_PACKETS)
                extradata = bytes(context.extradata or b"")
                prefix = nal.prefix_size(media.codec, extradata)
                found = (packet_signal_type(media.codec, bytes(one), prefix) for one in packets)
                signal = next((one for one in found if one is not None), SignalType())
    return StreamSignalling(*numbers, signal.video_format, signal.overscan, aspect)


def set_container_colors(context: VideoCodecContext, signalling: StreamSignalling) -> None:
    """Make the container of an encoder's stream declare the colors of `signalling`."""
    if signalling.color_range:
        context.color_range = signalling.color_range
    if signalling.color_space != _UNSPECIFIED:
        context.colorspace = signalling.color_space
    if signalling.color_primaries != _UNSPECIFIED:
        context.color_primaries = signalling.color_primaries
    if signalling.color_transfer != _UNSPECIFIED:
        context.color_trc = signalling.color_transfer


def packet_signal_type(codec: str, data: bytes, prefix: int | None = None) -> SignalType | None:
    """Return the signal type of a codec configuration or packet; None without an SPS.

    `prefix` is the size of the length prefixes of a packet's units; None for a configuration.
    """
    if codec == "mpeg2video":
        return mpeg2_signal_type(data)
    kind = _SPS.get(codec)
    if kind is None or not data:
        return None
    try:
        if prefix is None:
            units = nal.parameter_sets(codec, data)
        else:
            units = tuple(data[a:b] for a, b in nal.nal_units(data, prefix))
        for unit in units:
            if nal.unit_type(codec, unit) == kind:
                return parse_signal_type(codec, unit)
    except (BitstreamError, IndexError):
        pass
    return None


def require_same_signalling(before: StreamSignalling, after: StreamSignalling) -> None:
    """Raise `RefusedMediaError` if a field of the new file differs from the old one.

    A limited range may be added, since it is the default where the range is unspecified.
    """
    ranges = (before.color_range, after.color_range)
    if ranges != (0, LIMITED_RANGE) and ranges[0] != ranges[1]:
        _refuse_difference("color range", RANGES, *ranges)
    if before.sample_aspect_ratio != after.sample_aspect_ratio:
        raise RefusedMediaError(
            f"sample aspect ratio would become {after.sample_aspect_ratio}; it is "
            f"{before.sample_aspect_ratio}",
            hint="another codec may preserve it",
        )
    for name, names, one, other in (
        ("color space", MATRICES, before.color_space, after.color_space),
        ("color primaries", PRIMARIES, before.color_primaries, after.color_primaries),
        ("color transfer", TRANSFERS, before.color_transfer, after.color_transfer),
    ):
        if one != other:
            _refuse_difference(name, names, one, other)


def _refuse_difference(name: str, names: dict[int, str], before: int, after: int) -> None:
    differing = [
        "unspecified" if number == (0 if names is RANGES else _UNSPECIFIED) else str(number)
        for number in (before, after)
    ]
    shown = [
        names.get(number, text) for number, text in zip((before, after), differing, strict=True)
    ]
    raise RefusedMediaError(
        f"{name} would become {shown[1]}; it is {shown[0]}",
        hint="another codec may preserve it",
    )
