"""`Jobs`: the work that a server runs, one job after the other, each in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from vfsd.api.store import Store
from vfsd.core.timebase import iso_time
from vfsd.errors import BusyError, NotFoundError, UsageError, VfsdError
from vfsd.records.work_records import order_record
from vfsd.web.job_commands import KINDS, JobKind

WAITING, RUNNING, PAUSED = "waiting", "running", "paused"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
_ENDED = (DONE, FAILED, CANCELLED)
_KEPT = 200
_MOST_WAITING = 50
_MOST_LINES = 2000
_MOST_LINE = 1 << 20
_STOP_SECONDS = 10.0
_DRY_SECONDS = 120.0


@dataclass(slots=True)
class Job:
    """A job, and its state; changed only with the lock of `Jobs`."""

    id: str
    kind: str
    what: str  #: names of videos, for people
    words: list[str]  #: of the command
    created_ns: int
    state: str = WAITING
    started_ns: int | None = None
    ended_ns: int | None = None
    error: str | None = None
    order: str | None = None  #: id of its order of work
    results: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))
    wanted: str | None = None  #: the state that a request has asked for: cancelled or paused


class Jobs:
    """Runs jobs.  Thread-safe.

    Orders of work stay in the catalog: `vfsd work run` continues one that the end of the server has
    interrupted.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self, kind: str, args: Mapping[str, Any]) -> Job:
        """Add a job.  Raises `UsageError`, `BusyError` with too many waiting."""
        found = _kind(kind)
        words = found.arguments(args, dry_run=False)
        if found.is_order:
            at = words.index("--")
            words[at:at] = ["--on", "later"]
        names = found.names_in(args)
        what = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        job = Job(uuid4().hex[:8], kind, what, words, time.time_ns())
        with self._guard:
            if sum(one.state == WAITING for one in self._jobs.values()) >= _MOST_WAITING:
                raise BusyError(f"{_MOST_WAITING} jobs are waiting", hint="try again later")
            self._jobs[job.id] = job
            self._forget_old()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vfsd-web-jobs")
                self._thread.start()
            self._guard.notify_all()
        return job

    def dry_run(self, kind: str, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what a job would do, as objects of the command's ``--json``.

        Raises `UsageError`, and `VfsdError` with the message of the command.
        """
        words = _kind(kind).arguments(args, dry_run=True)
        try:
            done = subprocess.run(
                self._command(words),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DRY_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BusyError(f"the estimate took more than {_DRY_SECONDS:g} s") from None
        if done.returncode:
            raise _error_of(done.returncode, _message(done.stderr))
        return [found for line in done.stdout.splitlines() if (found := _parsed(line))]

    def all(self) -> list[dict[str, Any]]:
        """Return the jobs, newest first, and then the other orders of the catalog."""
        with self._guard:
            jobs = sorted(self._jobs.values(), key=lambda one: -one.created_ns)
            known = {job.order for job in jobs}
            snapshots = [(job, job.state) for job in jobs]
        records = [self._record(job) for job, _ in snapshots]
        for order in self._store.catalog.work.orders()[:_KEPT]:
            if order.id not in known:
                records.append(self._record_of_order(order.id))
        return records

    def get(self, number: str) -> dict[str, Any]:
        """Return a job and its results, by its id or that of its order.  Raises `NotFoundError`."""
        with self._guard:
            job = self._find(number)
        if job is None:
            return {**self._record_of_order(number), "results": []}
        return {**self._record(job), "results": list(job.results)}

    def cancel(self, number: str) -> dict[str, Any]:
        """Stop a job, or an order that another process performs.  Raises `NotFoundError`."""
        return self._stop(number, CANCELLED)

    def pause(self, number: str) -> dict[str, Any]:
        """Stop a job until `resume`: an order keeps its results, another kind begins again."""
        return self._stop(number, PAUSED)

    def resume(self, number: str) -> dict[str, Any]:
        """Continue a paused job.  Raises `NotFoundError`, and `UsageError` for one in use."""
        with self._guard:
            job = self._find(number)
            if job is None:
                raise NotFoundError(f"there is no job {number!r}")
            if job.state not in (PAUSED, FAILED, CANCELLED):
                raise UsageError(f"the job is {job.state}")
            if job.order is not None:
                self._order(job.order).retry()
            job.state, job.wanted, job.ended_ns, job.error = WAITING, None, None, None
            self._guard.notify_all()
        return self.get(number)

    def close(self) -> None:
        """Stop the running job, and wait for its end."""
        with self._guard:
            self._is_closed = True
            self._interrupt()
            thread = self._thread
            self._guard.notify_all()
        if thread is not None:
            thread.join()

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._guard:
                job = self._next()
                while job is None and not self._is_closed:
                    self._guard.wait()
                    job = self._next()
                if self._is_closed or job is None:
                    return
                job.state, job.started_ns = RUNNING, time.time_ns()
            try:
                code, error = self._perform(job)
            except Exception as failure:  # the thread must survive unexpected errors
                code, error = 1, repr(failure)
            with self._guard:
                job.ended_ns = time.time_ns()
                if job.wanted is not None:
                    job.state = job.wanted
                elif self._is_closed:
                    job.state, job.error = CANCELLED, "the server ended"
                else:
                    job.state = FAILED if code else DONE
                    job.error = error if code else None
                job.wanted = None

    def _perform(self, job: Job) -> tuple[int, str]:
        """Run the commands of a job up to the first that fails; return its exit code and error."""
        for words in self._steps(job):
            with self._guard:
                if self._is_closed or job.wanted is not None:
                    break
            code, error = self._run_command(job, words)
            if code:
                return code, error
        return 0, ""

    def _steps(self, job: Job) -> Iterator[list[str]]:
        """Yield the commands of a job: an order is planned first, and then performed."""
        kind = KINDS[job.kind]
        if not kind.is_order:
            yield job.words
            return
        if job.order is None:
            unverified = self._unverified(job) if kind.needs_verified else []
            if unverified:
                yield ["verify", "--", *unverified]
            yield job.words
            job.order = next((one["order"] for one in job.results if "order" in one), None)
            job.results.clear()
        if job.order is not None:
            yield ["work", "run", "--on", "local:1", "--", job.order]

    def _unverified(self, job: Job) -> list[str]:
        names = job.words[job.words.index("--") + 1 :]
        videos = self._store.named(names)
        return [video.name for video in videos if not video.original.verified]

    def _run_command(self, job: Job, words: Sequence[str]) -> tuple[int, str]:
        with tempfile.TemporaryFile() as messages:
            process = subprocess.Popen(
                self._command(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=messages,
                start_new_session=True,  # Ctrl-C of the server must not reach it
            )
            with self._guard:
                self._process = process
                if self._is_closed or job.wanted is not None:
                    self._interrupt()
            assert process.stdout is not None
            with process.stdout as lines:
                while line := lines.readline(_MOST_LINE):
                    found = _parsed(line)
                    if found is not None:
                        job.results.append(found)
            code = process.wait()
            with self._guard:
                self._process = None
            messages.seek(0)
            return code, _message(messages.read()[-(1 << 16) :])

    def _command(self, words: Sequence[str]) -> list[str]:
        root = self._store.tools.address.root
        return [sys.executable, "-m", "vfsd", "-s", root, "--json", *words]

    def _next(self) -> Job | None:
        """Return the oldest waiting job; the caller holds the lock."""
        return next((job for job in self._jobs.values() if job.state == WAITING), None)

    def _stop(self, number: str, state: str) -> dict[str, Any]:
        with self._guard:
            job = self._find(number)
            if job is not None:
                if job.state == RUNNING:
                    job.wanted = state
                    if job.order is not None:
                        self._order(job.order).cancel()
                    self._interrupt()
                elif job.state in (WAITING, PAUSED):
                    job.state, job.ended_ns = state, time.time_ns()
                elif state == PAUSED:
                    raise UsageError(f"the job is {job.state}")
        if job is None:
            if state == PAUSED:
                raise UsageError("only jobs of this server can be paused")
            self._order(number).cancel()
        return self.get(number)

    def _interrupt(self) -> None:
        """Let the running process stop at a safe point; the caller holds the lock."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        timer = threading.Timer(_STOP_SECONDS, _terminate, (process,))
        timer.daemon = True
        timer.start()

    def _find(self, number: str) -> Job | None:
        return self._jobs.get(number) or next(
            (job for job in self._jobs.values() if job.order == number), None
        )

    def _order(self, number: str) -> Any:
        from vfsd.work.orders import find_order

        if re.fullmatch("[0-9a-f]{8}", number) is None:
            raise NotFoundError(f"there is no job {number!r}")
        return find_order(self._store, number)

    def _forget_old(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.state in _ENDED]
        for number in ended[: max(0, len(self._jobs) - _KEPT)]:
            del self._jobs[number]

    # -- records

    def _record(self, job: Job) -> dict[str, Any]:
        record = None
        with suppress(NotFoundError, VfsdError):
            if job.order is not None:
                order = self._order(job.order)
                record = order_record(order, order.state())
        progress = None if record is None else [_ended_units(record), record["units"]]
        return {
            "id": job.id,
            "kind": job.kind,
            "what": job.what,
            "state": job.state,
            "progress": progress,
            "created": iso_time(job.created_ns),
            "started": None if job.started_ns is None else iso_time(job.started_ns),
            "ended": None if job.ended_ns is None else iso_time(job.ended_ns),
            "error": job.error,
            "order": record,
        }

    def _record_of_order(self, number: str) -> dict[str, Any]:
        order = self._order(number)
        state = order.state()
        record = order_record(order, state)
        if order.record.cancelled_ns is not None:
            name = CANCELLED
        elif state.running:
            name = RUNNING
        elif state.ended < state.units:
            name = WAITING
        else:
            name = FAILED if state.failures else DONE
        first = next(iter(state.failures.values()), None)
        names = order.record.spec.get("videos") or []
        return {
            "id": order.id,
            "kind": order.record.verb,
            "what": ", ".join(map(str, names[:3])),
            "state": name,
            "progress": [state.ended, state.units],
            "created": record["created"],
            "started": None,
            "ended": None,
            "error": None if first is None else first.error,
            "order": record,
        }


def _kind(name: str) -> JobKind:
    if name not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]


def _ended_units(record: Mapping[str, Any]) -> int:
    outcomes = record["outcomes"]
    return int(record["units"] - outcomes.get("waiting", 0))


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()


def _parsed(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict):
            found.pop("schema", None)
            return found
    return None


def _message(stderr: bytes) -> str:
    """Return the error that a command has printed: JSON, or the last line."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    for line in reversed(lines):
        with suppress(ValueError, AttributeError):
            return str(json.loads(line)["message"])
        if line.startswith("vfsd: "):
            return line.removeprefix("vfsd: ")
    return lines[-1] if lines else "the command failed"


def _error_of(code: int, text: str) -> VfsdError:
    kinds: list[type[VfsdError]] = [VfsdError]
    while kinds:
        kind = kinds.pop()
        if kind.exit_code == code:
            return kind(text)
        kinds += kind.__subclasses__()
    return VfsdError(text)
