"""``vfsd hold ls``: which videos are held, and why."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.hold.common import HOLD_FIELDS, hold_record
from vfsd.cli.output import columns, local_time, print_json, print_line, shown
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError


@define(
    "hold ls",
    examples=["vfsd -s videos hold ls", "vfsd -s videos hold ls cam1/traffic.mp4 --json"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """List which videos nobody may change or remove, and why."""
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        videos = videos_named(store, paths) if paths else list(store.find())
        found = [(video.name, one) for video in videos for one in video.holds()]
    rows = []
    for name, one in found:
        if session.json:
            print_json(hold_record(name, one))
        else:
            rows.append((str(one.id), local_time(one.at_ns), shown(name), shown(one.reason)))
    if not found:
        session.remark("nothing is held")
    for line in columns(rows, "><<<"):
        print_line(line)
