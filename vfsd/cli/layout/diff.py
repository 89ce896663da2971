"""``vfsd layout diff``: the tiles of a video and those of the step before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.layout.selecting import both
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.selecting import for_each, named
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.api.video import Video


@define(
    "layout diff",
    examples=["vfsd -s videos layout diff cam1/traffic.mp4"],
    fields={
        "name": "path from the root of the store",
        "frames": "[first, end]: the frames that this is about, the end not included",
        "span": "[from, to] in seconds",
        "before": "object: layout, codec, tiles (how many are stored), size and psnr before the "
        "last change; null: no tiles",
        "now": "object: the same of what is there now; null: no tiles",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """Compare the tiles of videos with those of the step before.

    A VIDEO is a name or a pattern.  The list shows what `vfsd layout rollback` would change, with
    the state before on the left.
    """
    from vfsd.cli.layout.differences import differences

    root, paths = session.places(names)

    def show(path: str, video: Video) -> None:
        found = differences(video, *both(store, video))
        if session.json:
            for change in found:
                print_json(change.record(video))
            return
        rows = [change.cells(video) for change in found]
        if not rows:
            session.remark(f"{shown(path)} has no tiles")
        for line in columns(rows, "<<><<>>"):
            print_line(line)

    with session.opened(root) as store:
        for_each(session, named(store, paths), show)
