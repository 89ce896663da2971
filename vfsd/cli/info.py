"""``vfsd info``: everything that is known of one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.inforecord import info_record
from vfsd.cli.output import facts, local_time, print_json, print_line, shown
from vfsd.cli.records import ENTRY_FIELDS, kind_of
from vfsd.cli.selecting import matched_paths
from vfsd.cli.session import Session
from vfsd.core.timebase import clock, human_bytes
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo, Node, PhysicalVideo
    from vfsd.storage.context import Parts

_MOST_LAYOUTS = 3
"""How many are named, for people."""


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
        "sound": "object, null without sound: codec, stream (its number in the file), "
        "sample_rate, channels, packets, seconds, and silence (why it is not in views, else null)",
        "tiles": "object, null without tiles that reads may use: segments, frames (that "
        "have tiles), share (of the time, 0 to 1), bytes, psnr (dB of the worst tile), codecs and "
        "layouts (of the displayed frame; lists, those with most frames first), and retired_bytes "
        "(kept for a step back)",
        "damaged_frames": "number of frames that show damage the file came with; null: no full "
        "decode has examined it yet (`vfsd verify` does)",
        "damaged": "those frames, list of [first, end]; null: as above",
        "policy": "what may become of the original, as `vfsd policy set` takes it; null: no video",
        "holds": "list of reasons why nobody may change or remove it",
        "replaced": "object, null where the original is as it was first written: at (ISO 8601, "
        "UTC), digest and bytes (of the file before), psnr (dB that each picture has at least "
        "against the very first original), kept (labels of what alone has kept its quality, or "
        "null)",
        "damage": "object, null where nothing is known to be damaged: found (ISO 8601, UTC), bytes "
        "and frames (lists of [first, end]: of the file, and those that need them)",
        "looked": "when all bytes were last looked at by `vfsd scrub`, ISO 8601, UTC, or null",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """Show everything known about files or directories.

    A NAME is a name, or a pattern for the names of videos.  An empty line separates the results.

    For a video: its codec, frames, groups of pictures, tiles and renditions, tags, metadata, and
    remarks from when it was indexed.  For a file that is not a video, or could not be examined yet:
    the reason.
    """
    root, paths = session.places(names)
    with session.looked_into(root) as parts:
        for number, path in enumerate(matched_paths(parts.catalog, paths)):
            if number and not session.json:
                print_line("")
            _show(session, parts, path)


def _show(session: Session, parts: Parts, path: str) -> None:
    with parts.catalog.reading() as seen:
        node = seen.tree.resolve(path)
        names = seen.tree.paths_of(node.ino)
    video = parts.catalog.video(path) if kind_of(node) == "video" else None
    record = info_record(parts, path, node, names, video)
    if session.json:
        print_json(record)
        return
    for line in facts(_plain_facts(node, record) if video is None else _facts(video, record)):
        print_line(line)


def _plain_facts(node: Node, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", shown(record["name"] or "/")
    yield "kind", record["kind"]
    if node.reason:
        yield ("reason" if record["kind"] == "pending" else "no video"), node.reason
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
    sound = record["sound"]
    if sound is not None:
        heard = f"{sound['codec']}, in views too"
        yield "sound", f"not in views: {sound['silence']}" if sound["silence"] else heard
    for physical in record["physical_videos"]:
        yield "stored", _stored(physical)
    if record["tiles"] is not None:
        yield "tiles", _tiles_text(record["tiles"])
    if record["replaced"] is not None:
        yield "replaced", _replaced_text(record["replaced"])
    if record["policy"] != "original=keep":
        yield "policy", record["policy"]
    for reason in record["holds"]:
        yield "held", shown(reason)
    if original.damage is None:
        yield "damaged frames", "not examined yet: `vfsd verify` does"
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


def _picture(physical: PhysicalVideo) -> str:
    from vfsd.core.model import NOT_CROPPED

    media = physical.media
    parts = [f"{media.display_width}x{media.display_height}", media.pixel_format]
    if media.crop != NOT_CROPPED:
        parts.append(f"cropped from {media.decoded_width}x{media.decoded_height}")
    if media.mirrored:
        parts.append("mirrored")
    if media.rotation:
        parts.append(f"turned by {media.rotation} degrees")
    if media.interlaced:
        parts.append("interlaced")
    if media.sample_aspect_ratio not in (None, 1):
        parts.append(f"pixels {media.sample_aspect_ratio} as wide as high")
    return ", ".join(parts)


def _tiles_text(tiles: Mapping[str, Any]) -> str:
    layouts = tiles["layouts"]
    shown_layouts = ", ".join(layouts[:_MOST_LAYOUTS])
    if len(layouts) > _MOST_LAYOUTS:
        shown_layouts += f" and {len(layouts) - _MOST_LAYOUTS} more"
    text = (
        f"{tiles['share']:.0%} of the time, {tiles['segments']} segments, "
        f"{human_bytes(tiles['bytes'])}, {' and '.join(tiles['codecs'])}, "
        f"at least {tiles['psnr']:.1f} dB, {shown_layouts}"
    )
    if tiles["retired_bytes"]:
        text += f"; {human_bytes(tiles['retired_bytes'])} kept for a step back"
    return text


def _ranges_text(ranges: Sequence[range]) -> str:
    from vfsd.disk.block_checksums import text

    return text(ranges)


def _damage_text(damage: Mapping[str, Any]) -> str:
    from vfsd.disk.block_checksums import text

    parts = {key: text([range(*pair) for pair in damage[key]]) for key in ("bytes", "frames")}
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
        f"{replaced['at'][:10]}, {human_bytes(replaced['bytes'])} before (blake3 "
        f"{replaced['digest'][:16]}...){quality}"
    )


def _stored(physical: Mapping[str, Any]) -> str:
    if physical["object"]:
        where = f"object {physical['object']}"
    elif physical["linked"]:
        where = f"in {physical['linked']}"
    else:
        where = f"{physical['frames']} frames in packs"
    return f"{physical['role']}, {human_bytes(physical['size'])}, {shown(where)}"
