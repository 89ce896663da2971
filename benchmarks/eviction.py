"""Simulates eviction with a full budget: several eviction orders, and one budget or two.

The first part is VSS's experiment: random spans of a video are read in random sizes.  Each result
is kept as a rendition, encoded or raw (as in VSS), within a budget; at the end the whole video is
read in each size.  A read from the original starts at a key frame.  Spans are uniformly distributed
(as in VSS), more frequent near the start (Zipf), around a position that moves through the video, or
in one third after another and in the first third again.

The second part is for tiles and renditions together, with TASM's workloads W3 and W4.  A third of
the queries asks for labels, a third for whole frames at a sixth of the size, and a third for whole
frames at half the size.  Data is made once reads without it have cost as much as making it.  The
cache keeps tiles only, renditions only, or both in one budget.

Nothing is encoded: costs of decoding and encoding come from the cost model.  Budgets are fractions
of the original's bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.common import arguments, finish, table
from benchmarks.contestants import RATES
from benchmarks.simulated import RATE, SIZE, SPARSE, WORKLOADS, Workload, sparse
from vfsd.core.budgets import (
    EvictionCandidate,
    EvictionOrder,
    by_benefit,
    decayed,
    lru_vss,
    victims,
)
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST, RAW_CELLS, DecodeCost, DecodeWork
from vfsd.tiling.policy import BoxWorld, Query, Tiling, VideoProfile, wanted_tiles

Kind = tuple[int, int] | str
"""Kind of cached data: frames in a size, or the tiles around a label."""

Key = tuple[Kind, int]
"""A kind, and the second that it covers."""


def lru(candidates: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
    """Least recently used first."""
    return sorted(candidates, key=lambda one: (not one.retired, -one.age, one.id))


ORDERS: dict[str, EvictionOrder] = {"LRU": lru, "LRU_VSS": lru_vss, "ours": by_benefit}
SIZES = tuple((SIZE[0] // part, SIZE[1] // part) for part in (2, 3, 4, 6))
LONGEST = 10
"""Seconds of a read."""
BYTES_PER_PIXEL = 0.02
"""Size of the original."""
TILES_BYTES = 1.9
"""Size of tiles relative to the original, as in `vfsd.derive.catalog_world`."""
MIN_GAIN = 1.25
"""As `vfsd.storage.enforce_budget` has it."""
NEARLY = 1.005
"""Bounds allow for half a percent: seeds differ by more."""


# ------------------------------------------------------------------------------------- keeping


@dataclass
class Kept:
    """An item in the cache."""

    id: int
    bytes: int
    gain: float  #: seconds that a read is expected to save
    made: int  #: the read that triggered its creation
    used: int  #: the last read that used or created it
    expected: float  #: seconds that it would have saved earlier reads
    uses: float = 0.0  #: faded
    saved: float = 0.0  #: faded


@dataclass
class Cache:
    """The cached data of a video within a budget."""

    budget: float  #: bytes
    order: EvictionOrder
    now: int = 0  #: reads so far
    bytes: int = 0
    kept: dict[Key, Kept] = field(default_factory=dict)
    made: int = 0

    def use(self, key: Key, saved: float) -> None:
        one = self.kept[key]
        one.uses = decayed(one.uses, self.now - one.used) + 1
        one.saved = decayed(one.saved, self.now - one.used) + saved
        one.used = self.now

    def add(
        self,
        key: Key,
        bytes: int,
        gain: float,
        keep: Collection[Key],
        worth: float | None = None,
    ) -> bool:
        """Add an item if there is space, or if evicting items other than `keep` can make space;
        return success.

        With `worth`, only items that are worth less are evicted, as when a store tunes itself.
        """
        over = self.bytes + bytes - self.budget
        if over > 0:
            numbers = {one.id: key for key, one in self.kept.items()}
            entries = [one for one in self._entries() if numbers[one.id] not in keep]
            gone = victims(self.order(entries), int(np.ceil(over)))
            if sum(one.bytes for one in gone) < over:
                return False
            if (
                worth is not None
                and MIN_GAIN * sum(self._worth(numbers[one.id]) for one in gone) > worth
            ):
                return False
            for one in gone:
                self.bytes -= self.kept.pop(numbers[one.id]).bytes
        self.made += 1
        self.kept[key] = Kept(self.made, bytes, gain, self.now, self.now, worth or 0.0)
        self.bytes += bytes
        return True

    def _worth(self, key: Key) -> float:
        one = self.kept[key]
        expected = decayed(one.expected, self.now - one.made)
        return decayed(one.saved, self.now - one.used) + expected

    def _entries(self) -> Iterable[EvictionCandidate]:
        """The items in the form of a store's eviction; see `vfsd.storage.enforce_budget`."""
        places = dict(self._places())
        for (kind, second), one in self.kept.items():
            yield EvictionCandidate(
                one.id,
                one.bytes,
                self.now - one.used,
                (one.gain + one.saved) / (1 + one.uses),
                *places[kind, second],
                sum(_serves(size, kind) and (size, second) in self.kept for size in SIZES),
            )

    def _places(self) -> Iterator[tuple[Key, tuple[int, int]]]:
        """For each item, its position in its run of neighbours of the same kind, and the run's
        length."""
        for kind, second in self.kept:
            if (kind, second - 1) in self.kept:
                continue
            end = next(at for at in itertools.count(second) if (kind, at) not in self.kept)
            for at in range(second, end):
                yield (kind, at), (at - second, end - second)


def _serves(size: Kind, kind: Kind) -> bool:
    """Whether frames in `size` can serve reads of `kind` that need another size."""
    if isinstance(size, str) or isinstance(kind, str) or size == kind:
        return False
    return size[0] % kind[0] == 0 and size[1] % kind[1] == 0


# ---------------------------------------------------------------------------- one video, in sizes


ORIGINAL_BYTES = BYTES_PER_PIXEL * SIZE[0] * SIZE[1] * RATE
ORIGINAL_SECONDS = RATES.original.seconds(
    DecodeWork(1, RATE, RATE * SIZE[0] * SIZE[1], ORIGINAL_BYTES)
)
GROUP = 4
"""Seconds from one key frame of the original to the next."""


@dataclass(frozen=True)
class Form:
    """The encoding of renditions in the cache."""

    budgets: Sequence[float]
    bytes: Callable[[tuple[int, int]], int]  #: bytes of one second in that size
    rates: DecodeCost

    def seconds(self, size: tuple[int, int]) -> float:
        """Seconds to decode one second."""
        pixels = RATE * size[0] * size[1]
        return self.rates.seconds(DecodeWork(1, RATE, pixels, self.bytes(size)))


def _encoded(size: tuple[int, int]) -> int:
    """Encoded bytes of a second; small frames have more bytes per pixel."""
    density = TILES_BYTES * BYTES_PER_PIXEL * (SIZE[0] / size[0]) ** 0.5
    return int(density * size[0] * size[1] * RATE)


def _raw(size: tuple[int, int]) -> int:
    return RATE * size[0] * size[1] * 3 // 2


FORMS = {
    "encoded": Form((0.05, 0.1, 0.25, 0.5, 1.0), _encoded, RATES.tiles),
    "raw": Form((2.0, 5.0, 10.0, 25.0), _raw, DEFAULT_COSTS[RAW_CELLS]),
}


Span = tuple[tuple[int, int], range]
"""A size, and seconds that are read in it."""


def _anywhere(room: int, done: float, rng: np.random.Generator) -> int:
    return int(rng.integers(room))


def _zipf(room: int, done: float, rng: np.random.Generator) -> int:
    weights = 1 / np.arange(1, room + 1)
    return int(rng.choice(room, p=weights / weights.sum()))


def _moving(room: int, done: float, rng: np.random.Generator) -> int:
    return int(np.clip(rng.normal(done * room, room / 12), 0, room - 1))


def _thirds(room: int, done: float, rng: np.random.Generator) -> int:
    return (0, room // 3, 2 * room // 3, 0)[int(4 * done)] + int(rng.integers(room // 3))


PLACES: dict[str, Callable[[int, float, np.random.Generator], int]] = {
    "anywhere": _anywhere,
    "Zipf": _zipf,
    "moving": _moving,
    "in thirds": _thirds,
}
RANDOM = ("anywhere", "Zipf")
"""The kinds of reads with bounds for every budget."""


def random_reads(place: str, seconds: int, count: int, seed: int) -> list[Span]:
    rng = np.random.default_rng((seed, 12))
    found = []
    for number in range(count):
        length = int(rng.integers(1, LONGEST + 1))
        start = PLACES[place](seconds - length, number / count, rng)
        found.append((SIZES[int(rng.integers(len(SIZES)))], range(start, start + length)))
    return found


@dataclass(frozen=True)
class Step:
    """One second of a read: its source (None: the original), and its cost."""

    source: Key | None
    seconds: float


Way = tuple[float, tuple[Step, ...]]
"""Steps, and the seconds of all of them."""


def from_original(second: int, *, goes_on: bool) -> Step:
    """Decoding frames also decodes those since the last key frame, unless the previous step did."""
    return Step(None, ORIGINAL_SECONDS * (1 if goes_on else second % GROUP + 1))


def cheapest(cache: Cache, form: Form, size: tuple[int, int], seconds: range) -> list[Step]:
    """The cheapest sources for a read, exact: compares paths that end in the original and
    others."""
    best: dict[bool, Way | None] = {False: (0.0, ()), True: None}
    for second in seconds:
        ways: dict[bool, list[Way]] = {False: [], True: []}
        for in_original, way in best.items():
            if way is None:
                continue
            steps = [from_original(second, goes_on=in_original)]
            steps += [
                Step((other, second), form.seconds(other))
                for other in SIZES
                if (other, second) in cache.kept and (other == size or _serves(other, size))
            ]
            for step in steps:
                ways[step.source is None].append((way[0] + step.seconds, (*way[1], step)))
        best = {
            ends: min(found, key=lambda way: way[0], default=None) for ends, found in ways.items()
        }
    return list(min((way for way in best.values() if way), key=lambda way: way[0])[1])


def taken(steps: Iterable[Step]) -> float:
    return sum(step.seconds for step in steps)


def without_cache(seconds: range) -> float:
    return sum(from_original(second, goes_on=second != seconds.start).seconds for second in seconds)


def read_and_keep(cache: Cache, form: Form, reads: Sequence[Span]) -> float:
    """Seconds of decoding; data that was missing in its size is kept."""
    total = 0.0
    for size, seconds in reads:
        cache.now += 1
        mine = {(size, second) for second in seconds}
        steps = cheapest(cache, form, size, seconds)
        total += taken(steps)
        _use(cache, steps, seconds)
        for second in seconds:
            if (size, second) not in cache.kept:
                gain = ORIGINAL_SECONDS - form.seconds(size)
                cache.add((size, second), form.bytes(size), gain, mine)
    return total


def _use(cache: Cache, steps: Sequence[Step], seconds: range) -> None:
    """Credits each used step with its share of the original's decoding time, as a store does
    (see `vfsd.read.read_log`)."""
    alone = {
        step.source: from_original(second, goes_on=False).seconds
        for step, second in zip(steps, seconds, strict=True)
        if step.source is not None
    }
    if not alone:
        return
    together = without_cache(seconds) - taken(step for step in steps if step.source is None)
    scale = max(0.0, together) / sum(alone.values())
    for step in steps:
        if step.source is not None:
            cache.use(step.source, max(0.0, scale * alone[step.source] - step.seconds))


def read_all(cache: Cache, form: Form, seconds: int) -> float:
    """The mean over the sizes."""
    return sum(taken(cheapest(cache, form, size, range(seconds))) for size in SIZES) / len(SIZES)


Figures = dict[str, dict[str, dict[str, dict[str, tuple[float, float]]]]]
"""By form, place, budget and order: the reads, and then the full read, in parts of what they take
from the original."""


def by_order(seconds: int, count: int, seeds: int) -> Figures:
    found: Figures = {name: {place: {} for place in PLACES} for name in FORMS}
    whole = without_cache(range(seconds))
    for place in PLACES:
        workloads = [random_reads(place, seconds, count, seed) for seed in range(seeds)]
        untiled = [sum(without_cache(span) for _, span in reads) for reads in workloads]
        for (name, form), (order_name, order) in itertools.product(FORMS.items(), ORDERS.items()):
            for budget in form.budgets:
                random, full = [], []
                for reads, alone in zip(workloads, untiled, strict=True):
                    cache = Cache(budget * seconds * ORIGINAL_BYTES, order)
                    random.append(read_and_keep(cache, form, reads) / alone)
                    full.append(read_all(cache, form, seconds) / whole)
                row = found[name][place].setdefault(f"{budget:g}x", {})
                row[order_name] = (float(np.mean(random)), float(np.mean(full)))
    return found


# --------------------------------------------------------------------------- tiles and renditions

HALF, SIXTH = SIZES[0], SIZES[-1]
SYSTEMS = ("tiles", "renditions", "both")


@dataclass(frozen=True)
class Wish:
    """A query for labels, or for whole frames if it has a size."""

    query: Query
    size: tuple[int, int] | None


def wishes(workload: Workload, video: VideoProfile, seed: int) -> list[Wish]:
    rng = np.random.default_rng((seed, 21))
    forms = (None, SIXTH, HALF)
    return [Wish(query, forms[int(rng.integers(3))]) for query in workload.draw(video, seed)]


class Seconds:
    """The cost of each second of a video in each form, computed once per kind of query."""

    def __init__(self, video: VideoProfile) -> None:
        self.sots = video.sots
        self._world = BoxWorld(video, RATES, wanted_tiles)
        self._full = frozenset({Rect.of_size(*SIZE)})
        self._untiled = Tiling.whole(TileLayout.untiled(*SIZE))
        self._tilings: dict[Key, Tiling | None] = {}

    def touched(self, wish: Wish) -> Sequence[int]:
        """The seconds that must be decoded."""
        if wish.size is None:
            return self._world.touched(wish.query)
        asked = wish.query.frames
        return [
            sot
            for sot, frames in enumerate(self.sots)
            if frames.start < asked.stop and asked.start < frames.stop
        ]

    def tiling(self, label: str, sot: int) -> Tiling | None:
        key = label, sot
        if key not in self._tilings:
            self._tilings[key] = self._world.tiling_around(sot, frozenset({label}))
        return self._tilings[key]

    def original_bytes(self, sot: int) -> float:
        return self._world.making_cost(sot, self._untiled).bytes

    def size(self, key: Key) -> int:
        kind, sot = key
        if isinstance(kind, str):
            tiling = self.tiling(kind, sot)
            assert tiling is not None
            return int(self._world.making_cost(sot, tiling).bytes)
        part = kind[0] * kind[1] / (SIZE[0] * SIZE[1])
        return int(self.original_bytes(sot) * part * (SIZE[0] / kind[0]) ** 0.5)

    def making(self, key: Key) -> float:
        kind, sot = key
        if isinstance(kind, str):
            tiling = self.tiling(kind, sot)
            assert tiling is not None
            return self._world.making_cost(sot, tiling).seconds
        whole = Query(self.sots[sot], self._full)
        decode = self._world.decode(sot, whole, None)
        pixels = len(whole.frames) * kind[0] * kind[1]
        return decode + ENCODE_FAST.seconds(1, pixels, self.size(key))

    def reading(self, wish: Wish, sot: int, key: Key | None) -> float:
        """Seconds to read from the item with that key; None stands for the original."""
        kind = None if key is None else key[0]
        if wish.size is None:
            assert kind is None or isinstance(kind, str)
            tiling = None if kind is None else self.tiling(kind, sot)
            return self._world.decode(sot, wish.query, tiling)
        sots = self.sots[sot]
        low, high = max(sots.start, wish.query.frames.start), wish.query.frames.stop
        frames = range(low, min(sots.stop, high))
        if key is None or isinstance(kind, str) or kind is None:
            return self._world.decode(sot, Query(frames, self._full), None)
        count = frames.stop - sots.start
        part = count / len(sots)
        work = DecodeWork(1, count, count * kind[0] * kind[1], part * self.size(key))
        return RATES.tiles.seconds(work)


def kinds_for(wish: Wish, system: str) -> list[Kind]:
    """The kinds of cached data that would serve a wish in this system."""
    if wish.size is None:
        (label,) = wish.query.aims
        return [] if system == "renditions" else [str(label)]
    if system == "tiles":
        return []
    return [size for size in (HALF, SIXTH) if size == wish.size or _serves(size, wish.size)]


def run_system(system: str, budget: float, seconds: Seconds, asked: Sequence[Wish]) -> float:
    """Total seconds of decoding and encoding."""
    cache, total = Cache(budget, by_benefit), 0.0
    missed: dict[Key, float] = {}
    for wish in asked:
        cache.now += 1
        used: set[Key] = set()
        lacking: list[tuple[Key, float]] = []
        for sot in seconds.touched(wish):
            costs = {
                (kind, sot): seconds.reading(wish, sot, (kind, sot))
                for kind in kinds_for(wish, system)
                if not isinstance(kind, str) or seconds.tiling(kind, sot) is not None
            }
            spent = original = seconds.reading(wish, sot, None)
            there = {key: cost for key, cost in costs.items() if key in cache.kept}
            if there and min(there.values()) < original:
                best, spent = min(there.items(), key=lambda item: item[1])
                cache.use(best, original - spent)
                used.add(best)
            total += spent
            lacking += [
                (key, spent - cost)
                for key, cost in costs.items()
                if cost < spent and key not in cache.kept
            ]
        for key, gain in lacking:
            missed[key] = missed.get(key, 0.0) + gain
            making = seconds.making(key)
            if missed[key] < making:
                continue
            if cache.add(key, seconds.size(key), gain, used, worth=missed[key]):
                total += making
                missed[key] = 0.0
    return total


def by_system(
    budgets: Sequence[float], length: int, videos: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Total seconds by workload, budget and system, relative to reading from the original only."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload in (one for one in WORKLOADS if one.name in ("W3", "W4")):
        parts: dict[tuple[float, str], list[float]] = {}
        for number in range(videos):
            video = sparse(number, SPARSE[number], length)
            seconds, asked = Seconds(video), wishes(workload, video, number)
            original = sum(seconds.original_bytes(sot) for sot in range(len(seconds.sots)))
            whole = run_system("both", 0, seconds, asked)  # never enough space
            for budget in budgets:
                for system in SYSTEMS:
                    spent = run_system(system, budget * original, seconds, asked)
                    parts.setdefault((budget, system), []).append(spent / whole)
        for (budget, system), values in parts.items():
            row = found.setdefault(workload.name, {}).setdefault(f"{budget:g}x", {})
            row[system] = float(np.mean(values))
    return found


# --------------------------------------------------------------------------------- telling


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="of the videos")
    parser.add_argument("--reads", type=int, default=500, help="random ones")
    parser.add_argument("--seeds", type=int, default=8, help="of random reads")
    parser.add_argument("--videos", type=int, default=4, help="of the workloads, at most 6")
    parser.add_argument(
        "--budgets",
        type=float,
        nargs="+",
        default=[0.05, 0.1, 0.25, 0.5, 1.0],
        metavar="N",
        help="of tiles and renditions, in parts of the original",
    )
    options = parser.parse_args()
    orders = by_order(options.seconds, options.reads, options.seeds)
    show_orders(orders)
    systems = by_system(options.budgets, options.seconds, options.videos)
    show_systems(systems)
    missed = [*missed_by_orders(orders), *missed_by_systems(systems)]
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    figures = {"orders": orders, "systems": systems}
    finish(options, "eviction", figures, passed=not missed)


def show_orders(found: Figures) -> None:
    print("\n### Orders of eviction\n\nRandom reads / then all of the video.\n")
    rows = [
        (form, place, budget, *(f"{100 * a:.1f} / {100 * b:.1f} %" for a, b in row.values()))
        for form, places in found.items()
        for place, budgets in places.items()
        for budget, row in budgets.items()
    ]
    print(table(("kept", "reads", "budget", *ORDERS), rows), flush=True)


def show_systems(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    print("\n### Tiles and renditions\n\nDecoding and making.\n")
    rows = [
        (workload, budget, *(f"{100 * row[system]:.1f} %" for system in SYSTEMS))
        for workload, budgets in found.items()
        for budget, row in budgets.items()
    ]
    print(table(("workload", "budget", *SYSTEMS), rows), flush=True)


def missed_by_orders(found: Figures) -> list[str]:
    """Missed bounds: over both kinds of reads, LRU_VSS must be no worse than LRU, and ours no
    worse than LRU_VSS."""
    missed = []
    for form, place in itertools.product(FORMS, RANDOM):
        for budget, row in found[form][place].items():
            for better, worse in (("LRU_VSS", "LRU"), ("ours", "LRU_VSS")):
                for what, a, b in zip(("reads", "all"), row[better], row[worse], strict=True):
                    if a > NEARLY * b:
                        missed.append(f"{form}, {place}, {budget}, {what}: {better} <= {worse}")
    return missed


def missed_by_systems(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    return [
        f"{workload}, {budget}: both <= {system}"
        for workload, budgets in found.items()
        for budget, row in budgets.items()
        for system in ("tiles", "renditions")
        if row["both"] > NEARLY * row[system]
    ]


if __name__ == "__main__":
    main()
