"""``vfsd rendition drop``: take renditions away."""

from __future__ import annotations

import sys

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.cli.values import a_size
from vfsd.errors import NotFoundError, ReadOnlyError
from vfsd.units import human_bytes


@define(
    "rendition drop",
    examples=[
        "vfsd -s videos rendition drop cam1/traffic.mp4 --size 160x120 -y",
        "vfsd -s videos rendition drop cam1/traffic.mp4 -y",
    ],
    fields={
        "name": "path from the root of the store",
        "segments": "number of segments that were taken away",
        "bytes": "their size",
    },
    exits=[NotFoundError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@click.option("--size", metavar="WxH", type=a_size, help="Only this one; all if nothing is said.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(session: Session, name: str, size: tuple[int, int] | None, yes: bool) -> None:
    """Take the renditions of a video away, with their bytes.

    Reads then decode the original, which always stays.  At a terminal this asks first.
    """
    from vfsd.cli.retiling import picture_size
    from vfsd.making import relayout

    place = session.place(name)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        picture = None if size is None else picture_size(size, video.original.media)
        what = "all renditions" if size is None else f"the rendition in {size[0]}x{size[1]}"
        question = f"drop {what} of {shown(place.name)}?"
        if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
            found = []
        else:
            found = relayout.drop_renditions(store.parts, video.info, picture)
    total = sum(segment.size for segment in found)
    if session.json:
        print_json({"name": place.name, "segments": len(found), "bytes": total})
    else:
        session.remark(f"dropped {len(found)} segments, {human_bytes(total)}")
