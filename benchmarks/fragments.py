"""Reading from many random fragments: our planner, a greedy planner, and the original alone.

VSS's experiments (SIGMOD 2021, figures 10 and 8) with real decoding.  Runs of frames of a repeated
filmed clip are stored in random forms: whole frames at half, a third or a quarter of the size, or
tiles of two layouts.  From time to time all frames are read at a quarter of the size, and random
single seconds at a quarter or half of the size, or as a region.  The greedy planner is VSS's
baseline: for each interval it takes the fragment with the cheapest frames, and ignores the frames
that must be decoded before them.  Rounds of the three are interleaved, and decoders start cold.
Wall and CPU time are relative to those of the original alone.  Bounds apply to CPU time, which
hardly depends on other load.  Frames are compared with those that PyAV decodes from the clip.

`benchmarks.selection` measures planning alone, and renditions that do not overlap.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import numpy as np

from benchmarks.common import (
    Timing,
    arguments,
    existing_file,
    finish,
    footage,
    paired_ratio,
    repeated,
    table,
    used,
)
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo, Segment
from vfsd.core.view_request import View
from vfsd.derive.tile_encoder import PlannedSegment
from vfsd.read.tile_planner import (
    DecodeCosts,
    IsGoodEnough,
    NeededRegion,
    TileRun,
    choose_tiles,
    tile_work,
)
from vfsd.tiling import Rect, TileLayout, parse_layout
from vfsd.tiling.cost import DecodeWork

CLIP = "real/carpov_highway_960x540.mp4"
BEST_BOUND = 0.54
"""The best saving in the time of a long read (VSS)."""
PLANNING_BOUND = 0.05
"""The time of planning, relative to a long read."""
SLACK = 0.05
"""Tolerance for noise in timing: more fragments may seem to cost more."""
LEAST_PSNR = 36.0
"""dB of luma, of all frames that are looked at: cells have 40 by themselves."""
SHORTEST, LONGEST = 15, 90
"""Frames of a fragment."""
EVERY = 10
"""Frames apart that are compared."""
LIMITED: dict[str, Any] = {"src_color_range": 1, "dst_color_range": 1}
"""Luma stays as it is."""
OURS, GREEDY, ALONE = "ours", "greedy", "original"

Choose = Callable[..., list[TileRun]]


@dataclass(frozen=True)
class Query:
    span: tuple[int, int]  #: seconds
    size: tuple[int, int] | None
    region: Rect | None = None


@dataclass(frozen=True)
class Times:
    """By contestant."""

    wall: dict[str, Timing]
    cpu: dict[str, Timing]


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("video", nargs="?", type=existing_file, help="default: a filmed clip")
    parser.add_argument("--seconds", type=int, default=60, help="the clip is repeated to fill")
    parser.add_argument("--fragments", type=int, nargs="*", default=[0, 10, 30, 60, 120, 240])
    parser.add_argument("--reads", type=int, default=8, help="short ones")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    clip = options.video or footage() / CLIP
    if not clip.exists():
        clip = footage() / "traffic.mp4"
    rows = measure(clip, options)
    print(f"{clip.name}, {options.seconds} s\n")
    print(table(tuple(rows[0]), [tuple(f"{value:.2f}" for value in row.values()) for row in rows]))
    missed = []
    if min(row["all, ours, CPU"] for row in rows) > 1 - BEST_BOUND:
        missed.append(f"{BEST_BOUND:.0%} saved at best")
    if any(
        after["all, ours, CPU"] > before["all, ours, CPU"] + SLACK
        for before, after in pairwise(rows)
    ):
        missed.append("monotone")
    if any(row["all, ours, CPU"] > row["all, greedy, CPU"] + SLACK for row in rows):
        missed.append("no dearer than greedy")
    if any(row["plan"] > PLANNING_BOUND for row in rows):
        missed.append(f"planning takes {PLANNING_BOUND:.0%} at most")
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    finish(options, "fragments", rows, passed=not missed)


def measure(clip: Path, options: Any) -> list[dict[str, float]]:
    """Times relative to those of the original alone; planning time relative to the read's time."""
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        once = store.ingest(clip)
        times = math.ceil(options.seconds / once.duration)
        path = repeated(clip, times, Path(folder)) if times > 1 else clip
        video = store.ingest(path, "long") if times > 1 else once
        video.verify()
        video.budget.set("none")
        seconds = min(options.seconds, math.floor(video.duration))
        small = (video.width // 8 * 2, video.height // 8 * 2)
        rng = np.random.default_rng(options.seed)
        queries = [some_query(rng, video, seconds) for _ in range(options.reads)]
        truth = decoded(path, len(video.frames_in((0, seconds))), small)
        rows, stored = [], 0
        for count in sorted(options.fragments):
            for planned in some_fragments(rng, video, count - stored):
                video.tiles.retile([planned])
            stored = count
            print(f"{count} fragments", file=sys.stderr, flush=True)
            everything = Query((0, seconds), small)
            whole = timed(store, video, everything, options.runs)
            short: list[Times] = [timed(store, video, query, options.runs) for query in queries]
            began = time.perf_counter()
            plan_view(context_of(video), View(span=spanned(everything), size=small))
            planning = time.perf_counter() - began
            row = {"stored": float(count)}
            for who in (OURS, GREEDY):
                row[f"all, {who}"] = paired_ratio(whole.wall[who], whole.wall[ALONE])
                row[f"all, {who}, CPU"] = paired_ratio(whole.cpu[who], whole.cpu[ALONE])
            for who in (OURS, GREEDY):
                row[f"one, {who}"] = of_all([found.wall for found in short], who)
                row[f"one, {who}, CPU"] = of_all([found.cpu for found in short], who)
            row["plan"] = planning / whole.wall[OURS].median
            row["psnr"] = psnr_of(video, everything, truth)
            rows.append(row)
        return rows


def spanned(query: Query) -> tuple[Fraction, Fraction]:
    return Fraction(query.span[0]), Fraction(query.span[1])


def some_fragments(rng: np.random.Generator, video: Video, count: int) -> Iterator[PlannedSegment]:
    width, height = video.original.media.width, video.original.media.height
    rules = tile_codec("fast", video.original.media).rules
    layouts = [
        *(TileLayout.untiled(width // n // 2 * 2, height // n // 2 * 2) for n in (2, 3, 4)),
        *(parse_layout(f"uniform:{grid}", width, height, rules) for grid in ("2x2", "3x3")),
    ]
    for _ in range(count):
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        first = int(rng.integers(0, max(1, len(video) - length)))
        frames = range(first, min(len(video), first + length))
        yield PlannedSegment(frames, layouts[int(rng.integers(len(layouts)))])


def some_query(rng: np.random.Generator, video: Video, seconds: int) -> Query:
    at = int(rng.integers(seconds))
    kind = int(rng.integers(3))
    if kind < 2:
        part = (4, 2)[kind]
        size = (video.width // part // 2 * 2, video.height // part // 2 * 2)
        return Query((at, at + 1), size)
    width, height = video.width // 5, video.height // 5
    x, y = int(rng.integers(video.width - width)), int(rng.integers(video.height - height))
    return Query((at, at + 1), None, Rect(x, y, x + width, y + height))


def of_all(short: Sequence[dict[str, Timing]], who: str) -> float:
    """All short reads together, by round."""
    sums = {
        name: [sum(times) for times in zip(*(found[name].seconds for found in short), strict=True)]
        for name in (who, ALONE)
    }
    return paired_ratio(Timing(tuple(sums[who])), Timing(tuple(sums[ALONE])))


def timed(store: Store, video: Video, query: Query, runs: int) -> Times:
    contestants: dict[str, tuple[Choose, float | None]] = {
        OURS: (choose_tiles, None),
        GREEDY: (greedy, None),
        ALONE: (choose_tiles, math.inf),
    }
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(runs):
        names = list(contestants)
        for name in names[turn % 3 :] + names[: turn % 3]:
            choose, psnr = contestants[name]
            store.tools.pool.empty()
            store.tools.packs.empty()
            with patch("vfsd.read.read_plan.choose_tiles", choose):  # plans use this planner
                _, usage = used(partial(read, video, query, psnr))
                wall[name].append(usage.wall)
                cpu[name].append(usage.cpu)
    return Times(
        {name: Timing(tuple(found)) for name, found in wall.items()},
        {name: Timing(tuple(found)) for name, found in cpu.items()},
    )


def read(video: Video, query: Query, psnr: float | None) -> None:
    for _ in video.iterate(span=query.span, size=query.size, region=query.region, psnr=psnr):
        pass


# --------------------------------------------------------------------------------------- greedy


def greedy(
    frames: Ints,
    needed: NeededRegion,
    physical: PhysicalVideo,
    frame_table: FrameTable,
    segments: Sequence[Segment],
    costs: DecodeCosts,
    *,
    good: IsGoodEnough,
    unreadable: Sequence[range] = (),
) -> list[TileRun]:
    """For each interval between ends of fragments, the fragment with the cheapest frames there."""
    assert not unreadable, "nothing is damaged here"
    wanted = sorted(set(frames.tolist()))
    usable = []
    for segment in segments:
        area = needed(*segment.picture)
        tiles = tuple(segment.layout.covering(area)) if area is not None else ()
        if tiles and segment.holds(tiles) and good(segment, tiles):
            usable.append((segment, tiles))
    cuts = sorted({at for one, _ in usable for at in (one.first_frame, one.end_frame)})
    places = [0, *(bisect_left(wanted, cut) for cut in cuts), len(wanted)]
    media = physical.media
    runs: list[TileRun] = []
    for first, end in pairwise(places):
        part = wanted[first:end]
        if not part:
            continue
        packets = frame_table.packets_of(range(part[0], part[-1] + 1))
        size = frame_table.bytes_of(int(packets.min()), int(packets.max()) + 1)
        work = DecodeWork(0, len(part), len(part) * media.width * media.height, float(size))
        cheapest, chosen = costs.of_original(physical).seconds(work), None
        for segment, tiles in usable:
            if segment.first_frame <= part[0] and part[-1] < segment.end_frame:
                through = tile_work(segment, tiles, segment.frames)
                share = len(part) / len(segment.frames)
                seconds = costs.seconds_of_tiles(segment, through, together=len(tiles)) * share
                if seconds < cheapest:
                    cheapest, chosen = seconds, (segment, tiles)
        if chosen is None:
            continue
        if runs and runs[-1].segment is chosen[0]:
            runs[-1] = TileRun(chosen[0], (*runs[-1].frames, *part), chosen[1])
        else:
            runs.append(TileRun(chosen[0], tuple(part), chosen[1]))
    return runs


# -------------------------------------------------------------------------------------- content


def decoded(path: Path, count: int, size: tuple[int, int]) -> list[Any]:
    """Luma of every tenth frame, decoded from the first frame on."""
    found = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, frame in enumerate(container.decode(stream)):
            if number == count:
                break
            if number % EVERY == 0:
                picture = frame.reformat(*size, format="gray", interpolation="AREA", **LIMITED)
                found.append(picture.to_ndarray())
    return found


def psnr_of(video: Video, query: Query, truth: Sequence[Any]) -> float:
    """PSNR of luma over every tenth frame together, in dB."""
    frames = range(0, len(video.frames_in(query.span)), EVERY)
    squares = count = 0.0
    for seen, right in zip(
        video.iterate(frames=frames, size=query.size, format="gray"), truth, strict=True
    ):
        squares += float(np.square(seen.data[:, :, 0].astype(np.float32) - right).sum())
        count += right.size
    found = 99.0 if not squares else 10 * math.log10(255**2 * count / squares)
    assert found > LEAST_PSNR, f"wrong pixels: {found:.1f} dB"
    return found


if __name__ == "__main__":
    main()
