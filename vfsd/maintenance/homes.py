"""The homes of a store whose catalog is on a server: claiming, listing and forgetting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vfsd.catalog import Catalog, Transaction, is_shareable
from vfsd.core.model import Home, Node
from vfsd.disk.store_layout import StoreDirectory, list_directory
from vfsd.errors import BusyError, NotFoundError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.storage.homes import describe_home
from vfsd.write.unfinished_files import delete_orphans


@dataclass(frozen=True, slots=True)
class HomeSummary:
    """A home, with the number of files whose only bytes are in it."""

    home: Home
    is_own: bool  #: the home of the open store
    files: int
    waiting: int = 0  #: files of these that could not be uploaded yet
    kept: int = 0  #: files of the own home that another one took over; see `StoreDirectory.kept`


def claim_home(path: Path) -> Home:
    """Make a directory that was moved from another host the home that the catalog knows.

    Raises `BusyError` while the other directory is mounted, `NotFoundError` if the home was
    removed, and `UsageError` for a catalog that has no homes.
    """
    directory = StoreDirectory.open(path)
    mine = describe_home(directory)
    with (
        _opened_catalog(directory.catalog_url, directory.id) as catalog,
        catalog.writing() as change,
    ):
        _require_unmounted(_require_home(change, mine.id))
        change.homes.put(mine)
    return mine


@contextmanager
def _opened_catalog(url: str, store_id: str | None) -> Iterator[Catalog]:
    if not is_shareable(url):
        raise UsageError("the catalog of this store is an SQLite file, which has one home")
    with closing(Catalog.open(url, store_id=store_id)) as catalog:
        yield catalog


def list_homes(parts: StoreContext) -> list[HomeSummary]:
    """Return all homes of an open store, the first one first; empty for an SQLite catalog."""
    if parts.catalog.home is None:
        return []
    with parts.catalog.reading() as seen:
        counts, waiting = seen.homes.counts(), seen.homes.waiting()
        kept = len(list_directory(parts.directory.kept)) if parts.directory.kept.exists() else 0
        return [
            HomeSummary(
                home,
                is_own := home.id == parts.directory.home,
                counts.get(home.id, 0),
                waiting.get(home.id, 0),
                kept if is_own else 0,
            )
            for home in seen.homes.all()
        ]


def private_files(parts: StoreContext, home: str) -> list[tuple[str, Node]]:
    """Return (path, node) of each file whose only bytes are in a home; sorted.

    Raises `NotFoundError`.
    """
    with parts.catalog.reading() as seen:
        _require_home(seen, home)
        found = [(seen.tree.display_path(one.ino), one) for one in seen.homes.private_files(home)]
    return sorted(found, key=lambda each: each[0])


def forget_home(parts: StoreContext, home: str) -> None:
    """Remove a home that is gone for good, and all files whose only bytes were in it.

    Its unfinished recordings, which are next to the objects, become those of `parts`.

    Raises `NotFoundError`, `UsageError` for the home of `parts`, and `BusyError` while it is
    mounted.
    """
    if home == parts.catalog.home:
        raise UsageError(
            "a home cannot remove itself", hint="run the command in another home of the store"
        )
    with parts.catalog.writing() as change:
        _require_unmounted(_require_home(change, home))
        for node in change.homes.private_files(home):
            change.tree.delete_with_names(node.ino)
        delete_orphans(change, change.tree.orphans(home))
        change.homes.forget(home)
    _take_over_recordings(parts, home)


def _take_over_recordings(parts: StoreContext, home: str) -> None:
    """Move the unfinished recordings of a home that is gone to this one."""
    folder = parts.directory.temporary_objects_of(home)
    for path in list_directory(folder):
        path.rename(parts.directory.objects_tmp / path.name)
    with suppress(OSError):  # it never made a temporary object
        folder.rmdir()


def _require_home(seen: Transaction, home: str) -> Home:
    for one in seen.homes.all():
        if one.id == home:
            return one
    raise NotFoundError(f"the store has no home {home!r}", hint="`vfsd homes` lists them")


def _require_unmounted(home: Home) -> None:
    if home.mount is not None:
        raise BusyError(
            f"the home is mounted at {home.mount.place} on {home.mount.host}",
            hint="unmount it there first; if that host is gone, try again in a minute",
        )
