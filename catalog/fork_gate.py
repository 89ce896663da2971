"""Keeps threads out of SQLite while the process forks.

SQLite must not be open across a fork.  A child would inherit its mutexes as other threads have them
at that moment, and wait for ever; and its note of which locks the process has on the file, which in
the child are not there: when the parent has closed the file, its log goes away under the child.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Knows who is inside, and can be shut, by several at once: it opens with the last of them."""

    def __init__(self) -> None:
        # The lock itself is taken, and not by way of the condition, which does so in Python, where
        # Ctrl-C may come before it could be given back.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._inside: dict[object, int] = {}  # the thread, by entry
        self._times_shut = 0

    @contextmanager
    def passed(self) -> Iterator[None]:
        """To be inside; waits while it is shut, unless the thread is inside already."""
        me, entry = threading.get_ident(), object()
        try:
            with self._guard:
                while self._times_shut and me not in self._inside.values():
                    self._changed.wait()
                self._inside[entry] = me
            yield
        finally:
            with self._guard:
                self._inside.pop(entry, None)
                if self._times_shut:
                    self._changed.notify_all()

    def shut(self, seconds: float) -> None:
        """Let nobody in, and wait for so long at most until no other thread is inside."""
        mine = {threading.get_ident()}
        with self._guard:
            self._times_shut += 1
            self._changed.wait_for(lambda: mine.issuperset(self._inside.values()), seconds)

    def open(self) -> None:
        """Take a `shut` back; nothing where Ctrl-C came before there was one."""
        with self._guard:
            self._times_shut = max(0, self._times_shut - 1)
            self._changed.notify_all()
