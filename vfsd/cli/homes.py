"""``vfsd join`` and ``vfsd homes``: several directories of one store, for several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, print_table, printable
from vfsd.cli.session import Session
from vfsd.errors import BusyError, ExistsError, NoStoreError, NotFoundError, UsageError

if TYPE_CHECKING:
    from vfsd.maintenance.homes import HomeSummary

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
