"""A world of sizes: whole pictures that are read scaled, and renditions that serve them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from vfsd.tiling.cost import DecodeWork
from vfsd.tiling.layout import TileLayout
from vfsd.tiling.policy.box_world import CheapestSource, CostRates, ReadStrategy, VideoProfile
from vfsd.tiling.policy.interface import (
    Aims,
    Query,
    ScaledFrames,
    Tiling,
    TilingCost,
    frames_within,
)

CachedBytes = Callable[[tuple[int, int], range], int]
"""Returns how many of some frames are already encoded in a size, in the view cache."""


class SizeWorld:
    """A `World` with queries for sizes, and tilings that are whole pictures in one size.

    A rendition serves its own size and integer fractions of it.
    """

    def __init__(
        self,
        footage: VideoProfile,
        rates: CostRates,
        reading: ReadStrategy | None = None,
        at_hand: CachedBytes | None = None,
    ) -> None:
        """`footage` must have an original; its boxes are not used.

        `at_hand` returns cached frames that need not be encoded; None: there are none.
        """
        assert footage.original is not None
        self._original = footage.original
        self._sots = footage.sots
        self._rates = rates
        self._reading = reading or CheapestSource()
        self._at_hand = at_hand or _no_cached_bytes
        self._full = footage.width, footage.height
        self.tiling_around = lru_cache(maxsize=None)(self._tiling_around)
        self.making_cost = lru_cache(maxsize=None)(self._making_cost)

    @property
    def sots(self) -> range:
        return range(len(self._sots))

    def touched(self, query: Query) -> list[int]:
        return [sot for sot, frames in enumerate(self._sots) if frames_within(frames, query.frames)]

    def labels(self, sot: int) -> Aims:
        return frozenset()

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        frames = frames_within(self._sots[sot], query.frames)
        if not frames:
            return 0.0
        start = self._sots[sot].start
        goes_on = sot > 0 and bool(frames_within(self._sots[sot - 1], query.frames))
        since = start if goes_on else None
        untiled = self._rates.original.seconds(self._original.work(frames[0], frames[-1], since))
        if tiling is None or not _serves(tiling.layout, query.aims):
            return untiled
        work = self._work(tiling.layout, frames[-1] - start + 1)
        return self._reading.seconds(self._rates.tiles.seconds(work), untiled)

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        frames = frames_within(self._sots[sot], query.frames)
        if not frames:
            return 0
        served = tiling is not None and _serves(tiling.layout, query.aims)
        width, height = _picture(tiling.layout) if tiling is not None and served else self._full
        return (frames[-1] - self._sots[sot].start + 1) * width * height

    def verification_seconds(self, layout: TileLayout, frames: range) -> float:
        """Return the seconds of decoding the frames of a rendition once, along with the original.

        The decoder of the original is already positioned there.  This is all that cached frames
        need.
        """
        original = self._original.work(frames[0], frames[-1], frames[0] or None)
        rendition = self._work(layout, len(frames))
        return self._rates.original.seconds(original) + self._rates.tiles.seconds(rendition)

    def _tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        """Return the smallest rendition that serves all aims, or None."""
        for size in sorted(_sizes(aims), key=lambda size: size.width):
            layout = TileLayout.untiled(size.width, size.height)
            if _serves(layout, aims) and _picture(layout) != self._full:
                return Tiling.whole(layout)
        return None

    def _making_cost(self, sot: int, tiling: Tiling) -> TilingCost:
        mine = self._sots[sot]
        work = self._work(tiling.layout, len(mine))
        seconds = self._rates.original.seconds(self._original.work(mine[0], mine[-1], None))
        seconds += self._rates.encode.seconds(1, work.pixels, work.bytes)
        share = self._at_hand(_picture(tiling.layout), mine) / len(mine)
        seconds += share * (self.verification_seconds(tiling.layout, mine) - seconds)
        return TilingCost(seconds, work.bytes)

    def _work(self, layout: TileLayout, frames: int) -> DecodeWork:
        width, height = _picture(layout)
        pixels = frames * width * height
        density = self._rates.density
        return DecodeWork(1, frames, pixels, (density.still + density.moving) * pixels)


def _no_cached_bytes(size: tuple[int, int], frames: range) -> int:
    return 0


def _picture(layout: TileLayout) -> tuple[int, int]:
    return layout.width, layout.height


def _serves(layout: TileLayout, aims: Aims) -> bool:
    return all(
        layout.width % size.width == 0 and layout.height % size.height == 0 for size in _sizes(aims)
    )


def _sizes(aims: Aims) -> list[ScaledFrames]:
    return [aim for aim in aims if isinstance(aim, ScaledFrames)]
