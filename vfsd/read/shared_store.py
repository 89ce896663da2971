"""The stores that unpickled objects of a process work on: one for each address, opened when one of
its objects needs it.
"""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass
from pathlib import Path

from vfsd.core.process_control import available_cores, lazy, reset_after_fork
from vfsd.errors import StoreError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """How another process finds an open store, and opens it the same way."""

    root: str  #: the directory, absolute
    store_id: str
    read_only: bool
    threads: int | None  #: for decoding; None: one per core of that process


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

    @lazy
    def parts(self) -> StoreContext:
        """The open store.  Raises as `vfsd.Store.open`, and `StoreError` for another store."""
        # The lock keeps a second thread from opening a store that nothing would close.
        with self._guard:
            known: StoreContext | None = self.__dict__.get("parts")
            return self._open() if known is None else self.__dict__.setdefault("parts", known)

    def _open(self) -> StoreContext:
        parts = StoreContext.open(Path(self._address.root), read_only=self._address.read_only)
        if parts.directory.id != self._address.store_id:
            parts.close()
            raise StoreError(
                f"{self._address.root} holds another store than when the object was pickled"
            )
        self.__dict__["parts"] = parts
        return parts


class _SharedStores:
    """The shared contexts of this process, by address."""

    def __init__(self) -> None:
        self._contexts: dict[StoreAddress, SharedReadContext] = {}

    def of(self, address: StoreAddress) -> SharedReadContext:
        # `setdefault` is atomic, and a context that is not used costs nothing.
        return self._contexts.setdefault(address, SharedReadContext(address))

    def close(self) -> None:
        """Close the stores that were opened; their objects cannot be used any more."""
        while self._contexts:
            _, context = self._contexts.popitem()
            if "parts" in context.__dict__:
                context.close()
                context.parts.close()


_stores = _SharedStores()
# Writes the last notes of reads, and closes the catalog before the garbage collector would.
atexit.register(_stores.close)


def shared_context(address: StoreAddress) -> SharedReadContext:
    """Return the read context of the store at `address`; its store may not be open yet."""
    return _stores.of(address)
