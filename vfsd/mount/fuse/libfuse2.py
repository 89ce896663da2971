"""The adapter to libfuse 2, through fusepy, or mfusepy where there is no libfuse 3.

libfuse 2 or its bindings lack some operations: exchange of names, attribute changes by handle,
holes, copy_file_range, fallocate, a page cache that outlives the open, and the O_APPEND flag of
writes.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from vfsd.mount.fs import Attributes, Caller, Filesystem, OperationCounters, os_error
from vfsd.mount.fuse.callback_context import (
    UTIME_NOW,
    UTIME_OMIT,
    CallbackThreads,
    HiddenPaths,
    HideRequests,
    errno_of,
)
from vfsd.mount.fuse.libfuse import Binding

# Encoding of paths in the bindings. It maps every byte to a character and back.
_ENCODING = "latin-1"

_ONLY_LIBFUSE_3 = ("max_threads=", "max_idle_threads=", "max_background=", "clone_fd")
_STATFS = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")

P = ParamSpec("P")
T = TypeVar("T")


def serve(
    binding: Binding,
    filesystem: Filesystem,
    place: Path,
    words: list[str],
    counters: OperationCounters,
    on_init: Callable[[], None],
) -> int:
    """Mount and serve until unmounted; return libfuse's exit code.

    Args:
        binding: the Python binding of libfuse 2.
        filesystem: serves the requests.
        place: the mount point.
        words: mount options, as ``key`` or ``key=value``.
        counters: statistics of the operations.
        on_init: called when the mount is up.
    """
    kind = _CallableOperations if binding.name == "fusepy" else Libfuse2Adapter
    options: dict[str, Any] = {"big_writes": True, "use_ino": True, "nonempty": True}
    if filesystem.has_hard_links():
        options["attr_timeout"] = 0  # a change by one name must appear under the others
    for word in words:
        if not word.startswith(_ONLY_LIBFUSE_3):
            key, equals, value = word.partition("=")
            options[key] = value if equals else True
    options["fsname"] = options["fsname"].encode().decode(_ENCODING)
    try:
        binding.module.FUSE(
            kind(binding.module, filesystem, counters, on_init),
            os.fsencode(place).decode(_ENCODING),
            foreground=True,
            encoding=_ENCODING,
            **options,
        )
    except RuntimeError as error:
        return int(error.args[0])
    return 0


def _operation(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap an operation: count it, and turn exceptions into `OSError` for the bindings."""

    @functools.wraps(method)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        operations, path, *_ = args
        assert isinstance(operations, Libfuse2Adapter)
        counts = operations._threads.counts()[method.__name__]
        began = time.perf_counter_ns()
        size = 0
        try:
            result = method(*args, **kwargs)
            size = _size(result)
        except BaseException as error:
            code = errno_of(error, method.__name__, path)
            size = -code
            raise os_error(code) from None
        finally:
            counts.note(time.perf_counter_ns() - began, size)
        return result

    return answer


def _size(result: object) -> int:
    """Return the number of bytes that were read or written."""
    if isinstance(result, bytes):
        return len(result)
    return result if isinstance(result, int) else 0


class Libfuse2Adapter:
    """The object that the bindings call. Each method named like an operation is a callback."""

    use_ns = True
    flag_utime_omit_ok = 1

    def __init__(
        self,
        module: Any,
        filesystem: Filesystem,
        counters: OperationCounters,
        on_init: Callable[[], None],
    ) -> None:
        self._module = module
        self._fs = filesystem
        self._threads = CallbackThreads(counters)
        self._on_init = on_init
        self._hidden = HiddenPaths(None)
        self._hiding = HideRequests(module._libfuse)

    # -- life

    @_operation
    def init(self, _path: str) -> None:
        self._on_init()

    # -- looking

    @_operation
    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        found = self._fs.getattr(_decoded(path), handle)
        values = _stat(found)
        if found.nlink and self._hidden.has(path.encode(_ENCODING)):
            values["st_nlink"] += 1  # libfuse subtracts its hidden name
        return values

    @_operation
    def readlink(self, path: str) -> str:
        return _encoded(self._fs.readlink(_decoded(path)))

    @_operation
    def opendir(self, path: str) -> int:
        return self._fs.opendir(_decoded(path))

    @_operation
    def readdir(self, _path: str, handle: int) -> Iterator[tuple[str, dict[str, int], int]]:
        entries = self._fs.readdir(handle)
        names: list[tuple[str, dict[str, int], int]] = [(".", {}, 0), ("..", {}, 0)]
        names += [(_encoded(e.name), {"st_ino": e.ino, "st_mode": e.mode}, 0) for e in entries]
        return iter(names)

    @_operation
    def releasedir(self, _path: str, handle: int) -> int:
        self._fs.releasedir(handle)
        return 0

    @_operation
    def fsyncdir(self, _path: str, _data_only: int, _handle: int) -> int:
        self._fs.fsync_names()
        return 0

    @_operation
    def statfs(self, _path: str) -> dict[str, int]:
        found = self._fs.statfs()
        return {name: getattr(found, name) for name in (*_STATFS, "f_favail", "f_namemax")}

    # -- names

    @_operation
    def mknod(self, path: str, mode: int, device: int) -> int:
        self._fs.mknod(_decoded(path), mode, device, self._caller())
        return 0

    @_operation
    def mkdir(self, path: str, mode: int) -> int:
        self._fs.mkdir(_decoded(path), mode, self._caller())
        return 0

    @_operation
    def unlink(self, path: str) -> int:
        self._fs.unlink(_decoded(path))
        return 0

    @_operation
    def rmdir(self, path: str) -> int:
        self._fs.rmdir(_decoded(path))
        return 0

    @_operation
    def symlink(self, path: str, target: str) -> int:
        self._fs.symlink(_decoded(path), _decoded(target), self._caller())
        return 0

    @_operation
    def link(self, new_path: str, path: str) -> int:
        self._fs.link(_decoded(path), _decoded(new_path))
        return 0

    @_operation
    def rename(self, old: str, new: str) -> int:
        alias = self._hidden.alias(old.encode(_ENCODING), new.encode(_ENCODING))
        if alias is not None and self._fs.is_in_use(_decoded(old)):
            self._hiding.begin(self._fs.hide(_decoded(old), alias))
        else:
            self._fs.rename(_decoded(old), _decoded(new), hidden=self._hiding.taken())
        return 0

    # -- attributes

    @_operation
    def chmod(self, path: str, mode: int) -> int:
        self._fs.chmod(_decoded(path), mode)
        return 0

    @_operation
    def chown(self, path: str, uid: int, gid: int) -> int:
        self._fs.chown(_decoded(path), None if uid == -1 else uid, None if gid == -1 else gid)
        return 0

    @_operation
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        now = time.time_ns()
        # The bindings pass "now" and "omit" as these numbers of nanoseconds.
        special: dict[int, int | None] = {UTIME_NOW: now, UTIME_OMIT: None}
        atime, mtime = (special.get(each, each) for each in times or (now, now))
        self._fs.utimens(_decoded(path), atime, mtime)
        return 0

    @_operation
    def setxattr(self, path: str, name: str, value: bytes, flags: int, _position: int = 0) -> int:
        self._fs.setxattr(_decoded(path), _decoded(name), value, flags)
        return 0

    @_operation
    def getxattr(self, path: str, name: str, _position: int = 0) -> bytes:
        return self._fs.getxattr(_decoded(path), _decoded(name))

    @_operation
    def listxattr(self, path: str) -> list[str]:
        return [_encoded(name) for name in self._fs.listxattr(_decoded(path), self._caller())]

    @_operation
    def removexattr(self, path: str, name: str) -> int:
        self._fs.removexattr(_decoded(path), _decoded(name))
        return 0

    # -- open files

    @_operation
    def open(self, path: str, flags: int) -> int:
        return self._fs.open(_decoded(path), flags, self._caller())

    @_operation
    def create(self, path: str, mode: int) -> int:
        return self._fs.create(_decoded(path), mode, os.O_RDWR, self._caller())

    @_operation
    def read(self, _path: str, size: int, offset: int, handle: int) -> bytes:
        return self._fs.read(handle, size, offset)

    @_operation
    def write(self, _path: str, data: bytes, offset: int, handle: int) -> int:
        return self._fs.write(handle, data, offset)

    @_operation
    def truncate(self, path: str, length: int, handle: int | None = None) -> int:
        self._fs.truncate(_decoded(path), length, self._caller(), handle)
        return 0

    @_operation
    def flush(self, _path: str, handle: int) -> int:
        self._fs.flush(handle)
        return 0

    @_operation
    def release(self, _path: str, handle: int) -> int:
        self._fs.release(handle)
        return 0

    @_operation
    def fsync(self, _path: str, data_only: int, handle: int) -> int:
        self._fs.fsync(handle, data_only=bool(data_only))
        return 0

    # -- inside

    def _caller(self) -> Caller:
        uid, gid, _ = self._module.fuse_get_context()
        return Caller(uid, gid)


class _CallableOperations(Libfuse2Adapter):
    """The adapter as a callable, which fusepy requires."""

    def __call__(self, operation: str, *arguments: Any) -> Any:
        return getattr(self, operation)(*arguments)


def _decoded(text: str) -> str:
    return os.fsdecode(text.encode(_ENCODING))


def _encoded(text: str) -> str:
    return os.fsencode(text).decode(_ENCODING)


def _stat(found: Attributes) -> dict[str, int]:
    return {
        "st_ino": found.ino,
        "st_mode": found.mode,
        "st_nlink": found.nlink,
        "st_uid": found.uid,
        "st_gid": found.gid,
        "st_rdev": found.rdev,
        "st_size": found.size,
        "st_blocks": found.blocks,
        "st_atime": found.atime_ns,
        "st_mtime": found.mtime_ns,
        "st_ctime": found.ctime_ns,
    }
