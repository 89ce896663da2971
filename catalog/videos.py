"""Logical videos and their stored encodings, within one transaction."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shown
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.clock_history import ClockHistory
from vfsd.catalog.derived_usage import DerivedUsage, EvictionLog
from vfsd.catalog.detections import Detections
from vfsd.catalog.integrity import IntegrityLog
from vfsd.catalog.read_history import LoggedReads, TilingDecisions
from vfsd.catalog.retention import OriginalPolicies
from vfsd.catalog.row_mapping import (
    bounds_from_row,
    bounds_to_row,
    damage_to_json,
    page_from_row,
    physical_from_row,
    physical_to_row,
)
from vfsd.catalog.schema import (
    frame_pages,
    nodes,
    objects,
    physical_videos,
    segments,
    tags,
    videos,
)
from vfsd.catalog.statements import (
    PreparedStatement,
    in_batches,
    require_searchable_json,
    require_storable_json,
)
from vfsd.catalog.tree_reader import TreeReader
from vfsd.core.frame_table_pages import PageBounds
from vfsd.core.model import ByteLocation, FileState, LogicalVideo, Node, PhysicalVideo, Role
from vfsd.disk.block_checksums import merged
from vfsd.errors import IntegrityError, NotFoundError, UsageError
from vfsd.validation import require_storable_text

Page = tuple[PageBounds, bytes]


@dataclass(frozen=True, slots=True)
class BrokenVideo:
    """What can still be told of a video whose rows may make no other sense."""

    id: int
    digest: str  #: of the bytes that its labels are about
    was_verified: bool | None  #: a full decode had confirmed its table; None: that is lost


_MOST_LETTERS = 255
"""Of a tag."""

_DIGESTS = sa.select(videos.c.digest).where(
    sa.exists().where(
        physical_videos.c.video_id == videos.c.id,
        physical_videos.c.role == Role.ORIGINAL.value,
    )
)
_REMOVE = PreparedStatement(sa.delete(videos).where(videos.c.ino == sa.bindparam("which")))


class Videos:
    """Videos as one transaction sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- looking

    def of_inode(self, ino: int) -> LogicalVideo:
        """Raises `NotFoundError` when the file is no video."""
        return self._one(
            sa.and_(videos.c.ino == ino, nodes.c.state == FileState.VIDEO.value),
            f"inode {ino} is not a video",
        )

    def of_node(self, node: Node, name: str) -> LogicalVideo:
        """As `of_inode`; what is none is told by its name, with what it is instead."""
        if node.is_dir:
            raise NotFoundError(
                f"{name!r} is a directory, no video",
                hint=f"`vfsd ls {shlex.quote(name)}` lists what is in it",
            )
        if not node.is_file:
            raise NotFoundError(f"{name!r} is not a file")
        try:
            return self.of_inode(node.ino)
        except NotFoundError:
            why = f": {node.reason}" if node.reason else ""
            raise NotFoundError(f"{name!r} is a file, but no video{why}") from None

    def of_inodes(self, names: Mapping[int, str]) -> list[LogicalVideo]:
        """Those of the files that are videos, each under the name that is given."""
        rows = self._connection.execute(
            _SELECT_VIDEO.where(
                videos.c.ino.in_(list(names)), nodes.c.state == FileState.VIDEO.value
            )
        ).all()
        return self._values(rows, names)

    def get(self, video_id: int) -> LogicalVideo:
        """Raises `NotFoundError`."""
        return self._one(videos.c.id == video_id, f"video number {video_id} does not exist")

    def require(self, video: LogicalVideo) -> None:
        """Raises `NotFoundError`, which names it, for a video that has gone since it was found, and
        for one of another store, whose number may be that of any here."""
        query = sa.select(videos.c.created_ns).where(videos.c.id == video.id)
        found = self._connection.execute(query).first()
        if found is None:
            raise NotFoundError(
                f"the video {video.name!r} was removed", hint="look it up again by its name"
            )
        if found.created_ns != video.created_ns:
            raise NotFoundError(
                f"the video {video.name!r} is of another store than this",
                hint="look it up here by its name, or ask the catalog of its own store",
            )

    def remains(self, ino: int) -> BrokenVideo | None:
        """What is known of a file's video, or was; None where it has none."""
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

    def digests(self, some: Iterable[str] | None = None) -> set[str]:
        """Those (among `some`) that the bytes of any video have now; what is being written over has
        lost its own."""
        parts = [sa.true()] if some is None else in_batches(videos.c.digest, some)
        found: set[str] = set()
        for part in parts:
            found.update(self._connection.execute(_DIGESTS.where(part)).scalars())
        return found

    def unverified(self, limit: int, before_id: int | None = None) -> list[LogicalVideo]:
        """Videos whose frame table no full decode has confirmed yet, or examined for damage, the
        newest first.

        With `before_id` those whose originals have lower numbers than that.
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
        """All stored encodings of a video, the original first."""
        rows = self._connection.execute(
            sa.select(physical_videos)
            .where(physical_videos.c.video_id == video_id)
            .order_by(physical_videos.c.role != Role.ORIGINAL.value, physical_videos.c.id)
        )
        return [physical_from_row(row) for row in rows]

    def physical(self, physical_id: int) -> PhysicalVideo:
        """Raises `NotFoundError`."""
        row = self._connection.execute(
            sa.select(physical_videos).where(physical_videos.c.id == physical_id)
        ).first()
        if row is None:
            raise NotFoundError(f"stored encoding number {physical_id} does not exist")
        return physical_from_row(row)

    def page_bounds(self, physical_id: int) -> list[PageBounds]:
        """What is known of the pages of a frame table without reading them."""
        columns = [c for c in frame_pages.c if c.name != "data"]
        rows = self._connection.execute(
            sa.select(*columns)
            .where(frame_pages.c.physical_id == physical_id)
            .order_by(frame_pages.c.ordinal)
        )
        return [bounds_from_row(row) for row in rows]

    def page(self, physical_id: int, ordinal: int) -> bytes:
        """Raises `IntegrityError` when the page is missing, `NotFoundError` when all of it is."""
        data = self._connection.execute(_PAGE, {"physical_id": physical_id, "ordinal": ordinal})
        found: bytes | None = data.scalar()
        if found is None:
            self.require_there(physical_id)
            raise IntegrityError(
                f"page {ordinal} of frame table {physical_id} is missing", hint="run `vfsd fsck`"
            )
        return found

    def pages(self, physical_id: int) -> Iterator[Page]:
        """A whole frame table, as it is stored."""
        rows = self._connection.execute(
            sa.select(frame_pages)
            .where(frame_pages.c.physical_id == physical_id)
            .order_by(frame_pages.c.ordinal)
        )
        return map(page_from_row, rows)

    def require_there(self, physical_id: int) -> None:
        """Raises `NotFoundError` for an encoding that has gone since it was looked up."""
        query = sa.select(physical_videos.c.id).where(physical_videos.c.id == physical_id)
        if self._connection.execute(query).first() is None:
            raise _video_gone_error()

    def tags(self, video_id: int) -> frozenset[str]:
        rows = self._connection.execute(sa.select(tags.c.tag).where(tags.c.video_id == video_id))
        return frozenset(rows.scalars())

    # -- changing

    def put(
        self,
        ino: int,
        original: PhysicalVideo,
        pages: Iterable[Page],
        *,
        digest: str,
        now_ns: int,
    ) -> LogicalVideo:
        """Make a file a video, with its original.  `original.id` and `video_id` are ignored.

        A file that was a video before its bytes changed keeps its number, tags and metadata;
        everything that was made from the old bytes goes.  So do its detections, reads, decisions,
        evictions and pins, which are about pixels, unless the bytes are the same again.  Otherwise
        its age begins anew, too.  Bytes that once took the place of others here keep their error.
        """
        there = self._connection.execute(
            sa.select(videos.c.id, videos.c.digest).where(videos.c.ino == ino)
        ).first()
        if there is None:
            result = self._connection.execute(
                sa.insert(videos).values(ino=ino, digest=digest, created_ns=now_ns, metadata={})
            )
            assert result.inserted_primary_key is not None
            video_id = int(result.inserted_primary_key[0])
        else:
            video_id = int(there.id)
            self.drop_physicals(ino)
            if there.digest != digest:
                Detections(self._connection).remove_of_video(video_id)
                LoggedReads(self._connection).remove(video_id)
                TilingDecisions(self._connection).remove_of_video(video_id)
                EvictionLog(self._connection).remove_of_video(video_id)
                DerivedUsage(self._connection).unpin_video(video_id)
                ClockHistory(self._connection).note_new_bytes(video_id, now_ns)
            self._connection.execute(
                sa.update(videos).where(videos.c.id == video_id).values(digest=digest)
            )
        error = OriginalPolicies(self._connection).known_error(video_id, digest)
        self.add_physical(video_id, replace(original, error=error), pages)
        return self.get(video_id)

    def replace_original(
        self, video_id: int, original: PhysicalVideo, pages: Iterable[Page], *, digest: str
    ) -> LogicalVideo:
        """Let another encoding of the same frames be the original, its object recorded already.

        What was made from the old one stays, and so does all that is said of frames.  The file's
        node has to be as it is to be.
        """
        before = self.get(video_id)
        old = before.original
        # Its pictures are those of the old one, and show the same damage.
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
        """The file's bytes are about to change: forget every encoding of what they were.

        The video's row stays, for the sake of its tags, metadata and detections, until `put` or
        `remove`.
        """
        mine = sa.select(videos.c.id).where(videos.c.ino == ino)
        self._connection.execute(
            sa.delete(physical_videos).where(physical_videos.c.video_id.in_(mine))
        )

    def add_physical(
        self, video_id: int, physical: PhysicalVideo, pages: Iterable[Page]
    ) -> PhysicalVideo:
        """One more stored encoding.  Its object has to be recorded already."""
        values = physical_to_row(physical) | {"video_id": video_id}
        result = self._connection.execute(sa.insert(physical_videos).values(values))
        assert result.inserted_primary_key is not None
        physical_id: int = result.inserted_primary_key[0]
        self._insert_pages(physical_id, pages)
        return self.physical(physical_id)

    def replace_table(
        self, physical_id: int, physical: PhysicalVideo, pages: Iterable[Page]
    ) -> PhysicalVideo:
        """Put a better frame table, and what else was learnt, in the place of the old one.

        It is another encoding to all who keep something by its number: decoders, plans, whoever
        has the video open.  What was made by the old one's numbers of frames goes; who wants its
        packs deletes its segments before, which tells of them.  Raises `NotFoundError` when the
        encoding is gone.
        """
        old = self.physical(physical_id)
        new = self.add_physical(old.video_id, physical, pages)
        self._connection.execute(
            sa.delete(physical_videos).where(physical_videos.c.parent_id == old.id)
        )
        self._connection.execute(sa.delete(physical_videos).where(physical_videos.c.id == old.id))
        return new

    def put_pages(self, physical_id: int, pages: Iterable[Page]) -> None:
        """The same frame table again, its rows having been damaged."""
        self._connection.execute(
            sa.delete(frame_pages).where(frame_pages.c.physical_id == physical_id)
        )
        self._insert_pages(physical_id, pages)

    def mark_verified(self, physical_id: int, damage: Sequence[range] | None = ()) -> None:
        """A full decode has confirmed the frame table, and found `damage`."""
        self._connection.execute(
            sa.update(physical_videos)
            .where(physical_videos.c.id == physical_id)
            .values(verified=True, damage=damage_to_json(damage))
        )

    def cost_factor(self, physical_id: int) -> float | None:
        """None where it was not measured, or there is no such encoding."""
        query = sa.select(physical_videos.c.cost_factor).where(physical_videos.c.id == physical_id)
        return self._connection.execute(query).scalar()

    def set_cost_factor(self, physical_id: int, factor: float) -> None:
        self._connection.execute(
            sa.update(physical_videos)
            .where(physical_videos.c.id == physical_id)
            .values(cost_factor=factor)
        )

    def remove(self, ino: int) -> None:
        """The file is a video no longer; its node and bytes are not touched."""
        _REMOVE.change(self._connection, {"which": ino})

    def add_tags(self, video_id: int, words: Iterable[str]) -> None:
        """Raises `UsageError` for a word of nothing but blanks, for what is no word, and for what
        cannot be stored."""
        given = list(words)
        if not all(isinstance(word, str) and word.strip() for word in given):
            raise UsageError("a tag is a word, and not empty")
        for word in given:
            require_storable_text(word, "a tag")
            if len(word) > _MOST_LETTERS:
                raise UsageError(
                    f"{shown(word)} cannot be a tag: it has {len(word)} characters",
                    hint=f"a tag has {_MOST_LETTERS} at most",
                )
        new = set(given) - self.tags(video_id)
        if new:
            self._connection.execute(
                sa.insert(tags), [{"video_id": video_id, "tag": word} for word in sorted(new)]
            )

    def remove_tags(self, video_id: int, words: Iterable[str]) -> None:
        # Only what is there may be asked for: not all words can be.
        for some in in_batches(tags.c.tag, self.tags(video_id).intersection(words)):
            self._connection.execute(sa.delete(tags).where(tags.c.video_id == video_id, some))

    def set_metadata(self, video_id: int, metadata: Mapping[str, Any]) -> None:
        """Raises `UsageError` for new values that cannot be stored, and new numbers beyond 64
        bits."""
        # Those that were there before they were looked at so may stay while others change.
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

    # -- values

    def _one(self, condition: sa.ColumnElement[bool], missing: str) -> LogicalVideo:
        row = self._connection.execute(_SELECT_VIDEO.where(condition)).first()
        if row is None:
            raise NotFoundError(missing)
        paths = TreeReader(self._connection).paths_of(row.ino)
        (found,) = self._values([row], {row.ino: paths[0] if paths else ""})
        return found

    def _values(self, rows: Sequence[Row[Any]], names: Mapping[int, str]) -> list[LogicalVideo]:
        """The values of rows of `_SELECT_VIDEO`, named by their inodes."""
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
            _video_from_row(row, names[row.ino], originals.get(row.id), words.get(row.id, set()))
            for row in rows
        ]


def _video_from_row(
    row: Row[Any], name: str, original: Row[Any] | None, words: Iterable[str]
) -> LogicalVideo:
    """Raises `IntegrityError` for one without an original."""
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
    )


_SELECT_VIDEO = sa.select(videos, nodes.c.size, nodes.c.mtime_ns).join(
    nodes, nodes.c.ino == videos.c.ino
)
_PAGE = sa.select(frame_pages.c.data).where(
    frame_pages.c.physical_id == sa.bindparam("physical_id"),
    frame_pages.c.ordinal == sa.bindparam("ordinal"),
)


_FORGET_UNREFERENCED = (
    sa.delete(objects)
    .where(
        ~sa.exists().where(nodes.c.object_key == objects.c.key),
        ~sa.exists().where(physical_videos.c.object_key == objects.c.key),
        ~sa.exists().where(segments.c.object_key == objects.c.key),
    )
    .returning(objects.c.key)
)


class Objects:
    """The register of immutable objects, as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def record(self, key: str, size: int, *, now_ns: int) -> None:
        """Note that the object's bytes have been put in place, and are durable.

        Recording it twice is harmless.  What was found by looking at other bytes that had its name
        is forgotten.
        """
        IntegrityLog(self._connection).forget_inspection(ByteLocation(key, None))
        if self._connection.execute(sa.select(objects.c.key).where(objects.c.key == key)).first():
            return
        self._connection.execute(sa.insert(objects).values(key=key, size=size, created_ns=now_ns))

    def record_astray(self, key: str, size: int, *, now_ns: int) -> bool:
        """Record an object that is referred to, and whose own row has gone astray; whether it was
        so."""
        if self.is_recorded(key) or not self.is_needed(key):
            return False
        self.record(key, size, now_ns=now_ns)
        return True

    def correct_size(self, key: str, size: int) -> None:
        """As many bytes as hash to its name; what is no object any more stays none."""
        self._connection.execute(sa.update(objects).where(objects.c.key == key).values(size=size))

    def sizes(self) -> dict[str, int]:
        """Every recorded object and its size in bytes."""
        rows = self._connection.execute(sa.select(objects.c.key, objects.c.size))
        return {row.key: row.size for row in rows}

    def needed(self) -> dict[str, int | None]:
        """Every object that a file or a stored encoding refers to, and its size in bytes; None
        where its own row has gone astray, or makes no sense."""
        sizes: dict[str, Any] = dict(self.sizes())
        found = {key: sizes.get(key) for key in self.referenced() if isinstance(key, str)}
        return {key: size if isinstance(size, int) else None for key, size in found.items()}

    def size(self, key: str) -> int | None:
        """Bytes of a recorded object; None for one that is not."""
        found: int | None = self._connection.execute(
            sa.select(objects.c.size).where(objects.c.key == key)
        ).scalar()
        return found

    def require_size(self, key: str) -> int | None:
        """As `size`; None for one whose own row has gone astray.

        Raises `NotFoundError` for the object of a video that has gone since it was looked up.
        """
        found = self.size(key)
        if found is None and not self.is_needed(key):
            raise _video_gone_error()
        return found

    def referenced(self) -> set[str]:
        """The keys that a file or a stored encoding refers to."""
        columns = (nodes.c.object_key, physical_videos.c.object_key, segments.c.object_key)
        found: set[str] = set()
        for column in columns:
            query = sa.select(column).where(column.is_not(None)).distinct()
            found.update(self._connection.execute(query).scalars())
        return found

    def of_file(self, ino: int) -> set[str]:
        """The keys that a file refers to, or anything that is stored of its video.

        The digest of a file indexed in place is among them, by which its rendered views are found.
        """
        return self.of_files([ino])

    def of_files(self, inos: Iterable[int]) -> set[str]:
        """The same of several files."""
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
                sa.select(videos.c.digest).where(some),
            ]
        found: set[str] = set()
        for query in queries:
            found.update(self._connection.execute(query).scalars())
        return found

    def holders(self, key: str) -> int:
        """How many files have the bytes of an object."""
        query = sa.select(sa.func.count()).select_from(nodes).where(nodes.c.object_key == key)
        return int(self._connection.execute(query).scalar() or 0)

    def is_recorded(self, key: str) -> bool:
        query = sa.select(objects.c.key).where(objects.c.key == key)
        return self._connection.execute(query).first() is not None

    def is_needed(self, key: str) -> bool:
        """Whether an object is recorded, or, where its own row has gone astray, referred to."""
        if self.is_recorded(key):
            return True
        columns = (nodes.c.object_key, physical_videos.c.object_key, segments.c.object_key)
        queries = (sa.select(column).where(column == key).limit(1) for column in columns)
        return any(self._connection.execute(query).first() for query in queries)

    def forget_unreferenced(self, keys: Iterable[str] | None = None) -> list[str]:
        """Strike out the objects (among `keys`) that nothing refers to; returns which."""
        parts = [sa.true()] if keys is None else in_batches(objects.c.key, keys)
        found: list[str] = []
        for some in parts:
            found += self._connection.execute(_FORGET_UNREFERENCED.where(some)).scalars()
        IntegrityLog(self._connection).forget_unlinked()
        return found


def _video_gone_error() -> NotFoundError:
    return NotFoundError(
        "the video has been removed or replaced since it was looked up",
        hint="look it up again by its name",
    )
