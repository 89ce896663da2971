"""``vfsd rm``: take files and directories out of the store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.errors import HeldError, NotFoundError, UsageError

if TYPE_CHECKING:
    from vfsd.api.store import Store


@define(
    "rm",
    examples=["vfsd -s videos rm cam1/traffic.mp4", "vfsd -s videos rm -r -y cam1"],
    fields={
        "path": "path from the root of the store",
        "files": "number of files that went with it",
    },
    exits=[NotFoundError, HeldError],
    listing=True,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Take directories with all that is in them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(session: Session, paths: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Take files and directories out of the store.

    Videos that were indexed where they lie (`ingest --link`) stay there.  At a terminal a
    directory with something in it goes only after a question.
    """
    root, names = session.places(paths)
    with session.opened(root, writing=True) as store:
        for name in names:
            store.node(name)  # a slip in the last name should not cost the others
        for name in names:
            if not yes and sys.stdin.isatty() and not _confirmed(store, name, recursive):
                continue
            count = store.remove(name, recursive=recursive)
            if session.json:
                print_json({"path": name, "files": count})
            else:
                session.remark(f"removed {shown(name)}")


def _confirmed(store: Store, name: str, recursive: bool) -> bool:
    if not recursive or not store.node(name).is_dir:
        return True
    if not name:
        raise UsageError("the root of a store cannot be removed")
    with store.catalog.reading() as seen:
        below = sum(node.is_file for _, node in seen.tree.walk(store.node(name).ino))
    return below == 0 or click.confirm(f"remove {name}/ with {below} files?", err=True)
