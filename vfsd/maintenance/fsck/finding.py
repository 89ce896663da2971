"""The input and the output of a check: `CheckRun` and `Finding`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vfsd.storage.context import StoreContext

NOT_HERE = "is neither here nor in the bucket: run `vfsd push` in its home"
"""The fault of an object that may be a file of another home."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency of a store, and whether this run repaired it."""

    check: str  #: name of the check, as listed in `vfsd.maintenance.fsck`
    message: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The store under test, and whether findings are to be repaired."""

    context: StoreContext
    repair: bool
    on_progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the steps done, and all steps, of a check that takes long."""

    @contextmanager
    def unmounted(self) -> Iterator[bool]:
        """Yield whether the store is unmounted.

        With `repair`, an unmounted store cannot be mounted until the block ends.
        """
        if not self.repair:
            yield not self.mounted
            return
        with self.context.directory.unmounted() as is_unmounted:
            yield is_unmounted

    @property
    def is_backup(self) -> bool:
        """Whether the store is a backup, which may hold the open files of a mounted store."""
        return self.context.directory.backup_sign.exists()

    @property
    def mounted(self) -> bool:
        """Whether the store is mounted now.

        Inside a write transaction: whether a mount can have changed anything before it ends.
        """
        return self.context.directory.mounted_by() is not None

    @property
    def is_mounted_elsewhere(self) -> bool:
        """Whether another home of the store is mounted now."""
        home = self.context.catalog.home
        if home is None:
            return False
        with self.context.catalog.reading() as seen:
            return seen.homes.is_other_mounted(home)
