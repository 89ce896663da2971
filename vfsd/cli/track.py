"""``vfsd track``: number the objects that the boxes of a detector show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.labels import print_unknown_labels, source_options
from vfsd.cli.options import time_value
from vfsd.cli.output import Progress, print_remark, printable
from vfsd.cli.session import Session, select_videos
from vfsd.errors import NotFoundError, ReadOnlyError

if TYPE_CHECKING:
    from fractions import Fraction

    from vfsd.core.detections import Source


@define(
    "track",
    examples=[
        "vfsd -s videos track cam1/traffic.mp4 --source motion --gap 2",
        "vfsd -s videos track 'cam1/*' --json",
    ],
    fields={
        "name": "path from the root of the store",
        "source": "object: name, model and version of the source of the boxes with tracks",
        "boxes": "number of boxes",
        "tracks": "number of tracks",
        "frames": "number of examined frames",
    },
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
    unknown_labels=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--labels", metavar="LABELS", help="Boxes, as in `vfsd labels query`.")
@source_options("The source of the boxes; needed where there are several.")
@click.option(
    "--gap",
    metavar="SECONDS",
    type=time_value,
    default="1",
    show_default=True,
    help="Maximum time without a box within a track.",
)
@click.option(
    "--min-iou",
    type=float,
    default=0.2,
    show_default=True,
    help="Minimum overlap with the predicted box, above 0 and at most 1.",
)
def track(
    session: Session,
    names: tuple[str, ...],
    labels: str | None,
    source: str | Source | None,
    gap: Fraction,
    min_iou: float,
) -> None:
    """Link the boxes of a detector into tracks of objects.

    A VIDEO is a name or a pattern in quotes. With several videos, those without boxes are skipped
    with a warning. The boxes are stored again, with tracks, under a source `track`; those of the
    detector stay as they are. The same command replaces its earlier result.

    A box continues the track whose predicted box it overlaps most, or else a nearby track of about
    its size. With --labels, all matching boxes are one kind of object: `car|truck` follows a
    vehicle that the detector labels sometimes one, sometimes the other. Without --labels, each
    label is tracked separately.
    """
    from vfsd.api.track import track as track_boxes
    from vfsd.api.video import context_of

    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        unknown = store.catalog.detections.unknown_labels(labels)
        videos = select_videos(store, paths)
        count, missing = 0, None
        with Progress("tracking", len(videos), shown=session.shows_progress) as progress:
            for at, (path, video) in enumerate(videos.items()):
                progress.reach(at, len(videos))
                try:
                    done = track_boxes(context_of(video), labels, source, gap, min_iou)
                except NotFoundError as error:
                    missing = error
                    if not session.quiet and len(videos) > 1:
                        print_remark(f"warning: skipped {printable(path)}: {error}")
                    continue
                count += 1
                session.report(
                    {
                        "name": path,
                        "source": {
                            "name": done.source.name,
                            "model": done.source.model,
                            "version": done.source.version,
                        },
                        "boxes": done.boxes,
                        "tracks": done.tracks,
                        "frames": done.frames,
                    },
                    f"{done.tracks} tracks of {done.boxes} boxes in {printable(path)}",
                )
    print_unknown_labels(session, unknown)
    if missing is not None and not count:
        raise missing
