"""Runs third-party filesystem test suites, each on a fresh mount of a fresh store.

Pass the names of the suites to run; the default is all.  After each suite the store must pass
`vfsd fsck`, and the log of the mount must hold no error.  A suite that is not installed is a
failure if it was named; otherwise it is skipped and reported.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, folder_option, table
from benchmarks.suites import conformance, databases, loaders, programs, shares, trees
from benchmarks.suites.outcome import MOUNT_OPTIONS, Given, NotHereError, Outcome, Place
from vfsd.api.store import Store
from vfsd.errors import VfsdError
from vfsd.mount import control

SUITES: dict[str, Callable[[Place], Outcome]] = {
    "pjdfstest": conformance.pjdfstest,
    "fsx": conformance.fsx,
    "fsstress": conformance.fsstress,
    "fio": programs.fio,
    "stress-ng": programs.stress,
    "bonnie++": programs.bonnie,
    "dbench": programs.dbench,
    "git": trees.git,
    "tar": trees.tar,
    "rsync": trees.rsync,
    "cp": trees.copies,
    "names": trees.names,
    "sqlite": databases.sqlite,
    "samba": shares.samba,
    "nfs": shares.nfs,
    "lerobot": loaders.lerobot,
    "datasets": loaders.datasets,
}
_COMMAND = [sys.executable, "-m", "vfsd"]
_TROUBLE = ("ERROR", "CRITICAL", "Traceback")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("-o", dest="options", action="append", default=[], help="mount options")
    folder_option(parser)
    parser.add_argument("--pjdfstest", type=Path, metavar="DIR", help="a checkout, built")
    parser.add_argument("--pjdfstest-tests", default="", metavar="PATH", help="only these tests")
    parser.add_argument("--fsx", type=Path, metavar="PATH", help="the program, built from xfstests")
    parser.add_argument("--fsstress", type=Path, metavar="PATH", help="the program, likewise")
    parser.add_argument("--operations", type=int, default=1_000_000, help="of fsx, in all")
    parser.add_argument("--seconds", type=int, default=5, help="of each stressor and client")
    parser.add_argument("--tree", type=Path, metavar="TAR", help="for tar (default: a made tree)")
    parser.add_argument("--files", type=int, default=80_000, help="in a made tree")
    parser.add_argument("--many", type=int, default=100_000, help="names in one directory")
    parser.add_argument("--repository", type=Path, metavar="DIR", help="for git")
    parser.add_argument("--lerobot", type=Path, metavar="DIR", help="a checkout of its release")
    parser.add_argument("--datasets", type=Path, metavar="DIR", help="likewise")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="has lerobot or datasets"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(SUITES)
    if unknown:
        parser.error(f"no suite is called {', '.join(sorted(unknown))}: {', '.join(SUITES)}")
    given = Given(
        pjdfstest=_absolute(options.pjdfstest),
        pjdfstest_tests=options.pjdfstest_tests,
        fsx=_absolute(options.fsx),
        fsstress=_absolute(options.fsstress),
        operations=options.operations,
        seconds=options.seconds,
        tree=_absolute(options.tree),
        files=options.files,
        names=options.many,
        repository=_absolute(options.repository),
        lerobot=_absolute(options.lerobot),
        datasets=_absolute(options.datasets),
        python=options.python,
    )
    figures: dict[str, Any] = {}
    for name in options.names or SUITES:
        told = replace(given, say=partial(_say, name))
        figures[name] = _figures_of(name, told, options)
        _say(name, _verdict(figures[name]))
    headings = ("suite", "version", "passed", "failed", "not applicable", "seconds", "")
    rows = [
        (
            name,
            found.get("version", ""),
            f"{found['passed']} {found['unit']}" if "unit" in found else "",
            len(found.get("failures", ())),
            len(found.get("not_applicable", ())),
            f"{found['seconds']:.0f}" if "seconds" in found else "",
            found.get("missing") or found.get("note", ""),
        )
        for name, found in figures.items()
    ]
    print(table(headings, rows))
    for name, found in figures.items():
        for kind in ("failures", "not_applicable"):
            for text in found.get(kind, ()):
                print(f"{name}: {kind.replace('_', ' ')}: {text}")
    missing = [name for name, found in figures.items() if "missing" in found]
    passed = all(_is_good(found) for found in figures.values() if "missing" not in found)
    if options.names or len(missing) == len(figures):
        passed = passed and not missing
    finish(options, "suites", figures, passed=passed, left_out=missing)


def _figures_of(name: str, given: Given, options: Any) -> dict[str, Any]:
    """Run one suite, and delete all its files."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"suite-{name}-", dir=options.folder))
    try:
        outcome = _in_mount(name, given, options.options, folder)
    except NotHereError as error:
        return {"missing": f"needs {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = asdict(outcome)
    return figures | {"seconds": time.monotonic() - began}


def _in_mount(name: str, given: Given, options: list[str], folder: Path) -> Outcome:
    place = Place(
        folder / "mnt", folder / "store", folder / "work", folder / "log", given, lambda: None
    )
    for path in (place.at, place.work):
        path.mkdir()
    words = [*(MOUNT_OPTIONS if os.geteuid() == 0 else ()), *options]

    def mount() -> None:
        control.mount(place.store, place.at, words, log_file=place.log)

    def remount() -> None:
        control.unmount(place.at)
        mount()

    place.remount = remount
    Store.create(place.store).close()
    mount()
    try:
        outcome = _ended_well(SUITES[name], place)
    finally:
        _unmount(place.at)
    return replace(outcome, failures=(*outcome.failures, *_left_behind(place)))


def _ended_well(suite: Callable[[Place], Outcome], place: Place) -> Outcome:
    """Whether a step of a suite succeeded; after a failure the next suite is run."""
    try:
        return suite(place)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        return Outcome("", 0, (f"{type(error).__name__}: {error}",))


def _left_behind(place: Place) -> list[str]:
    """Errors in the log and findings of fsck after the suite."""
    told = [
        f"log: {line}"
        for line in place.log.read_text(errors="replace").splitlines()
        if any(word in line for word in _TROUBLE)
    ][:10]
    checked = subprocess.run(
        [*_COMMAND, "-s", str(place.store), "fsck"], capture_output=True, text=True, check=False
    )
    if checked.returncode:
        told.append(f"fsck: {(checked.stdout + checked.stderr).strip()[-1000:]}")
    return told


def _unmount(at: Path) -> None:
    try:
        control.unmount(at)
    except (VfsdError, OSError):
        # Do not wait for processes that a suite has left running.
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["umount", "-l", str(at)], check=False)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _is_good(found: dict[str, Any]) -> bool:
    return bool(found["passed"] and not found["failures"])


def _verdict(found: dict[str, Any]) -> str:
    if "missing" in found:
        return str(found["missing"])
    failed = len(found["failures"])
    return f"{found['passed']} {found['unit']} passed, {failed} failures"


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
