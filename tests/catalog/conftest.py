"""A catalog in a file of its own, and one on PostgreSQL where a server can be started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores import new_catalog
from vfsd.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with new_catalog(tmp_path / "catalog.sqlite3") as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog on SQLite or PostgreSQL."""
    if request.param == "sqlite":
        with new_catalog(tmp_path / "catalog.sqlite3") as opened:
            yield opened
        return
    with Catalog.create(request.getfixturevalue("own_database")) as opened:
        yield opened
