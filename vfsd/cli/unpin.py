"""``vfsd unpin``: tiles and renditions that need not stay any more."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.pinning import displayed, of_pins
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError


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
    """Remove pins of `vfsd pin`.

    A VIDEO is a name or a pattern.  The options select a pin; without options, all pins of a video
    are removed.  With `--span`, the rest of a longer pin stays.  The bytes count for the budget
    again, and tiles over budget are deleted.  Pieces of joined videos count for both budgets.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        videos = named(store, paths)
        for video in videos.values():
            video.frames_in(span)  # a span outside one video is an error before any pin goes
        for path, video in videos.items():
            gone = video.unpin(span=span, tiles=tiles, size=displayed(video, size))
            freed = sum(one.bytes for one in gone)
            if session.json:
                print_json({"name": path, "evicted": len(gone), "bytes": freed})
                continue
            text = f"{shown(path)} is unpinned"
            if gone:
                text += f"; {len(gone)} segments, {human_bytes(freed)}, were deleted"
            session.remark(text)
