"""A mount under load: many readers and writers, with chores in the background.

Thirty-two processes read plain files (in order, and 4 KiB at random offsets), raw, encoded and
still views, and regions, through the mount and through the API.  Four processes copy videos in,
rename, rewrite and delete them.  Tiles are made, evicted and compressed at the same time.  All data
that is read is compared: files with their digests, frames with FFmpeg's output.  The program
monitors the mount's process, and checks the store at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, footage, table
from benchmarks.crowd import gathered, reader, writer
from benchmarks.daemonwatch import MIB, Sample, Watch, memory_figures
from benchmarks.loadchores import Chores
from benchmarks.loadtruth import Truth, save, truth_of
from benchmarks.mounting import vfsd_mount
from vfsd.api.store import Store
from vfsd.core.process_control import available_cores
from vfsd.disk.store_config import StoreSettings
from vfsd.views.rendering import DECODERS_PER_CORE, encoder_threads

READERS = {
    "sequential": 8,
    "random": 8,
    "raw": 3,
    "region": 3,
    "tiled": 3,
    "encoded": 3,
    "stills": 2,
    "api": 2,
}
WRITERS = 4
CLIPS = (
    "carpov_highway_960x540.mp4",
    "detrac_crossing_960x540.mp4",
    "intel_cars_topdown_768x432.mp4",
    "suburb_road_a_640x352.mp4",
    "sam2_dog_720p.mp4",
    "futsal_1080p.mp4",
)
SAMPLES = ("traffic.mp4", "fragmented.mp4", "late-start.mp4")
BESIDE_DECODERS = 64 + 48 + 96 + 100 + 100
"""MiB: rendered slots, prepared views, decoders of tiles, and the process that makes views at rest.

See "Memory of a mount" in docs/reference/config.md.
"""
A_SEGMENT, A_PICTURE, A_REQUEST = 192, 64, 1
"""MiB that each thread may hold which encodes, makes a picture, or answers the kernel."""
FREE = 64 + 64
"""MiB that were freed and are not given back yet: so much more than there was last time, and what
is freed in the seconds between two looks."""
MOST_KEPT = 32 + 16 + 64 + 72 + 48
"""Descriptors of decoders, of views, of packs of tiles, which stay open, of memory with rendered
slots, and of the process that makes views."""
THREADS_KEPT = 16 + (32 + 16) * 2
"""Threads that stay: for the next requests, and two for each decoder that does."""
GROWTH = 20.0
"""Maximum growth of memory from the second third to the last, in MiB a minute."""
_LONG_SECONDS = 300.0
"""Caches fill for minutes: shorter runs say nothing of growth."""
_SETTLE_SECONDS = 20.0
_VIEW_CACHE = 64 << 20


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of load")
    parser.add_argument("--idle", type=float, default=15, help="seconds of reading alone before")
    parser.add_argument("--share", type=float, default=1.0, help="of the readers and writers")
    parser.add_argument("--decoder-memory", type=int, default=256, help="MiB, of the store")
    parser.add_argument("--option", action="append", default=[], help="of the mount (-o)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        truths = prepared(work, options.decoder_memory << 20)
        with vfsd_mount(work / "store", work / "mnt", *options.option) as place:
            figures = under_load(work, place, truths, options)
        figures["fsck"] = checked(work / "store")
    finish(options, "load", figures, passed=report(figures))


def prepared(work: Path, decoder_memory: int) -> list[Truth]:
    """A store with the clips, and their expected data."""
    folder = footage() / "real"
    clips = [folder / name for name in CLIPS] if folder.is_dir() else []
    clips = [clip for clip in clips if clip.exists()]
    if not clips:
        clips = [footage() / name for name in SAMPLES]
    truths = []
    with Store.create(work / "store") as store:
        settings = StoreSettings(view_cache_bytes=_VIEW_CACHE, decoder_memory=decoder_memory)
        settings.save(store.parts.directory.settings)
        for clip in clips:
            truth = truth_of(clip, clip.name, work)
            if truth is not None:
                store.ingest(clip, clip.name)
                truths.append(truth)
    save(truths, work / "truths.json")
    return truths


def under_load(work: Path, place: Path, truths: list[Truth], options: Any) -> dict[str, Any]:
    pid = int(json.loads(os.getxattr(place, "user.vfsd.stats"))["pid"])

    with Watch(pid) as before:
        say(f"idle: {options.idle:.0f} s")
        until = time.monotonic() + options.idle
        idle = gathered(
            [reader(work, "mnt", kind, until, 900) for kind in ("sequential", "random")]
        )
        start = before.look()
    say(f"load: {options.seconds:.0f} s")
    until = time.monotonic() + options.seconds
    kinds = [kind for kind, of in READERS.items() for _ in range(count(of, options.share))]
    crowd = [reader(work, "mnt", kind, until, seed) for seed, kind in enumerate(kinds)]
    crowd += [writer(work, until, seed) for seed in range(count(WRITERS, options.share))]
    began = time.monotonic()
    with Watch(pid) as watch, Chores(work / "store", [one.name for one in truths]) as chores:
        seen = gathered(crowd, lambda: progress(watch, until))
        took = time.monotonic() - began
        during = list(watch.samples)
    with Watch(pid) as after:
        end = after.settled(start.descriptors + MOST_KEPT, _SETTLE_SECONDS)
    return {
        "seconds": took,
        "processes": len(crowd),
        "idle": {one["kind"]: latencies([one]) for one in idle},
        "by kind": by_kind(seen, took),
        "errors": [text for one in seen for text in one["errors"]],
        "wrong": [text for one in [*idle, *seen] for text in one["wrong"]],
        "chores": chores.done,
        "failed chores": chores.failed,
        "memory": memory_figures(during),
        "allowed": allowed(start, during, options.decoder_memory),
        "daemon": daemon_figures(start, during, end),
    }


def count(of: int, share: float) -> int:
    return max(1, round(of * share))


def progress(watch: Watch, until: float) -> None:
    if not watch.samples:  # on a crowded machine the watching thread may start late
        return
    last = watch.samples[-1]
    left = max(0.0, until - time.monotonic())
    say(f"{left:4.0f} s left; {last.memory / MIB:.0f} MiB, {last.threads} threads")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def by_kind(seen: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    found = {}
    for kind in Counter(one["kind"] for one in seen):
        mine = [one for one in seen if one["kind"] == kind]
        found[kind] = {
            "processes": len(mine),
            "operations": sum(one["operations"] for one in mine),
            "MiB/s": sum(one["bytes"] for one in mine) / MIB / seconds,
            **latencies(mine),
        }
    return found


def latencies(seen: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds per read(2), or per call for the API."""
    took = np.concatenate([np.array(one["seconds"]) for one in seen])
    if not len(took):
        return {}
    low, high = np.percentile(took, (50, 99))
    return {"p50 ms": float(low) * 1e3, "p99 ms": float(high) * 1e3}


def daemon_figures(start: Sample, during: list[Sample], end: Sample) -> dict[str, Any]:
    passed = during[-1].at - during[0].at if len(during) > 1 else 1.0
    return {
        "descriptors": [start.descriptors, max(one.descriptors for one in during), end.descriptors],
        "threads": [start.threads, max(one.threads for one in during), end.threads],
        "cores": (during[-1].cpu - during[0].cpu) / max(passed, 1e-3),
    }


def allowed(start: Sample, during: list[Sample], decoder_memory: int) -> float:
    """MiB that the daemon may use, given its size before anything was rendered."""
    threads = max(one.threads for one in during)
    making = encoder_threads() * A_SEGMENT + DECODERS_PER_CORE * available_cores() * A_PICTURE
    held = decoder_memory + BESIDE_DECODERS + making + threads * A_REQUEST
    return start.memory / MIB + held + FREE


def checked(store: Path) -> dict[str, Any]:
    """Findings of a deep check of the idle store."""
    command = [sys.executable, "-m", "vfsd", "-s", str(store), "--json", "fsck", "--deep"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"code": done.returncode, "findings": done.stdout.splitlines()[:20]}


def report(figures: dict[str, Any]) -> bool:
    rows = []
    for kind, row in figures["by kind"].items():
        idle = figures["idle"].get(kind, {})
        columns = ("operations", "MiB/s", "p50 ms", "p99 ms")
        alone = [idle.get(column, "") for column in ("p50 ms", "p99 ms")]
        rows.append((row["processes"], kind, *(row.get(column, "") for column in columns), *alone))
    print(
        table(("", "who", "operations", "MiB/s", "p50 ms", "p99 ms", "idle p50", "idle p99"), rows)
    )
    memory, daemon = figures["memory"], figures["daemon"]
    print(
        f"\nmemory, MiB: {memory['first third']:.0f} in the first third, "
        f"{memory['last third']:.0f} in the last, {memory['most']:.0f} at most, "
        f"{memory['MiB a minute']:+.2f} a minute in the last two; "
        f"{figures['allowed']:.0f} are allowed\n"
        f"descriptors {daemon['descriptors']}, threads {daemon['threads']} (start, most, end), "
        f"{daemon['cores']:.2f} cores\nchores: {figures['chores']}"
    )
    for key in ("errors", "wrong", "failed chores"):
        for text in figures[key][:10]:
            print(f"{key}: {text}")
    return (
        not (figures["errors"] or figures["wrong"] or figures["failed chores"])
        and figures["fsck"]["code"] == 0
        and daemon["descriptors"][2] <= daemon["descriptors"][0] + MOST_KEPT
        and daemon["threads"][2] <= daemon["threads"][0] + THREADS_KEPT
        and memory["most"] <= figures["allowed"]
        and (figures["seconds"] < _LONG_SECONDS or memory["MiB a minute"] <= GROWTH)
    )


if __name__ == "__main__":
    main()
