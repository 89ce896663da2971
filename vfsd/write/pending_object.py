"""Publishes an object together with the rows that refer to it.

`PendingObject` puts the bytes in place first; `ensure` then checks inside the transaction that
garbage collection has not deleted them, and a failure removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from vfsd.catalog import BUSY_SECONDS, Transaction
from vfsd.disk.object_store import Digest, Progress
from vfsd.errors import BusyError, IntegrityError
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_failed

_BUSY_TIMEOUT_SECONDS = 1
"""How long to wait for the catalog after it was busy for as long as anybody waits for it."""


class PendingObject:
    """One object on its way; to be used in a ``with`` statement, whose failure takes it back."""

    def __init__(
        self, parts: StoreContext, key: str, size: int, ensure: Callable[[], None]
    ) -> None:
        """`ensure` puts it in place, durably, or sees that it is there."""
        self._parts = parts
        self._ensure = ensure
        self.key = key
        self.size = size  #: bytes

    def ensure(self) -> None:
        """Put it in place, if it is not there.  The first time syncing takes a while: that is for
        when nobody waits for a lock.  Raises `NoSpaceError`, `OSError`."""
        self._ensure()

    @contextmanager
    def recorded(self) -> Iterator[Transaction]:
        """A transaction in which it is there, and recorded: once that succeeds, it is no garbage.

        Raises as `ensure`, and as any transaction does.
        """
        self._ensure()
        with self._parts.catalog.writing() as change:
            self._ensure()
            change.objects.record(self.key, self.size, now_ns=time.time_ns())
            yield change

    def withdraw(self, *, patience: float = BUSY_SECONDS) -> None:
        """Delete it, as nothing has come of it, unless others need it by now.

        Waits for others who write for `patience` seconds at most.
        """
        discard_failed(self._parts, self.key, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, BusyError):
            self.withdraw(patience=_BUSY_TIMEOUT_SECONDS)
        elif kind is not None:
            self.withdraw()


def pending_bytes(parts: StoreContext, data: bytes, what: str) -> PendingObject:
    """The arrival of bytes in memory, which are put in place at once; `what` names them in errors.

    Raises `NoSpaceError`.
    """
    found = parts.objects.put_bytes(data, what)

    def ensure() -> None:
        if not parts.objects.exists(found.key):
            parts.objects.put_bytes(data, what)

    return PendingObject(parts, found.key, found.size, ensure)


def pending_own_file(parts: StoreContext, path: Path, key: str, size: int) -> PendingObject:
    """The arrival of a file of the store's own that nobody writes any more, and whose bytes hash to
    `key`.  `ensure` puts it in place: it gets a second name, and keeps the one that it has."""
    return PendingObject(parts, key, size, lambda: parts.objects.adopt(path, key))


def pending_copy(
    parts: StoreContext, source: Path, on_progress: Progress | None
) -> tuple[PendingObject, Digest]:
    """The arrival of a copy of somebody's file, which is put in place at once, and its digest.

    Raises `NoSpaceError`, `OSError`.  `ensure` raises `BusyError` where the file has to be copied
    once more, and has other bytes by then.
    """
    found = parts.objects.put_file(source, on_progress=on_progress)

    def ensure() -> None:
        if parts.objects.exists(found.key):
            return
        with ExitStack() as stack:
            try:
                copy = stack.enter_context(parts.objects.good_copy(source, found.key))
            except IntegrityError:
                raise changed_during_read(source) from None
            parts.objects.exchange(copy, found.key)

    return PendingObject(parts, found.key, found.size, ensure), found


def changed_during_read(path: Path) -> BusyError:
    return BusyError(f"{path} was written while it was read", hint="try again later")
