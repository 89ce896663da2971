"""The wire format of an examination between the sandboxed process and its parent.

The sender is not trusted. The types below bound every field, and the reader then checks what holds
between fields.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from vfsd.codecs.containers.detect_container import container_of, max_packets
from vfsd.codecs.containers.tracks import (
    container_side_data,
    side_data_boxes,
    side_data_colour_elements,
    side_data_video_elements,
)
from vfsd.codecs.decoding.demuxer import MAX_STREAMS
from vfsd.codecs.probing.audio_scan import MAX_AUDIO_PACKETS as MOST_SOUND_PACKETS
from vfsd.codecs.probing.audio_scan import AudioScan
from vfsd.codecs.probing.probe import Examination
from vfsd.codecs.pyav import MAX_PIXELS
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo, Sound
from vfsd.errors import IntegrityError

_MAGIC = b"vfx1"
_HEAD = struct.Struct("<4sI")
_MAX_HEAD_BYTES = 1 << 26
# Largest absolute timestamp of a table, in ticks.
_MAX_TICK = 1 << 60
_MAX_SIDE = 1 << 16
_MAX_PACKET_BYTES = 1 << 31
_FLAGS = int(PacketFlag.KEY | PacketFlag.HIDDEN | PacketFlag.DISPOSABLE | PacketFlag.LEADING)
_COLUMN_BYTES = 4 * 8 + 1
_MAX_CODEC_ID = 64
_NUMBER = re.compile(r"[0-9]{1,30}(/[0-9]{1,30})?")

# Errors of unpacking; a fraction may have the denominator 0.
_INVALID = (
    *(msgspec.MsgspecError, struct.error, RecursionError),
    *(ValueError, KeyError, TypeError, ArithmeticError),
)

_Text = Annotated[str, Meta(max_length=1 << 16)]
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.+-]{1,64}\Z")]
_Side = Annotated[int, Meta(ge=0, le=_MAX_SIDE)]
_Small = Annotated[int, Meta(ge=0, le=1 << 31)]
_Stream = Annotated[int, Meta(ge=0, le=MAX_STREAMS)]
_Tick = Annotated[int, Meta(ge=-_MAX_TICK, le=_MAX_TICK)]
_AudioPackets = Annotated[int, Meta(ge=0, le=MOST_SOUND_PACKETS)]
_Few = Meta(max_length=1000)

_Value = TypeVar("_Value")


class _SideStreamFields(Struct, forbid_unknown_fields=True):
    """The fields of `SideStream`."""

    index: _Stream
    kind: _Name
    codec: _Name
    language: _Text | None
    channels: _Small | None
    sample_rate: _Small | None


class _MediaFields(Struct, forbid_unknown_fields=True):
    """The fields of `MediaInfo`."""

    container: _Name
    codec: _Name
    profile: _Text | None
    width: Annotated[int, Meta(ge=1, le=_MAX_SIDE)]
    height: Annotated[int, Meta(ge=1, le=_MAX_SIDE)]
    pixel_format: _Name
    time_base: Fraction
    average_rate: Fraction | None
    stream_index: _Stream
    rotation: Literal[0, 90, 180, 270]
    sample_aspect_ratio: Fraction | None
    color_range: _Name | None
    color_space: _Name | None
    color_primaries: _Name | None
    color_transfer: _Name | None
    bit_depth: Annotated[int, Meta(ge=1, le=32)]
    interlaced: bool
    variable_rate: bool
    edit_list: bool
    reorder_delay: _Side
    extradata: bytes
    codec_tag: _Text
    side_streams: Annotated[tuple[_SideStreamFields, ...], _Few]
    tags: dict[_Text, _Text]
    mirrored: bool
    crop: tuple[_Side, _Side, _Side, _Side]
    in_largest_size: bool
    needs_first_packet: bool | None
    marks: Annotated[dict[_Text, _Text], _Few] | None


class _SoundFields(Struct, forbid_unknown_fields=True):
    """The fields of `Sound`."""

    codec: _Name
    stream_index: Annotated[int, Meta(ge=-1, le=MAX_STREAMS)]
    time_base: Fraction
    sample_rate: _Small
    channels: _Small
    bit_depth: Annotated[int, Meta(ge=0, le=64)]
    configuration: bytes
    packets: _AudioPackets
    first_pts: _Tick
    end_pts: _Tick
    language: _Text | None
    reason: _Text | None
    access: Access
    matroska_codec: _Text
    matroska_private: bytes
    mp4_entry: bytes


class _Head(Struct, forbid_unknown_fields=True):
    """All fields of an examination; the columns of packets follow."""

    media: _MediaFields
    access: Access
    packets: int
    frames: int
    end_pts: _Tick
    verified: bool
    notes: Annotated[tuple[_Text, ...], _Few]
    damage: tuple[tuple[int, int], ...] | None
    sound: _SoundFields | None
    sound_packets: _AudioPackets


def max_examination_bytes(size: int) -> int:
    """Return the largest length of a packed examination of a file of `size` bytes."""
    packets = max_packets(size) + min(MOST_SOUND_PACKETS, max_packets(size))
    return _HEAD.size + _MAX_HEAD_BYTES + packets * (_COLUMN_BYTES + 8)


def pack_examination(found: Examination) -> bytes:
    """Return an examination in the wire format; see `unpack_examination`."""
    sound = found.sound
    head = {
        "media": found.media,
        "access": found.access,
        "packets": len(found.columns),
        "frames": len(found.order),
        "end_pts": int(found.end_pts),
        "verified": found.verified,
        "notes": found.notes,
        "damage": found.damage and [(part.start, part.stop) for part in found.damage],
        "sound": sound and sound.sound,
        "sound_packets": len(sound.columns) if sound else 0,
    }
    # Not msgspec's encoder: tags that are not UTF-8 have lone surrogates.
    text = json.dumps(msgspec.to_builtins(head, enc_hook=str)).encode("ascii")
    parts = [_HEAD.pack(_MAGIC, len(text)), text, *_packed_columns(found.columns)]
    parts.append(found.order.astype("<i8").tobytes())
    if sound is not None:
        parts += _packed_columns(sound.columns)
    return b"".join(parts)


def unpack_examination(data: bytes, size: int) -> Examination:
    """Return the examination of a file of `size` bytes from an untrusted sender.

    Raises `IntegrityError` for data that no examination of such a file can give.
    """
    try:
        return _unpacked_examination(data, size)
    except _INVALID as error:
        raise IntegrityError(f"invalid examination: {error}") from error


def _unpacked_examination(data: bytes, size: int) -> Examination:
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or length > _MAX_HEAD_BYTES:
        raise ValueError("wrong magic, or header too long")
    text = data[_HEAD.size : _HEAD.size + length]
    head = msgspec.convert(json.loads(text), _Head, dec_hook=_decoded)
    rest = memoryview(data)[_HEAD.size + length :]
    packets = _checked_int(head.packets, 1, max_packets(size))
    frames = _checked_int(head.frames, 1, packets)
    if len(rest) != _COLUMN_BYTES * (packets + head.sound_packets) + 8 * frames:
        raise ValueError("length does not match the header")
    columns = _unpacked_columns(rest, packets)
    order = np.frombuffer(rest, "<i8", frames, _COLUMN_BYTES * packets).astype(np.int64)
    _require_table(columns, order, head.access, head.end_pts, size)
    sound = None
    if head.sound is not None:
        heard = _unpacked_columns(rest[_COLUMN_BYTES * packets + 8 * frames :], head.sound_packets)
        head.sound.matroska_codec = head.sound.matroska_codec[:_MAX_CODEC_ID]
        sound = AudioScan(_model(head.sound, Sound), heard)
        if head.sound_packets:
            _require_columns(heard, sound.sound.access, size)
        if sound.sound.packets != head.sound_packets:
            raise ValueError("numbers of audio packets differ")
    elif head.sound_packets:
        raise ValueError("audio packets without audio")
    container_of(head.media.container)
    if head.media.width * head.media.height > MAX_PIXELS:
        raise ValueError("pictures too large")
    _require_side_data(head.media.marks or {})
    return Examination(
        media=_model(head.media, MediaInfo),
        access=head.access,
        columns=columns,
        order=order,
        end_pts=head.end_pts,
        verified=head.verified,
        notes=head.notes,
        damage=None if head.damage is None else _checked_damage(head.damage, frames),
        sound=sound,
    )


def _checked_damage(parts: tuple[tuple[int, int], ...], frames: int) -> tuple[range, ...]:
    """Return ranges of frames that ascend and do not touch."""
    found, least = [], 0
    for first, end in parts:
        found.append(
            range(_checked_int(first, least, frames - 1), _checked_int(end, first + 1, frames))
        )
        least = end + 1
    return tuple(found)


def _packed_columns(columns: PacketColumns) -> list[bytes]:
    wide = (columns.pts, columns.dts, columns.position, columns.size)
    return [*(c.astype("<i8").tobytes() for c in wide), columns.flags.astype("u1").tobytes()]


def _unpacked_columns(data: memoryview, count: int) -> PacketColumns:
    wide = np.frombuffer(data, "<i8", 4 * count).astype(np.int64).reshape(4, count)
    flags = np.frombuffer(data, "u1", count, 8 * 4 * count).copy()
    return PacketColumns(wide[0], wide[1], wide[2], wide[3], flags)


def _require_columns(columns: PacketColumns, access: Access, size: int) -> None:
    for ticks in (columns.pts, columns.dts):
        if ticks.min() < -_MAX_TICK or ticks.max() > _MAX_TICK:
            raise ValueError("timestamp out of range")
    if columns.size.min() < 0 or columns.size.max() > _MAX_PACKET_BYTES:
        raise ValueError("packet size out of range")
    if columns.position.min() < -1 or columns.position.max() > size:
        raise ValueError("packet outside the file")
    if access is Access.EXTENT and (
        columns.position.min() < 0 or (columns.position + columns.size).max() > size
    ):
        raise ValueError("packet outside the file")
    if (columns.flags & ~np.uint8(_FLAGS)).any():
        raise ValueError("unknown packet flag")


def _require_table(
    columns: PacketColumns, order: Ints, access: Access, end_pts: int, size: int
) -> None:
    _require_columns(columns, access, size)
    if order.min() < 0 or order.max() >= len(columns):
        raise ValueError("frame without a packet")
    shown = columns.pts[order]
    if len(shown) > 1 and not (np.diff(shown) > 0).all():
        raise ValueError("frames out of order")  # and so no packet shows two
    if end_pts <= int(shown[-1]):
        raise ValueError("end before the last frame")
    hidden = np.ones(len(columns), np.bool_)
    hidden[order] = False
    if not np.array_equal(hidden, columns.flags & PacketFlag.HIDDEN != 0):
        raise ValueError("hidden packets do not match the frames")


def _require_side_data(data: Mapping[str, str]) -> None:
    """Raise `ValueError` for side data that cannot be written to a header."""
    for container in ("mp4", "matroska"):
        container_side_data(container, data)
    side_data_boxes(data)
    side_data_video_elements(data)
    side_data_colour_elements(data)


def _model(fields: Struct, kind: type[_Value]) -> _Value:
    """Return the value of the model that has these fields."""
    return msgspec.convert(fields, kind, from_attributes=True, dec_hook=_decoded)


def _decoded(kind: type, raw: object) -> object:
    """Return a positive fraction of its text."""
    if isinstance(raw, kind):
        return raw
    if kind is not Fraction or not isinstance(raw, str) or not _NUMBER.fullmatch(raw):
        raise ValueError("value must be a fraction")
    number = Fraction(raw)
    if number <= 0:
        raise ValueError("fraction must be positive")
    return number


def _checked_int(raw: int, least: int, most: int) -> int:
    if not least <= raw <= most:
        raise ValueError(f"value must be {least} to {most}, got {raw}")
    return raw
