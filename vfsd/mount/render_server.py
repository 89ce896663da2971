"""The process that renders views for a mount, and the starter process that forks it.

Rendering in another process does not hold the interpreter lock of the mount, and a crash of a
decoder does not end the mount. `start` forks the starter before the mount has threads. The starter
then forks a render process whenever the mount needs one, which costs only the fork. Both end with
the mount, however that ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from vfsd.api.store import Store
from vfsd.core.process_control import (
    MallocTrimmer,
    die_with_parent,
    limit_arenas,
    set_autogroup_niceness,
    set_oom_score,
)
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import VfsdError
from vfsd.mount.background_work import ORDINARY
from vfsd.mount.render_protocol import (
    CANCELLED,
    FAILED,
    MADE,
    READY,
    REPLACED,
    REQUEST_BYTES,
    START,
    STOP,
    BufferMappings,
    RenderReply,
    RenderRequest,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.sandbox_protocol import MAX_ERROR_BYTES, ErrorReport
from vfsd.views.render_cache import RenderCancelledError
from vfsd.views.rendering import SlotRenderer

# Used where the kernel has no scheduling groups for sessions.
_NICENESS = 5
_PR_SET_NAME = 15
# Name of both processes in process lists.
_NAME = b"vfsd-views"
# The kernel kills this process before the mount when memory is short.
_OOM_SCORE = 500
# The process ends, and frees its memory, after this time without requests.
_IDLE_SECONDS = 300.0
_MAX_DESCRIPTORS = 1 << 16

_log = logging.getLogger(__name__)


def can_start() -> bool:
    """Return whether the system supports it."""
    return hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")


def start(directory: StoreDirectory, *, read_only: bool, note: Path) -> tuple[socket.socket, int]:
    """Fork the starter process for the store in `directory`.

    `note` is the file for `vfsd.storage.quarantine`; no other process uses it.

    Return (socket for `START` and `KILL` and for the exit statuses, pid). Call it while this
    process has one thread and before it opens the store: SQLite's locks do not survive a fork.
    Raises `OSError`.
    """
    own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other_end:
        parent = os.getpid()
        child = os.fork()
        if not child:
            try:
                held = directory.anchor
                _become_starter(parent, [other_end.fileno(), *([] if held is None else [held.fd])])
                _run_starter(other_end, directory, read_only, note)
            except BaseException:
                # The mount only sees a closed socket.
                _log.exception("the process that starts render processes has ended")
            finally:
                os._exit(1)
    return own_end, child


# -- the starter process


def _become_starter(parent: int, keep: Sequence[int]) -> None:
    """Close all inherited descriptors but `keep`, reset signals, and die with the mount."""
    die_with_parent(parent)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C in a terminal: the mount ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _MAX_DESCRIPTORS)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.collect()
    gc.freeze()  # children then share these pages instead of copying them


def _run_starter(
    control: socket.socket, directory: StoreDirectory, read_only: bool, note: Path
) -> NoReturn:
    """Fork render processes on request, one at a time.

    The mount waits for the end of one before it requests another.
    """
    child, ended = 0, -1
    while True:
        waiting = select.poll()
        waiting.register(control, select.POLLIN)
        if child:
            waiting.register(ended, select.POLLIN)
        ready = dict(waiting.poll())
        if ended in ready:
            os.close(ended)
            _, status, _ = os.wait4(child, 0)
            _send(control, "status", status)
            child = 0
        if control.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if child:
                os.kill(child, signal.SIGKILL)
            if not message:
                os._exit(0)
            if message == START and not child:
                requests = socket.socket(fileno=fds[0])
                child, ended = _fork_renderer(control, requests, directory, read_only, note)


def _send(control: socket.socket, what: str, number: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        control.send(json.dumps({what: number}).encode("ascii"))


def _fork_renderer(
    control: socket.socket,
    requests: socket.socket,
    directory: StoreDirectory,
    read_only: bool,
    note: Path,
) -> tuple[int, int]:
    """Fork a render process; return its pid and a pidfd."""
    with requests:
        me = os.getpid()
        child = os.fork()
        if not child:
            try:
                die_with_parent(me)
                _start_session()
                _send(control, "pid", os.getpid())
                control.close()
                _render_views(requests, directory, read_only, note)
            except BaseException as error:
                _log.exception("the render process has ended")
                text = f"{type(error).__name__}: {error}"[: MAX_ERROR_BYTES // 16]
                with suppress(OSError):
                    requests.send(ErrorReport(text).message())
            finally:
                os._exit(1)
    return child, os.pidfd_open(child)


# -- the render process


def _start_session() -> None:
    """Start a session, so that the process has its own share of the CPU.

    The mount changes that share as soon as it knows the pid, and must not change its own.
    """
    os.setsid()
    set_autogroup_niceness(os.getpid(), ORDINARY)


def _render_views(
    requests: socket.socket, directory: StoreDirectory, read_only: bool, note: Path
) -> NoReturn:
    """Serve requests until the mount has gone, or is idle for long; then end the process."""
    os.nice(_NICENESS)
    set_oom_score(_OOM_SCORE)
    limit_arenas()
    with ExitStack() as stack:
        store = stack.enter_context(Store(StoreContext.of(directory, read_only=read_only)))
        if not read_only:
            stack.enter_context(store.parts.quarantine.record_decoding(note))
        renderer = SlotRenderer(store.parts, store.tools)
        stack.enter_context(closing(MallocTrimmer(renderer.evict_idle)))
        threads = _RenderThreads(store, renderer)
        waiting = select.poll()
        waiting.register(requests, select.POLLIN)
        requests.send(READY)
        while (left := threads.idle_left()) > 0:
            if waiting.poll(left * 1000):
                message, fds, _, _ = socket.recv_fds(requests, 1, 1)
                if not message:
                    break
                threads.serve(socket.socket(fileno=fds[0]))
        # Exit at once, without closing the store: a request may arrive at this moment, and the
        # mount must find either a working process or none.
        os._exit(0)


class _RenderThreads:
    """One thread for each thread of the mount that waits for a slot."""

    def __init__(self, store: Store, renderer: SlotRenderer) -> None:
        self._store = store
        self._renderer = renderer
        self._mappings = BufferMappings()
        self._guard = threading.Lock()
        self._busy = 0
        self._last = time.monotonic()

    def idle_left(self) -> float:
        """Return the seconds until the process counts as idle for long."""
        with self._guard:
            if self._busy:
                return _IDLE_SECONDS
            return self._last + _IDLE_SECONDS - time.monotonic()

    def serve(self, requests: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(requests,), daemon=True).start()

    def _serve(self, requests: socket.socket) -> None:
        with requests:
            while True:
                message, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 1)
                if not message:
                    return
                if message == STOP:
                    continue  # the request is finished already
                with self._guard:
                    self._busy += 1
                try:
                    reply = self._render(RenderRequest.parse(message), fds[0], requests)
                finally:
                    os.close(fds[0])
                    with self._guard:
                        self._busy -= 1
                        self._last = time.monotonic()
                requests.send(reply.message())

    def _render(self, request: RenderRequest, fd: int, requests: socket.socket) -> RenderReply:
        kind, length, error = FAILED, 0, None
        self._mappings.clear(request.closed)
        place = partial(self._mappings.place, request.buffer, fd)
        try:
            size = self._renderer.make(request.slot, lambda: _check(requests), place)
            kind, length = (REPLACED, 0) if size is None else (MADE, size)
        except RenderCancelledError:
            kind = CANCELLED
        except (VfsdError, OSError) as failure:
            error = failure
        except Exception as failure:
            _log.exception("a view could not be rendered")
            error = VfsdError(f"{type(failure).__name__}: {failure}")
        return RenderReply(kind, length, self._store.tools.pool.memory, error)


def _check(requests: socket.socket) -> None:
    """Raise `RenderCancelledError` if a message has arrived, which can only be `STOP`."""
    with suppress(BlockingIOError):
        requests.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        raise RenderCancelledError
