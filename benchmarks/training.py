"""W7: random clips for training, ours against renditions with one fixed GOP length; simulated.

The original has a key frame every 250 frames. Each query is a clip of 16 frames, every second one,
from a random place, scaled. Costs are those of the model, and making a rendition counts. Fixed
renditions exist for the whole video before the first query; ours follow the reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vfsd.tiling import LayoutRules, TileLayout
from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST, DecodeWork
from vfsd.tiling.policy import (
    ByteDensity,
    CostRates,
    Ledger,
    LedgerParameters,
    Query,
    ScaledFrames,
    SizeWorld,
    Tiling,
    VideoProfile,
    replay_queries,
)
from vfsd.tiling.policy.interface import Retile, TilingPolicy

WORST = 1.10
OURS, ORIGINAL = "ours", "GOP 250"
_RATE, _GOP = 25, 250
_SIZE, _SMALL = (1920, 1080), ScaledFrames(320, 180)
_ORIGINAL_DENSITY, _DENSITY = 0.05, 0.3  # bytes per pixel; small pictures have more
_FIXED = (1, 4, 8, 25)


class LongGops:
    """The original, with a key frame every 250 frames."""

    def work(self, first: int, last: int, since: int | None) -> DecodeWork:
        start = first - first % _GOP
        if since is not None:
            start = max(start, since)
        pictures = last - start + 1
        pixels = pictures * _SIZE[0] * _SIZE[1]
        return DecodeWork(1, pictures, pixels, _ORIGINAL_DENSITY * pixels)


class _AtOnce:
    """Makes one rendition of the whole video before the first query."""

    def __init__(self, world: SizeWorld, tiling: Tiling) -> None:
        self._world = world
        self._tiling = tiling

    def start(self) -> list[Retile]:
        return [
            Retile(sot, self._tiling, self._world.making_cost(sot, self._tiling).seconds)
            for sot in self._world.sots
        ]

    def observe(self, query: Query) -> list[Retile]:
        return []


class _Never(_AtOnce):
    def start(self) -> list[Retile]:
        return []


def training_costs(seconds: int, epochs: Sequence[float], seed: int = 7) -> dict[str, list[float]]:
    """Seconds of all queries and of making renditions, by contestant, after each number of epochs.

    An epoch reads as many frames as the video has.
    """
    frames = seconds * _RATE
    # The tuner makes such renditions in segments of one GOP of the original.
    sots = [range(first, min(frames, first + _GOP)) for first in range(0, frames, _GOP)]
    profile = VideoProfile(*_SIZE, sots, [{} for _ in sots], LayoutRules(), LongGops())
    rates = CostRates(
        DEFAULT_COSTS["h264"], DEFAULT_COSTS["fast"], ENCODE_FAST, ByteDensity(_DENSITY, 0.0)
    )
    world = SizeWorld(profile, rates, gops=_FIXED)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, frames - 32, round(max(epochs) * frames / 16)).tolist()
    queries = [Query(range(at, at + 31, 2), frozenset([_SMALL])) for at in starts]
    layout = TileLayout.untiled(_SMALL.width, _SMALL.height)
    policies: dict[str, TilingPolicy] = {
        OURS: Ledger(world, LedgerParameters(persistence=1.0)),
        ORIGINAL: _Never(world, Tiling.whole(layout)),
        **{f"GOP {gop}": _AtOnce(world, Tiling.whole(layout, gop)) for gop in _FIXED},
    }
    found = {}
    for name, policy in policies.items():
        bill = replay_queries(policy, world, queries)
        together = np.cumsum(np.add(bill.decoding, bill.making))
        found[name] = [float(together[round(part * frames / 16) - 1]) for part in epochs]
    return found


def above_best(found: dict[str, list[float]]) -> list[float]:
    """How many times the best fixed GOP length ours costs, after each number of epochs."""
    fixed = np.array([runs for name, runs in found.items() if name != OURS])
    ratios: list[float] = (np.array(found[OURS]) / fixed.min(axis=0)).tolist()
    return ratios
