"""``vfsd labels rm``: take boxes out of the index."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.labels.common import source_options, the_source
from vfsd.cli.output import print_json, shown
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.cli.values import frame_range, some_frames
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError


@define(
    "labels rm",
    examples=[
        "vfsd -s videos labels rm cam1/traffic.mp4 --source yolo",
        "vfsd -s videos labels rm cam1/traffic.mp4 --label car --frames 0:100",
    ],
    fields={
        "name": "path from the root of the store",
        "boxes": "number of boxes that were removed",
    },
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--label", "labels", metavar="WORD", multiple=True, help="Only with this label.")
@source_options("Only what this source said.")
@click.option(
    "--frames", "chosen", metavar="A:B", type=some_frames, help="Only in frames A to B - 1, or one."
)
@click.option("--all", "everything", is_flag=True, help="All boxes of the video.")
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    source: str | None,
    model: str | None,
    version: str | None,
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
        # A range outside one video is an error before any box is removed.
        ranges = {
            path: (video, None if chosen is None else frame_range(chosen, len(video)))
            for path, video in named(store, paths).items()
        }
        for path, (video, frames) in ranges.items():
            gone = video.remove_detections(
                labels=list(labels) or None,
                frames=frames,
                source=the_source(source, model, version),
            )
            if session.json:
                print_json({"name": path, "boxes": gone})
            else:
                session.remark(f"{gone} boxes removed from {shown(path)}")
