"""The wire format of an examination between the sandboxed process and its parent.

The reader checks every field, since the sender is not trusted.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

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
from vfsd.core.model import Access, CropMargins, MediaInfo, SideStream, Sound
from vfsd.errors import IntegrityError

_MAGIC = b"vfx1"
_HEAD = struct.Struct("<4sI")
_MAX_HEAD_BYTES = 1 << 26
_MAX_TEXT = 1 << 16
_MAX_ITEMS = 1000
_MAX_DIGITS = 64
_MAX_TICK = 1 << 60
"""Largest absolute timestamp of a table, in ticks."""
_MAX_SIDE = 1 << 16
_MAX_PACKET_BYTES = 1 << 31
_FLAGS = int(PacketFlag.KEY | PacketFlag.HIDDEN | PacketFlag.DISPOSABLE | PacketFlag.LEADING)
_COLUMN_BYTES = 4 * 8 + 1
_MAX_CODEC_ID = 64
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_NUMBER = re.compile(r"-?[0-9]{1,30}(/[0-9]{1,30})?")

_Value = TypeVar("_Value")


def max_examination_bytes(size: int) -> int:
    """Return the largest length of a packed examination of a file of `size` bytes."""
    packets = max_packets(size) + min(MOST_SOUND_PACKETS, max_packets(size))
    return _HEAD.size + _MAX_HEAD_BYTES + packets * (_COLUMN_BYTES + 8)


def pack_examination(found: Examination) -> bytes:
    """Return an examination in the wire format; see `unpack_examination`."""
    head: dict[str, Any] = {
        "media": _packed_fields(found.media)
        | {"side_streams": [_packed_fields(s) for s in _packed_streams(found.media)]},
        "access": found.access.value,
        "packets": len(found.columns),
        "frames": len(found.order),
        "end_pts": int(found.end_pts),
        "verified": found.verified,
        "notes": list(found.notes),
        "damage": None
        if found.damage is None
        else [[part.start, part.stop] for part in found.damage],
        "sound": None if found.sound is None else _packed_fields(found.sound.sound),
        "sound_packets": 0 if found.sound is None else len(found.sound.columns),
    }
    text = json.dumps(head).encode("ascii")
    parts = [_HEAD.pack(_MAGIC, len(text)), text, *_packed_columns(found.columns)]
    parts.append(found.order.astype("<i8").tobytes())
    if found.sound is not None:
        parts += _packed_columns(found.sound.columns)
    return b"".join(parts)


def unpack_examination(data: bytes, size: int) -> Examination:
    """Return the examination of a file of `size` bytes from an untrusted sender.

    Raises `IntegrityError` for data that no examination of such a file can give.
    """
    try:
        return _unpacked_examination(data, size)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise IntegrityError(f"invalid examination: {error}") from error


def _unpacked_examination(data: bytes, size: int) -> Examination:
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or length > _MAX_HEAD_BYTES:
        raise ValueError("wrong magic, or header too long")
    head = json.loads(data[_HEAD.size : _HEAD.size + length])
    rest = memoryview(data)[_HEAD.size + length :]
    packets = _checked_int(head["packets"], 1, max_packets(size))
    frames = _checked_int(head["frames"], 1, packets)
    sound_packets = _checked_int(head["sound_packets"], 0, MOST_SOUND_PACKETS)
    if len(rest) != _COLUMN_BYTES * (packets + sound_packets) + 8 * frames:
        raise ValueError("length does not match the header")
    columns = _unpacked_columns(rest, packets)
    order = np.frombuffer(rest, "<i8", frames, _COLUMN_BYTES * packets).astype(np.int64)
    media = _checked_media(head["media"])
    access = Access(head["access"])
    end_pts = _checked_int(head["end_pts"], -_MAX_TICK, _MAX_TICK)
    _require_table(columns, order, access, end_pts, size)
    sound = None
    if head["sound"] is not None:
        heard = _unpacked_columns(rest[_COLUMN_BYTES * packets + 8 * frames :], sound_packets)
        sound = AudioScan(_checked_audio(head["sound"]), heard)
        if sound_packets:
            _require_columns(heard, sound.sound.access, size)
        if sound.sound.packets != sound_packets:
            raise ValueError("numbers of audio packets differ")
    elif sound_packets:
        raise ValueError("audio packets without audio")
    return Examination(
        media=media,
        access=access,
        columns=columns,
        order=order,
        end_pts=end_pts,
        verified=_checked_bool(head["verified"]),
        notes=tuple(_checked_text(note) for note in _checked_list(head["notes"])),
        damage=_optional(lambda parts: _checked_damage(parts, frames), head["damage"]),
        sound=sound,
    )


def _checked_damage(parts: Any, frames: int) -> tuple[range, ...]:
    """Return ranges of frames that ascend and do not touch."""
    found, least = [], 0
    if not isinstance(parts, list):
        raise ValueError("damage must be a list")
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


def _packed_fields(value: Any) -> dict[str, Any]:
    """Return the plain fields of a dataclass; fractions as text, bytes as hexadecimal digits."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        raw = getattr(value, field.name)
        if isinstance(raw, Fraction):
            raw = str(raw)
        elif isinstance(raw, Access):
            raw = raw.value
        elif isinstance(raw, bytes):
            raw = raw.hex()
        elif isinstance(raw, Mapping):
            raw = dict(raw)
        if field.name != "side_streams":
            fields[field.name] = raw
    return fields


def _packed_streams(media: MediaInfo) -> tuple[SideStream, ...]:
    return media.side_streams


def _checked_media(raw: Mapping[str, Any]) -> MediaInfo:
    container_of(raw["container"])
    width, height = (_checked_int(raw[side], 1, _MAX_SIDE) for side in ("width", "height"))
    if width * height > MAX_PIXELS:
        raise ValueError("pictures too large")
    rotation = _checked_int(raw["rotation"], 0, 270)
    if rotation % 90:
        raise ValueError(f"rotation must be a multiple of 90 degrees, got {rotation}")
    return MediaInfo(
        container=raw["container"],
        codec=_checked_name(raw["codec"]),
        profile=_optional(_checked_text, raw["profile"]),
        width=width,
        height=height,
        pixel_format=_checked_name(raw["pixel_format"]),
        time_base=_positive_fraction(raw["time_base"]),
        average_rate=_optional(_positive_fraction, raw["average_rate"]),
        stream_index=_checked_int(raw["stream_index"], 0, MAX_STREAMS),
        rotation=rotation,
        sample_aspect_ratio=_optional(_positive_fraction, raw["sample_aspect_ratio"]),
        color_range=_optional(_checked_name, raw["color_range"]),
        color_space=_optional(_checked_name, raw["color_space"]),
        color_primaries=_optional(_checked_name, raw["color_primaries"]),
        color_transfer=_optional(_checked_name, raw["color_transfer"]),
        bit_depth=_checked_int(raw["bit_depth"], 1, 32),
        interlaced=_checked_bool(raw["interlaced"]),
        variable_rate=_checked_bool(raw["variable_rate"]),
        edit_list=_checked_bool(raw["edit_list"]),
        reorder_delay=_checked_int(raw["reorder_delay"], 0, 1 << 16),
        extradata=_checked_bytes(raw["extradata"]),
        codec_tag=_checked_text(raw["codec_tag"]),
        side_streams=tuple(_checked_stream(one) for one in _checked_list(raw["side_streams"])),
        tags={_checked_text(key): _checked_text(value) for key, value in dict(raw["tags"]).items()},
        mirrored=_checked_bool(raw["mirrored"]),
        crop=_checked_crop(raw["crop"]),
        in_largest_size=_checked_bool(raw["in_largest_size"]),
        marks=_optional(_checked_side_data, raw["marks"]),
    )


def _checked_side_data(raw: Any) -> dict[str, str]:
    """Return side data. Raises `ValueError` also for values that cannot be written to a header."""
    found = {_checked_text(name): _checked_text(value) for name, value in dict(raw).items()}
    if len(found) > _MAX_ITEMS:
        raise ValueError("too many entries of side data")
    for container in ("mp4", "matroska"):
        container_side_data(container, found)
    side_data_boxes(found)
    side_data_video_elements(found)
    side_data_colour_elements(found)
    return found


def _checked_crop(raw: Any) -> CropMargins:
    left, top, right, bottom = (_checked_int(side, 0, _MAX_SIDE) for side in _checked_list(raw))
    return left, top, right, bottom


def _checked_stream(raw: Mapping[str, Any]) -> SideStream:
    return SideStream(
        index=_checked_int(raw["index"], 0, MAX_STREAMS),
        kind=_checked_name(raw["kind"]),
        codec=_checked_name(raw["codec"]),
        language=_optional(_checked_text, raw["language"]),
        channels=_optional(_small_int, raw["channels"]),
        sample_rate=_optional(_small_int, raw["sample_rate"]),
    )


def _checked_audio(raw: Mapping[str, Any]) -> Sound:
    return Sound(
        codec=_checked_name(raw["codec"]),
        stream_index=_checked_int(raw["stream_index"], -1, MAX_STREAMS),
        time_base=_positive_fraction(raw["time_base"]),
        sample_rate=_small_int(raw["sample_rate"]),
        channels=_small_int(raw["channels"]),
        bit_depth=_checked_int(raw["bit_depth"], 0, 64),
        configuration=_checked_bytes(raw["configuration"]),
        packets=_checked_int(raw["packets"], 0, MOST_SOUND_PACKETS),
        first_pts=_checked_int(raw["first_pts"], -_MAX_TICK, _MAX_TICK),
        end_pts=_checked_int(raw["end_pts"], -_MAX_TICK, _MAX_TICK),
        language=_optional(_checked_text, raw["language"]),
        reason=_optional(_checked_text, raw["reason"]),
        access=Access(raw["access"]),
        matroska_codec=_checked_text(raw["matroska_codec"])[:_MAX_CODEC_ID],
        matroska_private=_checked_bytes(raw["matroska_private"]),
        mp4_entry=_checked_bytes(raw["mp4_entry"]),
    )


def _optional(check: Callable[[Any], _Value], raw: Any) -> _Value | None:
    return None if raw is None else check(raw)


def _checked_int(raw: Any, least: int, most: int) -> int:
    if type(raw) is not int or not least <= raw <= most:
        raise ValueError(f"value must be {least} to {most}, got {str(raw)[:_MAX_DIGITS]}")
    return raw


def _small_int(raw: Any) -> int:
    return _checked_int(raw, 0, 1 << 31)


def _checked_bool(raw: Any) -> bool:
    if type(raw) is not bool:
        raise ValueError("value must be true or false")
    return raw


def _checked_text(raw: Any) -> str:
    if type(raw) is not str or len(raw) > _MAX_TEXT:
        raise ValueError("value must be a text of limited length")
    return raw


def _checked_name(raw: Any) -> str:
    if type(raw) is not str or not _NAME.fullmatch(raw):
        raise ValueError("value must be a name")
    return raw


def _positive_fraction(raw: Any) -> Fraction:
    if type(raw) is not str or not _NUMBER.fullmatch(raw):
        raise ValueError("value must be a fraction")
    number = Fraction(raw)
    if number <= 0:
        raise ValueError("fraction must be positive")
    return number


def _checked_bytes(raw: Any) -> bytes:
    if type(raw) is not str:
        raise ValueError("value must be hexadecimal digits")
    return bytes.fromhex(raw)


def _checked_list(raw: Any) -> list[Any]:
    if type(raw) is not list or len(raw) > _MAX_ITEMS:
        raise ValueError("value must be a list of limited length")
    return raw
