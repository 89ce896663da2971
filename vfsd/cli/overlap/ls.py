"""``vfsd overlap ls``: which videos are joined."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line
from vfsd.cli.overlap.records import (
    JOINED_ALIGNMENT,
    JOINED_FIELDS,
    JOINED_HEADINGS,
    joined_cells,
    joined_record,
)
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError


@define(
    "overlap ls",
    examples=["vfsd -s videos overlap ls", "vfsd -s videos overlap ls cam1/west.mp4 --json"],
    fields=JOINED_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("name", metavar="[VIDEO]", required=False)
@click.pass_obj
def command(session: Session, name: str | None) -> None:
    """List videos that are joined, or who one is joined with."""
    from vfsd.overlap.cameras import joined

    root, names = (session.root(), []) if name is None else session.places([name])
    with session.opened(root) as store:
        found = joined(store, names[0] if names else None)
    if session.json:
        for pair in found:
            print_json(joined_record(pair))
    elif found:
        for line in columns([JOINED_HEADINGS, *map(joined_cells, found)], JOINED_ALIGNMENT):
            print_line(line)
    else:
        session.remark("nothing is joined")
