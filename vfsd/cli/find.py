"""``vfsd find``: videos by what the catalog knows of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, iso_time, local_time, print_json, print_line, shown
from vfsd.cli.records import VIDEO_FIELDS, video_record
from vfsd.cli.session import Session
from vfsd.cli.values import a_byte_count, a_pair
from vfsd.core.timebase import clock, human_bytes

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo

_DATE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])


@define(
    "find",
    examples=[
        "vfsd -s videos find 'cam1/**' --codec h264",
        "vfsd -s videos find --tag night --min-seconds 2 --long",
        "vfsd -s videos find --meta site=gate --json",
    ],
    fields={
        "name": "path from the root of the store",
        "size": "bytes",
        "modified": "time of the last change, ISO 8601, UTC",
        **VIDEO_FIELDS,
        "tags": "list of words",
        "metadata": "object, as `vfsd tag --set` made it",
        "digest": "blake3 of the file, hexadecimal",
    },
    listing=True,
)
@click.argument("pattern", required=False)
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="Has this tag, and all others.")
@click.option(
    "--meta",
    metavar="KEY=VALUE",
    type=a_pair,
    multiple=True,
    help="Has this metadata: the same number, word or truth value.",
)
@click.option("--codec", metavar="NAME", help="Is coded so: h264, hevc, vp9 ...")
@click.option("--container", metavar="NAME", help="Is packed so: mp4, matroska, avi ...")
@click.option("--min-seconds", type=float, help="Is as long as this, or longer.")
@click.option("--max-seconds", type=float, help="Is as long as this, or shorter.")
@click.option("--min-width", type=int, help="Its displayed frame is at least as wide.")
@click.option("--max-width", type=int, help="Its displayed frame is at most as wide.")
@click.option("--min-height", type=int, help="Its displayed frame is at least as high.")
@click.option("--max-height", type=int, help="Its displayed frame is at most as high.")
@click.option(
    "--min-bytes", metavar="BYTES", type=a_byte_count, help="Its file is at least as large."
)
@click.option(
    "--max-bytes", metavar="BYTES", type=a_byte_count, help="Its file is at most as large."
)
@click.option("--since", type=_DATE, metavar="DATE", help="Last change (mtime) then or later.")
@click.option("--until", type=_DATE, metavar="DATE", help="Last change (mtime) then or earlier.")
@click.option("-l", "--long", is_flag=True, help="Say more of each video.")
@click.pass_obj
def command(
    session: Session,
    pattern: str | None,
    tags: tuple[str, ...],
    meta: tuple[tuple[str, object], ...],
    codec: str | None,
    container: str | None,
    min_seconds: float | None,
    max_seconds: float | None,
    min_width: int | None,
    max_width: int | None,
    min_height: int | None,
    max_height: int | None,
    min_bytes: int | None,
    max_bytes: int | None,
    since: datetime | None,
    until: datetime | None,
    long: bool,
) -> None:
    """Find videos, by name and by what is in them.

    PATTERN is matched with the whole path from the root of the store: `*` and `?` stop at a slash,
    `**` does not.  All options must hold.  DATE is 2026-01-31 or 2026-01-31T13:45, in your zone;
    --since and --until compare it with the time of the last change of a file (mtime), not with the
    time of recording.
    """
    from vfsd.core.model import FileState

    with session.looked_into(session.root()) as parts:
        found = parts.catalog.find(
            pattern,
            tags=frozenset(tags),
            metadata=dict(meta),
            codec=codec,
            container=container,
            bytes=(min_bytes, max_bytes),
            seconds=(min_seconds, max_seconds),
            width=(min_width, max_width),
            height=(min_height, max_height),
            modified_ns=(_unix_ns(since), _unix_ns(until)),
        )
        if session.json:
            for video in found:
                print_json(_record(video))
        elif long:
            for line in columns(map(_row, found), ">>>><<<<"):
                print_line(line)
        else:
            for name in found.names():
                print_line(shown(name))
        nothing = (
            pattern is not None
            and "/" not in pattern
            and not len(found)
            and not len(parts.catalog.find(pattern))
        )
        with parts.catalog.reading() as seen:
            waiting = len(seen.tree.files_in_state(FileState.SPOOLED))
    if nothing:
        session.remark(f"nothing is called so; `**/{pattern}` looks into all directories, too")
    if waiting:
        files = "1 file is" if waiting == 1 else f"{waiting} files are"
        session.remark(f"{files} pending: what was written lately may be videos, too")


def _record(video: LogicalVideo) -> dict[str, object]:
    return {
        "name": video.name,
        "size": video.size,
        "modified": iso_time(video.modified_ns),
        **video_record(video),
        "tags": sorted(video.tags),
        "metadata": dict(video.metadata),
        "digest": video.digest,
    }


def _row(video: LogicalVideo) -> tuple[str, ...]:
    original = video.original
    return (
        human_bytes(video.size),
        str(original.frames),
        f"{original.media.display_width}x{original.media.display_height}",
        clock(original.duration),
        original.media.codec,
        local_time(video.modified_ns),
        shown(video.name),
        " ".join(sorted(video.tags)),
    )


def _unix_ns(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp()) * 1_000_000_000
