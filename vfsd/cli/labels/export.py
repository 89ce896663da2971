"""``vfsd labels export``: boxes of the index into label files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.labels.common import FORMATS, base_options, source_options, the_source
from vfsd.cli.output import print_json, shown
from vfsd.cli.progress import Progress
from vfsd.cli.selecting import for_each, named
from vfsd.cli.session import Session
from vfsd.cli.values import Span, a_span
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import Examined, Source
    from vfsd.labels import Labelled

_FOLDERS = ("yolo", "voc")
_STREAMS = ("coco", "csv")


@define(
    "labels export",
    examples=[
        "vfsd -s videos labels export cam1/traffic.mp4 --format coco -o traffic.json",
        "vfsd -s videos labels export cam1/traffic.mp4 'car|truck' --format csv -o -",
        "vfsd -s videos labels export 'cam1/*' --format coco -o cam1.json",
    ],
    fields={
        "name": "path from the root of the store",
        "format": "the file format",
        "files": "number of files that were written, for all videos together",
        "boxes": "number of boxes of this video in them",
        "outside": "number of boxes outside of the frame, which --clip left out",
        "lost": "list of what the format cannot store",
    },
    exits=[NotFoundError, ExistsError, OutOfRangeError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("expression", metavar="[LABELS]", required=False)
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), required=True, help="The file format."
)
@click.option(
    "-o",
    "--out",
    metavar="OUT",
    required=True,
    help="A file; a folder for yolo and voc, and for several videos (except coco); - is stdout, "
    "for coco and csv.",
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
@click.option(
    "-f",
    "--overwrite",
    "--replace",
    "replace",
    is_flag=True,
    help="Write over a file that is there.",
)
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
    """Write the boxes of videos as label files.

    VIDEO is a name or a pattern in quotes.  Of several videos, coco makes one file with a list of
    `videos`; other formats make a folder OUT with a file or folder called after each video.  Videos
    that --span lies outside of are skipped with a warning.

    LABELS chooses among the boxes, as in `vfsd labels query`.  Importing the file
    gives the same boxes; the command reports what a format cannot store (attributes in yolo,
    sources in most).  In coco, yolo and voc, each frame that was examined has an image or file;
    coco has the source as well.  A mot file a.txt comes with a.labels.txt, the names of its
    classes.
    """
    from vfsd.labels import Labelled, WriteOptions, write_dataset, write_labels

    place = session.place(name)
    if out == "-" and format_ not in _STREAMS:
        raise UsageError(f"{format_} is several files", hint="name a file or folder with -o")
    if out == "-" and session.json:
        raise UsageError("labels and JSON cannot both go to stdout", hint="name a file")
    who = the_source(source, model, version)
    options = WriteOptions(frame_base, pixel_base)
    found: dict[str, tuple[Labelled, int]] = {}

    def collect(path: str, video: Video) -> None:
        rows = video.detections(
            expression, span=span, source=who, min_confidence=min_confidence
        ).columns()
        inside = rows.clipped(video.width, video.height) if clipped else rows
        found[path] = (
            Labelled(inside, _examined(video, who, span), video.clip),
            len(rows) - len(inside),
        )

    with (
        session.opened(place.root) as store,
        Progress(f"writing {out}", None, shown=session.shows_progress) as progress,
    ):
        videos = named(store, [place.name])
        if out == "-" and len(videos) > 1 and format_ != "coco":
            raise UsageError(
                f"{format_} is a file for each video; {len(videos)} match {place.name!r}",
                hint="name a folder with -o",
            )
        for_each(session, videos, collect, headed=False)
        if len(videos) == 1:
            ((only, _),) = found.values()
            files = write_labels(format_, only.columns, only.examined, only.clip, options)
            count = _write(_counted(files, progress), format_, out, replace)
        else:
            labelled = [one for one, _ in found.values()]
            several = write_dataset(format_, labelled, options)
            count = _write_dataset(_counted(several, progress), format_, out, replace)
    for path, (one, outside) in found.items():
        _report(session, path, format_, count, one, outside)
    if not session.json:
        boxes = sum(len(one.columns) for one, _ in found.values())
        text = f"{boxes} boxes to {shown(out)}"
        session.remark(text if len(found) == 1 else f"{text}, of {len(found)} videos")


def _examined(video: Video, who: Source | str | None, span: Span | None) -> list[Examined]:
    from vfsd.core.detections import Examined
    from vfsd.tiling import common

    examined = video.examined(who)
    if span is None:
        return list(examined)
    within = video.frames_of_span(span)
    shared = (Examined(one.source, common(one.frames, within)) for one in examined)
    return [one for one in shared if one.frames]


def _report(
    session: Session, path: str, format_: str, count: int, one: Labelled, outside: int
) -> None:
    from vfsd.labels import lost_in

    lost = lost_in(format_, one.columns, one.examined)
    if session.json:
        print_json(
            {
                "name": path,
                "format": format_,
                "files": count,
                "boxes": len(one.columns),
                "outside": outside,
                "lost": lost,
            }
        )
        return
    if outside:
        session.remark(f"{shown(path)}: {outside} boxes outside of the frame were left out")
    if lost:
        session.remark(f"{shown(path)}: {format_} cannot store {', '.join(lost)}")


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
    from vfsd.disk.atomic_write import whole_file
    from vfsd.labels import place_of

    several = [(place_of(path, format_, name), pieces) for name, pieces in files]
    # One after the other they get their names when all are written: the last first, so that
    # nobody finds boxes without the names of their classes.
    with ExitStack() as all_of_them:
        opened = [all_of_them.enter_context(whole_file(place, replace)) for place, _ in several]
        for file, (_, pieces) in zip(opened, several, strict=True):
            for piece in pieces:
                file.write(piece.encode())
    return len(several)


def _write_dataset(files: Files, format_: str, out: str, replace: bool) -> int:
    """The files of several videos: one for coco, else a tree below a new folder."""
    if format_ == "coco":
        return _write(files, format_, out, replace)
    return _write_folder(files, Path(out))


def _write_folder(files: Files, path: Path) -> int:
    from vfsd.disk.atomic_write import whole_folder

    count = 0
    with whole_folder(path) as folder:
        for name, pieces in files:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("".join(pieces), encoding="utf-8", newline="")
            count += 1
    return count
