"""`StoreFiles`: the bytes of every path that a mount shows, views included, without a mount."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple, NoReturn, Protocol

from vfsd.api.store import Store
from vfsd.catalog import split_path
from vfsd.core.model import ByteLocation, FileState, Node
from vfsd.core.view_request import ViewFile, ViewStat
from vfsd.disk.safe_open import open_stored
from vfsd.errors import NotFoundError, UsageError
from vfsd.storage.context import StoreContext

_MARK = "@"


class ByteReader(Protocol):
    """Bytes that are read at offsets."""

    @property
    def size(self) -> int: ...

    def readinto(self, buffer: memoryview, position: int, /) -> int: ...

    def close(self) -> None: ...


class PrivateBytes:
    """The bytes of a file that is not a video."""

    def __init__(self, fd: int) -> None:
        """Take over `fd`."""
        self._fd = fd

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def readinto(self, buffer: memoryview, position: int) -> int:
        return os.preadv(self._fd, (buffer,), position)

    def close(self) -> None:
        os.close(self._fd)


class ViewTree(Protocol):
    """The part of `vfsd.views.Views` and `vfsd.views.TimelineFiles` that `StoreFiles` uses."""

    def stat(self, ino: int, path: str) -> ViewStat: ...

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]: ...

    def open(self, ino: int, path: str) -> ViewFile: ...


class FoundFile(NamedTuple):
    """The node that a path leads to, and the view below it."""

    node: Node
    view: str | None = None  #: path below ``NAME@/``; None: the node itself
    name: str = ""  #: of the node, without the view


class StoreFiles:
    """Finds and opens files of a store by the paths of a mount.  Thread-safe."""

    def __init__(self, store: Store, views: ViewTree, timelines: ViewTree | None = None) -> None:
        """`views` has the files below ``NAME@/`` of videos, `timelines` those of directories."""
        self._store = store
        self._views = views
        self._timelines = timelines

    def find(self, path: str) -> FoundFile:
        """Return the node or view at a path.  Raises `NotFoundError`."""
        names = split_path(path)
        try:
            return FoundFile(self._store.node(path), name="/".join(names))
        except NotFoundError:
            # As in the mount, a real file wins over a view.
            for count, name in enumerate(names, 1):
                if name.endswith(_MARK) and name != _MARK:
                    video = "/".join(names[:count]).removesuffix(_MARK)
                    if video in self._store or self._has_timeline(video):
                        view = "/".join(names[count:])
                        return FoundFile(self._store.node(video), view, video)
            raise

    def tree_of(self, found: FoundFile) -> ViewTree:
        """Return the tree that has the view of `found`."""
        tree = self._timelines if found.node.is_dir else self._views
        assert tree is not None, "`find` returns no view without its tree"
        return tree

    def is_folder(self, found: FoundFile) -> bool:
        """Whether it is a directory.  Raises `NotFoundError` for an unknown view."""
        if found.view is None:
            return found.node.is_dir
        return self.tree_of(found).stat(found.node.ino, found.view).is_dir

    def open(self, path: str) -> ByteReader:
        """Open the bytes at a path.

        Raises `NotFoundError`, `IsADirectoryError`, `UsageError` for a link or a device, and the
        errors of `Views.open`.
        """
        found = self.find(path)
        if found.view is not None and self.is_folder(found):
            _refuse(errno.EISDIR, path)
        return self.open_found(found, path)

    def open_found(self, found: FoundFile, path: str) -> ByteReader:
        """Open what `find` has returned for `path`; a view is not a directory."""
        if found.view is not None:
            return self.tree_of(found).open(found.node.ino, found.view)
        parts = self._store.parts
        for _ in range(2):
            node = found.node
            if node.is_dir:
                _refuse(errno.EISDIR, path)
            if node.is_symlink:
                raise UsageError(f"{path!r} is a symbolic link", hint=f"open {node.target!r}")
            if not node.is_file:
                raise UsageError(f"{path!r} is not a regular file")
            if node.state is FileState.VIDEO:
                with parts.catalog.reading() as seen:
                    original = seen.videos.by_inode(node.ino).original
                return parts.originals.file_of(original).open()
            try:
                if node.object_key is not None:
                    return parts.originals.open_at(ByteLocation(node.object_key, None))
                return PrivateBytes(open_private(parts, node))
            except FileNotFoundError:
                found = self.find(path)  # a mount has just made it a video
        raise NotFoundError(f"the bytes of {path!r} are missing", hint="run `vfsd fsck`")

    def _has_timeline(self, path: str) -> bool:
        """Return whether a directory has videos of known times."""
        if self._timelines is None:
            return False
        try:
            node = self._store.node(path)
            return node.is_dir and self._timelines.stat(node.ino, "").is_dir
        except NotFoundError:
            return False


def open_private(parts: StoreContext, node: Node) -> int:
    """Return a descriptor of the bytes of a file without an object."""
    if node.state is FileState.STORED:
        from vfsd.write.shared_files import open_small  # most stores have no bucket

        return open_small(parts, node)
    return open_stored(parts.private_file(node))


def _refuse(code: int, path: str) -> NoReturn:
    raise OSError(code, os.strerror(code), path)
