"""Publishes an object together with the rows that refer to it.

`PendingObject` puts the bytes in place first.  `ensure_stored` then checks inside the transaction
that garbage collection has not deleted them.  A failure removes them.
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
"""How long to wait for the catalog after a wait for it has already timed out."""


class PendingObject:
    """An object that is being added; as a context manager it deletes the object after a failure."""

    def __init__(
        self, parts: StoreContext, key: str, size: int, ensure: Callable[[], None]
    ) -> None:
        """`ensure` puts it in place, durably, if it is not there."""
        self._parts = parts
        self._ensure = ensure
        self.key = key
        self.size = size  #: bytes

    def ensure_stored(self) -> None:
        """Put it in place if it is not there.

        The first call is slow because it syncs, so make it without holding a lock.  Raises
        `NoSpaceError`, `OSError`.
        """
        self._ensure()

    @contextmanager
    def recorded(self) -> Iterator[Transaction]:
        """Open a transaction in which the object is in place and recorded.

        After its success the object is not garbage.  Raises as `ensure_stored` and any transaction
        do.
        """
        self._ensure()
        with self._parts.catalog.writing() as change:
            self._ensure()
            change.objects.record(self.key, self.size, now_ns=time.time_ns())
            yield change

    def withdraw(self, *, patience: float = BUSY_SECONDS) -> None:
        """Delete the object after a failure, unless another file needs it by now.

        Waits at most `patience` seconds for other writers of the catalog.
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
    """Store bytes from memory; `what` is their name in errors.

    Raises `NoSpaceError`.
    """
    found = parts.objects.put_bytes(data, what)

    def ensure() -> None:
        if not parts.objects.exists(found.key):
            parts.objects.put_bytes(data, what)

    return PendingObject(parts, found.key, found.size, ensure)


def pending_own_file(parts: StoreContext, path: Path, key: str, size: int) -> PendingObject:
    """Prepare a file of the store without a writer, with bytes that hash to `key`.

    `ensure_stored` adds a second name for it; the first one stays.
    """
    return PendingObject(parts, key, size, lambda: parts.objects.adopt(path, key))


def pending_copy(
    parts: StoreContext, source: Path, on_progress: Progress | None
) -> tuple[PendingObject, Digest]:
    """Store a copy of a file, and return it with its digest.

    Raises `NoSpaceError`, `OSError`.  `ensure_stored` raises `BusyError` if the file has to be
    copied again and has changed.
    """
    found = parts.objects.put_file(source, on_progress=on_progress)

    def ensure() -> None:
        if parts.objects.exists(found.key):
            return
        with ExitStack() as stack:
            try:
                copy = stack.enter_context(parts.objects.verified_copy(source, found.key))
            except IntegrityError:
                raise changed_during_read(source) from None
            parts.objects.exchange(copy, found.key)

    return PendingObject(parts, found.key, found.size, ensure), found


def changed_during_read(path: Path) -> BusyError:
    return BusyError(f"{path} was written while it was read", hint="try again later")
