"""Many small files through the mount: a tree unpacked, files written by a shell, the tree removed.

The archive holds the requested number of text files, 25 per folder, with different times, modes
and, for root, owners.  All metadata and bytes must be present afterwards, and nothing after the
removal.  ``--against TREE`` interleaves the same with another checkout of vfsd.  CPU time is that
of the process that serves the mount; wall time is that of the program that uses it.  The disk below
is measured without a mount.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, arguments, finish, folder_option, table

_IN_A_FOLDER = 25
_OURS, _OTHER, _NATIVE = "vfsd", "the other", "native"
_IDLE_SECONDS, _IDLE_CPU = 0.3, 0.02
STEPS = ("tar xf", "echo", "rm -r")


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("--files", type=int, default=1000, help="in the tree")
    parser.add_argument("--echoes", type=int, default=300, help="files that the shell writes")
    folder_option(parser)
    parser.add_argument("--against", type=Path, metavar="TREE", help="a checkout of another vfsd")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        work = Path(name)
        given = Given(work / "tree.tar", options.files, options.echoes)
        given.make()
        contestants: dict[str, Callable[[Path], list[Took]]] = {
            _NATIVE: partial(on_disk, given),
            _OURS: partial(mounted, given, ROOT),
        }
        if options.against is not None:
            contestants[_OTHER] = partial(mounted, given, options.against.absolute())
        runs: dict[str, list[list[Took]]] = {who: [] for who in contestants}
        for number in range(options.runs):
            for who, contestant in contestants.items():
                place = work / f"{number}-{len(runs[who])}-{list(contestants).index(who)}"
                place.mkdir()
                runs[who].append(contestant(place))
                shutil.rmtree(place)
    figures = {who: figures_of(found) for who, found in runs.items()}
    report(figures)
    finish(options, "smallfiles", figures, passed=True)


@dataclass(frozen=True)
class Took:
    """The duration of one step, in seconds."""

    wall: float
    cpu: float  #: of the process that serves


@dataclass(frozen=True)
class Given:
    """The input of each place."""

    archive: Path
    files: int
    echoes: int

    def make(self) -> None:
        rng = random.Random(1)
        with tarfile.open(self.archive, "w") as archive:
            for number in range(self.files):
                folder, place = divmod(number, _IN_A_FOLDER)
                if place == 0:
                    about = tarfile.TarInfo(f"tree/{folder}")
                    about.type, about.mode, about.mtime = tarfile.DIRTYPE, 0o755, 1_500_000_000
                    archive.addfile(about)
                data = f"{number} {rng.random()}\n".encode() * rng.randint(1, 150)
                about = tarfile.TarInfo(f"tree/{folder}/{place}.txt")
                about.size, about.mode = len(data), rng.choice((0o600, 0o640, 0o644))
                about.mtime = 1_600_000_000 + number
                about.uid = about.gid = 1000 + number % 3
                archive.addfile(about, io.BytesIO(data))

    def check(self, folder: Path) -> None:
        """Raises `AssertionError` if anything differs from the archive."""
        with tarfile.open(self.archive) as archive:
            for about in archive:
                path = folder / about.name
                found = path.stat()
                assert (found.st_mode & 0o7777, int(found.st_mtime)) == (about.mode, about.mtime)
                assert os.geteuid() or (found.st_uid, found.st_gid) == (about.uid, about.gid)
                if about.isfile():
                    source = archive.extractfile(about)
                    assert source is not None
                    assert path.read_bytes() == source.read(), path
        for number in range(self.echoes):
            assert (folder / f"echo{number}").read_text() == "hello\n"


def on_disk(given: Given, place: Path) -> list[Took]:
    return steps(given, place, None)


def mounted(given: Given, tree: Path, place: Path) -> list[Took]:
    """A mount by the vfsd of the checkout `tree`."""
    environment = os.environ | {"PYTHONPATH": str(tree)}

    def vfsd(*words: str) -> None:
        command = [sys.executable, "-m", "vfsd", *words]
        subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)

    store, mountpoint = str(place / "store"), place / "mnt"
    mountpoint.mkdir()
    vfsd("init", store)
    with _unmounting(mountpoint, vfsd):
        vfsd("mount", store, str(mountpoint))
        stats: Callable[[], Mapping[str, Any]] = lambda: json.loads(  # noqa: E731
            os.getxattr(mountpoint, "user.vfsd.stats")
        )
        return steps(given, mountpoint, lambda: float(stats()["cpu_seconds"]))


@contextmanager
def _unmounting(mountpoint: Path, vfsd: Callable[..., None]) -> Iterator[None]:
    try:
        yield
    finally:
        vfsd("umount", str(mountpoint))


def steps(given: Given, folder: Path, cpu: Callable[[], float] | None) -> list[Took]:
    """Run all of `STEPS` in a folder, each until its background work is done.

    `cpu` returns the CPU time of the process that serves the folder, if there is one.
    """
    loop = 'for i in $(seq 0 $1); do echo hello > "$0/echo$i"; done'
    took = []
    commands: tuple[list[str | Path], ...] = (
        ["tar", "-xf", given.archive, "-C", folder],
        ["bash", "-c", loop, folder, str(given.echoes - 1)],
        ["rm", "-r", folder / "tree"],
    )
    for command in commands:
        if command[0] == "rm":
            given.check(folder)
        before, began = cpu() if cpu else 0.0, time.perf_counter()
        subprocess.run(command, check=True)
        wall = time.perf_counter() - began
        if cpu:
            settle(cpu)
        took.append(Took(wall, cpu() - before if cpu else 0.0))
    assert not (folder / "tree").exists()
    return took


def settle(cpu: Callable[[], float]) -> None:
    """Wait until the serving process is idle: it classifies new files."""
    before = -1.0
    while (now := cpu()) - before > _IDLE_CPU:
        before = now
        time.sleep(_IDLE_SECONDS)


def figures_of(runs: list[list[Took]]) -> dict[str, Any]:
    return {
        step: {
            "wall": [run[number].wall for run in runs],
            "cpu": [run[number].cpu for run in runs],
        }
        for number, step in enumerate(STEPS)
    }


def report(figures: Mapping[str, Any]) -> None:
    rows = [
        (
            step,
            who,
            statistics.median(found[step]["wall"]),
            statistics.median(found[step]["cpu"]),
        )
        for step in STEPS
        for who, found in figures.items()
    ]
    print(table(("what", "who", "seconds", "CPU of the daemon"), rows))
    if _OTHER in figures:
        for step in STEPS:
            ratios = {
                key: statistics.median(
                    one / max(other, 1e-9)
                    for one, other in zip(
                        figures[_OTHER][step][key], figures[_OURS][step][key], strict=True
                    )
                )
                for key in ("wall", "cpu")
            }
            print(f"{step}: {ratios['wall']:.1f} times as fast, {ratios['cpu']:.1f} in CPU")


if __name__ == "__main__":
    main()
