"""The protocols between a tiling policy and its video.

`ClusteredRegions` replaces many different regions by a few clusters, so that policies decide fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vfsd.tiling.cost import Ints
from vfsd.tiling.layout import Rect, TileLayout


@dataclass(frozen=True, slots=True)
class ScaledFrames:
    """Whole stored pictures, scaled."""

    width: int  #: pixels
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


Aim = str | Rect | ScaledFrames
"""The target of a query: a label, a region of the stored picture, or all of it in a size."""

Aims = frozenset[Aim]


@dataclass(frozen=True, slots=True)
class Query:
    """One read: everything that matches `aims` on `frames`.

    For a label, the boxes with it; for a region, the region on every frame.
    """

    frames: range  #: of the video, half-open; with a step, the frames in between are not needed
    aims: Aims  #: at least one


@dataclass(frozen=True, slots=True)
class Tiling:
    """A layout of a SOT, and the tiles of it that are stored, ascending.

    Other tiles are read from the original.  Without tiles there is nothing to make.
    """

    layout: TileLayout
    tiles: tuple[int, ...]
    gop: int | None = None
    """Frames from one key picture of a tile to the next; None: one GOP in each SOT."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Cached: policies use tilings as keys very often."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.layout, self.tiles, self.gop)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def whole(cls, layout: TileLayout, gop: int | None = None) -> Tiling:
        return cls(layout, tuple(range(layout.count)), gop)


@dataclass(frozen=True, slots=True)
class Retile:
    """The advice to make `tiling`, replacing the current one of the SOT."""

    sot: int
    tiling: Tiling
    price: float  #: seconds that it is expected to take; see `TilingCost.price`


def frames_within(frames: range, asked: range) -> range:
    """Return those of `asked` (may have a step) that are among `frames` (contiguous)."""
    first = max(0, -(-(frames.start - asked.start) // asked.step))
    after = max(first, -(-(frames.stop - asked.start) // asked.step))
    return asked[first:after]


def sorted_aims(aims: Aims) -> tuple[str, ...]:
    """Return a canonical order of aims, to break ties."""
    return tuple(sorted(str(aim) for aim in aims))


MAX_COMBINED_AIMS = 4
"""Four aims have 15 combinations."""


class AimCombinations:
    """The sets of aims to consider, in order of discovery.

    With few aims, every non-empty subset of all that were seen (TASM, Fig. 6).  Beyond that, the
    aims of each query and all aims together, like TASM's code.
    """

    def __init__(self, few: int = MAX_COMBINED_AIMS) -> None:
        self._few = few
        self._seen = Aims()
        self._known: dict[Aims, None] = {}

    def add(self, aims: Aims) -> list[Aims]:
        """Add the aims of a query; return the new combinations."""
        if aims in self._known and aims <= self._seen:
            return []  # all of its combinations are known, too
        self._seen |= aims
        fresh = [one for one in self._with(aims) if one not in self._known]
        self._known.update(dict.fromkeys(fresh))
        return fresh

    def __iter__(self) -> Iterator[Aims]:
        return iter(self._known)

    def _with(self, aims: Aims) -> list[Aims]:
        if len(self._seen) > self._few:
            return list(dict.fromkeys((aims, self._seen)))
        order: list[Aim] = sorted(self._seen, key=str)
        some = (combinations(order, count) for count in range(1, len(order) + 1))
        return sorted(map(frozenset, chain.from_iterable(some)), key=_small_first)


def _small_first(aims: Aims) -> tuple[int, tuple[str, ...]]:
    return len(aims), sorted_aims(aims)


@dataclass(frozen=True, slots=True)
class TilingCost:
    """The cost of making a tiling of a SOT."""

    seconds: float  #: CPU seconds of decoding the source once, and encoding
    bytes: float  #: of the stored tiles

    def price(self, byte_seconds: float) -> float:
        """Return the price in seconds if a stored byte is worth `byte_seconds`."""
        return self.seconds + byte_seconds * self.bytes


class World(Protocol):
    """A video cut into SOTs, numbered by time from 0.  All methods are pure functions."""

    @property
    def sots(self) -> range:
        """The numbers of all SOTs."""

    @property
    def gops(self) -> Sequence[int | None]:
        """GOP lengths to consider for tilings; None: one GOP in each SOT."""

    def touched(self, query: Query) -> Sequence[int]:
        """Return the SOTs that a query has to decode, ascending."""

    def labels(self, sot: int) -> Aims:
        """Return all aims known to occur in a SOT."""

    def tiling_around(self, sot: int, aims: Aims) -> Tiling | None:
        """Return the tiling around `aims` in a SOT; None if there is nothing to cut."""

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        """Return the seconds of a query in a SOT with this tiling; None: without tiles."""

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        """Return TASM's P: pixels decoded if everything possible comes from tiles."""

    def making_cost(self, sot: int, tiling: Tiling) -> TilingCost:
        """Return the cost; at least the seconds that any query decodes of that SOT
        without tiles.
        """


def tilings_around(world: World, sot: int, aims: Aims) -> list[Tiling]:
    """Return the tiling around `aims` in a SOT, in each GOP length; empty if there is none."""
    found = world.tiling_around(sot, aims)
    if found is None:
        return []
    return [replace(found, gop=gop) for gop in world.gops]


class TilingPolicy(Protocol):
    """Decides what to re-tile.

    Deterministic: it depends only on its world and the observed queries, without clock or
    randomness. So the log of reads is its complete state.  Its advice counts as carried out
    immediately.
    """

    def start(self) -> list[Retile]:
        """Return tilings to make before the first query; called once, before any other method."""

    def observe(self, query: Query) -> list[Retile]:
        """Return tilings to make after this query, by ascending SOT."""


class CurrentTilings:
    """The current tiling of every SOT."""

    def __init__(self, world: World, byte_seconds: float = 0.0) -> None:
        self._world = world
        self._byte_seconds = byte_seconds
        self._tilings: dict[int, Tiling] = {}

    def __getitem__(self, sot: int) -> Tiling | None:
        """Return the tiling of a SOT; None: only the original."""
        return self._tilings.get(sot)

    def price(self, sot: int, tiling: Tiling) -> float:
        """Return the price of a tiling in seconds, including its bytes."""
        return self._world.making_cost(sot, tiling).price(self._byte_seconds)

    def put(self, sot: int, tiling: Tiling) -> Retile:
        """Record that a tiling was made."""
        self._tilings[sot] = tiling
        return Retile(sot, tiling, self.price(sot, tiling))


@dataclass(slots=True)
class ReplayCost:
    """Seconds by query.  Tilings made before the first query are charged to it, as in TASM."""

    decoding: list[float] = field(default_factory=list)
    making: list[float] = field(default_factory=list)
    bytes: float = 0.0  #: written in total
    retiles: list[tuple[int, Retile]] = field(default_factory=list)  #: with the query's number

    @property
    def total(self) -> float:
        return sum(self.decoding) + sum(self.making)


def replay_queries(policy: TilingPolicy, world: World, queries: Iterable[Query]) -> ReplayCost:
    """Return the cost of `queries` and of all tilings that `policy` makes, in `world`.

    The policy may itself use another world, with other costs.
    """
    total = ReplayCost()
    tilings: dict[int, Tiling] = {}

    def make(number: int, advice: list[Retile]) -> float:
        seconds = 0.0
        for retile in advice:
            making = world.making_cost(retile.sot, retile.tiling)
            tilings[retile.sot] = retile.tiling
            total.bytes += making.bytes
            total.retiles.append((number, retile))
            seconds += making.seconds
        return seconds

    before = make(0, policy.start())
    for number, query in enumerate(queries):
        total.decoding.append(
            sum(world.decode(sot, query, tilings.get(sot)) for sot in world.touched(query))
        )
        total.making.append(before + make(number, policy.observe(query)))
        before = 0.0
    return total


Reals = npt.NDArray[np.float64]

# With 300 different regions TASM's regret policy took nearly four minutes to decide.
MAX_CLUSTERS = 8
"""Up to this many regions are kept apart."""
# Regions that are compared pairwise; more are rounded first.
_MAX_PAIRED = 512


def cluster_regions(queries: Iterable[Query], max_clusters: int = MAX_CLUSTERS) -> dict[Rect, Rect]:
    """Return the cluster of each region in the queries; the region itself if there are few.

    Clusters are merged in pairs, those first that cost readers the fewest additional pixels.
    """
    frames: dict[Rect, int] = {}
    for query in queries:
        for aim in query.aims:
            if isinstance(aim, Rect):
                frames[aim] = frames.get(aim, 0) + len(query.frames)
    if len(frames) <= max_clusters:
        return {region: region for region in frames}
    regions = list(frames)
    corners, place = _rounded(
        np.array([(one.x1, one.y1, one.x2, one.y2) for one in regions], np.int64)
    )
    weights = np.zeros(len(corners))
    np.add.at(weights, place, list(frames.values()))
    found = _merged(corners, weights, max_clusters)[place]
    return {
        region: Rect(*(int(edge) for edge in patch))
        for region, patch in zip(regions, found, strict=True)
    }


def clustered_query(query: Query, clusters: Mapping[Rect, Rect]) -> Query:
    """Return the query with clusters instead of regions."""
    aims = (clusters.get(aim, aim) if isinstance(aim, Rect) else aim for aim in query.aims)
    return replace(query, aims=frozenset(aims))


class ClusteredRegions:
    """A policy that observes clusters instead of regions.

    A cluster contains its regions, so its tilings serve them.
    """

    def __init__(self, policy: TilingPolicy, clusters: Mapping[Rect, Rect]) -> None:
        self._policy = policy
        self._known = clusters

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


def _merged(corners: Ints, weights: Reals, max_clusters: int) -> Ints:
    """Return the cluster of each of `corners`."""
    corners, weights = corners.copy(), weights.copy()
    count = len(corners)
    member = np.arange(count)
    alive = np.ones(count, bool)
    loss = np.full((count, count), np.inf)
    for one in range(count):
        loss[one, one + 1 :] = _losses(corners, weights, one)[one + 1 :]
    for _ in range(count - max_clusters):
        one, other = divmod(int(loss.argmin()), count)
        corners[one, :2] = np.minimum(corners[one, :2], corners[other, :2])
        corners[one, 2:] = np.maximum(corners[one, 2:], corners[other, 2:])
        weights[one] += weights[other]
        member[member == other] = one
        alive[other] = False
        loss[other, :] = loss[:, other] = np.inf
        losses = np.where(alive, _losses(corners, weights, one), np.inf)
        loss[:one, one], loss[one, one + 1 :] = losses[:one], losses[one + 1 :]
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
