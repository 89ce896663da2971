"""Kills the daemon at random moments while files are copied, renamed and removed; counts losses.

After each kill the store is mounted again, checked and cleaned.  Counted as a loss is: a file with
a completed and synced copy that is not there, byte for byte; a name in a state that its last
operation cannot have left; a video that was never copied in; a finding of `fsck` that it cannot
repair; unreferenced bytes that remain after `gc`.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import arguments, finish, folder_option, footage, table
from vfsd.api.store import Store
from vfsd.core.model import FileState
from vfsd.disk.store_layout import StoreDirectory
from vfsd.maintenance import fsck
from vfsd.mount import control

Digest = str


@dataclass
class Expected:
    """The digests that each name may have after a crash; None for a missing file."""

    names: dict[str, set[Digest | None]] = field(default_factory=dict)

    def settled(self) -> list[str]:
        """Names that must exist."""
        return [name for name, may in self.names.items() if None not in may]


class Worker:
    """Copies, renames and removes files like a user, and records the possible states after a
    kill."""

    def __init__(self, mountpoint: Path, sources: dict[Path, Digest], seed: int) -> None:
        self._top = mountpoint
        self._sources = sources
        self._random = random.Random(seed)
        self._count = 0
        self._seed = seed
        self.operations = 0

    def work(self, expected: Expected) -> None:
        """Run until the mount goes away."""
        while True:
            settled = expected.settled()
            choice = self._random.random()
            try:
                if choice < 0.35 or len(settled) < 3:
                    self._copy(expected)
                elif choice < 0.6:
                    self._copy_aside(expected, settled)
                elif choice < 0.8:
                    self._rename(expected, settled)
                else:
                    self._remove(expected, settled)
            except OSError:
                return
            self.operations += 1

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._seed}-{self._count}.mp4"

    def _write(self, name: str, source: Path) -> None:
        data = source.read_bytes()
        with open(self._top / name, "wb") as file:
            for at in range(0, len(data), 1 << 17):
                file.write(data[at : at + (1 << 17)])
            file.flush()
            os.fsync(file.fileno())

    def _copy(self, expected: Expected) -> None:
        """Copy directly to the final name, which may show any prefix of the file until then."""
        source, digest = self._random.choice(list(self._sources.items()))
        name = self._new_name()
        expected.names[name] = {None, digest, "beginning:" + str(source)}
        self._write(name, source)
        expected.names[name] = {digest}

    def _copy_aside(self, expected: Expected, settled: list[str]) -> None:
        """Copy like rsync: to a temporary name, then rename over the target, which shows either
        file whole."""
        source, digest = self._random.choice(list(self._sources.items()))
        aside, name = "." + self._new_name(), self._random.choice(settled)
        expected.names[aside] = {None, digest, "beginning:" + str(source)}
        self._write(aside, source)
        # The file to be replaced may be open for reading.
        reader = open(self._top / name, "rb") if self._random.random() < 0.5 else None  # noqa: SIM115
        expected.names[aside] = {None, digest}
        before = expected.names[name]
        expected.names[name] = before | {digest}
        try:
            os.rename(self._top / aside, self._top / name)
            expected.names[name] = {digest}
            del expected.names[aside]
        finally:
            if reader is not None:
                reader.close()

    def _rename(self, expected: Expected, settled: list[str]) -> None:
        old, new = self._random.choice(settled), self._new_name()
        held = expected.names[old]
        expected.names[new] = held | {None}
        expected.names[old] = held | {None}
        os.rename(self._top / old, self._top / new)
        expected.names[new] = held
        del expected.names[old]

    def _remove(self, expected: Expected, settled: list[str]) -> None:
        """Remove a name, permanently once the directory is synced; see "Not kept" in
        docs/reference/posix.md."""
        name = self._random.choice(settled)
        expected.names[name] = expected.names[name] | {None}
        os.unlink(self._top / name)
        top = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(top)
        finally:
            os.close(top)
        del expected.names[name]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    folder_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        losses, operations = campaign(Path(folder), options.kills, options.seed)
    figures = {"kills": options.kills, "operations": operations, "losses": len(losses)}
    print(table(("figure", "value"), list(figures.items())))
    for loss in losses:
        print(loss)
    finish(options, "crash", figures | {"what": losses}, passed=not losses)


def campaign(folder: Path, kills: int, seed: int) -> tuple[list[str], int]:
    """Run kills and checks; return (losses, number of operations)."""
    store, mountpoint = folder / "store", folder / "mnt"
    mountpoint.mkdir()
    Store.create(store).close()
    try:
        return kill_and_look(store, mountpoint, kills, seed)
    finally:
        # Detach the mount in any case, so that the folder can be removed.
        subprocess.run(["umount", "-l", str(mountpoint)], capture_output=True, check=False)


def kill_and_look(store: Path, mountpoint: Path, kills: int, seed: int) -> tuple[list[str], int]:
    chance = random.Random(seed)
    sources = {path: digest_of(path) for path in choose_sources()}
    expected = Expected()
    losses: list[str] = []
    operations = 0
    for number in range(kills):
        control.mount(store, mountpoint)
        worker = Worker(mountpoint, sources, seed * 1000 + number)
        killer = threading.Timer(chance.uniform(0.02, 1.2), kill_daemon, [store, mountpoint])
        killer.start()
        worker.work(expected)
        killer.join()
        operations += worker.operations
        losses += recover_and_check(store, mountpoint, expected, sources, number)
        if sys.stderr.isatty():
            print(f"\rkill {number + 1} of {kills}", end="", file=sys.stderr)
    return losses, operations


def choose_sources() -> list[Path]:
    """A few files of different sizes, so that kills hit every step of a copy."""
    clips = sorted(
        (path for path in footage().rglob("*.mp4")), key=lambda path: path.stat().st_size
    )
    good = [path for path in clips if path.parent.name in ("real", "pairs", "sample_videos")]
    return [good[0], good[len(good) // 2], good[-2]]


def kill_daemon(store: Path, mountpoint: Path) -> None:
    """Kill the daemon, and wait until the kernel has noticed."""
    who = StoreDirectory.open(store).mounted_by()
    assert who is not None, "the daemon died by itself"
    os.kill(int(str(who["pid"])), signal.SIGKILL)
    while True:
        try:
            os.statvfs(mountpoint)
        except OSError:
            return


def recover_and_check(
    store: Path, mountpoint: Path, expected: Expected, sources: dict[Path, Digest], number: int
) -> list[str]:
    losses = []
    control.mount(store, mountpoint)
    try:
        losses += compare(mountpoint, expected, sources)
    finally:
        control.unmount(mountpoint)
    with Store.open(store) as opened:
        losses += [
            f"fsck: {found.check}: {found.message}"
            for found in fsck.run(opened.parts, repair=True)
            if not found.repaired
        ]
        fsck.collect(opened.parts)
    losses += garbage(store)
    return [f"kill {number}: {loss}" for loss in losses]


def compare(mountpoint: Path, expected: Expected, sources: dict[Path, Digest]) -> list[str]:
    losses = []
    there = {path.name: path for path in mountpoint.iterdir()}
    for name in sorted(set(there) - set(expected.names)):
        losses.append(f"{name} is there and should not be")
    for name, may in list(expected.names.items()):
        if name not in there:
            if None not in may:
                losses.append(f"{name} is lost")
            del expected.names[name]
            continue
        data = there[name].read_bytes()
        digest = hashlib.blake2b(data).hexdigest()
        is_beginning = any(
            one is not None
            and one.startswith("beginning:")
            and Path(one.partition(":")[2]).read_bytes().startswith(data)
            for one in may
        )
        if digest not in may and not is_beginning:
            losses.append(f"{name} has the wrong bytes ({len(data)})")
        is_video = os.getxattr(there[name], "user.vfsd.state") == b"video"
        if is_video and digest not in sources.values() and not is_beginning:
            losses.append(f"{name} is a video that was never written")
        expected.names[name] = {digest}
    return losses


def garbage(store: Path) -> list[str]:
    """The number of unreferenced bytes in the store."""
    with Store.open(store) as opened:
        parts = opened.parts
        with parts.catalog.reading() as seen:
            wanted = seen.objects.referenced()
            nodes = list(seen.tree.all_nodes())
        own = {n.ino for n in nodes if n.state in (FileState.SPOOLED, FileState.PLAIN)}
        losses = [
            f"object {key} is garbage" for key in parts.objects.all_keys() if key not in wanted
        ]
        losses += [
            f"private file {ino} is garbage"
            for ino, _ in parts.directory.spooled()
            if ino not in own
        ]
        losses += [f"{path} is garbage" for path in parts.directory.objects_tmp.iterdir()]
    return losses


def digest_of(path: Path) -> Digest:
    return hashlib.blake2b(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
