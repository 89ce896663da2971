"""``vfsd gc``: take away what nothing refers to."""

from __future__ import annotations

from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.cli.values import Number
from vfsd.core.timebase import human_bytes
from vfsd.disk.safe_open import is_full_directory
from vfsd.errors import EXIT_FINDINGS


@define(
    "gc",
    examples=[
        "vfsd -s videos gc --dry-run",
        "vfsd -s videos gc --json",
        "vfsd -s videos gc --recordings 0",
    ],
    fields={
        "objects": "list of the objects' keys",
        "files": "number of private and temporary files, and of rendered parts of views",
        "bytes": "how much room they took",
        "dry_run": "whether they are still there",
        "recordings": "number of recordings that were not finished, and stay",
        "stuck": "list of what stays: directories in the places of files, in which something lies, "
        "and what may not be deleted",
    },
    exits=[EXIT_FINDINGS],
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "--recordings",
    metavar="DAYS",
    type=Number(0),
    default=30,
    show_default=True,
    help="How old a recording that was not finished has to be to go.",
)
@click.pass_obj
def command(session: Session, dry_run: bool, recordings: float) -> None:
    """Take away what nothing refers to.

    Objects that no file uses, what was rendered of videos that have gone, and what was left
    half-written by a process that died.  Recordings that were not finished go when nobody has
    written to them for 30 days: `vfsd recover` makes videos of them.  Ends with 30 where something
    stays: a directory in which something lies, or what may not be deleted.
    """
    from vfsd.maintenance import fsck

    with session.opened(session.root(), writing=not dry_run) as store:
        found = fsck.collect(store.parts, dry_run=dry_run, recording_days=recordings)
    if session.json:
        print_json(
            {
                "objects": list(found.objects),
                "files": len(found.files),
                "bytes": found.bytes,
                "dry_run": dry_run,
                "recordings": len(found.kept),
                "stuck": [str(path) for path in found.stuck],
            }
        )
    elif not session.quiet:
        print_line(
            f"{len(found.objects)} objects and {len(found.files)} files, "
            f"{human_bytes(found.bytes)}" + (", could go" if dry_run else "")
        )
    if found.kept:
        session.remark(
            f"recordings that were not finished stay: {len(found.kept)}; `vfsd recover --dry-run` "
            "lists them"
        )
    for path in found.stuck:
        session.remark(f"{shown(str(path))} {_why(path)}")
    if found.stuck:
        click.get_current_context().exit(EXIT_FINDINGS)


def _why(path: Path) -> str:
    """What is to be done about something that stays."""
    if is_full_directory(path):
        return "is a directory in which something lies: move it away"
    return "may not be deleted: look at the permissions of the directory that it is in"
