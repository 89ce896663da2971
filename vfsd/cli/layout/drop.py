"""``vfsd layout drop``: take tiles away."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.layout.selecting import SPAN, both, touching
from vfsd.cli.output import print_json, shown
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment


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
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@SPAN
@click.option("--retired", is_flag=True, help="Only what is kept for a step back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], span: Span | None, retired: bool, yes: bool
) -> None:
    """Delete tiles.

    A VIDEO is a name or a pattern.  The original stays, and reads decode it.  At a terminal the
    command asks first.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        # A span outside one video is an error before any tile is deleted.
        chosen = [(video, video.frames_in(span)) for video in named(store, paths).values()]
        for video, frames in chosen:
            found = _drop(store, video, frames, retired, yes)
            size = sum(segment.size for segment in found)
            if session.json:
                print_json({"name": video.name, "segments": len(found), "bytes": size})
            else:
                session.remark(
                    f"{shown(video.name)}: dropped {len(found)} segments, {human_bytes(size)}"
                )


def _drop(store: Store, video: Video, frames: range, retired: bool, yes: bool) -> Sequence[Segment]:
    """The segments that were deleted."""
    from vfsd.derive import layout_history

    old, active = both(store, video)
    count = len(touching(old if retired else old + active, frames))
    if count and not yes and sys.stdin.isatty():
        kind = "retired segments" if retired else "segments of tiles"
        if not click.confirm(f"drop {count} {kind} of {shown(video.name)}?", err=True):
            return []
    if not count:
        return []
    drop = layout_history.drop_retired if retired else layout_history.drop
    return drop(store.parts, video.info, frames)
