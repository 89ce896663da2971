"""Where a copy of a store may lie, and what its disk has to say."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vfsd.disk.enospc import NO_SPACE
from vfsd.disk.external_files import is_below
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import NoSpaceError, StoreError, UsageError


def require_apart(source: StoreDirectory, target: Path) -> None:
    """Raises `UsageError` where one lies in the other, or the copy in a mount of what is copied."""
    root, place = source.root.resolve(), target.resolve()
    is_inside = root in place.parents or is_below(place, source.top)
    if place == root or is_inside or place in root.parents:
        raise UsageError(
            f"{target} and the store {source.root} lie in each other",
            hint="name a directory elsewhere, best on another disk",
        )
    if source.is_shown_at(place):
        raise UsageError(
            f"{target} lies in a mount of the store itself, which would have to hold its own copy",
            hint="name a directory elsewhere, best on another disk",
        )


@contextmanager
def told_of_disks(target: Path) -> Iterator[None]:
    """What goes wrong in the block, as our errors: `NoSpaceError`, `StoreError`."""
    try:
        yield
    except (OSError, sqlite3.Error, NoSpaceError) as error:
        full = isinstance(error, sqlite3.Error) and "full" in str(error)
        if full or getattr(error, "errno", None) in NO_SPACE:
            told: StoreError = NoSpaceError(
                f"no room for a copy of the store in {target}",
                hint="make room there, and say it again: it goes on where it has ended",
            )
        elif isinstance(error, sqlite3.Error):
            told = StoreError(
                f"the catalog could not be copied to {target}: {error}",
                hint="look at quotas, and what the kernel says of the disks",
            )
        else:
            raise
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        raise told from error
