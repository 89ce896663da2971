"""`VfsdFileSystem`: the tree of a store, with the views of its videos, without a mount."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

from vfsd.api.store import Store
from vfsd.api.store_files import ByteReader, FoundFile, StoreFiles, open_private
from vfsd.catalog import Transaction
from vfsd.core.model import FileState, LogicalVideo, Node
from vfsd.disk.object_store import digest
from vfsd.errors import ExtraMissingError, NotFoundError, ReadOnlyError, UsageError
from vfsd.fsspec.files import VfsdReader, VfsdWriter, as_os_errors
from vfsd.read.shared_store import OpenOnce
from vfsd.views import Views
from vfsd.write.tree_edits import make_directory, put_file

try:
    from fsspec import AbstractFileSystem
    from fsspec.utils import stringify_path, tokenize
except ImportError:
    raise ExtraMissingError("fsspec is not installed", hint="pip install 'vfsd[fsspec]'") from None

_PROTOCOL = "vfsd://"
_COPY_BYTES = 1 << 20


class _OpenStore:
    """A store and the views of its videos, shared by all file systems of this process."""

    def __init__(self, path: str, read_only: bool) -> None:
        self.store = Store.open(path, read_only=read_only)
        self._guard = threading.Lock()
        self._views: tuple[int, Views] | None = None

    @property
    def views(self) -> Views:
        with self._guard:
            # Threads that render do not survive a fork.
            if self._views is None or self._views[0] != os.getpid():
                self._views = os.getpid(), Views(self.store.parts, self.store.tools)
            return self._views[1]

    @property
    def files(self) -> StoreFiles:
        views = self.views
        return StoreFiles(self.store, views, views.timelines)

    def close(self) -> None:
        if self._views is not None and self._views[0] == os.getpid():
            self._views[1].close()
        self.store.close()


_stores: OpenOnce[tuple[str, bool], _OpenStore] = OpenOnce()


class VfsdFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A store as a file system.

        fs = fsspec.filesystem("vfsd", store="/srv/videos")
        with fs.open("cam1/a.mp4@/t=10-20.mp4") as file:
            clip = file.read()

    Paths are names in the store. A URL is ``vfsd:///srv/videos//cam1/a.mp4``, where the first
    double slash ends the path of the store, or ``vfsd://cam1/a.mp4`` with `store` or $VFSD_STORE.
    Instances pickle, and are equal for the same store. One process opens a store once. Errors are
    `OSError`.
    """

    protocol = "vfsd"
    cachable = True
    root_marker = ""

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        read_only: bool = False,
        **storage_options: Any,
    ) -> None:
        """Serve the store in the directory `store`; default: that of $VFSD_STORE.

        The store is opened when it is first used. With `read_only`, nothing can be written.
        Raises `ValueError` where no store is given.
        """
        super().__init__(**storage_options)
        found = os.fspath(store) if store is not None else os.environ.get("VFSD_STORE", "")
        if not found:
            raise UsageError(
                "no store is given", hint="use vfsd:///PATH//NAME, store=, or $VFSD_STORE"
            )
        self.root = os.path.realpath(found)
        self.read_only = read_only
        # Listings of a local catalog are cheap, and other processes change it.
        self._others = {k: v for k, v in storage_options.items() if k != "skip_instance_cache"}

    # -- identity

    def __reduce__(self) -> tuple[Any, ...]:
        # The directory, so that an instance made by $VFSD_STORE reopens the same store elsewhere.
        return _make, (type(self), self.root, self.read_only, self._others)

    @property
    def _fs_token(self) -> str:
        return str(tokenize(type(self), self.root, self.read_only))

    @property
    def fsid(self) -> str:
        """The identity of the store; it stays when the store is moved."""
        return f"vfsd-{self.store.parts.directory.id}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = stringify_path(path)
        if text.startswith(_PROTOCOL):
            text = _split_url(text)[1]
        elif text.startswith("vfsd::"):
            text = text.removeprefix("vfsd::")
        return "/".join(name for name in text.split("/") if name)

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, str]:
        store = _split_url(stringify_path(path))[0]
        return {} if store is None else {"store": store}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path, with the directory of the store."""
        return f"{_PROTOCOL}{self.root}//{self._strip_protocol(name)}"

    @property
    def store(self) -> Store:
        """The open store."""
        return self._shared.store

    @property
    def _shared(self) -> _OpenStore:
        key = self.root, self.read_only
        with as_os_errors(self.root):
            return _stores.get(key, lambda: _OpenStore(*key))

    def close(self) -> None:
        """Close the store for all instances of this process; the next use opens it again."""
        _stores.close_one((self.root, self.read_only))

    # -- looking

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The entry of a path: a dict with these keys.

        `name`, `size` in bytes, `type` ("file", "directory", "other"), `mode`, `ino`, `mtime` and
        `created` in Unix seconds. Videos have `digest` (BLAKE3), `frames` and `seconds` as well,
        and plain files `reason`: why they are not videos.
        """
        path = self._strip_protocol(path)
        with as_os_errors(path):
            found = self._find(path)
            if found.view is not None:
                return self._view_info(path, found)
            with self.store.parts.catalog.reading() as seen:
                return self._entry(seen, path, found.node)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of a directory, sorted: names or, with `detail`, as `info`.

        For a file, only its own entry. ``NAME@`` lists views that have fixed names, and is itself
        in no listing.
        """
        path = self._strip_protocol(path)
        with as_os_errors(path):
            found = self._find(path)
            if found.view is not None:
                entries = self._list_view(path, found)
            else:
                with self.store.parts.catalog.reading() as seen:
                    below = [(path, found.node)]
                    if found.node.is_dir:
                        start = f"{path}/" if path else ""
                        children = seen.tree.children(found.node.ino)
                        below = [(f"{start}{name}", node) for name, node in children]
                    entries = [self._entry(seen, name, node) for name, node in below]
        entries.sort(key=lambda one: str(one["name"]))
        return entries if detail else [one["name"] for one in entries]

    def created(self, path: str) -> datetime:
        """When the inode of a path last changed, as the mount shows it (ctime); in UTC."""
        return datetime.fromtimestamp(self.info(path)["created"], UTC)

    def modified(self, path: str) -> datetime:
        """When the bytes of a path last changed; in UTC."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def checksum(self, path: str) -> str:
        """The BLAKE3 of a file, hexadecimal.  Of a view: a value that changes with its bytes."""
        path = self._strip_protocol(path)
        info = self.info(path)
        if "digest" in info:
            return str(info["digest"])
        with as_os_errors(path):
            found = self._find(path)
            if found.view is not None or not found.node.is_file:
                return self.ukey(path)
            if found.node.object_key is not None:
                return found.node.object_key
            fd = open_private(self.store.parts, found.node)
            try:
                return digest(fd).key
            finally:
                os.close(fd)

    def ukey(self, path: str) -> str:
        """A value that changes with the bytes of a path; no bytes are read."""
        info = self.info(path)
        if "digest" in info:
            return str(info["digest"])
        source = next((key for key in ("video", "version") if key in info), None)
        keys = (source, "name", "size") if source else ("ino", "size", "mtime", "created")
        return str(tokenize([info[key] for key in keys]))

    def _find(self, path: str) -> FoundFile:
        """Raises `NotFoundError`."""
        return self._shared.files.find(path)

    def _entry(self, seen: Transaction, path: str, node: Node) -> dict[str, Any]:
        kind = "directory" if node.is_dir else "file" if node.is_file else "other"
        size, mtime_ns, ctime_ns = 0 if node.is_dir else node.size, node.mtime_ns, node.ctime_ns
        more: dict[str, Any] = {}
        if node.state is FileState.VIDEO:
            video = seen.videos.by_inode(node.ino)
            more = _of_video(video)
        elif node.state is FileState.STORED:
            more = {"reason": node.reason}
        elif node.is_file and self.store.parts.is_elsewhere(node):
            more = {"reason": self.store.parts.elsewhere_reason(node)}
        elif node.is_file:
            # The row has neither size nor time of a file that the mount may write.
            found = self.store.parts.directory.spool_file(node.ino).stat()
            size, mtime_ns = found.st_size, found.st_mtime_ns
            ctime_ns = max(ctime_ns, found.st_ctime_ns)
            more = {"reason": node.reason}
        elif node.is_symlink:
            more = {"islink": True, "destination": node.target}
        return {
            "name": path,
            "size": size,
            "type": kind,
            "mode": node.mode,
            "ino": node.ino,
            "mtime": mtime_ns / 1e9,
            "created": ctime_ns / 1e9,
            **more,
        }

    def _view_info(self, path: str, found: FoundFile) -> dict[str, Any]:
        assert found.view is not None
        shown = self._shared.files.tree_of(found).stat(found.node.ino, found.view)
        kind, mode = (stat.S_IFDIR, 0o555) if shown.is_dir else (stat.S_IFREG, 0o444)
        more = {"version": shown.version}
        if not found.node.is_dir:
            with self.store.parts.catalog.reading() as seen:
                more = {"video": seen.videos.by_inode(found.node.ino).digest}
        return {
            "name": path,
            "size": shown.size,
            "type": "directory" if shown.is_dir else "file",
            "mode": kind | mode,
            "mtime": shown.mtime_ns / 1e9,
            "created": found.node.ctime_ns / 1e9,
            **more,
        }

    def _list_view(self, path: str, found: FoundFile) -> list[dict[str, Any]]:
        assert found.view is not None
        tree, info = self._shared.files.tree_of(found), self._view_info(path, found)
        if info["type"] == "file":
            return [info]
        start = f"{found.view}/" if found.view else ""
        return [
            self._view_info(f"{path}/{name}", found._replace(view=f"{start}{name}"))
            for name, _ in tree.list(found.node.ino, found.view)
        ]

    # -- bytes

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> VfsdReader | VfsdWriter:
        # Files are local: neither `block_size` nor a cache would save anything.
        path = self._strip_protocol(path)
        with as_os_errors(path):
            if mode == "rb":
                return VfsdReader(self, path, self._source(path))
            if mode in ("wb", "xb", "ab"):
                return self._writer(path, mode, autocommit)
        raise ValueError(f"mode must be rb, wb, xb or ab, got {mode!r}")

    def _source(self, path: str) -> ByteReader:
        return self._shared.files.open(path)

    def _writer(self, path: str, mode: str, autocommit: bool) -> VfsdWriter:
        parts = self.store.parts
        parts.require_writable()
        if not path:
            _refuse(errno.EISDIR, path)
        found: FoundFile | None = None
        with suppress(NotFoundError):
            found = self._find(path)
        if found is not None:
            if found.view is not None:
                raise ReadOnlyError(f"{path!r} is a view", hint="write views through a mount")
            if mode == "xb":
                _refuse(errno.EEXIST, path)
            if found.node.is_dir:
                _refuse(errno.EISDIR, path)
        new = parts.objects.new_file()
        try:
            if mode == "ab" and found is not None:
                with VfsdReader(self, path, self._source(path)) as file:
                    shutil.copyfileobj(file, new.file, _COPY_BYTES)
            return VfsdWriter(
                self,
                path,
                new,
                lambda done: put_file(parts, done, path, replace=mode != "xb"),
                autocommit=autocommit,
            )
        except BaseException:
            new.remove()
            raise

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """The bytes of a file, or those of a half-open range; negative limits count from the end.

        Raises `OSError` with EIO for a damaged range; others can still be read.
        """
        path = self._strip_protocol(path)
        with as_os_errors(path), closing(self._source(path)) as source:
            chosen = range(source.size)[slice(start, end)]
            data = bytearray(len(chosen))
            done = 0
            while done < len(data):
                count = source.readinto(memoryview(data)[done:], chosen.start + done)
                if not count:
                    break  # a plain file became shorter
                done += count
            return bytes(data[:done])

    # -- changes

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file, also a view, or make the directory of a directory.

        A copied video is compared with its checksums, and takes no more space than one.
        """
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Rename a file or a directory in one transaction; a file of the new name is replaced.

        Into an existing directory it moves under its own name. Patterns and lists of paths are
        copied and removed, one after the other.
        """
        if isinstance(path1, list) or isinstance(path2, list) or _is_pattern(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if stringify_path(path2).endswith("/") and new:
            new += "/"
        with as_os_errors(old):
            self.store.move(old, new, replace=True)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self._rm(path)

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        with as_os_errors(path):
            self.store.remove(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files and, with `recursive`, directories with all below them."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in self.expand_path(path):
            with as_os_errors(one):
                if not recursive and self.store.node(one).is_dir:
                    _refuse(errno.EISDIR, one)
                self.store.remove(one, recursive=recursive)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            if not self.store.node(path).is_dir:
                _refuse(errno.ENOTDIR, path)
            if self.store.entries(path):
                _refuse(errno.ENOTEMPTY, path)
            self.store.remove(path)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Create a directory.  Raises `FileExistsError`."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            make_directory(self.store.parts, path, parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a directory and those above it."""
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise


def _make(cls: type[Any], store: str, read_only: bool, others: Mapping[str, Any]) -> Any:
    return cls(store=store, read_only=read_only, **others)


def _split_url(url: str) -> tuple[str | None, str]:
    """Return the directory of the store, if the URL has one, and the name."""
    rest = url.removeprefix(_PROTOCOL)
    if url.startswith(_PROTOCOL) and rest.startswith("/"):
        store, mark, name = rest.partition("//")
        if mark and store:
            return store, name
    return None, rest


def _is_pattern(path: Any) -> bool:
    return bool(set("*?[") & set(stringify_path(path)))


def _of_video(video: LogicalVideo) -> dict[str, Any]:
    original = video.original
    return {
        "digest": video.digest,
        "frames": original.frames,
        "seconds": float(original.duration),
    }


def _refuse(code: int, path: str) -> NoReturn:
    raise OSError(code, os.strerror(code), path)
