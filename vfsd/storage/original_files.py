"""Opens originals so that each block is compared with its checksum when it is first read, and
makes the errors for damaged ones.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from vfsd.catalog import Catalog
from vfsd.catalog.integrity import StoredChecksums
from vfsd.core.damaged_frames import damaged_frames_of
from vfsd.core.model import ByteLocation, LogicalVideo, PhysicalVideo
from vfsd.core.process_control import reset_after_fork
from vfsd.disk.checksums import ChecksummedFile, StoredFile, VerifiedBlocks, ranges_text
from vfsd.disk.external_files import open_linked
from vfsd.disk.object_reader import LocalReader, ObjectReader, StoredObjects
from vfsd.disk.safe_open import open_stored
from vfsd.errors import DamagedFileError, IntegrityError, NotFoundError, UnreachableError, VfsdError

_log = logging.getLogger(__name__)

# Each process compares each block once. Comparing on every read takes 5.7 us instead of 1.4 us for
# 4 KiB, and cached pages do not decay.
_MAX_MEMORY = 32 << 20
"""Bytes of cached checksums and block maps: enough for some 100 GB of videos."""
_MISSING_SECONDS = 10.0
"""How long a file without checksums is not looked up again."""
_MAX_HELD = 64
"""How many originals are kept open for readers after their removal, one descriptor each."""
_LOST_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO, errno.ENXIO)


class OriginalFiles:
    """Opens originals so that reads are compared with their checksums. Thread-safe.

    Damage is logged once for each block, and recorded in the catalog if that can be written.
    """

    def __init__(self, catalog: Catalog, objects: StoredObjects, root: Path) -> None:
        """`root` is the directory of the store."""
        self._catalog = catalog
        self._objects = objects
        self._root = root
        self._blocks: OrderedDict[tuple[ByteLocation, Hashable], VerifiedBlocks] = OrderedDict()
        self._missing: dict[ByteLocation, float] = {}  # monotonic time of the lookup
        self._reported: set[tuple[ByteLocation, int]] = (
            set()
        )  # location and first byte of the damage
        self._held: dict[ByteLocation, tuple[ObjectReader, int]] = {}  # reader, number of holders
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def path_of(self, physical: PhysicalVideo) -> Path:
        """Return the path of an original, for callers that do not read it.

        Raises as `path_at`.
        """
        return self.path_at(physical.place)

    def path_at(self, location: ByteLocation) -> Path:
        """Return the path of stored bytes. Raises `OSError` (EREMOTE) for those in a bucket."""
        found = self._local_path(location)
        if found is None:
            raise OSError(errno.EREMOTE, "the object is not a file on this host", str(location))
        return found

    def is_remote(self, location: ByteLocation) -> bool:
        """Return whether stored bytes are in a bucket, and not in a file on this host."""
        return self._local_path(location) is None

    def _local_path(self, location: ByteLocation) -> Path | None:
        if location.object_key is not None:
            return self._objects.local_path(location.object_key)
        assert location.link_path is not None
        return Path(location.link_path)

    def file_of(self, physical: PhysicalVideo) -> StoredFile:
        """Return the file of an original, which is opened on demand.

        Reads are compared with the stored checksums; a file that is still growing has none.
        """
        if physical.is_growing:
            return _growing_file(self.path_of(physical), physical.growing_name)
        return self._file_at(physical.place)

    def open_at(self, location: ByteLocation) -> ChecksummedFile:
        """Open stored bytes, wherever they are. Raises as `StoredFile.open`."""
        return self._file_at(location).open()

    def opened(self, location: ByteLocation, fd: int) -> ChecksummedFile:
        """Return the file of an original that is open as `fd`, and take over `fd`."""
        return self._file_at(location).of(LocalReader(fd))

    def prefetch(self, physical: PhysicalVideo, ranges: Sequence[tuple[int, int]]) -> None:
        """Have half-open ranges of an original fetched that is on a server. Never fails."""
        key = physical.place.object_key
        if key is not None and not physical.is_growing:
            with suppress(OSError, VfsdError), closing(self._objects.open(key)) as reader:
                reader.prefetch(ranges)

    def _file_at(self, location: ByteLocation) -> StoredFile:
        path = self._local_path(location)
        return StoredFile(
            f"object {location.object_key}" if path is None else os.fspath(path),
            lambda reader: self._find(location, reader),
            lambda ranges, is_proven: self._report(location, ranges, is_proven),
            lambda: self._open(location),
            lambda: self._reopen(location),
        )

    @contextmanager
    def held(self, physical: PhysicalVideo) -> Iterator[None]:
        """Keep an original readable in this block, even after its last video was removed.

        Best effort: not if the object cannot be opened, or if `_MAX_HELD` are held already.
        """
        location = physical.place
        is_held = self._hold(location)
        try:
            yield
        finally:
            if is_held:
                self._let_go(location)

    def _hold(self, location: ByteLocation) -> bool:
        """Hold an object open; return whether that was possible."""
        if location.object_key is None:
            return False  # removing a video leaves the file where it is
        with self._guard:
            if self._hold_again(location):
                return True
            if len(self._held) >= _MAX_HELD:
                return False
        try:
            reader = self._objects.open(location.object_key)
        except OSError:
            return False
        with self._guard:
            if self._hold_again(location):
                reader.close()
            else:
                self._held[location] = reader, 1
        return True

    def _hold_again(self, location: ByteLocation) -> bool:
        """Add a holder if the object is held already; return whether it was."""
        held = self._held.get(location)
        if held is not None:
            self._held[location] = held[0], held[1] + 1
        return held is not None

    def _let_go(self, location: ByteLocation) -> None:
        with self._guard:
            reader, count = self._held.pop(location)
            if count > 1:
                self._held[location] = reader, count - 1
            else:
                reader.close()

    def _open(self, location: ByteLocation) -> ObjectReader:
        """Open an original.

        Raises `DamagedFileError` if an object is missing or is not a regular file. Raises
        `NotFoundError` if no video uses it and no reader holds it.
        """
        if location.object_key is None:
            assert location.link_path is not None
            return LocalReader(open_linked(location.link_path, self._root))
        try:
            return self._objects.open(location.object_key)
        except OSError as error:
            if error.errno not in _LOST_ERRORS:
                raise
            if self._objects.is_elsewhere(location.object_key):
                raise UnreachableError(
                    f"{location} is a file of another home, and not in the bucket",
                    hint="run `vfsd push` there",
                ) from error
            try:
                with self._catalog.reading() as seen:
                    size = seen.objects.require_size(location.object_key)
            except NotFoundError:
                with self._guard:
                    if location in self._held:
                        return self._held[location][0].duplicate()
                raise
            # Not recorded: the user may put the file back.
            raise self._report(location, [range(size or 1)], False) from error

    def _reopen(self, location: ByteLocation) -> ObjectReader:
        """Open the file that has the name of an original now. Raises `OSError`,
        `UnreachableError`."""
        if location.object_key is not None:
            self._objects.refresh(location.object_key)
            return self._objects.open(location.object_key)
        return LocalReader(open_stored(location.link_path or ""))

    # -- sums

    def _find(self, location: ByteLocation, reader: ObjectReader) -> VerifiedBlocks | None:
        # The identity includes the stat of the file, as the file may be replaced or written to.
        # It includes the location, as inode numbers are reused and users can set times.
        identity = location, reader.identity
        with self._guard:
            blocks = self._blocks.get(identity)
            if blocks is not None:
                self._blocks.move_to_end(identity)
                return blocks
            if time.monotonic() - self._missing.get(location, -_MISSING_SECONDS) < _MISSING_SECONDS:
                return None
        try:
            known = self._catalog.checksums(location)
        except IntegrityError as error:
            _log.warning("%s is read without comparison: %s", location, error)
            known = None
        if location.link_path is not None:
            _require_as_indexed(location, os.fstat(reader.descriptor()), known)
        if known is None and not self._objects.is_local and location.object_key is not None:
            # The bucket keeps removed bytes for a while, but their checksums are gone.
            with self._catalog.reading() as seen:
                seen.objects.require_size(location.object_key)
        with self._guard:
            if known is None:
                self._missing[location] = time.monotonic()
                return None
            self._missing.pop(location, None)
            blocks = self._blocks.setdefault(identity, VerifiedBlocks(known.sums))
            held = sum(each.memory for each in self._blocks.values())
            while held > _MAX_MEMORY and len(self._blocks) > 1:
                held -= self._blocks.popitem(last=False)[1].memory
        return blocks

    # -- damage

    def _report(
        self, location: ByteLocation, ranges: Sequence[range], is_proven: bool
    ) -> DamagedFileError:
        if not is_proven and not self._objects.is_local and location.object_key is not None:
            # The bucket keeps bytes of removed videos for a while, as for handles that are open.
            with suppress(UnreachableError), self._catalog.reading() as seen:
                seen.objects.require_size(location.object_key)
        error = self.damage_error(location, ranges, is_proven=is_proven)
        with self._guard:
            new = {(location, one.start) for one in ranges} - self._reported
            self._reported |= new
        if new:
            _log.error("%s", error)
        if new and is_proven and not self._catalog.read_only:
            # The reader may be inside a transaction, or the disk full.
            with suppress(VfsdError, OSError, AssertionError), self._catalog.writing() as change:
                if change.integrity.is_known(location):
                    change.integrity.add_damage(location, ranges, now_ns=time.time_ns())
        return error

    def damage_error(
        self, location: ByteLocation, ranges: Sequence[range], *, is_proven: bool = True
    ) -> DamagedFileError:
        """Return the error that says which frames are lost with some bytes of an original."""
        videos: list[LogicalVideo] = []
        uses: list[str] = []
        with suppress(VfsdError), self._catalog.reading() as seen:
            videos = _videos(seen.videos.get, seen.integrity.videos_of(location))
            others = _videos(seen.videos.get, seen.integrity.vectors_of(location))
            uses = [video.name for video in videos]
            uses += [f"the vectors of {video.name}, {location}," for video in others]
        frames, unknown = self._frames_hit(videos, ranges)
        what = " and ".join(uses) or str(location)
        is_remote = False
        with suppress(VfsdError):  # the catalog may be away
            is_remote = self.is_remote(location)
        if is_proven:
            how = f"is damaged {'in the bucket' if is_remote else 'on disk'}"
        else:
            how = f"cannot be read from the {'bucket' if is_remote else 'disk'}"
        if not videos:
            lost = ""
        elif frames is None:
            lost = f"; which frames need them is not known: {unknown}"
        else:
            lost = (
                f"; frames {ranges_text(frames)} need them" if frames else "; no frame needs them"
            )
        return DamagedFileError(
            f"{what} {how}: bytes {ranges_text(ranges)}{lost}",
            ranges,
            is_proven=is_proven,
            frames=frames,
            hint="run `vfsd scrub --from BACKUP` to restore it; the rest can still be read",
        )

    def _frames_hit(
        self, videos: Sequence[LogicalVideo], ranges: Sequence[range]
    ) -> tuple[list[range] | None, str]:
        """Return the frames that need some bytes, by the frame table of any of the videos.

        None if no table can be read, with the reason.
        """
        if not videos:
            return [], ""
        unknown = ""
        for video in videos:
            try:
                table = self._catalog.frame_table(video.original)
                return damaged_frames_of(table, video.original.access, ranges), ""
            except IntegrityError:
                unknown = "the frame table is damaged, run `vfsd fsck --repair`"
            except VfsdError as error:
                unknown = unknown or str(error)
        return None, unknown


def _growing_file(path: Path, name: str) -> StoredFile:
    """Return a file of this process that is in no catalog; `name` is used in messages."""
    return StoredFile(
        name,
        lambda reader: None,
        lambda ranges, is_proven: DamagedFileError(
            f"{name}: bytes {ranges_text(ranges)} cannot be read", ranges, is_proven=is_proven
        ),
        # The path leads through /proc to an open descriptor.
        lambda: LocalReader(os.open(path, os.O_RDONLY | os.O_CLOEXEC)),
    )


def _require_as_indexed(
    location: ByteLocation, found: os.stat_result, known: StoredChecksums | None
) -> None:
    """Raise `IntegrityError` if a file indexed in place cannot be compared."""
    if known is None:
        raise IntegrityError(
            f"{location} is indexed in place and has no block checksums, so it cannot be read",
            hint="run `vfsd scrub` to compare it with its digest and store checksums",
        )
    if (found.st_mtime_ns, found.st_size) != (known.mtime_ns, known.sums.size):
        raise IntegrityError(
            f"{location} has changed since it was indexed",
            hint="run `vfsd scrub` if only its time changed, else `vfsd ingest --link --replace`",
        )


def missing_checksums_message(catalog: Catalog) -> str | None:
    """Return a warning about originals without block checksums; None if there are none."""
    with catalog.reading() as seen:
        count = seen.integrity.count_without_checksums()
    if not count:
        return None
    have = "original has" if count == 1 else "originals have"
    return f"{count} {have} no block checksums yet: reads do not detect damage on the disk"


SUMS_ADVICE = "run `vfsd scrub` to store the missing checksums"


def _videos(get: Callable[[int], LogicalVideo], numbers: Sequence[int]) -> list[LogicalVideo]:
    found = []
    for number in numbers:
        with suppress(NotFoundError):  # it is being published
            found.append(get(number))
    return found
