"""Nearest vectors among 100,000: `Store.nearest`, a comparison of all with NumPy, and usearch.

    clustered     random vectors around 200 random middles, 512 numbers
    descriptors   gradients and colours of random squares of real frames, 672 numbers
    FILE.npy      those given with --vectors, such as the embeddings of a model

Queries are vectors of the set with some noise.  The answers of NumPy, in single precision and all
in memory, are the truth.  A search of the store is the whole call, with its look into the catalog.
All times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.common import arguments, finish, footage, table
from vfsd.api.store import Store
from vfsd.core.vectors import unit

_RECALL, _RATIO = 0.99, 3.0
_K = 20
_FRAMES = 120
"""Frames of sample_videos/traffic.mp4."""

Singles = npt.NDArray[np.float32]


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("--count", type=int, default=100_000, help="vectors of each set")
    parser.add_argument("--queries", type=int, default=100, help="queries of each set")
    parser.add_argument("--only", nargs="+", help="names of the sets to search")
    parser.add_argument("--vectors", type=Path, metavar="FILE.npy", help="another set")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    sets: dict[str, Callable[[], Singles]] = {
        "clustered": lambda: clustered(options.count),
        "descriptors": lambda: np.stack(list(islice(descriptors(), options.count))),
    }
    if options.vectors is not None:
        sets[options.vectors.stem] = lambda: np.load(options.vectors).astype(np.float32)
    rows = []
    for name, make in sets.items():
        if options.only and name not in options.only:
            continue
        rows.append({"set": name, **measured(make(), options)})
        print(cells(rows[-1]), flush=True)
    headings = ("set", "vectors", "store ms", "NumPy ms", "ratio", "recall", "least")
    print(table((*headings, "usearch ms", "recall", "build s"), [cells(row) for row in rows]))
    passed = all(row["recall"] >= _RECALL and row["ratio"] >= _RATIO for row in rows)
    finish(options, "vectors", rows, passed=passed)


def measured(matrix: Singles, options: argparse.Namespace) -> dict[str, Any]:
    """CPU milliseconds of a query, and recall, of each contestant."""
    random = np.random.default_rng(1)
    chosen = unit(matrix[random.choice(len(matrix), options.queries, replace=False)])
    noise = random.normal(size=chosen.shape) * 0.3 / np.sqrt(chosen.shape[1])
    queries = unit(chosen + noise)
    units = unit(matrix)
    brute = least_ms(lambda: [best(units, query) for query in queries], options)
    truth = [np.sort(units @ query)[-_K] for query in queries]
    found: dict[str, Any] = {"vectors": len(matrix), "dimension": matrix.shape[1]}
    found |= {"brute_ms": brute, **of_usearch(units, queries, truth, options)}
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        began = time.process_time()
        add_all(store, matrix.astype(np.float16))
        found["add_s"] = time.process_time() - began
        answers = [store.nearest(query, _K) for query in queries]  # reads the tables
        # Half precision may swap vectors that are nearly as near.
        recalls = [
            sum(one.score >= least - 1e-3 for one in answer) / _K
            for answer, least in zip(answers, truth, strict=True)
        ]
        exact = [store.nearest(query, _K, exact=True) for query in queries[:20]]
        shared = [
            len({(one.video, one.frames) for one in a} & {(one.video, one.frames) for one in b})
            for a, b in zip(answers, exact, strict=False)
        ]
        found["recall_of_exact"] = sum(shared) / (_K * len(shared))
        found["store_ms"] = least_ms(
            lambda: [store.nearest(query, _K) for query in queries], options
        )
        assert answers[0].vectors == len(matrix)
        assert answers[0].compared < len(matrix)
    found |= {"recall": float(np.mean(recalls)), "least": min(recalls)}
    return found | {"ratio": brute / found["store_ms"]}


def add_all(store: Store, matrix: npt.NDArray[np.float16]) -> None:
    """Add vectors to as many videos as it takes, with different runs of frames."""
    clip = Path(__file__).parents[1] / "sample_videos" / "traffic.mp4"
    runs = [(first, end) for first in range(_FRAMES) for end in range(first + 1, _FRAMES + 1)]
    for number, at in enumerate(range(0, len(matrix), len(runs))):
        part = matrix[at : at + len(runs)]
        video = store.ingest(clip, f"{number}.mp4")
        video.vectors.add(part, runs[: len(part)], "model")


def best(units: Singles, query: Singles) -> npt.NDArray[np.int64]:
    """The rows of the nearest vectors."""
    scores = units @ query
    rows: npt.NDArray[np.int64] = np.argpartition(-scores, _K)[:_K]
    return rows


def of_usearch(
    units: Singles, queries: Singles, truth: list[Any], options: argparse.Namespace
) -> dict[str, Any]:
    """The figures of usearch's graph in half precision; nothing where it is not installed."""
    try:
        from usearch.index import Index
    except ImportError:
        return {}
    index = Index(ndim=units.shape[1], metric="ip", dtype="f16")
    began = time.process_time()
    index.add(np.arange(len(units)), units, threads=1)
    build = time.process_time() - began
    rows = [index.search(query, _K, threads=1).keys for query in queries]
    recalls = [
        (units[keys.astype(np.int64)] @ query >= least - 1e-3).sum() / _K
        for keys, query, least in zip(rows, queries, truth, strict=True)
    ]
    spent = least_ms(lambda: [index.search(query, _K, threads=1) for query in queries], options)
    return {"usearch_ms": spent, "usearch_recall": float(np.mean(recalls)), "usearch_s": build}


def least_ms(work: Callable[[], object], options: argparse.Namespace) -> float:
    """CPU milliseconds of a query in the best of some runs."""
    times = []
    for _ in range(options.runs):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return float(min(times) / options.queries * 1e3)


def clustered(count: int, dimension: int = 512) -> Singles:
    """Random vectors around 200 random middles."""
    random = np.random.default_rng(0)
    middles = random.normal(size=(200, dimension))
    rows = middles[random.integers(0, 200, count)]
    return (rows + random.normal(size=rows.shape) * 0.7).astype(np.float32)


def descriptors() -> Iterator[Singles]:
    """Descriptors of random squares of every tenth frame of all footage, without an end."""
    random = np.random.default_rng(0)
    frames = [frame for path in clips() for frame in every_tenth(path)]
    while True:
        frame = frames[random.integers(len(frames))]
        height, width = frame.shape[:2]
        side = int(random.integers(32, min(height, width) * 0.9))
        y, x = random.integers(0, height - side), random.integers(0, width - side)
        yield described(frame[y : y + side, x : x + side])


def clips() -> list[Path]:
    folder = footage()
    inner = folder / "real"
    return sorted(path for path in (inner if inner.is_dir() else folder).glob("*.mp4"))


def every_tenth(path: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Every tenth frame, at most 480 pixels large."""
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        video = store.ingest(path, "a.mp4", link=True)
        scale = min(1.0, 480 / max(video.width, video.height))
        size = max(2, round(video.width * scale)), max(2, round(video.height * scale))
        for at in range(0, len(video), 10):
            yield video.read(frames=[at], size=size)[0].data


def described(picture: npt.NDArray[np.uint8]) -> Singles:
    """Gradients in 8 x 8 cells of 9 directions, and 32 levels of each colour."""
    small = np.asarray(cv2.resize(picture, (32, 32), interpolation=cv2.INTER_AREA))
    gray = small.astype(np.float32).mean(axis=2)
    down, right = np.gradient(gray)
    turns = (np.arctan2(down, right) / (2 * np.pi) * 9).astype(np.int64) % 9
    cell = np.arange(32) // 4
    places = ((cell[:, None] * 8 + cell[None, :]) * 9 + turns).ravel()
    edges = np.bincount(places, np.hypot(down, right).ravel(), minlength=576)
    edges = np.minimum(edges / (np.linalg.norm(edges) + 1e-6), 0.2)
    levels = [
        np.bincount(small[..., at].ravel().astype(np.int64) // 8, minlength=32) for at in range(3)
    ]
    colours = 2 * np.sqrt(np.concatenate(levels) / small[..., 0].size)
    return np.concatenate([edges / (np.linalg.norm(edges) + 1e-6), colours]).astype(np.float32)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    peer = (
        (f"{row['usearch_ms']:.2f}", f"{row['usearch_recall']:.3f}", f"{row['usearch_s']:.0f}")
        if "usearch_ms" in row
        else ("-", "-", "-")
    )
    size = f"{row['vectors']} x {row['dimension']}"
    times = f"{row['store_ms']:.1f}", f"{row['brute_ms']:.1f}", f"{row['ratio']:.1f}"
    return (row["set"], size, *times, f"{row['recall']:.4f}", f"{row['least']:.2f}", *peer)


if __name__ == "__main__":
    if not _ONE_THREAD.items() <= os.environ.items():  # NumPy reads them when it is loaded
        command = [sys.executable, "-m", "benchmarks.vectors", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **_ONE_THREAD})
    main()
