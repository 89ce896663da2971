"""Finding the rate factor of a run of pictures: as coarse as its quality may be."""

from __future__ import annotations

import math
from collections.abc import Callable

from vfsd.codecs.encoding.file_encoder import ArchiveCodec, EncodedRun
from vfsd.core.psnr import psnr_of

_TRIES = 8
"""How often a run is encoded until its quality is right."""
_SPARE = 1.0
"""dB above what is wanted from which on a run is encoded coarser."""


def coarsest_run(
    codec: ArchiveCodec, quality: int, limit: float, encode: Callable[[int], EncodedRun]
) -> tuple[EncodedRun, int] | None:
    """A run whose worst picture has no more than the error `limit`, and its rate factor.

    `encode` makes it with a rate factor, `quality` is the first to try.  None where the finest is
    not good enough.
    """
    best: tuple[EncodedRun, int] | None = None
    for _ in range(_TRIES):
        run = encode(quality)
        spare = psnr_of(run.error) - psnr_of(limit)
        if run.error <= limit:
            best = run, quality
            steps = int(spare / codec.decibels) if spare != math.inf else 8
            coarser = min(codec.coarsest, quality + steps)
            if spare < _SPARE or coarser == quality:
                return best
            quality = coarser
        elif best is not None:
            return best
        elif quality == codec.finest:
            return None
        else:
            steps = max(1, math.ceil(-spare / codec.decibels))
            quality = max(codec.finest, quality - steps)
    return best
