"""Replaces the catalog of a store, with its private files and settings: all or nothing.

The new files are prepared in the directory ``incoming``. Renaming its ``new_catalog`` commits the
swap; a killed one is finished when the store is opened next. Also handles backups that were copied
over a store by hand and may have an old write-ahead log.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from vfsd.catalog import checkpoint_if_closed
from vfsd.disk.safe_open import stored_chunks
from vfsd.disk.store_layout import StoreDirectory, fsync_path
from vfsd.disk.tempfiles import NO_SPACE, locked_directory
from vfsd.errors import BusyError, ReadOnlyError

_WAL_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def reset_wal(directory: StoreDirectory) -> None:
    """Recreate the empty write-ahead log of a backup, if it is missing. Other stores are unchanged.

    An existing log stays: another process may have the backup open, or was killed. Errors are
    ignored: a disk that cannot be written did not lose the log either.
    """
    if not directory.backup_sign.exists():
        return
    log, _ = directory.sqlite_side_files()
    with suppress(OSError):
        os.close(os.open(log, _WAL_FLAGS, 0o600))


@contextmanager
def keeping_wal(directory: StoreDirectory) -> Iterator[None]:
    """Wrap a block that opens and closes the catalog: call `reset_wal` at the end."""
    try:
        yield
    finally:
        reset_wal(directory)


def copy_private(source: Path, copy: Path) -> None:
    """Copy a file of a store with its times and mode; on an error there is no copy.

    Raises `FileNotFoundError` if it is missing, `IntegrityError` if it cannot be read or is not a
    regular file, `OSError` if the copy cannot be written.
    """
    chunks = stored_chunks(source)
    try:
        with open(copy, "wb", buffering=0) as file:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
        shutil.copystat(source, copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def copy_settings(source: StoreDirectory, target: StoreDirectory, incoming: StoreDirectory) -> None:
    """Copy the settings of `source` to `incoming`, to replace those of `target`.

    If `source` has none, the defaults, an empty file replaces those of `target`.
    """
    if source.settings.exists():
        shutil.copy2(source.settings, incoming.settings)
    elif target.settings.exists():
        incoming.settings.touch()


WAIT_SECONDS = 30.0
"""How long short commands may keep the store open before a swap fails."""
TRIES = 5
"""How often objects are copied again if garbage collection deletes them before the swap."""

_PAUSE_SECONDS = 0.05

T = TypeVar("T")


def prepare(directory: StoreDirectory) -> StoreDirectory:
    """Return the empty ``incoming`` directory, and delete an incomplete earlier one.

    The caller prevents mounts of the store.
    """
    finish(directory)
    incoming = directory.incoming
    discard(directory)
    incoming.spool.mkdir(parents=True)
    return incoming


def swap_catalog(
    directory: StoreDirectory,
    objects_present: Callable[[], bool],
    keep_previous: Callable[[], None] = lambda: None,
) -> bool:
    """Commit the prepared files, including `new_catalog`.

    Private files are synced already. A garbage collection may have deleted objects that only the
    new catalog uses. So `objects_present` checks them again while no process has the store open. If
    some are missing, nothing changes and False is returned. `keep_previous` may rename the current
    files, which no process changes any more. Raises `BusyError` if the store is open for longer
    than `WAIT_SECONDS`; then nothing has changed.
    """
    incoming = directory.incoming
    for path in (
        incoming.new_catalog,
        incoming.settings,
        incoming.spool,
        incoming.root,
        directory.top,
    ):
        if path.exists():
            fsync_path(path)
    return _when_closed(directory, partial(_commit_swap, directory, objects_present, keep_previous))


def require_closed(directory: StoreDirectory) -> None:
    """Wait until the store is closed, and merge SQLite's log. Raises `BusyError` as
    `swap_catalog`."""
    _when_closed(directory, lambda: None)


def _when_closed(directory: StoreDirectory, action: Callable[[], T]) -> T:
    """Call `action` while no process has the catalog open or can open it."""
    end = time.monotonic() + WAIT_SECONDS
    while not (done := _try_closed(directory, action)):
        if time.monotonic() >= end:
            raise BusyError(
                f"another process has {directory.root} open",
                hint=f"try again later; `fuser {directory.catalog_file}` lists the process",
            )
        time.sleep(_PAUSE_SECONDS)
    return done[0]


@contextmanager
def settled(directory: StoreDirectory) -> Iterator[None]:
    """Wrap a block that opens the catalog: finish a pending swap, and block others.

    Raises `ReadOnlyError` if a pending swap cannot be finished.
    """
    while True:
        finish(directory)
        with locked_directory(directory.top, fcntl.LOCK_SH):
            if not _is_pending(directory):
                yield
                return


def finish(directory: StoreDirectory) -> None:
    """Finish a committed swap of a process that was killed."""
    if not _is_pending(directory):
        return
    try:
        with locked_directory(directory.top, fcntl.LOCK_EX):
            _move_into_place(directory)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        raise ReadOnlyError(
            f"an update of {directory.root} was interrupted and cannot be finished: "
            f"{error.strerror}",
            hint=f"run `vfsd -s {shlex.quote(str(directory.root))} ls` once as a user who may "
            "write there",
        ) from error


def discard(directory: StoreDirectory) -> None:
    """Delete the ``incoming`` directory, incomplete or finished."""
    shutil.rmtree(directory.incoming.root, ignore_errors=True)


def abandoned(directory: StoreDirectory) -> list[Path]:
    """Return the files of an incomplete ``incoming`` directory, if no process may be using it."""
    if directory.mounted_by() is not None or _is_pending(directory):
        return []
    return sorted(path for path in directory.incoming.root.rglob("*") if path.is_file())


def discard_abandoned(directory: StoreDirectory) -> None:
    """Delete them, unless another swap has just begun."""
    if not directory.incoming.root.exists():
        return
    with suppress(BusyError), directory.locked_for("its garbage is deleted"):
        finish(directory)
        discard(directory)


def _is_pending(directory: StoreDirectory) -> bool:
    return directory.incoming.catalog_file.exists()


def _try_closed(directory: StoreDirectory, action: Callable[[], T]) -> tuple[T] | None:
    """Return the result of `action` in a tuple; None if the catalog is open."""
    try:
        with locked_directory(directory.top, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if not checkpoint_if_closed(directory.catalog_file):
                return None
            try:
                return (action(),)
            finally:
                reset_wal(directory)  # the checkpoint has deleted it
    except BlockingIOError:
        return None


def _commit_swap(
    directory: StoreDirectory,
    objects_present: Callable[[], bool],
    keep_previous: Callable[[], None],
) -> bool:
    if not objects_present():
        return False
    incoming = directory.incoming
    with _copies_beside(directory) as copies:
        keep_previous()
        incoming.new_catalog.replace(incoming.catalog_file)
    try:
        fsync_path(incoming.root)
        _move_into_place(directory, copies)
    except BaseException as error:
        error.add_note(
            f"the new catalog is complete; the next command that opens {directory.root} installs it"
        )
        raise
    return True


@contextmanager
def _copies_beside(directory: StoreDirectory) -> Iterator[dict[int, Path]]:
    """Yield durable copies of the private files by inode, next to the files that they replace.

    Empty if they can be renamed into place. The copies are made before the commit: after it, the
    store could not be opened if their disk is full or read-only. They are deleted on an error, as
    are those of a killed process.
    """
    copies: dict[int, Path] = {}
    for left in directory.spool_copies():
        left.unlink(missing_ok=True)
    try:
        if not _can_be_renamed(directory):
            for ino, path in directory.incoming.spooled():
                copies[ino] = directory.new_spool_copy(ino)
                _copy(path, copies[ino])
            fsync_path(directory.spool)
        yield copies
    except BaseException:
        for copy in copies.values():
            copy.unlink(missing_ok=True)
        raise


def _can_be_renamed(directory: StoreDirectory) -> bool:
    """Return whether private files can be renamed into the spool directory.

    Only an attempt can tell: being on the same disk is not sufficient.
    """
    for ino, path in directory.incoming.spooled():
        there = directory.new_spool_copy(ino)
        try:
            path.replace(there)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        there.replace(path)
        break
    return True


def _copy(path: Path, copy: Path) -> None:
    try:
        copy_private(path, copy)
        fsync_path(copy)
    except OSError as error:
        if error.errno in NO_SPACE:
            error.add_note(f"{copy.parent.resolve()} has no room for files that are not videos")
        raise


def _move_into_place(directory: StoreDirectory, copies: Mapping[int, Path] | None = None) -> None:
    """Install the files of a committed swap. The catalog is last: until then this can be repeated.

    `copies` are the private files that cannot be renamed. Without them, copies left by a killed
    process are deleted first, since there may be space for only one set.
    """
    incoming = directory.incoming
    if _is_pending(directory):
        if copies is None:
            for left in directory.spool_copies():
                with suppress(OSError):
                    left.unlink()
        for ino, path in incoming.spooled():
            if copies:
                copies[ino].replace(directory.spool_file(ino))
            else:
                _move_private(path, directory, ino)
        if incoming.settings.exists():
            incoming.settings.replace(directory.settings)
        fsync_path(directory.spool)
        for path in (*directory.sqlite_side_files(), directory.rollback_journal):
            path.unlink(missing_ok=True)
        # Sync: after a power failure SQLite would apply a reappeared log to the new catalog.
        fsync_path(directory.top)
        incoming.catalog_file.replace(directory.catalog_file)
        fsync_path(directory.top)
        reset_wal(directory)
        discard(directory)


def _move_private(path: Path, directory: StoreDirectory, ino: int) -> None:
    """Replace a private file of the store.

    From another disk it is copied and synced. The source stays until all is in place, so a kill
    loses nothing.
    """
    try:
        path.replace(directory.spool_file(ino))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = directory.new_spool_copy(ino)
        _copy(path, copy)
        copy.replace(directory.spool_file(ino))
