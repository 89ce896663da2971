"""``vfsd policy show``: what may become of originals."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.policy.common import POLICY_FIELDS, policy_record
from vfsd.cli.selecting import matched_paths
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError


@define(
    "policy show",
    examples=["vfsd -s videos policy show", "vfsd -s videos policy show cam1/traffic.mp4 --json"],
    fields=POLICY_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[PATH]...", nargs=-1)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """Show what may become of originals.

    A PATH is a video, a directory, or a pattern for the names of videos.  Its policy is its own, or
    that of the nearest directory above.  Without a PATH, all policies that were set are listed.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.looked_into(root) as parts, parts.catalog.reading() as seen:
        told = seen.originals.policies()
        if paths:
            chosen = matched_paths(parts.catalog, paths)
            nodes = [(path, seen.tree.resolve(path).ino) for path in chosen]
        else:
            nodes = sorted((path, ino) for ino in told for path in seen.tree.paths_of(ino))
        found = [(path, seen.originals.policy(ino), ino in told) for path, ino in nodes]
    if session.json:
        for path, policy, own in found:
            print_json(policy_record(path, policy, own))
        return
    if not found:
        session.remark("all originals stay as they were written")
    rows = [(str(policy), "" if own else "inherited", shown(path)) for path, policy, own in found]
    for line in columns(rows, "<<<"):
        print_line(line)
