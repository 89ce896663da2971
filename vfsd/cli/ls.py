"""``vfsd ls``: what is in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.records import ENTRY_ALIGNMENT, ENTRY_FIELDS, entry_cells, entry_record, size_of
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.catalog import Transaction
    from vfsd.core.model import LogicalVideo, Node

Entry = tuple[str, "Node"]


@define(
    "ls",
    examples=[
        "vfsd -s videos ls cam1",
        "vfsd -s videos ls -lR",
        "vfsd -s videos ls -R --json",
    ],
    fields=ENTRY_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("path", default="")
@click.option("-l", "--long", is_flag=True, help="Say more of each entry.")
@click.option("-R", "--recursive", is_flag=True, help="List what is in directories, too.")
@click.pass_obj
def command(session: Session, path: str, long: bool, recursive: bool) -> None:
    """List a directory, by name.

    PATH is a directory or a file; without it the root of the store is listed (or the working
    directory, when it is in a mount).  With -R names are counted from PATH.  A long line gives
    kind, size, frames, width x height, duration, codec, time of the last change and name; kind is
    `file` for files that are not videos.
    """
    place = session.place(path)
    with (
        session.looked_into(place.root) as parts,
        parts.catalog.reading() as seen,
    ):
        entries = _entries(seen, place.name, recursive=recursive)
        if session.json:
            for name, node in entries:
                video = _video(seen, node)
                print_json(entry_record(name, node, video, size_of(parts, node)))
            return
        above = f"{place.name}/" if place.name else ""
        labelled = ((name.removeprefix(above) or name, node) for name, node in entries)
        if not long:
            for label, node in labelled:
                print_line(shown(label) + ("/" if node.is_dir else ""))
            return
        rows = (
            entry_cells(label, node, _video(seen, node), size_of(parts, node))
            for label, node in labelled
        )
        for line in columns(rows, ENTRY_ALIGNMENT):
            print_line(line)


def _entries(seen: Transaction, path: str, *, recursive: bool) -> Iterator[Entry]:
    """(path from the root, node) of what is to be listed."""
    node = seen.tree.resolve(path)
    if not node.is_dir:
        yield path, node
    elif recursive:
        yield from seen.tree.walk(node.ino, path)
    else:
        for name, child in seen.tree.children(node.ino):
            yield f"{path}/{name}" if path else name, child


def _video(seen: Transaction, node: Node) -> LogicalVideo | None:
    if not node.is_file:
        return None
    try:
        return seen.videos.of_inode(node.ino)
    except NotFoundError:
        return None
