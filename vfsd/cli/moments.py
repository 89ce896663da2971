"""``vfsd moments``: labelled runs of frames of videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.labels import print_unknown_labels, source_options
from vfsd.cli.options import Span, span_value, time_value
from vfsd.cli.output import print_json, print_table, printable
from vfsd.cli.session import Session, select_videos
from vfsd.core.timebase import clock_text
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError
from vfsd.records.label_records import MOMENT_FIELDS, WINDOW_FIELDS, moment_record, window_record

if TYPE_CHECKING:
    from fractions import Fraction

    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.detections import Source
    from vfsd.core.moments import FrameRun, Moment
    from vfsd.labels.moment_files import FileMoment

FORMATS = ("csv", "activitynet", "webvtt")
"""The formats of `vfsd.labels.moment_files`, repeated here so that help need not import them."""

_SOURCE = "moments"


@define(
    "moments add",
    examples=[
        "vfsd -s videos moments add cam1/traffic.mp4 1.5-2.5 'red light' --source anna",
        "vfsd -s videos moments add cam1/traffic.mp4 0-1 queue --confidence 0.8 --json",
    ],
    fields=MOMENT_FIELDS,
    exits=[NotFoundError, OutOfRangeError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("span", metavar="A-B", type=span_value)
@click.argument("label")
@click.option(
    "--source", default=_SOURCE, show_default=True, help="The person or program that says so."
)
@click.option("--confidence", type=float, help="On the scale of the source.")
def moments_add(
    session: Session, name: str, span: Span, label: str, source: str, confidence: float | None
) -> None:
    """Label the frames that appear in seconds A to B of a video.

    The same source, label and frames again replace the confidence.
    """
    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        made = store[place.name].moments.add(span, label, source=source, confidence=confidence)
    session.report(moment_record(made), f"{_frames_text(made)} of {printable(made.video)}")


@define(
    "moments import",
    examples=[
        "vfsd -s videos moments import labels/moments.csv --source anna",
        "vfsd -s videos moments import labels/moments.vtt cam1/traffic.mp4 --source anna --merge",
    ],
    fields={
        "name": "path from the root of the store",
        "moments": "number of moments in the file",
    },
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("name", metavar="[VIDEO]", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the suffix.")
@click.option("--source", help="The source of all moments; the default is that in the file.")
@click.option("--merge", is_flag=True, help="Join moments of a label that overlap or touch.")
@click.option("--replace", is_flag=True, help="First remove the source's moments of these videos.")
def moments_import(
    session: Session,
    file: str,
    name: str | None,
    form: str | None,
    source: str | None,
    merge: bool,
    replace: bool,
) -> None:
    """Import moments from a CSV, ActivityNet or WebVTT file.

    A CSV file has the columns start, end and label, and may have path, confidence and source. Times
    are seconds or h:mm:ss. Paths are names of videos in the store; with VIDEO, all rows are of that
    video, and paths do not count. ActivityNet's names may lack the suffix of the video.

    Nothing is stored of a file with an error.
    """
    from vfsd.api.moments import import_moments
    from vfsd.labels.moment_files import format_of_file, read_moments

    place = session.place(name or "")
    rows = read_moments(Path(file).read_bytes(), format_of_file(file, form))
    with session.opened(place.root, writing=True) as store:
        by_video = _by_video(store, rows, place.name if name else None)
        counts = import_moments(by_video, source, merge=merge, replace=replace)
    for path, count in counts.items():
        session.report(
            {"name": path, "moments": count}, f"{count} moments imported into {printable(path)}"
        )


def _by_video(
    store: Store, rows: Sequence[FileMoment], name: str | None
) -> list[tuple[Video, list[FileMoment]]]:
    """The rows of a file by video. Raises `NotFoundError`, `UsageError`."""
    if name is not None:
        return [(store[name], list(rows))]
    found: dict[str, tuple[Video, list[FileMoment]]] = {}
    for row in rows:
        if row.path is None:
            raise UsageError("the file does not name its videos", hint="give the VIDEO, too")
        if row.path not in found:
            found[row.path] = (_video_of(store, row.path), [])
        found[row.path][1].append(row)
    return list(found.values())


def _video_of(store: Store, path: str) -> Video:
    """The video with a name, or the only one with that name and a suffix."""
    if path in store:
        return store[path]
    same = [name for name in store if name.rpartition(".")[0] == path]
    if len(same) != 1:
        raise NotFoundError(f"{path!r} is not in the store", hint="`vfsd ls -R` lists all files")
    return store[same[0]]


@define(
    "moments export",
    examples=[
        "vfsd -s videos moments export cam1/traffic.mp4 -o traffic.vtt",
        "vfsd -s videos moments export 'cam1/*' --label 'queue|red light' -o -",
    ],
    fields={
        "moments": "number of moments in the file",
        "videos": "number of videos with moments",
        "file": "the file, or - for stdout",
    },
    exits=[NotFoundError, ExistsError],
    unknown_labels=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("-o", "--out", metavar="OUT", required=True, help="The file; - is stdout, as CSV.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the suffix.")
@click.option("--label", metavar="LABELS", help="Moments as in `vfsd moments query`.")
@source_options("Only moments of this source.")
@replace_option("Replace an existing file.")
def moments_export(
    session: Session,
    names: tuple[str, ...],
    out: str,
    form: str | None,
    label: str | None,
    source: str | Source | None,
    replace: bool,
) -> None:
    """Export moments as a CSV, ActivityNet or WebVTT file.

    Times are rounded down to microseconds, in WebVTT to milliseconds: an import gives the same
    frames. WebVTT holds the labels of one video, without sources.
    """
    from vfsd.api.moments import find_moments
    from vfsd.api.video import context_of
    from vfsd.disk.tempfiles import atomic_file
    from vfsd.labels.moment_files import format_of_file, write_moments

    if out == "-" and session.json:
        raise UsageError("moments and JSON cannot both go to stdout", hint="name a file")
    written = format_of_file(out, form or ("csv" if out == "-" else None))
    root, paths = session.places(names)
    with session.opened(root) as store:
        unknown = store.catalog.detections.unknown_labels(label)
        videos = {path: context_of(one) for path, one in select_videos(store, paths).items()}
        found = find_moments(list(videos.values()), label, source=source)
        text = write_moments(found, written, lambda path: videos[path].snapshot().times)
    print_unknown_labels(session, unknown)
    if out == "-":
        click.echo(text, nl=False)
        return
    with atomic_file(Path(out), replace) as file:
        file.write(text.encode())
    count = len({one.video for one in found})
    session.report(
        {"moments": len(found), "videos": count, "file": out},
        f"{len(found)} moments of {count} videos written to {printable(out)}",
    )


@define(
    "moments query",
    examples=[
        "vfsd -s videos moments query cam1/traffic.mp4 'red light|queue' --span 0-60",
        "vfsd -s videos moments query 'cam1/*' 'queue & not night' --json",
    ],
    fields=MOMENT_FIELDS,
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
    unknown_labels=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("expression", metavar="[LABELS]", required=False)
@click.option("--span", metavar="A-B", type=span_value, help="Only those that overlap this time.")
@source_options("Only moments of this source.")
@click.option("--min-confidence", type=float, help="Minimum confidence.")
def moments_query(
    session: Session,
    name: str,
    expression: str | None,
    span: Span | None,
    source: str | Source | None,
    min_confidence: float | None,
) -> None:
    """Find moments of videos, by time.

    VIDEO is a name or a pattern in quotes. LABELS is as in `vfsd labels query`; `a & b` are moments
    whose frames have both labels. A line has name, time, frames, label and source.
    """
    from vfsd.api.moments import find_moments
    from vfsd.api.video import context_of

    root, paths = session.places([name])
    with session.opened(root) as store:
        unknown = store.catalog.detections.unknown_labels(expression)
        videos = [context_of(video) for video in select_videos(store, paths).values()]
        if span is None:
            found = find_moments(videos, expression, source=source, min_confidence=min_confidence)
        else:
            found = [
                one
                for video in videos
                if span[0] < video.original.duration
                for one in find_moments(
                    [video],
                    expression,
                    frames=video.frames_in(span),
                    source=source,
                    min_confidence=min_confidence,
                )
            ]
    _print_moments(session, found)
    print_unknown_labels(session, unknown)


def _print_moments(session: Session, found: Sequence[Moment]) -> None:
    if session.json:
        for one in found:
            print_json(moment_record(one))
        return
    print_table(
        [
            (printable(one.video), *_time_cells(one), printable(one.label), one.source.name)
            for one in found
        ],
        "<<<<<",
    )
    if not found:
        session.remark("no moments found")


def _time_cells(one: FrameRun) -> tuple[str, str]:
    return (
        f"{clock_text(one.span[0])}-{clock_text(one.span[1])}",
        f"{one.frames.start}-{one.frames.stop - 1}",
    )


def _frames_text(one: Moment) -> str:
    return f"{printable(one.label)}: frames {one.frames.start}-{one.frames.stop - 1}"


@define(
    "moments ls",
    examples=[
        "vfsd -s videos moments ls cam1/traffic.mp4",
        "vfsd -s videos moments ls 'cam1/*' --json",
    ],
    fields={
        "name": "path from the root of the store",
        "label": "the label",
        "source": "name of the source",
        "moments": "number of moments",
        "frames": "number of frames in any of them",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
def moments_ls(session: Session, names: tuple[str, ...]) -> None:
    """List the labels of moments of videos, with counts.

    A VIDEO is a name or a pattern in quotes. A line has name, label, source, moments and frames.
    """
    from vfsd.api.moments import find_moments
    from vfsd.api.video import context_of
    from vfsd.core.frames import frame_ranges

    root, paths = session.places(names)
    with session.opened(root) as store:
        videos = [context_of(video) for video in select_videos(store, paths).values()]
        found = find_moments(videos)
    groups: dict[tuple[str, str, str], list[range]] = {}
    for one in found:
        groups.setdefault((one.video, one.label, one.source.name), []).append(one.frames)
    rows = []
    for (path, label, source), runs in sorted(groups.items()):
        frames = sum(map(len, frame_ranges(runs)))
        if session.json:
            print_json(
                {
                    "name": path,
                    "label": label,
                    "source": source,
                    "moments": len(runs),
                    "frames": frames,
                }
            )
        rows.append((printable(path), printable(label), source, str(len(runs)), str(frames)))
    if not session.json:
        print_table(rows, "<<<>>")
    if not rows:
        session.remark("no moments found")


@define(
    "moments rm",
    examples=[
        "vfsd -s videos moments rm cam1/traffic.mp4 --source anna",
        "vfsd -s videos moments rm 'cam1/*' --label queue --span 0-10",
    ],
    fields={
        "name": "path from the root of the store",
        "moments": "number of moments removed",
    },
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--label", "labels", metavar="WORD", multiple=True, help="Only with this label.")
@source_options("Only moments of this source.")
@click.option("--span", metavar="A-B", type=span_value, help="Only those within this time.")
@click.option("--all", "everything", is_flag=True, help="All moments of the video.")
def moments_rm(
    session: Session,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    source: str | Source | None,
    span: Span | None,
    everything: bool,
) -> None:
    """Remove moments of videos.

    A VIDEO is a name or a pattern in quotes. A moment is removed if it meets all options.
    """
    if not (labels or source or span is not None or everything):
        raise UsageError("no moments selected", hint="give --label, --source or --span, or --all")
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for path, video in select_videos(store, paths).items():
            gone = video.moments.remove(labels=list(labels) or None, when=span, source=source)
            session.report(
                {"name": path, "moments": gone}, f"{gone} moments removed from {printable(path)}"
            )


@define(
    "moments gaps",
    examples=[
        "vfsd -s videos moments gaps cam1/traffic.mp4",
        "vfsd -s videos moments gaps 'cam1/*' --seconds 5 --source anna --json",
    ],
    fields=WINDOW_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--seconds", type=time_value, default="1", show_default=True, help="Length of a window."
)
@source_options("Labels of this source; the default is any.")
def moments_gaps(
    session: Session, names: tuple[str, ...], seconds: Fraction, source: str | Source | None
) -> None:
    """List windows of videos without a moment or a box.

    Windows that the source has examined as a whole are not listed. A line has name, time and
    frames.
    """
    root, paths = session.places(names)
    with session.opened(root) as store:
        found = [
            one
            for video in select_videos(store, paths).values()
            for one in video.moments.unlabelled(seconds, source=source)
        ]
    if session.json:
        for one in found:
            print_json(window_record(one))
        return
    print_table([(printable(one.video), *_time_cells(one)) for one in found], "<<<")
    if not found:
        session.remark("all windows are labelled")
