"""``vfsd layout rollback``: a step back."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.layout.selecting import SPAN
from vfsd.cli.output import print_json, shown
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError


@define(
    "layout rollback",
    examples=["vfsd -s videos layout rollback cam1/traffic.mp4 --span 0-1"],
    fields={
        "name": "path from the root of the store",
        "retired": "number of segments that reads use no longer",
        "restored": "number of segments that reads use again",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@SPAN
@click.pass_obj
def command(session: Session, names: tuple[str, ...], span: Span | None) -> None:
    """Go back to the layouts before the present ones.

    A VIDEO is a name or a pattern.  The command works segment by segment: on all segments of a
    video, or on those that --span touches.  A second call undoes the first.  Segments without an
    earlier layout are read from the original.
    """
    from vfsd.derive import layout_history

    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        # A span outside one video is an error before any video changes.
        chosen = [(video, video.frames_in(span)) for video in named(store, paths).values()]
        for video, frames in chosen:
            retired, restored = layout_history.rollback(store.parts, video.info, frames)
            if session.json:
                print_json({"name": video.name, "retired": retired, "restored": restored})
            else:
                session.remark(
                    f"{shown(video.name)}: {restored} segments are in use again, "
                    f"{retired} are retired"
                )
