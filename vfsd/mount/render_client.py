"""The process that makes views for a mount, as the mount has hold of it."""

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

from vfsd.errors import IntegrityError, MountError
from vfsd.mount.foreground_priority import PriorityControl
from vfsd.mount.render_protocol import (
    ANSWER_BYTES,
    FAILED,
    KILL,
    MADE,
    OTHER,
    READY,
    START,
    STOP,
    BufferPool,
    RenderReply,
    RenderRequest,
)
from vfsd.storage.file_cache import Bytes
from vfsd.storage.sandbox_protocol import ErrorReport
from vfsd.views.remote_render import SlotRequest
from vfsd.views.render_cache import Checkpoint

_CHECK_SECONDS = 0.1
"""So often it is looked whether anybody wants what is waited for."""
_STUCK_SECONDS = 30.0
"""After as long, what nobody wants and what does not end is ended, with all that goes on beside."""
_END_SECONDS = 30.0
"""How long it may take to hear of a beginning or an end."""
_CRASHES = 2
"""So many for the sake of one slot, and it is given up."""
_MOST_BYTES = 1 << 30
"""Of a slot whose size nobody knows beforehand; memory is taken up only by what there is."""

_log = logging.getLogger(__name__)


class _GoneError(Exception):
    """The process has ended, or has closed the socket."""


class RenderProcess:
    """A process that makes slots of views, and its successors.  Thread-safe.

    There is none before the first order, and none after a while without any.
    """

    def __init__(
        self, starter: socket.socket, accuse: Callable[[], None], deference: PriorityControl
    ) -> None:
        """`starter` is that of `vfsd.mount.render_server.start`, the caller's no more;
        `add_crash` is called when a process has crashed."""
        self._starter = starter
        self._accuse = accuse
        self._deference = deference
        self._sheets = BufferPool()
        self._guard = threading.Lock()
        self._current: _RenderWorker | None = None
        self._closed = False
        self.decoder_memory = 0
        """Bytes of pictures that idle decoders hold there, as of the last answer."""

    @property
    def pid(self) -> int | None:
        """Of the process; None where there is none."""
        current = self._current
        return None if current is None else current.pid

    def make(self, order: SlotRequest, check: Checkpoint) -> Bytes | None:
        """See `vfsd.views.remote_render.RemoteRenderer.make`.

        Raises `IntegrityError` where the process ends each time.
        """
        crashes = 0
        while True:
            workshop = self._workshop()
            if workshop is None:
                return None
            try:
                answer, made = workshop.make(order, check)
            except _GoneError:
                how = self._bury(workshop)
                crashes += how is not None
                if crashes < _CRASHES:
                    continue
                raise IntegrityError(
                    f"{order.path}: the process that makes views has ended twice over it ({how})",
                    hint="what it said stands in the log of the mount",
                ) from None
            self.decoder_memory = answer.decoders
            if answer.error is not None:
                raise answer.error
            return made

    def require_start(self) -> None:
        """Start a process, and end it: the first order starts another.

        Raises `MountError` where it does not come up.
        """
        with self._guard:
            try:
                started = self._started()
            except (OSError, ValueError, KeyError, IntegrityError) as error:
                raise MountError(f"the process that makes views does not start: {error}") from error
            started.close()
            self._end()

    def close(self) -> None:
        """End it, with all that it does."""
        with self._guard:
            self._closed = True
            if self._current is not None:
                self._current.close()
                self._end()
                self._current = None
            self._starter.close()
        self._sheets.close()

    def _workshop(self) -> _RenderWorker | None:
        """The process as it is now, started where there is none; None where that cannot be."""
        with self._guard:
            if self._current is not None:
                return self._current
            if self._closed:
                return None
            try:
                self._current = self._started()
            except (OSError, ValueError, KeyError, IntegrityError) as error:
                self._do_without(str(error))
            return self._current

    def _do_without(self, why: str) -> None:
        _log.warning("views are made in the mount's own process: %s", why)
        self._closed = True

    def _started(self) -> _RenderWorker:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._starter, [START], [theirs.fileno()])
            pid = self._heard("pid")
            try:
                _require_ready(mine)
            except BaseException:
                self._end()
                raise
            return _RenderWorker(mine, pid, self._sheets, self._deference)
        except BaseException:
            mine.close()
            raise

    def _bury(self, workshop: _RenderWorker) -> str | None:
        """Let a process go that has ended; how it did, None where it had nothing to do."""
        with self._guard:
            if self._current is not workshop:
                return workshop.how  # another thread was here before
            self._current = None
            workshop.close()
            status = self._end()
            self.decoder_memory = 0
            if status == 0:
                return None
            if os.WIFEXITED(status) and not workshop.has_answered:
                self._do_without("it does not come up")
                return None
            workshop.how = _told(status)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
                self._accuse()
            _log.error("the process that makes views %s", workshop.how)
            return workshop.how

    def _end(self) -> int:
        """The status with which the process has ended, which is killed unless it has."""
        with suppress(OSError, ValueError, KeyError):
            try:
                return self._heard("status", _CHECK_SECONDS)
            except TimeoutError:
                self._starter.send(KILL)
                return self._heard("status")
        return int(signal.SIGKILL)

    def _heard(self, what: str, seconds: float = _END_SECONDS) -> int:
        """A number that the starter tells.  Raises `TimeoutError` where it does not within that
        time, `ValueError` or `KeyError` for something else."""
        waiting = select.poll()
        waiting.register(self._starter, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            raise TimeoutError("the process that starts them does not answer")
        return int(json.loads(self._starter.recv(1024))[what])


class _RenderWorker:
    """One process.  Each thread that orders something of it has a line to it meanwhile."""

    def __init__(
        self, orders: socket.socket, pid: int, sheets: BufferPool, deference: PriorityControl
    ) -> None:
        self.pid = pid
        self.how: str | None = None  #: it has ended
        self.has_answered = False
        self._orders = orders
        self._sheets = sheets
        self._deference = deference
        self._guard = threading.Lock()
        self._idle: list[_WorkerConnection] = []

    def make(self, order: SlotRequest, check: Checkpoint) -> tuple[RenderReply, Bytes | None]:
        """Raises `_GoneError`, `OSError` where there is no memory, and what `check` does."""
        with self._line() as line:  # first: sheets that are gone are told of once
            sheet = self._sheets.take(order.room or _MOST_BYTES)
            errand = RenderRequest(order, sheet.number, self._sheets.gone())
            try:
                answer = self._answer(line, errand, sheet.fd, check)
            except BaseException:
                self._sheets.drop(sheet)
                raise
        self.has_answered = True
        if answer.kind != MADE:
            self._sheets.back(sheet)
            return answer, None
        return answer, self._sheets.filled(sheet, answer.length)

    def _answer(
        self, line: _WorkerConnection, errand: RenderRequest, fd: int, check: Checkpoint
    ) -> RenderReply:
        def meanwhile() -> None:
            self._deference.look(self.pid)
            check()

        try:
            return line.answer(errand, fd, meanwhile)
        except _GoneError:
            line.close()
            raise
        except (OSError, IntegrityError) as error:
            line.close()
            _log.debug("no answer of the process that makes views: %s", error)
            raise _GoneError from None

    def close(self) -> None:
        self._orders.close()
        with self._guard:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    @contextmanager
    def _line(self) -> Iterator[_WorkerConnection]:
        """One that nobody else has meanwhile.  Raises as `make` does."""
        line = self._free_line()
        try:
            yield line
        finally:
            if not line.is_closed:
                with self._guard:
                    self._idle.append(line)

    def _free_line(self) -> _WorkerConnection:
        with self._guard:
            if self._idle:
                return self._idle.pop()
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with theirs:
                    socket.send_fds(self._orders, [START], [theirs.fileno()])
            except OSError:
                mine.close()
                raise _GoneError from None
            return _WorkerConnection(mine)


class _WorkerConnection:
    """To a thread of the process, which has one order at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.is_closed = False
        self._end = end
        self._waiting = select.poll()  # the number may be large: a mount has many files open
        self._waiting.register(end, select.POLLIN)

    def answer(self, errand: RenderRequest, fd: int, check: Checkpoint) -> RenderReply:
        """What comes of an order.

        Raises what `check` does, as soon as nothing is done for it any more; `_GoneError` where
        that takes too long; `OSError`, `IntegrityError`.
        """
        socket.send_fds(self._end, [errand.message()], [fd])
        try:
            check()
            while not self._waiting.poll(_CHECK_SECONDS * 1000):
                check()
        except BaseException as error:
            self._end.send(STOP)
            if not self._waiting.poll(_STUCK_SECONDS * 1000):
                raise _GoneError from error
            self._end.recv(ANSWER_BYTES)
            raise
        answer = RenderReply.parse(self._end.recv(ANSWER_BYTES))
        if answer.kind not in (MADE, OTHER, FAILED):
            raise IntegrityError("an answer to another order")
        return answer

    def close(self) -> None:
        self.is_closed = True
        self._end.close()


def _require_ready(orders: socket.socket) -> None:
    """Raises `TimeoutError`, `OSError` that says why the process cannot make views,
    `IntegrityError`."""
    waiting = select.poll()
    waiting.register(orders, select.POLLIN)
    if not waiting.poll(_END_SECONDS * 1000):
        raise TimeoutError(f"it is not ready after {_END_SECONDS:.0f} seconds")
    told = orders.recv(ANSWER_BYTES)
    if told != READY:
        raise OSError(ErrorReport.parse(told).text if told else "it ended at once")


def _told(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return "was killed, as where memory runs out"
        return f"has crashed ({signal.Signals(number).name})"
    return f"has ended with {os.waitstatus_to_exitcode(status)}"
