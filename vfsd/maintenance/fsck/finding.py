"""What checks are given, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vfsd.storage.context import StoreContext


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise."""

    check: str
    message: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One look at a store."""

    parts: StoreContext
    repair: bool

    @contextmanager
    def unmounted(self) -> Iterator[bool]:
        """Whether nobody has the store mounted.  What is to be repaired stays so in the block."""
        if not self.repair:
            yield not self.mounted
            return
        with self.parts.directory.unmounted() as alone:
            yield alone

    @property
    def is_backup(self) -> bool:
        """Whether the store is one, in which things may stand as they do while a mount is up."""
        return self.parts.directory.backup_sign.exists()

    @property
    def mounted(self) -> bool:
        """Whether the store is mounted now.  Inside a write transaction: whether a mount can have
        changed anything before it ends."""
        return self.parts.directory.mounted_by() is not None
