"""The tiles that reads may use and what they cost, known without asking the catalog each time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import NamedTuple

from vfsd.catalog import Catalog, ChangeWatch
from vfsd.host import host_name
from vfsd.model import LogicalVideo, Segment
from vfsd.plan import Tiles
from vfsd.tileplan import Costs, plausible
from vfsd.tiling.cost import DecodeCost, Work

_VIDEOS = 64
_WEIGHT = 0.2
"""Of a new measurement, in the running mean of what an encoding costs."""
_SHORTEST = 1e-3
"""Seconds: what took less tells of the clock rather than of the encoding."""


class _Stored(NamedTuple):
    segments: list[Segment]
    joined: list[Segment]
    unreadable: list[range]


class TileSources:
    """What planners need to know of the videos that were read lately.  Thread-safe."""

    def __init__(self, catalog: Catalog, threads: int) -> None:
        self._catalog = catalog
        self._threads = threads
        self._watch = catalog.watch()
        self._segments: OrderedDict[int, _Stored] = OrderedDict()  # by original
        self._originals: dict[int, float] = {}  # its factor, where one was measured
        self._measured: dict[str, DecodeCost] | None = None
        self._factors: dict[int, float] = {}  # by encoding, from reads of this process
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._parents: list[ChangeWatch] = []

    def of(self, video: LogicalVideo, psnr: float) -> Tiles:
        """The tiles as they are now, whoever has changed them.

        They need `psnr` dB, or as many as the original has itself.
        """
        key = video.original.id
        with self._guard:
            self._forget_parent()
            if self._watch.changed():
                self._segments.clear()
                self._originals.clear()
                self._measured = None
            found, measured = self._segments.get(key), self._measured
            factor = self._originals.get(key)
            if found is not None:
                self._segments.move_to_end(key)
        if found is None or measured is None:
            found = _Stored(
                self._catalog.segments(video) + self._catalog.renditions(video),
                self._catalog.joined(video),
                self._catalog.unreadable_frames(video),
            )
            factor = self._catalog.cost_factor(video)
            measured = {cost.name: cost.decode for cost in self._catalog.costs(host_name())}
            with self._guard:
                self._measured = measured
                self._segments[key] = found
                if factor is not None:
                    self._originals[key] = factor
                while len(self._segments) > _VIDEOS:
                    self._originals.pop(self._segments.popitem(last=False)[0], None)
        factors = self._factors if factor is None else {**self._factors, key: factor}
        wanted = min(psnr, video.original.psnr)
        costs = Costs(measured, factors, self._threads)
        return Tiles(found.segments, costs, wanted, found.joined, tuple(found.unreadable))

    def note(self, segment: Segment, work: Work, seconds: float) -> None:
        """Decoding some tiles of a segment has taken so long."""
        with self._guard:
            rule = Costs(self._measured or {}).of_tiles(segment).seconds(work)
            if min(rule, seconds) < _SHORTEST:
                return
            ratio = plausible(seconds / rule)
            before = self._factors.get(segment.physical_id, ratio)
            self._factors[segment.physical_id] = before + _WEIGHT * (ratio - before)

    def close(self) -> None:
        self._watch.close()

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            # A connection must not be used on both sides of a fork, nor closed on the other.
            self._pid = os.getpid()
            self._parents.append(self._watch)
            self._watch = self._catalog.watch()
