"""Examines files in sandbox processes, so that a file that crashes FFmpeg harms nothing else.

`Examiner.examine` does what `vfsd.codecs.probing.probe.examine` does. A file without the header of
a video is refused in this process. All other work happens in a child of `vfsd.storage.sandbox_main`
within `SandboxLimits`. `SandboxPool` keeps these processes warm. Replies are plain data and
validated before use.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from vfsd.core.model import MediaInfo
from vfsd.core.process_control import leak, reset_after_fork
from vfsd.core.subprocess_entry import child_environment, module_command
from vfsd.errors import BusyError, ExaminerError, IntegrityError, RefusedMediaError
from vfsd.storage.sandbox_protocol import (
    FOUND,
    MAX_ERROR_BYTES,
    MAX_REQUEST_BYTES,
    PROGRESS,
    PROGRESS_BODY,
    READY,
    RECORD,
    REFUSED,
    UNREADABLE,
    ErrorReport,
    ExamineRequest,
    SandboxLimits,
)

if TYPE_CHECKING:
    from vfsd.codecs.inventory.inventory import Inventory
    from vfsd.codecs.probing.probe import Examination

MODULE = "vfsd.storage.sandbox_start"

_ATTEMPTS = 2
_START_SECONDS = 120.0
"""Time limit for a worker to import its libraries, also from a slow disk."""
_CHUNK = 1 << 20
_MAX_NAME = 512
_END_SECONDS = 5.0
"""A child ends right after its reply; this is the limit to wait for its exit status."""

_log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class _ExpectedReply(Generic[_Found]):
    """The reply that a request must have."""

    max_bytes: int  #: bytes
    unpack: Callable[[bytes], _Found]  #: raises `IntegrityError` for an invalid one


class _GoneError(Exception):
    """The worker had ended before the request: it was idle for too long, or was killed."""


class _KilledError(Exception):
    """The child was killed, perhaps for a reason unrelated to the file."""


class SandboxPool:
    """Idle worker processes. Thread-safe.

    After a fork the child starts its own workers.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._guard = threading.Lock()
        self._closed = False
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        leak(self._idle)  # they are not children of this process
        self._idle = []
        self._guard = threading.Lock()

    def acquire(self) -> _Worker:
        """Return an idle worker or a new one, for the caller alone."""
        with self._guard:
            # A worker inherits the nice value of the thread that starts it.
            nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            for worker in [worker for worker in self._idle if worker.nice == nice]:
                self._idle.remove(worker)
                if worker.is_alive or not worker.is_ready:
                    return worker  # a worker that died before it was ready reports why
                worker.end()
        return _Worker(nice)

    def release(self, worker: _Worker) -> None:
        """Return a worker to the pool."""
        with self._guard:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.end()

    def close(self) -> None:
        """End idle workers. Busy ones end when they are released."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


class Examiner:
    """Examines files, each in its own process. Thread-safe."""

    def __init__(self, limits: SandboxLimits, pool: SandboxPool | None = None) -> None:
        """The caller closes `pool`; None creates a pool that `close` ends."""
        self.limits = limits
        self._pool = SandboxPool() if pool is None else pool
        self._owned_pool = self._pool if pool is None else None

    def start(self) -> None:
        """Start a worker in advance. Raises `OSError`."""
        self._pool.release(self._pool.acquire())

    def require_start(self) -> None:
        """Return when a worker is ready.

        Raises `ExaminerError` if its libraries do not load or work, `BusyError` if no process can
        be started for lack of memory, and `OSError`.
        """
        for _ in range(_ATTEMPTS):
            worker = self._pool.acquire()
            try:
                worker.require_ready()
            except _GoneError:
                worker.kill()
                continue
            except BaseException:
                worker.kill()
                raise
            self._pool.release(worker)
            return
        raise _not_started()

    def examine(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        full: bool = False,
        stream: int | None = None,
        in_largest_size: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Examination:
        """Probe a file and build its frame table; see `vfsd.codecs.probing.probe.examine`.

        Args:
            path: The file.
            name: Used in messages; default: the last component of `path`.
            full: Whether to decode every frame.
            stream: Index of the video stream among all streams; default: the best one by FFmpeg.
            in_largest_size: As in `MediaInfo`.
            on_progress: Called with (bytes done, bytes in total); it may raise to cancel.

        Raises `RefusedMediaError` if the file is not a video that can be served, or if its
        examination crashes, hangs or exceeds the limits. Raises `OSError`, and as `require_start`.
        """
        name = name or os.path.basename(os.fspath(path))
        fd = os.open(
            path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        )  # O_NONBLOCK: do not wait at a pipe
        try:
            return self.examine_open(
                fd,
                name,
                full=full,
                stream=stream,
                in_largest_size=in_largest_size,
                on_progress=on_progress,
            )
        finally:
            os.close(fd)

    def examine_open(
        self,
        fd: int,
        name: str,
        *,
        full: bool = False,
        stream: int | None = None,
        in_largest_size: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Examination:
        """Examine an open file, which is only read with `pread`; see `examine`. The caller closes
        it."""
        from vfsd.codecs.probing.serialize import max_examination_bytes, unpack_examination

        sniff_open(fd, name)
        size = os.fstat(fd).st_size
        answer = _ExpectedReply(
            max_examination_bytes(size), lambda body: unpack_examination(body, size)
        )
        request = self._request(name, size, full=full)
        request = replace(request, stream=stream, in_largest_size=in_largest_size)
        return self._ask(request, fd, answer, on_progress)

    def _request(self, name: str, size: int, *, full: bool = False) -> ExamineRequest:
        shown = name[-_MAX_NAME:]
        return ExamineRequest(shown, size, full, self.limits.memory, self.limits.cpu_seconds(size))

    def _ask(
        self,
        request: ExamineRequest,
        fd: int,
        expected: _ExpectedReply[_Found],
        on_progress: OnProgress | None,
    ) -> _Found:
        """Have a worker serve a request; return the unpacked reply. Raises as `examine`."""
        for attempt in range(_ATTEMPTS):
            worker = self._pool.acquire()
            try:
                return self._found(worker, request, fd, expected, on_progress)
            except _GoneError:
                continue
            except _KilledError as killed:
                if attempt + 1 == _ATTEMPTS:
                    raise RefusedMediaError(str(killed)) from killed
        raise _not_started()

    def inventory(
        self, path: str | os.PathLike[str], media: MediaInfo, *, name: str | None = None
    ) -> Inventory:
        """List everything in a file but samples. Raises as `examine`.

        See `vfsd.codecs.inventory.file_inventory.take_inventory`.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return self.inventory_open(fd, media, name or os.path.basename(os.fspath(path)))
        finally:
            os.close(fd)

    def inventory_open(self, fd: int, media: MediaInfo, name: str) -> Inventory:
        """List an open file, which is only read with `pread`; see `inventory`. The caller closes
        it."""
        from vfsd.codecs.inventory.inventory import MAX_INVENTORY_BYTES, unpack_inventory

        request = self._request(name, os.fstat(fd).st_size)
        request = replace(request, listed=(media.container, media.stream_index))
        return self._ask(request, fd, _ExpectedReply(MAX_INVENTORY_BYTES, unpack_inventory), None)

    def close(self) -> None:
        """End its own workers. Busy ones end with their work."""
        if self._owned_pool is not None:
            self._owned_pool.close()

    def _found(
        self,
        worker: _Worker,
        request: ExamineRequest,
        fd: int,
        expected: _ExpectedReply[_Found],
        on_progress: OnProgress | None,
    ) -> _Found:
        try:
            found = worker.examine(request, fd, expected, self.limits, on_progress)
        except BaseException as error:
            if worker.is_idle:
                self._pool.release(worker)
            else:
                worker.kill()
            if isinstance(error, IntegrityError):
                raise RefusedMediaError(f"{request.name}: cannot be examined: {error}") from error
            raise
        self._pool.release(worker)
        return found


def _not_started() -> BusyError:
    return BusyError(
        "the process that examines files was killed before it could work",
        hint="try again later if memory is short",
    )


def sniff_open(fd: int, name: str) -> None:
    """Raise `RefusedMediaError` if an open file does not start like a video."""
    from vfsd.codecs.containers.detect_container import HEAD_BYTES, detect_container

    try:
        detect_container(os.pread(fd, HEAD_BYTES, 0))
    except RefusedMediaError as refusal:
        raise RefusedMediaError(f"{name}: {refusal}", hint=refusal.hint) from refusal


class _Worker:
    """A running `vfsd.storage.sandbox_start`. One user at a time."""

    def __init__(self, nice: int) -> None:
        self.nice = nice  #: nice value, inherited from the starting thread
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                module_command(MODULE, str(theirs.fileno())),
                cwd="/",
                # A process without threads can fork safely at any time.
                env=child_environment() | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # not interrupted by Ctrl-C in the terminal
            )
        self.is_idle = True  #: no request is in progress and no data is unread
        self.is_ready = False  #: it has sent `READY`
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self.is_idle = False
        self._control.close()  # the worker ends when all copies are closed

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def examine(
        self,
        request: ExamineRequest,
        fd: int,
        expected: _ExpectedReply[_Found],
        limits: SandboxLimits,
        on_progress: OnProgress | None,
    ) -> _Found:
        """Serve one request.

        Raises `RefusedMediaError`, `IntegrityError` for an invalid reply, `OSError`, errors of
        `on_progress`, and as `require_ready`.
        """
        self.is_idle = False
        self.require_ready()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with mine:
            with theirs:
                try:
                    socket.send_fds(self._control, [request.message()], [fd, theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError) as error:
                    raise _GoneError from error
            answer = _ReplyReader(mine, expected.max_bytes, limits.silent_seconds)
            try:
                kind, body = answer.last(on_progress)
            except TimeoutError:
                raise RefusedMediaError(
                    f"{request.name}: examining it hangs: no progress in "
                    f"{limits.silent_seconds:.0f} seconds"
                ) from None
        status = self._status()
        self.is_idle = True
        if kind == FOUND:
            return expected.unpack(body)
        if not kind:
            raise _refusal(request, status)
        report = ErrorReport.parse(body)
        if kind == REFUSED:
            raise RefusedMediaError(report.text, hint=report.hint)
        raise OSError(report.number, report.text)

    def require_ready(self) -> None:
        """Wait until the worker has loaded its libraries.

        Raises `ExaminerError` if it cannot, and `_GoneError` if it was killed.
        """
        if self.is_ready:
            return
        message = b""
        if not _can_read(self._control, _START_SECONDS):
            raise _broken(f"it is not ready after {_START_SECONDS:.0f} seconds")
        with suppress(ConnectionResetError):
            message = self._control.recv(MAX_REQUEST_BYTES)
        if message == READY:
            self.is_ready = True
            return
        if message:
            raise _broken(ErrorReport.parse(message).text)
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise _broken("it does not answer") from None
        if status == -signal.SIGKILL:
            raise _GoneError
        if status < 0:
            raise _broken(f"it crashes ({signal.Signals(-status).name})")
        raise _broken(f"it ends with {status}")

    def end(self) -> None:
        """Close the socket and wait: the worker ends at once."""
        self._control.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the worker and its child."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _status(self) -> int:
        """Return the wait status of the child."""
        if not _can_read(self._control, _END_SECONDS):
            raise IntegrityError("the child does not end")
        with suppress(ConnectionResetError):
            message = self._control.recv(MAX_REQUEST_BYTES)
            if message:
                return int(json.loads(message)["status"])
        raise _GoneError


def _broken(why: str) -> ExaminerError:
    return ExaminerError(
        f"the process that examines files does not start: {why}",
        hint="run `vfsd doctor`; `pip check` lists packages with conflicting versions",
    )


def _refusal(request: ExamineRequest, status: int) -> RefusedMediaError | _KilledError:
    """Return the error for a child that ended without a reply."""
    kind: type[RefusedMediaError | _KilledError] = RefusedMediaError
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        why = f"takes more than {request.cpu_seconds} seconds of CPU time"
    elif number == signal.SIGKILL:
        kind, why = _KilledError, "was killed, perhaps for lack of memory"
    elif number:
        why = f"crashes ({signal.Signals(number).name})"
    else:
        why = f"ended with {os.waitstatus_to_exitcode(status)}"
    _log.warning("%s: examining it %s", request.name, why)
    return kind(f"{request.name}: examining it {why}")


def _can_read(end: socket.socket, seconds: float) -> bool:
    """Wait until the socket is readable; return False after `seconds`. Any descriptor number
    works."""
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


class _ReplyReader:
    """Reads the records of a reply as they arrive."""

    def __init__(self, end: socket.socket, max_bytes: int, silent_seconds: float) -> None:
        end.setblocking(False)
        self._end = end
        self._most = {
            PROGRESS: PROGRESS_BODY.size,
            FOUND: max_bytes,
            REFUSED: MAX_ERROR_BYTES,
            UNREADABLE: MAX_ERROR_BYTES,
        }
        self._silent_seconds = silent_seconds

    def last(self, on_progress: OnProgress | None) -> tuple[bytes, bytes]:
        """Return (kind, body) of the record after progress; empty if there is none.

        Raises `TimeoutError` if nothing arrives for too long, `IntegrityError` for an invalid
        record.
        """
        while True:
            head = self._read(RECORD.size)
            if len(head) < RECORD.size:
                return b"", b""
            kind, length = RECORD.unpack(head)
            if length > self._most.get(kind, -1):
                raise IntegrityError("invalid reply")
            body = self._read(length)
            if len(body) < length:
                return b"", b""
            if kind != PROGRESS:
                return kind, body
            if len(body) != PROGRESS_BODY.size:
                raise IntegrityError("invalid progress record")
            if on_progress is not None:
                done, total = PROGRESS_BODY.unpack(body)
                on_progress(min(max(done, 0), max(total, 0)), max(total, 0))

    def _read(self, length: int) -> bytes:
        """Return `length` bytes; fewer if the other end was closed."""
        data = bytearray()
        end = time.monotonic() + self._silent_seconds
        while len(data) < length:
            if not _can_read(self._end, max(0.0, end - time.monotonic())):
                raise TimeoutError
            try:
                more = self._end.recv(min(_CHUNK, length - len(data)))
            except ConnectionResetError:
                more = b""
            if not more:
                break
            data += more
            end = time.monotonic() + self._silent_seconds
        return bytes(data)
