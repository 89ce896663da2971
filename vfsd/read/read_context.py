"""State of reads: `ReadContext` is shared by all videos of an open store, `VideoContext` belongs
to one open video. `RecentVideos` and `TileIndex` cache records, frame tables, tiles and decode
costs until the catalog changes, so that warm reads need no catalog query.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from vfsd.catalog import Catalog, TileState, Transaction, without_password
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import Frame, FrameTimes
from vfsd.core.model import LogicalVideo, PhysicalVideo, Segment
from vfsd.core.process_control import available_cores, host_name, lazy, reset_after_fork
from vfsd.core.timebase import Seconds, Span, exact_span, on_tick
from vfsd.core.view_request import View
from vfsd.errors import NotFoundError, ShortSpanWarning, VfsdError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.pack_pool import PackPool, RemoteTables
from vfsd.read.read_log import NullReadLog, ReadLog, ReadRecorder, ReadTiming, describe_planned_read
from vfsd.read.read_plan import AvailableTiles, ReadPlan
from vfsd.read.tile_planner import DecodeCosts, MissingShare, clamp_cost_factor
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import drop_damaged_tiles
from vfsd.tiling import cut_sequences
from vfsd.tiling.cost import DecodeCost, DecodeWork, RemoteCost
from vfsd.validation import decibels

if TYPE_CHECKING:
    from vfsd.read.shared_store import StoreAddress

_MAX_VIDEOS = 64
_NEW_SAMPLE_WEIGHT = 0.2
"""Weight of a new measurement in the moving average of a cost factor."""
_MIN_MEASURED_SECONDS = 1e-3
"""A shorter time measures the clock rather than the encoding."""


class CatalogChanges:
    """Counts the changes of the catalog, by any process, that caches must notice.  Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._watch = catalog.watch()
        self._count = 0
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def count(self) -> int:
        """Return the present count.  Ask before a query whose result is to be cached."""
        # Threads that may know less do not wait while another one asks a server.
        if not self._guard.acquire(blocking=not self._watch.may_lag or not self._count):
            return self._count
        try:
            if self._watch.changed():
                self._count += 1
            return self._count
        finally:
            self._guard.release()

    def close(self) -> None:
        self._watch.close()


class TileIndex:
    """Tiles and costs of recently read videos, for planners.  Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        changes: CatalogChanges,
        threads: int,
        remote_cost: Callable[[LogicalVideo], RemoteCost | None] = lambda video: None,
        missing: MissingShare | None = None,
    ) -> None:
        """`remote_cost` returns the cost of fetching a video; None if it is in local files.

        `missing` looks into the cache of fetched bytes.
        """
        self._catalog = catalog
        self._missing = missing
        self._remote_cost = remote_cost
        self._threads = threads
        self._changes = changes
        # by id of the original
        self._videos: OrderedDict[int, tuple[int, TileState]] = OrderedDict()
        self._measured: dict[str, DecodeCost] = {}
        self._factors: dict[int, float] = {}  # by id of the encoding, from reads of this process
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._videos = OrderedDict()
        self._guard = threading.Lock()

    def of(self, video: LogicalVideo, luma: float) -> AvailableTiles:
        """Return the current tiles of a video, including changes by other processes.

        Their luma must have `luma` dB, or the minimum of the video's policy instead, but no more
        than the original.
        """
        key = video.original.id
        changes = self._changes.count()
        with self._guard:
            known, found = self._videos.get(key, (-1, None))
        if found is None or known != changes:
            loaded = self._catalog.tile_state(video, host_name())
            # Cached plans and views refer to the object, and most changes concern other videos.
            found = found if found == loaded else loaded
        with self._guard:
            self._measured = found.measured
            self._videos[key] = (changes, found)
            self._videos.move_to_end(key)
            while len(self._videos) > _MAX_VIDEOS:
                self._videos.popitem(last=False)
        factors = self._factors if found.factor is None else {**self._factors, key: found.factor}
        remote = self._remote_cost(video)
        missing = None if remote is None else self._missing
        costs = DecodeCosts(found.measured, factors, self._threads, remote, missing)
        if not found.segments and not found.joined:
            return AvailableTiles((), costs, luma)
        wanted = min(luma if found.reads is None else found.reads, video.original.psnr)
        return AvailableTiles(found.segments, costs, wanted, found.joined, found.unreadable)

    def note(self, segment: Segment, work: DecodeWork, seconds: float) -> None:
        """Record the CPU seconds of decoding some tiles of a segment."""
        with self._guard:
            rule = DecodeCosts(self._measured).of_tiles(segment).seconds(work)
            if min(rule, seconds) < _MIN_MEASURED_SECONDS:
                return
            ratio = clamp_cost_factor(seconds / rule)
            before = self._factors.get(segment.physical_id, ratio)
            self._factors[segment.physical_id] = before + _NEW_SAMPLE_WEIGHT * (ratio - before)


class RecentVideos:
    """The videos that were opened last, by name, until the catalog changes.  Thread-safe."""

    def __init__(self, changes: CatalogChanges) -> None:
        self._changes = changes
        self._counted = -1
        self._videos: OrderedDict[str, VideoContext] = OrderedDict()
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._videos = OrderedDict()
        self._guard = threading.Lock()

    def opened(self, name: str, load: Callable[[str], VideoContext]) -> VideoContext:
        """Return the video with that name, from `load` if it is not known.  Raises as `load`."""
        changes = self._changes.count()
        with self._guard:
            if changes != self._counted:
                # Any change may rename a video, correct its frame table or replace its bytes.
                self._videos.clear()
                self._counted = changes
            found = self._videos.get(name)
            if found is not None:
                self._videos.move_to_end(name)
                return found
        found = load(name)
        found.note_loaded(changes)
        with self._guard:
            if changes == self._counted:
                self._videos[name] = found
                while len(self._videos) > _MAX_VIDEOS:
                    self._videos.popitem(last=False)
        return found

    def clear(self) -> None:
        """Forget all videos."""
        with self._guard:
            self._videos.clear()


class ReadContext:
    """State that all reads of a store share.  Thread-safe, and usable after a fork.

    Each part is created at its first use.
    """

    def __init__(self, parts: StoreContext, threads: int | None = None) -> None:
        """`threads` decode in parallel, by default one per core."""
        self.parts = parts
        self._chosen_threads = threads
        self.threads = threads or available_cores()

    @property
    def address(self) -> StoreAddress:
        """How another process opens the same store."""
        from vfsd.read.shared_store import StoreAddress

        return StoreAddress(
            root=str(self.parts.directory.root.absolute()),
            store_id=self.parts.directory.id,
            read_only=self.parts.read_only,
            threads=self._chosen_threads,
            staleness=self.parts.catalog.staleness,
            catalog=self._shared_catalog(),
        )

    def _shared_catalog(self) -> str | None:
        """Return the URL that other hosts can join the store with, without a password; or None."""
        directory = self.parts.directory
        if directory.bucket is None or self.parts.catalog.home is None:
            return None
        return without_password(directory.catalog_url)

    @property
    def store_id(self) -> str:
        """The identity of the store, wherever it is."""
        return self.parts.directory.id

    def __reduce__(self) -> tuple[Callable[[StoreAddress], ReadContext], tuple[StoreAddress]]:
        """Pickle the address: the other process opens the store when it needs it."""
        from vfsd.read.shared_store import shared_context

        return shared_context, (self.address,)

    @lazy
    def pool(self) -> DecoderPool:
        """Decoders of originals."""
        return DecoderPool(self.parts, self.threads)

    @lazy
    def packs(self) -> PackPool:
        """Open packs, and decoders of their cells."""
        objects = self.parts.objects
        tables = None if objects.is_local else cast(RemoteTables, objects)
        return PackPool(objects, tables)

    @lazy
    def catalog_changes(self) -> CatalogChanges:
        return CatalogChanges(self.parts.catalog)

    @lazy
    def recent_videos(self) -> RecentVideos:
        return RecentVideos(self.catalog_changes)

    @lazy
    def tile_index(self) -> TileIndex:
        return TileIndex(
            self.parts.catalog,
            self.catalog_changes,
            self.threads,
            self._remote_cost,
            self._missing_share,
        )

    def _remote_cost(self, video: LogicalVideo) -> RemoteCost | None:
        """Return the cost of fetching a video from the bucket; None if it is a local file."""
        objects = self.parts.objects
        if objects.is_local or not self.parts.originals.is_remote(video.original.place):
            return None
        return objects.fetch_cost()

    def _missing_share(self, key: str, ranges: Sequence[tuple[int, int]]) -> float:
        """Return the share of some bytes of an object that must be fetched."""
        with (
            suppress(OSError, VfsdError),  # the read reports it
            closing(self.parts.objects.open(key)) as reader,
        ):
            ranges = [(start, min(end, reader.size)) for start, end in ranges]
            size = sum(end - start for start, end in ranges)
            here = sum(reader.cached(start, end - start) for start, end in ranges)
            return 1 - here / size if size else 0.0
        return 1.0

    @lazy
    def read_log(self) -> ReadRecorder:
        if self.parts.read_only:
            return NullReadLog()
        return ReadLog(self.parts.catalog, self.parts.settings.remembered_reads)

    def drop_damaged_tiles(self, error: Exception) -> None:
        """Drop the tiles that `error` is about; see `vfsd.storage.reclaim`."""
        drop_damaged_tiles(self.parts, error)

    def evict_idle(self, seconds: float) -> None:
        """Drop decoders and pictures that have been idle for `seconds`."""
        self.pool.evict_idle(seconds)
        self.packs.evict_idle(seconds)

    def close(self) -> None:
        # All parts, also unused ones: a read after this must find them closed.
        self.read_log.close()
        self.pool.close()
        self.packs.close()
        self.recent_videos.clear()
        self.catalog_changes.close()


class VideoSnapshot(NamedTuple):
    """The catalog record and the frame table at one moment: a correction replaces both."""

    info: LogicalVideo
    table: FrameTable

    @property
    def original(self) -> PhysicalVideo:
        return self.info.original

    def __len__(self) -> int:
        """Number of displayed frames."""
        return self.info.original.frames

    def index_at(self, time: Seconds) -> int:
        """The number of the frame on the screen at `time` seconds.  Raises `OutOfRangeError`."""
        return self.times.at(on_tick(time, self.original.time_base))

    @property
    def times(self) -> FrameTimes:
        """Converts times to frame numbers."""
        return FrameTimes(self.original, self.table)


class VideoContext:
    """Catalog record, frame table and shared decoders of one video.

    Thread-safe, and usable after a fork.  `parts` and `tools` belong to the store.  Pickled as the
    record and the address of the store.
    """

    def __init__(self, tools: ReadContext, info: LogicalVideo) -> None:
        self.tools = tools
        self._info = info
        self._table: FrameTable | None = None
        self._reloaded_at = -1  # count of catalog changes
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type[VideoContext], tuple[ReadContext, LogicalVideo]]:
        return VideoContext, (self.tools, self._info)

    @property
    def parts(self) -> StoreContext:
        """The open store."""
        return self.tools.parts

    @property
    def identity(self) -> tuple[str, int]:
        """(store, video): equal for all objects of one video, in any process."""
        return self.tools.store_id, self._info.id

    # -- the record and the frame table

    @property
    def info(self) -> LogicalVideo:
        """The catalog record; another one after a correction."""
        return self._info

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def original(self) -> PhysicalVideo:
        return self._info.original

    @property
    def table(self) -> FrameTable:
        """The time of every frame, and the place of its packet."""
        return self.snapshot().table

    def snapshot(self) -> VideoSnapshot:
        """Record and frame table that belong together."""
        with self._guard:
            if self._table is None:
                self._table = self.parts.catalog.frame_table(self.original)
            return VideoSnapshot(self._info, self._table)

    def adopt(self, info: LogicalVideo, table: FrameTable | None = None) -> None:
        """Continue with another record; without a `table`, the next use loads its frame table."""
        with self._guard:
            self._info, self._table = info, table

    def adopt_details(self, info: LogicalVideo) -> None:
        """Continue with another record of the same frames; the frame table stays."""
        with self._guard:
            if info.original.id == self._info.original.id:
                self._info = info

    def stored(self, seen: Transaction) -> LogicalVideo:
        """The present record of the same bytes.  Raises `NotFoundError` where they are gone."""
        seen.videos.require(self.info)
        try:
            found = seen.videos.by_inode(self.info.ino)
        except NotFoundError:  # a writer has the file open
            found = None
        if found is None or found.digest != self.info.digest:
            raise NotFoundError(
                f"the video {self.name!r} has been written again", hint="open it again"
            )
        return found

    def note_loaded(self, changes: int) -> None:
        """Take the record for that of a catalog after so many changes, or later."""
        self._reloaded_at = changes

    def reload_details(self) -> None:
        """Take over details of the same frames that the catalog has learnt since."""
        changes = self.tools.catalog_changes.count()
        if changes == self._reloaded_at:
            return
        self._reloaded_at = changes
        try:
            with self.parts.catalog.reading() as seen:
                info = self.stored(seen)
        except NotFoundError:
            return
        self.adopt_details(info)

    def reload_numbering(self) -> bool:
        """Take over a frame table that another process has corrected; whether there is one."""
        try:
            with self.parts.catalog.reading() as seen:
                info = self.stored(seen)
        except NotFoundError:
            return False
        if info.original.id == self.original.id:
            self.adopt_details(info)
            return False
        self.adopt(info)
        return True

    # -- frames and times

    def frames_in(self, span: Span | None = None) -> range:
        """The numbers of the frames that appear in a span of seconds; without one, all.

        Raises `UsageError` for an empty span, `OutOfRangeError` where it starts after the end.
        Issues a `ShortSpanWarning` where it ends after the end.
        """
        if span is not None:
            View(exact_span(span, self.original.time_base))  # refuses an empty span, as reads do
        return self.frames_of_span(span)

    def frames_of_span(self, span: Span | None) -> range:
        """As `frames_in`, but an empty span gives an empty range."""
        if span is None:
            return range(self.original.frames)
        snapshot = self.snapshot()
        start, end = exact_span(span, snapshot.original.time_base)
        snapshot.times.require_before_end(start)
        warn_of_short_span(end, snapshot.original)
        return snapshot.times.between(start, end)

    def sequences(
        self, span: Span | None = None, seconds_each: float = 1.0, gop: int | None = None
    ) -> list[range]:
        """The runs of frames that share a layout, of about `seconds_each` seconds from a key frame
        on, or of `gop` frames if that is longer: those with frames in `span`."""
        table = self.table
        if gop is not None:
            seconds_each = max(seconds_each, gop * float(self.original.duration) / len(table))
        times = (np.append(table.pts(), table.end_pts) - self.original.first_pts).astype(float)
        times *= float(self.original.time_base)
        found = cut_sequences(table.keyframes(), np.maximum.accumulate(times), seconds_each)
        chosen = self.frames_in(span)
        return [
            frames for frames in found if frames.start < chosen.stop and chosen.start < frames.stop
        ]

    # -- what a read may use

    @property
    def costs(self) -> DecodeCosts:
        """The cost of decoding on this host, as planners know it now."""
        return self.tools.tile_index.of(self.info, 0.0).costs

    def usual_tiles(self, info: LogicalVideo) -> AvailableTiles:
        """The tiles that a read without a `psnr` may use."""
        return self.tools.tile_index.of(info, float(self.parts.settings.minimum_psnr))

    def tiles(self, info: LogicalVideo, psnr: float | None) -> AvailableTiles | None:
        """The tiles that a read with that `psnr` may use; None: the original alone."""
        wanted = None if psnr is None else decibels(psnr)
        if wanted == inf:
            return None
        tiles = self.usual_tiles(info)
        return tiles if wanted is None else tiles.requiring(wanted)

    def note(
        self, kind: str, snapshot: VideoSnapshot, plan: Callable[[], ReadPlan], timing: ReadTiming
    ) -> None:
        """Write a finished read into the read log, which the tuner reads."""
        self.tools.read_log.note(
            snapshot.info.digest,
            lambda: describe_planned_read(kind, plan(), snapshot.table, self.costs, timing),
        )

    # -- for a file that is still being written

    def checking(self) -> AbstractContextManager[None]:
        """Surrounds reads; `GrowingContext` checks that the bytes did not move."""
        return nullcontext()

    def checked(self, frames: Generator[Frame, None, None]) -> Generator[Frame, None, None]:
        """The same frames; `GrowingContext` checks the bytes after each."""
        return frames

    def require_finished(self, what: str) -> None:
        """Raise `UsageError` where `what` needs a finished video."""


def warn_of_short_span(end: Fraction | None, original: PhysicalVideo) -> None:
    """Issue a `ShortSpanWarning` where a span ends more than a frame after the video does."""
    duration = original.duration
    if end is None or end <= duration + duration / max(original.frames, 1):
        return
    text = f"the span ends at {float(end):.3f} s, but the video at {float(duration):.3f} s"
    warnings.warn(ShortSpanWarning(text), stacklevel=5)
