"""`OpenOnce`: things that a process opens once for each key, and closes at exit."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from vfsd.core.process_control import reset_after_fork


class Closable(Protocol):
    """An object that can be closed."""

    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Closable)


class OpenOnce(Generic[K, V]):
    """Open things by key, such as the stores that the calls of a program lead to.

    Thread-safe.  Usable after a fork if the things are.
    """

    def __init__(self) -> None:
        self._things: dict[K, V] = {}
        self._guard = threading.Lock()
        # The last notes of reads are written, and catalogs are closed before the garbage collector
        # would do it with a warning.
        atexit.register(self.close)
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def get(self, key: K, open_thing: Callable[[], V]) -> V:
        """Return the thing of `key`; `open_thing` is called the first time, and may raise."""
        with self._guard:
            found = self._things.get(key)
            if found is None:
                found = self._things[key] = open_thing()
            return found

    def close_one(self, key: K) -> None:
        """Close the thing of `key` if it is open; the next `get` opens it again."""
        with self._guard:
            found = self._things.pop(key, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Close all things; the next `get` opens them again."""
        for key in tuple(self._things):
            self.close_one(key)
