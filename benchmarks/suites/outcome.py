"""The result of a suite, and its inputs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import footage

MOUNT_OPTIONS = ("allow_other", "dev", "suid", "noforget")
"""As root mounts for everybody: device nodes and set-uid programs count, and NFS may serve it."""


class NotHereError(Exception):
    """The suite cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts are those of the suite itself: tests, operations, files, stressors."""

    unit: str
    passed: int
    failures: tuple[str, ...] = ()
    not_applicable: tuple[str, ...] = ()  #: each with its reason, in the suite's words
    version: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """Options of the command line: programs without a package, and how much to do."""

    pjdfstest: Path | None = None  #: a checkout in which ``pjdfstest`` was built
    pjdfstest_tests: str = ""  #: only these below ``tests/``
    fsx: Path | None = None
    fsstress: Path | None = None
    operations: int = 1_000_000  #: operations of fsx
    seconds: int = 5  #: seconds per stressor, job and client
    tree: Path | None = None  #: an archive for tar; without it, a generated tree
    files: int = 80_000  #: files in a generated tree
    names: int = 100_000  #: names in one directory
    repository: Path | None = None  #: for git; without it, the project's own repository
    lerobot: Path | None = None  #: a checkout of the release that `python` has
    datasets: Path | None = None  #: likewise
    python: str = sys.executable  #: runs the tests of lerobot and datasets
    say: Callable[[str], None] = print


@dataclass(slots=True)
class Place:
    """A mounted store, and a folder on the local disk."""

    at: Path
    store: Path
    work: Path
    log: Path
    given: Given
    remount: Callable[[], None] = field(repr=False)


def run(
    *words: object,
    cwd: Path | None = None,
    timeout: float = 3600.0,
    check: bool = True,
    text_in: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with its output; `stdout` includes its errors."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        input=text_in,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        end = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise AssertionError(f"{Path(str(words[0])).name} ended with {done.returncode}: {end}")
    return done


def videos() -> Sequence[Path]:
    """Real videos, or the samples: small ones first, at most some tens of megabytes."""
    kinds = {".mp4", ".mkv", ".mov", ".avi", ".webm", ".ts"}
    found = sorted(
        (path for path in footage().rglob("*") if path.suffix in kinds and path.is_file()),
        key=lambda path: (path.stat().st_size, path),
    )
    chosen, total = [], 0
    for path in found:
        total += path.stat().st_size
        if total > 40 << 20:
            break
        chosen.append(path)
    return chosen
