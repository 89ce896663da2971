"""``vfsd init``: make a store."""

from __future__ import annotations

from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.errors import BusyError, ExistsError, UsageError


@define(
    "init",
    examples=[
        "vfsd init new-store",
        "vfsd init other-store --catalog sqlite:///$PWD/elsewhere.sqlite3",
    ],
    fields={"store": "the new store's directory", "id": "its identity, which stays when it moves"},
    exits=[ExistsError, BusyError],
)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--catalog",
    metavar="URL",
    help="Keep the catalog in this database (an SQLAlchemy URL) instead of in the store.",
)
@click.pass_obj
def command(session: Session, directory: Path | None, catalog: str | None) -> None:
    """Make a store.

    DIR is empty or does not exist yet; its default is the directory of --store or VFSD_STORE.  A
    store is a directory of objects and a catalog.  The catalog is an SQLite file in it, or the
    database that --catalog names, which must not contain a catalog yet.  Other users can see that
    URL in the list of processes while this runs: put the password in ~/.pgpass.
    """
    from vfsd.api.store import Store

    if directory is None and not session.names_store:
        raise UsageError("a directory for the store must be given", hint="`vfsd init DIR`")
    with Store.create(directory or session.root(), catalog_url=catalog) as store:
        if session.json:
            print_json({"store": str(store.path), "id": store.parts.directory.id})
        else:
            print_line(shown(str(store.path)))
