"""``vfsd detect``: let a detector look at videos, and keep what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.cli.values import Number, Span, a_span
from vfsd.errors import ExtraMissingError, NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import Source
    from vfsd.labels.detectors.detector import Detector, Every


@define(
    "detect",
    examples=[
        "vfsd -s videos detect cam1/traffic.mp4 --with motion",
        "vfsd -s videos detect cam1/traffic.mp4 --with motion --every 5 --label moving --replace",
        "vfsd -s videos detect cam1/traffic.mp4 cam1/open-gop.mkv --with motion --keyframes --json",
    ],
    fields={
        "name": "path from the root of the store",
        "source": "object of name, model and version: who has looked",
        "boxes": "number of boxes that went in",
        "frames": "number of frames that this run examined",
        "examined": "number of frames that this source has examined by now",
    },
    exits=[NotFoundError, OutOfRangeError, ExtraMissingError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--with",
    "detector_text",
    metavar="motion|people|onnx:MODEL",
    required=True,
    help="What moves before a fixed camera; upright people; what an ONNX model in a file finds.",
)
@click.option("--every", metavar="N", type=click.IntRange(1), help="Only every n-th frame.")
@click.option("--keyframes", is_flag=True, help="Only frames at which decoding can start.")
@click.option("--span", metavar="A-B", type=a_span, help="Only frames in these seconds.")
@click.option(
    "--min-confidence",
    type=Number(0, 1),
    metavar="C",
    help="Only boxes with this confidence, or more; not for motion.",
)
@click.option("--label", metavar="WORD", help="What to call all that is found.")
@click.option(
    "--names",
    "classes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Names of the model's classes: one a line, or a data.yaml; else what the model says.",
)
@click.option(
    "--replace", is_flag=True, help="Look again, and take out what the same source said before."
)
@click.pass_obj
def command(
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
) -> None:
    """Find objects in VIDEOs, and keep their boxes.

    What was found goes into the index a portion of frames at a time, with the note that these
    frames were examined.  Frames that the very same detector with the same settings has examined
    are not looked at again, so what was interrupted is finished by saying it again.
    """
    if every is not None and keyframes:
        raise UsageError("give either --every or --keyframes")
    from vfsd.labels.detectors.registry import detector_named

    rhythm: Every = "key" if keyframes else every or 1
    root, paths = session.places(names)
    detector = detector_named(
        detector_text, every=rhythm, min_confidence=min_confidence, label=label, names=classes
    )
    with session.opened(root, writing=True) as store:
        videos = [store[path] for path in paths]
        for video in videos:
            _detect(session, video, detector, rhythm, span, replace)


def _detect(
    session: Session,
    video: Video,
    detector: Detector,
    every: Every,
    span: Span | None,
    replace: bool,
) -> None:
    source = detector.source
    before = 0 if replace else _examined(video, source)
    with Progress(f"examining {video.name}", None, shown=session.shows_progress) as progress:
        boxes = video.detect(detector, span, every, progress.reach, replace)
    examined = _examined(video, source)
    # A detector of motion reads more frames than it judges: only judged ones are counted.
    looked_at = examined - before
    if session.json:
        print_json(
            {
                "name": video.name,
                "source": {
                    "name": source.name,
                    "model": source.model,
                    "version": source.version,
                },
                "boxes": boxes,
                "frames": looked_at,
                "examined": examined,
            }
        )
    else:
        session.remark(
            f"{boxes} boxes by {source} on {looked_at} frames of {shown(video.name)}"
            + ("" if looked_at else ", which it has examined before")
        )


def _examined(video: Video, source: Source) -> int:
    return sum(len(one.frames) for one in video.examined(source))
