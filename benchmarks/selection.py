"""Choosing fragments: the time of planning, and the gain of stored renditions for reads.

Two experiments.  *Plans*: a region of all frames is planned, with 30 frames per fragment and that
many segments of random lengths and layouts. *Reads* (figure 10 of VSS, SIGMOD 2021): random seconds
of a clip are stored as renditions in two sizes.  From time to time all frames are read in one small
size, and random single seconds (figure 11), and compared with reading from the original in the same
run.  Frames are compared with those of the original.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

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
)
from benchmarks.million_frames import put
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.catalog import Catalog
from vfsd.core.model import Cell, Segment
from vfsd.read.tile_planner import DecodeCosts, choose_tiles, in_full_size
from vfsd.tiling import Rect, TileLayout

CLIP = "real/nflx_OldTownCross_1080p.mp4"
PLANNED_BOUNDS = {1000: 0.05, 10_000: 0.5}
"""Seconds, by number of fragments."""
BEST_BOUND = 0.54
"""The best saving in time (VSS)."""
SLACK = 0.05
"""Tolerance for noise in timing: more fragments may seem to cost more."""
LAYOUTS = (
    TileLayout.untiled(1920, 1080),
    TileLayout((960, 960), (544, 536)),
    TileLayout((640, 640, 640), (352, 368, 360)),
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "video", nargs="?", type=existing_file, help="default: a filmed clip in 1080p"
    )
    parser.add_argument("--plans", type=int, nargs="*", default=[10, 100, 1000, 10_000])
    parser.add_argument("--seconds", type=int, default=60, help="the clip is repeated to fill")
    parser.add_argument("--shares", type=float, nargs="*", default=[0, 0.1, 0.25, 0.5, 0.75, 1])
    options = parser.parse_args()
    plans = {count: planned(count) for count in options.plans}
    rows = [(count, f"{found * 1000:.1f}") for count, found in plans.items()]
    print(table(("fragments", "ms to plan"), rows))
    clip = options.video or footage() / CLIP
    if not clip.exists():
        clip = footage() / "traffic.mp4"
    reads = measure(clip, options)
    print(f"\n{clip.name}, {options.seconds} s:\n")
    names = ("seconds stored", "all frames", "one second", "PSNR dB")
    print(table(names, [tuple(f"{value:.2f}" for value in row.values()) for row in reads]))
    whole = [row["all"] for row in reads]
    missed = [
        f"{count} fragments: {PLANNED_BOUNDS[count]} s"
        for count, found in plans.items()
        if found > PLANNED_BOUNDS.get(count, math.inf)
    ]
    if min(whole) > 1 - BEST_BOUND:
        missed.append(f"{BEST_BOUND:.0%} saved at best")
    if any(after > before + SLACK for before, after in pairwise(whole)):
        missed.append("monotone")
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    figures = {"plans": {str(count): found for count, found in plans.items()}, "reads": reads}
    finish(options, "selection", figures, passed=not missed)


# ---------------------------------------------------------------------------------------- plans


def planned(count: int) -> float:
    """Seconds, the best of three plans with different costs."""
    frames = max(120, 30 * count)
    rng = np.random.default_rng(count)
    segments = [some_segment(rng, number, frames) for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/catalog.sqlite"
        Catalog.create(url).close()
        with Catalog.open(url) as catalog:
            put(catalog, frames)
            video = catalog.video("long.mp4")
            frame_table = catalog.frame_table(video.original)
            needed = in_full_size(video.original.media, Rect(100, 100, 300, 300))
            times = []
            for _ in range(3):
                began = time.perf_counter()
                runs = choose_tiles(
                    np.arange(frames),
                    needed,
                    video.original,
                    frame_table,
                    segments,
                    DecodeCosts(),
                    good=lambda segment, tiles: all(
                        segment.cell(tile).psnr >= 36 for tile in tiles
                    ),
                )
                times.append(time.perf_counter() - began)
                assert all(run.segment.psnr < 60 for run in runs)
    return min(times)


def some_segment(rng: np.random.Generator, number: int, frames: int) -> Segment:
    first = int(rng.integers(0, frames - 60))
    length = int(rng.integers(15, 60))
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    cells = tuple(
        Cell(tile, rect, 0, int(rect.area * length * 0.1), 20, float(rng.uniform(35, 50)))
        for tile, rect in enumerate(layout.tiles)
    )
    worst = min(cell.psnr for cell in cells)
    end = first + length
    return Segment(number + 1, 2, 1, first, end, layout, "fast", "", 1, worst, 0, None, cells)


# ---------------------------------------------------------------------------------------- reads


def measure(clip: Path, options: Any) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        video = store.ingest(clip)
        times = math.ceil(options.seconds / video.duration)
        if times > 1:
            video = store.ingest(repeated(clip, times, Path(folder)), "long")
        video.budget.set("none")
        seconds = min(options.seconds, math.floor(video.duration))
        size = (video.width // 8 * 2, video.height // 8 * 2)
        larger = [(2 * size[0], 2 * size[1]), size]
        rng = np.random.default_rng(0)
        order = rng.permutation(seconds).tolist()
        found, stored = [], 0
        for share in options.shares:
            upto = round(share * seconds)
            for second in order[stored:upto]:
                chosen = larger[int(rng.integers(len(larger)))]
                video.renditions.make(chosen, span=(second, second + 1))
            stored = upto
            found.append(compare(store, video, seconds, size, stored, options.runs))
        return found


def compare(
    store: Store, video: Video, seconds: int, size: tuple[int, int], stored: int, runs: int
) -> dict[str, float]:
    """Wall time of reads with renditions, relative to reads without."""
    rng = np.random.default_rng(stored)
    spans = [(0, seconds), *((at, at + 1) for at in rng.integers(0, seconds, runs).tolist())]
    ratios = []
    for number, span in enumerate(spans):
        times: dict[float | None, list[float]] = {None: [], math.inf: []}
        for turn in range(runs if not number else 2):
            for psnr in (None, math.inf) if turn % 2 else (math.inf, None):
                store.tools.pool.empty()
                store.tools.packs.empty()
                began = time.perf_counter()
                for _ in video.iterate(span=span, size=size, psnr=psnr):
                    pass
                times[psnr].append(time.perf_counter() - began)
        mine, theirs = (Timing(tuple(times[psnr])) for psnr in (None, math.inf))
        ratios.append(paired_ratio(mine, theirs))
    return {
        "stored": float(stored),
        "all": ratios[0],
        "one": statistics.median(ratios[1:]),
        "psnr": psnr_of(video, seconds, size),
    }


def psnr_of(video: Video, seconds: int, size: tuple[int, int]) -> float:
    """PSNR of luma of every fifth frame."""
    frames = range(0, len(video.frames_in((0, seconds))), 5)
    squares = count = 0.0
    for near, exact in zip(
        video.iterate(frames=frames, size=size, format="gray"),
        video.iterate(frames=frames, size=size, format="gray", psnr=math.inf),
        strict=True,
    ):
        squares += float(np.square(near.data.astype(np.float32) - exact.data).sum())
        count += exact.data.size
    assert squares == 0 or 10 * math.log10(255**2 * count / squares) > 36, "wrong pixels"
    return 99.0 if not squares else 10 * math.log10(255**2 * count / squares)


if __name__ == "__main__":
    main()
