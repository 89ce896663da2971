"""``NAME@/info.json``: what is known of a video, for programs and for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from vfsd.codecs.containers.audio_entries import takes
from vfsd.codecs.containers.segment_muxer import SoundTrack
from vfsd.codecs.containers.side_data import names_of
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import LogicalVideo, MediaInfo, PhysicalVideo, Sound
from vfsd.core.view_request import View
from vfsd.views.convert import picture_form
from vfsd.views.side_data import lost_marks, marks_of_copy, marks_of_encoding

_VIEWS = "t=10-20.mp4  roi=400x300+600+300,size=200x150,fps=5.h264  frames/000123.png"

NOT_INDEXED = "its sound is not indexed; `vfsd verify` indexes it"


def sound_track(sound: Sound) -> SoundTrack:
    """Of packets that are copied."""
    return SoundTrack(
        sound.codec,
        sound.configuration,
        sound.sample_rate,
        sound.channels,
        sound.bit_depth,
        sound.language,
        sound.matroska_codec,
        sound.matroska_private,
        sound.mp4_entry,
    )


def carried_codec(container: str, sound: Sound, asked: str | None = None) -> str:
    """The codec in which an mp4 or matroska view carries sound that is indexed.

    It is that of the stored sound unless another is `asked` for.  Sound that the container does
    not take is transcoded to AAC.
    """
    if asked in (None, sound.codec) and takes(container, sound_track(sound)):
        return sound.codec
    return asked or "aac"


def sound_record(media: MediaInfo, sound: Sound | None) -> dict[str, Any] | None:
    """What views carry of a video's sound, or why they do not; None where it has none."""
    if sound is None:
        audio = next((stream for stream in media.side_streams if stream.kind == "audio"), None)
        if audio is None:
            return None
        sound = Sound(audio.codec, audio.index, reason=NOT_INDEXED)
    silence = sound.reason
    return {
        "codec": sound.codec,
        "stream": sound.stream_index if sound.stream_index >= 0 else None,
        "sample_rate": sound.sample_rate or None,
        "channels": sound.channels or None,
        "packets": sound.packets,
        "seconds": float((sound.end_pts - sound.first_pts) * sound.time_base),
        "silence": silence,
        "views": {} if silence is not None else _views_of_sound(sound),
    }


def _views_of_sound(sound: Sound) -> dict[str, str]:
    """By ending of a view: whether it copies the sound or transcodes it."""
    told = {}
    for ending, container in (("mp4", "mp4"), ("mkv", "matroska")):
        codec = carried_codec(container, sound)
        if codec == sound.codec:
            told[ending] = "copied"
        else:
            told[ending] = f"transcoded from {sound.codec} to {codec}"
    return told


def info_json(
    video: LogicalVideo,
    physicals: Sequence[PhysicalVideo],
    table: FrameTable,
    sound: Sound | None,
) -> bytes:
    """The same bytes for the same state of the catalog.

    Fractions are written as text, times in seconds, sizes in bytes.
    """
    original = video.original
    rate = original.mean_rate
    content = {
        "name": video.name,
        "size": video.size,
        "digest": video.digest,
        "modified_ns": video.modified_ns,
        "created_ns": video.created_ns,
        "frames": original.frames,
        "seconds": float(original.duration),
        "rate": None if rate is None else float(rate),
        "width": original.media.display_width,
        "height": original.media.display_height,
        "media": _media(original.media),
        "damaged_frames": original.damaged_frames,
        "damaged": _ranges(original.damage),
        "groups": _groups(original, table),
        "sound": sound_record(original.media, sound),
        "stored": [_physical(physical) for physical in physicals],
        "tags": sorted(video.tags),
        "metadata": dict(video.metadata),
        "views": _VIEWS,
        "lost_in_views": _lost_in_views(original.media),
    }
    return (json.dumps(content, indent=2, sort_keys=False, default=str) + "\n").encode()


def _ranges(damage: Sequence[range] | None) -> list[list[int]] | None:
    """Null: no full decode has examined the file for damage."""
    return None if damage is None else [[part.start, part.stop] for part in damage]


def _media(media: MediaInfo) -> dict[str, Any]:
    rate, ratio = media.average_rate, media.sample_aspect_ratio
    return {
        "container": media.container,
        "codec": media.codec,
        "profile": media.profile,
        "coded_width": media.decoded_width,
        "coded_height": media.decoded_height,
        "crop": list(media.crop),
        "rotation": media.rotation,
        "mirrored": media.mirrored,
        "pixel_format": media.pixel_format,
        "bit_depth": media.bit_depth,
        "time_base": str(media.time_base),
        "average_rate": None if rate is None else str(rate),
        "variable_rate": media.variable_rate,
        "interlaced": media.interlaced,
        "sample_aspect_ratio": None if ratio is None else str(ratio),
        "color_range": media.color_range,
        "color_space": media.color_space,
        "color_primaries": media.color_primaries,
        "color_transfer": media.color_transfer,
        "side_streams": [f"{stream.kind}: {stream.codec}" for stream in media.side_streams],
        "tags": dict(sorted(media.tags.items())),
        "marks": None if media.marks is None else names_of(media.marks),
    }


def _lost_in_views(media: MediaInfo) -> dict[str, list[str]] | None:
    """The marks of pictures that whole views do not carry, by form; None: not looked for."""
    if media.marks is None:
        return None
    whole = picture_form(media, View(), "yuv420p")
    found: dict[str, list[str]] = {}
    for name, container in (("mp4", "mp4"), ("mkv", "matroska")):
        copied = marks_of_copy(media, container)
        found[f"copied {name}"] = lost_marks(media, copied, copied=True)
        encoded = marks_of_encoding(media, container, whole, steady=True)
        found[f"encoded {name}"] = lost_marks(media, encoded, copied=False)
    return found


def _groups(original: PhysicalVideo, table: FrameTable) -> dict[str, Any]:
    """Groups of pictures: how many, and how long."""
    columns = table.columns(0, table.packets)
    keys = np.flatnonzero(columns.flags & PacketFlag.KEY)
    leading = np.flatnonzero(columns.flags & PacketFlag.LEADING)
    lengths = np.diff(np.concatenate((keys, [len(columns)]))) if len(keys) else np.zeros(1)
    return {
        "count": len(keys),
        "open": len(np.unique(np.searchsorted(keys, leading))),
        "shortest": int(lengths.min()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "largest_packet": int(columns.size.max()),
        "bits_per_second": round(int(columns.size.sum()) * 8 / float(original.duration)),
    }


def _physical(physical: PhysicalVideo) -> dict[str, Any]:
    return {
        "role": physical.role.value,
        "codec": physical.media.codec,
        "size": physical.size,
        "frames": physical.frames,
        "object": physical.object_key,
        "linked": physical.link_path,
        "access": physical.access.value,
        "verified": physical.verified,
        "software": physical.software,
        "created_ns": physical.created_ns,
        "notes": list(physical.notes),
    }
