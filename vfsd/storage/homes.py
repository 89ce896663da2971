"""The home of this process, where a catalog on a server may have several, and the lease of its
mount.

The catalog knows each home by its machine, device and inode number.  So a copy of the directory,
which would have the same private files, is refused, and a moved directory is not.
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vfsd.catalog import Catalog
from vfsd.core.model import WAITS_FOR_UPLOAD, FileState, Home, Node, is_waiting
from vfsd.core.process_control import host_name
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import NoStoreError, StoreError, VfsdError

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
