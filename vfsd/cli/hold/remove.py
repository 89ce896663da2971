"""``vfsd hold remove``: lift holds."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.hold.common import HOLD_FIELDS, hold_record
from vfsd.cli.output import print_json, shown
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError, ReadOnlyError


@define(
    "hold remove",
    examples=["vfsd -s videos hold remove cam1/traffic.mp4 --reason 'case 17 is closed'"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept in the log.")
@click.option("--id", "number", metavar="N", type=int, help="Only the hold of that number.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], reason: str, number: int | None) -> None:
    """Lift the holds of videos.

    What was held, since when, and why the hold was lifted stays in the log (`vfsd age log`).
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in videos_named(store, paths):
            for one in video.release(reason, number):
                if session.json:
                    print_json(hold_record(video.name, one))
                else:
                    session.remark(f"{shown(video.name)} is held no longer: {one.reason}")
