"""``vfsd mv``: give files and directories other names."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.errors import ExistsError, HeldError, NotFoundError


@define(
    "mv",
    examples=["vfsd -s videos mv cam1/traffic.mp4 archive/2026/traffic.mp4"],
    fields={"old": "path before", "new": "path that was asked for"},
    exits=[NotFoundError, ExistsError, HeldError],
)
@click.argument("old")
@click.argument("new")
@click.option(
    "-f",
    "--overwrite",
    "--replace",
    "replace",
    is_flag=True,
    help="Let the file take the place of another one.",
)
@click.pass_obj
def command(session: Session, old: str, new: str, replace: bool) -> None:
    """Give a file or directory another name.

    Missing directories on the way to NEW are made; if NEW is a directory, or ends with a slash,
    OLD moves into it.  Nothing is copied.
    """
    root, (old_name, new_name) = session.places([old, new])
    new_name = new_name or "/"
    if new.endswith("/") and new_name != "/":
        new_name += "/"  # which is how a directory that is not there yet is told
    with session.opened(root, writing=True) as store:
        store.move(old_name, new_name, replace=replace)
    if session.json:
        print_json({"old": old_name, "new": new_name})
    else:
        session.remark(f"moved {shown(old_name)} to {shown(new_name)}")
