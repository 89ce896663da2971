"""``vfsd rendition drop``: take renditions away."""

from __future__ import annotations

import sys

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.cli.values import a_size
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, ReadOnlyError


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
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--size", metavar="WxH", type=a_size, help="Only this one; all by default.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], size: tuple[int, int] | None, yes: bool
) -> None:
    """Delete renditions of videos.

    A VIDEO is a name or a pattern.  The original stays, and reads decode it.  At a terminal the
    command asks first.
    """
    from vfsd.cli.retiling import picture_size
    from vfsd.derive import layout_history

    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for path, video in named(store, paths).items():
            picture = None if size is None else picture_size(size, video.original.media)
            what = "all renditions" if size is None else f"the rendition in {size[0]}x{size[1]}"
            question = f"drop {what} of {shown(path)}?"
            if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
                found = []
            else:
                found = layout_history.drop_renditions(store.parts, video.info, picture)
            total = sum(segment.size for segment in found)
            if session.json:
                print_json({"name": path, "segments": len(found), "bytes": total})
            else:
                session.remark(
                    f"{shown(path)}: dropped {len(found)} segments, {human_bytes(total)}"
                )
