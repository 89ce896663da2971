"""``vfsd pin``: tiles and renditions that stay, whatever budgets say."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.pinning import displayed, of_pins
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError


@define(
    "pin",
    examples=[
        "vfsd -s videos pin cam1/traffic.mp4",
        "vfsd -s videos pin cam1/traffic.mp4 --tiles --span 0-2",
        "vfsd -s videos pin cam1/traffic.mp4 --size 160x120",
    ],
    fields={
        "name": "path from the root of the store",
        "frames": "[first, end]",
        "what": "all, tiles, or the size of a rendition, WxH",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@of_pins
@click.pass_obj
def command(
    session: Session, name: str, span: Span | None, tiles: bool, size: tuple[int, int] | None
) -> None:
    """Keep tiles and renditions whatever budgets say.

    That holds for what there is and for what will be made; what reads do not use any more is not
    meant.  What is pinned does not count for the budget.  `vfsd layout drop` and `vfsd rendition
    drop` take it away nevertheless.
    """
    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        size = displayed(video, size)
        pin = video.pin(span=span, tiles=tiles, size=size)
    what = "tiles" if tiles else "all" if size is None else f"{size[0]}x{size[1]}"
    if session.json:
        frames = [pin.frames.start, pin.frames.stop]
        print_json({"name": place.name, "frames": frames, "what": what})
    else:
        frames_ = f"frames {pin.frames.start} to {pin.frames.stop - 1}"
        session.remark(f"pinned: {what}, {frames_} of {shown(place.name)}")
