"""Conditions for tuning in a mount: quiet hours, load, idle time, disk and share of the CPU."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import replace

import pytest

from vfsd.core.process_control import CpuMeter, cpu_seconds
from vfsd.core.timebase import QuietHours
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import UsageError
from vfsd.mount.background_work import ForegroundReads
from vfsd.mount.tune_scheduler import (
    DONE,
    PAUSE,
    RUN,
    CpuAllowance,
    FailureBackoff,
    MountActivity,
    TunerCommands,
    TunerReport,
    TunerStopError,
    TuneRules,
)


@pytest.fixture(scope="session", autouse=True)
def fuse() -> None:
    """Nothing is mounted here."""


QUIET = MountActivity(minute=12 * 60, load=0.0, calm=60.0, free=1 << 40)


# ------------------------------------------------------------------------------------------ hours


def hours(text: str) -> list[int]:
    """The full hours of a day that are within the quiet hours."""
    quiet = QuietHours.parse(text)
    return [hour for hour in range(24) if quiet.includes(hour * 60)]


def test_empty_quiet_hours() -> None:
    assert hours("") == hours("  ") == list(range(24))


def test_quiet_hours() -> None:
    assert hours("9-12") == [9, 10, 11]
    assert hours("22-6") == [0, 1, 2, 3, 4, 5, 22, 23]
    assert hours("22-24") == [22, 23]
    assert hours("0-24") == list(range(24))
    assert hours("12-13, 22-2") == [0, 1, 12, 22, 23]


def test_quiet_hours_with_minutes() -> None:
    quiet = QuietHours.parse("12:30-13:15")
    inside = [minute for minute in range(24 * 60) if quiet.includes(minute)]
    assert (inside[0], inside[-1], len(inside)) == (12 * 60 + 30, 13 * 60 + 14, 45)


@pytest.mark.parametrize("text", ["22", "at night", "24-6", "3-25", "5-5", "1:60-2", "1-2,", "-3"])
def test_invalid_quiet_hours(text: str) -> None:
    with pytest.raises(UsageError, match="hours"):
        QuietHours.parse(text)
    with pytest.raises(UsageError, match="hours"):
        StoreSettings(tune_quiet_hours=text)


# ------------------------------------------------------------------------------------------ rules


def test_obstacles() -> None:
    rules = TuneRules.of(StoreSettings(tune_quiet_hours="10-14", tune_max_load=40))
    assert rules.obstacle(QUIET) is None
    assert rules.obstacle(replace(QUIET, load=0.4)) is None
    for moment, word in (
        (replace(QUIET, load=0.41), "41%"),
        (replace(QUIET, calm=0.0), "reads"),
        (replace(QUIET, calm=rules.calm / 2), "reads"),
        (replace(QUIET, minute=14 * 60), "hours"),
        (replace(QUIET, free=5 << 20), "5.0 MiB"),
    ):
        assert word in (rules.obstacle(moment) or "")


def test_full_load_allowed() -> None:
    rules = TuneRules.of(StoreSettings(tune_max_load=100))
    assert rules.obstacle(replace(QUIET, load=1.0)) is None


# ------------------------------------------------------------------------------------ share of CPU


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0, 2.0])
def test_cpu_share(share: float) -> None:
    """The simulated process uses two cores whenever it is allowed to."""
    chance = random.Random(3)
    allowance = CpuAllowance(share)
    at, used, history = 0.0, 0.0, [(0.0, 0.0)]
    while at < 300:
        tick = chance.uniform(0.1, 0.4)
        may = allowance.is_left(at, used)
        used = 2 * tick if may else 0.0
        at += tick
        history.append((at, history[-1][1] + used))
    for begin, before in history[::17]:
        for end, after in history[::17]:
            if end - begin >= 60:
                assert after - before <= share * (end - begin + 2) + 0.8
    spent = history[-1][1]
    assert spent >= 0.8 * min(share, 2.0) * at


def test_unused_share_expires() -> None:
    allowance = CpuAllowance(0.1)
    assert allowance.is_left(0, 0)
    assert allowance.is_left(3600, 0)
    assert not allowance.is_left(3601, 1)


# ------------------------------------------------------------------------------- failures


def test_failure_backoff() -> None:
    patience = FailureBackoff()
    first = patience.failed(7, 0.0)
    assert patience.resting(first - 1) == [7]
    assert patience.resting(first) == []
    assert patience.failed(7, first) == 2 * first
    patience.failed(3, first)
    assert patience.resting(first + 1) == [3, 7]
    patience.succeeded(7)
    assert patience.resting(first + 1) == [3]
    for _ in range(20):
        last = patience.failed(3, first)
    assert last == FailureBackoff.MOST_SECONDS


# -------------------------------------------------------------------------------- waiting readers


def test_foreground_reads() -> None:
    foreground = ForegroundReads()
    told: list[float] = []
    foreground.on_first = lambda: told.append(foreground.calm)
    assert foreground.calm > 1e6
    with foreground.waiting():
        with foreground.waiting():
            assert foreground.calm == 0
        assert foreground.calm == 0
    assert told == [0]
    before = foreground.calm
    time.sleep(0.01)
    assert 0 < before < foreground.calm
    with pytest.raises(OSError, match="x"), foreground.waiting():
        raise OSError("x")
    assert foreground.calm > 0
    assert len(told) == 2


# ------------------------------------------------------------------------------- load


def compute(seconds: float) -> None:
    """Use that much CPU time in this process."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_load_of_other_processes() -> None:
    before = cpu_seconds(os.getpid())
    use = CpuMeter()
    began = time.monotonic()
    compute(0.5)
    passed = time.monotonic() - began
    spent = cpu_seconds(os.getpid()) - before
    assert spent >= 0.4
    all_of_it = CpuMeter()
    least = 0.4 / passed / len(os.sched_getaffinity(0))
    assert use.share() >= 0.8 * least
    assert all_of_it.share(without=1e6) == 0
    assert cpu_seconds(2**22 + 1) == 0


# ------------------------------------------------------------------------------------------ orders


def test_commands_are_read_between_frames() -> None:
    reading, writing = os.pipe()
    orders = TunerCommands(reading)
    orders.wait_while_paused()
    os.write(writing, PAUSE + RUN)
    orders.wait_while_paused()
    os.write(writing, RUN + PAUSE)
    done = threading.Event()

    def work() -> None:
        orders.wait_while_paused()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not done.wait(0.2)
    os.write(writing, RUN)
    assert done.wait(60)
    thread.join()
    os.close(writing)
    with pytest.raises(TunerStopError):
        orders.wait_while_paused()
    with pytest.raises(TunerStopError):
        orders.wait_for_run()
    os.close(reading)


def test_reports() -> None:
    report = TunerReport(DONE, 'of "a\n\u00fc"', 3, 0.25)
    assert report.line().count(b"\n") == 1
    assert TunerReport.parse(report.line()) == report
