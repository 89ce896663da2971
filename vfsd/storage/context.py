"""What a store is made of; the verbs (`ingest`, `reader`, `check` ...) work on this."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vfsd.catalog import Catalog, Transaction
from vfsd.core.model import ByteLocation, PhysicalVideo
from vfsd.disk.block_checksums import BlockChecksums
from vfsd.disk.checksummed_file import ChecksummedFile, StoredFile
from vfsd.disk.disk_reserve import keep_reserve, with_reserve
from vfsd.disk.object_store import ObjectStore, Progress, digest
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.disk.verify_file import version_of
from vfsd.errors import IntegrityError, ReadOnlyError, RefusedMediaError, StoreError
from vfsd.storage.catalog_swap import reset_wal, settled
from vfsd.storage.checksum_registry import ChecksumRegistry
from vfsd.storage.quarantine import Quarantine
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits

if TYPE_CHECKING:
    from vfsd.codecs.inventory.collector import Inventory
    from vfsd.codecs.probing.probe import Examination

T = TypeVar("T")

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What an open store is made of.  Cannot be pickled."""

    directory: StoreDirectory
    catalog: Catalog
    objects: ObjectStore
    settings: StoreSettings
    examiner: Examiner
    suspects: Quarantine
    summed: ChecksumRegistry
    read_only: bool = False
    on_close: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> StoreContext:
        """Those of the store in the directory `path`.  Raises as `vfsd.Store.open`."""
        directory = StoreDirectory.open_watched(path)
        try:
            return replace(cls.of(directory, read_only=read_only), on_close=directory.close)
        except BaseException:
            directory.close()
            raise

    @classmethod
    def of(cls, directory: StoreDirectory, *, read_only: bool = False) -> StoreContext:
        """Those of a store whose directory was opened, and stays the caller's.

        Raises as `vfsd.Store.open`.
        """
        directory.require_objects()
        if not read_only:
            directory.lay_out()
        with settled(directory):
            settings = StoreSettings.load(directory.settings)
            catalog = with_reserve(
                directory,
                lambda: Catalog.open(
                    directory.catalog_url,
                    read_only=read_only,
                    store_id=directory.id,
                    require_in_place=directory.require_in_place,
                ),
            )
        if not read_only:
            keep_reserve(directory)
        limits = SandboxLimits(memory=settings.examine_memory, seconds=settings.examine_seconds)
        return cls(
            directory,
            catalog,
            ObjectStore(directory, partial(_require_none_needed, catalog, directory)),
            settings,
            Examiner(limits),
            Quarantine(directory),
            ChecksumRegistry(catalog, directory.top),
            read_only,
        )

    def close(self) -> None:
        self.examiner.close()
        self.catalog.close()
        reset_wal(self.directory)
        self.on_close()

    def require_writable(self) -> None:
        """Raises `ReadOnlyError`: before anything is computed in vain."""
        if self.read_only:
            raise ReadOnlyError("the store was opened read-only")

    def require_filled(self) -> None:
        """Raises `StoreError` where the catalog refers to objects, and there is no folder for any:
        before tiles are let go because they are missing, and before anything is to make room on
        what may be another disk than theirs."""
        if self.objects.is_bare():
            _require_none_needed(self.catalog, self.directory)

    def with_reserve(self, action: Callable[[], T]) -> T:
        """Do something that leads to more room, on a full disk too; see
        `vfsd.disk.disk_reserve`."""
        return with_reserve(self.directory, action, rewind=self.catalog.rewind_log)

    def write_with_reserve(self, action: Callable[[Transaction], T]) -> T:
        """Write something into the catalog that leads to more room, or takes little and matters on
        a full disk: `action` has a transaction, and another one each time it is tried again."""

        def write() -> T:
            with self.catalog.writing() as change:
                return action(change)

        return self.with_reserve(write)

    def file_of(self, physical: PhysicalVideo) -> StoredFile:
        """The file that holds an original: an object, or a file indexed in place.

        What is read of it is compared with its sums.
        """
        if physical.is_growing:
            return self.summed.growing(self.path_of(physical.place), physical.growing_name)
        return self.summed.stored(self.path_of(physical.place), physical.place)

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
        """An examination of the video stream that the catalog names, by `Examiner.examine_open`.

        The best stream is examined where the file has no such one: the catalog is wrong then.
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
        """Examine an original, all of which is compared first; see `Examiner.examine`.  Bytes that
        are read for both count twice in what `on_progress` is told.

        Frame tables go by what comes of it, and tiles and labels by them: so a file without sums
        has to hash to what it is called by.  What is compared is what is examined, whatever has its
        name meanwhile.  `name` is what messages call it.  Raises as `Examiner.examine`, and
        `IntegrityError` for bytes that are not those that were stored, or into which somebody
        writes meanwhile.
        """
        compared = 0

        def note(count: int) -> None:
            nonlocal compared
            compared += count
            if on_progress is not None:
                on_progress(compared, 2 * file.size)

        def go_on(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(compared + done, compared + total)

        with closing(self.file_of(physical).open()) as file:
            before = version_of(os.fstat(file.fd))
            self._require_stored(file, physical, name, note)
            try:
                found = self.examine_stream(
                    file.fd,
                    name,
                    physical.media.stream_index,
                    in_largest_size=physical.media.in_largest_size,
                    full=full,
                    on_progress=go_on,
                )
            except RefusedMediaError:
                _require_unwritten(file, name, before)
                raise
            _require_unwritten(file, name, before)
            return found

    def inventory(self, physical: PhysicalVideo, *, name: str) -> Inventory:
        """Everything in an original besides samples, all of which is compared with its sums first.

        Raises as `examine`.
        """
        with closing(self.file_of(physical).open()) as file:
            before = version_of(os.fstat(file.fd))
            self._require_stored(file, physical, name, lambda _: None)
            found = self.examiner.inventory_open(file.fd, physical.media, name)
            _require_unwritten(file, name, before)
            return found

    def _require_stored(
        self, file: ChecksummedFile, physical: PhysicalVideo, name: str, on_progress: Progress
    ) -> None:
        """Raises `IntegrityError` unless an open original has the bytes that were stored, and no
        others: by its sums, which it has from then on if it has none yet."""
        place = physical.place
        expected = self._unsummed_digest(file, place)
        if expected is not None:
            mtime_ns = None if place.link_path is None else os.fstat(file.fd).st_mtime_ns
            found = digest(file.fd, on_progress=on_progress)
            if found.key != expected and place.link_path is not None:
                raise IntegrityError(
                    f"{name} has changed since it was indexed",
                    hint="`vfsd ingest --link --replace` takes what it has become",
                )
            if found.key != expected:
                raise _other_bytes(f"{name} is damaged on disk: its bytes hash to {found.key}")
            self._put_sums(place, found.sums, mtime_ns)
        elif (sums := file.sums) is not None:
            file.require(0, sums.size, on_progress=on_progress)
            if file.size > sums.size:
                raise _other_bytes(f"{name}: others follow the {sums.size} bytes that were stored")

    def _unsummed_digest(self, file: ChecksummedFile, place: ByteLocation) -> str | None:
        """What all of an original hashes to; None where it has sums to go by."""
        if place.object_key is not None:
            return place.object_key if file.sums is None else None
        # Of a file indexed in place nobody gets anything without, and so no sums of the file.
        with self.catalog.reading() as seen, suppress(IntegrityError):
            if seen.integrity.sums(place) is not None:
                return None
        with self.catalog.reading() as seen:
            return seen.integrity.originals().get(place)

    def _put_sums(self, place: ByteLocation, sums: BlockChecksums, mtime_ns: int | None) -> None:
        if self.read_only:
            return
        with self.catalog.writing() as change:
            if change.integrity.is_there(place):
                change.integrity.put_sums(place, sums, mtime_ns=mtime_ns)

    def held(self, physical: PhysicalVideo) -> AbstractContextManager[None]:
        """While this block runs `file_of` can be opened, whoever removes the video meanwhile."""
        return self.summed.held(self.path_of(physical.place), physical.place)

    def bytes_of(self, physical: PhysicalVideo) -> Path:
        """The same, as a bare path: for those who do not read it."""
        return self.path_of(physical.place)

    def path_of(self, place: ByteLocation) -> Path:
        """Where the bytes of an original are."""
        if place.object_key is not None:
            return self.objects.path(place.object_key)
        assert place.link_path is not None
        return Path(place.link_path)


def _require_none_needed(
    catalog: Catalog, directory: StoreDirectory, coming: str | None = None
) -> None:
    """Raises `StoreError` where the catalog refers to objects, and not to one only that is just
    `coming`."""
    with catalog.reading() as seen:
        needed = seen.objects.needed()
    if needed.keys() - {coming}:
        place = directory.objects
        raise StoreError(
            f"{place} is empty, and should hold {len(needed)} objects",
            hint="where they lie on another disk, mount that; where they are gone for good, "
            f"make one of their folders again, as by `mkdir {shlex.quote(str(place / '00'))}`, "
            "and what is missing is told one by one",
        )


def _other_bytes(message: str) -> IntegrityError:
    return IntegrityError(message, hint="`vfsd scrub --from BACKUP` puts a good copy back")


def _require_unwritten(file: ChecksummedFile, name: str, before: tuple[int, int, int]) -> None:
    if version_of(os.fstat(file.fd)) != before:
        raise IntegrityError(
            f"{name}: its bytes were written into while they were examined",
            hint="`vfsd scrub` tells whether they are those that were stored; of a file indexed in "
            "place `vfsd ingest --link --replace` takes what it has become",
        )
