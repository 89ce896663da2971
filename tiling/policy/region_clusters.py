"""Reduces many different regions to a few clusters.

Each region is another aim to tile around, in every SOT and in combination with all others.  With
hundreds of them, policies would take longer to decide than decoding takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vfsd.tiling.decode_work import Ints
from vfsd.tiling.geometry import Rect
from vfsd.tiling.policy.interface import Query, Retile, TilingPolicy

Reals = npt.NDArray[np.float64]

# With 300 different regions TASM's regret policy took nearly four minutes to decide.
MAX_CLUSTERS = 8
"""Up to this many regions are kept apart."""
_MAX_PAIRED = 512
"""Regions that are compared pairwise; more are rounded first."""


def cluster_regions(queries: Iterable[Query], most: int = MAX_CLUSTERS) -> dict[Rect, Rect]:
    """Return the cluster of each region in the queries; the region itself if there are few.

    Clusters are merged in pairs, those first that cost readers the fewest additional pixels.
    """
    frames: dict[Rect, int] = {}
    for query in queries:
        for aim in query.aims:
            if isinstance(aim, Rect):
                frames[aim] = frames.get(aim, 0) + len(query.frames)
    if len(frames) <= most:
        return {region: region for region in frames}
    regions = list(frames)
    corners, place = _rounded(
        np.array([(one.x1, one.y1, one.x2, one.y2) for one in regions], np.int64)
    )
    weights = np.zeros(len(corners))
    np.add.at(weights, place, list(frames.values()))
    found = _merged(corners, weights, most)[place]
    return {
        region: Rect(*(int(edge) for edge in patch))
        for region, patch in zip(regions, found, strict=True)
    }


def clustered_query(query: Query, known: Mapping[Rect, Rect]) -> Query:
    """Return the query with clusters instead of regions."""
    aims = (known.get(aim, aim) if isinstance(aim, Rect) else aim for aim in query.aims)
    return replace(query, aims=frozenset(aims))


class ClusteredRegions:
    """A policy that observes clusters instead of regions.

    A cluster contains its regions, so its tilings serve them.
    """

    def __init__(self, policy: TilingPolicy, known: Mapping[Rect, Rect]) -> None:
        self._policy = policy
        self._known = known

    def start(self) -> list[Retile]:
        return self._policy.start()

    def observe(self, query: Query) -> list[Retile]:
        return self._policy.observe(clustered_query(query, self._known))


def _rounded(corners: Ints) -> tuple[Ints, Ints]:
    """Return few enough distinct rectangles, and for each given one the index of its
    enclosing one.
    """
    low, high = corners[:, :2], corners[:, 2:]
    step = 1
    while True:
        up = np.minimum(-(-high // step) * step, high.max(axis=0))  # not beyond the largest
        coarse = np.hstack([low // step * step, up])
        found, place = np.unique(coarse, axis=0, return_inverse=True)
        if len(found) <= _MAX_PAIRED:
            return found, place.reshape(-1)
        step *= 2


def _merged(corners: Ints, weights: Reals, most: int) -> Ints:
    """Return the cluster of each of `corners`."""
    corners, weights = corners.copy(), weights.copy()
    count = len(corners)
    member = np.arange(count)
    alive = np.ones(count, bool)
    loss = np.full((count, count), np.inf)
    for one in range(count):
        loss[one, one + 1 :] = _losses(corners, weights, one)[one + 1 :]
    for _ in range(count - most):
        one, other = divmod(int(loss.argmin()), count)
        corners[one, :2] = np.minimum(corners[one, :2], corners[other, :2])
        corners[one, 2:] = np.maximum(corners[one, 2:], corners[other, 2:])
        weights[one] += weights[other]
        member[member == other] = one
        alive[other] = False
        loss[other, :] = loss[:, other] = np.inf
        mine = np.where(alive, _losses(corners, weights, one), np.inf)
        loss[:one, one], loss[one, one + 1 :] = mine[:one], mine[one + 1 :]
    found: Ints = corners[member]
    return found


def _losses(corners: Ints, weights: Reals, one: int) -> Reals:
    """Return the additional pixels that readers would decode if `one` were merged with
    each other.
    """
    low = np.minimum(corners[:, :2], corners[one, :2])
    high = np.maximum(corners[:, 2:], corners[one, 2:])
    together = (high - low).prod(axis=1)
    areas = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
    losses: Reals = (together - areas) * weights + (together - areas[one]) * weights[one]
    return losses
