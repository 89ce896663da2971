"""What is known of one entry, as ``vfsd info --json`` prints it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from vfsd.cli.output import iso_time
from vfsd.cli.records import entry_record, size_of

if TYPE_CHECKING:
    from vfsd.catalog import Catalog
    from vfsd.core.model import LogicalVideo, Node, PhysicalVideo
    from vfsd.storage.context import Parts


def info_record(
    parts: Parts, name: str, node: Node, names: list[str], video: LogicalVideo | None
) -> dict[str, Any]:
    """All fields of `vfsd info`; those of videos are null or empty where `video` is None."""
    catalog = parts.catalog
    record = entry_record(name, node, video, size_of(parts, node)) | {"names": names}
    if video is None:
        missing = ("digest", "created", "tags", "metadata", "keyframes", "gops")
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
        "keyframes": len(catalog.frame_table(video.original).keyframes()),
        "gops": {
            "count": len(lengths),
            "open": open_gops,
            "shortest": lengths[0],
            "median": lengths[len(lengths) // 2],
            "longest": lengths[-1],
        },
        "physical_videos": [_physical(physical) for physical in catalog.physicals(video)],
        "sound": _sound(catalog, video),
        "tiles": _tiles(catalog, video),
        **_of_original(catalog, video),
        **_of_bytes(catalog, video),
    }


def _of_original(catalog: Catalog, video: LogicalVideo) -> dict[str, Any]:
    with catalog.reading() as seen:
        done = seen.originals.replacement(video.id, video.digest)
        policy = seen.originals.policy(video.ino)
        holds = seen.originals.holds(video.id)
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


def _of_bytes(catalog: Catalog, video: LogicalVideo) -> dict[str, Any]:
    """What was found by looking at the bytes of the original."""
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


def _sound(catalog: Catalog, video: LogicalVideo) -> dict[str, Any] | None:
    from vfsd.views.info_json import sound_record

    found = catalog.sound(video.original)
    return sound_record(video.original.media, None if found is None else found[0])


def _tiles(catalog: Catalog, video: LogicalVideo) -> dict[str, Any] | None:
    from vfsd.core.orientation import layout_in_display

    original = video.original
    with catalog.reading() as seen:
        found = seen.segments.active(original.id)
        retired = seen.segments.retired(original.id)
    if not found:
        return None
    covered, layouts, codecs = _Stretches(), Counter[str](), Counter[str]()
    for segment in found:
        covered.add(segment.first_frame, segment.end_frame)
        layouts[str(layout_in_display(segment.layout, original.media))] += len(segment.frames)
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


class _Stretches:
    """The union of ranges that come by their first number."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> None:
        if self.parts and first <= self.parts[-1][1]:
            self.parts[-1] = (self.parts[-1][0], max(end, self.parts[-1][1]))
        else:
            self.parts.append((first, end))


def _physical(physical: PhysicalVideo) -> dict[str, Any]:
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
        "sample_aspect_ratio": _text(media.sample_aspect_ratio),
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


def _text(value: object) -> str | None:
    return None if value is None else str(value)
