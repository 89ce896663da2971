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


_POOLED = pytest.param("pgbouncer", marks=pytest.mark.thorough)


@pytest.fixture(params=["sqlite", "postgresql", _POOLED])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog on SQLite or PostgreSQL, or behind a pooler."""
    if request.param == "sqlite":
        with new_catalog(tmp_path / "catalog.sqlite3") as opened:
            yield opened
        return
    url = request.getfixturevalue("own_database")
    if request.param == "pgbouncer":
        url = request.getfixturevalue("pgbouncer").url_of(url)
    with Catalog.create(url) as opened:
        yield opened
