"""``vfsd events``: relations between tracked objects over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.labels import print_unknown_labels, save_option, source_options
from vfsd.cli.options import Span, pair_value, span_value, time_value
from vfsd.cli.output import print_json, print_table, printable
from vfsd.cli.session import Session, select_videos
from vfsd.core.timebase import clock_text
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.records.label_records import EVENT_FIELDS, UNKNOWN_FIELDS, event_record

if TYPE_CHECKING:
    from fractions import Fraction

    from vfsd.api.events import Event, EventList
    from vfsd.core.detections import Source


@define(
    "events",
    examples=[
        "vfsd -s videos events cam1/traffic.mp4 'near(a, b, 3) for 0.5s' --let a=car --let b=truck",
        "vfsd -s videos events 'cam1/*' 'inside(a, yard); not inside(a, yard)' --let a=car"
        " --region yard=160x120+0+0 --within 10 --json",
        "vfsd -s videos events 'cam1/*' 'faster(a, 2) for 1s' --let a='car|truck' --unknown",
    ],
    fields=EVENT_FIELDS,
    variants={"--unknown": UNKNOWN_FIELDS},
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
    unknown_labels=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("event", metavar="EVENT")
@click.option(
    "--let",
    "variables",
    metavar="NAME=LABELS",
    type=pair_value,
    multiple=True,
    help="The labels of a variable.",
)
@click.option(
    "--within",
    metavar="SECONDS",
    type=time_value,
    help="Maximum time from the end of a step to that of the next.",
)
@click.option(
    "--gap",
    metavar="SECONDS",
    type=time_value,
    help="Maximum pause in a condition that does not end a step; the default is 0.",
)
@click.option("--span", metavar="A-B", type=span_value, help="Search these seconds only.")
@source_options("Only boxes of this source.")
@click.option("--min-confidence", type=float, help="Minimum confidence of a box.")
@click.option(
    "--region",
    "regions",
    metavar="NAME=WxH+X+Y",
    type=pair_value,
    multiple=True,
    help="A region that the event names.",
)
@click.option(
    "--unknown", "only_unknown", is_flag=True, help="List frames that were not examined instead."
)
@save_option
def events(
    session: Session,
    name: str,
    event: str,
    variables: Sequence[tuple[str, object]],
    within: Fraction | None,
    gap: Fraction | None,
    span: Span | None,
    source: str | Source | None,
    min_confidence: float | None,
    regions: Sequence[tuple[str, object]],
    only_unknown: bool,
    save: str | None,
) -> None:
    """Find relations between tracked objects over time.

    VIDEO is a name or a pattern in quotes. EVENT has steps, joined by `;`, that follow each other:
    terms, joined by `&`, perhaps after `not`, and a minimum length, `for 2s` or `for 50f` (examined
    frames). Terms are near(a, b), near(a, b, WIDTHS), far(a, b), left_of, right_of, above, below,
    overlaps(a, b, IOU), inside(a, WxH+X+Y), inside(a, NAME), faster(a, WIDTHS-PER-SECOND) and
    slower.

    Each variable stands for one object, and --let gives its labels. Boxes need tracks, except for a
    single variable in a single step. An event with one step lasts as long as its condition. With
    several steps, the event that ends first counts, and of these the shortest; the next event of
    the same objects begins later.

    Each line has name, time, frames and tracks.
    """
    from vfsd.api.events import events as find_events

    root, paths = session.places([name])
    options: dict[str, Any] = {
        "within": within,
        "gap": gap or 0,
        "span": span,
        "source": source,
        "min_confidence": min_confidence,
        "regions": {key: str(value) for key, value in regions},
    }
    labels = {key: str(value) for key, value in variables}
    taken = sorted(labels.keys() & {*options, "predicates", "replace"})
    if taken:
        raise UsageError(f"{taken[0]} must not be the name of a variable", hint="use a, b, c")
    with session.opened(root, writing=save is not None) as store:
        if save is not None:
            given: dict[str, Any] = {**options, **labels}
            store.searches.save_events(save, event, paths, **given)
        videos = list(select_videos(store, paths).values())
        found = find_events(videos, event, labels, **options)
        if only_unknown:
            _print_unknown(session, found.unknown)
        else:
            _print_found(session, found)
        print_unknown_labels(session, found.unknown_labels)


def _print_found(session: Session, found: EventList) -> None:
    if session.json:
        for one in found:
            print_json(event_record(one))
        return
    print_table(map(event_cells, found), "<<<<")
    if not found:
        session.remark("no events found")
    if found.unknown:
        frames = sum(len(part) for parts in found.unknown.values() for part in parts)
        session.remark(
            f"{frames} frames of {len(found.unknown)} videos were not examined for all labels: "
            "--unknown lists them"
        )


def _print_unknown(session: Session, unknown: Any) -> None:
    for name, parts in unknown.items():
        ranges = [[part.start, part.stop] for part in parts]
        text = ", ".join(f"{first}-{end - 1}" for first, end in ranges)
        session.print_result({"name": name, "unknown": ranges}, f"{printable(name)}  {text}")


def event_cells(one: Event) -> tuple[str, ...]:
    first, end = one.span
    tracks = (f"{name}={'-' if track is None else track}" for name, track in one.tracks.items())
    return (
        printable(one.video),
        f"{clock_text(first)}-{clock_text(end)}",
        f"{one.frames.start}-{one.frames.stop - 1}",
        " ".join(tracks),
    )
