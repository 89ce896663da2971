"""`ReadContext` holds what all reads of an open store share: decoders, open packs, the read log
and the damage handler. `TileIndex` caches which tiles each video has and what decoding them
costs, so that warm reads need no catalog query.
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
"""Of a new measurement, in the running mean of what an encoding costs."""
_MIN_MEASURED_SECONDS = 1e-3
"""Seconds: what took less tells of the clock rather than of the encoding."""


class _VideoTiles(NamedTuple):
    """What the catalog says of a video."""

    segments: list[Segment]
    joined: list[Segment]
    unreadable: list[range]
    factor: float | None  #: of the original, where one was measured
    measured: dict[str, DecodeCost]
    reads: float | None  #: dB of luma, by the policy; None: as the store has it


class TileIndex:
    """What planners need to know of the videos that were read lately.  Thread-safe."""

    def __init__(self, catalog: Catalog, threads: int) -> None:
        self._catalog = catalog
        self._threads = threads
        self._watch = catalog.watch()
        self._changes = 0  # of the catalog, as far as was noticed
        self._videos: OrderedDict[int, tuple[int, _VideoTiles]] = OrderedDict()  # by original
        self._measured: dict[str, DecodeCost] = {}
        self._factors: dict[int, float] = {}  # by encoding, from reads of this process
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        self._videos = OrderedDict()
        self._guard = threading.Lock()

    def of(self, video: LogicalVideo, luma: float) -> AvailableTiles:
        """The tiles as they are now, whoever has changed them.

        Their luma needs so many dB, or what the policy of the video says instead, or as many as
        the original has itself.
        """
        key = video.original.id
        with self._guard:
            if self._watch.changed():
                self._changes += 1
            changes = self._changes
            known, found = self._videos.get(key, (-1, None))
        if found is None or known != changes:
            found = self._asked(video, found)
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

    def _asked(self, video: LogicalVideo, before: _VideoTiles | None) -> _VideoTiles:
        """What the catalog says now.

        As long as that is the same it is the same object: plans and views that are remembered hold
        on to it, and most changes of a catalog are about something else.
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
        """Decoding some tiles of a segment has taken so long."""
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
    """Thread-safe, and usable after a fork."""

    pool: DecoderPool
    packs: PackPool
    sources: TileIndex
    reads: ReadRecorder
    mender: DamageHandler

    @classmethod
    def of(cls, parts: StoreContext, threads: int | None = None) -> ReadContext:
        """`threads` decode side by side; default: as many as there are cores to run on."""
        reads: ReadRecorder = NullReadLog()
        if not parts.read_only:
            reads = ReadLog(parts.catalog, parts.settings.remembered_reads)
        pool = DecoderPool(parts, threads)
        sources = TileIndex(parts.catalog, pool.threads)
        return cls(pool, PackPool(parts.objects), sources, reads, DamageHandler(parts))

    def cool(self, seconds: float) -> None:
        """Give up decoders, and pictures, that nobody has used for so long."""
        self.pool.cool(seconds)
        self.packs.cool(seconds)

    def close(self) -> None:
        self.reads.close()
        self.pool.close()
        self.packs.close()
        self.sources.close()
