"""``vfsd captured`` and ``vfsd timeline``: videos by the time of their recording."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.options import capture_value, moment_value, require_zone_needed
from vfsd.cli.output import Progress, print_json, print_table, printable
from vfsd.cli.session import Session, select_videos
from vfsd.core.capture_time import GAPS, NS, capture_record
from vfsd.core.recordings import TIMELINE_FIELDS, TimelineRow, timeline_rows
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import ExistsError, NotFoundError, UsageError
from vfsd.records.video_records import CAPTURED_FIELD

if TYPE_CHECKING:
    from vfsd.core.model import LogicalVideo


@define(
    "captured",
    examples=[
        "vfsd -s videos captured 'cam1/*'",
        "vfsd -s videos captured 'cam1/*' --from 2026-05-01T10:00:00Z --json",
        "vfsd -s videos captured cam1/traffic.mp4 --clear",
    ],
    fields={"name": "path from the root of the store", "captured": CAPTURED_FIELD},
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    type=capture_value,
    help="A time, container, or name:PATTERN.",
)
@click.option(
    "--zone", metavar="ZONE", help="Time zone of the names, like Europe/Zurich. The default is UTC."
)
@click.option("--clear", is_flag=True, help="Set the time to unknown.")
def captured(
    session: Session,
    names: tuple[str, ...],
    source: datetime | str | None,
    zone: str | None,
    clear: bool,
) -> None:
    """Show or set when videos were recorded.

    A NAME is a name or a pattern. SOURCE is the time of the first frame (2026-05-01T10:00:00Z, or
    without Z in the local time zone), `container` for the tags of the file, or `name:PATTERN`. A
    PATTERN has %Y (or %y), %m, %d (or %j), %H, %M, %S, %f (a fraction of a second), %s (Unix time)
    and * for other characters. If a video has no time in SOURCE, nothing changes.

    New videos have the time of their container, if it has one.
    """
    if clear and source is not None:
        raise UsageError("--from and --clear exclude each other")
    require_zone_needed(zone, source)
    changes = clear or source is not None
    root, paths = session.places(names)
    with session.opened(root, writing=changes) as store:
        found = select_videos(store, paths)
        if changes:
            store.set_captured([video.name for video in found.values()], source, zone=zone or "UTC")
        for path, video in found.items():
            info = store.catalog.video(video.name) if changes else video.info
            session.print_result(
                {"name": path, "captured": capture_record(info.captured)}, _line(info, path)
            )


def _line(video: LogicalVideo, path: str) -> str:
    when = video.captured
    text = "unknown" if when is None else f"{_second_text(when.ns)}  {when.clock}"
    return f"{printable(path)}  {text}"


@define(
    "timeline",
    examples=["vfsd -s videos timeline cam1", "vfsd -s videos timeline 'cam1/**' --gap 60 --json"],
    fields=TIMELINE_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--gap",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Shortest gap to list.",
)
def timeline(session: Session, names: tuple[str, ...], gap: float) -> None:
    """List the videos of a camera and the gaps between them.

    A NAME is a directory, a name or a pattern. Where videos overlap, the later start counts. Times
    are in the local time zone. Videos without a known time are last.
    """
    root, paths = session.places(names)
    with session.opened(root) as store:
        found = store.timeline(paths)
        rows = timeline_rows(found.recordings, gap)
    if session.json:
        for row in rows:
            print_json(row._asdict())
    else:
        print_table(map(_text_row, rows), "<<><<")


def _text_row(row: TimelineRow) -> tuple[str, ...]:
    if row.start is None or row.end is None:
        return ("unknown", "", "", "", printable(row.name or ""))
    what = "(gap)" if row.name is None else printable(row.name)
    if row.kind == "overlapped":
        what += " (overlapped)"
    seconds = clock_text(row.seconds or 0)
    return (_second_text(row.start), _second_text(row.end), seconds, row.clock or "", what)


def _second_text(ns: int) -> str:
    return datetime.fromtimestamp(ns / NS).strftime("%Y-%m-%d %H:%M:%S")


@define(
    "timeline save",
    examples=[
        "vfsd -s videos timeline save cam1 -o clip.mp4 --from 2026-05-01T10:00:01Z "
        "--to 2026-05-01T10:00:03Z",
    ],
    fields={
        "output": "the file",
        "bytes": "its size",
    },
    exits=[NotFoundError, ExistsError],
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    required=True,
    help="The file, with the ending .mp4.",
)
@click.option("--from", "first", type=moment_value, metavar="TIME", help="Default: the start.")
@click.option(
    "--to", "last", type=moment_value, metavar="TIME", help="Exclusive. Default: the end."
)
@click.option(
    "--gaps",
    type=click.Choice(GAPS),
    default="keep",
    show_default=True,
    help="keep: times in the file follow the clock; close: no time passes in a gap; raise: fail.",
)
@click.option(
    "--sound", type=click.Choice(("no", "aac", "opus")), help="No sound, or sound in that codec."
)
@click.option("--force", is_flag=True, help="Replace FILE.")
def timeline_save(
    session: Session,
    names: tuple[str, ...],
    output: Path,
    first: datetime | None,
    last: datetime | None,
    gaps: str,
    sound: str | None,
    force: bool,
) -> None:
    """Save a span of time as one file, across videos.

    A NAME is a directory, a name or a pattern. Packets are copied; only frames before the first key
    frame, and after the last packets that can be cut, are encoded. The videos must have one codec
    and one size. A time without Z is in the local time zone.
    """
    root, paths = session.places(names)
    with session.opened(root) as store:
        found = store.timeline(paths)
        span = (first or found.start, last or found.end)
        with Progress(f"saving {output}", None, shown=session.shows_progress):
            size = found.save(output, span=span, gaps=gaps, sound=sound, replace=force)
    session.report(
        {"output": str(output), "bytes": size}, f"{printable(str(output))}: {human_bytes(size)}"
    )
