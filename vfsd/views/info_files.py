"""The files `info.json`, `frame_mappings.json` and `README.txt` below `NAME@/`: facts about the
video and its frames, and how to name its views.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from vfsd.codecs.containers.tracks import AudioTrack, side_data_names, takes_audio
from vfsd.core import view_request
from vfsd.core.capture_time import capture_record
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import LogicalVideo, MediaInfo, PhysicalVideo, Sound
from vfsd.core.timebase import clock_text
from vfsd.core.view_request import View, ViewForm, ViewSpec
from vfsd.tiling import Rect
from vfsd.views.view_input import (
    lost_side_data,
    picture_form,
    side_data_of_copy,
    side_data_of_encoding,
)

_EXAMPLE_VIEWS = "t=10-20.mp4  roi=400x300+600+300,size=200x150,fps=5.h264  frames/000123.png"
AUDIO_NOT_INDEXED = "its sound is not indexed; `vfsd verify` indexes it"
_MP4 = ViewForm("mp4")
_MILLISECONDS = 1000


def copied_audio_track(sound: Sound) -> AudioTrack:
    """Return the track of a view that copies the packets of `sound`."""
    return AudioTrack(
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


def view_audio_codec(container: str, sound: Sound, asked: str | None = None) -> str:
    """Return the codec in which an mp4 or matroska view carries indexed sound.

    The stored sound is copied unless another codec is `asked` for.  Sound that the container does
    not support is transcoded to AAC.
    """
    if asked in (None, sound.codec) and takes_audio(container, copied_audio_track(sound)):
        return sound.codec
    return asked or "aac"


def audio_record(media: MediaInfo, sound: Sound | None) -> dict[str, Any] | None:
    """Return the sound that views of a video carry, or why they carry none; None if it has no
    sound.
    """
    if sound is None:
        audio = next((stream for stream in media.side_streams if stream.kind == "audio"), None)
        if audio is None:
            return None
        sound = Sound(audio.codec, audio.index, reason=AUDIO_NOT_INDEXED)
    silence = sound.reason
    return {
        "codec": sound.codec,
        "stream": sound.stream_index if sound.stream_index >= 0 else None,
        "sample_rate": sound.sample_rate or None,
        "channels": sound.channels or None,
        "packets": sound.packets,
        "seconds": float((sound.end_pts - sound.first_pts) * sound.time_base),
        "silence": silence,
        "views": {} if silence is not None else _audio_by_view_format(sound),
    }


def _audio_by_view_format(sound: Sound) -> dict[str, str]:
    """Return, by view suffix, whether the sound is copied or transcoded."""
    found = {}
    for ending, container in (("mp4", "mp4"), ("mkv", "matroska")):
        codec = view_audio_codec(container, sound)
        if codec == sound.codec:
            found[ending] = "copied"
        else:
            found[ending] = f"transcoded from {sound.codec} to {codec}"
    return found


def info_json(
    video: LogicalVideo,
    physicals: Sequence[PhysicalVideo],
    table: FrameTable,
    sound: Sound | None,
) -> bytes:
    """Return the contents of `info.json`; the same catalog state gives the same bytes.

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
        "captured": capture_record(video.captured),
        "frames": original.frames,
        "seconds": float(original.duration),
        "rate": None if rate is None else float(rate),
        "width": original.media.display_width,
        "height": original.media.display_height,
        "media": _media_record(original.media),
        "damaged_frames": original.damaged_frames,
        "damaged": _damage_ranges(original.damage),
        "groups": _gop_record(original, table),
        "sound": audio_record(original.media, sound),
        "stored": [_encoding_record(physical) for physical in physicals],
        "tags": sorted(video.tags),
        "metadata": dict(video.metadata),
        "views": _EXAMPLE_VIEWS,
        "lost_in_views": _side_data_lost_in_views(original.media),
    }
    return (json.dumps(content, indent=2, sort_keys=False, default=str) + "\n").encode()


def frame_mappings_json(table: FrameTable) -> bytes:
    """Return the contents of `frame_mappings.json`: an entry for each displayed frame.

    `pts` and `duration` are ticks of the stream, as in the file; a duration lasts to the next
    frame.  Readers that take the output of ``ffprobe -show_frames`` take this as well.
    """
    pts = table.pts_of(np.arange(len(table), dtype=np.int64))
    durations = np.diff(pts, append=table.end_pts)
    is_key = np.zeros(len(pts), np.int64)
    is_key[table.keyframes()] = 1
    columns = zip(pts.tolist(), durations.tolist(), is_key.tolist(), strict=True)
    # Written by hand: json.dumps takes four times as long, and a video may have a million frames.
    entries = ",\n".join(
        f'{{"pts": {start}, "duration": {length}, "key_frame": {key}}}'
        for start, length, key in columns
    )
    return f'{{"frames": [\n{entries}\n]}}\n'.encode()


def _damage_ranges(damage: Sequence[range] | None) -> list[list[int]] | None:
    """Return null if no full decode has examined the file for damage."""
    return None if damage is None else [[part.start, part.stop] for part in damage]


def _media_record(media: MediaInfo) -> dict[str, Any]:
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
        "marks": None if media.marks is None else side_data_names(media.marks),
    }


def _side_data_lost_in_views(media: MediaInfo) -> dict[str, list[str]] | None:
    """Return the side data that views of the whole video lose, by form; None if it was not
    examined.
    """
    if media.marks is None:
        return None
    whole = picture_form(media, View(), "yuv420p")
    found: dict[str, list[str]] = {}
    for name, container in (("mp4", "mp4"), ("mkv", "matroska")):
        copied = side_data_of_copy(media, container)
        found[f"copied {name}"] = lost_side_data(media, copied, copied=True)
        encoded = side_data_of_encoding(media, container, whole, each_frame=True)
        found[f"encoded {name}"] = lost_side_data(media, encoded, copied=False)
    return found


def _gop_record(original: PhysicalVideo, table: FrameTable) -> dict[str, Any]:
    """Return the number and the lengths of the groups of pictures."""
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


def _encoding_record(physical: PhysicalVideo) -> dict[str, Any]:
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


def readme_text(video: LogicalVideo, table: FrameTable) -> bytes:
    """Return the contents of `README.txt`; the same catalog state gives the same bytes."""
    original = video.original
    count, media = original.frames, original.media
    size = f"{media.display_width}x{media.display_height}"
    examples = list(_examples(video, table))
    width = max(len(name) for name, _ in examples)
    lines = [
        f"Views of {video.name}",
        "",
        f"{count} frames (0 to {count - 1}) of {size} pixels, "
        f"duration {float(original.duration):.3f} s ({clock_text(original.duration)}).",
        "",
        "Open a file in this directory by its name, and vfsd makes it.  Only a few names are",
        "listed.  Examples for this video:",
        "",
        *(f"    {name:{width}}  {what}" for name, what in examples),
        "",
        "To learn how a view is made, or why it cannot be opened, read why/, its name and .txt:",
        "",
        f"    cat why/{examples[0][0]}.txt",
        "",
        (view_request.__doc__ or "").strip(),
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _examples(video: LogicalVideo, table: FrameTable) -> Iterator[tuple[str, str]]:
    """Yield (name, description) of example views."""
    original = video.original
    count, media = original.frames, original.media
    first, end = count // 4, max(count // 2, count // 4 + 1)

    def at(frame: int) -> Fraction:
        return Fraction((table.frame_pts(frame) - original.first_pts) * original.time_base)

    # Rounded outwards to milliseconds, so that the span holds a frame however short the video is.
    low = math.floor(at(first) * _MILLISECONDS)
    high = max(low + 1, math.ceil((at(end) if end < count else original.duration) * _MILLISECONDS))
    span = Fraction(low, _MILLISECONDS), Fraction(high, _MILLISECONDS)
    region = _middle_region(media.display_width, media.display_height)
    half = max(2, media.display_width // 4 * 2)

    def named(view: View, form: ViewForm = _MP4, scale: tuple[int, int] | None = None) -> str:
        return view_request.format_view_path(ViewSpec(view, form, scale))

    yield (
        named(View(span)),
        f"seconds {float(span[0]):g} to {float(span[1]):g}, with sound if there is any",
    )
    yield named(View(frames=(first, end, 1))), f"frames {first} to {end - 1}"
    yield named(View(region=region)), "a region: width x height + left + top"
    yield named(View(), scale=(half, 0)), f"scaled to a width of {half}"
    yield named(View(span, region=region, fps=Fraction(5))), "these together, at 5 frames a second"
    yield named(View(), ViewForm("mp4", "h264")), "all of it in H.264"
    yield named(View(frames=(first, end, 1)), ViewForm("y4m")), "uncompressed frames"
    yield f"frames/{first:06}.png", f"frame {first}; .jpg and .npy as well"
    yield f"explain/{named(View(span))}.json", "how a view is made, and what that costs"
    yield f"why/{named(View(span))}.txt", "the same in sentences"
    yield "layout.png", "the tiles, labels and reads over a frame"
    yield "info.json", "properties of the video"
    yield "frame_mappings.json", "times and key frames, for torchcodec"


def _middle_region(width: int, height: int) -> Rect:
    """Return a region of half the width and height, at even pixels if it is large enough."""
    left, top = width // 8 * 2, height // 8 * 2
    return Rect(left, top, left + max(1, width // 4 * 2), top + max(1, height // 4 * 2))
