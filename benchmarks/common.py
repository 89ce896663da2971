"""Helpers for all benchmarks: video locations, interleaved timing, tables, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np

import vfsd

ROOT = Path(__file__).resolve().parent.parent

Result = TypeVar("Result")


def footage() -> Path:
    """The folder of real footage; the sample videos if there is none."""
    for place in (os.environ.get("VFSD_FOOTAGE"), ROOT.parent / "shared" / "videos"):
        if place and Path(place).is_dir():
            return Path(place)
    return ROOT / "sample_videos"


def arguments(description: str | None, **options: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--runs", type=int, default=options.get("runs", 5), help="runs of each")
    return parser


def existing_file(told: str) -> Path:
    """The `type` of an option that names an existing file."""
    path = Path(told)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"file not found: {told}")
    return path


@dataclass(frozen=True)
class Timing:
    """Seconds of each run of one contestant."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = np.percentile(self.seconds, [25, 50, 75])
        return float(low), float(high)


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    runs: int,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, Timing]:
    """Time each contestant `runs` times, in rounds with changing order, after one warm-up round.

    `before` is called with the name of the next contestant; its time is not counted.
    """
    names = list(contestants)
    times: dict[str, list[float]] = {name: [] for name in names}
    rng = np.random.default_rng(0)
    for number in range(runs + 1):
        for at in rng.permutation(len(names)):
            before(names[at])
            start = time.perf_counter()
            contestants[names[at]]()
            if number:
                times[names[at]].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in times.items()}


@dataclass(frozen=True)
class Usage:
    """The resources that one piece of work used, in seconds."""

    wall: float
    cpu: float  #: of this process and of children that have ended


def used(work: Callable[[], Result]) -> tuple[Result, Usage]:
    """The result of `work`, and the resources that it used."""
    wall, cpu = time.perf_counter(), _cpu_seconds()
    result = work()
    return result, Usage(time.perf_counter() - wall, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def repeated(path: Path, times: int, folder: Path) -> Path:
    """Copy the packets of a file that many times into a new file in `folder`."""
    target = folder / path.name
    subprocess.run(
        [
            *("ffmpeg", "-v", "error", "-stream_loop", str(times - 1), "-i", path),
            *("-map", "0:v:0", "-c", "copy", target),
        ],
        check=True,
    )
    return target


def drop(path: Path) -> None:
    """Drop the cached pages of one file (on a mount: those of the mount, not of the object
    below)."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def paired_ratio(one: Timing, other: Timing) -> float:
    """Median over the rounds of one / other, which cancels out drift of the machine."""
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=True))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def machine() -> dict[str, object]:
    return {
        "vfsd": vfsd.__version__,
        "python": platform.python_version(),
        "pyav": av.__version__,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def folder_option(parser: argparse.ArgumentParser) -> None:
    """``--folder``, for programs that make a temporary folder."""
    parser.add_argument(
        "--folder", type=directory, help="where to work (default: a temporary folder)"
    )


def directory(text: str) -> Path:
    """The `type` of an option that names an existing directory."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"directory not found: {text}")
    return path


def finish(
    options: argparse.Namespace,
    name: str,
    figures: object,
    *,
    passed: bool,
    left_out: Sequence[str] = (),
) -> None:
    """Write the JSON report if requested, and exit: 0 if every bound was met, 1 otherwise.

    `left_out` names parts that could not run here and were not requested by name.  No bound was
    missed then, but the report does not claim that all bounds were met.
    """
    if options.json:
        report = {"benchmark": name, "machine": machine(), "passed": passed, "figures": figures}
        if left_out:
            report["left_out"] = list(left_out)
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{_conclusion(passed, left_out)}", file=sys.stderr)
    sys.exit(0 if passed else 1)


def _conclusion(passed: bool, left_out: Sequence[str]) -> str:
    if not passed:
        return "A BOUND WAS MISSED"
    if left_out:
        return f"bounds met in what was run; not run: {', '.join(left_out)}"
    return "all bounds met"
