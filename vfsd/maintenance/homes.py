"""The homes of a store whose catalog is on a server: joining, claiming, listing and forgetting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vfsd.catalog import Catalog, Transaction, absolute_url, has_password, is_shareable
from vfsd.core.model import Home, Node
from vfsd.core.process_control import host_name
from vfsd.disk.store_layout import StoreDirectory, list_directory
from vfsd.errors import BusyError, NoStoreError, NotFoundError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.storage.homes import describe_home
from vfsd.write.unfinished_files import delete_orphans

_SAMPLE = 20
"""Objects that are looked up to recognise the directory of a store's objects."""


@dataclass(frozen=True, slots=True)
class HomeSummary:
    """A home, with the number of files whose only bytes are in it."""

    home: Home
    is_own: bool  #: the home of the open store
    files: int


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


def join_store(path: Path, catalog_url: str, objects: Path | None) -> None:
    """Make another home of the store with that catalog in `path`, a new or empty directory.

    `objects` is the directory `objects` of the store.  The default is the bucket of the store, or
    the directory of a home on this machine.
    Raises `ExistsError`, `BusyError`, `NoStoreError` without a catalog, `UsageError` for a catalog
    that several directories cannot use and for the objects of another store.
    """
    url = absolute_url(catalog_url)
    if not is_shareable(url):
        raise UsageError(
            "a second home needs a catalog on a PostgreSQL server",
            hint="several directories cannot share an SQLite file; mount one, or export the mount",
        )
    if not Catalog.is_at(url):
        raise NoStoreError(
            "the database has no catalog", hint="create it with `vfsd init --catalog`"
        )
    with _opened_catalog(url, None) as catalog:
        store = Catalog.owner_at(url)
        if store is None:
            raise NoStoreError(
                "the catalog has no store yet", hint="run `vfsd init --catalog` again"
            )
        with catalog.reading() as seen:
            homes, sample = seen.homes.all(), seen.objects.some(_SAMPLE)
            bucket = seen.objects.bucket()
        folder = None
        if bucket is None or objects is not None:
            folder = (objects or _local_objects(homes)).resolve()
            _require_objects(folder, sample)
        secret = has_password(url)
        with (
            StoreDirectory.creating(
                path,
                catalog_url=url,
                is_secret=secret,
                joins=store,
                objects=folder,
                bucket=None if bucket is None else (bucket.url, bucket.options),
            ) as directory,
            catalog.writing() as change,
        ):
            if not homes:  # an older vfsd made the store, and its directory was not opened since
                change.homes.put(Home(store, "an unknown host", "", "", ""))
            change.homes.put(describe_home(directory))


def _local_objects(homes: list[Home]) -> Path:
    for home in homes:
        folder = Path(home.place) / "objects"
        if home.host == host_name() and folder.is_dir():
            return folder
    raise UsageError(
        "the directory with the objects of the store must be given: no home is on this host",
        hint="--objects PATH, as this host sees it, for instance on NFS",
    )


def _require_objects(folder: Path, sample: list[str]) -> None:
    """Raise `UsageError` for a directory without the objects of a store."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder} must be a directory", hint="mount its disk, or correct the path"
        )
    if sample and not any((folder / key[:2] / key[2:]).exists() for key in sample):
        raise UsageError(
            f"{folder} has none of the store's objects",
            hint="give the directory named objects of another home of the store",
        )


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
        counts = seen.homes.counts()
        return [
            HomeSummary(home, home.id == parts.directory.home, counts.get(home.id, 0))
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
