"""`ReadContext`: state that all reads of an open store share.

It holds decoders, open packs, the read log and the damage handler.  `TileIndex` caches the tiles of
each video and their decode costs, so that warm reads need no catalog query.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from vfsd.catalog import Catalog
from vfsd.core.atfork import reset_after_fork
from vfsd.core.hostinfo import host_name
from vfsd.core.model import LogicalVideo, Segment
from vfsd.read.damage_fallback import DamageHandler
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
    unreadable: list[range]
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
            found = self._load(video, found)
        with self._guard:
            self._measured = found.measured
            self._videos[key] = (changes, found)
            self._videos.move_to_end(key)
            while len(self._videos) > _MAX_VIDEOS:
                self._videos.popitem(last=False)
        factors = self._factors if found.factor is None else {**self._factors, key: found.factor}
        wanted = min(luma if found.reads is None else found.reads, video.original.psnr)
        costs = DecodeCosts(found.measured, factors, self._threads)
        return AvailableTiles(found.segments, costs, wanted, found.joined, tuple(found.unreadable))

    def _load(self, video: LogicalVideo, before: _VideoTiles | None) -> _VideoTiles:
        """Query the catalog.

        An unchanged result is returned as the same object, because cached plans and views refer to
        it and most catalog changes concern other videos.
        """
        catalog = self._catalog
        found = _VideoTiles(
            catalog.segments(video) + catalog.renditions(video),
            catalog.joined(video),
            catalog.unreadable_frames(video),
            catalog.cost_factor(video),
            {cost.name: cost.decode for cost in catalog.costs(host_name())},
            catalog.policy(video).reads,
        )
        return before if before is not None and before == found else found

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


@dataclass(frozen=True, slots=True)
class ReadContext:
    """State that all reads of a store share.  Thread-safe, and usable after a fork."""

    pool: DecoderPool
    packs: PackPool
    tile_index: TileIndex
    read_log: ReadRecorder
    damage_handler: DamageHandler

    @classmethod
    def for_store(cls, parts: StoreContext, threads: int | None = None) -> ReadContext:
        """Create the context of a store; `threads` decode in parallel, by default one per core."""
        reads: ReadRecorder = NullReadLog()
        if not parts.read_only:
            reads = ReadLog(parts.catalog, parts.settings.remembered_reads)
        pool = DecoderPool(parts, threads)
        sources = TileIndex(parts.catalog, pool.threads)
        return cls(pool, PackPool(parts.objects), sources, reads, DamageHandler(parts))

    def evict_idle(self, seconds: float) -> None:
        """Drop decoders and pictures that have been idle for `seconds`."""
        self.pool.evict_idle(seconds)
        self.packs.evict_idle(seconds)

    def close(self) -> None:
        self.read_log.close()
        self.pool.close()
        self.packs.close()
        self.tile_index.close()
