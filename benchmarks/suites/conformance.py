"""pjdfstest, fsx and fsstress: POSIX semantics, and data integrity."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from benchmarks.suites.outcome import NotHereError, Outcome, Place, run

_WAYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("data", ()),
    ("a.mp4", ()),
    ("dropped", ("-f",)),  # the kernel's cache is dropped after each operation
    ("direct", ("-Z", "-R", "-W", "-r", "512", "-w", "512")),
    ("b.mkv", ("-y", "-l", "4194304", "-o", "524288")),
)
"""Names, and options of fsx: what is the default maps, writes, truncates, punches and copies."""
_RARE = 10
"""How much less often to drop pages or sync: these operations take much longer."""
_ROUNDS, _SHORT = 40, 250
"""Short runs on one name: closed after each so that it is classified, and reopened.  Not by -c of
fsx, which would drop the caches of the whole machine each time."""


def pjdfstest(place: Place) -> Outcome:
    """Needs root, a checkout with the program built in it, and perl's prove."""
    checkout = place.given.pjdfstest
    if checkout is None or not (checkout / "pjdfstest").exists():
        raise NotHereError("--pjdfstest DIR: a checkout of pjdfstest in which it was built")
    if shutil.which("prove") is None:
        raise NotHereError("prove, which comes with perl")
    here = place.at / "here"
    here.mkdir()
    tests = checkout / "tests" / place.given.pjdfstest_tests
    done = run("prove", "-r", tests, cwd=here, check=False, timeout=7200)
    counted = re.search(r"^Files=(\d+), Tests=(\d+),", done.stdout, re.MULTILINE)
    if counted is None:
        raise AssertionError(done.stdout[-2000:])
    told = re.findall(r"^(\S+\.t)\s+\(Wstat: (\d+).* Failed: (\d+)\)", done.stdout, re.MULTILINE)
    # A file is also listed if more tests pass in it than expected.
    failures = tuple(f"{name}: {n} failed" for name, status, n in told if (status, n) != ("0", "0"))
    failed = sum(int(number) for _, _, number in told)
    if done.returncode and not failures:
        failures = (done.stdout.strip().splitlines()[-1],)
    skipped = re.findall(r"^(\S+\.t) \.* skipped: (.*)$", done.stdout, re.MULTILINE)
    return Outcome(
        "tests",
        int(counted.group(2)) - failed,
        failures,
        tuple(f"{Path(name).parent.name}/{Path(name).name}: {why}" for name, why in skipped),
        _version_in(checkout / "configure.ac"),
        f"{counted.group(1)} files",
    )


def fsx(place: Place) -> Outcome:
    """Random reads, writes, mappings, truncations and holes, each compared with a copy."""
    program = place.given.fsx
    if program is None or not program.exists():
        raise NotHereError("--fsx PATH: the program, as xfstests builds it")
    weights = [1 / _RARE if {"-f", "-y"} & set(options) else 1.0 for _, options in _WAYS]
    runs = [
        (name, options, int(place.given.operations * weight / sum(weights)) + 1)
        for (name, options), weight in zip(_WAYS, weights, strict=True)
    ]
    rounds = min(_ROUNDS, place.given.operations // _SHORT)
    runs += [("again.mp4", (), _SHORT)] * rounds
    passed, failures = 0, []
    for seed, (name, options, operations) in enumerate(runs, start=1):
        if operations != _SHORT:
            place.given.say(f"{operations} operations on {name}, seed {seed}")
        words = ["-q", "-N", operations, "-S", seed, "-P", place.work, *options, place.at / name]
        done = run(program, *words, check=False)
        if done.returncode == 0 and "A-OK" in done.stdout:
            passed += operations
        else:
            end = " ".join(done.stdout.strip().splitlines()[-3:])
            failures.append(f"{name} {' '.join(options)} seed {seed}: {end}")
    return Outcome("operations", passed, tuple(failures), note=f"{len(runs)} seeds")


def fsstress(place: Place) -> Outcome:
    """All system calls in random order, by several processes; only the exit status counts."""
    program = place.given.fsstress
    if program is None or not program.exists():
        raise NotHereError("--fsstress PATH: the program, as xfstests builds it")
    operations, processes = 400 * place.given.seconds, 3
    for seed in (1, 2):
        words = ("-d", place.at / f"{seed}", "-n", operations, "-p", processes, "-s", seed)
        (place.at / f"{seed}").mkdir()
        run(program, *words)
        shutil.rmtree(place.at / f"{seed}")
    return Outcome("operations", 2 * operations * processes)


def _version_in(configure: Path) -> str:
    found = re.search(r"AC_INIT\(\[?[^,]*,\s*\[?([^],)]*)", configure.read_text())
    return found.group(1) if found else ""
