"""The stores that unpickled objects of a process work on: one for each address, opened when one of
its objects needs it.  `OpenOnce` opens things once for each key, and closes them at exit.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from vfsd.catalog import DEFAULT_STALENESS
from vfsd.core.process_control import available_cores, lazy, reset_after_fork
from vfsd.errors import NoStoreError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext


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


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """How another process finds an open store, and opens it the same way."""

    root: str  #: the directory, absolute
    store_id: str
    read_only: bool
    threads: int | None  #: for decoding; None: one per core of that process
    staleness: float | None = DEFAULT_STALENESS
    catalog: str | None = None  #: URL without a password, for hosts where `root` is not the store


class SharedReadContext(ReadContext):
    """The read context of a store that is opened at the first use, and closed at exit."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self.threads = address.threads or available_cores()
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    @property
    def address(self) -> StoreAddress:
        return self._address

    @property
    def store_id(self) -> str:
        return self._address.store_id

    @lazy
    def parts(self) -> StoreContext:
        """The open store.  Raises as `vfsd.Store.open`, and `NoStoreError` for another store."""
        # The lock keeps a second thread from opening a store that nothing would close.
        with self._guard:
            known: StoreContext | None = self.__dict__.get("parts")
            return known or self._open()

    def close(self) -> None:
        """Close the store if it was opened; its objects cannot be used any more."""
        if "parts" in self.__dict__:
            super().close()
            self.parts.close()

    def _open(self) -> StoreContext:
        address = self._address
        try:
            parts = self._open_at(Path(address.root))
        except (NoStoreError, PermissionError):
            if address.catalog is None:
                raise
            from vfsd.storage.homes import home_of_catalog  # only on other hosts

            parts = self._open_at(home_of_catalog(address.catalog))
        self.__dict__["parts"] = parts
        return parts

    def _open_at(self, root: Path) -> StoreContext:
        address = self._address
        parts = StoreContext.open(root, read_only=address.read_only, staleness=address.staleness)
        if parts.directory.id != address.store_id:
            parts.close()
            raise NoStoreError(f"{root} holds another store than when the object was pickled")
        return parts


_contexts: OpenOnce[StoreAddress, SharedReadContext] = OpenOnce()


def shared_context(address: StoreAddress) -> SharedReadContext:
    """Return the read context of the store at `address`; its store may not be open yet."""
    return _contexts.get(address, lambda: SharedReadContext(address))
