"""``vfsd unpin``: tiles and renditions that need not stay any more."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.pinning import displayed, of_pins
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError
from vfsd.units import human_bytes


@define(
    "unpin",
    examples=[
        "vfsd -s videos unpin cam1/traffic.mp4",
        "vfsd -s videos unpin cam1/traffic.mp4 --span 0-1",
    ],
    fields={
        "name": "path from the root of the store",
        "evicted": "number of segments that had to go, of videos that it is joined with, too",
        "bytes": "their size",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@of_pins
@click.pass_obj
def command(
    session: Session, name: str, span: Span | None, tiles: bool, size: tuple[int, int] | None
) -> None:
    """Take back what `vfsd pin` said.

    With the same options that pin; without any, all pins of a video.  With `--span` a pin of more
    stays for the rest.  What was pinned counts for the budget again, and what that has no room for
    goes; so with what is joined, for the budget of the other video.
    """
    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        gone = video.unpin(span=span, tiles=tiles, size=displayed(video, size))
    freed = sum(one.bytes for one in gone)
    if session.json:
        print_json({"name": place.name, "evicted": len(gone), "bytes": freed})
        return
    text = f"{shown(place.name)} is unpinned"
    if gone:
        text += f"; {len(gone)} segments, {human_bytes(freed)}, had to go"
    session.remark(text)
