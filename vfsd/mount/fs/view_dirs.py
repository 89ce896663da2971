"""``NAME@/``: what can be had of a video, as files that are made when they are read.

The folders are in no listing, so that who copies a tree copies what is really there.  Frames of the
video in another size may be written: see `vfsd.views.view_uploads`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from vfsd.core.model import FileState, Node
from vfsd.core.view_request import CancelCheck, ViewFile, ViewStat
from vfsd.mount.fs.attributes import OF_VIEWS, Attributes, blocks_of
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache, require_short
from vfsd.mount.fs.open_inodes import PassthroughFile
from vfsd.mount.fs.syscalls import failure

MARK = "@"

_READ = 0o444
"""Views can be read by whoever may read the video that they show, and by nobody else."""

_SETTLE_SECONDS = 30.0
_PLACES = 1024
_NOWHERE = "\0"
"""No name."""
_MOST_LINKS = 40
"""As many symbolic links are followed; the kernel follows as many."""


class WritableView(Protocol):
    """A view that is written; what `commit` does not take is forgotten."""

    @property
    def size(self) -> int: ...

    def readinto(self, buffer: memoryview, offset: int) -> int: ...

    def expect(self) -> None: ...

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> int: ...

    def truncate(self, length: int) -> None: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


class Closeable(Protocol):
    def close(self) -> None: ...


class ViewSource(Protocol):
    """Where views come from.  `path` is below ``NAME@/``; "" is the folder itself.

    All may be slow, and raise `NotFoundError`, `OutOfRangeError` or `UsageError`.
    """

    def stat(self, ino: int, path: str) -> ViewStat: ...

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        """Names, each with whether it is a folder."""
        ...

    def open(self, ino: int, path: str) -> ViewFile:
        """Raises `NotFoundError` for a folder, too."""
        ...

    def offer(self, ino: int, path: str) -> WritableView:
        """Open for writing; raises `ReadOnlyError` where that cannot be."""
        ...


@dataclass(frozen=True)
class ViewPath:
    """A path in a video's folder, whether or not something is there."""

    video: Node
    path: str

    @cached_property
    def ino(self) -> int:
        """The same for the same view, always; far from those of real files."""
        text = os.fsencode(f"{self.video.ino}/{self.path}")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest) | OF_VIEWS


class ViewHandle:
    """A view that somebody has open."""

    content = None
    writable = False

    def __init__(self, place: ViewPath, file: ViewFile, offers: int, kept: Closeable) -> None:
        """So many have written there; `kept` is closed as well."""
        self._kept = kept
        self.version = f"{file.version}/{offers}"  #: of its bytes
        self._place = place
        self._file = file

    @property
    def whole(self) -> PassthroughFile:
        """What the kernel may read by itself."""
        return PassthroughFile(self._place.ino, self._file.whole, self.version)

    @property
    def is_work(self) -> bool:
        return self._file.is_work

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
        return self._file.readinto(buffer, offset, patience)

    def attributes(self) -> Attributes:
        return _file_attributes(self._place, self._file.size, self._place.video.mtime_ns)

    def seek(self, offset: int, whence: int) -> int:
        """A view is all data."""
        if not 0 <= offset < self._file.size:
            raise failure(errno.ENXIO)
        return offset if whence == os.SEEK_DATA else self._file.size

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._kept.close()


class UploadHandle:
    """A view that somebody writes."""

    content = None
    writable = True

    def __init__(self, place: ViewPath, offer: WritableView, number: int) -> None:
        """`number` is that of those who write there."""
        self.version = f"offered/{number}"
        self.ino = place.ino
        self._place = place
        self._offer = offer

    def readinto(self, buffer: memoryview, offset: int, patience: CancelCheck | None = None) -> int:
        return self._offer.readinto(buffer, offset)

    def expect(self) -> None:
        """To be closed empty is an error from now on."""
        self._offer.expect()

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        return self._offer.write(data, offset)

    def truncate(self, length: int) -> None:
        self._offer.truncate(length)

    def commit(self) -> None:
        self._offer.commit()

    def attributes(self) -> Attributes:
        mtime_ns = self._place.video.mtime_ns
        return _file_attributes(self._place, self._offer.size, mtime_ns, is_writable=True)

    def seek(self, offset: int, whence: int) -> int:
        """All data."""
        if not 0 <= offset < self._offer.size:
            raise failure(errno.ENXIO)
        return offset if whence == os.SEEK_DATA else self._offer.size

    def close(self) -> None:
        self._offer.close()


class UploadCounts:
    """How many have written to each view, by inode number.  Thread-safe.

    The kernel may hold what they wrote: that is not what is read there afterwards.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[int] = Counter()

    def so_far(self, ino: int) -> int:
        with self._guard:
            return self._counts[ino]

    def begin(self, ino: int) -> int:
        """One more; the number that he is."""
        with self._guard:
            self._counts[ino] += 1
            return self._counts[ino]


class ViewDirectories:
    """The folders of all videos.  Takes no lock while a view is made."""

    def __init__(self, names: DentryCache, judging: Classifier, source: ViewSource | None) -> None:
        self._names = names
        self._judging = judging
        self._source = source
        self._offers = UploadCounts()
        self._places: dict[str, tuple[int, ViewPath]] = {}  # by path, with the state of the names

    def found(self, path: str) -> ViewPath | None:
        """What `find` said of a path lately, where no name and no file has changed since."""
        state, place = self._places.get(path, (None, None))
        return place if place is not None and self._names.state() == state else None

    def find(self, path: str) -> ViewPath | None:
        """Where a path leads that leads to nothing real.

        Waits, within bounds, for the judgement of the file whose folder it is.  Raises `OSError`
        ENAMETOOLONG.
        """
        if self._source is None or MARK not in path:
            return None
        state = self._names.state()
        place = self._find(path)
        if place is not None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            self._places[path] = (state, place)
        return place

    def _find(self, path: str) -> ViewPath | None:
        parts = path.split("/")
        for at, part in enumerate(parts):
            if not part.endswith(MARK) or part == MARK:
                continue
            node = self._followed([*parts[:at], part[: -len(MARK)]])
            if node is None or self._real("/".join(parts[: at + 1])) is not None:
                continue
            if node.state is FileState.SPOOLED:
                node = self._judging.settle(node.ino, _SETTLE_SECONDS)
            if node is not None and node.state is FileState.VIDEO:
                below = [part for part in parts[at + 1 :] if part]
                for name in below:
                    require_short(name)
                return ViewPath(node, "/".join(below))
        return None

    def attributes(self, place: ViewPath) -> Attributes:
        found = self._sure().stat(place.video.ino, place.path)
        if not found.is_dir:
            writable = found.is_writable
            return _file_attributes(place, found.size, found.mtime_ns, is_writable=writable)
        video, times = place.video, (found.mtime_ns,) * 3
        readers = video.mode & _READ
        mode = stat.S_IFDIR | readers | readers >> 2
        return Attributes(place.ino, mode, 2, video.uid, video.gid, 0, 0, 0, *times)

    def list(self, place: ViewPath) -> list[tuple[str, int, int]]:
        """(name, inode number, type as in `stat`) of each entry."""
        entries = self._sure().list(place.video.ino, place.path)
        return [
            (
                name,
                ViewPath(place.video, f"{place.path}/{name}" if place.path else name).ino,
                stat.S_IFDIR if is_dir else stat.S_IFREG,
            )
            for name, is_dir in entries
        ]

    def open(self, place: ViewPath, kept: Closeable) -> ViewHandle:
        """`kept` is what keeps the video meanwhile, and the handle's own from now on."""
        file = self._sure().open(place.video.ino, place.path)
        return ViewHandle(place, file, self._offers.so_far(place.ino), kept)

    def offer(self, place: ViewPath) -> UploadHandle:
        """Raises `ReadOnlyError` for a view that nobody can write."""
        offer = self._sure().offer(place.video.ino, place.path)
        return UploadHandle(place, offer, self._offers.begin(place.ino))

    def _followed(self, parts: Sequence[str]) -> Node | None:
        """What a path leads to; of a symbolic link, the file at the end of that.

        None where the link leads out of the mount, or through a directory that not everybody may
        search.  The kernel has checked the directories of `parts` alone.
        """
        node = self._real("/".join(parts))
        if node is None or not node.is_symlink:
            return node
        checked = [part for part in parts if part][:-1]
        path, links = checked.copy(), 1
        ahead = _steps(node)
        while ahead:
            step = ahead.pop(0)
            if step == "..":
                if not path:
                    return None
                path.pop()
                continue
            node = self._real("/".join([*path, step]))
            if node is None:
                return None
            if node.is_symlink:
                links += 1
                if links > _MOST_LINKS:
                    return None
                ahead = [*_steps(node), *ahead]
                continue
            path.append(step)
            is_checked = checked[: len(path)] == path
            if node.is_dir and not (is_checked or node.mode & stat.S_IXOTH):
                return None
        return node

    def _real(self, path: str) -> Node | None:
        try:
            return self._names.resolve(path)
        except OSError:
            return None

    def _sure(self) -> ViewSource:
        assert self._source is not None, "only `find` makes places, and it found none"
        return self._source


def _steps(link: Node) -> list[str]:
    """The names on the way that a symbolic link tells.

    An absolute link leads nowhere: the mount cannot tell where its root is for the caller.
    """
    target = link.target or ""
    if target.startswith("/"):
        return [_NOWHERE]
    return [step for step in target.split("/") if step not in ("", ".")]


def _file_attributes(
    place: ViewPath, size: int, mtime_ns: int, *, is_writable: bool = False
) -> Attributes:
    video, times = place.video, (mtime_ns,) * 3
    mode = stat.S_IFREG | video.mode & _READ | (stat.S_IWUSR if is_writable else 0)
    blocks = blocks_of(size)
    return Attributes(place.ino, mode, 1, video.uid, video.gid, 0, size, blocks, *times)
