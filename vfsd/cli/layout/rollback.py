"""``vfsd layout rollback``: a step back."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.layout.selecting import SPAN
from vfsd.cli.output import print_json, shown
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
)
@click.argument("name", metavar="VIDEO")
@SPAN
@click.pass_obj
def command(session: Session, name: str, span: Span | None) -> None:
    """Go back to the layouts before the present ones.

    That goes segment by segment, whichever commands have made them: for all of the VIDEO, or for
    those segments that --span touches.  Saying it twice takes it back.  Where there was nothing
    before, reads decode the original.
    """
    from vfsd.making import relayout

    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        retired, restored = relayout.rollback(store.parts, video.info, video.frames_in(span))
    if session.json:
        print_json({"name": place.name, "retired": retired, "restored": restored})
    else:
        session.remark(
            f"{shown(place.name)}: {restored} segments are in use again, {retired} are retired"
        )
