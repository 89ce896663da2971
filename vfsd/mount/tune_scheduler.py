"""Background tuning of a mount: when the tuning process may work, and the messages to and from it.

`BackgroundTuner` runs the worker process through `TunerProcess`. Commands are single bytes; the
last one counts. The end of their pipe means that the mount is gone. Reports are lines of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from vfsd.api.store import Store
from vfsd.core.process_control import CpuMeter, cpu_seconds
from vfsd.core.subprocess_entry import child_environment, module_command
from vfsd.core.timebase import QuietHours, human_bytes
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import VfsdError
from vfsd.tiling.cost import LOSSLESS

if TYPE_CHECKING:
    from vfsd.catalog import Transaction

    # The worker imports this module for the messages and must not load the views.
    from vfsd.mount.background_work import ForegroundReads

_log = logging.getLogger(__name__)

CALM_SECONDS = 1.0
"""No work starts within this time after the last read of a view: readers tend to come back."""
LEAST_FREE = 1 << 30
"""Bytes of free disk space that tuning never uses."""
# Length of a burst: the allowance for this time may be used at once.
_BURST_SECONDS = 2.0
MODULE = "vfsd.mount.tune_worker"
# How long the process may take to end before it is killed.
_END_SECONDS = 0.6
# Time between two checks, with a process and without one.
_TICK_SECONDS, _IDLE_TICK_SECONDS = 0.25, 1.0
# Time between two checks of the catalog for new reads and lossless segments.
_CATALOG_SECONDS = 2.0
_SERVER_SECONDS = 30.0
"""How often a server is asked instead: noted reads reach the log about as often."""
# The load is measured over intervals of this length.
_LOAD_SECONDS = 1.0
# The process may spend this share of the time on searches for work.
_SEARCH_SHARE = 0.05
RUN, PAUSE = b"g", b"p"
MAKING, MADE, FAILED, NOTE, DONE = "making", "made", "failed", "note", "done"
ALL = 0
"""Stands for all videos in a report, instead of the id of one."""
LINGER_SECONDS = 30.0
"""How long an idle or paused process waits for a command before it ends. Starting one takes a
second of imports."""


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
        """Return the rules in the settings of a store."""
        hours = QuietHours.parse(settings.tune_quiet_hours)
        return cls(hours, settings.tune_max_load / 100)

    def obstacle(self, now: MountActivity) -> str | None:
        """Return the reason why tuning must wait, as text; None if it may run."""
        if now.calm < self.calm:
            return "a program reads a view"
        if not self.hours.includes(now.minute):
            return "outside the quiet hours"
        if now.load > self.max_load:
            return f"other processes use {now.load:.0%} of the CPU"
        if now.free < self.least_free:
            return f"only {human_bytes(now.free)} of disk space are free"
        return None


class CpuAllowance:
    """A rate limiter for CPU time: a share of one core, with a short burst."""

    def __init__(self, share: float) -> None:
        """Limit to `share` of one core; above 1 for several cores."""
        self._share = share
        self._most = share * _BURST_SECONDS
        self._left = self._most
        self._at: float | None = None
        self._pausing = False

    def is_left(self, at: float, used: float) -> bool:
        """Return whether work may continue at time `at`, in seconds.

        `used` is the CPU time since the last call, in core seconds. After the allowance is
        used up, work waits until half of a burst is available again.
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
        self._until: dict[int, tuple[float, float]] = {}  # by id: (end, seconds)

    def failed(self, what: int, at: float) -> float:
        """Record a failure at time `at`; return the delay in seconds."""
        _, before = self._until.get(what, (0.0, 0.0))
        seconds = min(self.MOST_SECONDS, max(self.FIRST_SECONDS, 2 * before))
        self._until[what] = at + seconds, seconds
        return seconds

    def succeeded(self, what: int) -> None:
        self._until.pop(what, None)

    def resting(self, at: float) -> list[int]:
        """Return the ids that are still delayed at time `at`, in ascending order."""
        return sorted(what for what, (until, _) in self._until.items() if at < until)


class TunerProcess:
    """A running `vfsd.mount.tune_worker`, which waits for its first command."""

    def __init__(self, directory: StoreDirectory, avoid: Sequence[int]) -> None:
        """Start it. It skips the videos with the ids `avoid`. Raises `OSError`."""
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
        self._commands = self._process.stdin.fileno()
        self._reports = self._process.stdout.fileno()
        # Readers pause the worker with one byte. SIGSTOP is faster, but could stop it while it
        # holds the catalog's write lock.
        os.set_blocking(self._commands, False)
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
        """The exit code as in `subprocess.Popen`; None while the process runs."""
        return self._process.poll()

    def send(self, command: bytes) -> None:
        """Send `RUN` or `PAUSE`, unless it was the last command. Never waits."""
        with self._guard:
            if command != self._last:
                self._last = command
                self._write(command)

    def forget_command(self) -> None:
        """Forget the last command after it is done, so that it can be sent again."""
        with self._guard:
            self._last = b""

    def reports(self) -> list[TunerReport]:
        """Return the reports since the last call."""
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
        """Return the core seconds since the last call."""
        before, self._used = self._used, max(self._used, cpu_seconds(self.pid))
        return self._used - before

    def end(self) -> None:
        """End the process, by force after `_END_SECONDS`."""
        with self._guard:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._commands = -1
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _write(self, command: bytes) -> None:
        if self._commands >= 0:
            # The process may have ended, or be stuck with a full pipe. The caller checks that.
            with suppress(OSError):
                os.write(self._commands, command)


class BackgroundTuner:
    """A thread that starts the tuning process and controls when it runs."""

    def __init__(self, store: Store, foreground: ForegroundReads) -> None:
        self._store = store
        self._foreground = foreground
        self._rules = TuneRules.of(store.settings)
        self._allowance = CpuAllowance(store.settings.tune_cpu / 100)
        self._backoff = FailureBackoff()
        self._load = _LoadMeter()
        # Ids of a read and a lossless segment, and the browser key while renditions are missing.
        self._newest: tuple[int, int, Hashable] | None = None
        self._searched: tuple[int, int, Hashable] | None = None  # at the start of the last search
        self._browser_key: Hashable = None  # at the last look for missing browser renditions
        self._is_browser_missing = False
        self._check_at = 0.0  # earliest time of the next check
        self._process: TunerProcess | None = None
        self._working = False  # the process has not reported `DONE`
        self._making = ALL  # the video that it makes tiles of
        self._doing = ""  # description for `state`
        self._noted = ""  # last note in the log
        self._state = "idle"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vfsd-tuner", daemon=True)

    @property
    def state(self) -> str:
        """The current work, or the reason for waiting, as text."""
        return self._state

    def start(self) -> None:
        self._foreground.on_first = self._pause
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _pause(self) -> None:
        """Pause the process for a reader. Runs in the reader's thread, so it never waits."""
        process = self._process
        if process is not None:
            process.send(PAUSE)

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS if self._process else _IDLE_TICK_SECONDS):
            try:
                self._tick(time.monotonic())
            except (VfsdError, OSError) as error:
                self._back_off(ALL, str(error), time.monotonic())
            except Exception:
                _log.exception("background tuning stops until the store is mounted again")
                self._state = "off: failed, see the log"
                break
        if self._process is not None:
            self._process.end()

    def _tick(self, now: float) -> None:
        self._read_reports(now)
        self._check_catalog(now)
        used = 0.0 if self._process is None else self._process.used()
        self._load.note(now, used)
        has_share = self._allowance.is_left(now, used)
        if not self._working and self._newest == self._searched:
            self._state = "idle"
            return
        obstacle = self._obstacle(now)
        if obstacle is None and not has_share:
            obstacle = "its share of the CPU is used up"
        if obstacle is None:
            self._run_process(now)
            self._state = self._doing
        else:
            self._pause()
            self._state = f"waiting: {obstacle}"

    # -- the process

    def _read_reports(self, now: float) -> None:
        """Handle the reports of the process, and its end."""
        process = self._process
        if process is None:
            return
        code = process.exit_code  # before reading, so that no report is lost
        for report in process.reports():
            self._handle_report(report, process, now)
        if code is None:
            return
        process.end()
        self._process = None
        if code != 0:
            why = f"the tuning process ended with exit code {code}"
            self._back_off(self._making, why, now)
        if self._working:
            self._searched = None  # the search was not complete
        self._working = False

    def _handle_report(self, report: TunerReport, process: TunerProcess, now: float) -> None:
        if report.what == DONE:
            self._working = False
            self._making = ALL
            self._check_at = max(self._check_at, now + report.seconds / _SEARCH_SHARE)
            process.forget_command()
        elif report.what == MAKING:
            self._making, self._doing = report.video, report.text
        elif report.what == FAILED:
            self._back_off(report.video, report.text, now)
        elif report.what == NOTE:
            if report.text != self._noted:
                self._noted = report.text
                _log.info("%s", report.text)
        elif report.what == MADE:
            self._backoff.succeeded(report.video)
            self._backoff.succeeded(ALL)
            _log.info("%s", report.text)

    def _run_process(self, now: float) -> None:
        if self._process is None:
            self._doing = "starting"
            self._making = ALL
            resting = self._backoff.resting(now)
            self._process = TunerProcess(self._store.parts.directory, resting)
        if not self._working:
            self._doing = "looking for useful tiles"
            self._working = True
            self._searched = self._newest
        self._process.send(RUN)
        # A reader may have arrived since the rules were checked; `RUN` has replaced its `PAUSE`.
        if self._foreground.calm < self._rules.calm:
            self._process.send(PAUSE)

    def _back_off(self, video: int, why: str, now: float) -> None:
        seconds = self._backoff.failed(video, now)
        what = "tiles" if video == ALL else f"tiles of video {video}"
        _log.warning(
            "%s are left alone for %.0f minutes after a failure: %s", what, seconds / 60, why
        )

    # -- conditions

    def _check_catalog(self, now: float) -> None:
        """Check the catalog for new reads, lossless segments and missing browser renditions."""
        if now < self._check_at or self._working or ALL in self._backoff.resting(now):
            return
        catalog = self._store.catalog
        self._check_at = now + (_SERVER_SECONDS if catalog.path is None else _CATALOG_SECONDS)
        catalog.fold_due_reads()
        with catalog.reading() as seen:
            read = seen.derived_usage.newest_read() if self._store.settings.tune else 0
            lossless = seen.segments.newest_of(LOSSLESS) if self._store.settings.compress else 0
            browser = self._missing_browser(seen, now) if self._store.settings.tune else None
        self._newest = (read, lossless, browser) if read or lossless or browser else None

    def _missing_browser(self, seen: Transaction, now: float) -> Hashable | None:
        """Return a key of the browser renditions that policies ask for; None if none is missing."""
        key = seen.retention.browser_key()
        if key != self._browser_key:
            self._browser_key = key
            began = time.thread_time()
            self._is_browser_missing = key is not None and bool(seen.retention.lacking_browser(1))
            spent = time.thread_time() - began
            self._check_at = max(self._check_at, now + spent / _SEARCH_SHARE)
        return key if self._is_browser_missing else None

    def _obstacle(self, now: float) -> str | None:
        if ALL in self._backoff.resting(now):
            return "failed, see the log"
        if self._load.share is None:
            return "the load is being measured"
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
        self._tuner_seconds = 0.0
        self.share: float | None = None  #: of all cores, 0 to 1; None before the first second

    def note(self, now: float, tuner_seconds: float) -> None:
        """Update the load. `tuner_seconds` are core seconds of the tuner since the last call."""
        self._tuner_seconds += tuner_seconds
        if now - self._at >= _LOAD_SECONDS:
            self.share = self._cores.share(without=self._tuner_seconds)
            self._at, self._tuner_seconds = now, 0.0


class TunerStopError(Exception):
    """The mount is gone, or the process was idle for long."""


@dataclass(frozen=True, slots=True)
class TunerReport:
    """A report of the tuning process."""

    what: str  #: `MAKING`, `MADE`, `FAILED`, `NOTE`, or `DONE` (nothing is left to do)
    text: str = ""  #: description or reason
    video: int = ALL  #: id of the video
    seconds: float = 0.0  #: duration of the search for work, for `DONE`

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> TunerReport:
        return cls(**json.loads(line))


class TunerCommands:
    """The reading end of the command pipe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def wait_while_paused(self) -> None:
        """Return at once, or when the pause ends. Raises `TunerStopError`.

        Cheap enough to call for every frame.
        """
        command = self._newest()
        while command == PAUSE:
            command = self._wait()

    def wait_for_run(self) -> None:
        """Return when there is work to do. Raises `TunerStopError`."""
        while self._wait() != RUN:
            pass

    def _newest(self) -> bytes:
        """Return the last command that has arrived; empty if there is none."""
        command = b""
        while True:
            try:
                more = os.read(self._fd, 4096)
            except BlockingIOError:
                return command
            if not more:
                raise TunerStopError
            command = more[-1:]

    def _wait(self) -> bytes:
        ready, _, _ = select.select([self._fd], [], [], LINGER_SECONDS)
        if not ready:
            raise TunerStopError
        return self._newest()
