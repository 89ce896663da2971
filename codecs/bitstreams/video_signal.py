"""The video signal type in the VUI of H.264 and HEVC, and in MPEG-2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from av.bitstream import BitStreamFilterContext
from av.packet import Packet

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitReader, BitstreamError

UNSPECIFIED_FORMAT = 5
VIDEO_FORMATS = ("component", "PAL", "NTSC", "SECAM", "MAC", "unspecified")
"""video_format of H.264 (table E-2), HEVC and MPEG-2."""
_EXTENDED_RATIO = 255
_EXTENSION, _DISPLAY = b"\0\0\1\xb5", 2
_MAX_SETS = 64
_MAX_LONG_TERM = 32
_MAX_DELTAS = 32


@dataclass(frozen=True, slots=True)
class SignalType:
    """VUI fields that decoding does not need; None: unspecified."""

    overscan: bool | None = None  #: whether the picture may be shown with overscan
    video_format: int | None = None  #: index of `VIDEO_FORMATS`; 6 and 7 are reserved
    full_range: bool | None = None


def parse_signal_type(codec: str, unit: bytes) -> SignalType:
    """Parse an SPS of h264 or hevc with its NAL header. Raises `BitstreamError`."""
    reader = _hevc_vui_reader(unit) if codec == "hevc" else _h264_vui_reader(unit)
    if not reader.flag():
        return SignalType()
    if reader.flag() and reader.bits(8) == _EXTENDED_RATIO:
        reader.bits(32)
    overscan = reader.flag() if reader.flag() else None
    if not reader.flag():
        return SignalType(overscan)
    return SignalType(overscan, reader.bits(3), reader.flag())


def mpeg2_signal_type(data: bytes) -> SignalType | None:
    """Parse the sequence_display_extension of MPEG-2 (ITU-T H.262, 6.2.2.4); None without one."""
    at = data.find(_EXTENSION)
    while at >= 0 and at + 4 < len(data):
        if data[at + 4] >> 4 == _DISPLAY:
            return SignalType(video_format=data[at + 4] >> 1 & 7)
        at = data.find(_EXTENSION, at + 4)
    return None


def video_format_name(video_format: int | None) -> str:
    """Return a readable name of a video format."""
    if video_format is None or video_format >= len(VIDEO_FORMATS):
        return f"reserved ({video_format})"
    return VIDEO_FORMATS[video_format]


def with_vui_fields(codec: str, extradata: bytes, fields: Mapping[str, int]) -> bytes:
    """Return parameter sets in Annex B with other VUI fields.

    `fields` are options of FFmpeg's filters h264_metadata and hevc_metadata. Raises `FFmpegError`.
    """
    reported = ":".join(f"{name}={value}" for name, value in fields.items())
    if not reported or codec not in ("h264", "hevc"):
        return extradata
    context = BitStreamFilterContext(f"{codec}_metadata={reported}", codec)
    (packet,) = context.filter(Packet(extradata))
    return bytes(packet)


def _h264_vui_reader(unit: bytes) -> BitReader:
    """Return a reader at vui_parameters_present_flag."""
    found, reader = nal.read_h264_sps(unit)
    if found.has_fields:
        reader.flag()  # mb_adaptive_frame_field_flag
    reader.flag()  # direct_8x8_inference_flag
    if reader.flag():  # frame_cropping_flag
        for _ in range(4):
            reader.golomb()
    return reader


def _hevc_vui_reader(unit: bytes) -> BitReader:
    """Return a reader at vui_parameters_present_flag."""
    found, reader = nal.read_hevc_sps(unit)
    order_bits = reader.golomb() + 4
    for _ in range(found.sublayers if reader.flag() else 1):
        for _ in range(3):  # buffers, reordering, latency
            reader.golomb()
    for _ in range(6):  # sizes and depths of blocks
        reader.golomb()
    if reader.flag() and reader.flag():
        _skip_scaling_lists(reader)
    reader.flag()  # amp_enabled_flag
    reader.flag()  # sample_adaptive_offset_enabled_flag
    if reader.flag():  # pcm_enabled_flag
        reader.bits(8)
        reader.golomb()
        reader.golomb()
        reader.flag()
    _skip_reference_sets(reader)
    if reader.flag():
        count = reader.golomb()
        if count > _MAX_LONG_TERM:
            raise BitstreamError("too many long-term reference pictures")
        reader.bits(count * (order_bits + 1))
    reader.flag()  # sps_temporal_mvp_enabled_flag
    reader.flag()  # strong_intra_smoothing_enabled_flag
    return reader


def _skip_scaling_lists(reader: BitReader) -> None:
    """Skip scaling_list_data (7.3.4)."""
    for size in range(4):
        for _ in range(0, 6, 3 if size == 3 else 1):
            if not reader.flag():
                reader.golomb()
                continue
            if size > 1:
                reader.signed_golomb()
            for _ in range(min(64, 1 << (4 + 2 * size))):
                reader.signed_golomb()


def _skip_reference_sets(reader: BitReader) -> None:
    """Skip short-term sets (7.3.7), which may be predicted from the previous one."""
    count = reader.golomb()
    if count > _MAX_SETS:
        raise BitstreamError("too many reference picture sets")
    deltas: list[int] = []
    for index in range(count):
        deltas = (
            _skip_predicted_set(reader, deltas)
            if index and reader.flag()
            else _skip_explicit_set(reader)
        )
        if len(deltas) > _MAX_DELTAS:
            raise BitstreamError("too many reference pictures")


def _skip_predicted_set(reader: BitReader, before: list[int]) -> list[int]:
    is_negative = reader.flag()
    shift = reader.golomb() + 1
    shift = -shift if is_negative else shift
    found = []
    for delta in (*before, 0):
        is_kept = reader.flag() or reader.flag()
        if is_kept and delta + shift:
            found.append(delta + shift)
    return [
        *sorted((one for one in found if one < 0), reverse=True),
        *sorted(one for one in found if one > 0),
    ]


def _skip_explicit_set(reader: BitReader) -> list[int]:
    counts = (reader.golomb(), reader.golomb())
    if sum(counts) > _MAX_DELTAS:
        raise BitstreamError("too many reference pictures")
    found = []
    for count, sign in zip(counts, (-1, 1), strict=True):
        distance = 0
        for _ in range(count):
            distance += sign * (reader.golomb() + 1)
            reader.flag()
            found.append(distance)
    return found
