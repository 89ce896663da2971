"""Leases of uploads, and the transaction that ends them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from vfsd.catalog import Catalog
from vfsd.catalog.bucket_objects import database_time
from vfsd.catalog.schema import garbage, uploads
from vfsd.core.model import ByteLocation
from vfsd.errors import LeaseLostError

KEY = "ab" * 32
ONE, OTHER = f"o/ab/{KEY}-{1:016x}", f"o/ab/{KEY}-{2:016x}"


def left(catalog: Catalog) -> tuple[set[str], set[str]]:
    """Return the places of all uploads and all garbage."""
    with catalog.connected() as connection:
        found = [set(connection.execute(sa.select(table.c.place)).scalars()) for table in _BOTH]
    return found[0], found[1]


_BOTH = (uploads, garbage)


def record(catalog: Catalog, place: str) -> bool:
    with catalog.writing() as change:
        change.objects.record("cd" * 32, 1, now_ns=1)
        return change.objects.record_upload(KEY, 5, place, now_ns=1)


def expire(catalog: Catalog) -> None:
    with catalog._database.appending() as connection:
        past = database_time(connection, -1)
        connection.execute(sa.update(uploads).values(expires=past))


def test_second_upload_of_the_same_bytes_is_garbage(there: Catalog) -> None:
    for place in (ONE, OTHER):
        there.uploads.begin(place, KEY, 5)
        there.uploads.renew(place)
    assert record(there, ONE)
    assert not record(there, OTHER)
    with there.reading() as seen:
        assert seen.objects.place(KEY) == (ONE, 5)
    assert left(there) == (set(), {OTHER})


def test_upload_replaces_damaged_bytes(there: Catalog) -> None:
    for place in (ONE, OTHER):
        there.uploads.begin(place, KEY, 5)
    assert record(there, ONE)
    with there.writing() as change:
        change.integrity.record_inspection(ByteLocation(KEY, None), (range(1, 2),), now_ns=1)
    assert record(there, OTHER)
    with there.reading() as seen:
        assert seen.objects.place(KEY) == (OTHER, 5)
        assert seen.integrity.inspection(ByteLocation(KEY, None)) is None
    assert left(there) == (set(), {ONE})


def test_upload_of_a_file_of_the_home(there: Catalog) -> None:
    with there.writing() as change:
        change.objects.record(KEY, 5, now_ns=1)
    there.uploads.begin(ONE, KEY, 5)
    assert record(there, ONE)
    with there.reading() as seen:
        assert seen.objects.place(KEY) == (ONE, 5)


def test_objects_may_be_large(there: Catalog) -> None:
    there.uploads.begin(ONE, KEY, 5 << 40)
    with there.writing() as change:
        assert change.objects.record_upload(KEY, 5 << 40, ONE, now_ns=1)
        assert change.objects.place(KEY) == (ONE, 5 << 40)


def test_lost_lease_undoes_the_transaction(there: Catalog) -> None:
    there.uploads.begin(ONE, KEY, 5)
    expire(there)
    with pytest.raises(LeaseLostError):
        record(there, ONE)
    with there.reading() as seen:
        assert seen.objects.sizes() == {}
    there.uploads.renew(ONE)  # the row is still there
    assert record(there, ONE)
    with pytest.raises(LeaseLostError):
        there.uploads.renew(ONE)


def test_abandoned_upload_is_garbage(there: Catalog) -> None:
    there.uploads.begin(ONE, KEY, 5)
    there.uploads.abandon(ONE)
    there.uploads.abandon(ONE)
    assert left(there) == (set(), {ONE})
    with pytest.raises(LeaseLostError):
        record(there, ONE)
