"""Log formats, which have one line for each event."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vfsd.mount.fs.unlinked_files import RecoveryReport
from vfsd.mount.fuse.mount_options import LOG_LEVELS, parse_options
from vfsd.mount.mount_log import LEVELS, OneLineFormatter, RepeatFilter


@pytest.fixture(scope="session", autouse=True)
def fuse() -> None:
    """Nothing is mounted here."""


def record(message: str, *, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("vfsd.x", logging.ERROR, "x.py", 1, message, (), info)


def raised() -> BaseException:
    """An exception with a function of vfsd in its traceback."""
    try:
        parse_options(["nonsense"])
    except Exception as error:
        return error
    raise AssertionError


def test_line_breaks_escaped() -> None:
    line = OneLineFormatter(traces=False, journal=False).format(record("open 'a\nERROR b\r'"))
    assert line.endswith("ERROR open 'a\\nERROR b\\r'")
    assert len(line.splitlines()) == 1


def test_exception_on_one_line() -> None:
    error = raised()
    line = OneLineFormatter(traces=False, journal=False).format(record("it failed", error=error))
    assert len(line.splitlines()) == 1
    assert f"it failed: vfsd.errors.{type(error).__name__}: unknown mount option" in line
    assert " at mount_options.py:" in line
    traced = OneLineFormatter(traces=True, journal=False).format(record("it failed", error=error))
    assert "Traceback" in traced
    assert "it failed\n" in traced


def test_repeats_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("vfsd.mount.mount_log.time.monotonic", lambda: now)
    sparing = RepeatFilter()
    damage = "bytes 0 to 9 are damaged"
    assert [sparing.filter(record(damage)) for _ in range(4)] == [True, False, False, False]
    assert sparing.filter(record("bytes 10 to 19 are damaged"))
    failures = [record("it failed", error=ValueError(text)) for text in "aab"]
    assert [sparing.filter(failure) for failure in failures] == [True, False, True]
    now += 61
    again = record(damage)
    assert sparing.filter(again)
    assert again.getMessage() == f"{damage} (and 3 more times since the last line)"
    now += 61
    again = record(damage)
    assert sparing.filter(again)
    assert again.getMessage() == damage


def test_events_not_suppressed() -> None:
    sparing, event = (
        RepeatFilter(),
        logging.LogRecord("vfsd.x", logging.INFO, "x.py", 1, "x", (), None),
    )
    assert [sparing.filter(event) for _ in range(2)] == [True, True]


def test_journal_priority() -> None:
    assert OneLineFormatter(traces=False, journal=True).format(record("x")) == "<3>ERROR x"


def test_recovery_message() -> None:
    assert str(RecoveryReport(0, 2, 0, [7])) == (
        "1 new to be classified, 2 removed that nothing referenced"
    )


def test_log_level_option() -> None:
    assert list(LEVELS) == list(LOG_LEVELS)
    assert parse_options(["log=/a b,log_level=debug"]).log == Path("/a b")


@pytest.mark.parametrize("level", list(LEVELS))
def test_log_levels(level: str) -> None:
    program = (
        "import logging, sys\n"
        "from vfsd.mount.mount_log import LEVELS, set_up\n"
        "set_up(sys.argv[1])\n"
        "for name, number in LEVELS.items():\n"
        "    logging.getLogger('vfsd.mount.fs').log(number, 'an event: %s', name)\n"
        "logging.getLogger('of.others').info('nothing of ours')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, level],
        capture_output=True,
        text=True,
        check=True,
        env={key: value for key, value in os.environ.items() if key != "JOURNAL_STREAM"},
    )
    shown = [line.rpartition(": ")[2] for line in done.stderr.splitlines()]
    assert shown == list(LEVELS)[: list(LEVELS).index(level) + 1]
