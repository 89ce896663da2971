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
        "files": "number of other files in it",
        "bytes": "their size, with tiles and renditions",
        "copied": "bytes that the last backup did not have",
        "linked": "videos indexed in place, whose bytes are not in the backup",
        "damaged": "keys of objects that are damaged or missing, and not in the backup",
        "forbidden": "keys of objects without read permission, which are not in the backup",
        "unread": "other files that could not be read; the copy of the last backup stays",
        "tables": "videos with damaged frame tables, in the store and in the backup",
        "seconds": "duration",
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
    """Copy a store to DIR, or update the copy there.

    The copy is a store at one moment, with all bytes compared with their checksums. It can be
    opened, mounted, or copied back. The store may be mounted and in use. Until the end DIR holds
    the last backup; after an interruption the same command continues. Data that is deleted from the
    store is deleted from the backup. Ends with 30 if data is damaged or unreadable: it is named,
    and the rest is in the backup.
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
            f"{done.videos} videos and {done.files} other files, {human_bytes(done.bytes)}, "
            f"{human_bytes(done.copied)} of them new"
        )
    for name in done.linked:
        session.remark(f"{printable(name)} is outside of the store, and not in the backup")
    for key in done.damaged:
        session.remark(f"object {key} is damaged or missing, and is not in the backup")
    for key in done.forbidden:
        session.remark(f"object {key} may not be read, and is not in the backup")
    for name in done.unread:
        session.remark(
            f"{printable(name)} could not be read: the backup keeps its last copy, if it has one"
        )
    if done.damaged or done.forbidden:
        session.remark("`vfsd fsck --deep` names their files")
    for name in done.tables:
        session.remark(
            f"{printable(name)} has a damaged frame table, in the backup, too: `vfsd fsck "
            "--repair`, here or there, rebuilds it"
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
        "files": "number of other files in it",
        "bytes": "their size, with tiles and renditions",
        "copied": "bytes that were copied from the backup",
        "linked": "videos indexed in place, whose bytes are not in the backup",
        "missing": "keys of objects that are missing or damaged in both the store and the backup",
        "emptied": "other files whose bytes are not in the backup; they are empty now",
        "unused": "number of objects without references; `vfsd gc` deletes them",
        "replaced": "directory with the catalog and the private files from before, or null",
        "seconds": "duration",
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
    """Restore the store in DIR from BACKUP, or create it there.

    BACKUP is a copy of that store by `vfsd backup`. Both must be unmounted, and DIR must not be
    open in any process. Until the end DIR keeps its state; after an interruption the same command
    continues. Names, times, labels and files that are not videos are restored. The earlier catalog
    and such files are kept in DIR/replaced-TIME, which may be deleted. Newer videos lose their
    names, but their bytes stay until `vfsd gc`. All bytes are compared with their checksums, also
    those that DIR has already. Ends with 30 if objects or bytes of files are missing.
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
            f"{done.videos} videos and {done.files} other files, {human_bytes(done.bytes)}, "
            f"{human_bytes(done.copied)} of them copied"
        )
    if done.replaced is not None:
        session.remark(printable(f"the catalog and files from before are in {done.replaced}"))
    if done.unused:
        session.remark(f"{done.unused} objects have no references; `vfsd gc` deletes them for good")
    for name in done.linked:
        session.remark(f"{printable(name)} is outside of the store, and was not in the backup")
    for key in done.missing:
        session.remark(f"object {key} is damaged or missing in the backup, and not in the store")
    for name in done.emptied:
        session.remark(f"{printable(name)} is empty: its bytes are not in the backup")
    if done.missing:
        session.remark("`vfsd fsck` names their files")
    if done.missing or done.emptied:
        click.get_current_context().exit(EXIT_FINDINGS)
