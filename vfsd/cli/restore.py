"""``vfsd restore``: a store as its backup has it."""

from __future__ import annotations

import time
from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, shown
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    BusyError,
    ExistsError,
    IntegrityError,
    NoSpaceError,
    NoStoreError,
    ReadOnlyError,
    UsageError,
)


@define(
    "restore",
    examples=[
        "vfsd restore disk/videos videos",
        "vfsd restore disk/videos elsewhere --json",
    ],
    fields={
        "videos": "number of videos in the store",
        "files": "number of files in it that are not videos",
        "bytes": "that they all take, with tiles and renditions",
        "copied": "bytes that were copied from the backup",
        "linked": "videos whose bytes are outside of the store, and never were in the backup",
        "missing": "keys of objects that neither the store nor the backup has as they were",
        "emptied": "files that are not videos, and whose bytes the backup lacks; they are empty",
        "unused": "number of objects that belong to nothing any more; `vfsd gc` deletes them",
        "replaced": "directory with the catalog and the private files from before, or null",
        "seconds": "that it took",
    },
    exits=[
        UsageError,
        ExistsError,
        ReadOnlyError,
        NoStoreError,
        BusyError,
        IntegrityError,
        NoSpaceError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("backup", metavar="BACKUP", type=click.Path(path_type=Path, file_okay=False))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def command(session: Session, backup: Path, target: Path) -> None:
    """Make the store in DIR what BACKUP has, or make it there.

    BACKUP is a copy that `vfsd backup` made of that store.  Neither of the two may be mounted, and
    nobody may have DIR open.  Until the end DIR holds what it did; what was interrupted goes on
    when it is said again.  Names, times and labels go back to the backup's, and so do files that
    are not videos.  The catalog and such files from before are kept in DIR/replaced-TIME, which may
    be deleted.  Videos that came since lose their names, but their bytes stay until `vfsd gc`.
    All of it is compared with its checksums, also what DIR has already.  Ends with 30 where objects
    or bytes of such files are missing.
    """
    from vfsd.maintenance.restore import restore

    began = time.monotonic()
    with Progress("copying", None, shown=session.shows_progress, in_bytes=True) as progress:
        done = restore(backup, target, on_progress=progress.reach)
    seconds = time.monotonic() - began
    if session.json:
        print_json(
            {
                "videos": done.videos,
                "files": done.files,
                "bytes": done.bytes,
                "copied": done.copied,
                "linked": list(done.linked),
                "missing": list(done.missing),
                "emptied": list(done.emptied),
                "unused": done.unused,
                "replaced": None if done.replaced is None else str(done.replaced),
                "seconds": seconds,
            }
        )
    else:
        print_line(
            f"{done.videos} videos and {done.files} other files, {human_bytes(done.bytes)}, of "
            f"which {human_bytes(done.copied)} were copied"
        )
    if done.replaced is not None:
        session.remark(shown(f"the catalog and files from before are in {done.replaced}"))
    if done.unused:
        session.remark(
            f"{done.unused} objects belong to nothing any more; `vfsd gc` deletes them for good"
        )
    for name in done.linked:
        session.remark(f"{shown(name)} lies outside of the store, and was not in the backup")
    for key in done.missing:
        session.remark(f"object {key} is damaged or missing in the backup, and not in the store")
    for name in done.emptied:
        session.remark(f"{shown(name)} is empty: its bytes are not in the backup")
    if done.missing:
        session.remark("`vfsd fsck` tells what they belong to")
    if done.missing or done.emptied:
        click.get_current_context().exit(EXIT_FINDINGS)
