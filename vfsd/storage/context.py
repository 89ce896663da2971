"""`StoreContext`: the parts of an open store, which the packages above work on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Hashable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vfsd.catalog import DEFAULT_STALENESS, Catalog, Transaction
from vfsd.core.model import ByteLocation, Node, PhysicalVideo, StoreBucket
from vfsd.disk.checksums import BlockChecksums, ChecksummedFile, WholeFile
from vfsd.disk.disk_reserve import keep_reserve, with_reserve
from vfsd.disk.object_store import ObjectStore, Progress, digest
from vfsd.disk.safe_open import DirectFile
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, IntegrityError, ReadOnlyError, RefusedMediaError, StoreError
from vfsd.storage.catalog_swap import reset_wal, settled
from vfsd.storage.original_files import OriginalFiles
from vfsd.storage.quarantine import Quarantine
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits

if TYPE_CHECKING:
    from vfsd.codecs.inventory.inventory import Inventory
    from vfsd.codecs.probing.probe import Examination

T = TypeVar("T")

_CHANGES = "changes"
"""File in the cache of a home: the catalog's number of changes, for all its processes."""

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The directory, catalog, objects, settings and services of one open store. Cannot be
    pickled."""

    directory: StoreDirectory
    catalog: Catalog
    objects: ObjectStore
    settings: StoreSettings
    examiner: Examiner
    quarantine: Quarantine
    originals: OriginalFiles
    read_only: bool = False
    on_close: Callable[[], None] = lambda: None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        read_only: bool = False,
        staleness: float | None = DEFAULT_STALENESS,
    ) -> StoreContext:
        """Open the store in the directory `path`. Raises as `vfsd.Store.open`."""
        directory = StoreDirectory.open_watched(path)
        try:
            parts = cls.of(directory, read_only=read_only, staleness=staleness)
            return replace(parts, on_close=directory.close)
        except BaseException:
            directory.close()
            raise

    @classmethod
    def of(
        cls,
        directory: StoreDirectory,
        *,
        read_only: bool = False,
        staleness: float | None = DEFAULT_STALENESS,
    ) -> StoreContext:
        """Open the store of a directory that the caller has opened, and closes.

        Raises as `vfsd.Store.open`.
        """
        directory.require_objects()
        if not read_only:
            directory.create_directories()
        with settled(directory):
            settings = StoreSettings.load(directory.settings)
            catalog = with_reserve(
                directory,
                lambda: Catalog.open(
                    directory.catalog_url,
                    read_only=read_only,
                    store_id=directory.id,
                    staleness=staleness,
                    home=directory.home,
                    require_in_place=directory.require_in_place,
                ),
            )
        if catalog.home is not None:
            from vfsd.storage.homes import register_home  # SQLite catalogs have none

            try:
                register_home(directory, catalog, read_only=read_only)
            except BaseException:
                catalog.close()
                raise
        if not read_only:
            keep_reserve(directory)
        limits = SandboxLimits(memory=settings.examine_memory, seconds=settings.examine_seconds)
        before_first = partial(_require_no_objects_needed, catalog, directory)
        if directory.bucket is None:
            objects = ObjectStore(directory, before_first)
        else:
            from vfsd.storage.remote_objects import RemoteObjects  # most stores have no bucket

            objects = RemoteObjects(
                directory,
                before_first,
                catalog,
                StoreBucket(*directory.bucket),
                settings.object_cache_bytes,
            )
            if catalog.home is not None:
                catalog.share_changes(directory.location / directory.cache.name / _CHANGES)
        return cls(
            directory,
            catalog,
            objects,
            settings,
            Examiner(limits),
            Quarantine(directory, catalog if catalog.home is not None else None),
            OriginalFiles(catalog, objects, directory.top),
            read_only,
        )

    def close(self) -> None:
        """Close the catalog, the worker processes and the directory."""
        self.examiner.close()
        self.objects.close()
        self.catalog.close()
        reset_wal(self.directory)
        self.on_close()

    def require_writable(self) -> None:
        """Raise `ReadOnlyError` for a read-only store, before any work is done."""
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")

    def private_file(self, node: Node) -> Path:
        """Return the path of the private bytes of a file.

        Raises `BusyError` if they are in another home.
        """
        self.require_here(node)
        return self.directory.spool_file(node.ino)

    @property
    def is_shared(self) -> bool:
        """Whether closed files are uploaded, so that other hosts can read them."""
        return self.catalog.home is not None and not self.objects.is_local

    def is_elsewhere(self, node: Node) -> bool:
        """Return whether the only bytes of a file are in another home."""
        return node.home is not None and node.home != self.catalog.home

    def elsewhere_reason(self, node: Node) -> str:
        """Return why the bytes of a file that `is_elsewhere` cannot be used here."""
        from vfsd.storage.homes import elsewhere_reason

        return elsewhere_reason(self.catalog, node)

    def require_here(self, node: Node, name: str | None = None) -> None:
        """Raise `BusyError` if the only bytes of a file are in another home."""
        if self.is_elsewhere(node):
            if name is None:
                with self.catalog.reading() as seen:
                    name = seen.tree.display_path(node.ino)
            raise BusyError(
                f"{name!r} {self.elsewhere_reason(node)}",
                hint="use it there; `vfsd homes` lists the homes of the store",
            )

    def require_objects_present(self) -> None:
        """Raise `StoreError` if the catalog refers to objects but the object directory is empty.

        Call it before dropping tiles because they are missing, and before freeing space. The disk
        of the objects may not be mounted.
        """
        if self.objects.has_no_folders():
            _require_no_objects_needed(self.catalog, self.directory)

    def with_reserve(self, action: Callable[[], T]) -> T:
        """Call `action`, which frees space, with the disk reserve available; see
        `vfsd.disk.disk_reserve`."""
        return with_reserve(self.directory, action, rewind=self.catalog.restart_log)

    def write_with_reserve(self, action: Callable[[Transaction], T]) -> T:
        """Run a catalog transaction that must succeed on a full disk.

        It frees space, or needs little and is important. `action` receives a new transaction at
        each attempt.
        """

        def write() -> T:
            with self.catalog.writing() as change:
                return action(change)

        return self.with_reserve(write)

    def whole_file(self, location: ByteLocation) -> WholeFile:
        """Open stored bytes for a check of all of them, past the caches.

        Raises `OSError`, `IntegrityError` for an invalid key, `UnreachableError`.
        """
        if location.object_key is not None:
            return self.objects.whole_file(location.object_key)
        return DirectFile(self.originals.path_at(location))

    def examine_stream(
        self,
        fd: int,
        name: str,
        stream: int | None,
        *,
        in_largest_size: bool = False,
        full: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Examination:
        """Examine the video stream that the catalog names, with `Examiner.examine_open`.

        If the file has no such stream, the catalog is wrong, and the best stream is examined.
        """
        look = partial(
            self.examiner.examine_open,
            fd,
            name,
            full=full,
            in_largest_size=in_largest_size,
            on_progress=on_progress,
        )
        try:
            return look(stream=stream)
        except RefusedMediaError:
            if stream is None:
                raise
            found = look()
            videos = {side.index for side in found.media.side_streams if side.kind == "video"}
            if stream in {*videos, found.media.stream_index}:
                raise
            return found

    def examine(
        self,
        physical: PhysicalVideo,
        *,
        name: str,
        full: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Examination:
        """Compare all of an original with its checksums, then examine it; see `Examiner.examine`.

        Frame tables, tiles and labels depend on the result. So a file without checksums must hash
        to its digest. The same descriptor is compared and examined, so a replaced name has no
        effect. `name` is used in messages. `on_progress` counts bytes twice that are read for both
        steps. Raises as `Examiner.examine`. Raises `IntegrityError` for bytes other than the stored
        ones, and for a file that is written to in the meantime.
        """
        compared = 0

        def add_compared(count: int) -> None:
            nonlocal compared
            compared += count
            if on_progress is not None:
                on_progress(compared, 2 * file.size)

        def add_examined(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(compared + done, compared + total)

        with closing(self.originals.file_of(physical).open()) as file:
            before = file.identity
            self._require_stored(file, physical, name, add_compared)
            try:
                found = self.examine_stream(
                    file.descriptor(),
                    name,
                    physical.media.stream_index,
                    in_largest_size=physical.media.in_largest_size,
                    full=full,
                    on_progress=add_examined,
                )
            except RefusedMediaError:
                _require_unwritten(file, name, before)
                raise
            _require_unwritten(file, name, before)
            return found

    def inventory(self, physical: PhysicalVideo, *, name: str) -> Inventory:
        """Compare all of an original with its checksums, then list everything in it but samples.

        Raises as `examine`.
        """
        with closing(self.originals.file_of(physical).open()) as file:
            before = file.identity
            self._require_stored(file, physical, name, lambda _: None)
            found = self.examiner.inventory_open(file.descriptor(), physical.media, name)
            _require_unwritten(file, name, before)
            return found

    def _require_stored(
        self, file: ChecksummedFile, physical: PhysicalVideo, name: str, on_progress: Progress
    ) -> None:
        """Raise `IntegrityError` unless an open original has exactly the stored bytes.

        Checksums are stored if there are none yet.
        """
        location = physical.place
        expected = self._digest_without_checksums(file, location)
        if expected is not None:
            fd = file.descriptor()
            mtime_ns = None if location.link_path is None else os.fstat(fd).st_mtime_ns
            found = digest(fd, on_progress=on_progress)
            if found.key != expected and location.link_path is not None:
                raise IntegrityError(
                    f"{name} has changed since it was indexed",
                    hint="run `vfsd ingest --link --replace` to index the new content",
                )
            if found.key != expected:
                raise _changed_bytes_error(
                    f"{name} is damaged on disk: its bytes hash to {found.key}"
                )
            self._store_checksums(location, found.sums, mtime_ns)
        elif (sums := file.sums) is not None:
            file.require(0, sums.size, on_progress=on_progress)
            if file.size > sums.size:
                raise _changed_bytes_error(f"{name}: more bytes follow the {sums.size} stored ones")

    def _digest_without_checksums(
        self, file: ChecksummedFile, location: ByteLocation
    ) -> str | None:
        """Return the digest that an original must have; None if it has checksums."""
        if location.object_key is not None:
            return location.object_key if file.sums is None else None
        # A file indexed in place cannot be read without checksums, so `file.sums` would raise.
        with self.catalog.reading() as seen, suppress(IntegrityError):
            if seen.integrity.checksums(location) is not None:
                return None
        with self.catalog.reading() as seen:
            return seen.integrity.originals().get(location)

    def _store_checksums(
        self, location: ByteLocation, sums: BlockChecksums, mtime_ns: int | None
    ) -> None:
        if self.read_only:
            return
        with self.catalog.writing() as change:
            if change.integrity.is_known(location):
                change.integrity.put_checksums(location, sums, mtime_ns=mtime_ns)


def _require_no_objects_needed(
    catalog: Catalog, directory: StoreDirectory, arriving: str | None = None
) -> None:
    """Raise `StoreError` if the catalog refers to objects other than `arriving`."""
    with catalog.reading() as seen:
        needed = seen.objects.needed()
    if needed.keys() - {arriving}:
        location = directory.objects
        raise StoreError(
            f"{location} is empty, and should hold {len(needed)} objects",
            hint="if they are on another disk, mount it; if they are lost, run "
            f"`mkdir {shlex.quote(str(location / '00'))}`, and each missing object is reported",
        )


def _changed_bytes_error(message: str) -> IntegrityError:
    return IntegrityError(message, hint="run `vfsd scrub --from BACKUP` to restore a good copy")


def _require_unwritten(file: ChecksummedFile, name: str, before: Hashable) -> None:
    if file.identity != before:
        raise IntegrityError(
            f"{name} was written to while it was examined",
            hint="run `vfsd scrub` to compare it with its checksums; for a file indexed in place, "
            "run `vfsd ingest --link --replace` to index the new content",
        )
