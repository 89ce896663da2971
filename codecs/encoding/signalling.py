"""What a stream tells of the meaning of its samples, and how a new encoding tells the same.

Encoders leave fields out that have their default value.  FFmpeg then reports the value as unknown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from av.video.codeccontext import VideoCodecContext

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import DamagedError
from vfsd.codecs.bitstreams.cicp import (
    FULL_RANGE,
    LIMITED_RANGE,
    PRIMARIES,
    RANGES,
    SPACES,
    TRANSFERS,
    color_codes,
)
from vfsd.codecs.bitstreams.signaltype import (
    SignalType,
    mpeg2_signal_type,
    parse_signal_type,
)
from vfsd.codecs.decoding.demuxer import Source, demuxed_to_the_end, open_stream
from vfsd.codecs.pyav import exact
from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError

_NOT_TOLD = 2
_FIRST_PACKETS = 4
_SPS = {"h264": nal.H264_SPS, "hevc": nal.HEVC_SPS}


@dataclass(frozen=True, slots=True)
class Signalling:
    """The fields of a stream, from its container or its packets.

    Numbers of colours are those of ISO/IEC 23091-2, with 2 for unspecified.
    """

    color_range: int  #: AVColorRange: 0 unspecified, 1 limited, 2 full
    color_space: int
    color_primaries: int
    color_transfer: int
    video_format: int | None  #: index of `VIDEO_FORMATS`
    overscan: bool | None
    sample_aspect_ratio: Fraction  #: 1 where it is not told

    def fields(self, codec: str, media: MediaInfo) -> dict[str, int]:
        """Options of FFmpeg's filter h264_metadata or hevc_metadata that tell the same.

        `media` goes first, as decoders believe packets before the container.  Overscan is left out
        for HEVC, whose filter has no option for it.
        """
        told = color_codes(None, media.color_space, media.color_primaries, media.color_transfer)
        found: dict[str, int] = {}
        if media.color_range or self.color_range:
            is_full = media.color_range == "full" or (
                not media.color_range and self.color_range == FULL_RANGE
            )
            found["video_full_range_flag"] = int(is_full)
        for name, first, number in (
            ("colour_primaries", told.primaries, self.color_primaries),
            ("transfer_characteristics", told.transfer, self.color_transfer),
            ("matrix_coefficients", told.matrix, self.color_space),
        ):
            if first != _NOT_TOLD or number != _NOT_TOLD:
                found[name] = number if first == _NOT_TOLD else first
        if self.video_format is not None:
            found["video_format"] = self.video_format
        if self.overscan is not None and codec == "h264":
            found["overscan_appropriate_flag"] = int(self.overscan)
        return found


def signalling_of(path: str | os.PathLike[str], media: MediaInfo) -> Signalling:
    """The signalling of the pictures of a file.  Raises `OSError`, `IntegrityError`."""
    with Source(path) as source:
        opened, stream = open_stream(source, media.container, media.stream_index)
        with opened:
            context = stream.codec_context
            numbers = (
                int(context.color_range),
                int(context.colorspace),
                int(context.color_primaries),
                int(context.color_trc),
            )
            aspect = exact(stream.sample_aspect_ratio) or Fraction(1)
            told = signal_type(media.codec, bytes(context.extradata or b""))
            if told is None:
                packets = islice(demuxed_to_the_end(opened, stream), _FIRST_PACKETS)
                extradata = bytes(context.extradata or b"")
                prefix = nal.prefix_size(media.codec, extradata)
                found = (signal_type(media.codec, bytes(one), prefix) for one in packets)
                told = next((one for one in found if one is not None), SignalType())
    return Signalling(*numbers, told.video_format, told.overscan, aspect)


def tell_container(context: VideoCodecContext, told: Signalling) -> None:
    """Have the container of an encoder's stream tell the colours of `told`."""
    if told.color_range:
        context.color_range = told.color_range
    if told.color_space != _NOT_TOLD:
        context.colorspace = told.color_space
    if told.color_primaries != _NOT_TOLD:
        context.color_primaries = told.color_primaries
    if told.color_transfer != _NOT_TOLD:
        context.color_trc = told.color_transfer


def signal_type(codec: str, data: bytes, prefix: int | None = None) -> SignalType | None:
    """From a codec configuration, or from a packet whose units have lengths of `prefix` bytes.

    None where it has no sequence parameter set.
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
            units = tuple(data[a:b] for a, b in nal.units(data, prefix))
        for unit in units:
            if nal.unit_type(codec, unit) == kind:
                return parse_signal_type(codec, unit)
    except (DamagedError, IndexError):
        pass
    return None


def require_same_signalling(before: Signalling, after: Signalling) -> None:
    """Raises `RefusedMediaError` for fields that a new file does not tell as the old one.

    An added limited range is the same as none: so samples are taken where nothing is told.
    """
    ranges = (before.color_range, after.color_range)
    if ranges != (0, LIMITED_RANGE) and ranges[0] != ranges[1]:
        _refuse("color range", RANGES, *ranges)
    if before.sample_aspect_ratio != after.sample_aspect_ratio:
        raise RefusedMediaError(
            f"sample aspect ratio would become {after.sample_aspect_ratio}; it is "
            f"{before.sample_aspect_ratio}",
            hint="another codec may keep it",
        )
    for name, names, one, other in (
        ("color space", SPACES, before.color_space, after.color_space),
        ("color primaries", PRIMARIES, before.color_primaries, after.color_primaries),
        ("color transfer", TRANSFERS, before.color_transfer, after.color_transfer),
    ):
        if one != other:
            _refuse(name, names, one, other)


def _refuse(name: str, names: dict[int, str], before: int, after: int) -> None:
    told = [
        "unspecified" if number == (0 if names is RANGES else _NOT_TOLD) else str(number)
        for number in (before, after)
    ]
    shown = [names.get(number, text) for number, text in zip((before, after), told, strict=True)]
    raise RefusedMediaError(
        f"{name} would become {shown[1]}; it is {shown[0]}",
        hint="another codec may keep it",
    )
