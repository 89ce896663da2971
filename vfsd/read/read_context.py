"""`ReadContext`: state that all reads of an open store share.

It holds decoders, open packs, the read log and the damage handler.  `TileIndex` caches the tiles of
each video and their decode costs, so that warm reads need no catalog query.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from vfsd.catalog import Catalog
from vfsd.core.atfork import lazy, reset_after_fork
from vfsd.core.hostinfo import available_cores, host_name
from vfsd.core.model import LogicalVideo, Segment
from vfsd.read.damage_fallback import drop_damaged_tiles
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.pack_pool import PackPool
from vfsd.read.read_log import NullReadLog, ReadLog, ReadRecorder
from vfsd.read.read_plan import AvailableTiles
from vfsd.read.tile_planner import DecodeCosts, clamp_cost_factor
from vfsd.storage.context import StoreContext
from vfsd.tiling.cost import DecodeCost, DecodeWork

_MAX_VIDEOS = 64
_NEW_SAMPLE_WEIGHT = 0.2
"""Weight of a new measurement in the moving average of a cost factor."""
_MIN_MEASURED_SECONDS = 1e-3
"""A shorter time measures the clock rather than the encoding."""


class _VideoTiles(NamedTuple):
    """The catalog's state of a video."""

    segments: list[Segment]
    joined: list[Segment]
    unreadable: tuple[range, ...]
    factor: float | None  #: of the original, if measured
    measured: dict[str, DecodeCost]
    reads: float | None  #: minimum luma dB of the policy; None for the store's default


class TileIndex:
    """Tiles and costs of recently read videos, for planners.  Thread-safe."""

    def __init__(self, catalog: Catalog, threads: int) -> None:
        self._catalog = catalog
        self._threads = threads
        self._watch = catalog.watch()
        self._changes = 0  # number of catalog changes seen
        # by id of the original
        self._videos: OrderedDict[int, tuple[int, _VideoTiles]] = OrderedDict()
        self._measured: dict[str, DecodeCost] = {}
        self._factors: dict[int, float] = {}  # by id of the encoding, from reads of this process
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        self._videos = OrderedDict()
        self._guard = threading.Lock()

    def of(self, video: LogicalVideo, luma: float) -> AvailableTiles:
        """Return the current tiles of a video, including changes by other processes.

        Their luma must have `luma` dB, or the minimum of the video's policy instead, but no more
        than the original.
        """
        key = video.original.id
        with self._guard:
            if self._watch.changed():
                self._changes += 1
            changes = self._changes
            known, found = self._videos.get(key, (-1, None))
        if found is None or known != changes:
            loaded = self._load(video)
            # Cached plans and views refer to the object, and most changes concern other videos.
            found = found if found == loaded else loaded
        with self._guard:
            self._measured = found.measured
            self._videos[key] = (changes, found)
            self._videos.move_to_end(key)
            while len(self._videos) > _MAX_VIDEOS:
                self._videos.popitem(last=False)
        factors = self._factors if found.factor is None else {**self._factors, key: found.factor}
        costs = DecodeCosts(found.measured, factors, self._threads)
        if not found.segments and not found.joined:
            return AvailableTiles((), costs, luma)
        wanted = min(luma if found.reads is None else found.reads, video.original.psnr)
        return AvailableTiles(found.segments, costs, wanted, found.joined, found.unreadable)

    def _load(self, video: LogicalVideo) -> _VideoTiles:
        key = video.original.id
        with self._catalog.reading() as seen:
            segments = seen.segments.active(key) + seen.segments.renditions(key)
            joined = seen.segments.joined(key)
            factor = seen.videos.cost_factor(key)
            measured = {cost.name: cost.decode for cost in seen.costs.of_host(host_name())}
            if not segments and not joined:  # the rest only matters for the choice of tiles
                return _VideoTiles([], [], (), factor, measured, None)
            reads = seen.retention.policy(video.ino).reads
        unreadable = tuple(self._catalog.unreadable_frames(video))
        return _VideoTiles(segments, joined, unreadable, factor, measured, reads)

    def note(self, segment: Segment, work: DecodeWork, seconds: float) -> None:
        """Record the CPU seconds of decoding some tiles of a segment."""
        with self._guard:
            rule = DecodeCosts(self._measured).of_tiles(segment).seconds(work)
            if min(rule, seconds) < _MIN_MEASURED_SECONDS:
                return
            ratio = clamp_cost_factor(seconds / rule)
            before = self._factors.get(segment.physical_id, ratio)
            self._factors[segment.physical_id] = before + _NEW_SAMPLE_WEIGHT * (ratio - before)

    def close(self) -> None:
        self._watch.close()


class ReadContext:
    """State that all reads of a store share.  Thread-safe, and usable after a fork.

    Each part is created at its first use.
    """

    def __init__(self, parts: StoreContext, threads: int | None = None) -> None:
        """`threads` decode in parallel, by default one per core."""
        self.parts = parts
        self.threads = threads or available_cores()

    @lazy
    def pool(self) -> DecoderPool:
        """Decoders of originals."""
        return DecoderPool(self.parts, self.threads)

    @lazy
    def packs(self) -> PackPool:
        """Open packs, and decoders of their cells."""
        return PackPool(self.parts.objects)

    @lazy
    def tile_index(self) -> TileIndex:
        return TileIndex(self.parts.catalog, self.threads)

    @lazy
    def read_log(self) -> ReadRecorder:
        if self.parts.read_only:
            return NullReadLog()
        return ReadLog(self.parts.catalog, self.parts.settings.remembered_reads)

    def drop_damaged_tiles(self, error: Exception) -> None:
        """Drop the tiles that `error` is about; see `vfsd.read.damage_fallback`."""
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
        self.tile_index.close()
