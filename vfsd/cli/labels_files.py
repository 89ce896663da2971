"""``vfsd labels import`` and ``vfsd labels export``: label files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.labels import (
    FORMATS,
    numbering_options,
    print_unknown_labels,
    source_options,
)
from vfsd.cli.options import Span, span_value
from vfsd.cli.output import Progress, print_json, printable
from vfsd.cli.session import Session, for_each, select_videos, single_path
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import DetectionColumns, Examined, Source
    from vfsd.labels import LabelExport, LabelFile


@define(
    "labels import",
    examples=[
        "vfsd -s videos labels import cam1/traffic.mp4 labels/traffic.csv",
        "vfsd -s videos labels import cam1/traffic.mp4 labels/traffic.csv --source yolo "
        "--model v8n --version 8.1 --examined all --replace",
    ],
    fields={
        "name": "path from the root of the store",
        "file": "path of the file",
        "format": "format of the file",
        "sources": "list of the sources of the boxes: objects of name, model, version",
        "boxes": "number of new boxes",
        "removed": "number of earlier boxes that --replace removed",
        "labels": "list of their labels",
        "skipped": "number of boxes without area, skipped by --skip-empty",
        "examined": "number of frames that the sources have examined, according to the file",
    },
    exits=[ExistsError, NotFoundError, OutOfRangeError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), help="The default is derived from FILE."
)
@source_options("Source of the boxes; the default is in the file, else the file's name.")
@click.option("--replace", is_flag=True, help="Remove earlier boxes of the same source.")
@numbering_options
@click.option(
    "--frame-from",
    type=click.Choice(("auto", "field", "name", "id", "order")),
    default="auto",
    help="Where the frame number of a picture is: in a field (coco: frame_index, frame_id), in "
    "its file name, its id (coco), or its position; auto: field or name.",
)
@click.option(
    "--names",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Names of classes: one per line, or a data.yaml.",
)
@click.option("--label", metavar="WORD", help="Label for boxes without one.")
@click.option(
    "--examined",
    type=click.Choice(("auto", "all", "none")),
    default="auto",
    help="Frames that count as examined by the sources. auto: the frames in the file (coco, "
    "yolo, voc), unless it has several sources and does not separate them.",
)
@click.option("--skip-empty", is_flag=True, help="Skip boxes without area.")
def labels_import(
    session: Session,
    name: str,
    file: Path,
    format_: str | None,
    source: str | Source | None,
    replace: bool,
    frame_base: int | None,
    pixel_base: int | None,
    frame_from: str,
    names: Path | None,
    label: str | None,
    examined: str,
    skip_empty: bool,
) -> None:
    """Import the boxes of a label file for a VIDEO.

    FILE is COCO JSON, MOT text, CSV with a header, CVAT for video XML, Label Studio JSON, or for
    YOLO and Pascal VOC the folder with a file for each frame. All boxes are imported, or none if a
    line has an error. Boxes of a source that has some in the file's frames already need --replace.
    Boxes refer to the pixels of the video, so all its encodings share them.
    """
    from vfsd.labels import LabelReadOptions, format_of, names_for, read_labels
    from vfsd.validation import no_such_file

    place = session.place(name)
    with (
        session.opened(place.root, writing=True) as store,
        Progress(f"reading {file}", None, shown=session.shows_progress) as progress,
    ):

        def report(done: int, total: int) -> None:
            progress.reach(done, max(done, total))

        video = store[single_path(store.catalog, place.name, "labels import")]
        if not file.exists():
            raise no_such_file(file)
        format_ = format_ or format_of(file)
        named = source if source is None or isinstance(source, str) else source.name
        options = LabelReadOptions(
            frame_base,
            pixel_base,
            frame_from,
            None if names is None else names_for(format_, names),
            label,
            skip_empty,
            named or file.stem,
        )
        found = read_labels(file, format_, video.labels.clip, options, on_progress=report)
        rows = _rows_with_sources(found.columns, file, source)
        sources = _file_sources(found, rows, file, source)
        examined_ranges = _examined_ranges(found, examined, sources, len(video))
        progress.label(f"storing {len(rows)} boxes")
        removed = 0
        if replace:
            removed = video.labels.replace(rows, examined_ranges, sources, on_progress=report)
        else:
            video.labels.add_new(rows, examined_ranges, on_progress=report)
    if session.json:
        print_json(
            {
                "name": video.name,
                "file": str(file),
                "format": format_,
                "sources": [one.record() for one in rows.sources],
                "boxes": len(rows),
                "removed": removed,
                "labels": sorted(set(rows.labels)),
                "skipped": found.skipped,
                "examined": len(set().union(*(one.frames for one in examined_ranges))),
            }
        )
    else:
        by = ", ".join(map(str, rows.sources))
        session.remark(f"{len(rows)} boxes{f' by {by}' if by else ''} into {printable(video.name)}")
        if removed:
            session.remark(f"{removed} earlier boxes were removed")
        if examined == "auto" and found.examined and not examined_ranges and len(sources) > 1:
            session.remark(
                f"no frame counts as examined: the file does not say which of its {len(sources)} "
                "sources examined which frames"
            )
        _warn_of_doubts(session, video, found, rows)


def _warn_of_doubts(
    session: Session, video: Video, found: LabelFile, rows: DetectionColumns
) -> None:
    outside = len(rows) - len(rows.clipped(video.width, video.height))
    if outside:
        session.remark(
            f"{outside} of them lie outside of its {video.width}x{video.height} pixels: the file "
            "may belong to another video, or to another size of this one"
        )
    if found.skipped:
        session.remark(f"{found.skipped} boxes without area were skipped")


def _rows_with_sources(
    rows: DetectionColumns, file: Path, source: str | Source | None
) -> DetectionColumns:
    """Each row with the source from the options, else its own, else one named like the file."""
    from vfsd.core.detections import source_from

    fallback = source_from(file.stem if source is None else source)
    own = [None if source is not None else rows.source_of(at) for at in range(len(rows))]
    return rows.with_sources([one or fallback for one in own])


def _file_sources(
    found: LabelFile, rows: DetectionColumns, file: Path, source: str | Source | None
) -> list[Source]:
    """The sources of a file. A file without boxes has one, too."""
    from vfsd.core.detections import source_from

    sources = [*rows.sources]
    if source is None:
        sources += [one.source for one in found.examined_by or ()]
    return list(dict.fromkeys(sources)) or [source_from(source or file.stem)]


def _examined_ranges(
    found: LabelFile, rule: str, sources: list[Source], frames: int
) -> list[Examined]:
    """The frames that each source has examined.

    If a file has several sources and does not separate their frames, no frame counts as examined.
    """
    from vfsd.core.detections import Examined

    if rule == "none":
        return []
    if rule == "all":
        return [Examined(one, range(frames)) for one in sources]
    if found.examined_by is not None:
        return [
            one if one.source in sources else Examined(sources[0], one.frames)
            for one in found.examined_by
        ]
    if len(sources) > 1:
        return []
    return [Examined(sources[0], part) for part in found.examined or ()]


_FOLDERS = ("yolo", "voc")
_STREAMS = ("coco", "csv", "cvat", "label-studio")
_SINGLE_FILES = ("coco", "label-studio")


@define(
    "labels export",
    examples=[
        "vfsd -s videos labels export cam1/traffic.mp4 --format coco -o traffic.json",
        "vfsd -s videos labels export cam1/traffic.mp4 'car|truck' --format csv -o -",
        "vfsd -s videos labels export 'cam1/*' --format coco -o cam1.json",
    ],
    fields={
        "name": "path from the root of the store",
        "format": "format of the files",
        "files": "number of files written, for all videos together",
        "boxes": "number of boxes of this video in them",
        "outside": "number of boxes outside of the frame, skipped by --clip",
        "lost": "list of values that the format cannot store",
    },
    exits=[NotFoundError, ExistsError, OutOfRangeError],
    listing=True,
    unknown_labels=True,
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
    help="A file; a folder for yolo and voc, and for several videos (except coco and "
    "label-studio); - is stdout, not for mot, yolo and voc.",
)
@source_options("Only boxes of this source.")
@click.option("--span", metavar="A-B", type=span_value, help="Only frames in these seconds.")
@click.option("--min-confidence", type=float, help="Minimum confidence.")
@click.option(
    "--clip",
    "clipped",
    is_flag=True,
    help="Clip boxes at the edge of the frame, and skip those outside.",
)
@click.option(
    "--url",
    metavar="URL",
    help="label-studio: URL of the mount, before the name of a video; the default is "
    "/data/local-files/?d= for a mount as its document root.",
)
@numbering_options
@replace_option("Replace an existing file.")
def labels_export(
    session: Session,
    name: str,
    expression: str | None,
    format_: str,
    out: str,
    source: str | Source | None,
    span: Span | None,
    min_confidence: float | None,
    clipped: bool,
    url: str | None,
    frame_base: int | None,
    pixel_base: int | None,
    replace: bool,
) -> None:
    """Export the boxes of videos to label files.

    VIDEO is a name or a pattern in quotes. For several videos, coco and label-studio make one
    file; other formats make a folder OUT with a file or folder named after each video. Videos
    that --span lies outside of are skipped with a warning.

    LABELS selects boxes, as in `vfsd labels query`. An import of the file gives the same boxes; the
    command reports values that a format cannot store (attributes in yolo, sources in most). In
    coco, yolo and voc, each examined frame has an image or file; coco has the source as well. A mot
    file a.txt comes with a.labels.txt, the names of its classes.
    """
    from vfsd.api.labels import find_boxes
    from vfsd.api.video import context_of
    from vfsd.labels import LabelExport, LabelWriteOptions, write_dataset, write_labels

    place = session.place(name)
    if out == "-" and format_ not in _STREAMS:
        raise UsageError(f"{format_} makes several files", hint="name a file or folder with -o")
    if out == "-" and session.json:
        raise UsageError("labels and JSON cannot both go to stdout", hint="name a file")
    options = LabelWriteOptions(frame_base, pixel_base, url=url)
    found: dict[str, tuple[LabelExport, int]] = {}

    def collect(path: str, video: Video) -> None:
        rows = find_boxes(
            context_of(video), expression, span=span, source=source, min_confidence=min_confidence
        ).columns()
        inside = rows.clipped(video.width, video.height) if clipped else rows
        found[path] = (
            LabelExport(inside, _examined_within(video, source, span), video.labels.clip),
            len(rows) - len(inside),
        )

    with (
        session.opened(place.root) as store,
        Progress(f"writing {out}", None, shown=session.shows_progress) as progress,
    ):
        unknown = store.catalog.detections.unknown_labels(expression)
        videos = select_videos(store, [place.name])
        if out == "-" and len(videos) > 1 and format_ not in _SINGLE_FILES:
            raise UsageError(
                f"{format_} makes a file for each video, and {len(videos)} match {place.name!r}",
                hint="name a folder with -o",
            )
        for_each(session, videos, collect, headed=False)
        if len(videos) == 1:
            ((only, _),) = found.values()
            files = write_labels(format_, only.columns, only.examined, only.clip, options)
            count = _write_files(_with_progress(files, progress), format_, out, replace)
        else:
            labelled = [one for one, _ in found.values()]
            several = write_dataset(format_, labelled, options)
            count = _write_dataset(_with_progress(several, progress), format_, out, replace)
    for path, (one, outside) in found.items():
        _report_export(session, path, format_, count, one, outside)
    print_unknown_labels(session, unknown)
    if not session.json:
        boxes = sum(len(one.columns) for one, _ in found.values())
        text = f"{boxes} boxes to {printable(out)}"
        session.remark(text if len(found) == 1 else f"{text}, of {len(found)} videos")


def _examined_within(
    video: Video, source: Source | str | None, span: Span | None
) -> list[Examined]:
    from vfsd.core.detections import Examined
    from vfsd.tiling import frame_intersection

    examined = video.labels.examined(source)
    if span is None:
        return list(examined)
    within = video.frames_in(span)
    shared = (Examined(one.source, frame_intersection(one.frames, within)) for one in examined)
    return [one for one in shared if one.frames]


def _report_export(
    session: Session, path: str, format_: str, count: int, one: LabelExport, outside: int
) -> None:
    from vfsd.labels import unsupported_content

    lost = unsupported_content(format_, one.columns, one.examined)
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
        session.remark(f"{printable(path)}: {outside} boxes outside of the frame were skipped")
    if lost:
        session.remark(f"{printable(path)}: {format_} cannot store {', '.join(lost)}")


Files = Iterator[tuple[str, Iterable[str]]]


def _with_progress(files: Files, progress: Progress) -> Files:
    def through(pieces: Iterable[str]) -> Iterator[str]:
        for piece in pieces:
            yield piece
            progress.advance()

    return ((name, through(pieces)) for name, pieces in files)


def _write_files(files: Files, format_: str, out: str, replace: bool) -> int:
    """Write whole files under their names, or none. Returns the number of files."""
    if out == "-":
        for _, pieces in files:
            sys.stdout.writelines(pieces)
        return 1
    path = Path(out)
    if format_ in _FOLDERS:
        return _write_folder(files, path)
    from vfsd.disk.tempfiles import atomic_file
    from vfsd.labels import export_path

    several = [(export_path(path, format_, name), pieces) for name, pieces in files]
    # The files get their names when all are written, the last one first.  So boxes never appear
    # without the names of their classes.
    with ExitStack() as all_of_them:
        opened = [all_of_them.enter_context(atomic_file(place, replace)) for place, _ in several]
        for file, (_, pieces) in zip(opened, several, strict=True):
            for piece in pieces:
                file.write(piece.encode())
    return len(several)


def _write_dataset(files: Files, format_: str, out: str, replace: bool) -> int:
    """Write the files of several videos: a single one, or a tree in a new folder."""
    if format_ in _SINGLE_FILES:
        return _write_files(files, format_, out, replace)
    return _write_folder(files, Path(out))


def _write_folder(files: Files, path: Path) -> int:
    from vfsd.disk.tempfiles import atomic_directory

    count = 0
    with atomic_directory(path) as folder:
        for name, pieces in files:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("".join(pieces), encoding="utf-8", newline="")
            count += 1
    return count
