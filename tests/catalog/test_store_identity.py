"""The owner of a catalog: it belongs to one store, and others cannot open it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa

from tests.support.catalog_rows import add_video
from vfsd.catalog import Catalog
from vfsd.errors import ExistsError, StoreError


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/catalog.sqlite3"
        return
    url = request.getfixturevalue("own_database")
    own = f"owner_{tmp_path.name}".lower()[:60]
    server = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE "{own}"'))
    server.dispose()
    yield url.replace("/postgres?", f"/{own}?")


def test_catalog_belongs_to_one_store(url: str) -> None:
    with Catalog.create(url, store_id="one") as catalog, catalog.writing() as change:
        add_video(change, "a.mp4")
    with pytest.raises(ExistsError, match="already"):
        Catalog.create(url, store_id="other")
    assert Catalog.owner_at(url) == "one"
    with Catalog.create(url, store_id="one") as catalog:  # like a retry after an interruption
        assert catalog.find().names() == ["a.mp4"]


def test_concurrent_creation_has_one_owner(url: str) -> None:
    both = Barrier(2)

    def make(store_id: str) -> str | None:
        both.wait()
        try:
            Catalog.create(url, store_id=store_id).close()
        except ExistsError:
            return None
        return store_id

    with ThreadPoolExecutor(2) as threads:
        made = set(threads.map(make, ["one", "other"]))
    assert made == {None, Catalog.owner_at(url)}


def test_other_stores_cannot_open_the_catalog(url: str) -> None:
    Catalog.create(url, store_id="one").close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="'one'") as caught:
            Catalog.open(url, read_only=read_only, store_id="other")
        assert "vfsd-store.json" in str(caught.value.hint)
        Catalog.open(url, read_only=read_only, store_id="one").close()
        Catalog.open(url, read_only=read_only).close()


def test_unowned_catalog_is_claimed_by_the_first_writer(url: str) -> None:
    Catalog.create(url).close()
    Catalog.open(url, read_only=True, store_id="other").close()
    with pytest.raises(ExistsError):  # another store may be about to take it
        Catalog.create(url, store_id="other")
    assert Catalog.owner_at(url) is None
    Catalog.open(url, store_id="one").close()
    assert Catalog.owner_at(url) == "one"
    with pytest.raises(StoreError):
        Catalog.open(url, store_id="other")
