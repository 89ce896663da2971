"""Backups in a bucket, and their verification; `vfsd.maintenance.backup_bucket` has their form.

The catalog is copied first, then all bytes that it refers to, and one manifest at the end. Bytes
that are there already are not copied again, also after an interruption.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import msgspec
from blake3 import blake3

from vfsd.catalog import Catalog
from vfsd.core.model import FileState, Node
from vfsd.disk.object_store import ObjectStore, Progress, digest_file
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory, url_of_file
from vfsd.errors import IntegrityError, NoStoreError, StoreError, UsageError
from vfsd.maintenance.backup import BackupReport, convert_disk_errors
from vfsd.maintenance.backup_bucket import (
    FORMAT,
    BackupBucket,
    BackupFile,
    Contents,
    Manifest,
    Notes,
    StoredBytes,
    in_parallel,
)
from vfsd.maintenance.restore import RestoreReport, restore_from
from vfsd.storage.catalog_swap import TRIES, copy_private
from vfsd.storage.context import StoreContext

_COPIED = 1 << 20
_PRIVATE = (FileState.SPOOLED, FileState.PLAIN)

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); may raise to give up."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of reading a backup."""

    backup: str  #: name of its manifest
    objects: int  #: files of the bucket that were read
    bytes: int
    damaged: tuple[str, ...]  #: keys without a good copy
    spoiled: tuple[str, ...]  #: names of damaged files, with a good copy or without


def back_up_to_bucket(
    parts: StoreContext,
    url: str,
    options: Mapping[str, str | bool],
    *,
    derived: bool = True,
    check: bool = False,
    on_progress: OnProgress | None = None,
) -> BackupReport:
    """Add a backup to those at `url`.

    Args:
        parts: The store.
        url: A bucket and a prefix for the backups of this store.
        options: Of the server of the bucket, as for `vfsd.maintenance.push.use_bucket`.
        derived: Whether tiles and renditions are included.
        check: Read copies of earlier backups, too, and upload damaged ones again.
        on_progress: Called while bytes are copied.

    Raises `UsageError` for the bucket of the store itself, `ExistsError` if the prefix is in use
    otherwise, `UnreachableError`, `IntegrityError` if the catalog is damaged, and `NoSpaceError` if
    there is no room for a copy of the catalog in the directory for temporary files.
    """
    own = parts.directory.bucket
    if own is not None and own[0].rstrip("/") == url.rstrip("/"):
        raise UsageError(f"{url} has the objects of the store", hint="give another prefix")
    with (
        BackupBucket.opened(url, options) as bucket,
        tempfile.TemporaryDirectory(prefix="vfsd-backup-") as folder,
        convert_disk_errors(Path(folder)),
    ):
        bucket.claim(parts.directory.id)
        bucket.look()
        bad: set[str] = set()
        try:
            bad.update(bucket.notes(bucket.manifest()).bad)
        except NoStoreError:
            pass
        except IntegrityError:
            check = True  # what is known to be damaged is lost
        work = _RemoteBackup(parts, bucket, Path(folder), bad, derived, check, on_progress)
        return work.run()


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of copying some objects ahead of a backup."""

    objects: int  #: copied now
    there: int  #: copied before, or not readable here
    bytes: int  #: copied now


def sizes_to_back_up(parts: StoreContext, *, derived: bool = True) -> dict[str, int]:
    """Return the objects that a backup needs now, with their sizes in bytes."""
    with parts.catalog.reading() as seen:
        needed = seen.objects.needed()
        packs = set() if derived else seen.derived_usage.keys()
    return {key: size or 0 for key, size in needed.items() if key not in packs}


def copy_objects(
    parts: StoreContext,
    url: str,
    options: Mapping[str, str | bool],
    beginnings: tuple[str, ...],
    *,
    derived: bool = True,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Copy the objects with keys that begin so, for a later `back_up_to_bucket` to publish.

    It may run several times, also at once.  Objects that this host cannot read are left to the
    backup.  Raises as `back_up_to_bucket`.
    """
    sizes = sizes_to_back_up(parts, derived=derived)
    wanted = {key: size for key, size in sizes.items() if key.startswith(beginnings)}
    with (
        BackupBucket.opened(url, options) as bucket,
        tempfile.TemporaryDirectory(prefix="vfsd-backup-") as folder,
        convert_disk_errors(Path(folder)),
    ):
        bucket.claim(parts.directory.id)
        bucket.look()
        lacking = [key for key, size in wanted.items() if bucket.copy_of(key, size) is None]
        work = _RemoteBackup(parts, bucket, Path(folder), set(), derived, False, on_progress)
        work.total = sum(wanted[key] for key in lacking)
        gone = sum(
            not found for found in in_parallel(lambda key: work.copy(key, wanted[key]), lacking)
        )
    left = len(work.damaged) + len(work.forbidden) + gone
    return CopyReport(len(lacking) - left, len(wanted) - len(lacking) + left, work.copied)


@dataclass
class _RemoteBackup:
    parts: StoreContext
    bucket: BackupBucket
    folder: Path
    bad: set[str]
    derived: bool
    check: bool
    on_progress: OnProgress | None
    done: int = 0
    total: int = 0
    copied: int = 0
    damaged: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)
    guard: Lock = field(default_factory=Lock)

    def run(self) -> BackupReport:
        for number in range(TRIES):  # objects may be deleted before they are copied
            snapshot = self.folder / f"catalog-{number}"
            self.parts.catalog.copy_to(snapshot)
            found = self._copy_all(snapshot)
            if found is not None:
                return found
            snapshot.unlink()
        raise StoreError(
            "files are deleted from the store faster than they can be copied",
            hint="try again when the store is less busy",
        )

    def _copy_all(self, snapshot: Path) -> BackupReport | None:
        """Copy what the snapshot refers to, and publish it; None if some of it was deleted."""
        with closing(Catalog.open(url_of_file(snapshot))) as catalog:
            with catalog.reading() as seen:
                private = [node for state in _PRIVATE for node in seen.tree.files_in_state(state)]
                names = {node.ino: seen.tree.paths_of(node.ino) for node in private}
                videos = seen.tree.files_in_state(FileState.VIDEO)
                linked = [seen.tree.display_path(node.ino) for node in videos if node.link_path]
            with catalog.writing() as change:
                if not self.derived:
                    change.segments.delete(one.id for one in change.segments.all())
                    change.layer_indexes.delete()
                    change.objects.forget_unreferenced()
                # A restored store has one home, and all objects in files.
                change.objects.forget_bucket()
                change.homes.forget_all()
                needed = change.objects.needed()
        sizes = {key: size or self._size(key) or 0 for key, size in needed.items()}
        self.total, self.done = sum(sizes.values()), 0
        if not all(in_parallel(lambda key: self.copy(key, needed[key]), sorted(needed))):
            return None
        files: dict[int, BackupFile] = {}
        unread: list[str] = []
        for node in private:
            file = self._copy_private(node)
            if file is not None:
                files[node.ino] = file
            elif self._is_gone(node):
                return None
            else:
                unread += names[node.ino]
        left_out = self.damaged | self.forbidden
        if left_out:
            with (
                closing(Catalog.open(url_of_file(snapshot))) as catalog,
                catalog.writing() as change,
            ):
                # Tiles and indexes can be made again.
                broken = [one.id for one in change.segments.all() if one.object_key in left_out]
                change.segments.delete(broken)
                change.layer_indexes.delete(left_out)
                change.objects.forget_unreferenced()
        contents = Contents(
            {key: size for key, size in sizes.items() if key not in left_out}, files
        )
        notes = Notes(sorted(left_out), sorted(self.bad))
        directory = self.parts.directory
        settings = directory.settings
        size = sum(contents.objects.values()) + sum(one.size for one in files.values())
        self.bucket.publish(
            Manifest(
                FORMAT,
                directory.id,
                directory.creation,
                settings.read_text(encoding="utf-8") if settings.exists() else None,
                self._put_file(snapshot),
                self.bucket.put_data(msgspec.json.encode(contents)),
                self.bucket.put_data(msgspec.json.encode(notes)),
                len(videos),
                size,
                len(left_out),
            )
        )
        return BackupReport(
            len(videos),
            len(files),
            size,
            self.copied,
            tuple(sorted(linked)),
            tuple(sorted(self.damaged)),
            tuple(sorted(self.forbidden)),
            tuple(sorted(unread)),
            (),
        )

    def _size(self, key: str) -> int | None:
        return self.parts.objects.size(key)

    def copy(self, key: str, size: int | None) -> bool:
        """Upload an object unless it is there; return False if it was deleted in the meantime."""
        objects = self.parts.objects
        size = size if size is not None else self._size(key)
        if self._has(key, size):
            self._note(size or 0)
            return True
        try:
            path = objects.local_path(key)
            if path is not None:
                if not objects.is_intact(key, size):
                    if not objects.exists(key):
                        raise FileNotFoundError(key)
                    raise IntegrityError(f"object {key} is damaged")
                self._upload(key, path)
            else:
                self._upload_from_bucket(key)
        except FileNotFoundError:
            with self.parts.catalog.reading() as seen:
                if key not in seen.objects.referenced():
                    return False
            self.damaged.add(key)
        except IntegrityError:
            self.damaged.add(key)
        except PermissionError:
            self.forbidden.add(key)
        return True

    def _has(self, key: str, size: int | None) -> bool:
        """Return whether the bucket has a copy, a good one if copies are checked."""
        while (name := self.bucket.copy_of(key, size, self.bad)) is not None:
            if not self.check or name in self.checked:
                return True
            self.checked.add(name)
            if self.bucket.is_intact(key, size, name):
                return True
            self.bad.add(name)
        return False

    def _upload_from_bucket(self, key: str) -> None:
        """Copy an object that is only in the bucket of the store."""
        hasher = blake3()
        with (
            tempfile.NamedTemporaryFile(dir=self.folder) as file,
            closing(self.parts.objects.open(key)) as source,
        ):
            for at in range(0, source.size, _COPIED):
                data = source.read(at, _COPIED)
                hasher.update(data)
                file.write(data)
            file.flush()
            if hasher.hexdigest() != key:
                raise IntegrityError(f"object {key} is damaged in the bucket")
            self._upload(key, Path(file.name))

    def _upload(self, key: str, path: Path) -> None:
        size = self.bucket.put(key, path)
        with self.guard:
            self.copied += size
        self._note(size)

    def _put_file(self, path: Path) -> StoredBytes:
        found = digest_file(path)
        if self._has(found.key, found.size):
            return StoredBytes(found.key, found.size)
        return StoredBytes(found.key, self.bucket.put(found.key, path))

    def _copy_private(self, node: Node) -> BackupFile | None:
        """Upload the present bytes of a file that is not a video; None if it cannot be read."""
        if self.parts.is_elsewhere(node):
            return None
        source = self.parts.directory.spool_file(node.ino)
        copy = self.folder / str(node.ino)
        try:
            # The bytes of a copy do not change while they are uploaded.
            copy_private(source, copy)
        except (FileNotFoundError, IntegrityError, PermissionError):
            return None
        try:
            found, stat = digest_file(copy), copy.stat()
            if not self._has(found.key, found.size):
                self.copied += self.bucket.put(found.key, copy)
        finally:
            copy.unlink()
        return BackupFile(found.key, found.size, stat.st_mode & 0o7777, stat.st_mtime_ns)

    def _is_gone(self, node: Node) -> bool:
        """Return whether a file was deleted, or became a video, since the snapshot."""
        with self.parts.catalog.reading() as seen:
            found = seen.tree.nodes([node.ino]).get(node.ino)
        return found is None or found.state not in _PRIVATE

    def _note(self, count: int) -> None:
        with self.guard:
            self.done += count
            if self.on_progress is not None:
                self.on_progress(self.done, self.total)


def list_backups(url: str, options: Mapping[str, str | bool]) -> Iterator[Manifest]:
    """Yield the backups at `url`, the oldest one first.  Raises as `BackupBucket.manifest`."""
    with BackupBucket.opened(url, options) as bucket:
        bucket.owner()
        for name in bucket.manifests():
            yield bucket.manifest(name)


def check_backup(
    url: str,
    options: Mapping[str, str | bool],
    *,
    beginning: str = "",
    on_progress: OnProgress | None = None,
) -> CheckReport:
    """Read all bytes of the newest backup with a name that begins so, and compare their hashes.

    Raises `NoStoreError` if there is none, `UnreachableError`, and `IntegrityError` if its
    manifest, catalog or list is damaged.
    """
    with (
        BackupBucket.opened(url, options) as bucket,
        tempfile.TemporaryDirectory(prefix="vfsd-backup-") as folder,
        convert_disk_errors(Path(folder)),
    ):
        manifest = bucket.manifest(beginning)
        bucket.look()
        contents = bucket.contents(manifest)
        bucket.download(manifest.catalog, Path(folder) / "catalog")
        with closing(Catalog.open(url_of_file(Path(folder) / "catalog"))) as catalog:
            found = catalog.damage()
        if found:
            raise IntegrityError(f"the catalog of {manifest.name} is damaged: {found[0]}")
        wanted = {**contents.objects, **{one.key: one.size for one in contents.files.values()}}
        total, done, damaged, spoiled = sum(wanted.values()), 0, [], []

        def bad_copies(key: str) -> tuple[str, list[str], bool]:
            bad: list[str] = []
            for name, _ in bucket.copies(key, wanted[key]):
                if bucket.is_intact(key, wanted[key], name):
                    return key, bad, True
                bad.append(name)
            return key, bad, False

        for key, bad, is_good in in_parallel(bad_copies, sorted(wanted)):
            spoiled += bad
            if not is_good:
                damaged.append(key)
            done += wanted[key]
            if on_progress is not None:
                on_progress(done, total)
    return CheckReport(
        manifest.name, len(wanted), total, tuple(sorted(damaged)), tuple(sorted(spoiled))
    )


class BucketSource:
    """A backup in a bucket; see `vfsd.maintenance.restore.BackupSource`."""

    def __init__(self, bucket: BackupBucket, manifest: Manifest) -> None:
        """Raises `IntegrityError` if the backup has no good list of its contents."""
        bucket.look()
        self._bucket = bucket
        self._manifest = manifest
        self._contents = bucket.contents(manifest)
        self.where = f"{manifest.name} in {bucket.url}"
        self.id = manifest.store

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()  # its files never change

    def copy_catalog(self, path: Path) -> None:
        self._bucket.download(self._manifest.catalog, path)

    def copy_file(self, ino: int, path: Path) -> None:
        stored = self._contents.files.get(ino)
        if stored is None:
            raise FileNotFoundError(ino)
        self._bucket.download(StoredBytes(stored.key, stored.size), path)
        path.chmod(stored.mode)
        os.utime(path, ns=(stored.mtime_ns, stored.mtime_ns))

    def copy_settings(self, target: StoreDirectory, incoming: StoreDirectory) -> None:
        if self._manifest.settings is not None:
            incoming.settings.write_text(self._manifest.settings, encoding="utf-8")
            StoreSettings.load(incoming.settings)  # invalid settings must not be restored
        elif target.settings.exists():
            incoming.settings.touch()

    def write_marker(self, root: Path) -> None:
        StoreDirectory.write_marker(root, self.id, self._manifest.marker)

    def size(self, key: str) -> int | None:
        return self._contents.objects.get(key)

    def for_each(self, action: Callable[[str], None], keys: Iterable[str]) -> None:
        for _ in in_parallel(action, keys):
            pass

    @contextmanager
    def object_copy(
        self, objects: ObjectStore, key: str, size: int | None, on_progress: Progress
    ) -> Iterator[Path]:
        wanted = self.size(key) if size is None else size
        for name, chunks in self._bucket.copies(key, wanted):
            with ExitStack() as stack:
                try:
                    copy = stack.enter_context(
                        objects.verified_temporary(chunks, key, name, on_progress)
                    )
                except (FileNotFoundError, IntegrityError):
                    continue
                yield copy
                return
        raise FileNotFoundError(key)


def restore_from_bucket(
    url: str,
    options: Mapping[str, str | bool],
    target: Path,
    *,
    beginning: str = "",
    on_progress: OnProgress | None = None,
) -> RestoreReport:
    """Restore the store in `target` from the newest backup with a name that begins so.

    Raises `NoStoreError` if there is none, `UnreachableError`, and as
    `vfsd.maintenance.restore.restore`.
    """
    with BackupBucket.opened(url, options) as bucket:
        source = BucketSource(bucket, bucket.manifest(beginning))
        return restore_from(source, target, on_progress)
