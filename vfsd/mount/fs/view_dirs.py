"""The directories ``NAME@/`` of videos, and of directories with videos of known times, with files
that are rendered when they are read.

They are in no listing, so copying a tree copies only real files. Renditions can be written there;
see `vfsd.views.views`.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from vfsd.core.model import FileState, Node
from vfsd.core.view_request import CancelCheck, ViewFile, ViewStat
from vfsd.errors import NotFoundError
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache, require_short
from vfsd.mount.fs.open_inodes import PassthroughFile
from vfsd.mount.fs.posix import Attributes, EntryName, Place, ViewPath, block_count, os_error

MARK = "@"

# A view has the read permissions of its video, and no others.
_READ = 0o444

_SETTLE_SECONDS = 30.0
_MAX_FOUND = 1024
# A name that cannot exist.
_NO_NAME = "\0"
# How many symbolic links are followed, as in the kernel.
_MAX_LINKS = 40


class WritableView(Protocol):
    """A view that is being written. Data that was not committed is discarded."""

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
    """Provides views. `path` is relative to ``NAME@/``; "" is the directory itself.

    Methods may be slow. They raise `NotFoundError`, `OutOfRangeError` or `UsageError`.
    """

    def stat(self, ino: int, path: str) -> ViewStat: ...

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        """Return (name, is a directory) of each entry."""
        ...

    def open(self, ino: int, path: str) -> ViewFile:
        """Open for reading. Raises `NotFoundError`, also for a directory."""
        ...

    def open_upload(self, ino: int, path: str) -> WritableView:
        """Open for writing. Raises `ReadOnlyError` where that is not possible."""
        ...


class ViewHandle:
    """A view that is open for reading."""

    inode = None
    writable = False

    def __init__(self, view: ViewPath, file: ViewFile, uploads: int, kept: Closeable) -> None:
        """`uploads` is the number of uploads so far; `kept` is closed with the handle."""
        self._kept = kept
        self.version = f"{file.version}/{uploads}"  #: of the bytes
        self._place = view
        self._file = file

    @property
    def whole(self) -> PassthroughFile:
        """The file that the kernel may read directly."""
        return PassthroughFile(self._place.ino, self._file.whole, self.version)

    @property
    def is_work(self) -> bool:
        return self._file.is_work

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        return self._file.readinto(buffer, offset, cancel_check)

    def attributes(self) -> Attributes:
        return _file_attributes(self._place, self._file.size, self._place.video.mtime_ns)

    def seek(self, offset: int, whence: int) -> int:
        """Return the next data or hole. A view has no holes."""
        if not 0 <= offset < self._file.size:
            raise os_error(errno.ENXIO)
        return offset if whence == os.SEEK_DATA else self._file.size

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._kept.close()


class UploadHandle:
    """A view that is open for writing."""

    inode = None
    writable = True

    def __init__(self, view: ViewPath, upload: WritableView, number: int) -> None:
        """`number` counts the uploads to this path."""
        self.version = f"offered/{number}"
        self.ino = view.ino
        self._place = view
        self._upload = upload

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        return self._upload.readinto(buffer, offset)

    def expect(self) -> None:
        """Make it an error to close the view while it is empty."""
        self._upload.expect()

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        return self._upload.write(data, offset)

    def truncate(self, length: int) -> None:
        self._upload.truncate(length)

    def commit(self) -> None:
        self._upload.commit()

    def attributes(self) -> Attributes:
        mtime_ns = self._place.video.mtime_ns
        return _file_attributes(self._place, self._upload.size, mtime_ns, is_writable=True)

    def seek(self, offset: int, whence: int) -> int:
        """Return the next data or hole. There are no holes."""
        if not 0 <= offset < self._upload.size:
            raise os_error(errno.ENXIO)
        return offset if whence == os.SEEK_DATA else self._upload.size

    def close(self) -> None:
        self._upload.close()


class UploadCounts:
    """Counts uploads to each view by inode number. Thread-safe.

    The kernel may cache the uploaded bytes. They differ from those that are read later, so each
    upload changes the version.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[int] = Counter()

    def so_far(self, ino: int) -> int:
        """Return the number of uploads to a view."""
        with self._guard:
            return self._counts[ino]

    def begin(self, ino: int) -> int:
        """Count an upload and return its number."""
        with self._guard:
            self._counts[ino] += 1
            return self._counts[ino]


class ViewDirectories:
    """The view directories of all videos. Takes no lock while a view is rendered."""

    def __init__(
        self,
        names: DentryCache,
        classifier: Classifier,
        source: ViewSource | None,
        timelines: ViewSource | None,
    ) -> None:
        """`source` has the views of videos, `timelines` those of directories."""
        self._names = names
        self._classifier = classifier
        self._source = source
        self._timelines = timelines
        self._uploads = UploadCounts()
        # By path, with `DentryCache.change_serial` at that time.
        self._found: dict[str, tuple[int, ViewPath]] = {}

    def cached(self, path: Place) -> ViewPath | None:
        """Return a recent result of `find`, if no name and no file has changed since."""
        if not isinstance(path, str):
            return None  # found without a walk
        state, view = self._found.get(path, (None, None))
        return view if view is not None and self._names.change_serial() == state else None

    def find(self, path: Place) -> ViewPath | None:
        """Return the view at a place that leads to no real file.

        Waits up to 30 seconds until the file is classified. Raises `OSError`: ENAMETOOLONG, and
        ESTALE for a view of a file that is gone.
        """
        if isinstance(path, ViewPath):
            return self._current(path)
        if isinstance(path, EntryName):
            return self._entry(path)
        if self._source is None or isinstance(path, int) or MARK not in path:
            return None
        state = self._names.change_serial()
        view = self._find(path)
        if view is not None:
            # Cheaper than an order of use: all paths are found again quickly.
            if len(self._found) >= _MAX_FOUND:
                self._found.clear()
            self._found[path] = (state, view)
        return view

    def _find(self, path: str) -> ViewPath | None:
        parts = path.split("/")
        for at, part in enumerate(parts):
            if not part.endswith(MARK) or part == MARK:
                continue
            node = self._follow([*parts[:at], part[: -len(MARK)]])
            if node is None or self._real("/".join(parts[: at + 1])) is not None:
                continue
            node = self._shown(node)
            if node is not None:
                below = [part for part in parts[at + 1 :] if part]
                for name in below:
                    require_short(name)
                return ViewPath(node, "/".join(below))
        return None

    def _entry(self, entry: EntryName) -> ViewPath | None:
        """Return the view with a name in a directory."""
        parent, name = entry
        if isinstance(parent, ViewPath):
            require_short(name)
            return self._current(parent).child(name)
        if self._source is None or not name.endswith(MARK) or name == MARK:
            return None
        if self._real(entry) is not None:
            return None
        node = self._real(EntryName(parent, name[: -len(MARK)]))
        if node is not None and node.is_symlink:
            folder = self._names.path_of(parent)
            node = self._follow([*folder.split("/"), name[: -len(MARK)]])
        node = None if node is None else self._shown(node)
        return None if node is None else ViewPath(node, "")

    def _current(self, view: ViewPath) -> ViewPath:
        node = self._names.node_if_any(view.video.ino)
        if node is None:
            raise os_error(errno.ESTALE)
        return ViewPath(node, view.path)

    def _shown(self, node: Node) -> Node | None:
        """Return a node in its present state if it has a view directory, else None."""
        found: Node | None = node
        if node.state is FileState.SPOOLED:
            found = self._classifier.settle(node.ino, _SETTLE_SECONDS)
        if found is None or not (found.state is FileState.VIDEO or self._has_timeline(found)):
            return None
        return found

    def attributes(self, view: ViewPath) -> Attributes:
        """Return the attributes of a view or of a view directory."""
        view, info = self._examined(view)
        if not info.is_dir:
            writable = info.is_writable
            return _file_attributes(view, info.size, info.mtime_ns, is_writable=writable)
        video, times = view.video, (info.mtime_ns,) * 3
        # Readers of the video may list and enter the directory.
        readers = video.mode & _READ
        mode = stat.S_IFDIR | readers | readers >> 2
        return Attributes(view.ino, mode, 2, video.uid, video.gid, 0, 0, 0, *times)

    def list(self, view: ViewPath) -> list[tuple[str, int, int]]:
        """Return (name, inode number, type as in `st_mode`) of each entry."""
        entries = self._source_of(view).list(view.video.ino, view.path)
        return [
            (
                name,
                view.child(name).ino,
                stat.S_IFDIR if is_dir else stat.S_IFREG,
            )
            for name, is_dir in entries
        ]

    def open(self, view: ViewPath, kept: Closeable) -> ViewHandle:
        """Open a view for reading. `kept` keeps the video and is closed with the handle."""
        if view.video.is_dir:
            view = self._examined(view)[0]
        file = self._source_of(view).open(view.video.ino, view.path)
        return ViewHandle(view, file, self._uploads.so_far(view.ino), kept)

    def open_upload(self, view: ViewPath) -> UploadHandle:
        """Open a view for writing. Raises `ReadOnlyError` for a view that cannot be written."""
        upload = self._source_of(view).open_upload(view.video.ino, view.path)
        return UploadHandle(view, upload, self._uploads.begin(view.ino))

    def _follow(self, parts: Sequence[str]) -> Node | None:
        """Return the node at a path; for a symbolic link, the node at its end.

        None if the link leads out of the mount, or through a directory without search permission
        for all users. The kernel has checked only the directories in `parts`.
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
                if links > _MAX_LINKS:
                    return None
                ahead = [*_steps(node), *ahead]
                continue
            path.append(step)
            is_checked = checked[: len(path)] == path
            if node.is_dir and not (is_checked or node.mode & stat.S_IXOTH):
                return None
        return node

    def _real(self, path: Place) -> Node | None:
        try:
            return self._names.resolve(path)
        except OSError:
            return None

    def _has_timeline(self, node: Node) -> bool:
        """Return whether a node is a directory with videos of known times."""
        if self._timelines is None or not node.is_dir:
            return False
        try:
            return self._timelines.stat(node.ino, "").is_dir
        except NotFoundError:
            return False

    def _examined(self, view: ViewPath) -> tuple[ViewPath, ViewStat]:
        """Return a view with the permissions and the time that it has, and its attributes."""
        info = self._source_of(view).stat(view.video.ino, view.path)
        mode = view.video.mode & ~_READ | view.video.mode & info.readers
        return ViewPath(replace(view.video, mode=mode, mtime_ns=info.mtime_ns), view.path), info

    def _source_of(self, view: ViewPath) -> ViewSource:
        source = self._timelines if view.video.is_dir else self._source
        assert source is not None, "`find` returns no view without its source"
        return source


def _steps(link: Node) -> list[str]:
    """Return the path components of a symbolic link's target.

    An absolute target leads nowhere: the mount point of the caller is unknown here.
    """
    target = link.target or ""
    if target.startswith("/"):
        return [_NO_NAME]
    return [step for step in target.split("/") if step not in ("", ".")]


def _file_attributes(
    view: ViewPath, size: int, mtime_ns: int, *, is_writable: bool = False
) -> Attributes:
    video, times = view.video, (mtime_ns,) * 3
    mode = stat.S_IFREG | video.mode & _READ | (stat.S_IWUSR if is_writable else 0)
    blocks = block_count(size)
    return Attributes(view.ino, mode, 1, video.uid, video.gid, 0, size, blocks, *times)
