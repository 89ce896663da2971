"""Logical videos, their stored encodings, and the register of objects, within one transaction."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shown
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.derived_usage import DerivedUsage, EvictionLog
from vfsd.catalog.integrity import IntegrityLog
from vfsd.catalog.read_history import LoggedReads, TilingDecisions
from vfsd.catalog.retention import ClockHistory, OriginalPolicies
from vfsd.catalog.rows import (
    PreparedStatement,
    bounds_from_row,
    bounds_to_row,
    damage_to_json,
    in_batches,
    page_from_row,
    physical_from_row,
    physical_to_row,
    require_searchable_json,
    require_storable_json,
)
from vfsd.catalog.schema import (
    frame_pages,
    layer_indexes,
    moments,
    nodes,
    objects,
    physical_videos,
    segments,
    store_identity,
    tags,
    vectors,
    videos,
)
from vfsd.catalog.tree import TreeReader
from vfsd.core.capture_time import CaptureClock, CaptureTime, container_time
from vfsd.core.model import (
    ByteLocation,
    FileState,
    LogicalVideo,
    Node,
    PageBounds,
    PhysicalVideo,
    Role,
    StoreBucket,
)
from vfsd.disk.checksums import merged
from vfsd.errors import IntegrityError, NotFoundError, UsageError
from vfsd.validation import require_storable_text

Page = tuple[PageBounds, bytes]


@dataclass(frozen=True, slots=True)
class BrokenVideo:
    """The readable part of a video with otherwise invalid rows."""

    id: int
    digest: str  #: of the bytes that its labels refer to
    was_verified: bool | None  #: a full decode had verified its frame table; None: unknown


_MAX_TAG_LENGTH = 255

_DIGESTS = sa.select(videos.c.digest).where(
    sa.exists().where(
        physical_videos.c.video_id == videos.c.id,
        physical_videos.c.role == Role.ORIGINAL.value,
    )
)
_REMOVE = PreparedStatement(sa.delete(videos).where(videos.c.ino == sa.bindparam("which")))


class Videos:
    """Logical videos and their stored encodings."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def by_inode(self, ino: int) -> LogicalVideo:
        """Return the video of a file.  Raises `NotFoundError` if it is not a video."""
        return self._one(
            sa.and_(videos.c.ino == ino, nodes.c.state == FileState.VIDEO.value),
            f"inode {ino} is not a video",
        )

    def by_node(self, node: Node, name: str) -> LogicalVideo:
        """Like `by_inode`, with messages that name the file and say what it is instead."""
        if node.is_dir:
            raise NotFoundError(
                f"{name!r} is a directory, not a video",
                hint=f"`vfsd ls {shlex.quote(name)}` lists its content",
            )
        if not node.is_file:
            raise NotFoundError(f"{name!r} is not a file")
        try:
            return self.by_inode(node.ino)
        except NotFoundError:
            why = f": {node.reason}" if node.reason else ""
            raise NotFoundError(f"{name!r} is a file but not a video{why}") from None

    def by_inodes(self, names: Mapping[int, str]) -> list[LogicalVideo]:
        """Return the videos among these files, each under the given name."""
        rows = self._connection.execute(
            _SELECT_VIDEO.where(
                videos.c.ino.in_(list(names)), nodes.c.state == FileState.VIDEO.value
            )
        ).all()
        return self._values(rows, names)

    def get(self, video_id: int) -> LogicalVideo:
        """Return the video with that id.  Raises `NotFoundError`."""
        return self._one(videos.c.id == video_id, f"video {video_id} does not exist")

    def require(self, video: LogicalVideo) -> None:
        """Raises `NotFoundError` for a video that was deleted since it was found, or is of another
        store.

        Ids of another store may be those of any video here.
        """
        query = sa.select(videos.c.created_ns).where(videos.c.id == video.id)
        found = self._connection.execute(query).first()
        if found is None:
            raise NotFoundError(
                f"the video {video.name!r} was removed", hint="look it up again by its name"
            )
        if found.created_ns != video.created_ns:
            raise NotFoundError(
                f"the video {video.name!r} belongs to another store",
                hint="look it up by its name in this store, or use the catalog of its own store",
            )

    def broken_video(self, ino: int) -> BrokenVideo | None:
        """Return the readable part of a file's video, or None."""
        originals = sa.and_(
            physical_videos.c.video_id == videos.c.id,
            physical_videos.c.role == Role.ORIGINAL.value,
        )
        row = self._connection.execute(
            sa.select(videos.c.id, videos.c.digest, physical_videos.c.verified)
            .join(physical_videos, originals, isouter=True)
            .where(videos.c.ino == ino)
        ).first()
        return None if row is None else BrokenVideo(*row)

    def digests(self, among: Iterable[str] | None = None) -> set[str]:
        """Return the digests (among `some`) that current videos have.

        A file that is being written over has lost its own.
        """
        parts = [sa.true()] if among is None else in_batches(videos.c.digest, among)
        found: set[str] = set()
        for part in parts:
            found.update(self._connection.execute(_DIGESTS.where(part)).scalars())
        return found

    def unverified(self, limit: int, before_id: int | None = None) -> list[LogicalVideo]:
        """Return videos whose original no full decode has verified or examined for damage, newest
        first.

        With `before_id`, only those whose originals have lower ids.
        """
        chosen = (
            sa.select(physical_videos.c.video_id)
            .join(videos, videos.c.id == physical_videos.c.video_id)
            .join(nodes, nodes.c.ino == videos.c.ino)
            .where(
                physical_videos.c.role == Role.ORIGINAL.value,
                sa.or_(physical_videos.c.verified.is_(False), physical_videos.c.damage.is_(None)),
                nodes.c.state == FileState.VIDEO.value,
            )
            .order_by(physical_videos.c.id.desc())
            .limit(limit)
        )
        if before_id is not None:
            chosen = chosen.where(physical_videos.c.id < before_id)
        return [self.get(number) for number in self._connection.execute(chosen).scalars()]

    def physicals(self, video_id: int) -> list[PhysicalVideo]:
        """Return all stored encodings of a video, the original first."""
        rows = self._connection.execute(
            sa.select(physical_videos)
            .where(physical_videos.c.video_id == video_id)
            .order_by(physical_videos.c.role != Role.ORIGINAL.value, physical_videos.c.id)
        )
        return [physical_from_row(row) for row in rows]

    def physical(self, physical_id: int) -> PhysicalVideo:
        """Return a stored encoding.  Raises `NotFoundError`."""
        row = self._connection.execute(
            sa.select(physical_videos).where(physical_videos.c.id == physical_id)
        ).first()
        if row is None:
            raise NotFoundError(f"stored encoding {physical_id} does not exist")
        return physical_from_row(row)

    def page_bounds(self, physical_id: int) -> list[PageBounds]:
        """Return the properties of a frame table's pages that are known without reading them."""
        rows = self._connection.execute(_PAGE_BOUNDS, {"id": physical_id})
        return [bounds_from_row(row) for row in rows]

    def page(self, physical_id: int, ordinal: int) -> bytes:
        """Return a page.

        Raises `IntegrityError` if the page is missing, and `NotFoundError` if the encoding is.
        """
        data = self._connection.execute(_PAGE, {"physical_id": physical_id, "ordinal": ordinal})
        found: bytes | None = data.scalar()
        if found is None:
            self.require_there(physical_id)
            raise IntegrityError(
                f"page {ordinal} of frame table {physical_id} is missing", hint="run `vfsd fsck`"
            )
        return found

    def pages(self, physical_id: int) -> Iterator[Page]:
        """Return all pages of a frame table in stored form."""
        rows = self._connection.execute(
            sa.select(frame_pages)
            .where(frame_pages.c.physical_id == physical_id)
            .order_by(frame_pages.c.ordinal)
        )
        return map(page_from_row, rows)

    def require_there(self, physical_id: int) -> None:
        """Raises `NotFoundError` for an encoding that was deleted since it was looked up."""
        query = sa.select(physical_videos.c.id).where(physical_videos.c.id == physical_id)
        if self._connection.execute(query).first() is None:
            raise _video_gone_error()

    def tags(self, video_id: int) -> frozenset[str]:
        rows = self._connection.execute(sa.select(tags.c.tag).where(tags.c.video_id == video_id))
        return frozenset(rows.scalars())

    def put(
        self,
        ino: int,
        original: PhysicalVideo,
        pages: Iterable[Page],
        *,
        digest: str,
        now_ns: int,
    ) -> LogicalVideo:
        """Make a file a video with this original.  `original.id` and `original.video_id` are
        ignored.

        A file that was a video before its bytes changed keeps its id, tags and metadata.
        Everything derived from the old bytes is deleted.  If the bytes differ, so are its
        detections, moments, vectors, layers, reads, decisions, evictions and pins, and its age
        restarts.  It stops being a layer.  Its time of recording is that of the new container,
        unless a user or the name gave it.  Bytes that once replaced others here keep their error.
        """
        there = self._connection.execute(
            sa.select(videos.c.id, videos.c.digest, videos.c.captured_clock).where(
                videos.c.ino == ino
            )
        ).first()
        if there is None:
            result = self._connection.execute(
                sa.insert(videos).values(
                    ino=ino,
                    digest=digest,
                    created_ns=now_ns,
                    metadata={},
                    **_capture_values(container_time(original.media.tags)),
                )
            )
            assert result.inserted_primary_key is not None
            video_id = int(result.inserted_primary_key[0])
        else:
            video_id = int(there.id)
            self.drop_physicals(ino)
            if there.digest != digest:
                from vfsd.catalog.detections import Detections  # imports numpy
                from vfsd.catalog.layers import Layers

                Detections(self._connection).remove_of_video(video_id)
                for table in (moments, vectors):
                    self._connection.execute(sa.delete(table).where(table.c.video_id == video_id))
                Layers(self._connection).remove_of_video(video_id)
                LoggedReads(self._connection).remove(video_id)
                TilingDecisions(self._connection).remove_of_video(video_id)
                EvictionLog(self._connection).remove_of_video(video_id)
                DerivedUsage(self._connection).unpin_video(video_id)
                ClockHistory(self._connection).note_new_bytes(video_id, now_ns)
                if there.captured_clock in (None, CaptureClock.CONTAINER):
                    self.set_captured(video_id, container_time(original.media.tags))
            self._connection.execute(
                sa.update(videos).where(videos.c.id == video_id).values(digest=digest)
            )
        error = OriginalPolicies(self._connection).known_error(video_id, digest)
        self.add_physical(video_id, replace(original, error=error), pages)
        return self.get(video_id)

    def set_captured(self, video_id: int, captured: CaptureTime | None) -> None:
        """Set when the first frame was recorded; None: unknown."""
        self._connection.execute(
            sa.update(videos).where(videos.c.id == video_id).values(**_capture_values(captured))
        )

    def replace_original(
        self, video_id: int, original: PhysicalVideo, pages: Iterable[Page], *, digest: str
    ) -> LogicalVideo:
        """Make another encoding of the same frames the original; its object must already be
        recorded.

        Derived data of the old original stays, and so does everything about frames.  The node of
        the file must already have its new values.
        """
        before = self.get(video_id)
        old = before.original
        # The new pictures are those of the old one, and show the same damage.
        shown = original.damage if before.digest == digest else ()
        if old.damage is None or shown is None:
            damage = old.damage if before.digest != digest else original.damage
        else:
            damage = tuple(merged([*old.damage, *shown]))
        new = self.add_physical(video_id, replace(original, damage=damage), pages)
        self._connection.execute(
            sa.update(segments).where(segments.c.original_id == old.id).values(original_id=new.id)
        )
        self._connection.execute(
            sa.update(physical_videos)
            .where(physical_videos.c.parent_id == old.id)
            .values(parent_id=new.id)
        )
        self._connection.execute(sa.delete(physical_videos).where(physical_videos.c.id == old.id))
        self._connection.execute(
            sa.update(videos).where(videos.c.id == video_id).values(digest=digest)
        )
        return self.get(video_id)

    def drop_physicals(self, ino: int) -> None:
        """Delete every encoding of a file whose bytes are about to change.

        The row of the video stays, with its tags, metadata and detections, until `put` or `remove`.
        """
        mine = sa.select(videos.c.id).where(videos.c.ino == ino)
        self._connection.execute(
            sa.delete(physical_videos).where(physical_videos.c.video_id.in_(mine))
        )

    def add_physical(
        self, video_id: int, physical: PhysicalVideo, pages: Iterable[Page]
    ) -> PhysicalVideo:
        """Add a stored encoding.  Its object must already be recorded."""
        values = physical_to_row(physical) | {"video_id": video_id}
        result = self._connection.execute(sa.insert(physical_videos).values(values))
        assert result.inserted_primary_key is not None
        physical_id: int = result.inserted_primary_key[0]
        self._insert_pages(physical_id, pages)
        return self.physical(physical_id)

    def replace_table(
        self, physical_id: int, physical: PhysicalVideo, pages: Iterable[Page]
    ) -> PhysicalVideo:
        """Replace a frame table, and the other results of the same decode.

        The encoding gets a new id, because decoders, plans and open videos cache by id.  Data
        derived by the old frame numbers is deleted.  Delete its segments first to learn their
        packs.  Raises `NotFoundError` if the encoding does not exist.
        """
        old = self.physical(physical_id)
        new = self.add_physical(old.video_id, physical, pages)
        self._connection.execute(
            sa.delete(physical_videos).where(physical_videos.c.parent_id == old.id)
        )
        self._connection.execute(sa.delete(physical_videos).where(physical_videos.c.id == old.id))
        return new

    def put_pages(self, physical_id: int, pages: Iterable[Page]) -> None:
        """Write an unchanged frame table again, after damage to its rows."""
        self._connection.execute(
            sa.delete(frame_pages).where(frame_pages.c.physical_id == physical_id)
        )
        self._insert_pages(physical_id, pages)

    def mark_verified(self, physical_id: int, damage: Sequence[range] | None = ()) -> None:
        """Record that a full decode has verified the frame table and found `damage`."""
        self._connection.execute(
            sa.update(physical_videos)
            .where(physical_videos.c.id == physical_id)
            .values(verified=True, damage=damage_to_json(damage))
        )

    def cost_factor(self, physical_id: int) -> float | None:
        """Return the cost factor; None if it was not measured, or the encoding does not exist."""
        return self._connection.execute(_COST_FACTOR, {"id": physical_id}).scalar()

    def set_cost_factor(self, physical_id: int, factor: float) -> None:
        self._connection.execute(
            sa.update(physical_videos)
            .where(physical_videos.c.id == physical_id)
            .values(cost_factor=factor)
        )

    def remove(self, ino: int) -> None:
        """Make a file a plain file; its node and bytes are not changed."""
        _REMOVE.execute(self._connection, {"which": ino})

    def add_tags(self, video_id: int, words: Iterable[str]) -> None:
        """Add tags.  Raises `UsageError` for blank or unstorable text."""
        given = list(words)
        if not all(isinstance(word, str) and word.strip() for word in given):
            raise UsageError("a tag must be text, and not blank")
        for word in given:
            require_storable_text(word, "a tag")
            if len(word) > _MAX_TAG_LENGTH:
                raise UsageError(
                    f"a tag must be at most {_MAX_TAG_LENGTH} characters, got {len(word)}: "
                    f"{shown(word)}"
                )
        new = set(given) - self.tags(video_id)
        if new:
            self._connection.execute(
                sa.insert(tags), [{"video_id": video_id, "tag": word} for word in sorted(new)]
            )

    def remove_tags(self, video_id: int, words: Iterable[str]) -> None:
        # Query only tags that exist: not every word can be a parameter.
        for some in in_batches(tags.c.tag, self.tags(video_id).intersection(words)):
            self._connection.execute(sa.delete(tags).where(tags.c.video_id == video_id, some))

    def set_metadata(self, video_id: int, metadata: Mapping[str, Any]) -> None:
        """Set the metadata of a video.

        Raises `UsageError` for new values that cannot be stored, and for new integers beyond 64
        bits.
        """
        # Existing values from before these checks may stay while others change.
        old = self.get(video_id).metadata
        changed = {key: new for key, new in metadata.items() if old.get(key) != new}
        require_storable_json(changed)
        require_searchable_json(changed)
        self._connection.execute(
            sa.update(videos).where(videos.c.id == video_id).values(metadata=dict(metadata))
        )

    def _insert_pages(self, physical_id: int, pages: Iterable[Page]) -> None:
        for ordinal, (bounds, data) in enumerate(pages):
            self._connection.execute(
                sa.insert(frame_pages),
                {
                    "physical_id": physical_id,
                    "ordinal": ordinal,
                    "data": data,
                    **bounds_to_row(bounds),
                },
            )

    def _one(self, condition: sa.ColumnElement[bool], missing: str) -> LogicalVideo:
        row = self._connection.execute(_SELECT_VIDEO.where(condition)).first()
        if row is None:
            raise NotFoundError(missing)
        paths = TreeReader(self._connection).paths_of(row.ino)
        (found,) = self._values([row], {row.ino: paths[0] if paths else ""})
        return found

    def _values(self, rows: Sequence[Row[Any]], names: Mapping[int, str]) -> list[LogicalVideo]:
        """Convert rows of `_SELECT_VIDEO`; `names` is by inode."""
        numbers = [row.id for row in rows]
        chosen = sa.select(physical_videos).where(
            physical_videos.c.video_id.in_(numbers),
            physical_videos.c.role == Role.ORIGINAL.value,
        )
        originals = {row.video_id: row for row in self._connection.execute(chosen)}
        words: dict[int, set[str]] = {}
        for row in self._connection.execute(sa.select(tags).where(tags.c.video_id.in_(numbers))):
            words.setdefault(row.video_id, set()).add(row.tag)
        return [
            video_from_row(row, names[row.ino], originals.get(row.id), words.get(row.id, set()))
            for row in rows
        ]


def video_from_row(row: Any, name: str, original: Any, words: Iterable[str]) -> LogicalVideo:
    """Convert rows of `_SELECT_VIDEO` and of the original.  Raises `IntegrityError` without one."""
    if original is None:
        raise IntegrityError(f"video {name!r} has no original", hint="run `vfsd fsck`")
    return LogicalVideo(
        id=row.id,
        ino=row.ino,
        name=name,
        size=row.size,
        digest=row.digest,
        modified_ns=row.mtime_ns,
        created_ns=row.created_ns,
        tags=frozenset(words),
        metadata=row.metadata,
        original=physical_from_row(original),
        captured=captured_from_row(row),
    )


def captured_from_row(row: Any) -> CaptureTime | None:
    if row.captured_ns is None:
        return None
    return CaptureTime(row.captured_ns, CaptureClock(row.captured_clock))


def _capture_values(captured: CaptureTime | None) -> dict[str, Any]:
    if captured is None:
        return {"captured_ns": None, "captured_clock": None}
    return {"captured_ns": captured.ns, "captured_clock": captured.clock.value}


_SELECT_VIDEO = sa.select(videos, nodes.c.size, nodes.c.mtime_ns).join(
    nodes, nodes.c.ino == videos.c.ino
)
# Textual, since the first read of a process would spend most of its time on compiling them.
_COST_FACTOR = sa.text("SELECT cost_factor FROM physical_videos WHERE id = :id")
_PAGE_BOUNDS = sa.text(
    f"SELECT {', '.join(one.name for one in frame_pages.c if one.name != 'data')}"
    " FROM frame_pages WHERE physical_id = :id ORDER BY ordinal"
)
_PAGE = sa.select(frame_pages.c.data).where(
    frame_pages.c.physical_id == sa.bindparam("physical_id"),
    frame_pages.c.ordinal == sa.bindparam("ordinal"),
)


_REFERENCES = (
    nodes.c.object_key,
    physical_videos.c.object_key,
    segments.c.object_key,
    vectors.c.object_key,
    layer_indexes.c.object_key,
)
"""The columns that keep an object."""

_FORGET_UNREFERENCED = (
    sa.delete(objects)
    .where(*(~sa.exists().where(column == objects.c.key) for column in _REFERENCES))
    .returning(objects.c.key, objects.c.place, objects.c.size)
)


class Objects:
    """The register of immutable objects."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def record(self, key: str, size: int, *, now_ns: int) -> None:
        """Record an object whose bytes are in place and durable.

        Recording it twice is harmless.  Inspections of earlier bytes under its key are dropped.
        """
        IntegrityLog(self._connection).forget_inspection(ByteLocation(key, None))
        if self._connection.execute(sa.select(objects.c.key).where(objects.c.key == key)).first():
            return
        self._connection.execute(sa.insert(objects).values(key=key, size=size, created_ns=now_ns))

    def record_missing(self, key: str, size: int, *, now_ns: int) -> bool:
        """Record an object that is referred to but has no row; return whether that was so."""
        if self.is_recorded(key) or not self.is_needed(key):
            return False
        self.record(key, size, now_ns=now_ns)
        return True

    def correct_size(self, key: str, size: int) -> None:
        """Set the size of an object to that of the bytes that hash to its key; ignores unknown
        keys.
        """
        self._connection.execute(sa.update(objects).where(objects.c.key == key).values(size=size))

    def some(self, count: int) -> list[str]:
        """Return up to `count` keys of recorded objects."""
        return list(self._connection.execute(sa.select(objects.c.key).limit(count)).scalars())

    def place(self, key: str) -> tuple[str, int] | None:
        """Return the name of an object in the bucket and its size; None if it is not there."""
        query = sa.select(objects.c.place, objects.c.size).where(objects.c.key == key)
        row = self._connection.execute(query).first()
        return None if row is None or row.place is None else (row.place, row.size)

    def removed(self, key: str) -> tuple[str, int] | None:
        """Return the place and the size of a removed object whose bytes are still in the bucket."""
        from vfsd.catalog.bucket_objects import removed_object

        return removed_object(self._connection, key)

    def placed(self) -> dict[str, tuple[str, int]]:
        """Return every object in the bucket: its place and its size in bytes, by key."""
        query = sa.select(objects.c.key, objects.c.place, objects.c.size)
        rows = self._connection.execute(query.where(objects.c.place.is_not(None)))
        return {row.key: (row.place, row.size) for row in rows}

    def record_upload(self, key: str, size: int, place: str, *, now_ns: int) -> bool:
        """Record an object whose bytes are at `place` in the bucket, and end the upload's lease.

        Return False if intact bytes are at another place already: then `place` is garbage.
        Raises `LeaseLostError`.
        """
        from vfsd.catalog.bucket_objects import (  # most stores have no bucket
            discard_place,
            end_upload,
        )

        end_upload(self._connection, place)
        given = {"key": key, "size": size, "created_ns": now_ns, "place": place}
        values = [sa.literal(value, objects.c[name].type) for name, value in given.items()]
        is_known = sa.exists().where(objects.c.key == key)
        # One statement for the usual case.
        added = sa.insert(objects).from_select(list(given), sa.select(*values).where(~is_known))
        if self._connection.execute(added.returning(objects.c.key)).first() is not None:
            return True
        query = sa.select(objects.c.place, objects.c.size).where(objects.c.key == key)
        row = self._connection.execute(query).one()
        integrity = IntegrityLog(self._connection)
        where = ByteLocation(key, None)
        if row.place is None or _is_damaged(integrity, where):
            change = sa.update(objects).where(objects.c.key == key)
            self._connection.execute(change.values(place=place, size=size))
            if row.place is not None:
                discard_place(self._connection, row.place, row.size)
        else:
            discard_place(self._connection, place, size)
            return False
        integrity.forget_inspection(where)
        return True

    def record_tables(self, key: str, tables: Sequence[tuple[int, bytes]]) -> None:
        """Add copies of the tables of the packs in an object, by position."""
        from vfsd.catalog.bucket_objects import record_tables  # most stores have no bucket

        record_tables(self._connection, key, tables)

    def place_upload(self, key: str, place: str, size: int) -> bool:
        """Record where a known object is in the bucket, and end the upload's lease.

        Return False if `place` is garbage: another one is known, or the object was removed.  Raises
        `LeaseLostError`.
        """
        from vfsd.catalog.bucket_objects import discard_place, end_upload

        end_upload(self._connection, place)
        if self.set_place(key, place):
            return True
        discard_place(self._connection, place, size)
        return False

    def is_uploaded(self, key: str) -> bool:
        """Return whether the bucket has the bytes of an object, as far as known intact."""
        return self.place(key) is not None and not _is_damaged(
            IntegrityLog(self._connection), ByteLocation(key, None)
        )

    def unplaced(self) -> dict[str, int]:
        """Return every recorded object that is not in the bucket, with its size in bytes."""
        query = sa.select(objects.c.key, objects.c.size).where(objects.c.place.is_(None))
        return {row.key: row.size for row in self._connection.execute(query.order_by("key"))}

    def set_place(self, key: str, place: str) -> bool:
        """Record the name of an object in the bucket.

        Return False if it has a place already, or is not recorded any more.
        """
        query = sa.update(objects).where(objects.c.key == key, objects.c.place.is_(None))
        return self._connection.execute(query.values(place=place)).rowcount > 0

    def bucket(self) -> StoreBucket | None:
        """Return the bucket of the store; None if it has none."""
        row = self._connection.execute(sa.select(store_identity)).first()
        if row is None or row.bucket is None:
            return None
        return StoreBucket(row.bucket, json.loads(row.bucket_options or "{}"))

    def set_bucket(self, bucket: StoreBucket) -> None:
        """Set the bucket of the store."""
        options = json.dumps(bucket.options, sort_keys=True)
        values = {"bucket": bucket.url, "bucket_options": options}
        self._connection.execute(sa.update(store_identity).values(values))

    def forget_bucket(self) -> None:
        """Forget the bucket, and all names in it, in a copy of the catalog with files."""
        self._connection.execute(sa.update(store_identity).values(bucket=None, bucket_options=None))
        self._connection.execute(sa.update(objects).values(place=None))

    def sizes(self) -> dict[str, int]:
        """Return every recorded object with its size in bytes."""
        rows = self._connection.execute(sa.select(objects.c.key, objects.c.size))
        return {row.key: row.size for row in rows}

    def needed(self) -> dict[str, int | None]:
        """Return every object that is referred to, with its size; None if its row is missing or
        invalid.
        """
        sizes: dict[str, Any] = dict(self.sizes())
        found = {key: sizes.get(key) for key in self.referenced() if isinstance(key, str)}
        return {key: size if isinstance(size, int) else None for key, size in found.items()}

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if it is not recorded."""
        found: int | None = self._connection.execute(
            sa.select(objects.c.size).where(objects.c.key == key)
        ).scalar()
        return found

    def require_size(self, key: str) -> int | None:
        """Like `size`, but raises `NotFoundError` for an object that nothing refers to.

        None for an object that is referred to but has no row.
        """
        found = self.size(key)
        if found is None and not self.is_needed(key):
            raise _video_gone_error()
        return found

    def referenced(self) -> set[str]:
        """Return the keys that files, stored encodings, vectors or indexes refer to."""
        found: set[str] = set()
        for column in _REFERENCES:
            query = sa.select(column).where(column.is_not(None)).distinct()
            found.update(self._connection.execute(query).scalars())
        return found

    def of_file(self, ino: int) -> set[str]:
        """Return the keys that a file or anything stored of its video refers to.

        For a file indexed in place, they include its digest, which is the key of its rendered
        views.
        """
        return self.of_files([ino])

    def of_files(self, inos: Iterable[int]) -> set[str]:
        """Return the keys of `of_file` for several files."""
        numbers = set(inos)
        queries = [
            sa.select(nodes.c.object_key).where(nodes.c.object_key.is_not(None), some)
            for some in in_batches(nodes.c.ino, numbers)
        ]
        for some in in_batches(videos.c.ino, numbers):
            mine = (
                sa.select(physical_videos.c.id)
                .join(videos, videos.c.id == physical_videos.c.video_id)
                .where(some)
            )
            queries += [
                sa.select(physical_videos.c.object_key).where(
                    physical_videos.c.object_key.is_not(None), physical_videos.c.id.in_(mine)
                ),
                sa.select(segments.c.object_key).where(segments.c.physical_id.in_(mine)),
                sa.select(layer_indexes.c.object_key).where(layer_indexes.c.physical_id.in_(mine)),
                sa.select(videos.c.digest).where(some),
                sa.select(vectors.c.object_key)
                .join(videos, videos.c.id == vectors.c.video_id)
                .where(some),
            ]
        found: set[str] = set()
        for query in queries:
            found.update(self._connection.execute(query).scalars())
        return found

    def holders(self, key: str) -> int:
        """Return the number of files with the bytes of an object."""
        query = sa.select(sa.func.count()).select_from(nodes).where(nodes.c.object_key == key)
        return int(self._connection.execute(query).scalar() or 0)

    def is_recorded(self, key: str) -> bool:
        query = sa.select(objects.c.key).where(objects.c.key == key)
        return self._connection.execute(query).first() is not None

    def is_needed(self, key: str) -> bool:
        """Return whether an object is recorded, or referred to without a row."""
        if self.is_recorded(key):
            return True
        queries = (sa.select(column).where(column == key).limit(1) for column in _REFERENCES)
        return any(self._connection.execute(query).first() for query in queries)

    def forget_unreferenced(self, keys: Iterable[str] | None = None) -> list[str]:
        """Delete the rows of objects (among `keys`) that nothing refers to; return their keys.

        Their places in the bucket become garbage.
        """
        parts = [sa.true()] if keys is None else in_batches(objects.c.key, keys)
        found: list[Any] = []
        for some in parts:
            found += self._connection.execute(_FORGET_UNREFERENCED.where(some))
        places = {row.place: row.size for row in found if row.place is not None}
        if places:
            from vfsd.catalog.bucket_objects import discard_places  # most stores have no bucket

            discard_places(self._connection, places)
        IntegrityLog(self._connection).forget_unlinked()
        return [row.key for row in found]


def _is_damaged(integrity: IntegrityLog, where: ByteLocation) -> bool:
    found = integrity.inspection(where)
    return found is not None and bool(found.damage)


def _video_gone_error() -> NotFoundError:
    return NotFoundError(
        "the video has been removed or replaced since it was looked up",
        hint="look it up again by its name",
    )
