"""Noting what is read, so that no reader waits for it.

A reader leaves its note in a queue.  A thread takes what has gathered there about once a second,
works out what each read came to, and writes all of it in one transaction.  Notes are no promise:
when there are too many, or the catalog is busy or full, some are dropped.
"""

from __future__ import annotations

import atexit
import logging
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from vfsd.catalog import Catalog
from vfsd.core.atfork import at_fork
from vfsd.core.model import Read

_log = logging.getLogger(__name__)

_MOST = 4096
"""Notes that may wait; beyond that the oldest are dropped."""
_GATHER_SECONDS = 1.0
_CLOSE_SECONDS = 5.0

Account = Callable[[], Read]
"""Works out what a read came to; called in another thread, a second later."""


class ReadNotes(Protocol):
    """Where readers leave their notes.  Thread-safe, and usable after a fork."""

    def note(self, digest: str, account: Account) -> None:
        """A read of the video with these bytes is done.  Never waits, never fails."""

    def flush(self) -> None:
        """Write what has been noted so far."""

    def close(self) -> None: ...


class NoReadLog:
    """Remembers nothing: for stores that may not be written."""

    def note(self, digest: str, account: Account) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ReadLog:
    """Keeps the newest `keep` reads in the catalog.

    After a fork the child starts with an empty queue, and a thread of its own when it first reads;
    what the parent has noted, the parent writes.  Who drops it without closing it leaves nothing
    behind: the thread, which does not know it, writes what there is and ends.
    """

    _thread: threading.Thread | None

    def __init__(self, catalog: Catalog, keep: int) -> None:
        self._catalog = catalog
        self._keep = keep
        self._closed = False
        self._dropping: weakref.finalize[[_Writing, Callable[[], None]], ReadLog] | None = None
        self.begin_anew()
        at_fork(self)

    @property
    def dropped(self) -> int:
        """Notes that were never written."""
        return self._writing.dropped

    def note(self, digest: str, account: Account) -> None:
        self._writing.add(digest, account)
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        self._writing.write()

    def close(self) -> None:
        """Write what is left."""
        with self._guard:
            self._closed = True
            thread, self._thread = self._thread, None
        if self._dropping is not None:
            self._dropping.detach()
        self._writing.end()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
            atexit.unregister(self._at_exit)
        self._writing.write()

    def begin_anew(self) -> None:
        """See `vfsd.core.atfork`."""
        if self._dropping is not None:
            self._dropping.detach()  # what it would end is the parent's
        self._guard = threading.Lock()
        self._thread = None
        self._writing = _Writing(self._catalog, self._keep)
        self._at_exit = partial(_close_if_there, weakref.ref(self))
        self._dropping = weakref.finalize(self, _drop, self._writing, self._at_exit)
        self._dropping.atexit = False

    def _start(self) -> None:
        if sys.is_finalizing():
            return  # no thread begins any more, and who starts one waits for ever
        with self._guard:
            if self._thread is None and not self._closed:
                # It must not keep a program alive whose store nobody has closed.
                run = self._writing.run
                self._thread = threading.Thread(target=run, name="vfsd-reads", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)


class _Writing:
    """The queue, and the work of the thread."""

    def __init__(self, catalog: Catalog, keep: int) -> None:
        self._catalog = catalog
        self._keep = keep
        # Other than an event it may be set by a finalizer, which runs in any thread at any time.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: that is all
        self._told = False
        self._queue: deque[tuple[str, Account]] = deque(maxlen=_MOST)
        self.dropped = 0

    def add(self, digest: str, account: Account) -> None:
        if len(self._queue) == _MOST:
            self.dropped += 1  # two threads at once may count one of theirs
        self._queue.append((digest, account))
        if not self._told:
            self._told = True
            self._signals.put(False)

    def end(self) -> None:
        """Have `run` end, when it has written what there is."""
        self._signals.put(True)

    def run(self) -> None:
        is_ending = False
        while not is_ending:
            is_ending = self._signals.get()
            if not is_ending:
                with suppress(queue.Empty):
                    is_ending = self._signals.get(timeout=_GATHER_SECONDS)
            self._told = False
            self.write()

    def write(self) -> None:
        done: list[tuple[str, Read]] = []
        lost = 0
        while self._queue and len(done) < _MOST:
            digest, account = self._queue.popleft()
            try:
                done.append((digest, account()))
            except Exception:  # whatever it is, a reader must not hear of it
                _log.debug("a read cannot be accounted for", exc_info=True)
                lost += 1
            time.sleep(0)  # readers come first
        if done:
            try:
                self._catalog.note_reads(done, keep=self._keep)
            except Exception as error:  # the thread goes on, whatever it is
                _log.debug("%d reads are not remembered: %s", len(done), error)
                lost += len(done)
        self.dropped += lost


def _drop(writing: _Writing, at_exit: Callable[[], None]) -> None:
    writing.end()
    atexit.unregister(at_exit)


def _close_if_there(log: weakref.ref[ReadLog]) -> None:
    there = log()
    if there is not None:
        there.close()
