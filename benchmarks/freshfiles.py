"""Opening files for the first time: their names and attributes are in no cache."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mounting import passthrough_mount, vfsd_mount
from vfsd.api.store import Store

OURS, EXAMPLE = "vfsd", "passthrough_fh.c"
FRESH = "open + stat + close, first time"


def fresh_figures(work: Path, program: Path | None, count: int, runs: int) -> dict[str, Any]:
    """Microseconds to open, stat and close each of many new files."""
    names = [f"{number % 10}/{number}.txt" for number in range(count)]
    Store.create(work / "many").close()
    with vfsd_mount(work / "many", work / "mnt2") as place:
        for folder in (place, work / "plain"):
            for number in range(10):
                (folder / str(number)).mkdir(parents=True)
            for name in names:
                (folder / name).write_text(name)
    took: dict[str, list[float]] = {OURS: [], "native": []}
    for _ in range(runs):
        with vfsd_mount(work / "many", work / "mnt2") as place:
            took[OURS].append(opening(place, names))
        took["native"].append(opening(work / "plain", names))
        if program is not None:
            with passthrough_mount(program, work / "pt2") as root:
                below = root / str(work / "plain").lstrip("/")
                took.setdefault(EXAMPLE, []).append(opening(below, names))
    return {who: {"us": float(np.median(values))} for who, values in took.items()}


def opening(folder: Path, names: list[str]) -> float:
    """Microseconds per file."""
    paths = [folder / name for name in names]
    start = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fstat(fd)
        os.close(fd)
    return (time.perf_counter() - start) / len(paths) * 1e6
