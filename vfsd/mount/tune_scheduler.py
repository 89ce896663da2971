"""The part of a mount that makes tiles by itself: sees to it that it is done, and when.

The work is done by a process of its own (`vfsd.mount.tune_worker`), which is started when
somebody has read something, and when nothing speaks against it (`vfsd.mount.tune_throttle`).  It is
told to pause as soon as anybody waits for a view, and ends with the mount, whatever becomes of
that.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time

from vfsd.api.store import Store
from vfsd.core.hostinfo import CoreUse
from vfsd.errors import VfsdError
from vfsd.mount.activity import Foreground
from vfsd.mount.tune_client import TunerProcess
from vfsd.mount.tune_protocol import ALL, DONE, FAILED, GO_ON, MADE, MAKING, NOTE, PAUSE, Report
from vfsd.mount.tune_throttle import CpuAllowance, Moment, Patience, Rules
from vfsd.tiling.cost import LOSSLESS

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
    """A thread that starts the process, and tells it when to go on.

    Closing it ends both, in less than a second.
    """

    def __init__(self, store: Store, foreground: Foreground) -> None:
        self._store = store
        self._foreground = foreground
        self._rules = Rules.of(store.settings)
        self._allowance = CpuAllowance(store.settings.tune_cpu / 100)
        self._patience = Patience()
        self._load = _Load()
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
                _log.exception("no tiles are made any more until the store is mounted again")
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

    def _heed(self, report: Report, process: TunerProcess, now: float) -> None:
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
        self._process.order(GO_ON)
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
            read = seen.holdings.newest_read() if self._store.settings.tune else 0
            lossless = seen.segments.newest_of(LOSSLESS) if self._store.settings.compress else 0
        self._newest = (read, lossless) if read or lossless else None

    def _obstacle(self, now: float) -> str | None:
        if ALL in self._patience.resting(now):
            return "it has failed, see the log"
        if self._load.share is None:
            return "the load is not known yet"
        local = time.localtime()
        return self._rules.obstacle(
            Moment(
                minute=local.tm_hour * 60 + local.tm_min,
                load=self._load.share,
                calm=self._foreground.calm,
                free=shutil.disk_usage(self._store.parts.directory.top).free,
            )
        )


class _Load:
    """What others do to the machine, measured over a second at a time."""

    def __init__(self) -> None:
        self._cores = CoreUse()
        self._at = time.monotonic()
        self._ours = 0.0
        self.share: float | None = None  #: of all cores, 0 to 1; None before the first second

    def note(self, now: float, ours: float) -> None:
        """`ours`: core seconds since the last time that are not those of others."""
        self._ours += ours
        if now - self._at >= _LOAD_SECONDS:
            self.share = self._cores.share(without=self._ours)
            self._at, self._ours = now, 0.0
