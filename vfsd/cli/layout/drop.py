"""``vfsd layout drop``: take tiles away."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.layout.selecting import SPAN, both, touching
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError
from vfsd.units import human_bytes

if TYPE_CHECKING:
    from vfsd.model import Segment


@define(
    "layout drop",
    examples=[
        "vfsd -s videos layout drop cam1/traffic.mp4 --retired",
        "vfsd -s videos layout drop cam1/traffic.mp4 --span 0-1 -y",
    ],
    fields={
        "name": "path from the root of the store",
        "segments": "number of segments that were taken away",
        "bytes": "their size",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@SPAN
@click.option("--retired", is_flag=True, help="Only what is kept for a step back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(session: Session, name: str, span: Span | None, retired: bool, yes: bool) -> None:
    """Take tiles away, with their bytes.

    Reads then decode the original, which always stays.  At a terminal this asks first.
    """
    from vfsd.making import relayout

    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        frames = video.frames_in(span)
        old, active = both(store, video)
        count = len(touching(old if retired else old + active, frames))
        if count and not yes and sys.stdin.isatty():
            kind = "retired segments" if retired else "segments of tiles"
            if not click.confirm(f"drop {count} {kind} of {shown(place.name)}?", err=True):
                count = 0
        found: list[Segment] = []
        if count and retired:
            found = relayout.drop_retired(store.parts, video.info, frames)
        elif count:
            found = relayout.drop(store.parts, video.info, frames)
    size = sum(segment.size for segment in found)
    if session.json:
        print_json({"name": place.name, "segments": len(found), "bytes": size})
    else:
        session.remark(f"dropped {len(found)} segments, {human_bytes(size)}")
