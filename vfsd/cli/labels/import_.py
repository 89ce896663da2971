"""``vfsd labels import``: boxes of a label file into the index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.labels.common import FORMATS, base_options, source_options, the_source
from vfsd.cli.output import print_json, shown
from vfsd.cli.progress import Progress
from vfsd.cli.selecting import single_path
from vfsd.cli.session import Session
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError
from vfsd.validation import no_such_file

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import DetectionColumns, Examined, Source
    from vfsd.labels import LabelFile


@define(
    "labels import",
    examples=[
        "vfsd -s videos labels import cam1/traffic.mp4 labels/traffic.csv",
        "vfsd -s videos labels import cam1/traffic.mp4 labels/traffic.csv --source yolo "
        "--model v8n --version 8.1 --examined all --replace",
    ],
    fields={
        "name": "path from the root of the store",
        "file": "what was read",
        "format": "as what",
        "sources": "list of who has found the boxes: objects of name, model, version",
        "boxes": "number of boxes that went in",
        "removed": "number of boxes of before that --replace took out",
        "labels": "list of their labels",
        "skipped": "boxes without area that --skip-empty left out",
        "examined": "number of frames that the sources have looked at, according to the file",
    },
    exits=[ExistsError, NotFoundError, OutOfRangeError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Else as FILE looks.")
@source_options("Who found them; else what the file says, else the file's name.")
@click.option("--replace", is_flag=True, help="Take out what the same source said before.")
@base_options
@click.option(
    "--frame-from",
    type=click.Choice(("auto", "field", "name", "id", "order")),
    default="auto",
    help="How a picture tells its frame: a field (coco: frame_index, frame_id), the number in its "
    "file's name, its id (coco), or its place; auto: field or name.",
)
@click.option(
    "--names",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Names of classes: one a line, or a data.yaml.",
)
@click.option("--label", metavar="WORD", help="The label of boxes that have none.")
@click.option(
    "--examined",
    type=click.Choice(("auto", "all", "none")),
    default="auto",
    help="Which frames the sources have looked at: those that the file is about (coco, yolo, voc), "
    "if it does not leave open which of several has, all, or it is not known.",
)
@click.option("--skip-empty", is_flag=True, help="Leave boxes without area out.")
@click.pass_obj
def command(
    session: Session,
    name: str,
    file: Path,
    format_: str | None,
    source: str | None,
    model: str | None,
    version: str | None,
    replace: bool,
    frame_base: int | None,
    pixel_base: int | None,
    frame_from: str,
    names: Path | None,
    label: str | None,
    examined: str,
    skip_empty: bool,
) -> None:
    """Put the boxes of a label file into the index of a VIDEO.

    FILE is COCO JSON, MOT text, CSV with a header, or for YOLO and Pascal VOC the folder with a
    file for each frame.  Everything goes in, or, where one line of it cannot be, nothing; neither
    where the same source has said some of it before, unless --replace is given.  What the boxes
    belong to are the pixels of the video: all its encodings share them.
    """
    from vfsd.labels import ReadOptions, format_of, names_for, read_labels

    place = session.place(name)
    who = the_source(source, model, version)
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
        options = ReadOptions(
            frame_base,
            pixel_base,
            frame_from,
            None if names is None else names_for(format_, names),
            label,
            skip_empty,
            source or file.stem,
        )
        found = read_labels(file, format_, video.clip, options, on_progress=report)
        rows = _with_sources(found.columns, file, who)
        sources = _whose_word(found, rows, file, who)
        looked = _examined(found, examined, sources, len(video))
        progress.label(f"storing {len(rows)} boxes")
        removed = 0
        if replace:
            removed = video.replace_detections(rows, looked, sources, on_progress=report)
        else:
            video.add_new_detections(rows, looked, on_progress=report)
    if session.json:
        print_json(
            {
                "name": video.name,
                "file": str(file),
                "format": format_,
                "sources": [
                    {"name": one.name, "model": one.model, "version": one.version}
                    for one in rows.sources
                ],
                "boxes": len(rows),
                "removed": removed,
                "labels": sorted(set(rows.labels)),
                "skipped": found.skipped,
                "examined": len(set().union(*(one.frames for one in looked))),
            }
        )
    else:
        by = ", ".join(map(str, rows.sources))
        session.remark(f"{len(rows)} boxes{f' by {by}' if by else ''} into {shown(video.name)}")
        if removed:
            session.remark(f"{removed} boxes of before were taken out")
        if examined == "auto" and found.examined and not looked and len(sources) > 1:
            session.remark(
                f"the file does not tell which of its {len(sources)} sources has looked at which "
                "frames: none counts as examined"
            )
        _remark_on_doubts(session, video, found, rows)


def _remark_on_doubts(
    session: Session, video: Video, found: LabelFile, rows: DetectionColumns
) -> None:
    outside = len(rows) - len(rows.clipped(video.width, video.height))
    if outside:
        session.remark(
            f"{outside} of them lie outside of its {video.width}x{video.height} pixels: "
            "are they of another video, or of another size of it?"
        )
    if found.skipped:
        session.remark(f"{found.skipped} boxes without area were left out")


def _with_sources(rows: DetectionColumns, file: Path, who: str | Source | None) -> DetectionColumns:
    """Each row with the source that was named, else its own, else one called as the file is."""
    from vfsd.core.detections import source_from

    fallback = source_from(file.stem if who is None else who)
    own = [None if who is not None else rows.source_of(at) for at in range(len(rows))]
    return rows.with_sources([one or fallback for one in own])


def _whose_word(
    found: LabelFile, rows: DetectionColumns, file: Path, who: str | Source | None
) -> list[Source]:
    """Whom the file is from: of one without boxes, somebody has made it all the same."""
    from vfsd.core.detections import source_from

    told = [*rows.sources]
    if who is None:
        told += [one.source for one in found.examined_by or ()]
    return list(dict.fromkeys(told)) or [source_from(who or file.stem)]


def _examined(found: LabelFile, rule: str, sources: list[Source], frames: int) -> list[Examined]:
    """What each of the sources has looked at.  Where nobody tells which of several has looked at
    the frames of a file, none has."""
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
