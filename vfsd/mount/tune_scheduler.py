"""Background tuning of a mount.

`BackgroundTuner` decides when tuning may run by `TuneRules` and `CpuAllowance`, and controls the
worker process through `TunerProcess`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from vfsd.api.store import Store
from vfsd.core.hostinfo import CpuMeter, cpu_seconds
from vfsd.core.subprocess_entry import child_environment, module_command
from vfsd.core.timebase import QuietHours, human_bytes
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import VfsdError
from vfsd.mount.foreground_priority import ForegroundReads
from vfsd.mount.tune_protocol import (
    ALL,
    DONE,
    FAILED,
    MADE,
    MAKING,
    NOTE,
    PAUSE,
    RUN,
    TunerReport,
)
from vfsd.tiling.cost import LOSSLESS

CALM_SECONDS = 1.0
"""No work starts within this time after the last read of a view: readers tend to come back."""
LEAST_FREE = 1 << 30
"""Bytes of free disk space that tuning never uses."""

_BURST_SECONDS = 2.0
"""The allowance of this much time may be used at once."""


@dataclass(frozen=True, slots=True)
class MountActivity:
    """State of a mount and its machine."""

    minute: int  #: of the day, since midnight
    load: float  #: share of all cores used by other processes, 0 to 1
    calm: float  #: seconds since the last read of a view; 0 during one
    free: int  #: bytes of the disk that holds the store


@dataclass(frozen=True, slots=True)
class TuneRules:
    """Conditions under which tuning may run."""

    hours: QuietHours = field(default_factory=QuietHours)
    max_load: float = 0.5  #: share of all cores that other processes may use
    calm: float = CALM_SECONDS
    least_free: int = LEAST_FREE

    @classmethod
    def of(cls, settings: StoreSettings) -> TuneRules:
        """What a store's settings say."""
        hours = QuietHours.parse(settings.tune_quiet_hours)
        return cls(hours, settings.tune_max_load / 100)

    def obstacle(self, now: MountActivity) -> str | None:
        """Why nothing may be done now, in words; None when it may."""
        if now.calm < self.calm:
            return "somebody reads"
        if not self.hours.includes(now.minute):
            return "quiet hours have not begun"
        if now.load > self.max_load:
            return f"others use {now.load:.0%} of the cores"
        if now.free < self.least_free:
            return f"only {human_bytes(now.free)} of the disk are free"
        return None


class CpuAllowance:
    """A rate limiter for CPU time: a share of one core, with a short burst."""

    def __init__(self, share: float) -> None:
        """`share` of one core; above 1 where several cores may be used."""
        self._share = share
        self._most = share * _BURST_SECONDS
        self._left = self._most
        self._at: float | None = None
        self._pausing = False

    def is_left(self, at: float, used: float) -> bool:
        """Whether work may go on at time `at`, with `used` core seconds since the last question.

        What has been used up has to come back by half before it may.
        """
        passed = 0.0 if self._at is None else at - self._at
        self._at = at
        self._left = min(self._most, self._left + passed * self._share - used)
        if self._left <= 0:
            self._pausing = True
        elif self._left >= self._most / 2:
            self._pausing = False
        return not self._pausing


class FailureBackoff:
    """Delays after failures, growing up to a day."""

    FIRST_SECONDS = 600.0
    MOST_SECONDS = 86400.0

    def __init__(self) -> None:
        self._until: dict[int, tuple[float, float]] = {}  # by what: (until when, how long)

    def failed(self, what: int, at: float) -> float:
        """It has failed; for how many seconds it is left alone."""
        _, before = self._until.get(what, (0.0, 0.0))
        seconds = min(self.MOST_SECONDS, max(self.FIRST_SECONDS, 2 * before))
        self._until[what] = at + seconds, seconds
        return seconds

    def succeeded(self, what: int) -> None:
        self._until.pop(what, None)

    def resting(self, at: float) -> list[int]:
        """All that is left alone at that time, ascending."""
        return sorted(what for what, (until, _) in self._until.items() if at < until)


MODULE = "vfsd.mount.tune_worker"

_END_SECONDS = 0.6
"""How long it may take to end by itself."""


class TunerProcess:
    """A running `vfsd.mount.tune_worker`, which waits for its first command."""

    def __init__(self, directory: StoreDirectory, avoid: Sequence[int]) -> None:
        """It leaves the videos with the ids `avoid` alone.  Raises `OSError`."""
        held = [] if directory.anchor is None else [directory.anchor.fd]
        task = {
            "store": str(directory.root),
            "held": held,
            "parent": os.getpid(),
            "avoid": avoid,
        }
        self._process = subprocess.Popen(
            module_command(MODULE, json.dumps(task)),
            pass_fds=held,
            cwd="/",
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin.fileno()
        self._reports = self._process.stdout.fileno()
        # Readers pause the worker with one byte. SIGSTOP is faster, but could stop it while it
        # holds the catalog's write lock.
        os.set_blocking(self._orders, False)
        os.set_blocking(self._reports, False)
        self._guard = threading.Lock()
        self._last = b""
        self._text = b""
        self._used = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess.Popen`; None while it runs."""
        return self._process.poll()

    def order(self, order: bytes) -> None:
        """`RUN` or `PAUSE`, unless that was the last one.  Never waits."""
        with self._guard:
            if order != self._last:
                self._last = order
                self._write(order)

    def forget_order(self) -> None:
        """It has done what it was told to; the next order is a new one."""
        with self._guard:
            self._last = b""

    def reports(self) -> list[TunerReport]:
        """What it has told since the last question."""
        while True:
            try:
                more = os.read(self._reports, 65536)
            except BlockingIOError:
                break
            if not more:
                break
            self._text += more
        *lines, self._text = self._text.split(b"\n")
        return [TunerReport.parse(line) for line in lines]

    def used(self) -> float:
        """Core seconds since the last question."""
        before, self._used = self._used, max(self._used, cpu_seconds(self.pid))
        return self._used - before

    def end(self) -> None:
        """Have it end; kill it when it does not.  In less than a second."""
        with self._guard:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._orders = -1
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _write(self, order: bytes) -> None:
        if self._orders >= 0:
            # It may have ended, or obey nothing; whoever looks after it will see.
            with suppress(OSError):
                os.write(self._orders, order)


_TICK_SECONDS, _IDLE_TICK_SECONDS = 0.25, 1.0
"""How often everything is looked at, with a process and without one."""
_LOOK_SECONDS = 2.0
"""How often it is seen whether anybody has read or stored something."""
_LOAD_SECONDS = 1.0
"""How often the load is measured, over that time."""
_LOOKING_SHARE = 0.05
"""The process may spend this share of the time looking for what pays."""

_log = logging.getLogger(__name__)


class BackgroundTuner:
    """A thread that starts the tuning process and controls when it runs."""

    def __init__(self, store: Store, foreground: ForegroundReads) -> None:
        self._store = store
        self._foreground = foreground
        self._rules = TuneRules.of(store.settings)
        self._allowance = CpuAllowance(store.settings.tune_cpu / 100)
        self._patience = FailureBackoff()
        self._load = _LoadMeter()
        self._newest: tuple[int, int] | None = None  # read, and lossless segment
        self._heeded: tuple[int, int] | None = None  # the newest when the process began to look
        self._look_at = 0.0  # not before then
        self._process: TunerProcess | None = None
        self._working = False  # the process has something to do
        self._making = ALL  # the video that it makes tiles of
        self._doing = ""  # in words
        self._noted = ""  # lately
        self._state = "idle"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vfsd-tuner", daemon=True)

    @property
    def state(self) -> str:
        """What is being done, or why nothing is, in words."""
        return self._state

    def start(self) -> None:
        self._foreground.on_first = self._pause
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _pause(self) -> None:
        """Somebody has come who must not be kept waiting.  In that thread."""
        process = self._process
        if process is not None:
            process.order(PAUSE)

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS if self._process else _IDLE_TICK_SECONDS):
            try:
                self._tick(time.monotonic())
            except (VfsdError, OSError) as error:
                self._give_up(ALL, str(error), time.monotonic())
            except Exception:
                _log.exception("background tuning stops until the store is mounted again")
                self._state = "off: it has failed, see the log"
                break
        if self._process is not None:
            self._process.end()

    def _tick(self, now: float) -> None:
        self._listen(now)
        self._look(now)
        used = 0.0 if self._process is None else self._process.used()
        self._load.note(now, used)
        has_share = self._allowance.is_left(now, used)
        if not self._working and self._newest == self._heeded:
            self._state = "idle"
            return
        obstacle = self._obstacle(now)
        if obstacle is None and not has_share:
            obstacle = "it has had its share of the CPU"
        if obstacle is None:
            self._go_on(now)
            self._state = self._doing
        else:
            self._pause()
            self._state = f"waiting: {obstacle}"

    # -- the process

    def _listen(self, now: float) -> None:
        """Take note of what the process says, and of its end."""
        process = self._process
        if process is None:
            return
        code = process.exit_code  # what it has said before its end is read below
        for report in process.reports():
            self._heed(report, process, now)
        if code is None:
            return
        process.end()
        self._process = None
        if code != 0:
            why = f"the process that makes tiles has ended with {code}"
            self._give_up(self._making, why, now)
        if self._working:
            self._heeded = None  # it was not through
        self._working = False

    def _heed(self, report: TunerReport, process: TunerProcess, now: float) -> None:
        if report.what == DONE:
            self._working = False
            self._making = ALL
            self._look_at = max(self._look_at, now + report.seconds / _LOOKING_SHARE)
            process.forget_order()
        elif report.what == MAKING:
            self._making, self._doing = report.video, report.text
        elif report.what == FAILED:
            self._give_up(report.video, report.text, now)
        elif report.what == NOTE:
            if report.text != self._noted:
                self._noted = report.text
                _log.info("%s", report.text)
        elif report.what == MADE:
            self._patience.succeeded(report.video)
            self._patience.succeeded(ALL)
            _log.info("%s", report.text)

    def _go_on(self, now: float) -> None:
        if self._process is None:
            self._doing = "starting"
            self._making = ALL
            resting = self._patience.resting(now)
            self._process = TunerProcess(self._store.parts.directory, resting)
        if not self._working:
            self._doing = "looking for what pays"
            self._working = True
            self._heeded = self._newest
        self._process.order(RUN)
        # Somebody may have come since the rules were asked, and have been overruled just now.
        if self._foreground.calm < self._rules.calm:
            self._process.order(PAUSE)

    def _give_up(self, video: int, why: str, now: float) -> None:
        seconds = self._patience.failed(video, now)
        what = "tiles" if video == ALL else f"tiles of video {video}"
        _log.warning("%s are left alone for %.0f minutes: %s", what, seconds / 60, why)

    # -- what speaks for it, and against it

    def _look(self, now: float) -> None:
        """See whether somebody has read something, or stored it losslessly."""
        if now < self._look_at or self._working or ALL in self._patience.resting(now):
            return
        self._look_at = now + _LOOK_SECONDS
        with self._store.catalog.reading() as seen:
            read = seen.derived_usage.newest_read() if self._store.settings.tune else 0
            lossless = seen.segments.newest_of(LOSSLESS) if self._store.settings.compress else 0
        self._newest = (read, lossless) if read or lossless else None

    def _obstacle(self, now: float) -> str | None:
        if ALL in self._patience.resting(now):
            return "it has failed, see the log"
        if self._load.share is None:
            return "the load is not known yet"
        local = time.localtime()
        return self._rules.obstacle(
            MountActivity(
                minute=local.tm_hour * 60 + local.tm_min,
                load=self._load.share,
                calm=self._foreground.calm,
                free=shutil.disk_usage(self._store.parts.directory.top).free,
            )
        )


class _LoadMeter:
    """Measures the CPU load of other processes, over a second at a time."""

    def __init__(self) -> None:
        self._cores = CpuMeter()
        self._at = time.monotonic()
        self._ours = 0.0
        self.share: float | None = None  #: of all cores, 0 to 1; None before the first second

    def note(self, now: float, ours: float) -> None:
        """`ours`: core seconds since the last time that are not those of others."""
        self._ours += ours
        if now - self._at >= _LOAD_SECONDS:
            self.share = self._cores.share(without=self._ours)
            self._at, self._ours = now, 0.0
