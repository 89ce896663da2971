"""Which rate factor a cell needs: tried until it is good enough, and remembered for the next."""

from __future__ import annotations

from collections.abc import Hashable

from vfsd.codecs.cells.tile_codecs import TileCodec
from vfsd.core.psnr import LOSSLESS_PSNR
from vfsd.derive.tile_spec import TileSettings

TRIES = 6
"""How often a cell is encoded until it is good enough."""
_MARGIN = 1.5
"""dB above what is wanted from which on the next cell is encoded coarser, to keep half as many."""
_LEAP = 6.0
"""dB that are given up at once at most: the next cell may be of something else."""


class RateFactors:
    """Of cells with the same settings.  Thread-safe."""

    def __init__(self, codec: TileCodec, settings: TileSettings) -> None:
        self._codec = codec
        self._settings = settings
        self.aim = settings.psnr  #: dB that a cell needs; others may need more of the next ones
        self._start: dict[Hashable, int] = {}  # what a cell had lately

    def first(self, cell: Hashable) -> int:
        """To begin with: a cell is known again by its place."""
        if self._settings.quality is not None:
            return self._settings.quality
        return self._start.get(cell, self._codec.quality)

    def next(self, quality: int, psnr: float) -> int | None:
        """What to try after this came to `psnr`; None: it is good enough, or as good as can be."""
        if self._settings.quality is not None or psnr >= min(self.aim, LOSSLESS_PSNR):
            return None
        if quality <= self._codec.finest:
            return None
        steps = (self.aim - psnr) / self._codec.decibels
        return max(self._codec.finest, quality - max(1, round(steps)))

    def note(self, cell: Hashable, used: int, psnr: float) -> None:
        """What this cell needed, the same one of the next segment will, too."""
        spare = psnr - self.aim
        excess = min(spare - _MARGIN / 2, _LEAP) if spare > _MARGIN else 0.0
        coarser = int(excess / self._codec.decibels)
        self._start[cell] = min(used + coarser, self._codec.coarsest)
