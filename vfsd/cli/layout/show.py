"""``vfsd layout show``: which tiles a video has, as text and as a picture."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.layout.records import (
    ALIGNMENT,
    HEADINGS,
    SHOW_FIELDS,
    run_cells,
    runs,
    segment_record,
)
from vfsd.cli.layout.selecting import SPAN, touching
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.selecting import for_each, named
from vfsd.cli.session import Session
from vfsd.cli.values import Span, a_time
from vfsd.core.timebase import human_bytes
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment
    from vfsd.core.text_image import Picture

_ENDINGS = (".png", ".jpg", ".jpeg")


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
@SPAN
@click.option(
    "--at", "moment", metavar="TIME", type=a_time, help="The tiles of the frame at this time."
)
@click.option(
    "-o", "--out", metavar="FILE", help="Draw the tiles over a frame: a .png or .jpg to write."
)
@click.option(
    "-f",
    "--overwrite",
    "--replace",
    "replace",
    is_flag=True,
    help="Write over a FILE that is there.",
)
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    moment: Fraction | None,
    out: str | None,
    replace: bool,
) -> None:
    """Show the tiles of videos that reads may use.

    A VIDEO is a name or a pattern; of several, each has its name above its lines.  Segments in a
    row with the same layout share a line; with --at, each tile of the frame at that time has a
    line.  `vfsd retile --layout-file` takes the output of --json for one video.

    The picture has the number, size and quality of each tile on a frame of the original (without
    --at, one from the middle of the first segment), the boxes of that frame, faintly those of
    the segment's other frames, and in colours how often each area of the segment was read (see
    `vfsd reads`).
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
        found = touching(store.catalog.segments(video.info), frames)
        if out is not None:
            _draw(
                session, store, video, found, None if moment is None else frames.start, out, replace
            )
        if session.json:
            print_json(_shown(video, found))
        elif moment is not None:
            _print_tiles(video, found)
        elif found:
            rows = [HEADINGS, *(run_cells(video, run) for run in runs(found))]
            for line in columns(rows, ALIGNMENT):
                print_line(line)
        else:
            session.remark(f"{shown(path)} has no tiles there")

    with session.opened(root) as store:
        videos = named(store, paths)
        if out is not None and len(videos) > 1:
            raise UsageError(
                f"-o draws the tiles of one video; {len(videos)} match",
                hint="name one video, or leave out -o",
            )
        for_each(session, videos, show)


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
    store: Store,
    video: Video,
    found: Sequence[Segment],
    frame: int | None,
    out: str,
    replace: bool,
) -> None:
    """Write the picture of one segment; of those that share the frame, the one made last."""
    from vfsd.views.layout_facts import layout_facts
    from vfsd.views.layout_image import draw_layout

    if Path(out).suffix.lower() not in _ENDINGS:
        raise UsageError(
            f"the picture must be a .png or .jpg file, got {out!r}", hint="name a .png or .jpg"
        )
    if not found:
        raise NotFoundError(
            f"{video.name} has no tiles there", hint="see `vfsd layout show`, without -o"
        )
    at = found[0].first_frame if frame is None else frame
    here = [segment for segment in found if at in segment.frames]
    segment = max(here, key=lambda one: one.created_ns)
    facts = layout_facts(store.catalog, video.info, video.table, segment, segment.frames, frame)
    _write(draw_layout(video.table, store.tools, facts), Path(out), replace)
    session.remark(f"frame {facts.frame} with its tiles, to {shown(out)}")


def _write(picture: Picture, out: Path, replace: bool) -> None:
    from vfsd.codecs.encoding.stills import BEST_JPEG, jpeg, png
    from vfsd.disk.atomic_write import whole_file

    data = png(picture) if out.suffix.lower() == ".png" else jpeg(picture, quantiser=BEST_JPEG)
    with whole_file(out, replace) as file:
        file.write(data)
