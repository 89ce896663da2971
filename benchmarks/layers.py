"""Layers: frames by the pixels of their maps, with the index and without it.

The maps are motion energy of real clips, at most 320x192, lossless in a store.  Random queries ask
for the 25 frames with the most pixels of some values in a region, and for the frames with more than
some number of them.  Every answer is compared with a count of all pixels.  The bounds are on ratios
of CPU time within the run, on the maps that a query decodes, and on the size of the index.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.common import arguments, existing_file, finish, footage, table, used
from vfsd import Store
from vfsd.api.layer import Layer, top_of_layers
from vfsd.api.layer_maps import LayerWork, Question
from vfsd.core.cell_index import RUN, Maps
from vfsd.core.detections import Ints
from vfsd.tiling import Rect

CLIPS = (
    "suburb_road_a_640x352.mp4",
    "suburb_road_b_640x352.mp4",
    "intel_cars_topdown_768x432.mp4",
    "detrac_crossing_960x540.mp4",
    "sam2_dog_720p.mp4",
    "futsal_1080p.mp4",
    "flies_a_1024x1024.mp4",
)
"""Clips of fixed cameras."""
SIZE = 320, 192
COUNT = 25
SMALLEST = 40  # sides of a region, pixels
INDEX_SHARE = 0.05
TOP_RATIO, FILTER_RATIO, LOADED = 50.0, 10.0, 0.02


@dataclass(frozen=True)
class Query:
    """One random query; `share` is of the region, for the filter."""

    region: Rect
    low: int
    high: int | None
    share: float

    def counts(self, maps: Maps) -> Ints:
        end = 1 << 8 if self.high is None else self.high
        asked = Question(self.region, self.low, end)
        return asked.counts(np.asarray(maps))


def main() -> None:
    parser = arguments(__doc__, runs=100)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: clips of fixed cameras"
    )
    parser.add_argument("--frames", type=int, help="most frames of a clip")
    options = parser.parse_args()
    videos = options.videos or [footage() / "real" / name for name in CLIPS]
    videos = [path for path in videos if path.exists()] or sorted(footage().glob("*.mp4"))[:2]
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(videos, options.runs, options.frames, Path(folder))
    print(table(("figure", "value"), [(key, value) for key, value in figures.items()]))
    passed = (
        figures["index_share"] <= INDEX_SHARE
        and figures["top_ratio"] >= TOP_RATIO
        and figures["filter_ratio"] >= FILTER_RATIO
        and figures["top_loaded"] <= LOADED
    )
    finish(options, "layers", figures, passed=passed)


def measure(videos: list[Path], runs: int, frames: int | None, folder: Path) -> dict[str, Any]:
    """The figures of one store."""
    with Store.create(folder / "store") as store:
        layers, given = [], []
        add_seconds = 0.0
        for path in videos:
            shown = [one.data for one in store.ingest(path).iterate(size=SIZE, format="gray")]
            small = store.write(
                f"small/{path.stem}.mkv",
                shown[:frames],
                fps=25,
                format="gray",
                codec="ffv1",
                lossless=True,
            )
            maps = motion(shown[:frames])
            added, usage = used(partial(small.layers.add, "motion", maps))
            add_seconds += usage.cpu
            layers.append(added)
            given.append(maps)
        every = np.concatenate(given)
        np.save(folder / "maps.npy", every)
        raw = np.load(folder / "maps.npy", mmap_mode="r")
        pictures = [write_png(folder / f"{at:06}.png", one) for at, one in enumerate(every)]
        some = [random_query(number, every) for number in range(runs)]
        files = sum(store[one.file].original.size for one in layers)
        indexes = sum(one.index_bytes or 0 for one in layers)
        figures: dict[str, Any] = {
            "maps": len(every),
            "file_bytes_a_map": files / len(every),
            "index_share": indexes / files,
            "add_cpu_ms_a_map": 1e3 * add_seconds / len(every),
        }
        # Without an index each query costs the same: all maps are read.
        decode = [used(partial(decode_all, layers, one)) for one in some[:3]]
        files_read = [used(partial(read_pngs, pictures, one)) for one in some[:3]]
        in_memory = [used(partial(one.counts, raw)) for one in some[:3]]
        for one, (found, _), (again, _) in zip(some, decode, files_read, strict=False):
            assert np.array_equal(found, one.counts(every))
            assert np.array_equal(again, found)
        all_seconds = statistics.median(usage.cpu for _, usage in decode)
        asked = [ask(layers, one, every) for one in some]
        figures |= {
            "decode_all_cpu_s": all_seconds,
            "png_folder_cpu_s": statistics.median(usage.cpu for _, usage in files_read),
            "raw_in_memory_cpu_s": statistics.median(usage.cpu for _, usage in in_memory),
        }
        for key in ("top", "filter"):
            seconds = [one[f"{key}_s"] for one in asked]
            figures |= {
                f"{key}_ratio": all_seconds / statistics.median(seconds),
                f"{key}_ratio_worst": all_seconds / max(seconds),
                f"{key}_loaded": statistics.median(one[f"{key}_loaded"] for one in asked),
                f"{key}_loaded_most": max(one[f"{key}_loaded"] for one in asked),
            }
        figures |= {
            key: statistics.median(one[key] for one in asked)
            for key in ("unordered_loaded", "by_runs", "bounds_s", "bounds_without_runs_s")
        }
        return figures


def motion(shown: list[Maps]) -> Maps:
    """How much each pixel has changed lately, 0 to 255."""
    found: list[Maps] = []
    before = energy = None
    for frame in shown:
        now = frame[..., 0].astype(np.float32)
        if before is None or energy is None:
            before, energy = now, np.zeros_like(now)
        energy = 0.7 * energy + np.minimum(255, 4 * np.abs(now - before)) * 0.3
        before = now
        found.append(cv2.GaussianBlur(energy, (5, 5), 0).astype(np.uint8))
    return np.stack(found)


def random_query(seed: int, maps: Maps) -> Query:
    rng = np.random.default_rng(seed)
    height, width = maps.shape[1:]
    across = rng.integers(min(SMALLEST, width), width + 1)
    down = rng.integers(min(SMALLEST, height), height + 1)
    x, y = rng.integers(0, width - across + 1), rng.integers(0, height - down + 1)
    region = Rect(int(x), int(y), int(x + across), int(y + down))
    low = int(rng.integers(20, 230))
    high = int(rng.integers(low + 16, 257)) if rng.random() < 0.5 else None
    return Query(region, low, high, float(rng.random() * 0.5))


def ask(layers: list[Layer], query: Query, every: Maps) -> dict[str, float]:
    """One query, both ways, with the answers checked."""
    true = query.counts(every)
    opened = [reopened(one) for one in layers]
    work = LayerWork()
    hits, top = used(
        lambda: top_of_layers(
            opened, COUNT, query.region, low=query.low, high=query.high, work=work
        )
    )
    assert [one.count for one in hits] == sorted(true.tolist(), reverse=True)[:COUNT]
    opened = [reopened(one) for one in layers]
    limit = query.share * query.region.area
    found, where = used(
        lambda: [
            one.where(
                query.region,
                low=query.low,
                high=query.high,
                share=query.share,
                explain=True,
            )
            for one in opened
        ]
    )
    starts = np.cumsum([0, *map(len, layers)])
    positions = np.concatenate(
        [at + frames for at, (frames, _) in zip(starts, found, strict=False)]
    )
    assert np.array_equal(positions, np.flatnonzero(true > limit))
    end = 256 if query.high is None else query.high
    asked = Question(query.region, query.low, end)
    _, with_runs = used(lambda: [one.maps.run_bounds(asked) for one in opened])
    bounds, without_runs = used(lambda: [all_bounds(one, asked) for one in opened])
    upper = np.concatenate(bounds)
    return {
        "top_s": top.cpu,
        "top_loaded": work.decoded / len(every),
        "filter_s": where.cpu,
        "filter_loaded": sum(one.decoded for _, one in found) / len(every),
        "by_runs": sum(one.by_runs for _, one in found) / len(every),
        "unordered_loaded": unordered(upper, true) / len(every),
        "bounds_s": with_runs.cpu,
        "bounds_without_runs_s": without_runs.cpu,
    }


def reopened(layer: Layer) -> Layer:
    """The same layer without anything in memory."""
    function, values = layer.__reduce__()
    return function(*values)


def all_bounds(layer: Layer, asked: Question) -> Ints:
    """The upper bound of each map, without the bounds of runs."""
    runs = -(-len(layer) // RUN)
    return np.concatenate([layer.maps.map_bounds(run, asked)[1] for run in range(runs)])


def unordered(upper: Ints, true: Ints) -> int:
    """How many maps a search loads that takes them in the order of the file."""
    best = np.full(COUNT, -1)
    loaded = 0
    for most, count in zip(upper.tolist(), true.tolist(), strict=True):
        if most > best[0]:
            loaded += 1
            if count > best[0]:
                best[0] = count
                best.sort()
    return loaded


def decode_all(layers: list[Layer], query: Query) -> Ints:
    return np.concatenate([query.counts(maps) for one in layers for maps in one.maps.runs()])


def read_pngs(paths: list[Path], query: Query) -> Ints:
    return np.concatenate(
        [
            query.counts(np.asarray(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE))[None])
            for path in paths
        ]
    )


def write_png(path: Path, one: Maps) -> Path:
    cv2.imwrite(str(path), one)
    return path


if __name__ == "__main__":
    main()
