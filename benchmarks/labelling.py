"""A step of a labelling loop: choose five windows of a second, and make a preview of each.

The videos are the filmed clips. A preview is what a browser gets: H.264 in MP4, 480 pixels wide,
with sound. Windows are drawn at random, or far from those seen, by the mean colours of windows.
After each step its windows are labelled. Times are CPU seconds of all threads.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table
from benchmarks.vectors import clips
from vfsd.api.sample import Sample
from vfsd.api.store import Store

_WINDOWS, _BOUND = 5, 1.0


def main() -> None:
    options = arguments(__doc__, runs=10).parse_args()
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        for path in clips():
            store.ingest(path, link=True)
        for video in store.values():
            colours = [video[at].data.mean(axis=(0, 1)) for at in range(0, len(video), 25)]
            runs = [(at, min(at + 25, len(video))) for at in range(0, len(video), 25)]
            video.vectors.add(np.array(colours, np.float32) - 128, runs, "colours")
        rows = [{"how": how, **steps(store, how, options.runs)} for how in ("random", "far")]
    headings = ("how", "median", "most", "choosing")
    cells = [(row["how"], *(f"{row[name]:.2f} s" for name in headings[1:])) for row in rows]
    print(table(headings, cells))
    passed = all(row["median"] <= _BOUND for row in rows)
    finish(options, "labelling", rows, passed=passed)


def steps(store: Store, how: str, runs: int) -> dict[str, Any]:
    """CPU seconds of the steps, and of choosing alone."""
    totals, choosing = [], []
    for number in range(runs):
        began = time.process_time()
        found = store.sample(_WINDOWS, seconds=1, how=how, unlabelled=how, seed=number)
        choosing.append(time.process_time() - began)
        for one in found:
            require_preview(preview(store, one))
        totals.append(time.process_time() - began)
        for one in found:
            store[one.video].labels.mark_examined(one.frames, how)
    return {
        "median": statistics.median(totals),
        "most": max(totals),
        "choosing": statistics.median(choosing),
    }


def preview(store: Store, one: Sample) -> bytes:
    """The bytes of a view."""
    with store[one.video].views.open(f"{one.name},size=480x0.mp4") as file:
        return file.read()


def require_preview(data: bytes) -> None:
    assert data[4:8] == b"ftyp"
    assert len(data) > 1000


if __name__ == "__main__":
    main()
