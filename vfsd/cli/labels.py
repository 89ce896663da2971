"""``vfsd detect`` and ``vfsd labels``: find, query, list and remove boxes.

`labels_files` has the import and export of label files.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from vfsd.cli.command import define
from vfsd.cli.options import (
    Number,
    Span,
    frame_range,
    frame_slice,
    pair_value,
    region_value,
    span_value,
)
from vfsd.cli.output import (
    Progress,
    print_json,
    print_line,
    print_remark,
    print_table,
    printable,
)
from vfsd.cli.session import Session, for_each, select_records, select_videos
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_on
from vfsd.core.timebase import clock_text
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.records.label_records import (
    BOX_FIELDS,
    LABEL_TOTAL_FIELDS,
    LABELS_FIELDS,
    box_record,
    label_total_record,
    labels_record,
    unknown_labels_record,
)

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import BoxTotal, Detection, DetectionColumns, Source
    from vfsd.core.label_query import UnknownLabels
    from vfsd.labels.detectors import Detector, Every
    from vfsd.read.read_context import VideoContext
    from vfsd.tiling import Rect


FORMATS = ("coco", "mot", "yolo", "voc", "csv", "cvat", "label-studio")
"""The formats of `vfsd.labels`, repeated here so that help need not import them."""

_F = TypeVar("_F", bound=Callable[..., Any])


def source_options(text: str) -> Callable[[_F], _F]:
    """Add ``--source``, ``--model`` and ``--version``; the command gets them as `source`.

    A name alone selects every source of that name.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def collect(
            *args: Any, source: str | None, model: str | None, version: str | None, **values: Any
        ) -> Any:
            return function(*args, source=_selected_source(source, model, version), **values)

        for option in (
            click.option("--version", metavar="WORD", help="Version of the model."),
            click.option("--model", metavar="WORD", help="Model of the source."),
            click.option("--source", metavar="NAME", help=text),
        ):
            collect = option(collect)
        return cast(_F, collect)

    return decorate


def save_option(function: _F) -> _F:
    """``--save``."""
    text = "Keep this search, for `vfsd searches run NAME`."
    return click.option("--save", metavar="NAME", help=text)(function)


def numbering_options(function: _F) -> _F:
    """``--frame-base`` and ``--pixel-base``."""
    base = click.IntRange(0, 1)
    for option in (
        click.option(
            "--pixel-base",
            type=base,
            metavar="0|1",
            help="Number of the first pixel in the file; the default is 1 for mot and voc, else 0.",
        ),
        click.option(
            "--frame-base",
            type=base,
            metavar="0|1",
            help="Number of the first frame in the file; the default is 1 for mot and "
            "label-studio, else 0.",
        ),
    ):
        function = option(function)
    return function


def _selected_source(
    name: str | None, model: str | None, version: str | None
) -> str | Source | None:
    if name is None:
        if model or version:
            raise UsageError("--model and --version need a --source", hint="name the source, too")
        return None
    if model is None and version is None:
        return name
    from vfsd.core.detections import Source

    return Source(name, model or "", version or "")


_ROWS_AT_ONCE = 10_000


@define(
    "labels query",
    examples=[
        "vfsd -s videos labels query cam1/traffic.mp4 'car|truck' --span 0-2",
        "vfsd -s videos labels query cam1/traffic.mp4 'car & red' --region 160x120+0+0 --json",
        "vfsd -s videos labels query 'cam1/*' --min-confidence 0.5 --count",
    ],
    fields=BOX_FIELDS,
    variants={"--count": {"name": "path from the root of the store", "boxes": "number of boxes"}},
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
    unknown_labels=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("expression", metavar="[LABELS]", required=False)
@click.option(
    "--span", metavar="A-B", type=span_value, help="Only frames shown during these seconds."
)
@click.option(
    "--frames",
    "chosen",
    metavar="A:B:S",
    type=frame_slice,
    help="Only frames A to B - 1, or one frame.",
)
@click.option(
    "--region", metavar="WxH+X+Y", type=region_value, help="Only boxes that overlap this region."
)
@source_options("Only boxes of this source.")
@click.option("--min-confidence", type=float, help="Minimum confidence.")
@click.option("--track", type=int, help="Only this track.")
@click.option(
    "--attribute",
    "attributes",
    metavar="KEY=VALUE",
    type=pair_value,
    multiple=True,
    help="Only boxes with this attribute.",
)
@click.option("--count", "only_count", is_flag=True, help="Only print the number of boxes.")
@save_option
def labels_query(
    session: Session,
    name: str,
    expression: str | None,
    span: Span | None,
    chosen: slice | None,
    region: Rect | None,
    source: str | Source | None,
    min_confidence: float | None,
    track: int | None,
    attributes: tuple[tuple[str, object], ...],
    only_count: bool,
    save: str | None,
) -> None:
    """Find boxes of videos, by frame.

    VIDEO is a name or a pattern in quotes. With several videos, those with boxes have their names
    above them, and videos that --span or --frames lie outside of are skipped with a warning.

    LABELS is a label, alternatives (`car|truck` or `car,truck`), or several conditions on one
    object: `car|truck & red & not parked & lane=3`, where lane is an attribute. A label that
    contains |, &, = or a comma, or starts with not, needs double quotes. A box must meet all
    options. A line has frame, time, label, box, confidence, track and source.
    """
    from vfsd.api.store_labels import StoreDetections
    from vfsd.api.video import context_of

    if span is not None and chosen is not None:
        raise UsageError("give either --span or --frames, not both")
    if save is not None and chosen is not None:
        raise UsageError("--save takes no --frames", hint="give a --span")
    place = session.place(name)

    def frames_of(video: VideoContext) -> range:
        count = video.original.frames
        return video.frames_of_span(span) if chosen is None else frame_range(chosen, count)

    with session.opened(place.root, writing=save is not None) as store:
        unknown = store.catalog.detections.unknown_labels(expression)
        videos = select_videos(store, [place.name])
        if save is not None:
            store.searches.save_boxes(
                save,
                expression,
                place.name,
                span=span,
                region=region,
                source=source,
                min_confidence=min_confidence,
                track=track,
                attributes=dict(attributes),
            )
        kept: list[str] = []

        def keep(path: str, video: Video) -> None:
            frames_of(context_of(video))
            kept.append(path)

        for_each(session, videos, keep, headed=False)
        found = StoreDetections(
            store,
            lambda: [context_of(videos[path]) for path in kept],
            expression,
            None if span is None and chosen is None else frames_of,
            region=region,
            source=source,
            min_confidence=min_confidence,
            track=track,
            attributes=dict(attributes),
        )
        counts = dict.fromkeys(kept, 0)
        if only_count:
            counts |= {one.video or "": one.boxes for one in found.counts(["video"])}
            if session.json:
                for path, boxes in counts.items():
                    print_json({"name": path, "boxes": boxes})
        else:
            for path, rows in found.by_video():
                if len(videos) > 1 and not session.json:
                    print_line(f"{printable(path)}:")
                print_boxes(session, videos[path], rows)
                counts[path] = len(rows)
    print_unknown_labels(session, unknown)
    if only_count and not session.json:
        _print_counts(counts)
    elif not sum(counts.values()):
        quoted = printable(shlex.quote(place.name))
        session.remark(f"no boxes found: `vfsd labels ls {quoted}` lists the labels")


def print_unknown_labels(session: Session, unknown: UnknownLabels) -> None:
    """Say which labels of a query the store does not have, if any."""
    if not unknown:
        return
    if session.json:
        print_json(unknown_labels_record(unknown))
    if not session.quiet:
        print_remark(f"warning: {unknown}")


def print_boxes(session: Session, video: Video, rows: DetectionColumns) -> None:
    """Print boxes of a video: a line or a JSON object for each."""
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        part = timed_boxes(video, rows.select(slice(at, at + _ROWS_AT_ONCE)))
        if not session.json:
            print_table(starmap(_box_cells, part), ">><<>><")
            continue
        for one, seconds in part:
            print_json({"name": video.name, **box_record(one, seconds)})


def timed_boxes(video: Video, rows: DetectionColumns) -> Iterator[tuple[Detection, float]]:
    """Yield boxes, and the seconds at which their frames are shown."""
    from vfsd.api.video import context_of

    first, base = video.original.first_pts, video.original.time_base
    table = context_of(video).table
    return ((one, float((table.frame_pts(one.frame) - first) * base)) for one in rows)


def _print_counts(counts: Mapping[str, int]) -> None:
    """Print a number for one video; for several videos one line each, and the total."""
    if len(counts) == 1:
        print_line(str(*counts.values()))
        return
    rows = [(str(count), printable(path)) for path, count in counts.items()]
    print_table([*rows, (str(sum(counts.values())), "total")], "><")


def _box_cells(one: Detection, seconds: float) -> tuple[str, ...]:
    return (
        str(one.frame),
        clock_text(seconds),
        one.label,
        " ".join(f"{edge:g}" for edge in one.box),
        "-" if one.confidence is None else f"{one.confidence:.3g}",
        "-" if one.track is None else str(one.track),
        str(one.source or ""),
    )


_MOST_RANGES = 6


@define(
    "labels ls",
    examples=[
        "vfsd -s videos labels ls cam1/traffic.mp4",
        "vfsd -s videos labels ls 'cam1/*' --json",
        "vfsd -s videos labels ls --total",
    ],
    fields=LABELS_FIELDS,
    variants={"--total": LABEL_TOTAL_FIELDS},
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--total", is_flag=True, help="Numbers of boxes in all these videos together.")
def labels_ls(session: Session, names: tuple[str, ...], total: bool) -> None:
    """List the labels of videos, and frames examined.

    A NAME is a name or a pattern; the default is all videos. With several videos, each is headed by
    its name.

    A line has a label, its source, the number of boxes, of frames with boxes and of tracks, and the
    first and last such frame. Each source has its own line, and sources are never added up. A frame
    that a source has examined without a box contains nothing that this source detects.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        if total:
            _print_totals(session, store.detections(names=paths if names else None).counts())
            return
        # Neither videos nor their labels are opened: that would import the libraries of reads.
        found = (
            select_records(store, paths)
            if names
            else {one.name: one for one in store.catalog.find()}
        )
        for path, video in found.items():
            record = labels_record(store.catalog, video)
            if session.json:
                print_json({"name": path, **record})
                continue
            if len(found) > 1:
                print_line(f"{printable(path)}:")
            _print_labels(record)


def _print_totals(session: Session, totals: Sequence[BoxTotal]) -> None:
    records = [label_total_record(one) for one in totals]
    if session.json:
        for one in records:
            print_json(one)
        return
    rows = [
        (
            printable(one["label"]),
            printable(_source_text(one["source"], one["model"], one["version"])),
            f"{one['boxes']} boxes",
        )
        for one in records
    ]
    print_table(rows, "<<>")


def _print_labels(record: Mapping[str, Any]) -> None:
    rows = [
        (
            printable(one["label"]),
            printable(_source_text(one["source"], one["model"], one["version"])),
            f"{one['boxes']} boxes",
            f"{one['frames']} frames",
            f"{one['tracks']} tracks",
            f"{one['first_frame']}-{one['end_frame'] - 1}",
        )
        for one in record["labels"]
    ]
    print_table(rows, "<<>>><")
    for one in record["sources"]:
        words = _source_text(one["name"], one["model"], one["version"])
        print_line(f"{printable(words)}: {_examined_text(one['examined'])}")


def _source_text(name: str, model: str, version: str) -> str:
    return " ".join(word for word in (name, model, version) if word)


def _examined_text(examined: list[list[int]]) -> str:
    if not examined:
        return "the examined frames are not known"
    parts = [f"{start}-{stop - 1}" for start, stop in examined[:_MOST_RANGES]]
    more = len(examined) - len(parts)
    return f"examined {', '.join(parts)}{f' and {more} more ranges' if more else ''}"


@define(
    "labels rm",
    examples=[
        "vfsd -s videos labels rm cam1/traffic.mp4 --source yolo",
        "vfsd -s videos labels rm cam1/traffic.mp4 --label car --frames 0:100",
    ],
    fields={
        "name": "path from the root of the store",
        "boxes": "number of boxes removed",
    },
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--label", "labels", metavar="WORD", multiple=True, help="Only with this label.")
@source_options("Only boxes of this source.")
@click.option(
    "--frames", "chosen", metavar="A:B", type=frame_slice, help="Only in frames A to B - 1, or one."
)
@click.option("--all", "everything", is_flag=True, help="All boxes of the video.")
def labels_rm(
    session: Session,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    source: str | Source | None,
    chosen: slice | None,
    everything: bool,
) -> None:
    """Remove boxes of videos.

    A VIDEO is a name or a pattern.  A box is removed if it meets all options.  Without --label,
    the frames no longer count as examined by these sources, either.
    """
    if not (labels or source or chosen is not None or everything):
        raise UsageError("no boxes selected", hint="give --label, --source or --frames, or --all")
    if chosen is not None and chosen.step not in (None, 1):
        raise UsageError("--frames must be A:B or one number, without a step")
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        # Check the range for all videos before the first removal.
        ranges = {
            path: (video, None if chosen is None else frame_range(chosen, len(video)))
            for path, video in select_videos(store, paths).items()
        }
        for path, (video, frames) in ranges.items():
            gone = video.labels.remove(
                labels=list(labels) or None,
                frames=frames,
                source=source,
            )
            session.report(
                {"name": path, "boxes": gone}, f"{gone} boxes removed from {printable(path)}"
            )


@define(
    "detect",
    examples=[
        "vfsd -s videos detect cam1/traffic.mp4 --with motion",
        "vfsd -s videos detect cam1/traffic.mp4 --with motion --every 5 --label moving --replace",
        "vfsd -s videos detect cam1/traffic.mp4 cam1/open-gop.mkv --with motion --keyframes --json",
    ],
    fields={
        "name": "path from the root of the store",
        "source": "object: name, model and version of the detector",
        "boxes": "number of new boxes",
        "frames": "number of frames that this run examined",
        "examined": "number of frames that this source has examined in total",
    },
    variants=ORDER_VARIANTS,
    exits=[NotFoundError, OutOfRangeError, *ORDER_EXITS],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--with",
    "detector_text",
    metavar="motion|onnx:MODEL",
    required=True,
    help="motion: moving objects, for a fixed camera; onnx:MODEL: objects of a model file.",
)
@click.option("--every", metavar="N", type=click.IntRange(1), help="Only every n-th frame.")
@click.option("--keyframes", is_flag=True, help="Only frames at which decoding can start.")
@click.option("--span", metavar="A-B", type=span_value, help="Only frames in these seconds.")
@click.option(
    "--min-confidence",
    type=Number(0, 1),
    metavar="C",
    help="Minimum confidence; not for motion.",
)
@click.option("--label", metavar="WORD", help="Label for all boxes.")
@click.option(
    "--names",
    "classes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Names of the model's classes: one per line, or a data.yaml; the default is in the model.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Examine all frames again, and remove earlier boxes of the same source.",
)
@engine_options
def detect(
    session: Session,
    names: tuple[str, ...],
    detector_text: str,
    every: int | None,
    keyframes: bool,
    span: Span | None,
    min_confidence: float | None,
    label: str | None,
    classes: Path | None,
    replace: bool,
    on: str | None,
    units: Path | None,
) -> None:
    """Find objects in VIDEOs, and store their boxes.

    Boxes are stored after each group of frames, with a note that these frames are examined. Frames
    that the same detector with the same settings has examined are skipped, so after an interruption
    the same command continues.
    """
    if every is not None and keyframes:
        raise UsageError("give either --every or --keyframes, not both")
    from vfsd.labels.detectors import make_detector

    interval: Every = "key" if keyframes else every or 1
    root, paths = session.places(names)
    detector = make_detector(
        detector_text, every=interval, min_confidence=min_confidence, label=label, names=classes
    )
    with session.opened(root, writing=True) as store:
        videos = [store[path] for path in paths]
        if on is not None or units is not None:
            spec = {
                "detector": detector_text,
                "every": interval,
                "min_confidence": min_confidence,
                "label": label,
                "names": None if classes is None else str(classes.absolute()),
                "span": span,
                "replace": replace,
            }
            run_on(session, store, "detect", videos, spec, on=on, units=units)
            return
        for video in videos:
            _detect(session, video, detector, interval, span, replace)


def _detect(
    session: Session,
    video: Video,
    detector: Detector,
    every: Every,
    span: Span | None,
    replace: bool,
) -> None:
    source = detector.source
    before = 0 if replace else _examined_frames(video, source)
    with Progress(f"examining {video.name}", None, shown=session.shows_progress) as progress:
        boxes = video.labels.detect(detector, span, every, progress.reach, replace)
    examined = _examined_frames(video, source)
    # A motion detector reads more frames than it examines: count only examined ones.
    newly_examined = examined - before
    session.report(
        {
            "name": video.name,
            "source": source.record(),
            "boxes": boxes,
            "frames": newly_examined,
            "examined": examined,
        },
        f"{boxes} boxes by {source} on {newly_examined} frames of {printable(video.name)}"
        + ("" if newly_examined else ", which it had examined before"),
    )


def _examined_frames(video: Video, source: Source) -> int:
    return sum(len(one.frames) for one in video.labels.examined(source))
