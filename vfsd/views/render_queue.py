"""Renders wait for a thread here, and end as soon as nobody wants them any more.

Whoever reads a view waits while threads that do nothing else make it.  There are few, which bounds
what they hold while they work, and plain files are read beside them.  Segments to be encoded wait
in a lane of their own, so that nobody waits behind seconds of video for a single picture.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from vfsd.core.atfork import at_fork
from vfsd.core.view_file import Patience

_CLOSE_SECONDS = 10.0
_PATIENCE_SECONDS = 0.1
"""After as long, whoever waits is asked whether he is still there, and then again."""

Check = Callable[[], None]
"""Returns at once, or raises `GivenUpError`: to be called for each picture or packet."""


class GivenUpError(Exception):
    """Nobody wants the bytes any more that are being made."""


class Render:
    """Bytes that are made once for all who want them.  Thread-safe.

    Without data or error in the end it was given up; who wants it then has to ask anew.
    """

    def __init__(
        self, work: Callable[[Check], bytes | memoryview], then: Callable[[Render], None]
    ) -> None:
        """`then` is called when it is done, before those who want it hear of that."""
        self.data: bytes | memoryview | None = None
        self.error: Exception | None = None
        self._work = work
        self._done = threading.Event()
        self._guard = threading.Lock()
        self._wants = 0
        self._waiting = 0
        self._first = then
        self._then: list[Callable[[], None]] = []

    @property
    def is_waited_for(self) -> bool:
        return self._waiting > 0

    def want(self, then: Callable[[], None] | None = None) -> bool:
        """Be interested until `unwant`; False where it is done, and nobody can want it any more.

        `then` is called when it is done, by the thread that has done it.
        """
        with self._guard:
            if self._done.is_set():
                return False
            self._wants += 1
            if then is not None:
                self._then.append(then)
            return True

    def unwant(self) -> None:
        with self._guard:
            self._wants -= 1

    def wait(self, patience: Patience | None) -> None:
        """Return when it is done.  Raises what `patience` does."""
        with self._guard:
            self._waiting += 1
        try:
            if patience is None:
                self._done.wait()
                return
            while not self._done.wait(_PATIENCE_SECONDS):
                patience()
        finally:
            with self._guard:
                self._waiting -= 1

    def check(self) -> None:
        """Raises `GivenUpError` when nobody wants it."""
        if self._wants <= 0:
            raise GivenUpError

    def run(self) -> None:
        """Make it, unless nobody wants it.  Raises nothing."""
        try:
            self.check()
            self.data = self._work(self.check)
        except GivenUpError:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.land()

    def land(self) -> None:
        """It is done, or never will be."""
        self._first(self)
        with self._guard:
            self._done.set()
            then, self._then = self._then, []
        for each in then:
            each()


class Lane:
    """A few threads, and the renders that wait for them: those that somebody waits for go first.

    After a fork the child has no threads, and starts its own.
    """

    def __init__(self, name: str, hands: int) -> None:
        """So many threads at most."""
        self._name = name
        self._hands = hands
        self._closed = False
        self.begin_anew()
        at_fork(self)

    def submit(self, render: Render) -> None:
        """Have it made.  After `close` it lands as given up, and without any thread as failed."""
        with self._guard:
            if not self._closed and self._has_hands():
                self._queue.append(render)
                self._changed.notify()
                return
            if not self._closed:
                render.error = OSError(errno.EAGAIN, "the system gives no more threads")
        render.land()

    def close(self) -> None:
        """What has not begun is given up; returns when what has begun has ended.

        A thread that does not end is left alone after a while: an exception out of a signal handler
        may have left one of Python's own locks behind, or come before the thread was seen to start.
        """
        with self._guard:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for render in left:
            render.land()
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            with suppress(RuntimeError):  # of one that has not begun
                thread.join(max(0.0, end - time.monotonic()))

    def begin_anew(self) -> None:
        """See `vfsd.core.atfork`."""
        # Entering a condition is not safe from signals, as entering a lock is.
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._queue: deque[Render] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def _has_hands(self) -> bool:
        """With one more of them, where all have something to do."""
        if self._idle <= len(self._queue) and len(self._threads) < self._hands:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            try:
                thread.start()
            except RuntimeError:  # those that there are have to do
                self._threads.remove(thread)
        return bool(self._threads)

    def _serve(self) -> None:
        while (render := self._next()) is not None:
            render.run()
            del render  # with its bytes

    def _next(self) -> Render | None:
        with self._guard:
            self._idle += 1
            try:
                while not self._closed and not self._queue:
                    self._changed.wait()
            finally:
                self._idle -= 1
            if not self._queue:
                return None
            foremost = next((one for one in self._queue if one.is_waited_for), self._queue[0])
            self._queue.remove(foremost)
            return foremost
