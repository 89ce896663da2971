"""A store as a backup of it has it.

The other way round than `vfsd.maintenance.backup`, and as safe: objects come first, then the
catalog takes the place of the old one together with the private files.  Who is killed meanwhile
leaves the store as it was, or as the backup is.  What the old catalog and private files were is
kept beside the new ones, and bytes that only they know stay until `vfsd gc`.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.core.model import FileState
from vfsd.disk.object_store import ObjectStore
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
from vfsd.maintenance.backup import require_apart, told_of_disks
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
    """What a store holds after it was restored, and what that took."""

    videos: int
    files: int  #: that are no videos
    bytes: int  #: of all objects and files
    copied: int  #: bytes that were not there; those of files that are no videos count always
    linked: tuple[str, ...]  #: videos indexed in place: their bytes are not in a backup
    missing: tuple[str, ...]  #: objects that neither of the two has as they were
    emptied: tuple[str, ...]  #: files that are no videos, and whose bytes the backup has not
    unused: int  #: objects that are there and that nothing refers to any more
    replaced: Path | None  #: where the old catalog and private files are, if there were any


def restore(backup: Path, target: Path, *, on_progress: OnProgress | None = None) -> RestoreReport:
    """Make the store in `target` what its backup has, or make it there.

    What was interrupted is gone on with by doing it again; until it is done the store is what it
    was.  Raises `NoStoreError` where there is no backup, `UsageError` for a store that is none,
    `ExistsError` for a target that is another store, a backup or something else, `BusyError` where
    somebody uses one of the two, `IntegrityError` where the catalog of the backup is damaged, and
    where something lies in the place of an object of the store that is nobody's to delete,
    `StoreError` where something that is no file has the name of one, `ReadOnlyError`,
    `NoSpaceError`.
    """
    source, directory = _opened(backup.absolute()), StoreDirectory.unmarked(target.absolute())
    if not source.backup_sign.exists():
        raise UsageError(
            f"{source.root} must be a backup, got a store",
            hint="name the backup first, then the store to restore",
        )
    source.require_objects()
    require_apart(source, directory.root)
    _require_own(source, directory)
    if directory.root.exists() and not directory.can_be_written:
        raise ReadOnlyError(
            f"{directory.root} cannot be written",
            hint="look at its owner and permissions, and at how its disk is mounted",
        )
    directory.require_files()
    with told_of_disks(directory.root):
        directory.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with directory.locked_for("it is being restored from a backup"), _kept(source):
            require_closed(directory)
            work = _Restore(source, directory, on_progress)
            work.run()
        try:
            return work.told()
        except Exception as error:
            error.add_note("the store equals the backup; only counting its files failed")
            raise


def _opened(backup: Path) -> StoreDirectory:
    """Raises `NoStoreError`, which tells where a backup has been begun and never finished."""
    try:
        return StoreDirectory.open(backup)
    except NoStoreError:
        found = StoreDirectory.unmarked(backup)
        if not found.backup_sign.exists():
            if found.catalog_file.exists():
                raise
            raise NoStoreError(
                f"no backup found in {backup}",
                hint="name one that was made before, of the store: "
                f"`vfsd backup {shlex.quote(str(backup))}`",
            ) from None
        raise NoStoreError(
            f"the backup in {backup} has never been finished",
            hint=f"go on with it: `vfsd backup {shlex.quote(str(backup))}`, of the store",
        ) from None


class _Restore:
    def __init__(
        self, source: StoreDirectory, target: StoreDirectory, on_progress: OnProgress | None
    ) -> None:
        self._source = source
        self._backup = ObjectStore(source)
        self._target = target
        self._objects = ObjectStore(target)
        self._on_progress = on_progress
        self._done = self._total = self._copied = 0
        self._sizes: dict[str, int | None] = {}  # of the objects that the backup refers to
        self._missing: list[str] = []
        self._emptied: list[int] = []  # inodes
        self._replaced: Path | None = None

    def run(self) -> None:
        """Raises `StoreError` where others take away what is copied."""
        target = self._target
        target.create_directories()
        coming = prepare(target)
        for ino in self._bring_catalog(coming):
            self._bring_private(ino, coming)
        StoreSettings.load(
            self._source.settings
        )  # what nobody could open the store with stays there
        copy_settings(self._source, target, coming)
        for _ in range(TRIES):
            self._bring_objects()
            self._forget_damage(coming)
            # Numbers of tiles will be given again, and views in the cache may go by them.
            FileCache(target.cache, budget=0).sweep()
            if swap_catalog(target, self._has_all, self._keep_old):
                self._bring_marker()
                return
        raise StoreError(
            f"files are deleted from {target.root} faster than they can be copied",
            hint="end what takes them away, as `vfsd gc`, and try again",
        )

    def _bring_catalog(self, coming: StoreDirectory) -> list[int]:
        """Lay it there, in the form that this version has; the inodes of private files.

        The backup keeps its own as it is: it may be on a disk that nobody can write to, and another
        version may be the one that has to read it.
        """
        source = self._source
        with settled(source), keeping_wal(source):
            Catalog.copy_at(source.catalog_url, coming.new_catalog)
        with (
            closing(Catalog.open(url_of_file(coming.new_catalog), store_id=source.id)) as catalog,
            catalog.reading() as seen,
        ):
            self._sizes = seen.objects.needed()
            return [node.ino for one in _PRIVATE for node in seen.tree.files_in_state(one)]

    def _bring_marker(self) -> None:
        """It comes last: where there was none, nobody takes for a store what is not one yet."""
        try:
            self._source.copy_marker(self._target.root)
            fsync_path(self._target.root)
        except Exception as error:
            error.add_note(
                "everything of the backup is restored; "
                "run the command again to write the store's marker"
            )
            raise

    def told(self) -> RestoreReport:
        with Store.open(self._target.root) as store, store.catalog.reading() as seen:
            videos = seen.tree.files_in_state(FileState.VIDEO)
            referenced = seen.objects.needed()
            private = [n.ino for one in _PRIVATE for n in seen.tree.files_in_state(one)]
            emptied = [name for ino in self._emptied for name in seen.tree.paths_of(ino)]
            # Not of all videos: of one whose row makes no sense nothing but its name is known.
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

    def _bring_objects(self) -> None:
        there, sizes = self._backup, self._sizes
        self._done = 0
        self._total = sum(size or there.size(key) or 0 for key, size in sizes.items())
        self._missing.clear()
        for key, size in sorted(self._sizes.items()):
            self._bring_object(key, size)

    def _forget_damage(self, coming: StoreDirectory) -> None:
        """What was found damaged was found in the backup; here all has been compared."""
        with (
            closing(Catalog.open(url_of_file(coming.new_catalog))) as catalog,
            catalog.writing() as change,
        ):
            for place in [one.place for one in change.integrity.damaged()]:
                if place.object_key is not None and place.object_key not in self._missing:
                    change.integrity.forget_inspection(place)

    def _has_all(self) -> bool:
        # Not how large they are: it is the catalog that may be wrong about that.
        return all(map(self._objects.exists, self._sizes.keys() - set(self._missing)))

    def _keep_old(self) -> None:
        self._replaced = _keep_old(self._target)

    def _bring_object(self, key: str, size: int | None) -> None:
        if self._objects.exists(key) and self._objects.is_intact(key, size):
            self._note(self._objects.size(key) or 0)
            return
        with ExitStack() as stack:
            try:
                good = stack.enter_context(
                    self._objects.verified_copy_of(self._backup, key, on_progress=self._note)
                )
            except (FileNotFoundError, IntegrityError):
                self._missing.append(key)
                return
            self._copied += good.stat().st_size
            self._objects.exchange(good, key)  # what is wrong with its place is no fault of it

    def _bring_private(self, ino: int, coming: StoreDirectory) -> None:
        copy = coming.spool_file(ino)
        try:
            copy_private(self._source.spool_file(ino), copy)
        except (FileNotFoundError, IntegrityError):
            copy.touch(mode=0o600)  # else it would have what lies there in the store
            self._emptied.append(ino)
        fsync_path(copy)
        self._copied += copy.stat().st_size

    def _note(self, count: int) -> None:
        self._done += count
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def _require_own(source: StoreDirectory, target: StoreDirectory) -> None:
    """Raises `ExistsError` unless there is nothing yet, or the store that the backup is of, and
    `UsageError` where that has its catalog elsewhere."""
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
        # It has lost its marker, or was being restored when there was none yet.
        if target.catalog_file.exists() or target.mount_lock.exists():
            return
        raise ExistsError(
            f"{root} is neither empty nor a store", hint="name another directory"
        ) from None
    if found.id != source.id:
        raise ExistsError(f"{source.root} is a backup of another store than {root}")
    if not found.has_own_catalog:
        raise UsageError(
            f"the catalog of {root} lies elsewhere, and would stay as it is",
            hint="restore into an empty directory, and use that one from then on",
        )


@contextmanager
def _kept(source: StoreDirectory) -> Iterator[None]:
    """Let nobody change a backup; on a read-only disk nobody can."""
    if not source.can_be_written:
        yield
        return
    with source.locked_for("a store is being restored from it"):
        yield


def _keep_old(target: StoreDirectory) -> Path | None:
    """Give the catalog, the settings and the private files names by which they stay; where.

    They take no room of their own before others take their place, unless they lie on another disk
    and have to be copied.  Nobody may have the catalog open: it would go on changing under its new
    name, and another log come in the place of its own.
    """
    log, _ = target.sqlite_side_files()
    old = [path for path in (target.catalog_file, log, target.settings) if path.exists()]
    if not old:
        return None
    kept = _new_place(target)
    (kept / "spool").mkdir()
    spooled = [path for _, path in target.spooled()]
    try:
        for path in old:
            # What it leads to: a link would lead elsewhere from there, and to nothing of its own.
            _link_or_copy(path.resolve(), kept / path.name)
        for path in spooled:
            if not path.is_dir():
                _link_or_copy(path, kept / "spool" / path.name)
    except BaseException:
        shutil.rmtree(kept)  # the next try makes all of it again
        raise
    for path in spooled:
        if path.is_dir():  # it is no file, and would be in the way of one
            shutil.move(path, kept / "spool" / path.name)
    fsync_path(kept / "spool")
    fsync_path(kept)
    return kept


def _link_or_copy(path: Path, beside: Path) -> None:
    """Let a file be in another place, too; of what has no bytes nothing is copied."""
    try:
        os.link(path, beside, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if path.is_symlink():
            shutil.copy2(path, beside, follow_symlinks=False)
        elif path.is_file():
            shutil.copy2(path, beside)
            fsync_path(beside)


def _new_place(target: StoreDirectory) -> Path:
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
