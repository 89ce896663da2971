"""New stores and catalogs, as copies of a template.

Most tests need a store of their own.  Creating one runs all migrations, which takes thirty times
as long as copying it.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sqlite3
import tempfile
import uuid
from contextlib import closing
from functools import cache
from pathlib import Path

from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.disk.store_layout import CATALOG

_MARKER = "vfsd-store.json"


@cache
def _made_in_full() -> Path:
    folder = tempfile.mkdtemp(prefix="vfsd-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "store"
    Store.create(path).close()
    (path / "reserve").unlink()  # opening the store makes a new one faster
    with closing(sqlite3.connect(path / CATALOG)) as database, database:
        database.execute("DELETE FROM store_identity")  # each copy needs its own identity
    return path


def new_store(path: Path) -> Store:
    """Like `Store.create(path)`, for tests that do not test the creation of stores."""
    shutil.copytree(_made_in_full(), path)
    marker = json.loads((path / _MARKER).read_text(encoding="utf-8"))
    marker["id"] = str(uuid.uuid4())
    (path / _MARKER).write_text(json.dumps(marker), encoding="utf-8")
    return Store.open(path)


def new_catalog(path: Path) -> Catalog:
    """Like `Catalog.create` for an SQLite file `path`."""
    shutil.copyfile(_made_in_full() / CATALOG, path)
    return Catalog.open(f"sqlite:///{path}")
