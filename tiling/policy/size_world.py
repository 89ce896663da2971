"""A world of sizes: whole pictures that are read scaled, and renditions that would serve them."""

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
"""How many of some frames were encoded in a size already, for somebody, and are at hand."""


class SizeWorld:
    """A `World` whose queries aim at sizes, and whose tilings are whole pictures in one.

    A rendition serves its own size and whole fractions of it.
    """

    def __init__(
        self,
        footage: VideoProfile,
        rates: CostRates,
        reading: ReadStrategy | None = None,
        at_hand: CachedBytes | None = None,
    ) -> None:
        """`footage` tells of its original; what was seen there does not matter.

        `at_hand` tells of what need not be encoded; None: nothing is.
        """
        assert footage.original is not None
        self._original = footage.original
        self._sots = footage.sots
        self._rates = rates
        self._reading = reading or CheapestSource()
        self._at_hand = at_hand or _no_cached_bytes
        self._full = footage.width, footage.height
        self.around = lru_cache(maxsize=None)(self._around)
        self.making = lru_cache(maxsize=None)(self._making)

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

    def looking_through(self, layout: TileLayout, frames: range) -> float:
        """Seconds of decoding those of a rendition once, beside the original, in which a decoder
        stands there already: all that is left to do for what is at hand."""
        original = self._original.work(frames[0], frames[-1], frames[0] or None)
        rendition = self._work(layout, len(frames))
        return self._rates.original.seconds(original) + self._rates.tiles.seconds(rendition)

    # -- what is asked again and again

    def _around(self, sot: int, aims: Aims) -> Tiling | None:
        """The smallest rendition that serves all of them, if one of them does."""
        for size in sorted(_sizes(aims), key=lambda size: size.width):
            layout = TileLayout.untiled(size.width, size.height)
            if _serves(layout, aims) and _picture(layout) != self._full:
                return Tiling.whole(layout)
        return None

    def _making(self, sot: int, tiling: Tiling) -> TilingCost:
        mine = self._sots[sot]
        work = self._work(tiling.layout, len(mine))
        seconds = self._rates.original.seconds(self._original.work(mine[0], mine[-1], None))
        seconds += self._rates.encode.seconds(1, work.pixels, work.bytes)
        share = self._at_hand(_picture(tiling.layout), mine) / len(mine)
        seconds += share * (self.looking_through(tiling.layout, mine) - seconds)
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
