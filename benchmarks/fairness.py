"""Latency of plain file reads while views are being rendered.

Phases alternate: no other readers; `--renders` processes that read raw views of full size from
different offsets; the same number of processes that read encoded views of new sizes.  At the same
time, one process reads blocks of 4 KiB at random uncached offsets of a file and compares them.
Then it does the same on the local disk.  Finally the program measures how long a render continues
after its reader was killed.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, footage, repeated, table
from benchmarks.crowd import gathered, reader
from benchmarks.daemonwatch import cpu_of
from benchmarks.loadtruth import save, truth_of
from benchmarks.mounting import vfsd_mount
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings

BOUND = 3.0
"""Ratio of p99 of plain reads with renders to p99 without."""
STOP_SECONDS = 1.0
"""A render whose reader is gone ends within that."""
_QUIET_CORES = 0.2
PHASES = ("idle", "raw", "encoded")


def main() -> None:
    parser = arguments(__doc__, runs=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each phase")
    parser.add_argument("--ahead", type=float, default=1.5, help="seconds that a render goes first")
    parser.add_argument("--renders", type=int, default=4, help="views that are read at a time")
    parser.add_argument("--option", action="append", default=[], help="of the mount (-o)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        prepare(work)
        with vfsd_mount(work / "store", work / "mnt", *options.option) as place:
            phases = measured(work, place, options)
            stops = [stop_seconds(place, number, options.ahead) for number in range(options.runs)]
    figures = {"phases": phases, "stop": statistics.median(stops), "stops": stops}
    finish(options, "fairness", figures, passed=report(figures))


def prepare(work: Path) -> None:
    """Creates a store with one long video for all readers."""
    clip = footage() / "real" / "futsal_1080p.mp4"
    if not clip.exists():
        clip = footage() / "traffic.mp4"
    long = repeated(clip, 8, work).rename(work / "long.mp4")
    with Store.create(work / "store") as store:
        StoreSettings(tune=False, verify=False).save(store.parts.directory.settings)
        store.ingest(long, "long.mp4")
    truth = truth_of(long, "long.mp4", work)
    assert truth is not None
    save([truth], work / "truths.json")
    (work / "native").mkdir()
    (work / "native" / "long.mp4").symlink_to(long)


def measured(work: Path, place: Path, options: Any) -> dict[str, Any]:
    found: dict[str, dict[str, list[Any]]] = {
        phase: {"mount": [], "disk": [], "cores": [], "wrong": []} for phase in PHASES
    }
    pid = daemon_of(place)
    sizes = itertools.count(1)
    for number in range(options.runs):
        for phase in np.random.default_rng(number).permutation(PHASES).tolist():
            renders = []
            if phase != "idle":
                names = views(phase, options.renders, next(sizes))
                renders = [render(place, name) for name in names]
                time.sleep(options.ahead / 3)
            computed, began = cpu_of(pid), time.monotonic()
            seen = [alone(work, "mnt", options.seconds, number)]
            cores = (cpu_of(pid) - computed) / (time.monotonic() - began)
            seen.append(alone(work, "native", options.seconds, number))
            for process in renders:
                process.kill()
            for process in renders:
                process.wait()
            row = found[phase]
            row["cores"].append(cores)
            for where, one in zip(("mount", "disk"), seen, strict=True):
                low, high = np.percentile(one["seconds"], (50, 99))
                row[where].append((float(low) * 1e6, float(high) * 1e6))
                row["wrong"] += one["wrong"] + one["errors"]
            settle(pid)
    return {
        phase: {
            **{
                f"{where} {what}": statistics.median(each[index] for each in row[where])
                for where in ("mount", "disk")
                for index, what in enumerate(("p50", "p99"))
            },
            "of idle": statistics.median(
                busy[1] / idle[1]
                for busy, idle in zip(row["mount"], found["idle"]["mount"], strict=True)
            ),
            "cores": statistics.median(row["cores"]),
            "wrong": row["wrong"],
        }
        for phase, row in found.items()
    }


def alone(work: Path, where: str, seconds: float, seed: int) -> dict[str, Any]:
    """Latencies of a reader of plain files that shares the cores with renders only."""
    return gathered([reader(work, where, "random", time.monotonic() + seconds, seed)])[0]


def daemon_of(place: Path) -> int:
    return int(json.loads(os.getxattr(place, "user.vfsd.stats"))["pid"])


def views(phase: str, count: int, number: int) -> list[str]:
    """Names of long views that were not requested before."""
    if phase == "raw":
        return [f"t={number % 2 + 2 * one}-.rgb" for one in range(count)]
    return [f"size={640 + 2 * number}x{360 + 2 * one}.mp4" for one in range(count)]


def render(place: Path, name: str) -> subprocess.Popen[bytes]:
    """Starts a process that reads a whole view and uses almost no CPU time itself."""
    command = ["dd", f"if={place}/long.mp4@/{name}", "of=/dev/null", "bs=1M", "status=none"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def settle(pid: int) -> float:
    """Seconds until the daemon is idle."""
    began = time.monotonic()
    while True:
        before, at = cpu_of(pid), time.monotonic()
        time.sleep(0.1)
        if (cpu_of(pid) - before) / (time.monotonic() - at) < _QUIET_CORES:
            return at - began
        if at - began > 60:
            return at - began


def stop_seconds(place: Path, number: int, ahead: float) -> float:
    """How long the daemon continues after the reader of a long view was killed."""
    process = render(place, f"size={900 + 2 * number}x506.mp4")
    time.sleep(ahead)
    began = time.monotonic()
    process.send_signal(signal.SIGKILL)
    process.wait()
    settle(daemon_of(place))
    return time.monotonic() - began


def report(figures: dict[str, Any]) -> bool:
    columns = ("mount p50", "mount p99", "of idle", "disk p50", "disk p99", "cores")
    rows = [
        (phase, *(float(row[column]) for column in columns))
        for phase, row in figures["phases"].items()
    ]
    print(table(("beside", *(f"{name}, us" if "p" in name else name for name in columns)), rows))
    print(f"\na killed reader's render goes on for {figures['stop']:.2f} s")
    wrong = [text for row in figures["phases"].values() for text in row["wrong"]]
    for text in wrong[:10]:
        print(text)
    return (
        not wrong
        and figures["stop"] <= STOP_SECONDS
        and all(row["of idle"] <= BOUND for row in figures["phases"].values())
    )


if __name__ == "__main__":
    main()
