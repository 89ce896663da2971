"""The homes of a store whose catalog is on a server: that of this process, and joining with one.

The catalog knows each home by its machine, device and inode number.  So a copy of the directory,
which would have the same private files, is refused, and a moved directory is not.

A store is joined with a directory that the caller names, or with the home of this host and user,
which all their processes share.
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vfsd.catalog import Catalog, Transaction, absolute_url, has_password, is_shareable
from vfsd.core.model import WAITS_FOR_UPLOAD, FileState, Home, Node, is_waiting
from vfsd.core.process_control import host_name
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, ExistsError, NoStoreError, StoreError, UsageError, VfsdError

if TYPE_CHECKING:
    from vfsd.storage.context import StoreContext

_MACHINE_ID = Path("/etc/machine-id")

_log = logging.getLogger(__name__)


def describe_home(directory: StoreDirectory) -> Home:
    """Return what the catalog is to know about a directory."""
    found = os.stat(directory.top)
    try:
        machine = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine = ""
    place = os.path.realpath(directory.location)
    return Home(directory.home, host_name(), machine, place, f"{found.st_dev}:{found.st_ino}")


def register_home(directory: StoreDirectory, catalog: Catalog, *, read_only: bool) -> None:
    """Compare this directory with the home that the catalog knows, and update that.

    Raises `StoreError` for a copy of a home, and for one that was removed from the catalog.  With
    `read_only`, no private file of a copy is this process's own.
    """
    mine = describe_home(directory)
    known = catalog.known_home
    if known is not None and _is_unchanged(known, mine):
        return
    if read_only:
        if known is not None and not is_same_home(directory, known, mine):
            catalog.disown()
        return
    with catalog.writing() as change:
        known = change.homes.find(mine.id)
        if known is None and (directory.is_joined or change.homes.all()):
            raise StoreError(
                f"the home in {directory.root} was removed from the catalog",
                hint="make another one with `vfsd join`; files that are not videos are in "
                f"{directory.spool}",
            )
        if known is not None and not is_same_home(directory, known, mine):
            raise _copy_error(directory, known)
        change.homes.put(mine)


def _is_unchanged(known: Home, mine: Home) -> bool:
    if known == mine:
        return True
    # The directory may have several paths.
    with suppress(OSError):
        return known == replace(mine, place=known.place) and os.path.samefile(
            known.place, mine.place
        )
    return False


def is_same_home(directory: StoreDirectory, known: Home, mine: Home) -> bool:
    """Return whether the directory is the one that the catalog knows, moved or not."""
    if not known.directory:
        return True  # it was never opened by a version of vfsd with homes
    if known.machine != mine.machine or (not mine.machine and known.host != mine.host):
        # A container has another name at each start, and no machine id.
        unnamed = not (known.machine and mine.machine)
        return unnamed and (known.directory, known.place) == (mine.directory, mine.place)
    if known.directory == mine.directory or known.place == mine.place:
        return True
    # Moved to another disk; or the numbers of devices have changed.
    return directory.home_at(Path(known.place)) != mine.id


def _copy_error(directory: StoreDirectory, known: Home) -> StoreError:
    root = shlex.quote(str(directory.root))
    return NoStoreError(
        f"{directory.root} is a copy of the home in {known.place} on {known.host}",
        hint="make a home of its own with `vfsd join`; if the other directory is gone, because "
        f"this one was moved here from another host, run `vfsd -s {root} homes claim`",
    )


@contextmanager
def mount_lease(parts: StoreContext, place: Path) -> Iterator[None]:
    """Hold the lease of the home of a mount.  Raises `BusyError` if another host holds it."""
    from vfsd.catalog.homes import BEAT_SECONDS

    lease = parts.catalog.take_lease(describe_home(parts.directory), str(place))
    ended = threading.Event()

    def beat() -> None:
        is_failing = False
        while not ended.wait(BEAT_SECONDS):
            try:
                lease.beat()
                is_failing = False
            except VfsdError as error:
                if not is_failing:
                    _log.error("the lease of this mount could not be renewed: %s", error)
                is_failing = True

    thread = threading.Thread(target=beat, name="vfsd-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(VfsdError):  # it expires
            lease.release()


def elsewhere_reason(catalog: Catalog, node: Node) -> str:
    """Return why the bytes of a file in another home cannot be read."""
    with catalog.reading() as seen:
        home = None if node.home is None else seen.homes.find(node.home)
    host = "an unknown host" if home is None else home.host
    if is_waiting(node):
        return f"{WAITS_FOR_UPLOAD} on {host}"
    if node.state is FileState.SPOOLED:
        return f"is being written by {host}"
    return f"is in home {node.home} on {host}"


def own_home(parts: StoreContext) -> str | None:
    """Return the id of this home; None if the store has no other."""
    if parts.catalog.home is None:
        return None
    with parts.catalog.reading() as seen:
        return parts.directory.home if len(seen.homes.all()) > 1 else None


def files_elsewhere(parts: StoreContext) -> str | None:
    """Return a message about private files of other homes, which checks leave out."""
    if parts.catalog.home is None:
        return None
    with parts.catalog.reading() as seen:
        counts = seen.homes.counts()
        homes = {home.id: home for home in seen.homes.all()}
    texts = []
    for home, count in counts.items():
        if home != parts.catalog.home:
            host = homes[home].host if home in homes else "an unknown host"
            texts.append(
                f"{count} {'file is' if count == 1 else 'files are'} in home {home} on {host}"
            )
    return f"{'; '.join(texts)}: not checked here" if texts else None


HOME_VARIABLE = "VFSD_HOME"
"""Environment variable: the directory of the home of stores that are opened by a URL."""

_SAMPLE = 20
"""Objects that are looked up to recognise the directory of a store's objects."""
_JOIN_SECONDS = 60.0
_POLL_SECONDS = 0.02


def home_of_catalog(url: str) -> Path:
    """Return this user's home, on this host, of the store with the catalog at `url`.

    The first process joins the store, in the directory of `HOME_VARIABLE`, or in
    ``~/.cache/vfsd/STORE-ID``. Others wait for it.

    Raises `UsageError` for a URL with a password, for a store without a bucket, and if the
    directory belongs to another store, `NoStoreError`, `ExistsError`, `BusyError`, and
    `UnreachableError`.
    """
    url = absolute_url(url)
    if has_password(url):
        raise UsageError(
            "the URL of the catalog must not have a password, as it would be stored",
            hint="put it into ~/.pgpass or PGPASSWORD, or name a service: "
            "postgresql+psycopg:///?service=NAME",
        )
    if not is_shareable(url):
        raise UsageError(
            "only a catalog on a PostgreSQL server can be opened by its URL",
            hint="give the directory of the store",
        )
    with closing(Catalog.open(url)) as catalog:
        store = _owner(url)
        with catalog.reading() as seen:
            if seen.objects.bucket() is None:
                raise UsageError(
                    "a store without a bucket cannot be opened by the URL of its catalog",
                    hint="open its directory, or copy its objects into a bucket: "
                    "`vfsd push --objects s3://bucket/prefix`",
                )
        for path in _places(store):
            directory = _joined(path, url, store)
            with catalog.reading() as seen:
                known = seen.homes.find(directory.home)
            if known is None or is_same_home(directory, known, describe_home(directory)):
                if not has_password(directory.catalog_url):
                    directory.set_catalog(url)  # the server may have another name now
                return path
    raise UsageError(
        f"{path} is the home of another host, as on a disk that several hosts share",
        hint=f"set {HOME_VARIABLE} to a directory of this host",
    )


def _places(store: str) -> list[Path]:
    """Return the directories that may be the home, the preferred one first."""
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return [Path(given).absolute()]
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # required by the XDG specification
        base = Path.home() / ".cache"
    # Several hosts may share a home directory, as on NFS.
    return [base / "vfsd" / store, base / "vfsd" / f"{store}-{host_name()}"]


def _joined(path: Path, url: str, store: str) -> StoreDirectory:
    """Return the home in `path`, which is made unless another process makes it."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        try:
            found = StoreDirectory.open(path)
        except NoStoreError:
            try:
                join_store(path, url, None)
            except ExistsError:
                if not StoreDirectory.is_at(path):
                    raise
                found = StoreDirectory.open(path)  # another process was faster
            except BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
                continue
            else:
                continue
        if found.id != store:
            raise UsageError(
                f"{path} is a home of another store",
                hint=f"set {HOME_VARIABLE} to another directory for this one",
            )
        return found


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
    with closing(Catalog.open(url)) as catalog:
        store = _owner(url)
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
            mine = describe_home(directory)
            for gone in _replaced(change, mine):
                change.homes.forget(gone.id)
            change.homes.put(mine)


def _owner(url: str) -> str:
    store = Catalog.owner_at(url)
    if store is None:
        raise NoStoreError("the catalog has no store yet", hint="run `vfsd init --catalog` again")
    return store


def _replaced(change: Transaction, mine: Home) -> Iterator[Home]:
    """Yield deleted homes that were in the directory of a new one, and had no private files."""
    for one in change.homes.all():
        was_here = one.machine == mine.machine != "" and one.place == mine.place
        is_unused = one.id != mine.id and one.mount is None
        if was_here and is_unused and not change.homes.private_files(one.id):
            yield one


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
