"""``vfsd overlap split``: take back what `vfsd overlap join` did."""

from __future__ import annotations

import sys

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.overlap.records import JOINED_FIELDS, joined_record
from vfsd.cli.selecting import single_path
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, ReadOnlyError


@define(
    "overlap split",
    examples=[
        "vfsd -s videos overlap split cam1/west.mp4",
        "vfsd -s videos overlap split cam1/west.mp4 cam1/east.mp4 -y",
    ],
    fields=JOINED_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("other", metavar="[VIDEO]", required=False)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(session: Session, name: str, other: str | None, yes: bool) -> None:
    """Take away what is kept together of two videos.

    Of a video and another, or of one and all that it is joined with.  Reads then decode the
    originals, which always stay.  At a terminal this asks first.
    """
    given = [name] if other is None else [name, other]
    from vfsd.overlap.cameras import split

    root, names = session.places(given)
    with session.opened(root, writing=True) as store:
        names = [single_path(store.catalog, name, "overlap split") for name in names]
        if not yes and sys.stdin.isatty():
            whom = "those that it is joined with" if other is None else shown(names[1])
            if not click.confirm(f"split {shown(names[0])} from {whom}?", err=True):
                return
        gone = split(store, *names)
    for pair in gone:
        if session.json:
            print_json(joined_record(pair))
        else:
            session.remark(
                f"split {shown(pair.left)} and {shown(pair.right)}: {pair.frames} frames, "
                f"{human_bytes(pair.bytes)}"
            )
