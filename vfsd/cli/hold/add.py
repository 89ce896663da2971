"""``vfsd hold add``: forbid to change or remove videos."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.hold.common import HOLD_FIELDS, hold_record
from vfsd.cli.output import print_json, shown
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError, ReadOnlyError


@define(
    "hold add",
    examples=["vfsd -s videos hold add cam1/traffic.mp4 --reason 'case 17'"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Why; whoever is refused is told.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], reason: str) -> None:
    """Forbid everybody to change or remove videos.

    A VIDEO is a name or a pattern; those that fit it later are not meant.  A video may have several
    holds, and is free when the last is lifted.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in videos_named(store, paths):
            made = video.hold(reason)
            if session.json:
                print_json(hold_record(video.name, made))
            else:
                session.remark(f"{shown(video.name)} is held: {reason}")
