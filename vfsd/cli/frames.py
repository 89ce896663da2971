"""``vfsd frames``: the frame table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.options import frame_range, frame_slice
from vfsd.cli.output import print_json, print_table
from vfsd.cli.session import Session, for_each, select_records
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.core.frame_table import FrameTable
    from vfsd.core.model import LogicalVideo, PhysicalVideo

_FRAME_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "frame": "number, from 0, in display order",
        "pts": "ticks of the stream's time base, as in the file",
        "seconds": "time since the first frame",
        "duration": "seconds until the next frame",
        "key": "whether decoding can start here",
        "packet": "number of its packet, in decode order",
        "position": "byte offset of its packet",
        "size": "bytes of its packet",
    }
)
_GOP_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "gop": "number, from 0",
        "first_frame": "first frame of the GOP, in display order",
        "frames": "number of frames",
        "pts": "ticks of its first frame",
        "seconds": "time since the first frame of the video",
        "packet": "number of its first packet, in decode order",
        "packets": "number of packets",
        "position": "byte offset of its first packet",
        "size": "bytes of its packets",
        "open": "whether its leading pictures need the GOP before",
    }
)
# Lines formatted at a time.
_BLOCK = 4096


@define(
    "frames",
    examples=[
        "vfsd -s videos frames cam1/traffic.mp4 --range 0:10",
        "vfsd -s videos frames cam1/traffic.mp4 --keyframes",
        "vfsd -s videos frames cam1/traffic.mp4 --gops --json",
    ],
    fields=_FRAME_FIELDS,
    variants={"--gops": _GOP_FIELDS},
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--keyframes", is_flag=True, help="Only frames at which decoding can start.")
@click.option("--gops", is_flag=True, help="List groups of pictures instead of frames.")
@click.option(
    "--range",
    "chosen",
    metavar="A:B:S",
    type=frame_slice,
    help="Only frames A to B - 1, every S-th.",
)
def frames(
    session: Session,
    names: tuple[str, ...],
    keyframes: bool,
    gops: bool,
    chosen: slice | None,
) -> None:
    """List the frames of videos: times, key frames, bytes.

    A VIDEO is a name or a pattern. With several videos, each table has its video's name above it,
    and videos that --range lies outside of are skipped with a warning.

    Each frame has its exact time and the position of its packet in the file. With --gops, --range
    selects the groups that contain one of its frames. The columns are the keys of --json.
    """
    if keyframes and gops:
        raise UsageError("give either --keyframes or --gops, not both")
    root, paths = session.places(names)
    headings = [key for key in (_GOP_FIELDS if gops else _FRAME_FIELDS) if key != "name"]

    def show(path: str, video: LogicalVideo) -> None:
        wanted = frame_range(chosen or slice(None, None, 1), video.original.frames)
        table = store.catalog.frame_table(video.original)
        if gops:
            records = _gop_records(video.original, table, wanted)
        else:
            records = _frame_records(video.original, table, wanted, keyframes)
        if not session.json:
            _print_table(headings, records)
            return
        for record in records:
            print_json({"name": path, **record})

    with session.opened(root) as store:
        for_each(session, select_records(store, paths), show)


def _frame_records(
    original: PhysicalVideo, table: FrameTable, wanted: range, only_keys: bool
) -> Iterator[dict[str, Any]]:
    base, first_pts = original.time_base, original.first_pts
    for index in wanted:
        entry = table.frame(index)
        if only_keys and not entry.is_key:
            continue
        yield {
            "frame": index,
            "pts": entry.pts,
            "seconds": float((entry.pts - first_pts) * base),
            "duration": float(entry.duration * base),
            "key": entry.is_key,
            "packet": entry.packet,
            "position": entry.position,
            "size": entry.size,
        }


def _gop_records(
    original: PhysicalVideo, table: FrameTable, wanted: range
) -> Iterator[dict[str, Any]]:
    base, first_pts = original.time_base, original.first_pts
    for gop in table.gops():
        if not _overlaps(range(gop.first_frame, gop.first_frame + gop.frames), wanted):
            continue
        yield {
            "gop": gop.index,
            "first_frame": gop.first_frame,
            "frames": gop.frames,
            "pts": gop.first_pts,
            "seconds": float((gop.first_pts - first_pts) * base),
            "packet": gop.first_packet,
            "packets": gop.packets,
            "position": gop.position,
            "size": gop.size,
            "open": gop.is_open,
        }


def _overlaps(frames: range, wanted: range) -> bool:
    """Whether a contiguous range contains one of `wanted`."""
    first = max(frames.start, wanted.start)
    behind = -(first - wanted.start) % wanted.step
    return first + behind < min(frames.stop, wanted.stop)


def _print_table(headings: list[str], records: Iterator[dict[str, Any]]) -> None:
    """Print in blocks: a day of video has millions of frames."""
    rows = [tuple(headings)]
    for record in records:
        rows.append(tuple(_cell(record[key]) for key in headings))
        if len(rows) >= _BLOCK:
            _print_rows(rows)
            rows = []
    _print_rows(rows)


def _print_rows(rows: list[tuple[str, ...]]) -> None:
    if rows:
        print_table(rows, ">" * len(rows[0]))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "-"
    return f"{value:.6f}" if isinstance(value, float) else str(value)
