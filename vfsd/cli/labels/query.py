"""``vfsd labels query``: boxes by label, time and region."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.labels.common import source_options, the_source
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.selecting import for_each, named
from vfsd.cli.session import Session
from vfsd.cli.values import Span, a_pair, a_region, a_span, frame_range, some_frames
from vfsd.core.timebase import clock
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.catalog import DetectionQuery
    from vfsd.core.detections import Detection
    from vfsd.tiling import Rect

_ROWS_AT_ONCE = 10_000


@define(
    "labels query",
    examples=[
        "vfsd -s videos labels query cam1/traffic.mp4 'car|truck' --span 0-2",
        "vfsd -s videos labels query cam1/traffic.mp4 'car & red' --region 160x120+0+0 --json",
        "vfsd -s videos labels query 'cam1/*' --min-confidence 0.5 --count",
    ],
    fields={
        "name": "path from the root of the store",
        "frame": "number of the frame, from 0",
        "seconds": "when it appears",
        "label": "what the box is labelled",
        "box": "x1, y1, x2, y2 in pixels of the displayed frame, x2 and y2 exclusive",
        "confidence": "as its source gave it, or null",
        "track": "number of the object within its source, or null",
        "source": "who found it",
        "model": "what the source ran, or empty",
        "version": "of the model, or empty",
        "attributes": "object of what else is known",
    },
    variants={"--count": {"name": "path from the root of the store", "boxes": "their number"}},
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("expression", metavar="[LABELS]", required=False)
@click.option("--span", metavar="A-B", type=a_span, help="In frames that appear in these seconds.")
@click.option(
    "--frames", "chosen", metavar="A:B:S", type=some_frames, help="In frames A to B - 1, or one."
)
@click.option("--region", metavar="WxH+X+Y", type=a_region, help="That share a part of it.")
@source_options("That this source found.")
@click.option("--min-confidence", type=float, help="With this confidence, or more.")
@click.option("--track", type=int, help="Of this track.")
@click.option(
    "--attribute", "attributes", metavar="KEY=VALUE", type=a_pair, multiple=True, help="With this."
)
@click.option("--count", "only_count", is_flag=True, help="Only say how many there are.")
@click.pass_obj
def command(
    session: Session,
    name: str,
    expression: str | None,
    span: Span | None,
    chosen: slice | None,
    region: Rect | None,
    source: str | None,
    model: str | None,
    version: str | None,
    min_confidence: float | None,
    track: int | None,
    attributes: tuple[tuple[str, object], ...],
    only_count: bool,
) -> None:
    """Find boxes of videos, by frame.

    VIDEO is a name or a pattern in quotes.  With several videos, each has its name above its boxes,
    and videos that --span or --frames lie outside of are skipped with a warning.

    LABELS is a label, several of which one has to fit (`car|truck` or `car,truck`), or several such
    that have to fit the same object (`car|truck & red`); a label with | or & or a comma in it is
    put into double quotes.
    Everything that is given must hold.  A line gives frame, time, label, box, confidence, track
    and source.
    """

    if span is not None and chosen is not None:
        raise UsageError("give either --span or --frames, not both")
    place = session.place(name)
    counts: dict[str, int] = {}

    def show(path: str, video: Video) -> None:
        found = video.detections(
            expression,
            span=span,
            frames=None if chosen is None else frame_range(chosen, len(video)),
            region=region,
            source=the_source(source, model, version),
            min_confidence=min_confidence,
            track=track,
            attributes=dict(attributes),
        )
        if only_count:
            counts[path] = len(found)
            if session.json:
                print_json({"name": path, "boxes": counts[path]})
        else:
            counts[path] = _print_boxes(session, video, found)

    with session.opened(place.root) as store:
        for_each(session, named(store, [place.name]), show, headed=not only_count)
    if only_count and not session.json:
        _print_counts(counts)
    elif not sum(counts.values()):
        quoted = shown(shlex.quote(place.name))
        session.remark(f"no boxes found: `vfsd labels ls {quoted}` lists the labels")


def _print_boxes(session: Session, video: Video, found: DetectionQuery) -> int:
    """The number of boxes."""
    rows = found.columns()
    first, base = video.original.first_pts, video.original.time_base
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        cells = []
        for one in rows.select(slice(at, at + _ROWS_AT_ONCE)):
            seconds = float((video.table.frame_pts(one.frame) - first) * base)
            if session.json:
                print_json({"name": video.name, **_record(one, seconds)})
            else:
                cells.append(_cells(one, seconds))
        for line in columns(cells, ">><<>><"):
            print_line(line)
    return len(rows)


def _print_counts(counts: Mapping[str, int]) -> None:
    """A number alone for one video; of several each with its name, and the total."""
    if len(counts) == 1:
        print_line(str(*counts.values()))
        return
    rows = [(str(count), shown(path)) for path, count in counts.items()]
    for line in columns([*rows, (str(sum(counts.values())), "total")], "><"):
        print_line(line)


def _record(one: Detection, seconds: float) -> dict[str, object]:
    assert one.source is not None
    return {
        "frame": one.frame,
        "seconds": seconds,
        "label": one.label,
        "box": list(one.box),
        "confidence": one.confidence,
        "track": one.track,
        "source": one.source.name,
        "model": one.source.model,
        "version": one.source.version,
        "attributes": dict(one.attributes),
    }


def _cells(one: Detection, seconds: float) -> tuple[str, ...]:
    return (
        str(one.frame),
        clock(seconds),
        one.label,
        " ".join(f"{edge:g}" for edge in one.box),
        "-" if one.confidence is None else f"{one.confidence:.3g}",
        "-" if one.track is None else str(one.track),
        str(one.source or ""),
    )
