"""``vfsd layout``: which tiles a video has, which it had, and taking them away."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define, define_group
from vfsd.cli.layoutrecords import (
    ALIGNMENT,
    HEADINGS,
    SEGMENT_FIELDS,
    SHOW_FIELDS,
    run_cells,
    runs,
    segment_record,
)
from vfsd.cli.output import columns, iso_time, local_time, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.cli.values import Span, a_span, a_time
from vfsd.errors import (
    ExistsError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    UsageError,
)
from vfsd.units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfsd.model import Segment
    from vfsd.store import Store
    from vfsd.video import Video

_SPAN = click.option("--span", metavar="A:B", type=a_span, help="Only what touches these seconds.")


# ----------------------------------------------------------------------------------------- show


@define(
    "show",
    examples=[
        "vfsd -s videos layout show cam1/traffic.mp4",
        "vfsd -s videos layout show cam1/traffic.mp4 --at 1.5",
        "vfsd -s videos layout show cam1/traffic.mp4 -o tiles.png --at 1.5",
    ],
    fields=SHOW_FIELDS,
    exits=[NotFoundError, ExistsError, OutOfRangeError],
)
@click.argument("name", metavar="VIDEO")
@_SPAN
@click.option(
    "--at", "moment", metavar="TIME", type=a_time, help="The tiles of the frame at this time."
)
@click.option(
    "-o", "--out", metavar="FILE", help="Draw the tiles over a frame: a .png or .jpg to write."
)
@click.option("--replace", is_flag=True, help="Write over a FILE that is there.")
@click.pass_obj
def show(
    session: Session,
    name: str,
    span: Span | None,
    moment: Fraction | None,
    out: str | None,
    replace: bool,
) -> None:
    """Show the tiles of a video that reads may use.

    One line for segments in a row with the same layout; with --at, a line for every tile of the
    frame that is then on the screen.  The picture has the number, size and quality of each tile
    on a frame of the original (without --at, one from the middle of the first segment).  What
    --json prints is what `vfsd retile --layout-file` takes.
    """
    if span is not None and moment is not None:
        raise UsageError("give either --span or --at, not both")
    place = session.place(name)
    with session.opened(place.root) as store:
        video = store[place.name]
        if moment is not None:
            index = video.index_at(moment)
            frames = range(index, index + 1)
        else:
            frames = video.frames_in(span)
        found = _touching(store.catalog.segments(video.info), frames)
        if out is not None:
            _draw(session, video, found, None if moment is None else frames.start, out, replace)
        if session.json:
            print_json(_shown(video, found))
        elif moment is not None:
            _print_tiles(video, found)
        elif found:
            rows = [HEADINGS, *(run_cells(video, run) for run in runs(found))]
            for line in columns(rows, ALIGNMENT):
                print_line(line)
        else:
            session.remark(f"{shown(place.name)} has no tiles there")


def _shown(video: Video, found: Sequence[Segment]) -> dict[str, Any]:
    return {
        "name": video.name,
        "width": video.width,
        "height": video.height,
        "total_frames": len(video),
        "segments": [segment_record(video, segment) for segment in found],
    }


def _print_tiles(video: Video, found: Sequence[Segment]) -> None:
    for segment in found:
        record = segment_record(video, segment)
        first, end = record["frames"]
        print_line(
            f"frames {first} to {end - 1}, {record['layout']}, {record['codec']}, "
            f"{human_bytes(segment.size)}"
        )
        rows = [("tile", "region", "size", "dB", "rate factor")]
        rows += [
            (
                str(tile["tile"]),
                tile["region"],
                human_bytes(tile["size"]),
                f"{tile['psnr']:.1f}",
                str(tile["quality"]),
            )
            for tile in record["tiles"]
        ]
        for line in columns(rows, "><>>>"):
            print_line(line)


def _draw(
    session: Session,
    video: Video,
    found: Sequence[Segment],
    frame: int | None,
    out: str,
    replace: bool,
) -> None:
    """Write the picture of one segment; of those that share the frame, the one made last."""
    from vfsd.cli.layoutpicture import write_picture

    if not found:
        raise NotFoundError(
            f"{video.name} has no tiles there", hint="see `vfsd layout show`, without -o"
        )
    if frame is None:
        frame = found[0].frames[len(found[0].frames) // 2]
    here = [segment for segment in found if frame in segment.frames]
    write_picture(video, max(here, key=lambda one: one.created_ns), frame, out, replace=replace)
    session.remark(f"frame {frame} with its tiles, to {shown(out)}")


# ----------------------------------------------------------------------------------------- diff


@define(
    "diff",
    examples=["vfsd -s videos layout diff cam1/traffic.mp4"],
    fields={
        "name": "path from the root of the store",
        "frames": "[first, end]: the frames that this is about, the end not included",
        "span": "[from, to] in seconds",
        "before": "object: layout, codec, size and psnr before the last change; null: no tiles",
        "now": "object: the same of what is there now; null: no tiles",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.pass_obj
def diff(session: Session, name: str) -> None:
    """Compare the tiles of a video with those of the step before.

    What is listed is what `vfsd layout rollback` would change, before on the left.
    """
    from vfsd.cli.layoutdiff import differences

    place = session.place(name)
    with session.opened(place.root) as store:
        video = store[place.name]
        found = differences(video, *_both(store, video))
        if session.json:
            for change in found:
                print_json(change.record(video))
            return
        rows = [change.cells(video) for change in found]
        if not rows:
            session.remark(f"{shown(place.name)} has no tiles")
        for line in columns(rows, "<<><<>>"):
            print_line(line)


def _both(store: Store, video: Video) -> tuple[list[Segment], list[Segment]]:
    """(retired, active) segments."""
    with store.catalog.reading() as seen:
        original = video.original.id
        return seen.segments.retired(original), seen.segments.active(original)


# -------------------------------------------------------------------------------------- history


@define(
    "history",
    examples=["vfsd -s videos layout history cam1/traffic.mp4 --json"],
    fields={
        "name": "path from the root of the store",
        **SEGMENT_FIELDS,
        "retired": "when another layout took its place, ISO 8601, UTC; null: reads may use it",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.pass_obj
def history(session: Session, name: str) -> None:
    """List all tiles that a video has or had, in the order of making.

    What another layout has taken the place of is kept for a step back (`vfsd layout rollback`)
    until the next one comes, or `vfsd layout drop --retired`.
    """
    from vfsd import relayout

    place = session.place(name)
    with session.opened(place.root) as store:
        video = store[place.name]
        found = relayout.history(store.parts, video.info)
        if session.json:
            for segment in found:
                retired = segment.retired_ns
                print_json(
                    {
                        "name": video.name,
                        **segment_record(video, segment),
                        "retired": None if retired is None else iso_time(retired),
                    }
                )
            return
        if not found:
            session.remark(f"{shown(place.name)} has no tiles, and had none")
            return
        rows: list[tuple[str, ...]] = [("made", "state", *HEADINGS)]
        for run in _steps(found):
            state = "in use" if run[0].retired_ns is None else "retired"
            made = local_time(run[0].created_ns)
            rows.append((made, state, *run_cells(video, run)))
        for line in columns(rows, "<<" + ALIGNMENT):
            print_line(line)


def _steps(found: Sequence[Segment]) -> list[list[Segment]]:
    """Segments of the same run of `retile` that follow each other, by when that was."""
    steps: dict[tuple[int, bool], list[Segment]] = {}
    for segment in sorted(found, key=lambda one: (one.physical_id, one.first_frame)):
        steps.setdefault((segment.physical_id, segment.retired_ns is None), []).append(segment)
    in_a_row = [run for together in steps.values() for run in runs(together)]
    return sorted(in_a_row, key=lambda run: (run[0].physical_id, run[0].first_frame))


# ------------------------------------------------------------------------------------- rollback


@define(
    "rollback",
    examples=["vfsd -s videos layout rollback cam1/traffic.mp4 --span 0:1"],
    fields={
        "name": "path from the root of the store",
        "retired": "number of segments that reads use no longer",
        "restored": "number of segments that reads use again",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@_SPAN
@click.pass_obj
def rollback(session: Session, name: str, span: Span | None) -> None:
    """Let the tiles of the step before have their place again.

    Saying it twice takes it back.  Where there was nothing before, reads decode the original.
    """
    from vfsd import relayout

    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        retired, restored = relayout.rollback(store.parts, video.info, video.frames_in(span))
    if session.json:
        print_json({"name": place.name, "retired": retired, "restored": restored})
    else:
        session.remark(
            f"{shown(place.name)}: {restored} segments are in use again, {retired} are retired"
        )


# ----------------------------------------------------------------------------------------- drop


@define(
    "drop",
    examples=[
        "vfsd -s videos layout drop cam1/traffic.mp4 --retired",
        "vfsd -s videos layout drop cam1/traffic.mp4 --span 0:1 -y",
    ],
    fields={
        "name": "path from the root of the store",
        "segments": "number of segments that were taken away",
        "bytes": "their size",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@_SPAN
@click.option("--retired", is_flag=True, help="Only what is kept for a step back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def drop(session: Session, name: str, span: Span | None, retired: bool, yes: bool) -> None:
    """Take tiles away, with their bytes.

    Reads then decode the original, which always stays.  At a terminal this asks first.
    """
    from vfsd import relayout

    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        frames = video.frames_in(span)
        old, active = _both(store, video)
        count = len(_touching(old if retired else old + active, frames))
        if count and not yes and sys.stdin.isatty():
            kind = "retired segments" if retired else "segments of tiles"
            if not click.confirm(f"drop {count} {kind} of {shown(place.name)}?", err=True):
                count = 0
        found: list[Segment] = []
        if count and retired:
            found = relayout.drop_retired(store.parts, video.info, frames)
        elif count:
            found = relayout.drop(store.parts, video.info, frames)
    size = sum(segment.size for segment in found)
    if session.json:
        print_json({"name": place.name, "segments": len(found), "bytes": size})
    else:
        session.remark(f"dropped {len(found)} segments, {human_bytes(size)}")


def _touching(segments: Sequence[Segment], frames: range) -> list[Segment]:
    return [
        segment
        for segment in segments
        if segment.first_frame < frames.stop and frames.start < segment.end_frame
    ]


command = define_group(
    "layout",
    """Show, compare and take away the tiles of a video.

    Tiles are made with `vfsd retile`.""",
    [show, diff, history, rollback, drop],
)
