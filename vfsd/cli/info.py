"""``vfsd info``: everything the store knows about an entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import local_time, print_facts, print_json, print_line, printable
from vfsd.cli.session import Session, matched_paths
from vfsd.core.capture_time import CaptureClock
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import NotFoundError
from vfsd.records.info_record import INFO_FIELDS, info_record
from vfsd.records.video_records import kind_of

if TYPE_CHECKING:
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
    fields=INFO_FIELDS,
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
