"""``vfsd labels export``: boxes of the index into label files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.labels.common import FORMATS, base_options, source_options, the_source
from vfsd.cli.output import print_json, shown
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.cli.values import Span, a_span
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError

_FOLDERS = ("yolo", "voc")
_STREAMS = ("coco", "csv")


@define(
    "labels export",
    examples=[
        "vfsd -s videos labels export cam1/traffic.mp4 --format coco -o traffic.json",
        "vfsd -s videos labels export cam1/traffic.mp4 'car|truck' --format csv -o -",
    ],
    fields={
        "name": "path from the root of the store",
        "format": "as what it was written",
        "files": "number of files that were written",
        "boxes": "number of boxes in them",
        "outside": "number of boxes outside of the frame, which --clip left out",
        "lost": "list of what the format has no place for",
    },
    exits=[NotFoundError, ExistsError, OutOfRangeError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("expression", metavar="[LABELS]", required=False)
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True, help="As what.")
@click.option(
    "-o",
    "--out",
    metavar="OUT",
    required=True,
    help="A file; a folder for yolo and voc; - is stdout, for coco and csv.",
)
@source_options("Only what this source says.")
@click.option("--span", metavar="A-B", type=a_span, help="Only frames in these seconds.")
@click.option("--min-confidence", type=float, help="Only boxes with this confidence, or more.")
@click.option(
    "--clip",
    "clipped",
    is_flag=True,
    help="Cut boxes off at the edge of the frame, and leave out those outside.",
)
@base_options
@click.option("--replace", is_flag=True, help="Write over a file that is there.")
@click.pass_obj
def command(
    session: Session,
    name: str,
    expression: str | None,
    format_: str,
    out: str,
    source: str | None,
    model: str | None,
    version: str | None,
    span: Span | None,
    min_confidence: float | None,
    clipped: bool,
    frame_base: int | None,
    pixel_base: int | None,
    replace: bool,
) -> None:
    """Write the boxes of a VIDEO as a label file.

    LABELS chooses among them, as in `vfsd labels query`.  Reading the file again gives the very
    same boxes; what a format has no place for (attributes in yolo, sources in most) is reported.
    In coco, yolo and voc there is a picture or file for each frame that was examined, by whomever;
    coco tells by whom, too.  Beside a mot file a.txt lies a.labels.txt, with the names of its
    classes.
    """
    from vfsd.detections import Examined
    from vfsd.labels import WriteOptions, lost_in, write_labels
    from vfsd.tiling import common

    place = session.place(name)
    if out == "-" and format_ not in _STREAMS:
        raise UsageError(f"{format_} is several files", hint="name a file or folder with -o")
    if out == "-" and session.json:
        raise UsageError("labels and JSON cannot both go to stdout", hint="name a file")
    who = the_source(source, model, version)
    with (
        session.opened(place.root) as store,
        Progress(f"writing {out}", None, shown=session.shows_progress) as progress,
    ):
        video = store[place.name]
        rows = video.detections(
            expression,
            span=span,
            source=who,
            min_confidence=min_confidence,
        ).columns()
        inside = rows.clipped(video.width, video.height) if clipped else rows
        outside, rows = len(rows) - len(inside), inside
        examined = video.examined(who)
        if span is not None:
            within = video.frames_of_span(span)
            shared = (Examined(one.source, common(one.frames, within)) for one in examined)
            examined = [one for one in shared if one.frames]
        files = write_labels(
            format_, rows, examined, video.clip, WriteOptions(frame_base, pixel_base)
        )
        count = _write(_counted(files, progress), format_, out, replace)
    lost = lost_in(format_, rows, examined)
    if session.json:
        print_json(
            {
                "name": place.name,
                "format": format_,
                "files": count,
                "boxes": len(rows),
                "outside": outside,
                "lost": lost,
            }
        )
    else:
        session.remark(f"{len(rows)} boxes to {shown(out)}")
        if outside:
            session.remark(f"{outside} boxes that lie outside of the frame were left out")
        if lost:
            session.remark(f"{format_} has no place for {', '.join(lost)}")


Files = Iterator[tuple[str, Iterable[str]]]


def _counted(files: Files, progress: Progress) -> Files:
    def through(pieces: Iterable[str]) -> Iterator[str]:
        for piece in pieces:
            yield piece
            progress.advance()

    return ((name, through(pieces)) for name, pieces in files)


def _write(files: Files, format_: str, out: str, replace: bool) -> int:
    """Whole files or none under their names; how many."""
    if out == "-":
        for _, pieces in files:
            sys.stdout.writelines(pieces)
        return 1
    path = Path(out)
    if format_ in _FOLDERS:
        return _write_folder(files, path)
    from vfsd.labels import place_of
    from vfsd.wholefiles import whole_file

    several = [(place_of(path, format_, name), pieces) for name, pieces in files]
    # One after the other they get their names when all are written: the last first, so that
    # nobody finds boxes without the names of their classes.
    with ExitStack() as all_of_them:
        opened = [all_of_them.enter_context(whole_file(place, replace)) for place, _ in several]
        for file, (_, pieces) in zip(opened, several, strict=True):
            for piece in pieces:
                file.write(piece.encode())
    return len(several)


def _write_folder(files: Files, path: Path) -> int:
    from vfsd.wholefiles import whole_folder

    count = 0
    with whole_folder(path) as folder:
        for name, pieces in files:
            (folder / name).write_text("".join(pieces), encoding="utf-8", newline="")
            count += 1
    return count
