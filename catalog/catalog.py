"""`Catalog`: the metadata of everything that is stored, and the location of its bytes.

A `Transaction` has a repository for each subject, created at its first use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy.engine import Connection

from vfsd.catalog.audio_tracks import AudioTracks
from vfsd.catalog.database_url import redacted_url
from vfsd.catalog.derived_usage import DerivedUsage, EvictionLog, SegmentGain
from vfsd.catalog.engine import DEFAULT_STALENESS, ChangeWatch, Database
from vfsd.catalog.integrity import IntegrityLog, StoredChecksums
from vfsd.catalog.open_catalog import (
    copy_database,
    create_database,
    is_catalog,
    open_database,
    owner_of,
)
from vfsd.catalog.read_history import LoggedReads, TilingDecisions
from vfsd.catalog.retention import ClockHistory, OriginalPolicies
from vfsd.catalog.rows import require_json_keys
from vfsd.catalog.segments import MeasuredCosts, Segments, TileState
from vfsd.catalog.tree import Tree
from vfsd.catalog.video_query import (
    Interval,
    VideoQuery,
    make_video_filter,
    require_encoding,
    require_video,
)
from vfsd.catalog.videos import Objects, Videos
from vfsd.core.model import (
    ByteLocation,
    ByteRange,
    Gop,
    Home,
    LoggedRead,
    LogicalVideo,
    MeasuredCost,
    PhysicalVideo,
    ReadArea,
    Role,
    Segment,
    Sound,
    TilingDecision,
)
from vfsd.core.process_control import lazy
from vfsd.core.retention_policy import RetentionPolicy
from vfsd.errors import (
    BusyError,
    IntegrityError,
    NotFoundError,
    ReadOnlyError,
    UnreachableError,
    UsageError,
)
from vfsd.validation import non_negative, whole_number, within_64_bits

if TYPE_CHECKING:
    from vfsd.catalog.bucket_objects import Garbage, PackTables, Uploads
    from vfsd.catalog.catalog_detections import CatalogDetections
    from vfsd.catalog.detection_counts import BoxCounts
    from vfsd.catalog.detections import Detections
    from vfsd.catalog.homes import Homes, Lease
    from vfsd.catalog.integrity import Suspects
    from vfsd.catalog.layers import LayerIndexes, Layers
    from vfsd.catalog.moments import Moments
    from vfsd.catalog.searches import SavedSearches
    from vfsd.catalog.server_connections import ServerFacts
    from vfsd.catalog.vectors import StoredVectorBlocks
    from vfsd.catalog.video_pages import VideoLists
    from vfsd.catalog.work_log import WorkLog
    from vfsd.core.frame_table import FrameTable

_READS_AT_ONCE = 1000


class Catalog:
    """The metadata of everything that is stored, and the location of its bytes.

    Methods return frozen values of `vfsd.core.model`.  Thread-safe, and safe to use after a fork.
    Several processes may have the same catalog open; writers take turns.

        with Catalog.open("sqlite:////srv/videos/catalog.sqlite3") as catalog:
            for video in catalog.find(name="cam1/**", codec="h264", tags={"night"}):
                print(video.name, video.original.frames)
    """

    def __init__(self, database: Database) -> None:
        """Use `open` or `create`."""
        self._database = database
        self._kept_reads: int | None = None  #: by the last `note_reads`
        self._fold_at = 0.0  #: on the monotonic clock

    # -- opening

    @classmethod
    def open(
        cls,
        url: str,
        *,
        read_only: bool = False,
        store_id: str | None = None,
        staleness: float | None = DEFAULT_STALENESS,
        home: str | None = None,
        require_in_place: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open an existing catalog, and upgrade its schema unless `read_only`.

        Raises `NoStoreError`, `StoreVersionError` (a newer vfsd wrote it), `StoreError` for the
        catalog of another store, and `BusyError`.

        Args:
            url: The database URL.
            read_only: Refuse to write.
            store_id: The id of the store that must own the catalog.  Unless `read_only`, it is
                set if the catalog has no owner yet.
            staleness: Seconds that a `watch` on a server may miss changes of other processes;
                None: it never notices them.
            home: The id of the home of this process; ignored unless the catalog can have several.
            require_in_place: Called after each connection and before each change; raises if another
                store has replaced this one.
        """
        return cls(
            open_database(
                url,
                read_only=read_only,
                store_id=store_id,
                staleness=staleness,
                home=home,
                require_in_place=require_in_place,
            )
        )

    @classmethod
    def create(cls, url: str, *, store_id: str | None = None) -> Self:
        """Open a catalog, and create it if the database is empty.

        With `store_id`, it is created for that store.  Raises `ExistsError` for an existing catalog
        of another or unknown owner, without changing it.
        """
        return cls(create_database(url, store_id))

    @staticmethod
    def is_at(url: str) -> bool:
        """Return whether there is a catalog.  Creates nothing.

        Raises `ExistsError` for an SQLite file with other tables.
        """
        return is_catalog(url)

    @staticmethod
    def owner_at(url: str) -> str | None:
        """Return the id of the store that owns the catalog; None if it is not set."""
        return owner_of(url)

    @staticmethod
    def copy_at(url: str, path: Path, *, patience: float | None = None) -> None:
        """Copy a catalog of any revision, as `copy_to` does.

        It is opened read-only and not upgraded.  Raises `NoStoreError` if there is none,
        `BusyError` if another process keeps it locked for `patience` seconds (default:
        `BUSY_SECONDS`), and as `copy_to`.
        """
        copy_database(url, path, patience)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Catalog {redacted_url(self._database.url)}>"

    # -- transactions

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Yield a transaction for several reads of the same state.

        Raises `BusyError` if other threads of this process keep all connections for a minute.
        """
        with self._database.reading() as connection:
            yield Transaction(connection, self._database.home)

    @contextmanager
    def writing(self, patience: float | None = None) -> Iterator[Transaction]:
        """Yield a transaction for changes, committed together at the end or rolled back on an
        error.

        Raises `BusyError` if another process keeps writing for `patience` seconds (default:
        `BUSY_SECONDS`), `NoSpaceError`, and `ReadOnlyError`.
        """
        with self._database.writing(patience) as connection:
            yield Transaction(connection, self._database.home)

    @contextmanager
    def _querying(self) -> Iterator[Transaction]:
        """Yield a transaction for one statement, or for several that need no common state."""
        with self._database.querying() as connection:
            yield Transaction(connection, self._database.home)

    def connected(self) -> AbstractContextManager[Connection]:
        """Return a context with a connection for queries; see `reading`."""
        return self._database.reading()

    @property
    def work(self) -> WorkLog:
        """The orders of work, their units and results."""
        from vfsd.catalog.work_log import WorkLog

        return WorkLog(self._database)

    @property
    def suspects(self) -> Suspects:
        """The files that crashed processes; see `vfsd.storage.quarantine`."""
        from vfsd.catalog.integrity import Suspects

        return Suspects(self._database)

    @property
    def uploads(self) -> Uploads:
        """The leases of uploads to the bucket."""
        from vfsd.catalog.bucket_objects import Uploads

        return Uploads(self._database)

    @property
    def garbage(self) -> Garbage:
        """The files of the bucket that nothing refers to."""
        from vfsd.catalog.bucket_objects import Garbage

        return Garbage(self._database)

    @property
    def pack_tables(self) -> PackTables:
        """Copies of the tables of packs in the bucket."""
        from vfsd.catalog.bucket_objects import PackTables

        return PackTables(self._database)

    # -- the database

    @property
    def path(self) -> str | None:
        """The SQLite file; None on a server."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        return self._database.read_only

    @property
    def staleness(self) -> float | None:
        """As given to `open`."""
        return self._database.staleness

    def share_changes(self, path: Path) -> None:
        """Share the answers of the server about changes with other processes, in a file.

        Only for catalogs on a server.
        """
        from vfsd.catalog.server_connections import HostChanges

        self._database.server.counter.host = HostChanges(path)

    @property
    def home(self) -> str | None:
        """The id of the home of this process; None for a catalog that cannot have several."""
        return self._database.home

    @property
    def known_home(self) -> Home | None:
        """The row of `home` when the catalog was opened; None if there was none."""
        return self._database.known_home

    def disown(self) -> None:
        """Treat the private files of all homes as those of others, for a copy of a home."""
        self._database.home = ""

    def take_lease(self, home: Home, place: str) -> Lease:
        """Make this process the only mount of its home: see `vfsd.catalog.homes`.

        From then on, transactions that change anything fail if it has lost the lease.  Raises
        `BusyError` where another host holds it.
        """
        from vfsd.catalog.homes import Lease

        with self.writing() as change:
            mount = change.homes.take_lease(home, place)
        self._database.lease = lease = Lease(mount, self._database.querying)
        return lease

    @property
    def lease(self) -> Lease | None:
        """The lease that this process holds as a mount; None if it needs none."""
        return self._database.lease

    def require_lease(self) -> None:
        """Raise `StoreError` if this process is a mount that has lost its lease."""
        if self._database.lease is not None:
            self._database.lease.require()

    def copy_to(self, path: Path) -> None:
        """Copy a consistent snapshot of the catalog to a new SQLite file.

        Raises `IntegrityError` if the catalog is damaged, so that a bad copy never replaces a good
        one, and `sqlite3.Error`.
        """
        self._database.copy_to(path)

    def sync(self) -> None:
        """Return when every committed transaction would survive a power cut."""
        self._database.sync()

    def log_bytes(self) -> int:
        """Return the size of SQLite's log on disk; 0 without one."""
        return self._database.log_bytes()

    def restart_log(self) -> bool:
        """Make room in SQLite's log for more changes, on a full disk.

        False if that is impossible: other connections keep reading, the database file would have to
        grow, or there is no log.
        """
        return self._database.restart_log()

    def damage(self) -> list[str]:
        """Return descriptions of damage that the database finds in its file; empty if there is
        none.
        """
        return self._database.damage()

    def server_facts(self) -> ServerFacts | None:
        """Return the properties of a PostgreSQL server; None for other databases."""
        if not self._database.is_postgresql:
            return None
        from vfsd.catalog.server_connections import server_facts

        with self._database.querying():  # maps the errors
            return server_facts(self._database.engine)

    def watch(self) -> ChangeWatch:
        """Return an object that cheaply detects changes of the catalog."""
        return self._database.watch()

    # -- videos

    @lazy
    def detections(self) -> CatalogDetections:
        """The labelled boxes of all videos."""
        from vfsd.catalog.catalog_detections import CatalogDetections  # imports numpy

        return CatalogDetections(self)

    def find(
        self,
        name: str | None = None,
        *,
        tags: set[str] | frozenset[str] = frozenset(),
        metadata: Mapping[str, Any] | None = None,
        codec: str | None = None,
        container: str | None = None,
        bytes: Interval | None = None,
        seconds: Interval | None = None,
        width: Interval | None = None,
        height: Interval | None = None,
        modified_ns: Interval | None = None,
        captured_ns: Interval | None = None,
    ) -> VideoQuery:
        """Return the videos that satisfy every given condition (see `VideoFilter`).

        Raises `UsageError` for arguments of another type.

        Args:
            name: A pattern for the whole path: ``*`` stops at ``/``, ``**`` does not.
            tags: The video has all of them.
            metadata: Top-level keys with equal values.
            codec: FFmpeg's name.
            container: A name such as mp4 or matroska.
            bytes: (lowest, highest) size of the file; None leaves an end open.  Likewise `seconds`,
                `width` and `height` of the displayed frame, and `modified_ns` of the file.
            captured_ns: (from, to), Unix time: the video was being recorded in that time.  Videos
                without a known time of recording do not match.
        """
        what = make_video_filter(
            name,
            tags,
            metadata,
            codec,
            container,
            bytes=bytes,
            seconds=seconds,
            width=width,
            height=height,
            modified_ns=modified_ns,
            captured_ns=captured_ns,
        )
        return VideoQuery(self.connected, what)

    def matching(self, pattern: str) -> list[LogicalVideo]:
        """Return the videos whose names match, sorted.  Raises `NotFoundError` for none."""
        found = list(self.find(pattern))
        if not found:
            raise NotFoundError(
                f"no video matches {pattern!r}",
                hint="`*` stops at a slash, `**` does not; `vfsd find` lists videos",
            )
        return found

    def video(self, name: str) -> LogicalVideo:
        """Return the video with that name.  Raises `NotFoundError`, also for other files."""
        if self._database.is_postgresql:
            from vfsd.catalog.server_queries import video_at

            with self._database.querying() as connection:
                found = video_at(connection, name)
            if found is not None:
                return found
        with self.reading() as seen:
            return seen.videos.by_node(seen.tree.resolve(name), name)

    def unverified(self, limit: int = 100, *, before_id: int | None = None) -> list[LogicalVideo]:
        """Return videos whose original no full decode has verified or examined for damage, newest
        first.

        `before_id` is the id of an original: only older ones are returned.
        """
        most = non_negative(limit, "limit")
        if before_id is not None:
            before_id = non_negative(before_id, "before_id")
        with self.reading() as seen:
            return seen.videos.unverified(most, before_id)

    def names(self, video: LogicalVideo) -> list[str]:
        """Return every path of a video; several if it has hard links."""
        require_video(video)
        with self.reading() as seen:
            return seen.tree.paths_of(video.ino)

    def physicals(self, video: LogicalVideo) -> list[PhysicalVideo]:
        """Return all stored encodings, the original first."""
        require_video(video)
        with self.reading() as seen:
            return seen.videos.physicals(video.id)

    def provenance(self, physical: PhysicalVideo) -> list[PhysicalVideo]:
        """Return the chain from `physical` back to its original, starting with itself."""
        require_encoding(physical)
        chain = [physical]
        with self.reading() as seen:
            while chain[-1].parent_id is not None:
                chain.append(seen.videos.physical(chain[-1].parent_id))
        return chain

    def segments(self, video: LogicalVideo) -> list[Segment]:
        """Return the tiled segments that reads may use, with their cells, by first frame."""
        require_video(video)
        with self.reading() as seen:
            return seen.segments.active(video.original.id)

    def renditions(self, video: LogicalVideo) -> list[Segment]:
        """Return the segments in other sizes, by first frame."""
        require_video(video)
        with self.reading() as seen:
            return seen.segments.renditions(video.original.id)

    def joined(self, video: LogicalVideo) -> list[Segment]:
        """Return the segments stored together with another camera's video, by first frame."""
        require_video(video)
        with self.reading() as seen:
            return seen.segments.joined(video.original.id)

    def unreadable_frames(self, video: LogicalVideo) -> list[range]:
        """Return the frames of the original that damaged bytes make unreadable."""
        require_video(video)
        damage = self.damaged_bytes(video.original)
        if not damage:
            return []
        from vfsd.core.damaged_frames import damaged_frames_of  # imports numpy

        return damaged_frames_of(self.frame_table(video.original), video.original.access, damage)

    def damaged_bytes(self, original: PhysicalVideo) -> tuple[range, ...]:
        """Return the known damaged byte ranges of an original, ascending."""
        require_encoding(original)
        with self.reading() as seen:
            found = seen.integrity.inspection(original.place)
        return () if found is None else found.damage

    def checksums(self, place: ByteLocation) -> StoredChecksums | None:
        """Return the stored checksums of bytes, or None.  Raises `IntegrityError` if invalid."""
        with self._querying() as seen:
            return seen.integrity.checksums(place)

    def cost_factor(self, video: LogicalVideo) -> float | None:
        """Return the measured decoding time of the original relative to its codec's cost model, or
        None.
        """
        require_video(video)
        with self.reading() as seen:
            return seen.videos.cost_factor(video.original.id)

    def tile_state(self, video: LogicalVideo, host: str) -> TileState:
        """Return all that decides from which tiles a video is read on a host."""
        require_video(video)
        if self._database.is_postgresql:
            from vfsd.catalog.server_queries import tile_state

            with self._database.querying() as connection:
                state, is_damaged = tile_state(connection, video, host)
            if not is_damaged or not (state.segments or state.joined):
                return state
            return state._replace(unreadable=tuple(self.unreadable_frames(video)))
        key = video.original.id
        with self.reading() as seen:
            segments, joined = seen.segments.for_reads(key)
            factor = seen.videos.cost_factor(key)
            measured = {cost.name: cost.decode for cost in seen.costs.of_host(host)}
            if not segments and not joined:  # the rest only matters for the choice of tiles
                return TileState([], [], (), factor, measured, None)
            reads = seen.retention.policy(video.ino).reads
        unreadable = tuple(self.unreadable_frames(video))
        return TileState(segments, joined, unreadable, factor, measured, reads)

    def policy(self, video: LogicalVideo) -> RetentionPolicy:
        """Return the policy of a video, its own or that of a directory above."""
        require_video(video)
        with self.reading() as seen:
            return seen.retention.policy(video.ino)

    def costs(self, host: str) -> list[MeasuredCost]:
        """Return the measured decoding costs of a host (see `vfsd calibrate`)."""
        with self.reading() as seen:
            return seen.costs.of_host(host)

    def encode_costs(self, host: str) -> dict[str, float]:
        """Return measured CPU seconds per pixel of an encoded view on a host, by codec."""
        with self.reading() as seen:
            return seen.costs.of_encoding(host)

    def reads(
        self, video: LogicalVideo | None = None, *, since: int | None = None
    ) -> Iterator[LoggedRead]:
        """Yield the logged reads of a video, or of all videos, newest first.

        `since` is Unix time in nanoseconds: only reads that began then or later.  Reads that are
        logged during the iteration are not included.
        """
        _require_info_or_none(video)
        if since is not None:
            hint = "give a Unix time in nanoseconds"
            since = within_64_bits(whole_number(since, "since"), "since: ", hint=hint)
        self.fold_reads()
        before: int | None = None
        while True:
            with self.reading() as seen:
                some = seen.read_log.newest(
                    None if video is None else video.id,
                    since_ns=since,
                    before_id=before,
                    limit=_READS_AT_ONCE,
                )
            yield from some
            if len(some) < _READS_AT_ONCE:
                return
            before = some[-1].id

    def read_areas(self, video: LogicalVideo, frames: range) -> list[ReadArea]:
        """Return the areas of reads that touched some of `frames`, most frequent first."""
        require_video(video)
        self.fold_reads()
        with self.reading() as seen:
            return seen.read_log.areas(video.id, frames)

    def decisions(self, video: LogicalVideo | None = None) -> list[TilingDecision]:
        """Return the tiling decisions for a video, or for all videos, newest first."""
        _require_info_or_none(video)
        with self.reading() as seen:
            return seen.tiling_decisions.newest(None if video is None else video.id)

    def note_reads(self, done: Sequence[tuple[str, LoggedRead]], *, keep: int) -> None:
        """Log reads, each with the digest of the bytes that were read, and drop old ones.

        The uses of segments are counted, too.  The newest `keep` reads are kept.  A `watch` does
        not report this change.  Raises `BusyError` after a second of waiting for other writers, and
        `NoSpaceError`.  On PostgreSQL, the reads are in the log after half a minute, or when it is
        used.
        """
        if self._database.is_postgresql:
            self._note_on_server(done, keep)
            return
        with self._database.unwatched_writing() as connection:
            reads = LoggedReads(connection)
            if reads.add(done):
                usage = DerivedUsage(connection)
                usage.record_used(_segment_gains(done, usage.newest_read()))
                reads.keep(keep)

    def _note_on_server(self, done: Sequence[tuple[str, LoggedRead]], keep: int) -> None:
        from vfsd.catalog.read_history import FOLD_SECONDS, add_notes

        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")
        self._kept_reads = keep
        with self._database.querying() as connection:
            add_notes(connection, done)
        if time.monotonic() < self._fold_at:
            return
        self._fold_at = time.monotonic() + FOLD_SECONDS
        # The reads are noted by now: another process can move them, or this one later.
        with suppress(UnreachableError):
            self.fold_due_reads()

    def fold_due_reads(self) -> None:
        """Like `fold_reads`, but only if notes are old enough and no other process does it."""
        if not self._database.is_postgresql or self.read_only:
            return
        from vfsd.catalog.read_history import fold_notes, may_fold

        with (
            suppress(BusyError, ReadOnlyError),
            self._database.rarely_writing(lambda seen: may_fold(seen, time.time_ns())) as found,
        ):
            if found is not None:
                fold_notes(found, self._kept_reads)

    def fold_reads(self) -> None:
        """On PostgreSQL, add the reads that all processes have noted to the log.

        Not while another process keeps writing, or in a store that was opened read-only.
        """
        if not self._database.is_postgresql or self.read_only:
            return
        from vfsd.catalog.read_history import fold_notes

        with suppress(BusyError, ReadOnlyError), self._database.unwatched_writing() as connection:
            fold_notes(connection, self._kept_reads)

    def record_inspections(self, places: Sequence[tuple[ByteLocation, int]]) -> None:
        """Record that the bytes at these locations were examined at these times and found intact.

        A `watch` does not report this, unless damage was known before.  Raises `BusyError`.
        """
        with self.reading() as seen:
            damaged = {found.place for found in seen.integrity.damaged()}
        healed = [one for one in places if one[0] in damaged]
        with self._database.unwatched_writing() as connection:
            _note_inspections(
                IntegrityLog(connection), [one for one in places if one[0] not in damaged]
            )
        if healed:
            with self.writing() as change:
                _note_inspections(change.integrity, healed)

    def forget_reads(self, video: LogicalVideo | None = None) -> int:
        """Drop the logged reads of a video, or of all videos, and return their number."""
        _require_info_or_none(video)
        with self.writing() as change:
            change.fold_reads()
            return change.read_log.remove(None if video is None else video.id)

    def frame_table(self, physical: PhysicalVideo) -> FrameTable:
        """Return the table of every frame's time and packet.

        Costs one small query; pages are read on demand.  Raises `UsageError` for an encoding other
        than an original, `NotFoundError` if the encoding no longer exists, and `IntegrityError` if
        a page is missing.  Later reads of pages raise `NotFoundError`, too.
        """
        from vfsd.core.frame_table import FrameTable  # imports numpy

        require_encoding(physical)
        if physical.role is not Role.ORIGINAL:
            raise UsageError(
                f"a {physical.role.value} encoding has no frame table of its own",
                hint="use the table of the original; `Catalog.segments` and `renditions` list the "
                "frames of other encodings",
            )
        with self._querying() as seen:
            bounds = seen.videos.page_bounds(physical.id)
            if not bounds:
                seen.videos.require_there(physical.id)

        def fetch(ordinal: int) -> bytes:
            with self._querying() as later:
                return later.videos.page(physical.id, ordinal)

        table = FrameTable(
            bounds, fetch, time_base=physical.media.time_base, end_pts=physical.end_pts
        )
        if (table.packets, len(table)) != (physical.packets, physical.frames):
            raise IntegrityError(
                f"the frame table must have {physical.frames} frames, has {len(table)}",
                hint="run `vfsd fsck --repair`",
            )
        return table

    def sound(self, physical: PhysicalVideo) -> tuple[Sound, FrameTable] | None:
        """Return the audio track of an original, and its packets as a table of frames.

        None if the file has no audio stream, or has not been examined for one: see
        `MediaInfo.side_streams`.  Pages are read on demand.
        """
        from vfsd.core.frame_table import FrameTable  # imports numpy

        require_encoding(physical)
        with self.reading() as seen:
            sound = seen.audio_tracks.of(physical.id)
            bounds = seen.audio_tracks.page_bounds(physical.id)
        if sound is None:
            return None

        def fetch(ordinal: int) -> bytes:
            with self.reading() as later:
                return later.audio_tracks.page(physical.id, ordinal)

        table = FrameTable(bounds, fetch, time_base=sound.time_base, end_pts=sound.end_pts)
        return sound, table

    def gops(self, physical: PhysicalVideo) -> Iterator[Gop]:
        """Return the runs of packets that start at a key frame, in decode order."""
        require_encoding(physical)
        return self.frame_table(physical).gops()

    def locate(self, physical: PhysicalVideo, frames: range) -> list[ByteRange]:
        """Return the byte ranges of the packets of `frames` (contiguous, half-open); adjacent ones
        are merged.

        In containers that interleave packets (MPEG-TS), a range starts where its packet starts, and
        its size is that of the packet's content.  Raises `OutOfRangeError`.
        """
        require_encoding(physical)
        positions, sizes = self.frame_table(physical).extents(frames)
        ranges: list[tuple[int, int]] = []
        for start, size in zip(positions.tolist(), sizes.tolist(), strict=True):
            if ranges and ranges[-1][0] + ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((start, size))
        return [
            ByteRange(physical.object_key, physical.link_path, start, size)
            for start, size in ranges
        ]

    def tag(self, video: LogicalVideo, *words: str) -> LogicalVideo:
        """Add tags, and return the updated video.

        Raises `UsageError` for values that are not text, are longer than 255 characters, or contain
        NUL or a lone surrogate.
        """
        require_video(video)
        with self.writing() as change:
            change.videos.require(video)
            change.videos.add_tags(video.id, words)
            return change.videos.get(video.id)

    def untag(self, video: LogicalVideo, *words: str) -> LogicalVideo:
        """Remove tags, if present, and return the updated video."""
        require_video(video)
        with self.writing() as change:
            change.videos.require(video)
            change.videos.remove_tags(video.id, words)
            return change.videos.get(video.id)

    def set_metadata(self, video: LogicalVideo, /, **values: Any) -> LogicalVideo:
        """Set top-level keys of the video's metadata; a value of None removes the key.

        Raises `UsageError` for values that JSON cannot hold, for text with NUL or a lone surrogate,
        and for integers beyond 64 bits.
        """
        require_video(video)
        with self.writing() as change:
            change.videos.require(video)
            merged = dict(change.videos.get(video.id).metadata) | require_json_keys(values)
            kept = {key: value for key, value in merged.items() if value is not None}
            change.videos.set_metadata(video.id, kept)
            return change.videos.get(video.id)


class Transaction:
    """One consistent view of the catalog, or one change that is committed as a whole.

    Repositories are created at first use: most transactions need two or three.
    """

    def __init__(self, connection: Connection, home: str | None = None) -> None:
        self._connection = connection
        self._home = home

    @lazy
    def tree(self) -> Tree:
        return Tree(self._connection, self._home)

    @lazy
    def homes(self) -> Homes:
        from vfsd.catalog.homes import Homes  # SQLite catalogs have none

        return Homes(self._connection)

    @lazy
    def videos(self) -> Videos:
        return Videos(self._connection)

    @lazy
    def box_counts(self) -> BoxCounts:
        from vfsd.catalog.detection_counts import BoxCounts  # most processes count none

        return BoxCounts(self._connection)

    @lazy
    def searches(self) -> SavedSearches:
        from vfsd.catalog.searches import SavedSearches  # few processes use them

        return SavedSearches(self._connection)

    @lazy
    def lists(self) -> VideoLists:
        from vfsd.catalog.video_pages import VideoLists  # most processes list no pages

        return VideoLists(self._connection)

    @lazy
    def objects(self) -> Objects:
        return Objects(self._connection)

    @lazy
    def segments(self) -> Segments:
        return Segments(self._connection)

    @lazy
    def costs(self) -> MeasuredCosts:
        return MeasuredCosts(self._connection)

    @lazy
    def detections(self) -> Detections:
        from vfsd.catalog.detections import Detections  # imports numpy

        return Detections(self._connection)

    @lazy
    def moments(self) -> Moments:
        from vfsd.catalog.moments import Moments  # imports numpy

        return Moments(self._connection)

    @lazy
    def vectors(self) -> StoredVectorBlocks:
        from vfsd.catalog.vectors import StoredVectorBlocks  # imports numpy

        return StoredVectorBlocks(self._connection)

    @lazy
    def layers(self) -> Layers:
        from vfsd.catalog.layers import Layers  # imports numpy

        return Layers(self._connection)

    @lazy
    def layer_indexes(self) -> LayerIndexes:
        from vfsd.catalog.layers import LayerIndexes

        return LayerIndexes(self._connection)

    @lazy
    def read_log(self) -> LoggedReads:
        return LoggedReads(self._connection)

    def fold_reads(self) -> None:
        """On PostgreSQL, add the noted reads to the log; see `Catalog.note_reads`."""
        if self._connection.dialect.name == "postgresql":
            from vfsd.catalog.read_history import fold_notes

            fold_notes(self._connection, None)

    @lazy
    def tiling_decisions(self) -> TilingDecisions:
        return TilingDecisions(self._connection)

    @lazy
    def derived_usage(self) -> DerivedUsage:
        return DerivedUsage(self._connection)

    @lazy
    def evictions(self) -> EvictionLog:
        return EvictionLog(self._connection)

    @lazy
    def audio_tracks(self) -> AudioTracks:
        return AudioTracks(self._connection)

    @lazy
    def retention(self) -> OriginalPolicies:
        return OriginalPolicies(self._connection)

    @lazy
    def clock_history(self) -> ClockHistory:
        return ClockHistory(self._connection)

    @lazy
    def integrity(self) -> IntegrityLog:
        return IntegrityLog(self._connection)


def _require_info_or_none(video: object) -> None:
    """Check the type; None stands for all videos."""
    if video is not None:
        require_video(video)


def _segment_gains(done: Iterable[tuple[str, LoggedRead]], newest: int) -> dict[int, SegmentGain]:
    """Return the gains by segment, all dated to read number `newest`."""
    found: dict[int, SegmentGain] = {}
    for _, read in done:
        for one in read.uses:
            before = found.get(one.segment_id, SegmentGain(newest, 0, 0, 0.0))
            found[one.segment_id] = SegmentGain(
                newest,
                max(before.at_ns, read.at_ns),
                before.uses + 1,
                before.saved + one.saved,
            )
    return found


def _note_inspections(integrity: IntegrityLog, places: Sequence[tuple[ByteLocation, int]]) -> None:
    for place, at_ns in places:
        if integrity.is_known(place):
            integrity.record_inspection(place, (), now_ns=at_ns)
