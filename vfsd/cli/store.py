"""Commands for a store as a whole: ``vfsd init``, ``push``, ``config``, ``calibrate``, ``join`` and
``homes``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import Progress, print_json, print_line, print_table, printable
from vfsd.cli.session import Session, require_writable
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    BusyError,
    ExistsError,
    ExtraMissingError,
    NoStoreError,
    NotFoundError,
    StoreError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.core.model import MeasuredCost
    from vfsd.maintenance.homes import HomeSummary


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
    "push",
    examples=[
        "vfsd -s videos push --objects s3://bucket/videos --option region=eu-central-1",
        "vfsd -s videos push --json",
    ],
    fields={
        "url": "the bucket, and the prefix of all names in it",
        "objects": "number of objects that this run has copied",
        "bytes": "their size",
        "elsewhere": "number of objects that neither the bucket nor this directory has",
        "damaged": "keys of objects that are damaged here, and were not copied",
    },
    exits=[
        UsageError,
        StoreError,
        BusyError,
        UnreachableError,
        ExtraMissingError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.option(
    "--objects",
    metavar="URL",
    help="The bucket, such as s3://bucket/prefix; needed the first time.",
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of its server: endpoint, region, profile, path_style or checksum.",
)
def push(session: Session, objects: str | None, options: tuple[str, ...]) -> None:
    """Copy the objects of a store into a bucket.

    Hosts that joined the store read them from there. New objects are uploaded when they are made,
    so only a store that was local before needs this. Only what the bucket lacks is copied; after an
    interruption the same command continues. Credentials come from the environment or a profile, as
    for other programs of AWS. Ends with 30 if objects are damaged here: they are named, and the
    rest is copied.
    """
    from vfsd.maintenance.push import push as push_objects
    from vfsd.maintenance.push import use_bucket

    if options and objects is None:
        raise UsageError("--option needs --objects")
    if objects is not None:
        with session.opened(session.root()) as store:
            use_bucket(store.parts, objects, parsed_options(options))
    with (
        session.opened(session.root()) as store,
        Progress("copying", None, shown=session.shows_progress, in_bytes=True) as progress,
    ):
        done = push_objects(store.parts, on_progress=progress.reach)
        bucket = store.parts.directory.bucket
    assert bucket is not None
    session.print_result(
        {
            "url": bucket[0],
            "objects": done.objects,
            "bytes": done.bytes,
            "elsewhere": done.elsewhere,
            "damaged": list(done.damaged),
        },
        f"{done.objects} objects, {human_bytes(done.bytes)}, to {bucket[0]}",
    )
    if done.elsewhere:
        session.remark(f"{done.elsewhere} objects are files of other homes: run it there, too")
    for key in done.damaged:
        session.remark(f"object {key} is damaged: run `vfsd scrub`")
    if done.damaged:
        click.get_current_context().exit(EXIT_FINDINGS)


def parsed_options(texts: tuple[str, ...]) -> dict[str, str | bool]:
    """Return the options of a server from NAME=VALUE.  Raises `UsageError`."""
    found: dict[str, str | bool] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(f"an option must be NAME=VALUE, got {text!r}")
        found[name] = value.lower() == "true" if value.lower() in ("true", "false") else value
    return found


_HEADINGS = ("id", "host", "files", "mount", "directory")


@define(
    "join",
    examples=[
        "vfsd join videos --catalog postgresql+psycopg://vfsd@db/videos --objects /nfs/objects"
    ],
    fields={
        "store": "the new home's directory",
        "id": "id of the store",
        "home": "id of the home",
    },
    exits=[ExistsError, BusyError, NoStoreError],
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--catalog", metavar="URL", required=True, help="The catalog of the store.")
@click.option(
    "--objects",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Directory `objects` of the store, as this host sees it; the default is the bucket of the "
    "store, or that directory of a home on this host.",
)
def join(session: Session, directory: Path, catalog: str, objects: Path | None) -> None:
    """Use a store from another host or directory.

    DIR is empty or does not exist yet. It becomes another home of the store whose catalog is on the
    PostgreSQL server at URL: it has its own settings, mount and files that are not videos yet, and
    shares names and videos. If the store has a bucket, videos are read from there. Else, to mount
    it for writing, DIR and the objects must be on one disk.
    """
    from vfsd.api.store import Store
    from vfsd.storage.homes import join_store

    join_store(directory, catalog, objects)
    with Store.open(directory) as store:
        place = store.parts.directory
        record = {"store": str(store.path), "id": place.id, "home": place.home}
    session.print_result(record, printable(str(store.path)))


@define(
    "homes",
    examples=["vfsd -s videos homes", "vfsd -s videos homes --json"],
    fields={
        "id": "id of the home",
        "own": "whether it is this directory",
        "host": "name of its host",
        "place": "its directory there",
        "files": "number of files that only this home can read: being written, or not videos",
        "waiting": "number of these that could not be uploaded yet",
        "kept": "number of files in its folder kept/, which another home took over, or null",
        "mount": "its mount point, null if it is not mounted",
        "silent": "seconds since the mount's last sign of life, or null",
    },
    listing=True,
)
def homes(session: Session) -> None:
    """List the directories that share the catalog of a store."""
    from vfsd.maintenance.homes import list_homes

    with session.opened_context(session.root()) as parts:
        found = list_homes(parts)
    if session.json:
        for one in found:
            print_json(_record(one))
    elif found:
        print_table([_HEADINGS, *map(_row, found)], "<<><<")
        for one in found:
            if one.waiting:
                session.remark(f"{one.waiting} files of {one.home.host} wait for their upload")
            if one.kept:
                session.remark(f"{one.kept} files in kept/ were taken over by another home")
    else:
        session.remark("the store has one home, as its catalog is an SQLite file")


def _record(one: HomeSummary) -> dict[str, Any]:
    mount = one.home.mount
    return {
        "id": one.home.id,
        "own": one.is_own,
        "host": one.home.host,
        "place": one.home.place,
        "files": one.files,
        "waiting": one.waiting,
        "kept": one.kept if one.is_own else None,
        "mount": None if mount is None else mount.place,
        "silent": None if mount is None else mount.silent,
    }


def _row(one: HomeSummary) -> tuple[str, ...]:
    mount = one.home.mount
    return (
        one.home.id,
        printable(one.home.host) + (" (here)" if one.is_own else ""),
        str(one.files),
        "-" if mount is None else printable(mount.place),
        printable(one.home.place),
    )


@define(
    "homes forget",
    examples=["vfsd -s videos homes forget ID", "vfsd -s videos homes forget ID --yes"],
    fields={
        "name": "a file that only this home can read",
        "state": "spooled (being written) or plain (not a video)",
        "removed": "whether it was removed",
    },
    exits=[NotFoundError, BusyError, UsageError],
    listing=True,
)
@click.argument("home", metavar="ID")
@click.option("--yes", is_flag=True, help="Remove the home, and these files.")
def homes_forget(session: Session, home: str, yes: bool) -> None:
    """Remove a home that is gone for good.

    Lists the files whose only bytes were in that directory. With --yes they are removed, and the
    home. Videos stay; its unfinished recordings can be completed here, by `vfsd recover`.
    """
    from vfsd.maintenance.homes import forget_home, private_files

    with session.opened_context(session.root()) as parts:
        found = private_files(parts, home)
        if yes:
            forget_home(parts, home)
    for name, node in found:
        state = None if node.state is None else node.state.value
        if session.json:
            print_json({"name": name, "state": state, "removed": yes})
        else:
            print_line(printable(name))
    if yes:
        session.remark(f"the home and {len(found)} files were removed")
    else:
        session.remark(f"--yes removes the home and {len(found)} files for good")


@define(
    "homes claim",
    examples=["vfsd -s videos homes claim"],
    fields={"id": "id of the home", "place": "its directory"},
    exits=[NotFoundError, BusyError, UsageError],
)
def homes_claim(session: Session) -> None:
    """Use a directory that was moved here from another host.

    The catalog refuses a directory that may be a copy, because both would have the same files. This
    command makes it the home; the other directory, if it still exists, is the copy then.
    """
    from vfsd.maintenance.homes import claim_home

    claimed = claim_home(session.root())
    session.print_result(
        {"id": claimed.id, "place": claimed.place}, printable(f"{claimed.id} {claimed.place}")
    )
