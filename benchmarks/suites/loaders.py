"""The tests of LeRobot and of Hugging Face datasets, with all files they make in the mount."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.suites.outcome import NotHereError, Outcome, Place

_TIMEOUT = 7200
_PASSED, _SKIPPED, _FAILED = "passed", "skipped", "failed"


def lerobot(place: Place) -> Outcome:
    """Data sets are written, read, split, merged and streamed; needs ``--lerobot DIR``."""
    return _compared(place, place.given.lerobot, "lerobot", "tests/datasets")


def datasets(place: Place) -> Outcome:
    """Videos in data sets, folders of videos, and Parquet; needs ``--datasets DIR``."""
    return _compared(
        place,
        place.given.datasets,
        "datasets",
        "tests/features/test_video.py",
        "tests/packaged_modules/test_videofolder.py",
        "tests/io/test_parquet.py",
    )


def _compared(place: Place, checkout: Path | None, module: str, *tests: str) -> Outcome:
    """Run `tests` with temporary files on the local disk, then in the mount.

    A test that fails in both places needs what this machine lacks, such as a network.
    """
    if checkout is None or not all((checkout / test).exists() for test in tests):
        raise NotHereError(f"--{module} DIR: a checkout with the tests of the installed release")
    python = place.given.python
    found = subprocess.run(
        [python, "-c", f"import {module}, pytest; print({module}.__version__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise NotHereError(f"--python PATH: an interpreter that has {module} and pytest")
    place.given.say("on the local disk")
    plain = _results(place, checkout, place.work / "files", tests)
    place.given.say("in the mount")
    mounted = _results(place, checkout, place.at / "files", tests)
    worse = [
        f"{name}: {plain[name]} on the local disk, {mounted.get(name, 'not run')} in the mount"
        for name in plain
        if plain[name] != mounted.get(name) and plain[name] != _FAILED
    ]
    return Outcome(
        "tests",
        sum(result == _PASSED for result in mounted.values()),
        tuple(worse),
        tuple(
            f"{name}: fails on the local disk, too"
            for name, result in plain.items()
            if result == _FAILED and mounted.get(name) == _FAILED
        ),
        found.stdout.strip().splitlines()[-1],
        f"{sum(result == _SKIPPED for result in mounted.values())} skipped by the suite",
    )


def _results(place: Place, checkout: Path, files: Path, tests: tuple[str, ...]) -> dict[str, str]:
    """By test: whether it passed."""
    report = place.work / "report.xml"
    report.unlink(missing_ok=True)
    command = [place.given.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--basetemp={files}", f"--junitxml={report}", *tests]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(place.work / "hub")}
    done = subprocess.run(
        command,
        cwd=checkout,
        env=os.environ | offline,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if not report.exists():
        raise AssertionError(done.stdout[-2000:])
    return {
        f"{case.get('classname')}::{case.get('name')}": _result(case)
        for case in ET.parse(report).iter("testcase")
    }


def _result(case: ET.Element) -> str:
    if any(part.tag in ("failure", "error") for part in case):
        return _FAILED
    return _PASSED if case.find("skipped") is None else _SKIPPED
