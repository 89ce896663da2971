"""``vfsd gc``: take away what nothing refers to."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line
from vfsd.cli.session import Session
from vfsd.units import human_bytes


@define(
    "gc",
    examples=["vfsd -s videos gc --dry-run", "vfsd -s videos gc --json"],
    fields={
        "objects": "list of the objects' keys",
        "files": "number of private and temporary files",
        "bytes": "how much room they took",
        "dry_run": "whether they are still there",
    },
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.pass_obj
def command(session: Session, dry_run: bool) -> None:
    """Take away what nothing refers to.

    Objects that no file uses, and what was left half-written by a process that died.
    """
    from vfsd import check

    with session.opened(session.root(), writing=not dry_run) as store:
        found = check.collect(store.parts, dry_run=dry_run)
    if session.json:
        print_json(
            {
                "objects": list(found.objects),
                "files": len(found.files),
                "bytes": found.bytes,
                "dry_run": dry_run,
            }
        )
        return
    if not session.quiet:
        print_line(
            f"{len(found.objects)} objects and {len(found.files)} files, "
            f"{human_bytes(found.bytes)}" + (", could go" if dry_run else "")
        )
