"""Commands for backups in directories and buckets: ``vfsd backup``, ``restore`` and ``backups``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import Progress, print_json, print_table, printable
from vfsd.cli.session import Session
from vfsd.cli.store import parsed_options
from vfsd.cli.work import LATER, ORDER_EXITS, ORDER_VARIANTS, engine_options, run_units
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    BusyError,
    ExistsError,
    ExtraMissingError,
    IntegrityError,
    NoSpaceError,
    NoStoreError,
    ReadOnlyError,
    UnreachableError,
    UsageError,
)
from vfsd.validation import is_url


class _Backup(click.Path):
    """A directory as a `Path`, or the URL of a bucket as text."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_url(value) else super().convert(value, param, ctx)


_BACKUP = _Backup()
_bucket_option = click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the server of a bucket; see `vfsd push`.",
)
_at_option = click.option(
    "--at",
    metavar="NAME",
    default="",
    help="A backup in a bucket, by the beginning of its name, instead of the newest.",
)


@define(
    "backup",
    examples=[
        "vfsd -s videos backup disk/videos",
        "vfsd -s videos backup disk/videos --no-tiles --json",
        "vfsd -s videos backup s3://bucket/backups --option region=eu-central-1",
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
    variants={"--on later": ORDER_VARIANTS["--on"], "--units": ORDER_VARIANTS["--units"]},
    exits=[
        UsageError,
        ExistsError,
        IntegrityError,
        NoSpaceError,
        *ORDER_EXITS,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("target", metavar="DIR|URL", type=_BACKUP)
@click.option(
    "--no-tiles", is_flag=True, help="Leave out tiles and renditions, which can be made again."
)
@click.option(
    "--check", is_flag=True, help="Read the copies in the bucket, and replace damaged ones."
)
@_bucket_option
@engine_options
def backup(
    session: Session,
    target: Path | str,
    no_tiles: bool,
    check: bool,
    options: tuple[str, ...],
    on: str | None,
    units: Path | None,
) -> None:
    """Copy a store to DIR or to a bucket.

    The copy is a store at one moment, with all bytes compared with their checksums. The store may
    be mounted and in use. After an interruption the same command continues. Ends with 30 if data is
    damaged or unreadable: it is named, and the rest is in the backup.

    In DIR, the copy can be opened and mounted. Until the end DIR holds the last backup. Data that
    is deleted from the store is deleted from the backup.

    URL, such as s3://bucket/prefix, gets the bytes that it lacks, and keeps all earlier backups.
    The catalog may be on a server. Credentials come from the environment or a profile. With --on,
    workers copy the objects first; with `later`, the same command without it publishes the backup.
    """
    began = time.monotonic()
    if on is not None or units is not None:
        if not isinstance(target, str):
            raise UsageError("--on needs the URL of a bucket")
        if _copy_on(session, target, not no_tiles, parsed_options(options), on=on, units=units):
            return
    with (
        session.opened(session.root()) as store,
        Progress("copying", None, shown=session.shows_progress, in_bytes=True) as progress,
    ):
        if isinstance(target, str):
            from vfsd.maintenance.remote_backup import back_up_to_bucket

            done = back_up_to_bucket(
                store.parts,
                target,
                parsed_options(options),
                derived=not no_tiles,
                check=check,
                on_progress=progress.reach,
            )
        elif check or options:
            raise UsageError("--check and --option need the URL of a bucket")
        else:
            from vfsd.maintenance.backup import back_up

            done = back_up(store.parts, target, derived=not no_tiles, on_progress=progress.reach)
    seconds = time.monotonic() - began
    session.print_result(
        {**asdict(done), "seconds": seconds},
        f"{done.videos} videos and {done.files} other files, {human_bytes(done.bytes)}, "
        f"{human_bytes(done.copied)} of them new",
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


def _copy_on(
    session: Session,
    url: str,
    derived: bool,
    options: dict[str, str | bool],
    *,
    on: str | None,
    units: Path | None,
) -> bool:
    """Copy objects in units; return whether that is all there is to do."""
    from vfsd.work.plan import backup_units

    spec = {"to": url, "options": options, "derived": derived}
    with session.opened(session.root(), writing=True) as store:
        run_units(
            *(session, store, "backup", [], spec, list(backup_units(store, spec))),
            on=on,
            units=units,
            concludes=False,
        )
    return on in (None, LATER) or units is not None


@define(
    "restore",
    examples=[
        "vfsd restore disk/videos videos",
        "vfsd restore disk/videos elsewhere --json",
        "vfsd restore s3://bucket/backups elsewhere --at backup-20261128",
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
        UnreachableError,
        ExtraMissingError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("backup", metavar="BACKUP", type=_BACKUP)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@_at_option
@_bucket_option
def restore(
    session: Session, backup: Path | str, target: Path, at: str, options: tuple[str, ...]
) -> None:
    """Restore the store in DIR from BACKUP, or create it there.

    BACKUP is a copy of that store by `vfsd backup`: a directory, or the URL of a bucket with its
    backups; the default is the newest one. Both must be unmounted, and DIR must not be
    open in any process. Until the end DIR keeps its state; after an interruption the same command
    continues. Names, times, labels and files that are not videos are restored. The earlier catalog
    and such files are kept in DIR/replaced-TIME, which may be deleted. Newer videos lose their
    names, but their bytes stay until `vfsd gc`. All bytes are compared with their checksums, also
    those that DIR has already. Ends with 30 if objects or bytes of files are missing.
    """
    began = time.monotonic()
    with Progress("copying", None, shown=session.shows_progress, in_bytes=True) as progress:
        if isinstance(backup, str):
            from vfsd.maintenance.remote_backup import restore_from_bucket

            done = restore_from_bucket(
                backup,
                parsed_options(options),
                target,
                beginning=at,
                on_progress=progress.reach,
            )
        elif at or options:
            raise UsageError("--at and --option need the URL of a bucket")
        else:
            from vfsd.maintenance.restore import restore

            done = restore(backup, target, on_progress=progress.reach)
    seconds = time.monotonic() - began
    replaced = None if done.replaced is None else str(done.replaced)
    session.print_result(
        {**asdict(done), "replaced": replaced, "seconds": seconds},
        f"{done.videos} videos and {done.files} other files, {human_bytes(done.bytes)}, "
        f"{human_bytes(done.copied)} of them copied",
    )
    if replaced is not None:
        session.remark(printable(f"the catalog and files from before are in {replaced}"))
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


@define(
    "backups ls",
    examples=["vfsd backups ls s3://bucket/backups", "vfsd backups ls s3://bucket/backups --json"],
    fields={
        "name": "its name, which begins with the time",
        "store": "id of the store",
        "videos": "number of videos",
        "bytes": "size of all objects and files",
        "damaged": "number of objects that the store had damaged or not at all",
    },
    exits=[UsageError, NoStoreError, UnreachableError, ExtraMissingError],
    listing=True,
)
@click.argument("url", metavar="URL")
@_bucket_option
def backups_ls(session: Session, url: str, options: tuple[str, ...]) -> None:
    """List the backups in a bucket, oldest first."""
    from vfsd.maintenance.remote_backup import list_backups

    rows = []
    for one in list_backups(url, parsed_options(options)):
        if session.json:
            print_json(
                {
                    "name": one.name,
                    "store": one.store,
                    "videos": one.videos,
                    "bytes": one.bytes,
                    "damaged": one.damaged,
                }
            )
        rows.append((one.name, str(one.videos), human_bytes(one.bytes)))
    if not session.json:
        print_table([("name", "videos", "bytes"), *rows], "<>>")


@define(
    "backups check",
    examples=[
        "vfsd backups check s3://bucket/backups",
        "vfsd backups check s3://bucket/backups --at backup-20261128 --json",
    ],
    fields={
        "backup": "name of the backup",
        "objects": "number of objects and files that were read",
        "bytes": "their size",
        "damaged": "keys without a good copy in the bucket",
        "spoiled": "names of damaged copies",
    },
    exits=[
        UsageError,
        NoStoreError,
        IntegrityError,
        NoSpaceError,
        UnreachableError,
        ExtraMissingError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("url", metavar="URL")
@_at_option
@_bucket_option
def backups_check(session: Session, url: str, at: str, options: tuple[str, ...]) -> None:
    """Compare a backup in a bucket with its checksums.

    Nothing is restored or written. Ends with 30 if bytes are damaged or missing; while the store
    has them, `vfsd backup --check` uploads them again.
    """
    from vfsd.maintenance.remote_backup import check_backup

    with Progress("reading", None, shown=session.shows_progress, in_bytes=True) as progress:
        done = check_backup(url, parsed_options(options), beginning=at, on_progress=progress.reach)
    session.print_result(
        asdict(done),
        f"{done.backup}: {done.objects} objects and files, {human_bytes(done.bytes)}",
    )
    for name in done.spoiled:
        session.remark(f"{name} is damaged in the bucket")
    for key in done.damaged:
        session.remark(f"{key} has no good copy in the bucket")
    if done.spoiled or done.damaged:
        click.get_current_context().exit(EXIT_FINDINGS)
