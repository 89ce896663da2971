"""Commands for a store as a whole: ``vfsd init``, ``config``, ``calibrate``, ``backup`` and
``restore``.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import Progress, print_json, print_line, printable
from vfsd.cli.session import Session, require_writable
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
    StoreError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.core.model import MeasuredCost


@define(
    "init",
    examples=[
        "vfsd init new-store",
        "vfsd init other-store --catalog sqlite:///$PWD/elsewhere.sqlite3",
        "vfsd init shared --catalog postgresql+psycopg://vfsd@db/videos --objects s3://bucket/v",
    ],
    fields={
        "store": "the new store's directory",
        "id": "its identity, which does not change when it moves",
    },
    exits=[ExistsError, BusyError, StoreError, UnreachableError, ExtraMissingError],
)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--catalog",
    metavar="URL",
    help="Keep the catalog in this database (an SQLAlchemy URL) instead of in the store.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="A bucket for the objects, such as s3://bucket/prefix.",
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of its server; see `vfsd push`.",
)
def init(
    session: Session,
    directory: Path | None,
    catalog: str | None,
    objects: str | None,
    options: tuple[str, ...],
) -> None:
    """Create a store.

    DIR is empty or does not exist yet; the default is the directory of --store or VFSD_STORE. A
    store is a directory of objects and a catalog. The catalog is an SQLite file in it, or the
    database of --catalog, which must not contain a catalog yet. The list of processes shows that
    URL to other users while the command runs: put the password in ~/.pgpass.
    """
    from vfsd.api.store import Store
    from vfsd.cli.bucket import parsed_options

    if directory is None and not session.names_store:
        raise UsageError("DIR must be given", hint="use `vfsd init DIR`")
    if options and objects is None:
        raise UsageError("--option needs --objects")
    bucket_options = parsed_options(options)
    if objects is not None:
        from vfsd.remote.fetch_protocol import require_bucket

        require_bucket(objects, bucket_options)
    with Store.create(directory or session.root(), catalog_url=catalog) as store:
        if objects is not None:
            from vfsd.maintenance.push import use_bucket

            use_bucket(store.parts, objects, bucket_options)
        session.print_result(
            {"store": str(store.path), "id": store.parts.directory.id}, printable(str(store.path))
        )


@define(
    "config",
    examples=[
        "vfsd -s videos config",
        "vfsd -s videos config verify false",
        "vfsd -s videos config view_cache_bytes 4GiB",
        "vfsd -s videos config workers --json",
    ],
    fields={
        "key": "name of the setting",
        "value": "present value",
        "default": "default value",
        "help": "its meaning",
    },
    listing=True,
)
@click.argument("key", required=False)
@click.argument("value", required=False)
def config(session: Session, key: str | None, value: str | None) -> None:
    """Show or change the settings of a store.

    Without KEY all settings are shown, with KEY only its value. Bytes may have a unit, as in 500M
    or 4GiB. A mount uses changes after its next start.
    """
    from vfsd.disk.store_config import StoreSettings, describe
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.validation import not_one_of

    directory = StoreDirectory.open(session.root())
    settings = StoreSettings.load(directory.settings)
    known = [field.name for field in dataclasses.fields(StoreSettings)]
    if key is not None and key not in known:
        raise not_one_of("a setting", key, known)
    if key is not None and value is not None:
        settings = settings.with_text(key, value)
        require_writable(directory.root)
        settings.save(directory.settings)
    for name in known if key is None else [key]:
        if session.json:
            print_json(
                {
                    "key": name,
                    "value": getattr(settings, name),
                    "default": getattr(StoreSettings(), name),
                    "help": describe(name),
                }
            )
        elif key is not None:
            print_line(_setting_text(getattr(settings, name)))
        else:
            print_line(f"{name} = {_setting_text(getattr(settings, name))}  # {describe(name)}")


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_COST_HEADING = "codec        start   picture     Mpixel       MB    encode Mpixel      R2"


@define(
    "calibrate",
    examples=["vfsd -s videos calibrate fast", "vfsd -s videos calibrate --show --json"],
    fields={
        "name": "codec name in FFmpeg, or a tile codec",
        "start": "CPU seconds to start at a key frame",
        "picture": "CPU seconds per picture",
        "pixel": "CPU seconds per pixel",
        "byte": "CPU seconds per byte",
        "encode_pixel": "CPU seconds to encode a pixel; null for codecs without tiles",
        "r2": "share of the variance of decoding times that the model explains",
        "samples": "number of timed decodes",
    },
    exits=[NoStoreError],
    listing=True,
)
@click.argument("codecs", nargs=-1, metavar="[CODEC]...")
@click.option("--show", is_flag=True, help="Only print earlier measurements.")
def calibrate(session: Session, codecs: tuple[str, ...], show: bool) -> None:
    """Measure the cost of decoding on this host.

    The planner uses these costs to choose between tiles and the original. The command takes about a
    minute on an idle machine, and less for some CODECs only. The results are stored in the catalog
    by host name, for all processes on that host.
    """
    from vfsd.core.process_control import host_name
    from vfsd.derive.calibrate import calibrate

    with session.opened(session.root(), writing=not show) as store:
        if show:
            known = store.catalog.costs(host_name())
            costs = [cost for cost in known if not codecs or cost.name in codecs]
        else:
            with Progress("calibrating", None, shown=session.shows_progress) as progress:
                costs = calibrate(store.parts, codecs, on_progress=progress.reach)
    if not session.json and costs:
        print_line(_COST_HEADING)
    for cost in costs:
        _print_cost(session, cost)


def _print_cost(session: Session, cost: MeasuredCost) -> None:
    decode = cost.decode
    if session.json:
        print_json(
            {
                "name": cost.name,
                "start": decode.start,
                "picture": decode.picture,
                "pixel": decode.pixel,
                "byte": decode.byte,
                "encode_pixel": cost.encode_pixel,
                "r2": cost.r2,
                "samples": cost.samples,
            }
        )
        return
    encode = "" if cost.encode_pixel is None else f"{cost.encode_pixel * 1e9:.2f} ms"
    print_line(
        f"{cost.name:8} {decode.start * 1e6:6.0f} us {decode.picture * 1e6:6.1f} us"
        f" {decode.pixel * 1e9:7.3f} ms {decode.byte * 1e9:5.0f} ms  {encode:>13} {cost.r2:7.3f}"
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
