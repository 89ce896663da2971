"""``vfsd dataset`` and ``vfsd lerobot``: data sets of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.labels import source_options
from vfsd.cli.options import Span, size_value, span_value
from vfsd.cli.output import Progress, print_json, print_line, printable
from vfsd.cli.session import Session, select_video_list, select_videos, single_path
from vfsd.errors import (
    EXIT_INTERRUPTED,
    ExistsError,
    ExtraMissingError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutOfRangeError,
    RefusedMediaError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.core.detections import Source


_folder_option = click.option(
    "-o",
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="A new or empty folder.",
)


@define(
    "dataset export",
    examples=[
        "vfsd -s videos dataset export 'cam1/*' --format yolo -o cars --labels 'car|truck'",
        "vfsd -s videos dataset export cam1/traffic.mp4 cam1/open-gop.mkv --format coco "
        "--every 5 --val cam1/open-gop.mkv --size 160 -o pictures --json",
    ],
    fields={
        "split": "train, val or test",
        "videos": "list of paths from the root of the store",
        "pictures": "number of pictures",
        "boxes": "number of boxes",
        "classes": "list of the labels, in the order of their numbers",
    },
    exits=[
        NotFoundError,
        ExistsError,
        OutOfRangeError,
        IntegrityError,
        NoSpaceError,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--format", "format_", type=click.Choice(("coco", "yolo")), required=True, help="The format."
)
@_folder_option
@click.option("--labels", metavar="LABELS", help="Boxes, as in `vfsd labels query`.")
@source_options("Only boxes of this source.")
@click.option("--min-confidence", type=float, help="Minimum confidence.")
@click.option("--span", metavar="A-B", type=span_value, help="Only frames in these seconds.")
@click.option(
    "--frames",
    type=click.Choice(("examined", "boxes", "all")),
    default="examined",
    help="Frames that were examined or have a box (the default), those with a selected box, or "
    "all.",
)
@click.option(
    "--every",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    help="Of these, only frames with a multiple of N as number.",
)
@click.option(
    "--split",
    metavar="A/B/C",
    help="Shares of train, val and test; the default is 0.8/0.1/0.1.",
)
@click.option("--seed", type=int, default=0, help="Another number gives another split by shares.")
@click.option("--val", metavar="VIDEO", multiple=True, help="Videos of val, instead of shares.")
@click.option("--test", metavar="VIDEO", multiple=True, help="Videos of test, instead of shares.")
@click.option(
    "--images",
    type=click.Choice(("copy", "link", "none")),
    default="copy",
    help="Copy pictures (the default), link to those in the mount, or make none.",
)
@click.option(
    "--mount",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where links lead to; the default is the present mount.",
)
@click.option(
    "--picture", type=click.Choice(("jpg", "png")), default="jpg", help="Format of the pictures."
)
@click.option(
    "--size",
    metavar="WxH",
    type=size_value,
    help="Size of the pictures, or their short side; boxes are scaled, too.",
)
@click.option(
    "--letterbox",
    is_flag=True,
    help="Keep the shape of frames within --size, between gray margins.",
)
def dataset_export(
    session: Session,
    names: Sequence[str],
    format_: str,
    out: Path,
    labels: str | None,
    source: str | Source | None,
    min_confidence: float | None,
    span: Span | None,
    frames: str,
    every: int,
    split: str | None,
    seed: int,
    val: Sequence[str],
    test: Sequence[str],
    images: str,
    mount: Path | None,
    picture: str,
    size: int | tuple[int, int] | None,
    letterbox: bool,
) -> None:
    """Export pictures and boxes of videos as a data set.

    VIDEO is a name or a pattern in quotes, also for --val and --test. All frames of a video are in
    one split; copies of a video stay together. The same videos and --seed give the same split.

    DIR has `images/train`, `images/val` and `images/test`, and for coco `annotations/train.json`
    and so on, for yolo `labels/train` and so on with a `data.yaml`. Boxes are clipped at the edge
    of the frame. DIR appears when it is complete.
    """
    from vfsd.datasets import export_pictures

    if split is not None and (val or test):
        raise UsageError("give either --split or --val and --test, not both")
    root, paths = session.places(names)
    with (
        session.opened(root) as store,
        Progress(f"making {out}", None, shown=session.shows_progress) as progress,
    ):
        made = export_pictures(
            select_video_list(store, paths),
            out,
            format_,
            labels=labels,
            source=source,
            min_confidence=min_confidence,
            span=span,
            frames=frames,
            every=every,
            split=_by_name(session, store, val, test) if val or test else split or "0.8/0.1/0.1",
            seed=seed,
            images=images,
            picture=picture,
            size=size,
            letterbox=letterbox,
            mount=mount,
            on_progress=progress.reach,
        )
    for name, one in made.splits.items():
        if session.json:
            print_json(
                {
                    "split": name,
                    "videos": list(one.videos),
                    "pictures": one.pictures,
                    "boxes": one.boxes,
                    "classes": list(made.classes),
                }
            )
        else:
            print_line(
                f"{name}: {len(one.videos)} videos, {one.pictures} pictures, {one.boxes} boxes"
            )
    if not made.splits["val"].videos:
        session.remark(f"val has no video, which trainers need in {printable(str(out))}")


def _by_name(
    session: Session, store: Store, val: Sequence[str], test: Sequence[str]
) -> dict[str, list[str]]:
    return {
        split: list(select_videos(store, session.places(names)[1])) if names else []
        for split, names in (("val", val), ("test", test))
    }


@define(
    "dataset manifest",
    examples=["vfsd -s videos dataset manifest cam1/traffic.mp4 -o manifest.jsonl"],
    fields={
        "name": "path from the root of the store",
        "out": "path of the file",
        "keyframes": "number of key frames in it",
    },
    exits=[NotFoundError, ExistsError, IntegrityError, NoSpaceError],
)
@click.argument("name", metavar="VIDEO")
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="The file, which CVAT expects as manifest.jsonl next to the video.",
)
@replace_option("Replace an existing file.")
def dataset_manifest(session: Session, name: str, out: Path, replace: bool) -> None:
    """Write the manifest of a VIDEO for CVAT.

    With it, CVAT reads the video from a mount that is its share, without a copy. CVAT wants a key
    frame in about 100 frames.
    """
    from vfsd.datasets.cvat_manifest import cvat_manifest
    from vfsd.disk.tempfiles import atomic_file

    place = session.place(name)
    with session.opened(place.root) as store, atomic_file(out, replace) as file:
        video = store[single_path(store.catalog, place.name, "dataset manifest")]
        count = len(video.keyframes)
        with Progress(f"making {out}", count, shown=session.shows_progress) as progress:
            for line in cvat_manifest(video):
                file.write(line.encode())
                progress.advance()
    session.print_result(
        {"name": video.name, "out": str(out), "keyframes": count},
        f"{count} key frames to {printable(str(out))}",
    )


@define(
    "lerobot import",
    examples=["vfsd -s videos lerobot import robot --to bots/pick"],
    fields={
        "name": "path of the video from the root of the store",
        "camera": "feature that the video belongs to",
        "frames": "number of frames",
        "episodes": "number of episodes in it",
    },
    exits=[
        NotFoundError,
        ExistsError,
        RefusedMediaError,
        NoSpaceError,
        ExtraMissingError,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--to", metavar="NAME", required=True, help="The new directory in the store.")
@click.option("--copy", is_flag=True, help="Copy the videos; by default they stay where they are.")
def lerobot_import(session: Session, folder: Path, to: str, copy: bool) -> None:
    """Add the LeRobot data set in DIR to the store.

    DIR is a data set of version 3. In a mount, programs read NAME as they read DIR. Each frame gets
    a box of the whole picture with its task as label and its episode as track, by the source
    lerobot. Needs the extra arrow.
    """
    from vfsd.datasets.lerobot import episodes_of, import_lerobot

    place = session.place(to)
    with (
        session.opened(place.root, writing=True) as store,
        Progress(f"reading {folder}", None, shown=session.shows_progress) as progress,
    ):
        videos = import_lerobot(
            store, folder, place.name, link=not copy, on_progress=progress.reach
        )
    for video in videos:
        count, camera = len(episodes_of(video)), video.metadata["lerobot"]["camera"]
        record = {
            "name": video.name,
            "camera": camera,
            "frames": len(video),
            "episodes": count,
        }
        session.print_result(record, f"{printable(video.name)}: {count} episodes of {camera}")


@define(
    "lerobot export",
    examples=[
        "vfsd -s videos lerobot export cam1/traffic.mp4 -o robot2 --task 'Watch the road'",
    ],
    fields={
        "out": "path of the folder",
        "videos": "number of videos",
        "episodes": "number of episodes",
    },
    exits=[NotFoundError, ExistsError, NoSpaceError, ExtraMissingError, EXIT_INTERRUPTED],
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@_folder_option
@click.option(
    "--camera",
    metavar="FEATURE",
    default="observation.images.main",
    help="Feature of the videos; the default is observation.images.main.",
)
@click.option("--task", default="", metavar="TEXT", help="Task of episodes without one.")
@click.option("--robot-type", metavar="TEXT", help="Kind of the robot.")
def lerobot_export(
    session: Session,
    names: Sequence[str],
    out: Path,
    camera: str,
    task: str,
    robot_type: str | None,
) -> None:
    """Export videos as a LeRobot data set, without encoding.

    VIDEO is a name or a pattern in quotes. All are of one camera, with the same size and one
    constant rate. Imported videos keep their episodes; any other video is one episode. Needs the
    extra arrow. In Python, `export_lerobot` takes several cameras, and features such as actions.
    """
    from vfsd.datasets.lerobot import export_lerobot

    root, paths = session.places(names)
    with (
        session.opened(root) as store,
        Progress(f"making {out}", None, shown=session.shows_progress) as progress,
    ):
        videos = select_video_list(store, paths)
        count = export_lerobot(
            out, {camera: videos}, task=task, robot_type=robot_type, on_progress=progress.reach
        )
    session.print_result(
        {"out": str(out), "videos": len(videos), "episodes": count},
        f"{count} episodes in {len(videos)} videos to {printable(str(out))}",
    )
