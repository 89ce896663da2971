"""Repeated queries for clips with drawn boxes: TASM's macrobenchmark, simulated.

Visual Road's Q7 as TASM runs it (ICDE 2021, figure 13).  A query asks for ten seconds with boxes
around all cars, or all persons; windows near the start of the video are more frequent (Zipf).  A
detector examines every third frame when it is first requested.  Then boxes are drawn.  Without
tiles, whole frames are decoded and encoded.  With tiles, only tiles with a box are, and the others
are stitched to them unchanged.  Seconds without a box are copied in both cases.

Nothing is decoded or encoded: costs come from the cost model, the detector takes a fixed time, and
the time for drawing is left out.  Under every policy, tiles cover the whole frame, as stitching
requires, and have the codec `stitchable`.  Output without tiles has the same codec in one piece, or
(reported separately) H.264, which is encoded faster.  Each SOT of a second is served from tiles or
without, whichever is cheaper.

Each video has one set of queries, asked in six orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table
from benchmarks.contestants import RATES
from benchmarks.simulated import RATE, SPARSE, sparse, zipf
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST, DecodeWork, decoded_frames, tile_areas
from vfsd.tiling.policy import (
    Aims,
    BoxWorld,
    CostRates,
    IncrementalMore,
    IncrementalRegret,
    Ledger,
    Query,
    Tiling,
    TilingCost,
    TilingPolicy,
    VideoProfile,
    World,
    not_tiled,
)

STITCHABLE = replace(RATES, tiles=DEFAULT_COSTS["stitchable"], encode=ENCODE_FAST.times(1.5))
"""Making such tiles takes 1.5 times as long as `fast` ones: the median of four filmed clips, see
benchmarks/results/stitching.md."""
STITCHING = 20e-6
"""Seconds for each tile of a picture, from the same place."""
EVERY = 3
"""The detector examines every third frame."""
WINDOW = 10
LABELS = ("car", "person")
LAST = 20
ORDERS = 6
TOTAL_BOUND = 0.9
"""Total cost relative to no tiles."""

POLICIES: Mapping[str, Callable[[World], TilingPolicy]] = {
    "none": not_tiled,
    "more": IncrementalMore,
    "regret": IncrementalRegret,
    "ledger": Ledger,
}
OURS, PLAIN = "ledger", "none, as H.264"


class Drawing:
    """A world in which the answer to a query is a video with drawn boxes.

    Its `decode` returns the whole cost: decoding, encoding and stitching.
    """

    def __init__(self, footage: VideoProfile, rates: CostRates) -> None:
        self._footage = footage
        self._rates = rates
        self._boxes = BoxWorld(footage, rates)
        self._whole = Tiling.whole(TileLayout.untiled(footage.width, footage.height))
        self._drawn = cache(self._draw)
        self.tiling_around = self._boxes.tiling_around
        self.gops = self._boxes.gops
        self.labels = self._boxes.labels
        self.making_cost = self._boxes.making_cost
        self.touched = self._boxes.touched

    @property
    def sots(self) -> range:
        return self._boxes.sots

    def decode(self, sot: int, query: Query, tiling: Tiling | None) -> float:
        return self._drawn(sot, query.aims, tiling)

    def pixels(self, sot: int, query: Query, tiling: Tiling | None) -> int:
        return self._boxes.pixels(sot, query, tiling)

    def _draw(self, sot: int, aims: Aims, tiling: Tiling | None) -> float:
        """Draw a window of whole SOTs, so that its alignment does not matter."""
        untiled = self.making_cost(sot, self._whole).seconds
        if tiling is None:
            return untiled
        frames, layout = self._footage.sots[sot], tiling.layout
        seen = [boxes for label, boxes in self._footage.seen[sot].items() if label in aims]
        corners = np.concatenate([boxes.corners for boxes in seen])
        numbers = np.concatenate([boxes.frames for boxes in seen])
        touched = np.flatnonzero(decoded_frames(layout, corners, numbers, frames.start))
        again = self._encoding(sot, Tiling(layout, tuple(touched.tolist())))
        read = DecodeWork(
            starts=len(touched),
            pictures=len(touched) * len(frames),
            pixels=int(tile_areas(layout)[touched].sum()) * len(frames),
            bytes=again.bytes,
        )
        stitching = STITCHING * layout.count * len(frames)
        return min(untiled, self._rates.tiles.seconds(read) + again.seconds + stitching)

    def _encoding(self, sot: int, tiling: Tiling) -> TilingCost:
        """The encoding cost without decoding the source."""
        making, nothing = (
            self.making_cost(sot, one) for one in (tiling, Tiling(tiling.layout, ()))
        )
        return TilingCost(making.seconds - nothing.seconds, making.bytes)


@dataclass(frozen=True)
class Course:
    """Seconds of each query, without the detector."""

    seconds: np.ndarray[Any, Any]
    looked_at: np.ndarray[Any, Any]  #: frames, of each query

    def total(self, detector: float) -> float:
        """All queries together, with that many detector seconds per frame."""
        return float(self.seconds.sum() + detector * self.looked_at.sum())

    def last(self, detector: float) -> float:
        """The last queries, likewise."""
        return float(self.seconds[-LAST:].sum() + detector * self.looked_at[-LAST:].sum())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--videos", type=int, default=len(SPARSE), help="at most 6")
    parser.add_argument("--seconds", type=int, default=120, help="of each video")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument(
        "--detector",
        type=float,
        nargs="+",
        default=[30.0, 100.0],
        metavar="MS",
        help="milliseconds that a detector takes for a frame, one after the other",
    )
    options = parser.parse_args()
    found: dict[str, list[list[Course]]] = {name: [] for name in (*POLICIES, PLAIN)}
    for number in range(options.videos):
        footage = sparse(number, SPARSE[number], options.seconds)
        world, plain = Drawing(footage, STITCHABLE), Drawing(footage, RATES)
        orders = ordered(drawn(footage, options.queries, number), number)
        for name, policy in POLICIES.items():
            found[name].append([course(policy(world), world, these) for these in orders])
        found[PLAIN].append([course(not_tiled(plain), plain, these) for these in orders])
        print(f"video {number + 1} of {options.videos} done", flush=True)
    figures = {f"{each:g} ms": told(found, each / 1000) for each in options.detector}
    show(figures)
    missed = judge(figures)
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    finish(options, "macro", figures, passed=not missed)


def drawn(footage: VideoProfile, count: int, seed: int) -> list[Query]:
    """Windows of whole seconds that contain an object of the label."""
    rng = np.random.default_rng((seed, 9))
    queries: list[Query] = []
    while len(queries) < count:
        start = zipf(len(footage.sots) - WINDOW + 1, rng)
        label = str(rng.choice(LABELS))
        if any(label in footage.seen[sot] for sot in range(start, start + WINDOW)):
            frames = range(start * RATE, (start + WINDOW) * RATE)
            queries.append(Query(frames, frozenset({label})))
    return queries


def ordered(queries: Sequence[Query], seed: int) -> list[list[Query]]:
    """The same queries in six orders."""
    rng = np.random.default_rng((seed, 5))
    return [[queries[at] for at in rng.permutation(len(queries))] for _ in range(ORDERS)]


def course(policy: TilingPolicy, world: Drawing, queries: Sequence[Query]) -> Course:
    tilings: dict[int, Tiling] = {}
    known: set[int] = set()
    seconds, looked_at = [], []
    for query in queries:
        touched = world.touched(query)
        spent = sum(world.decode(sot, query, tilings.get(sot)) for sot in touched)
        window = set(range(query.frames.start // RATE, query.frames.stop // RATE))
        looked_at.append(len(window - known) * RATE // EVERY)
        known |= window
        for retile in policy.observe(query):
            tilings[retile.sot] = retile.tiling
            spent += world.making_cost(retile.sot, retile.tiling).seconds
        seconds.append(spent)
    return Course(np.array(seconds), np.array(looked_at))


# --------------------------------------------------------------------------------- telling


def told(found: Mapping[str, list[list[Course]]], detector: float) -> dict[str, Any]:
    """By policy and video, the median over its orders: all queries, and the last ones, relative
    to no tiles."""
    figures = {}
    for name, base in (*((name, "none") for name in POLICIES), (OURS, PLAIN)):
        totals, lasts = [], []
        for mine, theirs in zip(found[name], found[base], strict=True):
            pairs = list(zip(mine, theirs, strict=True))
            totals.append(np.median([a.total(detector) / b.total(detector) for a, b in pairs]))
            lasts.append(np.median([a.last(detector) / b.last(detector) for a, b in pairs]))
        figures[name if base == "none" else f"{name}, against {base}"] = {
            "total": [round(float(one), 4) for one in totals],
            "last": [round(float(one), 4) for one in lasts],
        }
    return figures


def show(figures: Mapping[str, Any]) -> None:
    rows = [
        (detector, name, *(_change(these[what]) for what in ("total", "last")))
        for detector, found in figures.items()
        for name, these in found.items()
        if name != "none"
    ]
    print("\nTime against no tiles: the median video (the least and the most gained).\n")
    print(table(("detector, a frame", "policy", "all queries", f"the last {LAST}"), rows))


def _change(parts: Sequence[float]) -> str:
    middle, most, least = (100 * (f(parts) - 1) for f in (np.median, max, min))
    return f"{middle:+.0f} % ({most:+.0f} to {least:+.0f} %)"


def judge(figures: Mapping[str, Any]) -> list[str]:
    """The missed bounds."""
    missed = []
    for detector, found in figures.items():
        total, last = (float(np.median(found[OURS][what])) for what in ("total", "last"))
        if total > TOTAL_BOUND:
            missed.append(f"{detector}: all queries {total:.3f} <= {TOTAL_BOUND}")
        if last > total:
            missed.append(f"{detector}: the last {LAST} {last:.3f} <= all {total:.3f}")
    return missed


if __name__ == "__main__":
    main()
