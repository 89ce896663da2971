"""The protocols between a tiling policy and its video: a policy receives queries, asks a `World`
for costs, and answers with tilings. `replay_queries` sums the cost of a policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Protocol

from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import TileLayout


@dataclass(frozen=True, slots=True)
class ScaledFrames:
    """Whole stored pictures, scaled."""

    width: int  #: pixels
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


Aim = str | Rect | ScaledFrames
"""What somebody looks for: a label, a region of the stored picture, or all of it in a size."""

Aims = frozenset[Aim]


@dataclass(frozen=True, slots=True)
class Query:
    """One read: everything of `aims` on `frames`.

    Of a label, the boxes that carry it; of a region, the region on every frame.
    """

    frames: range  #: of the video, half-open; with a step those in between are not looked at
    aims: Aims  #: one at least


@dataclass(frozen=True, slots=True)
class Tiling:
    """A layout of a SOT, and those of its tiles that are stored, ascending.

    What lies in other tiles is read from the original.  Without a tile there is nothing to make.
    """

    layout: TileLayout
    tiles: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)
    """Kept, since policies look things up by it again and again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.layout, self.tiles)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def whole(cls, layout: TileLayout) -> Tiling:
        return cls(layout, tuple(range(layout.count)))


@dataclass(frozen=True, slots=True)
class Retile:
    """The advice to make `tiling`, in place of what the SOT has."""

    sot: int
    tiling: Tiling
    price: (
        float  #: seconds that it is expected to take, see `vfsd.tiling.policy.interface.TilingCost`
    )


def frames_within(frames: range, asked: range) -> range:
    """Those of `asked`, which may have a step, that are among `frames`, which follow each other."""
    first = max(0, -(-(frames.start - asked.start) // asked.step))
    after = max(first, -(-(frames.stop - asked.start) // asked.step))
    return asked[first:after]


def sorted_aims(aims: Aims) -> tuple[str, ...]:
    """The same for the same aims, whatever order sets have: breaks ties."""
    return tuple(sorted(str(aim) for aim in aims))


MAX_COMBINED_AIMS = 4
"""So many aims have 15 combinations."""


class AimCombinations:
    """The sets of aims that are worth a thought, in the order in which they came up.

    Every non-empty subset of what was seen (TASM, Fig. 6), as long as there are few aims; from then
    on what each query looked for, and all of it together, as TASM's code has it.
    """

    def __init__(self, few: int = MAX_COMBINED_AIMS) -> None:
        self._few = few
        self._seen = Aims()
        self._known: dict[Aims, None] = {}

    def add(self, aims: Aims) -> list[Aims]:
        """Take up what a query looked for; gives the combinations that are new."""
        if aims in self._known and aims <= self._seen:
            return []  # so is every other one
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
    """What it takes to make a tiling of a SOT."""

    seconds: float  #: of CPU: decoding the source once, and encoding
    bytes: float  #: that are stored

    def price(self, byte_seconds: float) -> float:
        """In seconds, where a stored byte is worth `byte_seconds`."""
        return self.seconds + byte_seconds * self.bytes


class World(Protocol):
    """A video cut into SOTs, numbered by time from 0.  Answers never change."""

    @property
    def sots(self) -> range:
        """All of them."""

    def touched(self, query: Query) -> Sequence[int]:
        """The SOTs on which a query has to decode something, ascending."""

    def labels(self, sot: int) -> Aims:
        """All that is known to be there."""

    def around(self, sot: int, aims: Aims) -> Tiling | None:
        """The tiling around what is there of `aims`; None where there is nothing to cut."""

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        """Seconds in which a query reads its part of a SOT that has this tiling, or (None) none."""

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        """TASM's P: pixels decoded, if all that can be comes from tiles."""

    def making(self, sot: int, tiling: Tiling) -> TilingCost:
        """At least as many seconds as any query decodes of that SOT without tiles."""


class TilingPolicy(Protocol):
    """Decides what to re-tile.

    It has no clock, no randomness and no other source than its world and the queries it is told:
    whoever tells another one the same gets the same answers, so a log of reads is all its state.
    What it advises is taken to be done at once.
    """

    def start(self) -> list[Retile]:
        """What to make before the first query; to be called once, before any other."""

    def tell(self, query: Query) -> list[Retile]:
        """What to make now that this query has been read, by ascending SOT."""


class CurrentTilings:
    """What every SOT has by now."""

    def __init__(self, world: World, byte_seconds: float = 0.0) -> None:
        self._world = world
        self._byte_seconds = byte_seconds
        self._tilings: dict[int, Tiling] = {}

    def __getitem__(self, sot: int) -> Tiling | None:
        """None: nothing but the original."""
        return self._tilings.get(sot)

    def price(self, sot: int, tiling: Tiling) -> float:
        """Seconds, those that its bytes are worth included."""
        return self._world.making(sot, tiling).price(self._byte_seconds)

    def put(self, sot: int, tiling: Tiling) -> Retile:
        """Note that it is made."""
        self._tilings[sot] = tiling
        return Retile(sot, tiling, self.price(sot, tiling))


@dataclass(slots=True)
class ReplayCost:
    """Seconds by query.  What is made before the first one is charged to it, as in TASM."""

    decoding: list[float] = field(default_factory=list)
    making: list[float] = field(default_factory=list)
    bytes: float = 0.0  #: written in all
    retiles: list[tuple[int, Retile]] = field(default_factory=list)  #: with the query's number

    @property
    def total(self) -> float:
        return sum(self.decoding) + sum(self.making)


def replay_queries(policy: TilingPolicy, world: World, queries: Iterable[Query]) -> ReplayCost:
    """What `world` charges for `queries` and for all that `policy` makes meanwhile.

    The policy may believe in another world: one in which things cost something else.
    """
    bill = ReplayCost()
    tilings: dict[int, Tiling] = {}

    def make(number: int, advice: list[Retile]) -> float:
        seconds = 0.0
        for retile in advice:
            making = world.making(retile.sot, retile.tiling)
            tilings[retile.sot] = retile.tiling
            bill.bytes += making.bytes
            bill.retiles.append((number, retile))
            seconds += making.seconds
        return seconds

    before = make(0, policy.start())
    for number, query in enumerate(queries):
        bill.decoding.append(
            sum(world.decode(sot, query, tilings.get(sot)) for sot in world.touched(query))
        )
        bill.making.append(before + make(number, policy.tell(query)))
        before = 0.0
    return bill
