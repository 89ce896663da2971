"""`Catalog`: what is stored, and where each byte of it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from vfsd.blocksums import Place
from vfsd.catalog.costs import MeasuredCosts
from vfsd.catalog.decisions import Decisions
from vfsd.catalog.detectionquery import DetectionQuery, make_filter, require_same_bytes
from vfsd.catalog.detections import Detections, Progress, ranges_of
from vfsd.catalog.engine import LOST, ChangeWatch, Database, current_revision
from vfsd.catalog.evictions import Evictions
from vfsd.catalog.holdings import Holdings, Used
from vfsd.catalog.integrity import Integrity
from vfsd.catalog.originals import Originals
from vfsd.catalog.query import Interval, VideoFilter, VideoQuery
from vfsd.catalog.reads import Reads
from vfsd.catalog.segments import Segments
from vfsd.catalog.sounds import Sounds
from vfsd.catalog.tree import Tree
from vfsd.catalog.upgrade import HEAD, require_known, upgrade
from vfsd.catalog.videos import Objects, Videos
from vfsd.detections import (
    DetectionColumns,
    Examined,
    Ints,
    LabelSummary,
    Source,
    source_from,
)
from vfsd.errors import NoStoreError, NotFoundError, OutOfRangeError, StoreVersionError
from vfsd.frametable import FrameTable
from vfsd.hitframes import hit_frames
from vfsd.labelexpr import Labels, clauses_of
from vfsd.model import (
    ByteRange,
    Decision,
    Gop,
    LogicalVideo,
    MeasuredCost,
    PhysicalVideo,
    Read,
    ReadArea,
    Segment,
    Sound,
)
from vfsd.tiling import Rect


@dataclass(frozen=True, slots=True)
class Transaction:
    """One consistent look at the catalog, or one change that is published whole."""

    tree: Tree
    videos: Videos
    objects: Objects
    segments: Segments
    costs: MeasuredCosts
    detections: Detections
    reads: Reads
    decisions: Decisions
    holdings: Holdings
    evictions: Evictions
    sounds: Sounds
    originals: Originals
    integrity: Integrity


_READS_AT_ONCE = 1000


class Catalog:
    """What is stored, and where each byte of it lies.

    Every answer is a frozen value of `vfsd.model`.  Safe to use from several threads, and after a
    fork.  Several processes may have the same catalog open; writers take turns.

        with Catalog.open("sqlite:////srv/videos/catalog.sqlite3") as catalog:
            for video in catalog.find(name="cam1/**", codec="h264", tags={"night"}):
                print(video.name, video.original.frames)
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, *, read_only: bool = False) -> Catalog:
        """Open an existing catalog, bringing its schema up to date unless `read_only`.

        Raises `NoStoreError`, `StoreVersionError` (a newer vfsd wrote it), `BusyError`.
        """
        return cls._open(url, create=False, read_only=read_only)

    @classmethod
    def create(cls, url: str) -> Catalog:
        """Open a catalog, making it where the database is empty."""
        return cls._open(url, create=True, read_only=False)

    @classmethod
    def _open(cls, url: str, *, create: bool, read_only: bool) -> Catalog:
        database = Database(url, read_only=read_only)
        try:
            with database.reading() as connection:
                revision = current_revision(connection)
            require_known(revision)
            if revision is None and not create:
                raise NoStoreError(f"there is no catalog at {database.url}", hint=LOST)
            if revision != HEAD and read_only:
                raise StoreVersionError(
                    f"the catalog is at revision {revision} and has to be brought to {HEAD} first",
                    hint="open the store for writing once, for instance with `vfsd ls`",
                )
            if revision != HEAD:
                with database.writing() as connection:
                    upgrade(connection)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Catalog {self._database.url}>"

    # -- transactions

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Several looks at the same state."""
        with self._database.reading() as connection:
            yield _transaction(connection)

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Changes that become visible together when the block ends, or not at all.

        Raises `BusyError` when another process keeps writing, `NoSpaceError`, `ReadOnlyError`.
        """
        with self._database.writing() as connection:
            yield _transaction(connection)

    @property
    def path(self) -> str | None:
        """The file that it is; None where it is on a server."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        return self._database.read_only

    def copy_to(self, path: Path) -> None:
        """Copy it as it is at one moment to a file that is not there yet.

        Only where it is a file itself.  Raises `sqlite3.Error`.
        """
        self._database.copy_to(path)

    def sync(self) -> None:
        """Return when every finished transaction would survive a power cut."""
        self._database.sync()

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its file; empty when all is well."""
        return self._database.damage()

    def watch(self) -> ChangeWatch:
        """Tells cheaply whether anybody has changed the catalog."""
        return ChangeWatch(self._database)

    # -- videos

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
    ) -> VideoQuery:
        """The videos for which everything that is given holds (see `VideoFilter`)."""
        what = VideoFilter(
            name,
            frozenset(tags),
            dict(metadata or {}),
            codec,
            container,
            bytes,
            seconds,
            width,
            height,
            modified_ns,
        )
        return VideoQuery(self._database.reading, what)

    def video(self, name: str) -> LogicalVideo:
        """The video with that name.  Raises `NotFoundError`, also for a file that is no video."""
        with self.reading() as seen:
            node = seen.tree.resolve(name)
            if not node.is_file:
                raise NotFoundError(f"{name!r} is not a file")
            try:
                return seen.videos.of_inode(node.ino)
            except NotFoundError:
                why = f": {node.reason}" if node.reason else ""
                raise NotFoundError(f"{name!r} is a file, but no video{why}") from None

    def unverified(self, limit: int = 100) -> list[LogicalVideo]:
        """Videos whose frame table no full decode has confirmed yet, the newest first."""
        with self.reading() as seen:
            return seen.videos.unverified(limit)

    def names(self, video: LogicalVideo) -> list[str]:
        """Every name of a video; more than one where it has hard links."""
        with self.reading() as seen:
            return seen.tree.paths_of(video.ino)

    def physicals(self, video: LogicalVideo) -> list[PhysicalVideo]:
        """All stored encodings, the original first."""
        with self.reading() as seen:
            return seen.videos.physicals(video.id)

    def provenance(self, physical: PhysicalVideo) -> list[PhysicalVideo]:
        """The chain from `physical` back to the original that it was made from, itself first."""
        chain = [physical]
        with self.reading() as seen:
            while chain[-1].parent_id is not None:
                chain.append(seen.videos.physical(chain[-1].parent_id))
        return chain

    def segments(self, video: LogicalVideo) -> list[Segment]:
        """The tiled runs of frames that reads may use, with their cells, by their first frame."""
        with self.reading() as seen:
            return seen.segments.active(video.original.id)

    def renditions(self, video: LogicalVideo) -> list[Segment]:
        """The runs of frames that are stored in other sizes, by their first frame."""
        with self.reading() as seen:
            return seen.segments.renditions(video.original.id)

    def joined(self, video: LogicalVideo) -> list[Segment]:
        """The runs of frames that are kept together with another camera's, by their first frame."""
        with self.reading() as seen:
            return seen.segments.joined(video.original.id)

    def unreadable_frames(self, video: LogicalVideo) -> list[range]:
        """The frames of the original that are known to be lost, as their bytes are damaged."""
        damage = self.damaged_bytes(video.original)
        if not damage:
            return []
        return hit_frames(self.frame_table(video.original), video.original.access, damage)

    def damaged_bytes(self, original: PhysicalVideo) -> tuple[range, ...]:
        """The bytes of an original that are known to be damaged, ascending."""
        with self.reading() as seen:
            found = seen.integrity.inspection(original.place)
        return () if found is None else found.damage

    def cost_factor(self, video: LogicalVideo) -> float | None:
        """How many times as much as its codec's rule says decoding the original takes; None where
        that was not measured."""
        with self.reading() as seen:
            return seen.videos.cost_factor(video.original.id)

    def costs(self, host: str) -> list[MeasuredCost]:
        """What decoding was measured to cost on that host (see `vfsd calibrate`)."""
        with self.reading() as seen:
            return seen.costs.of_host(host)

    # -- what was read

    def reads(
        self, video: LogicalVideo | None = None, *, since: int | None = None
    ) -> Iterator[Read]:
        """The reads of a video, or of all, that are remembered; the newest first.

        `since` is Unix time in nanoseconds: only those that began then or later.  What is read
        meanwhile is not among them.
        """
        before: int | None = None
        while True:
            with self.reading() as seen:
                some = seen.reads.newest(
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
        """Where the reads looked that have touched some of `frames`, the most often first."""
        with self.reading() as seen:
            return seen.reads.areas(video.id, frames)

    def decisions(self, video: LogicalVideo | None = None) -> list[Decision]:
        """Which tiles of a video, or of all, were made because of reads, and why; the newest
        first."""
        with self.reading() as seen:
            return seen.decisions.newest(None if video is None else video.id)

    def note_reads(self, done: Sequence[tuple[str, Read]], *, keep: int) -> None:
        """Remember reads, each with the digest of the bytes that were read, and forget old ones.

        What they used of segments is counted there.  The newest `keep` are kept.  No `watch`
        tells of it.  Raises `BusyError` after a second in which others write, `NoSpaceError`.
        """
        with self._database.noting() as connection:
            reads = Reads(connection)
            if reads.add(done):
                holdings = Holdings(connection)
                holdings.note_used(_used(done, holdings.newest_read()))
                reads.keep(keep)

    def note_looks(self, places: Sequence[tuple[Place, int]]) -> None:
        """Places whose bytes were looked at, each with when, and found to be right.

        No `watch` tells of it, unless something was known to be damaged.  Raises `BusyError`.
        """
        with self.reading() as seen:
            damaged = {found.place for found in seen.integrity.damaged()}
        healed = [one for one in places if one[0] in damaged]
        with self._database.noting() as connection:
            _note_looks(Integrity(connection), [one for one in places if one[0] not in damaged])
        if healed:
            with self.writing() as change:
                _note_looks(change.integrity, healed)

    def forget_reads(self, video: LogicalVideo | None = None) -> int:
        """Forget the reads of a video, or of all; how many."""
        with self.writing() as change:
            return change.reads.remove(None if video is None else video.id)

    # -- frames and bytes

    def frame_table(self, physical: PhysicalVideo) -> FrameTable:
        """Every frame's time and packet.  Costs one small query; pages are read as needed."""
        with self.reading() as seen:
            bounds = seen.videos.page_bounds(physical.id)

        def fetch(ordinal: int) -> bytes:
            with self.reading() as later:
                return later.videos.page(physical.id, ordinal)

        return FrameTable(
            bounds, fetch, time_base=physical.media.time_base, end_pts=physical.end_pts
        )

    def sound(self, physical: PhysicalVideo) -> tuple[Sound, FrameTable] | None:
        """The sound of an original, and its packets as the frames of a table.

        None where it has no audio stream, or where nobody has looked for it yet: see
        `MediaInfo.side_streams`.  Pages are read as needed.
        """
        with self.reading() as seen:
            sound = seen.sounds.of(physical.id)
            bounds = seen.sounds.page_bounds(physical.id)
        if sound is None:
            return None

        def fetch(ordinal: int) -> bytes:
            with self.reading() as later:
                return later.sounds.page(physical.id, ordinal)

        table = FrameTable(bounds, fetch, time_base=sound.time_base, end_pts=sound.end_pts)
        return sound, table

    def gops(self, physical: PhysicalVideo) -> Iterator[Gop]:
        """Runs of packets that start at a key frame, in decode order."""
        return self.frame_table(physical).gops()

    def locate(self, physical: PhysicalVideo, frames: range) -> list[ByteRange]:
        """Where the packets of `frames` (contiguous, half-open) lie, as few ranges as touch.

        For containers that cut packets up (MPEG-TS) a range starts where its packet starts, and
        its size is that of the packet's content.  Raises `OutOfRangeError`.
        """
        table = self.frame_table(physical)
        packets = sorted(int(p) for p in table.packets_of(frames))
        ranges: list[tuple[int, int]] = []
        for packet in packets:
            columns = table.columns(packet, packet + 1)
            start, size = int(columns.position[0]), int(columns.size[0])
            if ranges and ranges[-1][0] + ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((start, size))
        return [
            ByteRange(physical.object_key, physical.link_path, start, size)
            for start, size in ranges
        ]

    # -- what users attach

    def tag(self, video: LogicalVideo, *words: str) -> LogicalVideo:
        """Add tags; the video as it is afterwards."""
        with self.writing() as change:
            change.videos.add_tags(video.id, words)
            return change.videos.get(video.id)

    def untag(self, video: LogicalVideo, *words: str) -> LogicalVideo:
        """Remove tags, those that it does not have included."""
        with self.writing() as change:
            change.videos.remove_tags(video.id, words)
            return change.videos.get(video.id)

    def set_metadata(self, video: LogicalVideo, /, **values: Any) -> LogicalVideo:
        """Set top-level keys of the video's metadata; a value of None removes the key."""
        with self.writing() as change:
            merged = dict(change.videos.get(video.id).metadata) | values
            kept = {key: value for key, value in merged.items() if value is not None}
            change.videos.set_metadata(video.id, kept)
            return change.videos.get(video.id)

    # -- what has been seen in videos

    def add_detections(
        self,
        video: LogicalVideo,
        rows: DetectionColumns,
        source: str | Source | None,
        *,
        examined: Iterable[range] | Iterable[int] | Ints | None = None,
        replace: bool | range = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Add boxes that `source` has found, and the frames that it has `examined`; how many.

        Without a source each row's own counts, and all of these have examined the frames.  With
        `replace` everything that the very same sources said of the video before, or of a range of
        its frames (without steps), goes; all in one transaction.  `on_progress` is told (done, of
        how many), and may raise to give up.

        Raises `OutOfRangeError` for a frame that the video does not have, `NotFoundError` when
        the video's bytes have changed since it was looked up.
        """
        parts = rows.by_source() if source is None else [(source_from(source), rows)]
        ranges = [] if examined is None else ranges_of(examined)
        done = 0

        def report(now: int, _: int) -> None:
            if on_progress is not None:
                on_progress(done + now, len(rows))

        with self._about(video) as index:
            _require_frames(video, [*ranges, *_extent(rows)])
            for who, part in parts:
                if replace is not False:
                    index.remove(
                        video.id,
                        source_ids=index.known_sources(who),
                        frames=replace if isinstance(replace, range) else None,
                    )
                if ranges:
                    index.mark_examined(video.id, ranges, who)
                done += index.add(video.id, part, who, on_progress=report)
        return done

    def mark_examined(
        self,
        video: LogicalVideo,
        frames: Iterable[range] | Iterable[int] | Ints,
        source: str | Source,
    ) -> None:
        """Note that `source` has looked at `frames`, so that finding nothing means something.

        Raises `OutOfRangeError`, `NotFoundError` as `add_detections` does.
        """
        ranges = ranges_of(frames)
        with self._about(video) as index:
            _require_frames(video, ranges)
            index.mark_examined(video.id, ranges, source_from(source))

    def remove_detections(
        self,
        video: LogicalVideo,
        *,
        labels: Sequence[str] | str | None = None,
        frames: range | None = None,
        source: str | Source | None = None,
    ) -> int:
        """Remove the boxes for which everything given holds; how many.

        `labels`: any of them.  Without it the frames that the sources have examined are forgotten,
        too, as far as `frames` (without steps) reaches.
        """
        wanted = None if labels is None else set().union(*clauses_of(labels))
        with self._about(video) as index:
            return index.remove(
                video.id,
                source_ids=None if source is None else index.known_sources(source),
                label_ids=None if wanted is None else sorted(index.known_labels(wanted).values()),
                frames=frames,
            )

    def detections(
        self,
        video: LogicalVideo,
        labels: Labels | None = None,
        *,
        frames: range | Sequence[int] | Ints | int | None = None,
        region: Rect | tuple[float, float, float, float] | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> DetectionQuery:
        """The boxes for which everything given holds (see `DetectionFilter`).

        `labels` is a label, a list of which one has to fit, or a list of lists that all have to.
        """
        what = make_filter(labels, frames, region, source, min_confidence, track, attributes)
        return DetectionQuery(self._database.reading, video, what)

    def labels(
        self, video: LogicalVideo, *, source: str | Source | None = None
    ) -> list[LabelSummary]:
        """The labels that a video has boxes of, by name, with their numbers.  Reads every box."""
        with self.reading() as seen:
            return seen.detections.summary(video.id, _source_ids(seen.detections, source))

    def sources(self, video: LogicalVideo) -> list[Source]:
        """Who has said anything of a video, or has examined any of it."""
        with self.reading() as seen:
            return seen.detections.sources_of(video.id)

    def examined(self, video: LogicalVideo, source: str | Source | None = None) -> list[Examined]:
        """The frames that have been looked at, by source, then by frame."""
        with self.reading() as seen:
            return seen.detections.examined(video.id, _source_ids(seen.detections, source))

    @contextmanager
    def _about(self, video: LogicalVideo) -> Iterator[Detections]:
        """A change to the detections of a video that still has the bytes it had."""
        with self.writing() as change:
            require_same_bytes(change.detections, video)
            yield change.detections


def _source_ids(index: Detections, source: str | Source | None) -> list[int] | None:
    return None if source is None else index.known_sources(source)


def _extent(rows: DetectionColumns) -> list[range]:
    if not len(rows):
        return []
    return [range(int(rows.frames.min()), int(rows.frames.max()) + 1)]


def _require_frames(video: LogicalVideo, ranges: Iterable[range]) -> None:
    for one in ranges:
        if len(one) and (one.start < 0 or one.stop > video.original.frames):
            wrong = one.start if one.start < 0 else one.stop - 1
            raise OutOfRangeError(
                f"there is no frame {wrong}; {video.name!r} has {video.original.frames}",
                hint="frames count from 0; a file that counts from 1 needs frame base 1",
            )


def _used(done: Iterable[tuple[str, Read]], newest: int) -> dict[int, Used]:
    """By segment; they count as done when the `newest` read was."""
    found: dict[int, Used] = {}
    for _, read in done:
        for one in read.uses:
            before = found.get(one.segment_id, Used(newest, 0, 0, 0.0))
            found[one.segment_id] = Used(
                newest,
                max(before.at_ns, read.at_ns),
                before.uses + 1,
                before.saved + one.saved,
            )
    return found


def _note_looks(integrity: Integrity, places: Sequence[tuple[Place, int]]) -> None:
    for place, at_ns in places:
        if integrity.is_there(place):
            integrity.note_look(place, (), now_ns=at_ns)


def _transaction(connection: Connection) -> Transaction:
    return Transaction(
        Tree(connection),
        Videos(connection),
        Objects(connection),
        Segments(connection),
        MeasuredCosts(connection),
        Detections(connection),
        Reads(connection),
        Decisions(connection),
        Holdings(connection),
        Evictions(connection),
        Sounds(connection),
        Originals(connection),
        Integrity(connection),
    )
