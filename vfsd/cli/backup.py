"""``vfsd backup`` and ``vfsd restore``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, printable
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
    "backup",
    examples=[
        "vfsd -s videos backup disk/videos",
        "vfsd -s videos backup disk/videos --no-tiles --json",
    ],
    fields={
        "videos": "number of videos in the backup",
        "files": "number of files in it that are not videos",
        "bytes": "that they all take, with tiles and renditions",
        "copied": "bytes that were not there from the last backup",
        "linked": "videos whose bytes are outside of the store, and not in the backup",
        "damaged": "keys of objects that are damaged or missing, and not in the backup",
        "forbidden": "keys of objects that may not be read, and are not in the backup",
        "unread": "files that are not videos and could not be read; the last backup's copy stays",
        "tables": "videos whose frame tables are damaged, in the store and so in the backup",
        "seconds": "that it took",
    },
    exits=[
        UsageError,
        ExistsError,
        BusyError,
        IntegrityError,
        NoSpaceError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--no-tiles", is_flag=True, help="Leave out tiles and renditions, which can be made again."
)
@click.pass_obj
def backup(session: Session, target: Path, no_tiles: bool) -> None:
    """Copy the store to DIR, or bring the copy there up to date.

    The copy is a store as it was at one moment, with all bytes compared with their checksums: it
    can be opened and mounted, or copied back.  The store may be mounted and in use meanwhile.
    Until the end DIR holds the last backup; what was interrupted goes on when it is said again.
    What has gone from the store goes from the backup.  Ends with 30 where something is damaged, or
    may not be read: that is named, and all else is in the backup.
    """
    from vfsd.maintenance.backup import back_up

    began = time.monotonic()
    with (
        session.opened(session.root()) as store,
        Progress("copying", None, shown=session.shows_progress, in_bytes=True) as progress,
    ):
        done = back_up(store.parts, target, derived=not no_tiles, on_progress=progress.reach)
    seconds = time.monotonic() - began
    if session.json:
        print_json(
            {
                "videos": done.videos,
                "files": done.files,
                "bytes": done.bytes,
                "copied": done.copied,
                "linked": list(done.linked),
                "damaged": list(done.damaged),
                "forbidden": list(done.forbidden),
                "unread": list(done.unread),
                "tables": list(done.tables),
                "seconds": seconds,
            }
        )
    else:
        print_line(
            f"{done.videos} videos and {done.files} other files, {human_bytes(done.bytes)}, of "
            f"which {human_bytes(done.copied)} were new"
        )
    for name in done.linked:
        session.remark(f"{printable(name)} lies outside of the store, and is not in the backup")
    for key in done.damaged:
        session.remark(f"object {key} is damaged or missing, and is not in the backup")
    for key in done.forbidden:
        session.remark(f"object {key} may not be read, and is not in the backup")
    for name in done.unread:
        session.remark(
            f"{printable(name)} could not be read: the backup has it as the last one did, if at all"
        )
    if done.damaged or done.forbidden:
        session.remark("`vfsd fsck --deep` tells what they belong to")
    for name in done.tables:
        session.remark(
            f"{printable(name)} has a damaged frame table, in the backup, too: "
            "`vfsd fsck --repair`, here or there, makes it again"
        )
    if done.damaged or done.forbidden or done.unread or done.tables:
        click.get_current_context().exit(EXIT_FINDINGS)


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
def restore(session: Session, backup: Path, target: Path) -> None:
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
        session.remark(printable(f"the catalog and files from before are in {done.replaced}"))
    if done.unused:
        session.remark(
            f"{done.unused} objects belong to nothing any more; `vfsd gc` deletes them for good"
        )
    for name in done.linked:
        session.remark(f"{printable(name)} lies outside of the store, and was not in the backup")
    for key in done.missing:
        session.remark(f"object {key} is damaged or missing in the backup, and not in the store")
    for name in done.emptied:
        session.remark(f"{printable(name)} is empty: its bytes are not in the backup")
    if done.missing:
        session.remark("`vfsd fsck` tells what they belong to")
    if done.missing or done.emptied:
        click.get_current_context().exit(EXIT_FINDINGS)
