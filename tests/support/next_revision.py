"""A program that is one revision of the catalog ahead: see `tests.support.next_migrations`."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from vfsd.catalog import open_catalog

FIRST, NEXT = open_catalog.REVISIONS[-1], "next"
"""The newest revision of this program, and that of the program ahead."""


def midway() -> None:
    """Called by the second step after it has changed some rows."""


@contextmanager
def next_program(stop: Callable[[], None] = midway) -> Iterator[None]:
    """Upgrade catalogs that are opened in the block to the revision `NEXT`.

    `stop` is called in the middle of the upgrade.
    """
    with (
        patch.object(open_catalog, "REVISIONS", (*open_catalog.REVISIONS, NEXT)),
        patch.object(open_catalog, "_SCRIPTS", "tests.support:next_migrations"),
        patch(f"{__name__}.midway", stop),
    ):
        yield


@contextmanager
def program_of(catalog: Path) -> Iterator[None]:
    """Open catalogs in the block by the program that the SQLite file `catalog` needs."""
    revision = None
    if catalog.exists():
        # SQLite has to recover the file after a crash, which is left to the program under test.
        with TemporaryDirectory() as folder:
            for path in catalog.parent.glob(f"{catalog.name}*"):
                shutil.copy(path, folder)
            with closing(sqlite3.connect(Path(folder) / catalog.name)) as raw:
                ((revision,),) = raw.execute("SELECT version_num FROM alembic_version")
    with next_program() if revision == NEXT else nullcontext():
        yield
