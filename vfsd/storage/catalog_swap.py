"""Replaces the catalog of a store, with its private files and settings, by another one: all or
nothing. Also handles backups that were copied over a store by hand, where an old write-ahead
log may remain.
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
from vfsd.disk.direct_io import stored_chunks
from vfsd.disk.enospc import NO_SPACE
from vfsd.disk.store_layout import StoreDirectory, fsync_path
from vfsd.disk.tempfiles import held_directory
from vfsd.errors import BusyError, ReadOnlyError

_HOW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def reset_wal(directory: StoreDirectory) -> None:
    """Give a backup its empty log, if it has none; nothing for other stores.

    A log that is there stays as it is: others may have the backup open, or were killed.  No error
    where nothing can be written: SQLite could not take it away either.
    """
    if not directory.backup_sign.exists():
        return
    log, _ = directory.beside_catalog()
    with suppress(OSError):
        os.close(os.open(log, _HOW, 0o600))


@contextmanager
def with_log(directory: StoreDirectory) -> Iterator[None]:
    """For a block that opens the catalog, and closes it."""
    try:
        yield
    finally:
        reset_wal(directory)


def copy_private(source: Path, copy: Path) -> None:
    """Copy a file of a store with its times and mode; there is no copy where that fails.

    Raises `FileNotFoundError` where it is not there, `IntegrityError` where the disk does not give
    it, or something else lies there, `OSError` where it cannot be written.
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


def bring_settings(source: StoreDirectory, target: StoreDirectory, coming: StoreDirectory) -> None:
    """Lay into `coming` what the settings of `target` are to be: those of `source`.

    Where that has none, and so the usual ones, those that `target` has must not stay.
    """
    if source.settings.exists():
        shutil.copy2(source.settings, coming.settings)
    elif target.settings.exists():
        coming.settings.touch()


PATIENCE_SECONDS = 30.0
"""As long as those may go on who just have a look with a command."""
TRIES = 5
"""How often bytes are copied that others take away before the catalog is there that needs them."""

_PAUSE_SECONDS = 0.05

T = TypeVar("T")


def prepare(directory: StoreDirectory) -> StoreDirectory:
    """An empty place for what is to come; what others left there, and was not all, is gone.

    For who keeps others from mounting the store.
    """
    finish(directory)
    coming = directory.incoming
    discard(directory)
    coming.spool.mkdir(parents=True)
    return coming


def take_over(
    directory: StoreDirectory,
    has_all: Callable[[], bool],
    keep_old: Callable[[], None] = lambda: None,
) -> bool:
    """Let what was prepared, a `new_catalog` among it, take the place of what there is.

    Private files are on the disk already.  To whoever collected garbage until now the objects that
    came for the new catalog were just that: so `has_all` looks for them again while nobody has the
    store open.  Where some are gone nothing changes, and False is returned.  `keep_old` may give
    what there is other names then, which nobody changes any more.  Raises `BusyError` where
    somebody has the store open for longer than `PATIENCE_SECONDS`; nothing has changed then.
    """
    coming = directory.incoming
    for path in (coming.new_catalog, coming.settings, coming.spool, coming.root, directory.top):
        if path.exists():
            fsync_path(path)
    return _once_closed(directory, partial(_take_place, directory, has_all, keep_old))


def require_closed(directory: StoreDirectory) -> None:
    """Raises `BusyError` as `take_over` does; what was in SQLite's log is in the catalog then."""
    _once_closed(directory, lambda: None)


def _once_closed(directory: StoreDirectory, action: Callable[[], T]) -> T:
    """Do something while nobody has the catalog open, nor is about to open it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (done := _done_if_closed(directory, action)):
        if time.monotonic() >= end:
            raise BusyError(
                f"somebody has {directory.root} open",
                hint=f"try again when he has closed it; `fuser {directory.catalog_file}` tells who",
            )
        time.sleep(_PAUSE_SECONDS)
    return done[0]


@contextmanager
def settled(directory: StoreDirectory) -> Iterator[None]:
    """For a block that opens the catalog: nothing is to come, and nothing comes meanwhile.

    Raises `ReadOnlyError` where something is to come and cannot be put into its place.
    """
    while True:
        finish(directory)
        with held_directory(directory.top, fcntl.LOCK_SH):
            if not _is_to_come(directory):
                yield
                return


def finish(directory: StoreDirectory) -> None:
    """Put into its place what is to come, where another was killed before he had done that."""
    if not _is_to_come(directory):
        return
    try:
        with held_directory(directory.top, fcntl.LOCK_EX):
            _put_in_place(directory)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        raise ReadOnlyError(
            f"who brought {directory.root} up to date was killed, and it cannot be written: "
            f"{error.strerror}",
            hint=f"say `vfsd -s {shlex.quote(str(directory.root))} ls` once as somebody who may "
            "write there",
        ) from error


def discard(directory: StoreDirectory) -> None:
    """Take away what was laid there, and is not all, or was put into its place."""
    shutil.rmtree(directory.incoming.root, ignore_errors=True)


def abandoned(directory: StoreDirectory) -> list[Path]:
    """Files that lie there for nothing, as who laid them was killed before all of it was there."""
    if directory.mounted_by() is not None or _is_to_come(directory):
        return []
    return sorted(path for path in directory.incoming.root.rglob("*") if path.is_file())


def discard_abandoned(directory: StoreDirectory) -> None:
    """Take them away, unless somebody has just begun to lay others."""
    if not directory.incoming.root.exists():
        return
    with suppress(BusyError), directory.held_for("its garbage is taken away"):
        finish(directory)
        discard(directory)


def _is_to_come(directory: StoreDirectory) -> bool:
    return directory.incoming.catalog_file.exists()


def _done_if_closed(directory: StoreDirectory, action: Callable[[], T]) -> tuple[T] | None:
    """What it gives; None where it was not done."""
    try:
        with held_directory(directory.top, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if not checkpoint_if_closed(directory.catalog_file):
                return None
            try:
                return (action(),)
            finally:
                reset_wal(directory)  # to come to rest has taken it away
    except BlockingIOError:
        return None


def _take_place(
    directory: StoreDirectory, has_all: Callable[[], bool], keep_old: Callable[[], None]
) -> bool:
    if not has_all():
        return False
    coming = directory.incoming
    with _copied_beside(directory) as copies:
        keep_old()
        coming.new_catalog.replace(coming.catalog_file)
    try:
        fsync_path(coming.root)
        _put_in_place(directory, copies)
    except BaseException as error:
        error.add_note(
            f"all of it is there, and put in its place by who opens {directory.root} next"
        )
        raise
    return True


@contextmanager
def _copied_beside(directory: StoreDirectory) -> Iterator[dict[int, Path]]:
    """Durable copies of the private files that are to come, by inode, beside those whose places
    they take; none where a rename puts the files themselves there.

    Before all of it is what the store holds: nobody could open that where their disk has no room
    for them, or cannot be written.  They go where the block fails, and so do those of another who
    was killed in it.
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
    """Whether private files that are to come can get another name where the others lie.

    Only trying tells: it takes more than to lie on one disk.
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


def _put_in_place(directory: StoreDirectory, copies: Mapping[int, Path] | None = None) -> None:
    """The catalog goes last: where it is still to come, the rest may be.  Where it has come, what
    lies there is of somebody who has begun since.

    `copies` are those of private files that have to be copied.  Without, what is left of those that
    another made goes first, as there may be room for one of each.
    """
    coming = directory.incoming
    if _is_to_come(directory):
        if copies is None:
            for left in directory.spool_copies():
                with suppress(OSError):
                    left.unlink()
        for ino, path in coming.spooled():
            if copies:
                copies[ino].replace(directory.spool_file(ino))
            else:
                _bring_private(path, directory, ino)
        if coming.settings.exists():
            coming.settings.replace(directory.settings)
        fsync_path(directory.spool)
        for path in (*directory.beside_catalog(), directory.rollback_journal):
            path.unlink(missing_ok=True)
        # SQLite would take what a power cut brings back of these for the new catalog's.
        fsync_path(directory.top)
        coming.catalog_file.replace(directory.catalog_file)
        fsync_path(directory.top)
        reset_wal(directory)
        discard(directory)


def _bring_private(path: Path, directory: StoreDirectory, ino: int) -> None:
    """Let a private file take the place of the one that the store has.

    Where these lie on another disk a copy does, once that is durable; the file itself stays until
    all is in place, so that who is killed here has lost nothing.
    """
    try:
        path.replace(directory.spool_file(ino))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = directory.new_spool_copy(ino)
        _copy(path, copy)
        copy.replace(directory.spool_file(ino))
