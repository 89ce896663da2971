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
    """Counts who is inside, and can be shut."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}  # how many times, by thread
        self._is_shut = False

    @contextmanager
    def passed(self) -> Iterator[None]:
        """To be inside; waits while it is shut, unless the thread is inside already."""
        me = threading.get_ident()
        with self._changed:
            while self._is_shut and me not in self._inside:
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                left = self._inside.pop(me) - 1
                if left:
                    self._inside[me] = left
                elif self._is_shut:
                    self._changed.notify_all()

    def shut(self, seconds: float) -> None:
        """Let nobody in, and wait for so long at most until no other thread is inside."""
        me = threading.get_ident()
        with self._changed:
            self._is_shut = True
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, seconds)

    def open(self) -> None:
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()
