"""`RenderProcess`: the mount's side of the process that renders views."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from vfsd.api.store import Store
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import IntegrityError, MountError, NotFoundError
from vfsd.mount import render_server
from vfsd.mount.background_work import PriorityControl
from vfsd.mount.render_protocol import (
    FAILED,
    KILL,
    MADE,
    READY,
    REPLACED,
    REPLY_BYTES,
    START,
    STOP,
    BufferPool,
    RenderReply,
    RenderRequest,
)
from vfsd.storage.file_cache import Bytes
from vfsd.storage.sandbox_protocol import ErrorReport
from vfsd.views.render_context import Checkpoint
from vfsd.views.rendering import SlotRequest

# How often a waiting thread checks whether the result is still wanted.
_CHECK_SECONDS = 0.1
# If a cancelled request does not end after this time, the process is killed with all its work.
_STUCK_SECONDS = 30.0
# How long the start or end of a process may take to be reported.
_END_SECONDS = 30.0
# A slot that crashes the process this often is given up.
_MAX_CRASHES = 2
# Buffer size for slots of unknown size. Only written pages use memory.
_MAX_BYTES = 1 << 30

_log = logging.getLogger(__name__)


class _WorkerGoneError(Exception):
    """The process has ended or closed the socket."""


class RenderProcess:
    """A process that renders slots of views. Thread-safe.

    It is started by the first request, ends when it is idle for long, and is replaced after a
    crash.
    """

    def __init__(
        self, starter: socket.socket, report_crash: Callable[[], None], priority: PriorityControl
    ) -> None:
        """Take over `starter` from `vfsd.mount.render_server.start`.

        `report_crash` is called after a crash of the process.
        """
        self._starter = starter
        self._report_crash = report_crash
        self._priority = priority
        self._buffers = BufferPool()
        self._guard = threading.Lock()
        self._current: _RenderWorker | None = None
        self._closed = False
        self.decoder_memory = 0
        """Bytes of frames that its idle decoders held at the last reply."""

    @property
    def pid(self) -> int | None:
        """The pid of the process; None if there is none."""
        current = self._current
        return None if current is None else current.pid

    def make(self, request: SlotRequest, check: Checkpoint) -> Bytes | None:
        """Render a slot; see `vfsd.views.rendering.RemoteRenderer.make`.

        Raises `IntegrityError` if the process crashes each time.
        """
        crashes = 0
        while True:
            worker = self._running()
            if worker is None:
                return None
            try:
                reply, made = worker.make(request, check)
            except _WorkerGoneError:
                reason = self._discard(worker)
                crashes += reason is not None
                if crashes < _MAX_CRASHES:
                    continue
                raise IntegrityError(
                    f"{request.path}: rendering ended the render process twice ({reason})",
                    hint="see the log of the mount",
                ) from None
            self.decoder_memory = reply.decoders
            if reply.error is not None:
                raise reply.error
            return made

    def require_start(self) -> None:
        """Start a process and end it, as a test. Raises `MountError`."""
        with self._guard:
            try:
                started = self._start()
            except (OSError, ValueError, KeyError, IntegrityError) as error:
                raise MountError(f"the render process does not start: {error}") from error
            started.close()
            self._end()

    def close(self) -> None:
        """End the process and all its work."""
        with self._guard:
            self._closed = True
            if self._current is not None:
                self._current.close()
                self._end()
                self._current = None
            self._starter.close()
        self._buffers.close()

    def _running(self) -> _RenderWorker | None:
        """Return the process, started if necessary; None if that is impossible."""
        with self._guard:
            if self._current is not None:
                return self._current
            if self._closed:
                return None
            try:
                self._current = self._start()
            except (OSError, ValueError, KeyError, IntegrityError) as error:
                self._disable(str(error))
            return self._current

    def _disable(self, why: str) -> None:
        _log.warning("views are rendered in the process of the mount: %s", why)
        self._closed = True

    def _start(self) -> _RenderWorker:
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with other_end:
                socket.send_fds(self._starter, [START], [other_end.fileno()])
            pid = self._receive("pid")
            try:
                _require_ready(own_end)
            except BaseException:
                self._end()
                raise
            return _RenderWorker(own_end, pid, self._buffers, self._priority)
        except BaseException:
            own_end.close()
            raise

    def _discard(self, worker: _RenderWorker) -> str | None:
        """Remove a process that has ended; return why it crashed, or None if it did not."""
        with self._guard:
            if self._current is not worker:
                return worker.reason  # another thread has handled it
            self._current = None
            worker.close()
            status = self._end()
            self.decoder_memory = 0
            if status == 0:
                return None
            if os.WIFEXITED(status) and not worker.has_answered:
                self._disable("the render process does not start")
                return None
            worker.reason = _exit_description(status)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
                self._report_crash()
            _log.error("the render process %s", worker.reason)
            return worker.reason

    def _end(self) -> int:
        """Return the exit status of the process. It is killed if it is still running."""
        with suppress(OSError, ValueError, KeyError):
            try:
                return self._receive("status", _CHECK_SECONDS)
            except TimeoutError:
                self._starter.send(KILL)
                return self._receive("status")
        return int(signal.SIGKILL)

    def _receive(self, what: str, seconds: float = _END_SECONDS) -> int:
        """Return a number from the starter process.

        Raises `TimeoutError`, and `ValueError` or `KeyError` for an invalid message.
        """
        waiting = select.poll()
        waiting.register(self._starter, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            raise TimeoutError("the starter process does not answer")
        return int(json.loads(self._starter.recv(1024))[what])


@contextmanager
def render_starter(
    directory: StoreDirectory, *, read_only: bool, note: Path
) -> Iterator[socket.socket | None]:
    """Yield the socket of `vfsd.mount.render_server.start`; None where views are rendered here.

    Call it while this process has one thread and before it opens the store.
    """
    if not render_server.can_start():
        yield None
        return
    starter, pid = render_server.start(directory, read_only=read_only, note=note)
    try:
        yield starter
    finally:
        starter.close()
        os.waitpid(pid, 0)


@contextmanager
def render_process(
    starter: socket.socket | None,
    store: Store,
    *,
    note: Path,
    are_files_read: Callable[[], bool],
) -> Iterator[RenderProcess | None]:
    """Yield the render process; None: views are rendered in this process.

    `are_files_read` returns whether plain files are being read, which come first.
    """
    if starter is None:
        yield None
        return
    priority = PriorityControl(are_files_read)
    renders = RenderProcess(starter, partial(quarantine_crashed, store, note), priority)
    try:
        yield renders
    finally:
        renders.close()
        if not store.parts.read_only:
            note.unlink(missing_ok=True)


def quarantine_crashed(store: Store, note: Path) -> None:
    """Quarantine the files that a crashed process was decoding, according to its note."""
    if store.parts.read_only:
        return  # there are no notes
    numbers, how = store.parts.quarantine.crashed(note)
    for number in numbers:
        with store.catalog.reading() as seen:
            try:
                physical = seen.videos.physical(number)
            except NotFoundError:
                continue
        store.parts.quarantine.add_crash(physical, how)
        _log.warning("video %d was being decoded at that time and is quarantined", number)
    note.unlink(missing_ok=True)


class _RenderWorker:
    """One render process. Each waiting thread has its own connection."""

    def __init__(
        self, requests: socket.socket, pid: int, buffers: BufferPool, priority: PriorityControl
    ) -> None:
        self.pid = pid
        self.reason: str | None = None  #: why it has ended
        self.has_answered = False
        self._requests = requests
        self._buffers = buffers
        self._priority = priority
        self._guard = threading.Lock()
        self._idle: list[_WorkerConnection] = []

    def make(self, request: SlotRequest, check: Checkpoint) -> tuple[RenderReply, Bytes | None]:
        """Render a slot.

        Raises `_WorkerGoneError`, `OSError` without memory, and the exceptions of `check`.
        """
        with self._connection() as connection:  # first: each closed buffer is reported once
            buffer = self._buffers.acquire(request.room or _MAX_BYTES)
            message = RenderRequest(request, buffer.number, self._buffers.closed())
            try:
                reply = self._exchange(connection, message, buffer.fd, check)
            except BaseException:
                self._buffers.drop(buffer)
                raise
        self.has_answered = True
        if reply.kind != MADE:
            self._buffers.release(buffer)
            return reply, None
        return reply, self._buffers.detach(buffer, reply.length)

    def _exchange(
        self, connection: _WorkerConnection, message: RenderRequest, fd: int, check: Checkpoint
    ) -> RenderReply:
        def check_while_waiting() -> None:
            self._priority.update(self.pid)
            check()

        try:
            return connection.reply(message, fd, check_while_waiting)
        except _WorkerGoneError:
            connection.close()
            raise
        except (OSError, IntegrityError) as error:
            connection.close()
            _log.debug("no reply of the render process: %s", error)
            raise _WorkerGoneError from None

    def close(self) -> None:
        self._requests.close()
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[_WorkerConnection]:
        """Yield a connection for this thread alone. Raises as `make`."""
        connection = self._free_connection()
        try:
            yield connection
        finally:
            if not connection.is_closed:
                with self._guard:
                    self._idle.append(connection)

    def _free_connection(self) -> _WorkerConnection:
        with self._guard:
            if self._idle:
                return self._idle.pop()
            own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with other_end:
                    socket.send_fds(self._requests, [START], [other_end.fileno()])
            except OSError:
                own_end.close()
                raise _WorkerGoneError from None
            return _WorkerConnection(own_end)


class _WorkerConnection:
    """A connection to one thread of the process, which serves one request at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.is_closed = False
        self._end = end
        self._waiting = select.poll()  # not select(): descriptors may exceed 1023
        self._waiting.register(end, select.POLLIN)

    def reply(self, message: RenderRequest, fd: int, check: Checkpoint) -> RenderReply:
        """Send a request and return its reply, calling `check` while it waits.

        If `check` raises, the request is cancelled, and the exception is raised after its end.
        Raises `_WorkerGoneError` if that takes too long, `OSError`, and `IntegrityError`.
        """
        socket.send_fds(self._end, [message.message()], [fd])
        try:
            check()
            while not self._waiting.poll(_CHECK_SECONDS * 1000):
                check()
        except BaseException as error:
            # The reply must be read, or the next request on this connection would get it.
            self._end.send(STOP)
            if not self._waiting.poll(_STUCK_SECONDS * 1000):
                raise _WorkerGoneError from error
            self._end.recv(REPLY_BYTES)
            raise
        reply = RenderReply.parse(self._end.recv(REPLY_BYTES))
        if reply.kind not in (MADE, REPLACED, FAILED):
            raise IntegrityError("unexpected kind of reply")
        return reply

    def close(self) -> None:
        self.is_closed = True
        self._end.close()


def _require_ready(requests: socket.socket) -> None:
    """Wait for `READY`. Raises `TimeoutError`, `OSError` with the reason, `IntegrityError`."""
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    if not waiting.poll(_END_SECONDS * 1000):
        raise TimeoutError(f"not ready after {_END_SECONDS:.0f} seconds")
    message = requests.recv(REPLY_BYTES)
    if message != READY:
        raise OSError(ErrorReport.parse(message).text if message else "ended at once")


def _exit_description(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return "was killed, perhaps for lack of memory"
        return f"crashed ({signal.Signals(number).name})"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
