"""``vfsd layout show`` and ``vfsd layout history``: the tiles of videos.

Layouts and regions refer to the displayed frame, and times to the first frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.options import Span, span_value, time_value
from vfsd.cli.output import (
    local_time,
    picture_path,
    print_json,
    print_line,
    print_table,
    printable,
    write_picture,
)
from vfsd.cli.session import Session, for_each, select_videos
from vfsd.core.timebase import clock_text, human_bytes, iso_time
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError
from vfsd.records.tile_records import (
    SEGMENT_FIELDS,
    SHOW_FIELDS,
    displayed_layout_of,
    layout_record,
    segment_record,
    span_of,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment


def tiles_text(segment: Segment) -> str:
    """Number of stored tiles, with the total if some are missing."""
    stored = str(len(segment.cells))
    return stored if segment.is_whole else f"{stored} of {segment.layout.count}"


RUN_HEADINGS = ("seconds", "frames", "segments", "tiles", "codec", "GOP", "size", "dB", "layout")
RUN_ALIGNMENT = "<<>><>>><"


def runs(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Consecutive segments with the same tiles and codec."""
    place = 0

    def key(pair: tuple[int, Segment]) -> tuple[object, ...]:
        return pair[0], pair[1].layout, pair[1].tiles, pair[1].profile, pair[1].gop

    numbered: list[tuple[int, Segment]] = []
    for segment in segments:
        if numbered and numbered[-1][1].end_frame != segment.first_frame:
            place += 1
        numbered.append((place, segment))
    for _, group in groupby(numbered, key):
        yield [segment for _, segment in group]


def run_cells(video: Video, run: Sequence[Segment]) -> tuple[str, ...]:
    """A line for consecutive segments, under `RUN_HEADINGS`."""
    frames = range(run[0].first_frame, run[-1].end_frame)
    start, end = span_of(video, frames)
    return (
        f"{clock_text(start)}-{clock_text(end)}",
        f"{frames.start}-{frames.stop - 1}",
        str(len(run)),
        tiles_text(run[0]),
        run[0].profile,
        str(max(segment.gop_frames for segment in run)),
        human_bytes(sum(segment.size for segment in run)),
        f"{min(segment.psnr for segment in run):.1f}",
        displayed_layout_of(video, run[0]),
    )


span_option = click.option(
    "--span", metavar="A-B", type=span_value, help="Only segments that overlap these seconds."
)


def retired_and_active(store: Store, video: Video) -> tuple[list[Segment], list[Segment]]:
    """(retired, active) segments."""
    with store.catalog.reading() as seen:
        original = video.original.id
        return seen.segments.retired(original), seen.segments.active(original)


def segments_touching(segments: Sequence[Segment], frames: range) -> list[Segment]:
    return [
        segment
        for segment in segments
        if segment.first_frame < frames.stop and frames.start < segment.end_frame
    ]


@define(
    "layout show",
    examples=[
        "vfsd -s videos layout show cam1/traffic.mp4",
        "vfsd -s videos layout show cam1/traffic.mp4 --at 1.5",
        "vfsd -s videos layout show cam1/traffic.mp4 -o tiles.png --at 1.5",
    ],
    fields=SHOW_FIELDS,
    exits=[NotFoundError, ExistsError, OutOfRangeError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@span_option
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    type=time_value,
    help="Only the tiles of the frame at this time.",
)
@click.option(
    "-o", "--out", metavar="FILE", help="Draw the tiles over a frame, into a .png or .jpg."
)
@replace_option("Replace an existing FILE.")
def layout_show(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    moment: Fraction | None,
    out: str | None,
    replace: bool,
) -> None:
    """Show the tiles of videos that reads may use.

    A VIDEO is a name or a pattern; with several videos, each has its name above its lines.
    Consecutive segments with the same layout share a line. With --at, each tile of the frame at
    that time has a line. `vfsd retile --layout-file` takes the output of --json for one video.

    The picture shows a frame of the original: the one at --at, or one from the middle of the first
    segment. It has the number, size and quality of each tile, the boxes of that frame, and faintly
    those of the other frames of the segment. Colours show how often each area of the segment was
    read (see `vfsd reads`).
    """
    if span is not None and moment is not None:
        raise UsageError("give either --span or --at, not both")
    root, paths = session.places(names)

    def show(path: str, video: Video) -> None:
        if moment is not None:
            index = video.index_at(moment)
            frames = range(index, index + 1)
        else:
            frames = video.frames_in(span)
        found = segments_touching(store.catalog.segments(video.info), frames)
        if out is not None:
            _draw_layout(
                session, store, video, found, None if moment is None else frames.start, out, replace
            )
        if session.json:
            print_json(layout_record(video, found))
        elif moment is not None:
            _print_tiles(video, found)
        elif found:
            rows = [RUN_HEADINGS, *(run_cells(video, run) for run in runs(found))]
            print_table(rows, RUN_ALIGNMENT)
        else:
            session.remark(f"{printable(path)} has no tiles there")

    with session.opened(root) as store:
        videos = select_videos(store, paths)
        if out is not None and len(videos) > 1:
            raise UsageError(
                f"-o draws the tiles of one video, got {len(videos)}",
                hint="name one video, or leave out -o",
            )
        for_each(session, videos, show)


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
        print_table(rows, "><>>>")


def _draw_layout(
    session: Session,
    store: Store,
    video: Video,
    found: Sequence[Segment],
    frame: int | None,
    out: str,
    replace: bool,
) -> None:
    """Draw one segment: of several that share the frame, the newest."""
    from vfsd.api.video import context_of
    from vfsd.views.layout_facts import layout_facts
    from vfsd.views.layout_files import draw_layout

    path = picture_path(out)
    if not found:
        raise NotFoundError(
            f"{video.name} has no tiles there", hint="check `vfsd layout show`, without -o"
        )
    at = found[0].first_frame if frame is None else frame
    here = [segment for segment in found if at in segment.frames]
    segment = max(here, key=lambda one: one.created_ns)
    facts = layout_facts(
        store.catalog, video.info, context_of(video).table, segment, segment.frames, frame
    )
    write_picture(draw_layout(context_of(video).table, store.tools, facts), path, replace=replace)
    session.remark(f"frame {facts.frame} with its tiles, to {printable(out)}")


@define(
    "layout history",
    examples=["vfsd -s videos layout history cam1/traffic.mp4 --json"],
    fields={
        "name": "path from the root of the store",
        **SEGMENT_FIELDS,
        "retired": "when another layout replaced it, ISO 8601, UTC; null if reads may use it",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
def layout_history(session: Session, names: tuple[str, ...]) -> None:
    """List the present and past tiles of videos.

    A VIDEO is a name or a pattern; with several videos, each has its name above its lines.

    Retired tiles are kept for `vfsd layout rollback`, until the next change of the layout or until
    `vfsd layout drop --retired`.
    """
    from vfsd.derive import derived_data

    root, paths = session.places(names)

    def show(path: str, video: Video) -> None:
        found = derived_data.layout_history(store.parts, video.info)
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
            session.remark(f"{printable(path)} has never had tiles")
            return
        rows: list[tuple[str, ...]] = [("made", "state", *RUN_HEADINGS)]
        for run in _history_runs(found):
            state = "in use" if run[0].retired_ns is None else "retired"
            made = local_time(run[0].created_ns)
            rows.append((made, state, *run_cells(video, run)))
        print_table(rows, "<<" + RUN_ALIGNMENT)

    with session.opened(root) as store:
        for_each(session, select_videos(store, paths), show)


def _history_runs(found: Sequence[Segment]) -> list[list[Segment]]:
    """Runs of active and of retired segments, in order of creation."""
    steps: dict[tuple[int, bool], list[Segment]] = {}
    for segment in sorted(found, key=lambda one: (one.physical_id, one.first_frame)):
        steps.setdefault((segment.physical_id, segment.retired_ns is None), []).append(segment)
    in_a_row = [run for together in steps.values() for run in runs(together)]
    return sorted(in_a_row, key=lambda run: (run[0].physical_id, run[0].first_frame))
