"""The process that makes views for a mount, and the one that starts it.

Decoding and encoding here neither holds Python's lock of the process that answers the kernel, nor
ends that process when a decoder crashes.  `start` forks, before the mount has any threads, a
process that waits: whenever the mount wants somebody to make views, it forks one, which costs
nothing but the fork.  Both end with the mount, however that ends.
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
from vfsd.mount.foreground_priority import ORDINARY
from vfsd.mount.render_protocol import (
    FAILED,
    GIVEN_UP,
    MADE,
    ORDER_BYTES,
    OTHER,
    READY,
    START,
    STOP,
    BufferMappings,
    RenderReply,
    RenderRequest,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.sandbox_protocol import MAX_ERROR_BYTES, ErrorReport
from vfsd.views.remote_render import SlotRenderer
from vfsd.views.render_cache import RenderCancelledError

_NICENESS = 5
"""Where sessions have no shares."""
_PR_SET_NAME = 15
_NAME = b"vfsd-views"
"""What lists of processes call both."""
_OOM_SCORE = 500
"""Where memory runs out, this goes before the mount does."""
_IDLE_SECONDS = 300.0
"""After as long without orders it ends, and gives back its memory."""
_MOST_DESCRIPTORS = 1 << 16

_log = logging.getLogger(__name__)


def can_start() -> bool:
    """Whether this system has what it takes."""
    return hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")


def start(directory: StoreDirectory, *, read_only: bool) -> tuple[socket.socket, int]:
    """Fork the process that starts those which make views of the store in `directory`.

    Gives the socket by which it is told to (`START`, `KILL`), and by which it tells how they
    ended, and its number.  To be called while this process has one thread, and before it opens the
    store, as SQLite's locks do not survive a fork.  Raises `OSError`.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        parent = os.getpid()
        child = os.fork()
        if not child:
            try:
                held = directory.anchor
                _begin(parent, [theirs.fileno(), *([] if held is None else [held.fd])])
                _start_whenever_told(theirs, directory, read_only)
            finally:
                os._exit(1)
    return mine, child


# ------------------------------------------------------------------------- the one that starts


def _begin(parent: int, keep: Sequence[int]) -> None:
    """Leave behind what is the mount's but for the descriptors `keep`, and end with it."""
    die_with_parent(parent)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of a terminal: it is the mount's to end us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _MOST_DESCRIPTORS)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.collect()
    gc.freeze()  # so that children need no copies of what they only look at


def _start_whenever_told(
    control: socket.socket, directory: StoreDirectory, read_only: bool
) -> NoReturn:
    """One at a time; the mount waits to hear of the end of one before it wants another."""
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
            _tell(control, "status", status)
            child = 0
        if control.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if child:
                os.kill(child, signal.SIGKILL)
            if not message:
                os._exit(0)
            if message == START and not child:
                orders = socket.socket(fileno=fds[0])
                child, ended = _started(control, orders, directory, read_only)


def _tell(control: socket.socket, what: str, number: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        control.send(json.dumps({what: number}).encode("ascii"))


def _started(
    control: socket.socket, orders: socket.socket, directory: StoreDirectory, read_only: bool
) -> tuple[int, int]:
    """The child, and a descriptor that tells of its end."""
    with orders:
        me = os.getpid()
        child = os.fork()
        if not child:
            try:
                die_with_parent(me)
                _leave_session()
                _tell(control, "pid", os.getpid())
                control.close()
                _make_views(orders, directory, read_only)
            except BaseException as error:
                _log.exception("the process that makes views has ended")
                text = f"{type(error).__name__}: {error}"[: MAX_ERROR_BYTES // 16]
                with suppress(OSError):
                    orders.send(ErrorReport(text).message())
            finally:
                os._exit(1)
    return child, os.pidfd_open(child)


# ------------------------------------------------------------------------ the one that makes


def _leave_session() -> None:
    """Have a share of the cores that is not the mount's.

    The mount changes it as soon as it knows the number of this process, and must not meet its own.
    """
    os.setsid()
    set_autogroup_niceness(os.getpid(), ORDINARY)


def _make_views(orders: socket.socket, directory: StoreDirectory, read_only: bool) -> NoReturn:
    """Until the mount has gone, or has wanted nothing for long; ends the process then."""
    os.nice(_NICENESS)
    set_oom_score(_OOM_SCORE)
    limit_arenas()
    with ExitStack() as stack:
        store = stack.enter_context(Store(StoreContext.of(directory, read_only=read_only)))
        if not read_only:
            note = store.parts.directory.rendering_note
            stack.enter_context(store.parts.quarantine.record_decoding(note))
        maker = SlotRenderer(store.parts, store.tools)
        stack.enter_context(closing(MallocTrimmer(maker.evict_idle)))
        crew = _RenderThreads(store, maker)
        waiting = select.poll()
        waiting.register(orders, select.POLLIN)
        orders.send(READY)
        while (left := crew.idle_left()) > 0:
            if waiting.poll(left * 1000):
                message, fds, _, _ = socket.recv_fds(orders, 1, 1)
                if not message:
                    break
                crew.employ(socket.socket(fileno=fds[0]))
        # What is at work is for nobody.  But something may be ordered at this moment: who does so
        # has to find nobody here, and not the store half closed.
        os._exit(0)


class _RenderThreads:
    """Threads that make slots, each for a thread of the mount that waits meanwhile."""

    def __init__(self, store: Store, maker: SlotRenderer) -> None:
        self._store = store
        self._maker = maker
        self._desk = BufferMappings()
        self._guard = threading.Lock()
        self._busy = 0
        self._last = time.monotonic()

    def idle_left(self) -> float:
        """Seconds until nothing was to be done for long."""
        with self._guard:
            if self._busy:
                return _IDLE_SECONDS
            return self._last + _IDLE_SECONDS - time.monotonic()

    def employ(self, orders: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(orders,), daemon=True).start()

    def _serve(self, orders: socket.socket) -> None:
        with orders:
            while True:
                message, fds, _, _ = socket.recv_fds(orders, ORDER_BYTES, 1)
                if not message:
                    return
                if message == STOP:
                    continue  # it came too late
                with self._guard:
                    self._busy += 1
                try:
                    answer = self._answer(RenderRequest.parse(message), fds[0], orders)
                finally:
                    os.close(fds[0])
                    with self._guard:
                        self._busy -= 1
                        self._last = time.monotonic()
                orders.send(answer.message())

    def _answer(self, errand: RenderRequest, fd: int, orders: socket.socket) -> RenderReply:
        kind, length, error = FAILED, 0, None
        self._desk.clear(errand.gone)
        place = partial(self._desk.place, errand.sheet, fd)
        try:
            made = self._maker.make(errand.order, lambda: _check(orders), place)
            kind, length = (OTHER, 0) if made is None else (MADE, made)
        except RenderCancelledError:
            kind = GIVEN_UP
        except (VfsdError, OSError) as complaint:
            error = complaint
        except Exception as complaint:
            _log.exception("a view could not be made")
            error = VfsdError(f"{type(complaint).__name__}: {complaint}")
        return RenderReply(kind, length, self._store.tools.pool.memory, error)


def _check(orders: socket.socket) -> None:
    """Raises `RenderCancelledError` where there is a word about what is being made: it can be no
    other."""
    with suppress(BlockingIOError):
        orders.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        raise RenderCancelledError
