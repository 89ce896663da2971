"""``vfsd reads``: the read log."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, limit_option
from vfsd.cli.output import duration_text, local_time, print_json, print_table, printable
from vfsd.cli.session import Session, select_video_list
from vfsd.errors import NotFoundError, ReadOnlyError
from vfsd.records.read_records import READ_FIELDS, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfsd.api.store import Store
    from vfsd.core.model import LoggedRead, LogicalVideo

_ALL = "all"
_HEADINGS = (
    "when",
    "by",
    "frames",
    "count",
    "region",
    "size",
    "pixels",
    "untiled",
    "predicted",
    "took",
    "from",
)
_ALIGNMENT = "<<<><<>>>><"


@define(
    "reads",
    examples=[
        "vfsd -s videos reads cam1/traffic.mp4",
        "vfsd -s videos reads all --limit 20 --json",
        "vfsd -s videos reads 'cam1/*' --clear",
    ],
    fields=READ_FIELDS,
    variants={
        "--clear": {
            "name": "path from the root of the store, or all",
            "reads": "number of reads deleted",
        }
    },
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...|all", nargs=-1, required=True)
@limit_option
@click.option("--clear", is_flag=True, help="Delete them instead.")
def reads(session: Session, names: tuple[str, ...], limit: int | None, clear: bool) -> None:
    """List the reads of videos, newest first.

    A VIDEO is a name or a pattern; `all` is the whole store.

    The log contains reads of pixels: by Python, `vfsd read`, scans, detectors and the views of a
    mount. It does not contain reads of files, or of views that copy packets. Its length is the
    setting remembered_reads.
    """
    from vfsd.validation import non_negative

    is_all = names == (_ALL,)
    root, paths = (session.root(), []) if is_all else session.places(names)
    with session.opened(root, writing=clear) as store:
        videos: list[LogicalVideo | None] = [None]
        if not is_all:
            videos = [one.info for one in select_video_list(store, paths)]
        if clear:
            for video in videos:
                _clear(session, store, video)
            return
        alone = videos[0] if len(videos) == 1 else None
        known = _names_by_id(store, videos)
        reads = (read for read in store.catalog.reads(alone) if read.video_id in known)
        found = islice(reads, None if limit is None else non_negative(limit, "limit"))
        if session.json:
            for read in found:
                print_json(read_record(known[read.video_id], read))
            return
        _print_reads(session, known, found, alone)


def _clear(session: Session, store: Store, video: LogicalVideo | None) -> None:
    count = store.catalog.forget_reads(video)
    session.report(
        {"name": _ALL if video is None else video.name, "reads": count}, f"{count} reads deleted"
    )


def _names_by_id(store: Store, videos: Sequence[LogicalVideo | None]) -> dict[int, str]:
    """Names by video id; [None] means all of the store."""
    named = [video for video in videos if video is not None]
    return {one.id: one.name for one in named or store.catalog.find()}


def _print_reads(
    session: Session, names: dict[int, str], found: Iterable[LoggedRead], video: LogicalVideo | None
) -> None:
    rows: list[tuple[str, ...]] = [_HEADINGS if video is not None else (*_HEADINGS, "video")]
    for read in found:
        cells = _read_cells(read)
        rows.append(cells if video is not None else (*cells, printable(names[read.video_id])))
    if len(rows) == 1:
        session.remark("the read log is empty")
        return
    print_table(rows, _ALIGNMENT if video is not None else _ALIGNMENT + "<")


def _read_cells(read: LoggedRead) -> tuple[str, ...]:
    from vfsd.core.label_query import format_labels

    by = read.kind if read.labels is None else f"{read.kind} {format_labels(read.labels)}"
    origin = read.source
    if read.segments:
        segments = "1 segment" if read.segments == 1 else f"{read.segments} segments"
        origin += f", {read.tiles} of {segments}"
    return (
        local_time(read.at_ns),
        printable(by),
        f"{read.first_frame}-{read.end_frame - 1}",
        str(read.frames),
        str(read.region),
        "-" if read.size is None else f"{read.size[0]}x{read.size[1]}",
        f"{read.pixels / 1e6:.2f} M",
        f"{read.untiled_pixels / 1e6:.2f} M",
        duration_text(read.predicted),
        duration_text(read.seconds),
        origin,
    )
