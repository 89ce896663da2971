"""``vfsd info``: everything that is known of one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import clock, facts, iso_time, local_time, print_json, print_line, shown
from vfsd.cli.records import ENTRY_FIELDS, entry_record, kind_of
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError
from vfsd.units import human_bytes

if TYPE_CHECKING:
    from vfsd.catalog import Catalog
    from vfsd.model import LogicalVideo, Node, PhysicalVideo


@define(
    "info",
    examples=["vfsd -s videos info cam1/traffic.mp4", "vfsd -s videos info cam1 --json"],
    fields={
        **ENTRY_FIELDS,
        "names": "every name of the file; more than one where it has hard links",
        "digest": "blake3 of the file, hexadecimal",
        "created": "when it became a video, ISO 8601, UTC",
        "tags": "list of words",
        "metadata": "object, as `vfsd tag --set` made it",
        "keyframes": "number of frames at which decoding can start",
        "gops": "object: count, open, and the shortest, median and longest length in frames",
        "physical_videos": "list of objects: every stored encoding, the original first",
    },
    exits=[NotFoundError],
)
@click.argument("name")
@click.pass_obj
def command(session: Session, name: str) -> None:
    """Show everything that is known of a file or directory.

    For a video: how it is coded, its frames and groups of pictures, what is stored of it, tags and
    metadata, and what was odd about it when it was indexed.  For a file that is no video: why not.
    """
    place = session.place(name)
    with session.opened(place.root) as store:
        with store.catalog.reading() as seen:
            node = seen.tree.resolve(place.name)
            names = seen.tree.paths_of(node.ino)
        video = None
        if kind_of(node) == "video":
            video = store.catalog.video(place.name)
        record = _record(store.catalog, place.name, node, names, video)
        if session.json:
            print_json(record)
            return
        lines = _plain_facts(node, record) if video is None else _facts(video, record)
        for line in facts(lines):
            print_line(line)


def _record(
    catalog: Catalog, name: str, node: Node, names: list[str], video: LogicalVideo | None
) -> dict[str, Any]:
    record = entry_record(name, node, video, node.size) | {"names": names}
    if video is None:
        missing = ("digest", "created", "tags", "metadata", "keyframes", "gops")
        return record | dict.fromkeys(missing) | {"physical_videos": []}
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
    }


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
        "coded_width": media.width,
        "coded_height": media.height,
        "rotation": media.rotation,
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


# ------------------------------------------------------------------------------------ for people


def _plain_facts(node: Node, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", shown(record["name"] or "/")
    yield "kind", record["kind"]
    if node.reason:
        yield "no video", node.reason
    if node.target is not None:
        yield "leads to", shown(node.target)
    if node.is_file:
        yield "size", human_bytes(record["size"])
    yield "modified", local_time(node.mtime_ns)


def _facts(video: LogicalVideo, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    original, media = video.original, video.original.media
    for name in record["names"]:
        yield "name", shown(name)
    yield "size", f"{human_bytes(video.size)} ({video.size} bytes)"
    yield "modified", local_time(video.modified_ns)
    yield "duration", f"{clock(original.duration)}  ({float(original.duration):.6f} s)"
    steps = "irregular steps" if media.variable_rate else f"{record['rate'] or 0:.3f} a second"
    yield "frames", f"{original.frames}, {steps}"
    yield "picture", _picture(original)
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
    for physical in record["physical_videos"]:
        yield "stored", _stored(physical)
    yield "verified", "by a full decode" if original.verified else "not yet"
    if video.tags:
        yield "tags", " ".join(sorted(video.tags))
    for key, value in sorted(video.metadata.items()):
        yield "metadata", f"{key} = {value}"
    yield "digest", f"blake3 {video.digest}"
    yield "indexed", f"{local_time(video.created_ns)} by {original.software}"
    for note in original.notes:
        yield "note", note


def _picture(physical: PhysicalVideo) -> str:
    media = physical.media
    parts = [f"{media.display_width}x{media.display_height}", media.pixel_format]
    if media.rotation:
        parts.append(f"turned by {media.rotation} degrees")
    if media.interlaced:
        parts.append("interlaced")
    if media.sample_aspect_ratio not in (None, 1):
        parts.append(f"pixels {media.sample_aspect_ratio} as wide as high")
    return ", ".join(parts)


def _stored(physical: Mapping[str, Any]) -> str:
    where = f"object {physical['object']}" if physical["object"] else f"in {physical['linked']}"
    return f"{physical['role']}, {human_bytes(physical['size'])}, {shown(where)}"
