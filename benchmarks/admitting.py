"""CPU time saved by keeping view segments as renditions, for the view itself and for later reads.

The program uses two stores; only one of them keeps such segments as renditions (`admit_views`).
One client reads a view in another size twice, and the tuner applies its proposals.  Then other
clients read the frames in that size: as a view in another container, as the same view, and as
arrays.  Runs are interleaved, and the minimum of each step counts.

The program counts the frames of the views, and compares each read with a read of the original.
Luma must reach the PSNR that the read reported.
"""

from __future__ import annotations

import math
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np

from benchmarks.common import arguments, existing_file, finish, footage, table
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings

CLIPS = ("real/futsal_1080p.mp4", "real/nflx_BirdsInCage_1080p.mp4", "real/sam2_dog_720p.mp4")
LATER = ("mkv", "the same", "arrays")
AGAIN = 3
"""Times that the view is read again, from the cache, before the tuner looks."""
STEPS = ("view", "tuning", *LATER)
_ROUNDING = 0.05
"""dB that segments of a mean may differ in by rounding."""

Figures = dict[str, float]


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: three of the footage"
    )
    parser.add_argument("--part", type=int, default=3, help="sides are divided by that")
    options = parser.parse_args()
    videos = options.videos or [footage() / name for name in CLIPS]
    videos = [path for path in videos if path.exists()] or sorted(footage().glob("*.mp4"))[:2]
    figures = {path.name: measured(path, options) for path in videos}
    rows = [
        (name, way, *(found[way][step] for step in STEPS), f"{found[way]['kept']:.0%}")
        for name, found in figures.items()
        for way in found
    ]
    print(table(("video", "views are", *STEPS, "frames kept"), rows))
    finish(options, "admitting", figures, passed=True)


def measured(path: Path, options: Namespace) -> dict[str, Figures]:
    """The least CPU seconds of each step, by what happens to view segments."""
    ways = {"kept": True, "not kept": False}
    found: dict[str, list[Figures]] = {way: [] for way in ways}
    for _ in range(options.runs):
        for way, is_kept in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found[way].append(run(path, Path(folder), is_kept, options.part))
    return {
        way: {step: min(one[step] for one in runs) for step in runs[0]}
        for way, runs in found.items()
    }


def run(path: Path, folder: Path, is_kept: bool, part: int) -> Figures:
    with Store.create(folder / "store") as store:
        StoreSettings(admit_views=is_kept).save(store.parts.directory.settings)
    with Store.open(folder / "store") as store:
        store.ingest(path, "a").verify()
        media = store["a"].original.media
        size = media.width // part // 2 * 2, media.height // part // 2 * 2
        figures = {"view": spent(lambda: store["a"].save(folder / "a.mp4", size=size))}
        for _ in range(AGAIN):
            store["a"].save(folder / "a.mp4", size=size, replace=True)
        figures["tuning"] = spent(store.tune)
        there = store.catalog.renditions(store["a"].info)
    with Store.open(folder / "store") as store:  # nothing is decoded yet
        video = store["a"]
        figures["mkv"] = spent(lambda: video.save(folder / "a.mkv", size=size))
        figures["the same"] = spent(lambda: video.save(folder / "b.mp4", size=size))
        figures["arrays"] = spent(lambda: video.read(size=size, format="yuv420p"))
        figures["kept"] = sum(len(one.frames) for one in there if one.is_from_view) / len(video)
        for name in ("a.mp4", "a.mkv", "b.mp4"):
            with av.open(str(folder / name)) as opened:
                if sum(1 for _ in opened.decode(video=0)) != len(video):
                    raise SystemExit(f"{path.name}: {name} has other pictures")
        require_like_the_original(store, size)
    return figures


def require_like_the_original(store: Store, size: tuple[int, int]) -> None:
    video = store["a"]
    found = video.read(size=size, format="yuv420p")
    exact = video.read(size=size, format="yuv420p", psnr=math.inf)
    if found.psnr == math.inf:
        if not np.array_equal(found.data, exact.data):
            raise SystemExit("what comes from the original is not what a direct decode gives")
        return
    height = size[1]
    squares = np.square(found.data[:, :height].astype(np.float32) - exact.data[:, :height])
    for run_of in video.explain(size=size).plan.tiled:
        mine = squares[list(run_of.frames)]
        psnr = 10 * math.log10(255**2 / max(float(mine.mean()), 1e-9))
        if psnr < run_of.segment.psnr - _ROUNDING:
            raise SystemExit(f"a segment has {psnr:.2f} dB and promises {run_of.segment.psnr:.2f}")


def spent(work: Callable[[], object]) -> float:
    """CPU seconds that this process has used."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
