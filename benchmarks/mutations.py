"""Thousands of damaged files, copied into a live mount, listed and viewed.

The inputs are the corpus of odd files (``odd`` in the footage) and the sample videos, as far
as they are small.  The file and its damage depend only on the seed and the number.  Failures are: a
daemon that is another process at the end, a call that takes longer than ``--patience``, an
undocumented errno, a file with other bytes than those copied, any finding of `fsck` afterwards, and
more memory than ``--memory``.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import arguments, finish, folder_option, footage, table
from benchmarks.mutating import mutated
from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import VfsdError
from vfsd.maintenance import fsck
from vfsd.mount import control

_EXPECTED = frozenset(
    (errno.EINVAL, errno.EIO, errno.EMEDIUMTYPE, errno.ENOENT, errno.ENODATA, errno.ENOSYS)
)
_ENDINGS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mpg", ".flv", ".h264", ".264", ".jsv")
_VIEWS = (
    "info.json",
    "frames/000000.png",
    "frames/{last:06d}.jpg",
    "frames/{middle:06d}.npy",
    "t=0-1.mp4",
    "t=0-1.mkv",
    "t=0-1,size=64x48.mp4",
    "frames=0-3,size=32x32.rgb",
)
_READ = 1 << 18
_MOST_OF_A_VIEW = 8 << 20


@dataclass
class Outcome:
    files: int = 0
    videos: int = 0
    views: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    slowest_what: str = ""


class Patience:
    """Gives up on a hanging mount: a thread blocked there cannot be interrupted."""

    def __init__(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._seconds = seconds
        self._give_up = give_up

    @contextmanager
    def waiting(self) -> Iterator[None]:
        timer = threading.Timer(self._seconds, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class Campaign:
    """Copies files into one mount, one after the other."""

    def __init__(
        self, store: Path, at: Path, sources: list[Path], *, seed: int, patience: float, views: int
    ) -> None:
        self._store = store
        self._at = at
        self._seeds = [(path.suffix, path.name, path.read_bytes()) for path in sources]
        self._weights = [1 / (2000 + len(data)) for _, _, data in self._seeds]
        self._seed = seed
        self._views = views
        self._patience = Patience(patience, self._kill)
        self.outcome = Outcome()
        self.pid = pid_of(store)

    def put(self, number: int) -> None:
        """Copy a damaged file in, read it and its views, and remove it."""
        outcome = self.outcome
        chosen = random.Random(self._seed * 1_000_003 + number)
        suffix, name, data = chosen.choices(self._seeds, self._weights)[0]
        kind, data = mutated(data, chosen.randrange(1 << 62))
        what = f"{number} ({name}, {kind})"
        path = self._at / f"{number}{suffix}"
        began = time.monotonic()
        try:
            with self._patience.waiting():
                path.write_bytes(data)
                self._look(path, data, what, chosen)
                path.unlink()
        except OSError as error:
            outcome.failures.append(f"{what}: {error}")
        took = time.monotonic() - began
        if took > outcome.slowest:
            outcome.slowest, outcome.slowest_what = took, what
        outcome.files += 1
        if pid_of(self._store) != self.pid:
            outcome.failures.append(f"{what}: the daemon is gone")
            raise ChildProcessError(what)

    def _look(self, path: Path, data: bytes, what: str, chosen: random.Random) -> None:
        if os.getxattr(path, "user.vfsd.state") != b"video":
            self.outcome.refused[_kind_of(os.getxattr(path, "user.vfsd.reason"))] += 1
        else:
            self.outcome.videos += 1
            frames = int(os.getxattr(path, "user.vfsd.frames"))
            for view in chosen.sample(_VIEWS, self._views):
                self._view(path, view.format(last=frames - 1, middle=frames // 2))
        if path.read_bytes() != data:
            self.outcome.failures.append(f"{what}: other bytes than were copied")

    def _view(self, path: Path, view: str) -> None:
        try:
            with open(f"{path}@/{view}", "rb", buffering=0) as file:
                got = 0
                while (part := file.read(_READ)) and got < _MOST_OF_A_VIEW:
                    got += len(part)
            self.outcome.views += 1
        except OSError as error:
            if error.errno not in _EXPECTED:
                raise
            self.outcome.refused[f"view: {errno.errorcode[error.errno or 0]}"] += 1

    def _kill(self) -> None:
        """Kill the mount, which is the only way to end a call that hangs in it."""
        self.outcome.failures.append("a call took too long, and the daemon was killed")
        os.kill(self.pid, signal.SIGKILL)


def _kind_of(reason: bytes) -> str:
    """A reason without its numbers."""
    words = reason.decode("utf-8", "replace").partition(": ")[2].split(":")[0]
    return " ".join(w for w in words.split() if not any(c.isdigit() for c in w))[:60]


def pid_of(store: Path) -> int:
    holder = StoreDirectory.open(store).mounted_by() or {}
    return int(str(holder.get("pid", 0)))


def peak_memory(pid: int) -> int:
    """The peak memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def seeds(most_bytes: int) -> list[Path]:
    odd = footage() / "odd"
    paths = [*odd.iterdir()] if odd.is_dir() else []
    paths += [path for path in FOLDER.iterdir() if path.suffix in _ENDINGS]
    return sorted(path for path in paths if 0 < path.stat().st_size <= most_bytes)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after as many")
    parser.add_argument("--most-bytes", type=int, default=200_000, help="of a file to be damaged")
    parser.add_argument("--views", type=int, default=3, help="to be read of each video, of 8")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for one file")
    parser.add_argument("--memory", type=float, default=2.0, help="GiB that the daemon may take")
    folder_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures, failures = run(Path(folder), options)
    print(table(("figure", "value"), [(k, v) for k, v in figures.items() if k != "refused"]))
    refused = figures["refused"]
    assert isinstance(refused, dict)
    print(table(("refused because", "files or views"), list(refused.items())))
    for failure in failures:
        print(failure)
    finish(options, "mutations", figures | {"failures": failures}, passed=not failures)


def run(folder: Path, options: object) -> tuple[dict[str, object], list[str]]:
    wanted = vars(options)
    store, at = folder / "store", folder / "mnt"
    at.mkdir()
    with Store.create(store) as made:
        StoreSettings(tune=False, compress=False).save(made.parts.directory.settings)
    control.mount(store, at, log_file=folder / "log")
    told = {key: wanted[key] for key in ("seed", "patience", "views")}
    campaign = Campaign(store, at, seeds(wanted["most_bytes"]), **told)
    outcome = campaign.outcome
    began = time.monotonic()
    memory = 0
    try:
        for number in range(wanted["first"], wanted["first"] + wanted["files"]):
            campaign.put(number)
            if time.monotonic() - began > wanted["seconds"]:
                break
            if sys.stderr.isatty() and not number % 20:
                print(f"\r{number} {len(outcome.failures)} failures", end="", file=sys.stderr)
        memory = peak_memory(campaign.pid)
        control.unmount(at)
    except (ChildProcessError, VfsdError) as error:
        outcome.failures.append(str(error))
    finally:
        subprocess.run(["umount", "-l", str(at)], capture_output=True, check=False)
    with Store.open(store) as opened:
        outcome.failures += [f"fsck: {finding.message}" for finding in fsck.run(opened.parts)]
    if memory > wanted["memory"] * 2**30:
        outcome.failures.append(f"the daemon took {memory >> 20} MiB")
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    outcome.failures += [f"log: {line}" for line in log.splitlines() if "Traceback" in line][:10]
    if outcome.failures:
        (Path(tempfile.gettempdir()) / f"mutations-{os.getpid()}.log").write_text(log)
    return {
        "files": outcome.files,
        "of them videos": outcome.videos,
        "views read": outcome.views,
        "failures": len(outcome.failures),
        "seconds": round(time.monotonic() - began, 1),
        "slowest file, seconds": round(outcome.slowest, 1),
        "slowest file": outcome.slowest_what,
        "peak memory of the daemon, MiB": memory >> 20,
        "refused": dict(outcome.refused.most_common()),
    }, outcome.failures


if __name__ == "__main__":
    main()
