"""Restores a store from its backup.

Objects are copied first.  Then the catalog and the private files are replaced together.  A killed
restore leaves either the old store or the restored one.  The old catalog and private files are
kept next to the new ones.  Objects that only they refer to stay until `vfsd gc`.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import Protocol

from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.core.model import FileState
from vfsd.disk.object_store import ObjectStore, Progress
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory, fsync_path, url_of_file
from vfsd.errors import (
    ExistsError,
    IntegrityError,
    NoStoreError,
    ReadOnlyError,
    StoreError,
    UsageError,
)
from vfsd.maintenance.backup import convert_disk_errors, require_apart
from vfsd.storage.catalog_swap import (
    TRIES,
    copy_private,
    copy_settings,
    keeping_wal,
    prepare,
    require_closed,
    settled,
    swap_catalog,
)
from vfsd.storage.file_cache import FileCache

_PRIVATE = (FileState.SPOOLED, FileState.PLAIN)

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); may raise to give up."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Contents of a restored store, and the cost of restoring it."""

    videos: int
    files: int  #: other than videos
    bytes: int  #: of all objects and files
    copied: int  #: bytes that were missing; files other than videos always count
    linked: tuple[str, ...]  #: videos indexed in place: a backup lacks their bytes
    missing: tuple[str, ...]  #: objects without an intact copy in the store or the backup
    emptied: tuple[str, ...]  #: files other than videos, without bytes in the backup
    unused: int  #: objects of the store without references
    replaced: Path | None  #: where the old catalog and private files are, if there were any


def restore(backup: Path, target: Path, *, on_progress: OnProgress | None = None) -> RestoreReport:
    """Restore the store in `target` from `backup`, or create it.

    Another call continues an interrupted restore.  Until it is complete, the store is unchanged.

    Raises `NoStoreError` if there is no backup, and `UsageError` if `backup` is an ordinary store.
    Raises `ExistsError` if `target` is another store, a backup or something else, and `BusyError`
    if either is in use.  Raises `IntegrityError` if the catalog of the backup is damaged, or if the
    path of an object is occupied and must not be cleared.  Raises `StoreError` if the path of a
    file is not a regular file.  Raises `ReadOnlyError` or `NoSpaceError` if `target` cannot be
    written.
    """
    source = _open_backup(backup.absolute())
    if not source.backup_sign.exists():
        raise UsageError(
            f"{source.root} must be a backup, got a store",
            hint="name the backup first, then the store to restore",
        )
    source.require_objects()
    require_apart(source, target.absolute())
    return restore_from(BackupDirectory(source), target, on_progress)


class BackupSource(Protocol):
    """A complete backup, in a directory or in a bucket."""

    where: str  #: for messages
    id: str  #: of the store

    def locked(self) -> AbstractContextManager[None]:
        """Keep the backup from changing."""

    def copy_catalog(self, path: Path) -> None:
        """Copy the catalog as it is to a new file."""

    def copy_file(self, ino: int, path: Path) -> None:
        """Copy a file that is not a video.  Raises `FileNotFoundError`, `IntegrityError`."""

    def copy_settings(self, target: StoreDirectory, incoming: StoreDirectory) -> None:
        """See `vfsd.storage.catalog_swap.copy_settings`."""

    def write_marker(self, root: Path) -> None:
        """Make a directory that has everything else a store."""

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if it is missing."""

    def for_each(self, action: Callable[[str], None], keys: Iterable[str]) -> None:
        """Call `action` for each object, several at the same time if that is faster."""

    def object_copy(
        self, objects: ObjectStore, key: str, size: int | None, on_progress: Progress
    ) -> AbstractContextManager[Path]:
        """Yield a temporary file with an object.  Raises `FileNotFoundError`, `IntegrityError`."""


class BackupDirectory:
    """A backup of `vfsd.maintenance.backup`."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._objects = ObjectStore(directory)
        self.where = str(directory.root)
        self.id = directory.id

    def locked(self) -> AbstractContextManager[None]:
        return _locked_backup(self._directory)

    def copy_catalog(self, path: Path) -> None:
        # The catalog of the backup itself is not migrated: its disk may be read-only, and an older
        # version may have to read it.
        with settled(self._directory), keeping_wal(self._directory):
            Catalog.copy_at(self._directory.catalog_url, path)

    def copy_file(self, ino: int, path: Path) -> None:
        copy_private(self._directory.spool_file(ino), path)

    def copy_settings(self, target: StoreDirectory, incoming: StoreDirectory) -> None:
        StoreSettings.load(self._directory.settings)  # invalid settings must not be restored
        copy_settings(self._directory, target, incoming)

    def write_marker(self, root: Path) -> None:
        self._directory.copy_marker(root)

    def size(self, key: str) -> int | None:
        return self._objects.size(key)

    def for_each(self, action: Callable[[str], None], keys: Iterable[str]) -> None:
        for key in keys:
            action(key)

    def object_copy(
        self, objects: ObjectStore, key: str, size: int | None, on_progress: Progress
    ) -> AbstractContextManager[Path]:
        return objects.verified_copy_of(self._objects, key, on_progress=on_progress)


def restore_from(
    source: BackupSource, target: Path, on_progress: OnProgress | None = None
) -> RestoreReport:
    """Restore the store in `target` from a backup; see `restore`."""
    directory = StoreDirectory.unmarked(target.absolute())
    _require_same_store(source, directory)
    if directory.root.exists() and not directory.can_be_written:
        raise ReadOnlyError(
            f"{directory.root} cannot be written",
            hint="check its owner, its permissions and how its disk is mounted",
        )
    directory.require_files()
    with convert_disk_errors(directory.root):
        directory.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with directory.locked_for("it is being restored from a backup"), source.locked():
            require_closed(directory)
            work = _Restore(source, directory, on_progress)
            work.run()
        try:
            return work.report()
        except Exception as error:
            error.add_note("the store equals the backup; only counting its files failed")
            raise


def _open_backup(backup: Path) -> StoreDirectory:
    """Open a backup.  Raises `NoStoreError`, also for a backup that was never finished."""
    try:
        return StoreDirectory.open(backup)
    except NoStoreError:
        found = StoreDirectory.unmarked(backup)
        if not found.backup_sign.exists():
            if found.catalog_file.exists():
                raise
            raise NoStoreError(
                f"no backup found in {backup}",
                hint=f"make one with `vfsd backup {shlex.quote(str(backup))}`",
            ) from None
        raise NoStoreError(
            f"the backup in {backup} has never been finished",
            hint=f"finish it with `vfsd backup {shlex.quote(str(backup))}`",
        ) from None


class _Restore:
    def __init__(
        self, source: BackupSource, target: StoreDirectory, on_progress: OnProgress | None
    ) -> None:
        self._source = source
        self._guard = Lock()
        self._target = target
        self._objects = ObjectStore(target)
        self._on_progress = on_progress
        self._done = self._total = self._copied = 0
        self._sizes: dict[str, int | None] = {}  # of the objects that the backup refers to
        self._missing: list[str] = []
        self._emptied: list[int] = []  # inodes
        self._replaced: Path | None = None

    def run(self) -> None:
        """Raises `StoreError` if other processes keep deleting the copied objects."""
        target = self._target
        target.create_directories()
        staging = prepare(target)
        for ino in self._restore_catalog(staging):
            self._restore_private(ino, staging)
        self._source.copy_settings(target, staging)
        for _ in range(TRIES):
            self._restore_objects()
            self._forget_damage(staging)
            # Tile numbers will be reused, and cached views may refer to the old ones.
            FileCache(target.cache, budget=0).sweep()
            if swap_catalog(target, self._has_all, self._keep_old):
                self._restore_marker()
                return
        raise StoreError(
            f"files are deleted from {target.root} faster than they can be copied",
            hint="stop the process that deletes them, such as `vfsd gc`, and try again",
        )

    def _restore_catalog(self, staging: StoreDirectory) -> list[int]:
        """Copy and migrate the catalog; return the inodes of private files."""
        self._source.copy_catalog(staging.new_catalog)
        url = url_of_file(staging.new_catalog)
        with (
            closing(Catalog.open(url, store_id=self._source.id)) as catalog,
            catalog.reading() as seen,
        ):
            self._sizes = seen.objects.needed()
            return [node.ino for one in _PRIVATE for node in seen.tree.files_in_state(one)]

    def _restore_marker(self) -> None:
        # Last, so that an incomplete directory does not pass as a store.
        try:
            self._source.write_marker(self._target.root)
            fsync_path(self._target.root)
        except Exception as error:
            error.add_note(
                "everything of the backup is restored; "
                "run the command again to write the store's marker"
            )
            raise

    def report(self) -> RestoreReport:
        with Store.open(self._target.root) as store, store.catalog.reading() as seen:
            videos = seen.tree.files_in_state(FileState.VIDEO)
            referenced = seen.objects.needed()
            private = [n.ino for one in _PRIVATE for n in seen.tree.files_in_state(one)]
            emptied = [name for ino in self._emptied for name in seen.tree.paths_of(ino)]
            # Linked videos only: for a video with a damaged row, only the name is known.
            linked = [seen.tree.display_path(node.ino) for node in videos if node.link_path]
        unused = sum(key not in referenced for key in self._objects.all_keys())
        return RestoreReport(
            len(videos),
            len(private),
            sum(size or self._objects.size(key) or 0 for key, size in referenced.items())
            + sum(_size(self._target.spool_file(ino)) for ino in private),
            self._copied,
            tuple(sorted(linked)),
            tuple(self._missing),
            tuple(sorted(emptied)),
            unused,
            self._replaced,
        )

    def _restore_objects(self) -> None:
        there, sizes = self._source, self._sizes
        self._done = 0
        self._total = sum(size or there.size(key) or 0 for key, size in sizes.items())
        self._missing.clear()
        self._source.for_each(self._restore_object, sorted(sizes))
        self._missing.sort()

    def _forget_damage(self, staging: StoreDirectory) -> None:
        # Damage found in the backup does not matter: the restored objects have been compared.
        with (
            closing(Catalog.open(url_of_file(staging.new_catalog))) as catalog,
            catalog.writing() as change,
        ):
            for place in [one.place for one in change.integrity.damaged()]:
                if place.object_key is not None and place.object_key not in self._missing:
                    change.integrity.forget_inspection(place)

    def _has_all(self) -> bool:
        # Sizes are not compared: the catalog may be wrong about them.
        return all(map(self._objects.exists, self._sizes.keys() - set(self._missing)))

    def _keep_old(self) -> None:
        self._replaced = _keep_old_files(self._target)

    def _restore_object(self, key: str) -> None:
        size = self._sizes[key]
        if self._objects.exists(key) and self._objects.is_intact(key, size):
            self._note(self._objects.size(key) or 0)
            return
        with ExitStack() as stack:
            try:
                good = stack.enter_context(
                    self._source.object_copy(self._objects, key, size, self._note)
                )
            except (FileNotFoundError, IntegrityError):
                self._missing.append(key)
                return
            with self._guard:
                self._copied += good.stat().st_size
            self._objects.exchange(good, key)  # outside of the try: not a fault of the backup

    def _restore_private(self, ino: int, staging: StoreDirectory) -> None:
        copy = staging.spool_file(ino)
        try:
            self._source.copy_file(ino, copy)
        except (FileNotFoundError, IntegrityError):
            copy.touch(mode=0o600)  # otherwise the old file of the store would stay
            self._emptied.append(ino)
        fsync_path(copy)
        self._copied += copy.stat().st_size

    def _note(self, count: int) -> None:
        with self._guard:
            self._done += count
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)


def _require_same_store(source: BackupSource, target: StoreDirectory) -> None:
    """Raises `ExistsError` unless `target` is empty or the store of this backup.

    Raises `UsageError` if that store has its catalog elsewhere.
    """
    root = target.root
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return
    if target.backup_sign.exists():
        raise ExistsError(
            f"{root} is a backup itself",
            hint=f"if it was copied back by hand, delete {target.backup_sign}",
        )
    try:
        found = StoreDirectory.open(root)
    except NoStoreError:
        # The marker was lost, or a first restore was interrupted.
        if target.catalog_file.exists() or target.mount_lock.exists():
            return
        raise ExistsError(
            f"{root} is neither empty nor a store", hint="use another directory"
        ) from None
    if found.id != source.id:
        raise ExistsError(f"{source.where} is a backup of another store, not of {root}")
    if not found.has_own_catalog:
        raise UsageError(
            f"the catalog of {root} is outside its directory and would not be restored",
            hint="restore into an empty directory, and use that one from now on",
        )


@contextmanager
def _locked_backup(source: StoreDirectory) -> Iterator[None]:
    """Lock the backup against changes; a read-only disk needs no lock."""
    if not source.can_be_written:
        yield
        return
    with source.locked_for("a store is being restored from it"):
        yield


def _keep_old_files(target: StoreDirectory) -> Path | None:
    """Keep the old catalog, settings and private files in a new directory, and return it.

    The catalog must be closed.  Files on another disk are copied.
    """
    # Hard links need no space until the originals are replaced.  An open catalog would keep
    # changing under its new name, and SQLite would create a second log.
    log, _ = target.sqlite_side_files()
    old = [path for path in (target.catalog_file, log, target.settings) if path.exists()]
    if not old:
        return None
    kept = _new_directory(target)
    (kept / "spool").mkdir()
    spooled = [path for _, path in target.spooled()]
    try:
        for path in old:
            # Resolved, because a relative link would have another target in the new directory.
            _link_or_copy(path.resolve(), kept / path.name)
        for path in spooled:
            if not path.is_dir():
                _link_or_copy(path, kept / "spool" / path.name)
    except BaseException:
        shutil.rmtree(kept)  # the next try starts again
        raise
    for path in spooled:
        if path.is_dir():  # a directory would block the restored file
            shutil.move(path, kept / "spool" / path.name)
    fsync_path(kept / "spool")
    fsync_path(kept)
    return kept


def _link_or_copy(path: Path, copy: Path) -> None:
    """Hard-link a file, or copy it to another disk.  Special files are not copied."""
    try:
        os.link(path, copy, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if path.is_symlink():
            shutil.copy2(path, copy, follow_symlinks=False)
        elif path.is_file():
            shutil.copy2(path, copy)
            fsync_path(copy)


def _new_directory(target: StoreDirectory) -> Path:
    now = time.strftime("%Y%m%d-%H%M%S")
    for name in chain([now], (f"{now}-{number}" for number in count(2))):
        with suppress(FileExistsError):
            target.replaced(name).mkdir()
            return target.replaced(name)
    raise AssertionError("numbers have no end")


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
