"""Checksums of stored bytes, the results of inspecting them, and files that crashed decoders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.engine import Database
from vfsd.catalog.rows import reads_row, require_bytes
from vfsd.catalog.schema import (
    block_sums,
    inspections,
    nodes,
    objects,
    physical_videos,
    scrubs,
    suspects,
    vectors,
    videos,
)
from vfsd.core.model import ByteLocation, FileState, Role
from vfsd.disk.checksums import BlockChecksums, merged

_RUNS_KEPT = 100


@dataclass(frozen=True, slots=True)
class StoredChecksums:
    """The block checksums of one file."""

    sums: BlockChecksums
    mtime_ns: int | None  #: of a file indexed in place, at the time of the checksums


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of comparing the bytes of an object or a linked file with their checksums."""

    place: ByteLocation
    looked_ns: int | None  #: Unix time of the last complete inspection; None: never
    damage: tuple[range, ...]  #: damaged byte ranges, ascending
    found_ns: int | None  #: Unix time at which damage was found


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """An original indexed in place, with its size at that time."""

    place: ByteLocation
    size: int  #: bytes


@dataclass(frozen=True, slots=True)
class DigestMismatch:
    """A video with a digest that differs from the key of its object."""

    video_id: int
    ino: int
    object_key: str
    digest: str


@dataclass(frozen=True, slots=True)
class ScrubRun:
    """A run of `vfsd scrub`."""

    id: int
    what: str  #: the names that were selected; empty: everything
    begun_ns: int
    ended_ns: int | None  #: None: interrupted, or still running


class IntegrityLog:
    """Checksums and known damage."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def checksums(self, place: ByteLocation) -> StoredChecksums | None:
        """Return stored checksums, or None.  Raises `IntegrityError` if they are inconsistent."""
        row = self._connection.execute(
            sa.select(block_sums).where(is_at(block_sums, place))
        ).first()
        if row is None:
            return None
        return _checksums_from_row(row)

    def put_checksums(
        self, place: ByteLocation, checksums: BlockChecksums, *, mtime_ns: int | None = None
    ) -> None:
        """Store the checksums of verified bytes; `mtime_ns` only for a linked file."""
        self.drop_checksums(place)
        self._connection.execute(
            sa.insert(block_sums).values(
                **_columns(place),
                size=checksums.size,
                mtime_ns=mtime_ns,
                block=checksums.block,
                sums=checksums.sums,
            )
        )

    def drop_checksums(self, place: ByteLocation) -> None:
        self._connection.execute(sa.delete(block_sums).where(is_at(block_sums, place)))

    def with_checksums(self) -> set[ByteLocation]:
        rows = self._connection.execute(sa.select(block_sums.c.object_key, block_sums.c.link_path))
        return {_location_from_row(row) for row in rows}

    def count_without_checksums(self) -> int:
        """Return the number of originals that are read without verification, for lack
        of checksums.
        """
        known = sa.select(block_sums.c.id).where(
            sa.or_(
                block_sums.c.object_key == physical_videos.c.object_key,
                block_sums.c.link_path == physical_videos.c.link_path,
            )
        )
        places = (
            _ORIGINALS.with_only_columns(physical_videos.c.object_key, physical_videos.c.link_path)
            .where(~known.exists())
            .distinct()
        )
        query = sa.select(sa.func.count()).select_from(places.subquery())
        return int(self._connection.execute(query).scalar_one())

    def is_known(self, place: ByteLocation) -> bool:
        """Return whether these are the bytes of an original, or of any object."""
        if place.object_key is not None:
            query = sa.select(objects.c.key).where(objects.c.key == place.object_key)
            return self._connection.execute(query).first() is not None
        return bool(self.videos_of(place))

    def inspection(self, place: ByteLocation) -> Inspection | None:
        row = self._connection.execute(
            sa.select(inspections).where(is_at(inspections, place))
        ).first()
        return None if row is None else _inspection_from_row(row)

    def inspections(self) -> dict[ByteLocation, Inspection]:
        rows = self._connection.execute(sa.select(inspections))
        return {found.place: found for found in map(_inspection_from_row, rows)}

    def damaged(self) -> list[Inspection]:
        """Return the inspections that found damage, by time of discovery."""
        rows = self._connection.execute(
            sa.select(inspections)
            .where(inspections.c.damage.is_not(None))
            .order_by(inspections.c.found_ns, inspections.c.id)
        )
        return [_inspection_from_row(row) for row in rows]

    def add_damage(self, place: ByteLocation, ranges: Iterable[range], *, now_ns: int) -> bool:
        """Add damage that was found by a read; return whether any of it is new."""
        before = self.inspection(place)
        known = () if before is None else before.damage
        damage = merged([*known, *ranges])
        if before is not None and tuple(damage) == known:
            return False
        looked_ns = None if before is None else before.looked_ns
        found_ns = now_ns if before is None or not known else before.found_ns
        self._put(Inspection(place, looked_ns, tuple(damage), found_ns))
        return True

    # A clean result changes nothing for others: it is written in a `unwatched_writing` transaction.
    def record_inspection(
        self, place: ByteLocation, damage: Iterable[range], *, now_ns: int
    ) -> None:
        """Record a complete inspection: `damage` replaces all earlier damage."""
        before = self.inspection(place)
        found = tuple(merged(list(damage)))
        found_ns = None
        if found:
            was = None if before is None else before.found_ns
            found_ns = now_ns if was is None else was
        self._put(Inspection(place, now_ns, found, found_ns))

    def forget_inspections(self) -> None:
        self._connection.execute(sa.delete(inspections))

    def forget_inspection(self, place: ByteLocation) -> None:
        self._connection.execute(sa.delete(inspections).where(is_at(inspections, place)))

    def forget_unlinked(self) -> None:
        """Drop checksums and inspections of files in which no video is indexed any more."""
        for table in (block_sums, inspections):
            self._connection.execute(sa.delete(table).where(_is_unlinked(table)))

    def unlinked(self) -> list[ByteLocation]:
        """Return the locations that `forget_unlinked` would drop."""
        found: set[ByteLocation] = set()
        for table in (block_sums, inspections):
            rows = self._connection.execute(
                sa.select(table.c.object_key, table.c.link_path).where(_is_unlinked(table))
            )
            found.update(_location_from_row(row) for row in rows)
        return sorted(found, key=str)

    def originals(self) -> dict[ByteLocation, str]:
        """Return the locations of all originals, with their expected digests.

        The objects of vectors are among them, since nothing can make those again.
        """
        rows = self._connection.execute(_ORIGINALS)
        found = {_location_from_row(row): row.object_key or row.digest for row in rows}
        keys = self._connection.execute(sa.select(vectors.c.object_key).distinct()).scalars()
        return found | {ByteLocation(key, None): key for key in keys}

    def digest_mismatches(self) -> list[DigestMismatch]:
        """Return videos whose digest differs from the object that both file and
        original refer to.
        """
        rows = self._connection.execute(
            _ORIGINALS.with_only_columns(
                videos.c.id, videos.c.ino, nodes.c.object_key, videos.c.digest
            )
            .where(
                nodes.c.object_key == physical_videos.c.object_key,
                videos.c.digest != nodes.c.object_key,
            )
            .order_by(videos.c.id)
        )
        return [DigestMismatch(*row) for row in rows]

    def correct_digest(self, one: DigestMismatch) -> None:
        """Set a video's digest to the key of its object, unless it has changed in the meantime."""
        self._connection.execute(
            sa.update(videos)
            .where(videos.c.id == one.video_id, videos.c.digest == one.digest)
            .values(digest=one.object_key)
        )

    def linked_originals(self) -> list[LinkedFile]:
        """Return all files indexed in place, with their sizes at that time."""
        rows = self._connection.execute(
            sa.select(physical_videos.c.link_path, physical_videos.c.size).where(
                physical_videos.c.link_path.is_not(None)
            )
        )
        return [
            LinkedFile(ByteLocation(None, os.fsdecode(row.link_path)), row.size) for row in rows
        ]

    def videos_of(self, place: ByteLocation) -> list[int]:
        """Return the ids of the videos with these bytes as their original."""
        rows = self._connection.execute(
            sa.select(physical_videos.c.video_id)
            .where(physical_videos.c.role == Role.ORIGINAL.value, is_at(physical_videos, place))
            .order_by(physical_videos.c.video_id)
        )
        return [row.video_id for row in rows]

    def vectors_of(self, place: ByteLocation) -> list[int]:
        """Return the ids of the videos with vectors in these bytes."""
        if place.object_key is None:
            return []
        query = sa.select(vectors.c.video_id).where(vectors.c.object_key == place.object_key)
        return sorted(self._connection.execute(query.distinct()).scalars())

    def unfinished_run(self, what: str, *, since_ns: int) -> ScrubRun | None:
        """Return the last run with this selection if it was interrupted, and began at `since_ns` or
        later.
        """
        row = self._connection.execute(
            sa.select(scrubs).where(scrubs.c.what == what).order_by(scrubs.c.id.desc())
        ).first()
        if row is None or row.ended_ns is not None or row.begun_ns < since_ns:
            return None
        return ScrubRun(row.id, row.what, row.begun_ns, row.ended_ns)

    def begin_run(self, what: str, *, now_ns: int) -> ScrubRun:
        result = self._connection.execute(sa.insert(scrubs).values(what=what, begun_ns=now_ns))
        assert result.inserted_primary_key is not None
        number = int(result.inserted_primary_key[0])
        self._connection.execute(sa.delete(scrubs).where(scrubs.c.id <= number - _RUNS_KEPT))
        return ScrubRun(number, what, now_ns, None)

    def end_run(self, run_id: int, *, now_ns: int) -> None:
        self._connection.execute(
            sa.update(scrubs).where(scrubs.c.id == run_id).values(ended_ns=now_ns)
        )

    def _put(self, found: Inspection) -> None:
        self.forget_inspection(found.place)
        damage = [[one.start, one.stop] for one in found.damage]
        self._connection.execute(
            sa.insert(inspections).values(
                **_columns(found.place),
                looked_ns=found.looked_ns,
                damage=damage or None,
                found_ns=found.found_ns,
            )
        )


_ORIGINALS = (
    sa.select(physical_videos.c.object_key, physical_videos.c.link_path, videos.c.digest)
    .join(videos, videos.c.id == physical_videos.c.video_id)
    .join(nodes, nodes.c.ino == videos.c.ino)
    .where(
        physical_videos.c.role == Role.ORIGINAL.value,
        nodes.c.state == FileState.VIDEO.value,
    )
)


def _columns(place: ByteLocation) -> dict[str, str | bytes | None]:
    path = None if place.link_path is None else os.fsencode(place.link_path)
    return {"object_key": place.object_key, "link_path": path}


def is_at(table: sa.Table, place: ByteLocation) -> sa.ColumnElement[bool]:
    """Return the condition that a row is about the bytes at a location."""
    if place.object_key is not None:
        return table.c.object_key == place.object_key
    return table.c.link_path == os.fsencode(place.link_path or "")


def _is_unlinked(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that no video is indexed in the file of a row; uses an index per row."""
    linked = sa.exists().where(physical_videos.c.link_path == table.c.link_path)
    return sa.and_(table.c.link_path.is_not(None), ~linked)


@reads_row(block_sums)
def _checksums_from_row(row: Row[Any]) -> StoredChecksums:
    return StoredChecksums(
        BlockChecksums(row.size, row.block, require_bytes(row.sums)), row.mtime_ns
    )


def _location_from_row(row: Any) -> ByteLocation:
    path = None if row.link_path is None else os.fsdecode(row.link_path)
    return ByteLocation(row.object_key, path)


@reads_row(inspections)
def _inspection_from_row(row: Row[Any]) -> Inspection:
    damage = tuple(range(first, end) for first, end in row.damage or ())
    return Inspection(_location_from_row(row), row.looked_ns, damage, row.found_ns)


Values = Mapping[str, Any]
"""Columns of a row without its key."""


class Suspects:
    """The table of suspects.  See `vfsd.storage.quarantine`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, dict[str, Any]]:
        """Return the rows by key: an object key, or the path of a file indexed in place."""
        with self._database.reading() as connection:
            rows = [dict(row._mapping) for row in connection.execute(sa.select(suspects))]
        return {row.pop("key"): row for row in rows}

    def change(self, key: str, change: Callable[[Values | None], Values | None]) -> None:
        """Replace the row of a file by what `change` returns for it; None for no row."""
        mine = suspects.c.key == key
        with self._database.writing() as connection:
            row = connection.execute(sa.select(suspects).where(mine)).first()
            before = None if row is None else dict(row._mapping)
            if before is not None:
                del before["key"]
            after = change(before)
            if after == before:
                return
            connection.execute(sa.delete(suspects).where(mine))
            if after is not None:
                connection.execute(sa.insert(suspects).values(key=key, **after))
