"""``vfsd pin``: tiles and renditions that stay, whatever budgets say."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.pinning import displayed, of_pins
from vfsd.cli.selecting import named
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
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@of_pins
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    tiles: bool,
    size: tuple[int, int] | None,
) -> None:
    """Keep tiles and renditions even over budget.

    A VIDEO is a name or a pattern.  A pin covers present and future tiles and renditions that reads
    may use; retired tiles are excluded.  Pinned bytes do not count for the budget.  `vfsd layout
    drop` and `vfsd rendition drop` delete them all the same.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        videos = named(store, paths)
        for video in videos.values():
            video.frames_in(span)  # a span outside one video is an error before any is pinned
        for path, video in videos.items():
            picture = displayed(video, size)
            pin = video.pin(span=span, tiles=tiles, size=picture)
            what = "tiles" if tiles else "all"
            if picture is not None:
                what = f"{picture[0]}x{picture[1]}"
            if session.json:
                frames = [pin.frames.start, pin.frames.stop]
                print_json({"name": path, "frames": frames, "what": what})
            else:
                session.remark(
                    f"pinned: {what}, frames {pin.frames.start} to {pin.frames.stop - 1} of "
                    f"{shown(path)}"
                )
