"""The record of ``vfsd info``: everything that a store knows about an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.capture_time import capture_record
from vfsd.core.timebase import iso_time
from vfsd.records.video_records import CAPTURED_FIELD, ENTRY_FIELDS, entry_record, size_of

if TYPE_CHECKING:
    from vfsd.catalog import Catalog
    from vfsd.core.model import LogicalVideo, Node, PhysicalVideo
    from vfsd.storage.context import StoreContext


INFO_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **ENTRY_FIELDS,
        "names": "all names of the file; more than one with hard links",
        "digest": "BLAKE3 of the file, hexadecimal",
        "created": "when it became a video, ISO 8601, UTC",
        "tags": "list of words",
        "metadata": "object, as set by `vfsd tag --set`",
        "captured": CAPTURED_FIELD,
        "keyframes": "number of frames at which decoding can start",
        "gops": "object: count, open, and the shortest, median and longest length in frames",
        "physical_videos": "list of objects: every stored encoding, the original first",
        "sound": "object, null without sound: codec, stream (its number in the file), "
        "sample_rate, channels, packets, seconds, and silence (why views have no sound, else "
        "null)",
        "tiles": "object, null without tiles for reads: segments, frames (with tiles), share (of "
        "the duration, 0 to 1), bytes, psnr (dB of the worst tile), codecs and layouts (of the "
        "displayed frame; lists, most frames first), and retired_bytes (kept for a rollback)",
        "damaged_frames": "number of frames with damage that the file had on arrival; null "
        "before the first full decode (`vfsd verify`)",
        "damaged": "those frames, list of [first, end]; null before the first full decode",
        "policy": "policy of the original, in the syntax of `vfsd policy set`; null for other "
        "files",
        "holds": "list of the reasons of its holds",
        "replaced": "object, null for an original as first written: at (ISO 8601, UTC), digest "
        "and bytes (of the file before), psnr (minimum dB of each picture against the very first "
        "original), kept (labels of the regions that kept their quality, or null)",
        "damage": "object, null without known damage: found (ISO 8601, UTC), bytes (list of "
        "[first, end] in the file), frames (list of [first, end] that need these bytes)",
        "looked": "when `vfsd scrub` last checked all bytes, ISO 8601, UTC, or null",
    }
)


def info_record(
    parts: StoreContext, name: str, node: Node, names: list[str], video: LogicalVideo | None
) -> dict[str, Any]:
    """All fields of `vfsd info`; those of videos are null or empty if `video` is None."""
    catalog = parts.catalog
    record = entry_record(name, node, video, size_of(parts, node)) | {"names": names}
    if parts.is_elsewhere(node):
        record["reason"] = parts.elsewhere_reason(node)
    if video is None:
        missing = ("digest", "created", "tags", "metadata", "captured", "keyframes", "gops")
        return (
            record
            | dict.fromkeys(missing)
            | {
                "physical_videos": [],
                "sound": None,
                "tiles": None,
                "damaged_frames": None,
                "damaged": None,
                "policy": None,
                "holds": [],
                "replaced": None,
                "damage": None,
                "looked": None,
            }
        )
    lengths, open_gops = [], 0
    for gop in catalog.gops(video.original):
        lengths.append(gop.frames)
        open_gops += gop.is_open
    lengths.sort()
    return record | {
        "digest": video.digest,
        "created": iso_time(video.created_ns),
        "tags": sorted(video.tags),
        "metadata": dict(video.metadata),
        "captured": capture_record(video.captured),
        "keyframes": len(catalog.frame_table(video.original).keyframes()),
        "gops": {
            "count": len(lengths),
            "open": open_gops,
            "shortest": lengths[0],
            "median": lengths[len(lengths) // 2],
            "longest": lengths[-1],
        },
        "physical_videos": [_physical_record(physical) for physical in catalog.physicals(video)],
        "sound": _sound_record(catalog, video),
        "tiles": _tiles_record(catalog, video),
        **_original_record(catalog, video),
        **_integrity_record(catalog, video),
    }


def _original_record(catalog: Catalog, video: LogicalVideo) -> dict[str, Any]:
    with catalog.reading() as seen:
        done = seen.retention.replacement(video.id, video.digest)
        policy = seen.retention.policy(video.ino)
        holds = seen.retention.holds(video.id)
    replaced = None
    if done is not None:
        replaced = {
            "at": iso_time(done.at_ns),
            "digest": done.digest,
            "bytes": done.size,
            "psnr": done.psnr,
            "kept": video.original.parameters.get("decayed"),
        }
    shown = video.original.damage
    return {
        "damaged_frames": video.original.damaged_frames,
        "damaged": None if shown is None else [[part.start, part.stop] for part in shown],
        "policy": str(policy),
        "holds": [hold.reason for hold in holds],
        "replaced": replaced,
    }


def _integrity_record(catalog: Catalog, video: LogicalVideo) -> dict[str, Any]:
    """Results of the last scrub of the original."""
    with catalog.reading() as seen:
        found = seen.integrity.inspection(video.original.place)
    damage = None
    if found is not None and found.damage:
        damage = {
            "found": iso_time(found.found_ns or 0),
            "bytes": [[one.start, one.stop] for one in found.damage],
            "frames": [[one.start, one.stop] for one in catalog.unreadable_frames(video)],
        }
    looked_ns = None if found is None else found.looked_ns
    return {"damage": damage, "looked": None if looked_ns is None else iso_time(looked_ns)}


def _sound_record(catalog: Catalog, video: LogicalVideo) -> dict[str, Any] | None:
    found, media = catalog.sound(video.original), video.original.media
    # The import below takes longer than all the rest of the command.
    if found is None and all(stream.kind != "audio" for stream in media.side_streams):
        return None
    from vfsd.views.info_files import audio_record

    return audio_record(media, None if found is None else found[0])


def _tiles_record(catalog: Catalog, video: LogicalVideo) -> dict[str, Any] | None:
    from vfsd.core.frames import to_display_layout

    original = video.original
    with catalog.reading() as seen:
        found = seen.segments.active(original.id)
        retired = seen.segments.retired(original.id)
    if not found:
        return None
    covered, layouts, codecs = _FrameUnion(), Counter[str](), Counter[str]()
    for segment in found:
        covered.add(segment.first_frame, segment.end_frame)
        layouts[str(to_display_layout(segment.layout, original.media))] += len(segment.frames)
        codecs[segment.profile] += len(segment.frames)
    table = catalog.frame_table(original)

    def starts(frame: int) -> int:
        return table.frame_pts(frame) if frame < original.frames else original.end_pts

    ticks = sum(starts(end) - starts(first) for first, end in covered.parts)
    return {
        "segments": len(found),
        "frames": sum(end - first for first, end in covered.parts),
        "share": ticks / max(1, original.end_pts - original.first_pts),
        "bytes": sum(segment.size for segment in found),
        "psnr": min(segment.psnr for segment in found),
        "codecs": [name for name, _ in codecs.most_common()],
        "layouts": [name for name, _ in layouts.most_common()],
        "retired_bytes": sum(segment.size for segment in retired),
    }


class _FrameUnion:
    """The union of ranges that arrive in ascending order."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> None:
        if self.parts and first <= self.parts[-1][1]:
            self.parts[-1] = (self.parts[-1][0], max(end, self.parts[-1][1]))
        else:
            self.parts.append((first, end))


def _physical_record(physical: PhysicalVideo) -> dict[str, Any]:
    media = physical.media
    return {
        "id": physical.id,
        "role": physical.role.value,
        "parent": physical.parent_id,
        "object": physical.object_key,
        "linked": physical.link_path,
        "size": physical.size,
        "frames": physical.frames,
        "packets": physical.packets,
        "time_base": str(media.time_base),
        "first_pts": physical.first_pts,
        "end_pts": physical.end_pts,
        "seconds": float(physical.duration),
        "codec": media.codec,
        "profile": media.profile,
        "container": media.container,
        "coded_width": media.decoded_width,
        "coded_height": media.decoded_height,
        "crop": list(media.crop),
        "rotation": media.rotation,
        "mirrored": media.mirrored,
        "pixel_format": media.pixel_format,
        "bit_depth": media.bit_depth,
        "sample_aspect_ratio": _optional_text(media.sample_aspect_ratio),
        "color_range": media.color_range,
        "color_space": media.color_space,
        "color_primaries": media.color_primaries,
        "color_transfer": media.color_transfer,
        "interlaced": media.interlaced,
        "variable_rate": media.variable_rate,
        "edit_list": media.edit_list,
        "access": physical.access.value,
        "verified": physical.verified,
        "side_streams": [
            {
                "index": stream.index,
                "kind": stream.kind,
                "codec": stream.codec,
                "language": stream.language,
                "channels": stream.channels,
                "sample_rate": stream.sample_rate,
            }
            for stream in media.side_streams
        ],
        "tags": dict(media.tags),
        "parameters": dict(physical.parameters),
        "software": physical.software,
        "created": iso_time(physical.created_ns),
        "notes": list(physical.notes),
    }


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)
