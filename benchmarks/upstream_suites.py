"""Runs the test suites of decord and torchcodec against the readers of `vfsd.compat`.

The suites are read from clones in the folder $VFSD_PEERS: `decord`, and `torchcodec` at the tag of
the installed release.  Each is put into a mounted store, its videos as videos, and runs unchanged
by ``python -m vfsd.compat -m pytest``.  Prints passed, failed and skipped tests, the reasons, and
how many readers vfsd and the library itself served.  Needs both libraries, pytest and /dev/fuse.

pytest loads this module as a plugin, too, to count the readers.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, directory, finish, folder_option, table
from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import VfsdError
from vfsd.mount import control

VARIABLE = "VFSD_PEERS"
_TIMEOUT = 1800
_VIDEOS = frozenset({".mp4", ".mkv", ".mov", ".avi", ".webm", ".ts"})
_NOT_THE_READER = {
    "TypeError: iteration over a 0-d tensor": "pytest.approx of pytest 9 takes no 0-d tensor"
}
"""Messages of failures for a reason outside the reader; they count as skipped."""
_COUNTS = "readers opened by vfsd"


@dataclass(frozen=True)
class Suite:
    """Parts of a clone, and what pytest runs of them."""

    parts: tuple[str, ...]
    tests: tuple[str, ...]
    least: int  #: passed tests


SUITES = {
    "decord": Suite(
        ("examples", "tests/python/unittests", "tests/test_data"),
        ("tests/python/unittests/test_video_reader.py",),
        9,
    ),
    "torchcodec": Suite(
        ("test",), ("test/test_decoders.py::TestVideoDecoder", "test/test_samplers.py"), 180
    ),
}


@dataclass
class Result:
    """The outcome of a suite."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  #: number of tests by reason
    by_vfsd: int = 0
    by_library: int = 0
    commit: str = ""
    said: str = ""


def main() -> None:
    parser = arguments(__doc__)
    folder_option(parser)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="default: all")
    parser.add_argument(
        "--peers",
        type=directory,
        default=os.environ.get(VARIABLE),
        help=f"the folder of clones; default: ${VARIABLE}",
    )
    options = parser.parse_args()
    if options.peers is None:
        parser.error(f"set {VARIABLE} to a folder with clones of {' and '.join(SUITES)}")
    results = {}
    for name in options.suites or SUITES:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix=f"{name}-") as work:
            results[name] = _run(SUITES[name], Path(options.peers) / name, Path(work))
    print(_page(results))
    passed = all(
        not result.failed and result.passed >= SUITES[name].least and result.by_vfsd
        for name, result in results.items()
    )
    figures = {name: asdict(result) for name, result in results.items()}
    finish(options, "upstream_suites", figures, passed=passed)


def _run(suite: Suite, clone: Path, work: Path) -> Result:
    """Run a suite in a mounted store."""
    store_path, place, report = work / "store", work / "mounted", work / "report.xml"
    place.mkdir()
    plain = []
    with Store.create(store_path) as store:
        StoreSettings(verify=False, tune=False, compress=False).save(store.parts.directory.settings)
        for path in _files(clone, suite.parts):
            name = path.relative_to(clone)
            try:
                if path.suffix not in _VIDEOS:
                    raise VfsdError("not a video")
                store.ingest(path, str(name))
            except VfsdError:  # some are damaged on purpose
                plain.append(name)
    _stub_nose(work / "stubs")
    control.mount(store_path, place, (), log_file=work / "log")
    try:
        for name in plain:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(clone / name, place / name)
        command = [sys.executable, "-m", "vfsd.compat", "-m", "pytest", "-q", "-n", "0"]
        command += ["-p", "no:cacheprovider", "-p", "benchmarks.upstream_suites", "-rs"]
        command += ["--rootdir", str(place), f"--junitxml={report}", *suite.tests]
        paths = (FOLDER.parent, work / "stubs")
        done = subprocess.run(
            command,
            cwd=place,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    finally:
        control.unmount(place)
    result = _outcome(report) if report.exists() else Result(failed={"pytest": done.stderr[-2000:]})
    result.said = done.stdout[-20000:]
    result.commit = _commit(clone)
    counts = re.search(rf"{_COUNTS}: (\d+), by the library: (\d+)", done.stdout)
    if counts:
        result.by_vfsd, result.by_library = int(counts[1]), int(counts[2])
    return result


def _files(clone: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    for part in parts:
        if not (clone / part).is_dir():
            sys.exit(f"{clone} is not a clone: it has no {part}")
        for path in sorted((clone / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _stub_nose(folder: Path) -> None:
    """Provide the one function of nose that decord's tests need; nose has no current release."""
    package = folder / "nose"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tools.py").write_text(
        "import unittest\nassert_raises = unittest.TestCase().assertRaises\n"
    )


def _outcome(report: Path) -> Result:
    result = Result()
    for case in ET.parse(report).iter("testcase"):
        bad = next((part for part in case if part.tag in ("failure", "error")), None)
        skipped = case.find("skipped")
        message = "" if bad is None else bad.get("message", "")
        reason = _NOT_THE_READER.get(message)
        if skipped is not None:
            reason = skipped.get("message", "")
        if reason is not None:
            result.skipped[reason] = result.skipped.get(reason, 0) + 1
        elif bad is not None:
            result.failed[case.get("name", "")] = message[:200]
        else:
            result.passed += 1
    return result


def _commit(clone: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(clone), "describe", "--tags", "--always"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _page(results: dict[str, Result]) -> str:
    rows = [
        [
            f"{name} {result.commit}",
            result.passed,
            len(result.failed),
            sum(result.skipped.values()),
            result.by_vfsd,
            result.by_library,
        ]
        for name, result in results.items()
    ]
    lines = [
        table(["suite", "passed", "failed", "skipped", "readers: vfsd", "library"], rows),
    ]
    for name, result in results.items():
        lines += ["", f"{name}, skipped:", ""]
        lines += [f"- {count} x {reason}" for reason, count in result.skipped.items()]
        if result.failed:
            lines += ["", f"{name}, failed:", ""]
            lines += [f"- {test}: {reason}" for test, reason in result.failed.items()]
    return "\n".join(lines)


# -- the plugin of pytest

_opened: Counter[bool] = Counter()


def pytest_configure() -> None:
    """Count the readers that are opened, by whether vfsd serves them."""
    try:
        from vfsd.compat.torchcodec import VideoDecoder
    except ImportError:
        pass
    else:
        VideoDecoder.__init__ = _counted_decoder(VideoDecoder.__init__)  # type: ignore[method-assign]
    try:
        import decord

        from vfsd.compat.decord import VideoReader
    except ImportError:
        return
    peer = decord.video_reader.VideoReader
    VideoReader.__new__ = _counted_reader(VideoReader.__new__, VideoReader)  # type: ignore[method-assign]
    assert peer is VideoReader, "the patch of vfsd.compat is missing"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts."""
    terminalreporter.write_line(f"{_COUNTS}: {_opened[True]}, by the library: {_opened[False]}")


def _counted_decoder(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _opened[self._reader is not None] += 1

    return counted


def _counted_reader(new: Callable[..., Any], kind: type) -> Callable[..., Any]:
    @functools.wraps(new)
    def counted(*args: Any, **kwargs: Any) -> Any:
        found = new(*args, **kwargs)
        _opened[isinstance(found, kind)] += 1
        return found

    return counted


if __name__ == "__main__":
    main()
