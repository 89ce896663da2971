"""Reader and writer processes, for benchmarks with many clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def reader(work: Path, where: str, kind: str, until: float, seed: int) -> subprocess.Popen[str]:
    """Start a process that reads below the folder `where` until the monotonic clock reaches
    `until`."""
    words = [kind, work / where, work / "store", work / "truths.json", until, seed]
    return started("benchmarks.loadreaders", words)


def writer(work: Path, until: float, seed: int) -> subprocess.Popen[str]:
    return started("benchmarks.loadwriters", [work / "mnt", work / "truths.json", until, seed])


def started(module: str, words: list[Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def gathered(
    crowd: list[subprocess.Popen[str]], meanwhile: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """The final reports of all processes.  They print nothing until they end."""
    found = []
    for process in crowd:
        while True:
            try:
                text = process.communicate(timeout=5)[0]
                break
            except subprocess.TimeoutExpired:
                meanwhile()
        if process.returncode:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        found.append(json.loads(text))
    return found
