"""What an open store knows of the blocks of its originals, and what it says of damaged ones."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vfsd.catalog import Catalog
from vfsd.catalog.integrity import StoredChecksums
from vfsd.core.atfork import reset_after_fork
from vfsd.core.damaged_frames import damaged_frames_of
from vfsd.core.model import ByteLocation, LogicalVideo
from vfsd.disk.block_checksums import text
from vfsd.disk.checksummed_file import ChecksummedFile, StoredFile, VerifiedBlocks
from vfsd.disk.direct_io import open_stored
from vfsd.disk.external_files import open_linked
from vfsd.errors import DamagedFileError, IntegrityError, NotFoundError, VfsdError

_log = logging.getLogger(__name__)

# Each block is compared once by each process: bytes do not decay in memory, and comparing each time
# takes 5.7 us for 4 KiB instead of 1.4.
_MEMORY = 32 << 20
"""Bytes of maps and sums that are kept, and those of one file: of some 100 GB of videos."""
_WITHOUT_SECONDS = 10.0
"""How long it is believed that a file has no sums yet."""
_MOST_HELD = 64
"""Originals that are held open for who still shows them, each by a descriptor."""
_LOST = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO, errno.ENXIO)


class ChecksumRegistry:
    """Opens originals so that what is read of them is compared.  Thread-safe.

    Damage that is met is told in the log, once for each block, and written down in the catalog,
    unless that may not be written.
    """

    def __init__(self, catalog: Catalog, root: Path) -> None:
        """`root` is the store's directory."""
        self._catalog = catalog
        self._root = root
        self._blocks: OrderedDict[tuple[ByteLocation, tuple[int, ...]], VerifiedBlocks] = (
            OrderedDict()
        )
        self._without: dict[ByteLocation, float] = {}  # when they had no sums
        self._told: set[tuple[ByteLocation, int]] = set()  # damage: the place, and its first byte
        self._held: dict[ByteLocation, tuple[int, int]] = {}  # a descriptor, and how many hold it
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        self._guard = threading.Lock()

    def stored(self, path: Path, place: ByteLocation) -> StoredFile:
        """The file of an original, to be opened when that is wanted."""
        return StoredFile(
            path,
            lambda fd: self._find(place, fd),
            lambda ranges, is_proven: self._report(place, ranges, is_proven),
            lambda: self._open(path, place),
        )

    def growing(self, path: Path, name: str) -> StoredFile:
        """A file of this process's own, of which no catalog knows; messages call it `name`."""
        return StoredFile(
            path,
            lambda fd: None,
            lambda ranges, is_proven: DamagedFileError(
                f"{name}: bytes {text(ranges)} cannot be read", ranges, is_proven=is_proven
            ),
            # What it is called leads through /proc, to what is open already.
            lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC),
            name,
        )

    def opened(self, path: Path, place: ByteLocation, fd: int) -> ChecksummedFile:
        """The same, of what somebody has opened; `fd` becomes its own."""
        return self.stored(path, place).of(fd)

    @contextmanager
    def held(self, path: Path, place: ByteLocation) -> Iterator[None]:
        """An object can be opened in this block after its last video was removed, too, by whoever
        still shows what it had; if it can be now, and not too many others are held."""
        is_held = self._hold(path, place)
        try:
            yield
        finally:
            if is_held:
                self._let_go(place)

    def _hold(self, path: Path, place: ByteLocation) -> bool:
        """Whether it is held since; not where many are, as others need descriptors, too."""
        if place.object_key is None:
            return False  # removing a video leaves the file where it is
        with self._guard:
            if self._hold_once_more(place):
                return True
            if len(self._held) >= _MOST_HELD:
                return False
        try:
            fd = open_stored(path)
        except OSError:
            return False
        with self._guard:
            if self._hold_once_more(place):
                os.close(fd)
            else:
                self._held[place] = fd, 1
        return True

    def _hold_once_more(self, place: ByteLocation) -> bool:
        """Whether somebody held it already, without whom there is nothing to share."""
        fd, count = self._held.get(place, (-1, 0))
        if count:
            self._held[place] = fd, count + 1
        return count > 0

    def _let_go(self, place: ByteLocation) -> None:
        with self._guard:
            fd, count = self._held.pop(place)
            if count > 1:
                self._held[place] = fd, count - 1
            else:
                os.close(fd)

    def _open(self, path: Path, place: ByteLocation) -> int:
        """Raises `DamagedFileError` where an object is not there, or is something else;
        `NotFoundError` where no video has it any more, and nobody holds it."""
        if place.object_key is None:
            return open_linked(path, self._root)
        try:
            return open_stored(path)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            try:
                with self._catalog.reading() as seen:
                    size = seen.objects.require_size(place.object_key)
            except NotFoundError:
                with self._guard:
                    if place in self._held:
                        return os.dup(self._held[place][0])
                raise
            # It may be put back by hand, and is not written down.
            raise self._report(place, [range(size or 1)], False) from error

    # -- sums

    def _find(self, place: ByteLocation, fd: int) -> VerifiedBlocks | None:
        found = os.fstat(fd)
        # Another file under the same name is another one, and so is one that was written into.
        # Under another name it is one, too: inode numbers come again, and times are what users say.
        identity = place, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        with self._guard:
            blocks = self._blocks.get(identity)
            if blocks is not None:
                self._blocks.move_to_end(identity)
                return blocks
            if time.monotonic() - self._without.get(place, -_WITHOUT_SECONDS) < _WITHOUT_SECONDS:
                return None
        try:
            with self._catalog.reading() as seen:
                known = seen.integrity.sums(place)
        except IntegrityError as error:
            _log.warning("%s is read without being compared: %s", place, error)
            known = None
        if place.link_path is not None:
            _require_as_indexed(place, found, known)
        with self._guard:
            if known is None:
                self._without[place] = time.monotonic()
                return None
            self._without.pop(place, None)
            blocks = self._blocks.setdefault(identity, VerifiedBlocks(known.sums))
            held = sum(each.memory for each in self._blocks.values())
            while held > _MEMORY and len(self._blocks) > 1:
                held -= self._blocks.popitem(last=False)[1].memory
        return blocks

    # -- damage

    def _report(
        self, place: ByteLocation, ranges: Sequence[range], is_proven: bool
    ) -> DamagedFileError:
        error = self.described(place, ranges, is_proven=is_proven)
        with self._guard:
            new = {(place, one.start) for one in ranges} - self._told
            self._told |= new
        if new:
            _log.error("%s", error)
        if new and is_proven and not self._catalog.read_only:
            # A reader may be inside a transaction of his own, or the disk full.
            with suppress(VfsdError, OSError, AssertionError), self._catalog.writing() as change:
                if change.integrity.is_there(place):
                    change.integrity.note_damage(place, ranges, now_ns=time.time_ns())
        return error

    def described(
        self, place: ByteLocation, ranges: Sequence[range], *, is_proven: bool = True
    ) -> DamagedFileError:
        """The error that says what is lost with some bytes of an original."""
        videos: list[LogicalVideo] = []
        with suppress(VfsdError), self._catalog.reading() as seen:
            videos = _videos(seen.videos.get, seen.integrity.videos_of(place))
        frames, unknown = self._frames_hit(videos, ranges)
        what = " and ".join(video.name for video in videos) or str(place)
        how = "is damaged on disk" if is_proven else "cannot be read from the disk"
        if not videos:
            lost = ""
        elif frames is None:
            lost = f"; which frames need them is not known: {unknown}"
        else:
            lost = f"; frames {text(frames)} need them" if frames else "; no frame needs them"
        return DamagedFileError(
            f"{what} {how}: bytes {text(ranges)}{lost}",
            ranges,
            is_proven=is_proven,
            frames=frames,
            hint="`vfsd scrub --from BACKUP` puts a good copy back; all else can still be read",
        )

    def _frames_hit(
        self, videos: Sequence[LogicalVideo], ranges: Sequence[range]
    ) -> tuple[list[range] | None, str]:
        """The frames that need some bytes, by the table of any of the videos that have them; None
        where none tells, and why."""
        if not videos:
            return [], ""
        unknown = ""
        for video in videos:
            try:
                table = self._catalog.frame_table(video.original)
                return damaged_frames_of(table, video.original.access, ranges), ""
            except IntegrityError:
                unknown = "the frame table is damaged, `vfsd fsck --repair` makes it again"
            except VfsdError as error:
                unknown = unknown or str(error)
        return None, unknown


def _require_as_indexed(
    place: ByteLocation, found: os.stat_result, known: StoredChecksums | None
) -> None:
    """Nothing of a file indexed in place is given away that cannot be compared."""
    if known is None:
        raise IntegrityError(
            f"{place} is indexed in place and has no sums of its blocks, without which it is not "
            "shown",
            hint="`vfsd scrub` compares it with what was indexed, and makes them",
        )
    if (found.st_mtime_ns, found.st_size) != (known.mtime_ns, known.sums.size):
        raise IntegrityError(
            f"{place} has changed since it was indexed",
            hint="`vfsd scrub` if only its time has, else `vfsd ingest --link --replace`",
        )


def without_sums(catalog: Catalog) -> str | None:
    """What people are told of originals from before there were sums; None where there are none."""
    with catalog.reading() as seen:
        count = seen.integrity.without_sums()
    if not count:
        return None
    have = "original has no sums of its" if count == 1 else "originals have no sums of their"
    return f"{count} {have} blocks yet: changes on the disk are not noticed when it is read"


SUMS_ADVICE = "`vfsd scrub` makes the sums that are missing"


def _videos(get: Callable[[int], LogicalVideo], numbers: Sequence[int]) -> list[LogicalVideo]:
    found = []
    for number in numbers:
        with suppress(NotFoundError):  # it is just being written
            found.append(get(number))
    return found
