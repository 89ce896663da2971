"""Backups of a store: complete stores, made while the original is in use.

`FileManifest` lists unchanged private files, which are not copied again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from vfsd.api.store import Store
from vfsd.catalog import Catalog
from vfsd.core.model import ByteLocation, FileState
from vfsd.disk.checksums import BlockChecksummer, BlockChecksums
from vfsd.disk.external_files import is_below
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.safe_open import open_own
from vfsd.disk.store_layout import StoreDirectory, fsync_path, url_of_file
from vfsd.disk.tempfiles import NO_SPACE, write_atomically
from vfsd.errors import BusyError, ExistsError, IntegrityError, NoSpaceError, StoreError, UsageError
from vfsd.maintenance import fsck
from vfsd.storage.catalog_swap import (
    TRIES,
    WAIT_SECONDS,
    copy_private,
    copy_settings,
    keeping_wal,
    prepare,
    swap_catalog,
)
from vfsd.storage.context import StoreContext
from vfsd.write.frame_index import stored_fault

_SECOND_NS = 1_000_000_000
# Twice the longest tick of a kernel clock.
_TICK_NS = _SECOND_NS // 50
# For file systems that store whole seconds.
_COARSE_TICK_NS = 2 * _SECOND_NS

_FLOCK = fcntl.LOCK_EX | fcntl.LOCK_NB

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); may raise to give up."""


class FileManifest:
    """Notes about copies by inode number, kept in a file of the backup."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read_manifest(path)
        self._new: dict[str, str] = {}

    def is_copy(self, ino: int, source: os.stat_result, copy: os.stat_result) -> bool:
        """Return whether `copy` is a copy of `source`, and neither has changed since."""
        return self._known.get(str(ino)) == _copy_signature(source, copy)

    def note(self, ino: int, source: os.stat_result, copy: os.stat_result) -> None:
        """Record a copy.  `source` is the state of the original before it was copied."""
        self._new[str(ino)] = _copy_signature(source, copy)

    def save(self) -> None:
        """Write the recorded copies and drop all older notes.  Raises `OSError`."""
        write_atomically(self._path, json.dumps(self._new))


def is_ctime_settled(found: os.stat_result) -> bool:
    """Return whether a later change will show in the ctime of the file."""
    # A change in the same tick of the kernel clock does not change the ctime.
    tick = _TICK_NS if found.st_ctime_ns % _SECOND_NS else _COARSE_TICK_NS
    return found.st_ctime_ns + tick < time.time_ns()


def _copy_signature(source: os.stat_result, copy: os.stat_result) -> str:
    facts = [
        (each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in (source, copy)
    ]
    return blake3(repr(facts).encode()).hexdigest(16)


def _read_manifest(path: Path) -> dict[str, str]:
    """Return the saved notes; empty if the file is missing or damaged by a power cut."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def require_apart(source: StoreDirectory, target: Path) -> None:
    """Raises `UsageError` if one contains the other, or `target` is in a mount of `source`."""
    root, place = source.root.resolve(), target.resolve()
    is_inside = root in place.parents or is_below(place, source.top)
    if place == root or is_inside or place in root.parents:
        raise UsageError(
            f"{target} and the store {source.root} must not contain each other",
            hint="use a directory elsewhere, preferably on another disk",
        )
    if source.is_shown_at(place):
        raise UsageError(
            f"{target} is in a mount of the store itself",
            hint="use a directory elsewhere, preferably on another disk",
        )


@contextmanager
def convert_disk_errors(target: Path) -> Iterator[None]:
    """Convert disk and SQLite errors of the block to `NoSpaceError` or `StoreError`."""
    try:
        yield
    except (OSError, sqlite3.Error, NoSpaceError) as error:
        full = isinstance(error, sqlite3.Error) and "full" in str(error)
        if full or getattr(error, "errno", None) in NO_SPACE:
            converted: StoreError = NoSpaceError(
                f"no room for a copy of the store in {target}",
                hint="free some space and run the command again; it continues where it stopped",
            )
        elif isinstance(error, sqlite3.Error):
            converted = StoreError(
                f"the catalog could not be copied to {target}: {error}",
                hint="check quotas, and the kernel log for disk errors",
            )
        else:
            raise
        for note in getattr(error, "__notes__", ()):
            converted.add_note(note)
        raise converted from error


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Contents of a backup, and the cost of making it."""

    videos: int
    files: int  #: other than videos
    bytes: int  #: of all objects and files
    copied: int  #: bytes that the last backup did not have
    linked: tuple[str, ...]  #: videos indexed in place: the backup lacks their bytes
    damaged: tuple[str, ...]  #: objects with wrong hashes; the backup lacks them
    forbidden: tuple[str, ...]  #: objects without read permission; the backup lacks them
    unread: tuple[str, ...]  #: other files that could not be read; the backup may have old copies
    tables: tuple[str, ...]  #: videos with damaged frame tables, in the store and the backup


def back_up(
    parts: StoreContext,
    target: Path,
    *,
    derived: bool = True,
    on_progress: OnProgress | None = None,
) -> BackupReport:
    """Update the backup in `target`, or create it.

    Without `derived`, tiles and renditions are left out.  Another call continues an interrupted
    backup.  Until it is complete, the previous backup stays valid.

    Raises `UsageError` if the backup is not possible there, `ExistsError` if `target` is something
    else, and `BusyError` if the backup is in use.  Raises `IntegrityError` if the catalog is
    damaged, or if the path of an object is occupied and must not be cleared.  Raises `StoreError`
    if the path of a file is not a regular file, and `NoSpaceError` if the disk is full.
    """
    target = target.absolute()
    source = parts.directory
    if parts.catalog.path is None:
        raise UsageError(
            "the catalog is on a database server, which has to be backed up with its own tools",
            hint="back up to a bucket, such as s3://bucket/prefix; or dump the database first, "
            "then copy the store's directory",
        )
    require_apart(source, target)
    with convert_disk_errors(target), _locked_backup(source, target):
        work = _Backup(parts, StoreDirectory.unmarked(target), derived, on_progress)
        return work.run()


class _Backup:
    def __init__(
        self,
        parts: StoreContext,
        target: StoreDirectory,
        derived: bool,
        on_progress: OnProgress | None,
    ) -> None:
        self._parts = parts
        self._target = target
        self._staging = prepare(target)
        self._notes = FileManifest(target.backup_notes)
        self._sources: dict[int, os.stat_result] = {}  # of private files, before they were copied
        self._objects = ObjectStore(target)
        self._derived = derived
        self._on_progress = on_progress
        self._done = self._total = self._copied = 0
        self._sizes: dict[str, int | None] = {}  # of the objects that the snapshot refers to
        self._suspect: dict[str, tuple[range, ...]] = {}  # what the last backup may have damaged
        self._damaged: set[str] = set()
        self._forbidden: set[str] = set()
        self._unread: set[int] = set()  # inodes
        self._sums: dict[str, BlockChecksums] = {}  # of what was copied

    def run(self) -> BackupReport:
        target = self._target
        target.create_directories()
        self._suspect = self._known_damage()
        snapshot = self._staging.new_catalog
        for _ in range(TRIES):  # objects may be deleted before they are copied
            _remove_catalog(snapshot)
            self._parts.catalog.copy_to(snapshot)
            if self._copy_all(snapshot) and self._publish():
                with _note_completion():
                    self._finish()
                    return self._clean_up()
        raise StoreError(
            "files are deleted from the store, or the backup, faster than they can be copied",
            hint="try again when the store is less busy",
        )

    def _copy_all(self, snapshot: Path) -> bool:
        """Copy everything that the snapshot refers to; return whether all of it was there."""
        with closing(Catalog.open(url_of_file(snapshot))) as catalog:
            if not self._derived:
                with catalog.writing() as change:
                    change.segments.delete(one.id for one in change.segments.all())
                    change.layer_indexes.delete()
                    change.objects.forget_unreferenced()
            with catalog.reading() as seen:
                sizes = seen.objects.needed()
                states = (FileState.SPOOLED, FileState.PLAIN)
                private = [node.ino for one in states for node in seen.tree.files_in_state(one)]
        objects = self._parts.objects
        self._total = sum(size or objects.size(key) or 0 for key, size in sizes.items())
        self._done, self._sizes = 0, sizes
        self._sources.clear()
        self._unread.clear()
        there = [self._copy_object(key, size) for key, size in sorted(sizes.items())]
        there += [self._copy_private(ino) for ino in private]
        return all(there)

    def _known_damage(self) -> dict[str, tuple[range, ...]]:
        """Return the damaged objects of the last backup; all objects if its catalog is unreadable.

        Raises `BusyError` if the backup is in use.
        """
        last = self._target.catalog_file
        if not last.exists():
            return {}
        # The copy is migrated, not the original: this backup may fail.
        copy = self._staging.new_catalog
        try:
            with convert_disk_errors(self._target.root), keeping_wal(self._target):
                Catalog.copy_at(url_of_file(last), copy, patience=WAIT_SECONDS)
            with closing(Catalog.open(url_of_file(copy))) as catalog, catalog.reading() as seen:
                found = seen.integrity.damaged()
        except (BusyError, NoSpaceError):
            raise
        except StoreError:
            return dict.fromkeys(self._objects.all_keys(), ())
        finally:
            _remove_catalog(copy)
        return {one.place.object_key: one.damage for one in found if one.place.object_key}

    def _note_damage(self, snapshot: Path) -> None:
        """Record the damage of the copies in the snapshot, instead of that of the originals."""
        # Before the swap, so that a killed backup forgets no damage.
        with closing(Catalog.open(url_of_file(snapshot))) as catalog, catalog.writing() as change:
            change.integrity.forget_inspections()
            for key in self._left_out & self._suspect.keys():
                # Without known ranges, every byte has to be compared again.
                damage = self._suspect[key] or (range(self._objects.size(key) or 0),)
                change.integrity.add_damage(ByteLocation(key, None), damage, now_ns=time.time_ns())

    def _copy_object(self, key: str, size: int | None) -> bool:
        if (there := self._has_copy(key, size)) is not None:
            self._note(there)
            return True
        source, summer = self._parts.objects, BlockChecksummer()
        with ExitStack() as stack:
            try:
                copy = stack.enter_context(
                    self._objects.verified_copy_of(
                        source, key, on_progress=self._note, checksummer=summer
                    )
                )
            except FileNotFoundError:
                return key in self._damaged or self._is_missing(key)
            except IntegrityError:
                self._damaged.add(key)
                return True
            except PermissionError:
                if os.access(source.path(key), os.R_OK):
                    raise  # the backup is not writable
                self._forbidden.add(key)
                return True
            self._objects.exchange(copy, key)  # outside of the try: not a fault of the source
        self._sums[key] = summer.finish()
        self._copied += self._sums[key].size
        return True

    def _has_copy(self, key: str, size: int | None) -> int | None:
        """Return the size of an object that the backup already has, else None."""
        there = self._objects.size(key)
        if there is None or size not in (None, there):
            return None
        is_known = size is not None and key not in self._suspect
        return there if is_known or self._objects.is_intact(key, there) else None

    def _is_missing(self, key: str) -> bool:
        """Return whether an object is lost, rather than deleted since the snapshot."""
        with self._parts.catalog.reading() as seen:
            is_missing = key in seen.objects.referenced()
        if is_missing:
            self._damaged.add(key)
        return is_missing

    def _copy_private(self, ino: int) -> bool:
        """Copy a file other than a video in its current state; return whether it still exists."""
        source, copy = self._parts.directory.spool_file(ino), self._target.spool_file(ino)
        staging = self._staging.spool_file(ino)
        try:
            found = source.lstat()
            tells = is_ctime_settled(found)
            if copy.exists() and self._notes.is_copy(ino, found, copy.stat()):
                self._sources[ino] = found
                return True
            copy_private(source, staging)
            # A write during the copy changes the time; the copy must not have the later one.
            os.utime(staging, ns=(found.st_atime_ns, found.st_mtime_ns))
        except IntegrityError:
            self._unread.add(ino)
            return True
        except PermissionError:
            if os.access(source, os.R_OK):
                raise
            self._unread.add(ino)
            return True
        except FileNotFoundError:
            with self._parts.catalog.reading() as seen:
                node = seen.tree.nodes([ino]).get(ino)
            if node is None or node.state not in (FileState.SPOOLED, FileState.PLAIN):
                return False
            self._unread.add(ino)  # never synced before a crash, or lost since
            return True
        fsync_path(staging)
        if tells:
            self._sources[ino] = found
        self._copied += found.st_size
        return True

    def _publish(self) -> bool:
        """Swap the catalog; return False if objects were deleted since they were copied."""
        self._note_damage(self._staging.new_catalog)
        copy_settings(self._parts.directory, self._target, self._staging)
        return swap_catalog(self._target, self._has_all)

    def _finish(self) -> None:
        """Record the copied private files, and mark the backup as a store."""
        for ino, found in self._sources.items():
            self._notes.note(ino, found, self._target.spool_file(ino).stat())
        self._notes.save()
        self._parts.directory.copy_marker(self._target.root)
        fsync_path(self._target.root)

    def _has_all(self) -> bool:
        # Sizes are not compared: the catalog may be wrong about them.
        return all(map(self._objects.exists, self._sizes.keys() - self._left_out))

    @property
    def _left_out(self) -> set[str]:
        return self._damaged | self._forbidden

    def _clean_up(self) -> BackupReport:
        """Delete unused objects, and tiles that could not be copied; return the report."""
        with Store.open(self._target.root) as store:
            lost = self._left_out
            with store.catalog.reading() as seen:
                broken = [one for one in seen.segments.all() if one.object_key in lost]
            with store.catalog.writing() as change:
                change.segments.delete(one.id for one in broken)
                change.layer_indexes.delete(lost)
                change.objects.forget_unreferenced()
                for key, size in change.objects.needed().items():
                    there = self._objects.size(key)
                    if size is None and there is not None and key not in lost:
                        change.objects.record_missing(key, there, now_ns=time.time_ns())
                without = change.integrity.originals().keys() - change.integrity.with_checksums()
                for place in without:
                    if place.object_key in self._sums:
                        change.integrity.put_checksums(place, self._sums[place.object_key])
            fsck.collect(store.parts)
            with store.catalog.reading() as seen:
                videos = seen.tree.files_in_state(FileState.VIDEO)
                held = seen.objects.needed()
                unread = [name for ino in self._unread for name in seen.tree.paths_of(ino)]
            # Each on its own: for a video with a damaged row, only the name is known.
            unreadable = [node.ino for node in videos if stored_fault(store.parts, node)]
            with store.catalog.reading() as seen:
                linked = [seen.tree.display_path(node.ino) for node in videos if node.link_path]
                tables = [seen.tree.display_path(ino) for ino in unreadable]
            private = [path.stat().st_size for _, path in store.parts.directory.spooled()]
        return BackupReport(
            len(videos),
            len(private),
            sum(size or 0 for size in held.values()) + sum(private),
            self._copied,
            tuple(sorted(linked)),
            tuple(sorted(self._damaged)),
            tuple(sorted(self._forbidden)),
            tuple(sorted(unread)),
            tuple(sorted(tables)),
        )

    def _note(self, count: int) -> None:
        self._done += count
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


@contextmanager
def _note_completion() -> Iterator[None]:
    """Add a note to errors of the block: the backup is complete despite them."""
    try:
        yield
    except Exception as error:
        error.add_note("the backup is complete; run the command again to remove leftovers")
        raise


@contextmanager
def _locked_backup(source: StoreDirectory, target: Path) -> Iterator[None]:
    """Lock the backup, after a check that it is empty or belongs to this store."""
    directory = StoreDirectory.unmarked(target)
    directory.require_files()
    sign = directory.backup_sign
    if target.exists() and not sign.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExistsError(f"{target} is neither empty nor a backup", hint="use another directory")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = open_own(sign, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, _FLOCK)
        except BlockingIOError:
            raise BusyError(
                f"another process is backing up to {target}",
                hint="wait until it is done, or use another directory",
            ) from None
        written = os.pread(fd, 65536, 0)
        if not written:
            os.pwrite(fd, json.dumps({"of": source.id}).encode(), 0)
        elif _backup_owner(sign, written) != source.id:
            raise ExistsError(
                f"{target} is a backup of another store", hint="use another directory"
            )
        # A mount would keep the replaced catalog open.
        with directory.locked_for("a backup is being written into it"):
            yield
    finally:
        os.close(fd)


def _backup_owner(sign: Path, written: bytes) -> object:
    """Return the id of the store in the sign file of a backup.  Raises `ExistsError`."""
    try:
        return json.loads(written)["of"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ExistsError(
            f"{sign} must name the store of the backup: {error}",
            hint="if the backup is of this store, empty that file and run the command again",
        ) from error


def _remove_catalog(path: Path) -> None:
    for side in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{side}").unlink(missing_ok=True)
