"""SEI messages and the video signal type of H.264 and HEVC.

A re-encoding carries those SEI messages (annex D of both standards) that do not describe the
encoded pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from av.bitstream import BitStreamFilterContext
from av.packet import Packet

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitReader, BitstreamError, escaped, unescaped

SEI_CODECS = ("h264", "hevc")
USER_DATA_UNREGISTERED, USER_DATA_REGISTERED = 5, 4
UUID_BYTES = 16
_PREFIX, _SUFFIX = 39, 40
_H264_SEI = nal.H264_SEI

# Types that both codecs share: ITU-T T.35 and user data.
_SHARED_TYPES = frozenset((USER_DATA_REGISTERED, USER_DATA_UNREGISTERED))
PERSISTENT_TYPES = frozenset((137, 144, 147, 148, 149))
"""Types that persist until the next key picture, which repeats them.

Mastering display, content light level, transfer, ambient light, content color volume. Decoders of
the two codecs keep them for different times.
"""
# More types that can be carried within a codec, including pan-scan and time code.
_CODEC_TYPES = {
    "h264": frozenset((2, *PERSISTENT_TYPES)),
    "hevc": frozenset((2, 136, *PERSISTENT_TYPES)),
}
_ENCODER_UUIDS = (
    bytes.fromhex("dc45e9bde6d948b7962cd820d923eeef"),  # x264
    bytes.fromhex("2ca2de09b51747dbbb55a4fe7fc2fc4e"),  # x265
)
_DOLBY_VISION = bytes.fromhex("b5003b")

SeiMessage = tuple[int, bytes]
"""(payloadType, payload)"""


def parse_sei(payload: bytes) -> Iterator[SeiMessage]:
    """Yield the messages of an unescaped SEI unit without its NAL header."""
    payload = payload.rstrip(b"\0").removesuffix(b"\x80")
    at, end = 0, len(payload)
    while at + 2 <= end:
        numbers = []
        for _ in range(2):
            number = 0
            while at < end and payload[at] == 0xFF:
                number, at = number + 255, at + 1
            if at >= end:
                return
            numbers.append(number + payload[at])
            at += 1
        kind, size = numbers
        yield kind, payload[at : at + size]
        at += size


def carried_types(before: str, after: str) -> frozenset[int]:
    """Return the payload types that can be carried from one codec to another."""
    if before not in SEI_CODECS or after not in SEI_CODECS:
        return frozenset()
    return _SHARED_TYPES | (_CODEC_TYPES[before] if before == after else frozenset())


def carried_messages(
    before: str, after: str, packet: bytes, prefix: int
) -> tuple[tuple[SeiMessage, ...], ...]:
    """Return the messages of a packet of codec `before` that `after` can carry, by unit.

    `prefix` is the size of length prefixes; see `nal.prefix_size`.
    """
    kinds = carried_types(before, after)
    try:
        units = [packet[a:b] for a, b in nal.nal_units(packet, prefix)] if kinds else []
    except BitstreamError:
        return ()
    found = (carried_unit_messages(before, kinds, unit) for unit in units)
    return tuple(one for one in found if one)


def carried_unit_messages(codec: str, kinds: frozenset[int], unit: bytes) -> tuple[SeiMessage, ...]:
    """Return the messages of `kinds` in a NAL unit; empty for other units and layers."""
    head = 2 if codec == "hevc" else 1
    kind = nal.unit_type(codec, unit)
    is_message = kind in (_PREFIX, _SUFFIX) if codec == "hevc" else kind == _H264_SEI
    if not is_message or (codec == "hevc" and (unit[0] & 1 or unit[1] >> 3)):
        return ()
    found = parse_sei(unescaped(unit)[head:])
    return tuple(one for one in found if one[0] in kinds and _describes_pictures(*one))


def _describes_pictures(kind: int, payload: bytes) -> bool:
    """Return whether a message describes the pictures rather than their encoding."""
    if kind == USER_DATA_UNREGISTERED:
        return not payload.startswith(_ENCODER_UUIDS)
    return kind != USER_DATA_REGISTERED or not payload.startswith(_DOLBY_VISION)


def sei_unit(codec: str, messages: tuple[SeiMessage, ...]) -> bytes:
    """Return a NAL unit with messages, without a start code."""
    body = b"".join(
        _sei_number(kind) + _sei_number(len(payload)) + payload for kind, payload in messages
    )
    head = bytes((_PREFIX << 1, 1)) if codec == "hevc" else bytes((_H264_SEI,))
    return head + escaped(body + b"\x80")


def _sei_number(value: int) -> bytes:
    return b"\xff" * (value // 255) + bytes((value % 255,))


def with_sei_messages(
    codec: str, packet: bytes, units: tuple[tuple[SeiMessage, ...], ...]
) -> bytes:
    """Insert units of messages before the first slice of an Annex B packet."""
    if not units:
        return packet
    added = b"".join(nal.START_CODE + sei_unit(codec, one) for one in units)
    for start, end in nal.nal_units(packet, 0):
        if nal.holds_slice(codec, nal.unit_type(codec, packet[start:end])):
            at = start - 3
            at -= at > 0 and packet[at - 1] == 0
            return packet[:at] + added + packet[at:]
    raise BitstreamError("the packet has no slice")


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


@dataclass(frozen=True, slots=True)
class PictureTimingFormat:
    """The fields of an H.264 SPS that decide the form of picture timing messages."""

    delay_bits: int = 0  #: of both delays; 0: they are absent
    has_structure: bool = False  #: pic_struct_present_flag
    offset_bits: int = 24  #: time_offset_length


def h264_timing_format(unit: bytes) -> PictureTimingFormat:
    """Parse an SPS with its NAL header (H.264 E.1.1). Raises `BitstreamError`."""
    reader = _h264_vui_reader(unit)
    if not reader.flag():
        return PictureTimingFormat()
    skip_display_fields(reader)
    if reader.flag():  # timing_info_present_flag
        reader.bits(65)
    found = [read_hrd(reader) for _ in range(2) if reader.flag()]
    if found:
        reader.flag()  # low_delay_hrd_flag
    delay_bits, offset_bits = found[-1] if found else (0, 24)
    return PictureTimingFormat(delay_bits, reader.flag(), offset_bits)


def skip_display_fields(reader: BitReader) -> None:
    """Skip the first fields of a VUI, which H.264 (E.1.1) and HEVC (E.2.1) have in common."""
    if reader.flag() and reader.bits(8) == _EXTENDED_RATIO:
        reader.bits(32)
    if reader.flag():
        reader.flag()  # overscan_appropriate_flag
    if reader.flag():
        reader.bits(4)  # video_format, video_full_range_flag
        if reader.flag():
            reader.bits(24)  # primaries, transfer, matrix
    if reader.flag():
        reader.golomb()  # chroma_sample_loc_type
        reader.golomb()


def read_hrd(reader: BitReader) -> tuple[int, int]:
    """Read hrd_parameters of H.264 (E.1.2).

    Return the bits of both delays together, and of a time offset. Raises `BitstreamError`.
    """
    count = reader.golomb() + 1
    if count > _MAX_CPBS:
        raise BitstreamError("cpb_cnt_minus1 out of range")
    reader.bits(8)
    for _ in range(count):
        reader.golomb()
        reader.golomb()
        reader.flag()
    reader.bits(5)  # initial_cpb_removal_delay_length_minus1
    return reader.bits(5) + 1 + reader.bits(5) + 1, reader.bits(5)


def h264_time_codes(payload: bytes, form: PictureTimingFormat) -> tuple[str, ...]:
    """Return the clock timestamps of a picture timing message (H.264 D.1.3), as text.

    Fields that a timestamp omits keep their earlier value, and are shown as ``--``. Raises
    `BitstreamError`.
    """
    if not form.has_structure:
        return ()
    reader = BitReader(payload)
    reader.bits(form.delay_bits)
    structure = reader.bits(4)
    if structure >= len(_CLOCKS):
        raise BitstreamError("pic_struct is reserved")
    return tuple(
        _clock_text(reader, form.offset_bits) for _ in range(_CLOCKS[structure]) if reader.flag()
    )


def _clock_text(reader: BitReader, offset_bits: int) -> str:
    kind, is_field = reader.bits(2), reader.flag()
    counting, is_full = reader.bits(5), reader.flag()
    is_broken, drops = reader.flag(), reader.flag()
    frames = reader.bits(8)
    shown: list[int | None] = [None, None, None]  # hours, minutes, seconds
    for place, bits in ((2, 6), (1, 6), (0, 5)):
        if not is_full and not reader.flag():
            break
        shown[place] = reader.bits(bits)
    offset = reader.bits(offset_bits) if offset_bits else 0
    if offset_bits and offset >> offset_bits - 1:
        offset -= 1 << offset_bits
    text = ":".join("--" if one is None else f"{one:02}" for one in shown) + f":{frames:02}"
    # Further fields, only where they differ from those of plain progressive video.
    marks = (("type", kind), ("counting", counting), ("offset", offset))
    text += "".join(f", {name} {value}" for name, value in marks if value)
    flags = (("field", is_field), ("discontinuity", is_broken), ("drop", drops))
    return text + "".join(f", {name}" for name, flag in flags if flag)


# NumClockTS by pic_struct (table D-1).
_CLOCKS = (1, 1, 1, 2, 2, 3, 3, 2, 3)
_MAX_CPBS = 32


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
    arguments = ":".join(f"{name}={value}" for name, value in fields.items())
    if not arguments or codec not in ("h264", "hevc"):
        return extradata
    context = BitStreamFilterContext(f"{codec}_metadata={arguments}", codec)
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
