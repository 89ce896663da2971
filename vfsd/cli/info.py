"""``vfsd info``: everything the store knows about an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.listing import CAPTURED_FIELD, ENTRY_FIELDS, entry_record, kind_of, size_of
from vfsd.cli.output import iso_time, local_time, print_facts, print_json, print_line, printable
from vfsd.cli.session import Session, matched_paths
from vfsd.core.capture_time import CaptureClock, capture_record
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.catalog import Catalog
    from vfsd.core.model import LogicalVideo, Node, PhysicalVideo
    from vfsd.storage.context import StoreContext


_CLOCKS = {
    CaptureClock.GIVEN: "as given",
    CaptureClock.NAME: "from its name",
    CaptureClock.ARRIVAL: "by the clock of its recorder",
    CaptureClock.CONTAINER: "from its container",
}
# Number of layouts in the text output.
_MOST_LAYOUTS = 3


@define(
    "info",
    examples=["vfsd -s videos info cam1/traffic.mp4", "vfsd -s videos info cam1 --json"],
    fields={
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
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def info(session: Session, names: tuple[str, ...]) -> None:
    """Show everything known about files or directories.

    A NAME is a name, or a pattern for the names of videos. An empty line separates the results.

    A video has codec, frames, GOPs, tiles, renditions, tags, metadata and notes from indexing. A
    file that is not a video, or not examined yet, has the reason.
    """
    root, paths = session.places(names)
    with session.opened_context(root) as parts:
        for number, path in enumerate(matched_paths(parts.catalog, paths)):
            if number and not session.json:
                print_line("")
            _show(session, parts, path)


def _show(session: Session, parts: StoreContext, path: str) -> None:
    with parts.catalog.reading() as seen:
        node = seen.tree.resolve(path)
        names = seen.tree.paths_of(node.ino)
    video = parts.catalog.video(path) if kind_of(node) == "video" else None
    record = info_record(parts, path, node, names, video)
    if session.json:
        print_json(record)
        return
    print_facts(_plain_facts(node, record) if video is None else _video_facts(video, record))


def _plain_facts(node: Node, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", printable(record["name"] or "/")
    yield "kind", record["kind"]
    if node.reason:
        yield ("reason" if record["kind"] == "pending" else "not a video"), node.reason
    if node.target is not None:
        yield "target", printable(node.target)
    if node.is_file:
        yield "size", human_bytes(record["size"])
    yield "modified", local_time(node.mtime_ns)


def _video_facts(video: LogicalVideo, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    original, media = video.original, video.original.media
    for name in record["names"]:
        yield "name", printable(name)
    yield "size", f"{human_bytes(video.size)} ({video.size} bytes)"
    yield "modified", local_time(video.modified_ns)
    if video.captured is not None:
        yield "recorded", f"{local_time(video.captured.ns)} ({_CLOCKS[video.captured.clock]})"
    yield "duration", f"{clock_text(original.duration)}  ({float(original.duration):.6f} s)"
    steps = "irregular steps" if media.variable_rate else f"{record['rate'] or 0:.3f} per second"
    yield "frames", f"{original.frames}, {steps}"
    yield "picture", _picture_text(original)
    yield "codec", " ".join(filter(None, (media.codec, media.profile, f"in {media.container}")))
    gops = record["gops"]
    yield (
        "GOPs",
        f"{gops['count']} of {gops['shortest']} to {gops['longest']} frames "
        f"(median {gops['median']}), {gops['open']} open, {record['keyframes']} key frames",
    )
    for stream in media.side_streams:
        language = None if stream.language == "und" else stream.language
        yield stream.kind, " ".join(filter(None, (stream.codec, language)))
    sound = record["sound"]
    if sound is not None:
        heard = f"{sound['codec']}, also in views"
        yield "sound", f"not in views: {sound['silence']}" if sound["silence"] else heard
    for physical in record["physical_videos"]:
        yield "stored", _stored_text(physical)
    if record["tiles"] is not None:
        yield "tiles", _tiles_text(record["tiles"])
    if record["replaced"] is not None:
        yield "replaced", _replaced_text(record["replaced"])
    if record["policy"] != "original=keep":
        yield "policy", record["policy"]
    for reason in record["holds"]:
        yield "held", printable(reason)
    if original.damage is None:
        yield "damaged frames", "not examined yet; run `vfsd verify`"
    else:
        count = original.damaged_frames
        yield "damaged frames", f"{count}: {_ranges_text(original.damage)}" if count else "none"
    if record["damage"] is not None:
        yield "damaged", _damage_text(record["damage"])
    if record["looked"] is not None:
        yield "scrubbed", record["looked"]
    yield "verified", "by a full decode" if original.verified else "not yet"
    if video.tags:
        yield "tags", " ".join(sorted(video.tags))
    for key, value in sorted(video.metadata.items()):
        yield "metadata", f"{key} = {value}"
    yield "digest", f"blake3 {video.digest}"
    yield "indexed", f"{local_time(video.created_ns)} by {original.software}"
    for note in original.notes:
        yield "note", note


def _picture_text(physical: PhysicalVideo) -> str:
    from vfsd.core.model import NO_CROP_MARGINS

    media = physical.media
    parts = [f"{media.display_width}x{media.display_height}", media.pixel_format]
    if media.crop != NO_CROP_MARGINS:
        parts.append(f"cropped from {media.decoded_width}x{media.decoded_height}")
    if media.mirrored:
        parts.append("mirrored")
    if media.rotation:
        parts.append(f"rotated by {media.rotation} degrees")
    if media.interlaced:
        parts.append("interlaced")
    if media.sample_aspect_ratio not in (None, 1):
        parts.append(f"pixel aspect ratio {media.sample_aspect_ratio}")
    return ", ".join(parts)


def _tiles_text(tiles: Mapping[str, Any]) -> str:
    layouts = tiles["layouts"]
    shown_layouts = ", ".join(layouts[:_MOST_LAYOUTS])
    if len(layouts) > _MOST_LAYOUTS:
        shown_layouts += f" and {len(layouts) - _MOST_LAYOUTS} more"
    text = (
        f"{tiles['share']:.0%} of the duration, {tiles['segments']} segments, "
        f"{human_bytes(tiles['bytes'])}, {' and '.join(tiles['codecs'])}, at least "
        f"{tiles['psnr']:.1f} dB, {shown_layouts}"
    )
    if tiles["retired_bytes"]:
        text += f"; {human_bytes(tiles['retired_bytes'])} kept for a rollback"
    return text


def _ranges_text(ranges: Sequence[range]) -> str:
    from vfsd.disk.checksums import ranges_text

    return ranges_text(ranges)


def _damage_text(damage: Mapping[str, Any]) -> str:
    from vfsd.disk.checksums import ranges_text

    parts = {
        key: ranges_text([range(*pair) for pair in damage[key]]) for key in ("bytes", "frames")
    }
    needed = f"; frames {parts['frames']} need them" if damage["frames"] else ""
    return f"bytes {parts['bytes']}{needed} (found {damage['found'][:10]})"


def _replaced_text(replaced: Mapping[str, Any]) -> str:
    quality = (
        ""
        if replaced["psnr"] is None
        else (f", at least {replaced['psnr']:.1f} dB against the first original")
    )
    if replaced["kept"]:
        quality += f"; only {replaced['kept']} kept its quality"
    return (
        f"{replaced['at'][:10]}, {human_bytes(replaced['bytes'])} before (BLAKE3 "
        f"{replaced['digest'][:16]}...){quality}"
    )


def _stored_text(physical: Mapping[str, Any]) -> str:
    if physical["object"]:
        where = f"object {physical['object']}"
    elif physical["linked"]:
        where = f"in {physical['linked']}"
    else:
        where = f"{physical['frames']} frames in packs"
    return f"{physical['role']}, {human_bytes(physical['size'])}, {printable(where)}"


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
