"""Tracks what the kernel caches of files and attributes, and invalidates it after changes."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import suppress
from ctypes import c_char_p, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

from vfsd.mount.fs import RENAME_EXCHANGE, Attributes, Filesystem, block_count, os_error
from vfsd.mount.fuse.open_paths import OpenPaths, PathMap, ReadDispatch

_log = logging.getLogger(__name__)

# How long to wait for the kernel to invalidate a path.
_INVALIDATE_SECONDS = 0.05
# The kernel opens a file with the size that it looked up within the last second. A new, longer file
# of that name would be cut off, and `cp` would exit with 0. So the reported sizes are remembered.
_MOST_NAMES = 10_000
_READABLE = 0o444
# How long a writer waits for the RELEASE of other handles, which arrives after close(2).
_RELEASE_SECONDS = 0.5
# A retry after ESTALE arrives at once, or never if the caller may not open the name any more.
_RETRY_SECONDS = 1.0


class _ReportedAttributes(NamedTuple):
    """Attributes last reported to the kernel for a name. The kernel uses them to open it."""

    ino: int
    size: int
    readers: tuple[int, int, int]


@dataclass(slots=True)
class _StaleOpen:
    """A thread that got ESTALE and is expected to look up and open the name again."""

    until: float  #: end of the time for the retry, on the clock of `time.monotonic`
    path: bytes | None  #: the path that it looked up last; None if that was renamed since

    def is_here(self, path: bytes) -> bool:
        """Return whether an open of `path` is the expected retry."""
        return self.path in (None, path) and time.monotonic() < self.until


def _readers(found: Attributes) -> tuple[int, int, int]:
    """Return the read permission bits, the owner and the group."""
    return found.mode & _READABLE, found.uid, found.gid


class KernelCacheInvalidator:
    """Invalidates the kernel's caches through libfuse, from within its callbacks. Thread-safe."""

    def __init__(
        self,
        library: Any,
        context: Callable[[], Any],
        filesystem: Filesystem,
        readers: ReadDispatch,
        *,
        bypass: bool,
    ) -> None:
        """Create it for one mount.

        Args:
            library: libfuse 3.
            context: ``fuse_get_context``.
            filesystem: the file system of the mount.
            readers: the read functions of the open handles.
            bypass: whether writers may bypass the kernel's cache.
        """
        self._library = library
        self._context = context
        self._fs = filesystem
        self._bypass = bypass
        self._readers = readers
        self._config: Any = None
        self._attr_timeout = 0.0
        self._is_caching = True
        self._open = OpenPaths()
        self._direct: set[int] = set()  # handles with direct I/O, whatever their flags are now
        self._reported: PathMap[_ReportedAttributes] = PathMap()
        self._retries: dict[int, _StaleOpen] = {}  # by thread
        self._notifier = ThreadPoolExecutor(1, thread_name_prefix="vfsd-notifier")

    def start(self, config: Any, attr_timeout: float) -> None:
        """Set the timeout. Call it while libfuse handles INIT, with its ``fuse_config``."""
        self._config = config
        config.attr_timeout = self._attr_timeout = attr_timeout

    def close(self) -> None:
        self._notifier.shutdown(wait=False, cancel_futures=True)

    # -- attributes

    def path_of(self, handle: int) -> bytes | None:
        """Return the current path of the name that `handle` was opened by; None if removed."""
        return self._open.path_of(handle)

    def reported_attributes(
        self, path: bytes | None, found: Attributes, handle: int | None
    ) -> Attributes:
        """Return the attributes to report to the kernel, and choose whether it may cache them.

        `handle` is the open handle that the request refers to, if any. The size may be larger than
        that in `found`; see `_with_room`.

        The attributes are not cached in four cases:

        - A view is being written. Its bytes differ from those that will be read.
        - The file has several names, or a removed name that is still open. To libfuse and the
          kernel they are different files. A change through one name would appear under the others
          only after the timeout.
        - Another file is open for writing under the same name. Its writer may seek to the end.
        - The file has set-ID bits. The file system clears them at a write, unseen by the kernel.

        libfuse reads the timeout after the callback has returned. If another thread changes it in
        between, a change may appear a second late.
        """
        if handle is None and self._retries:
            self._note_lookup(path)
        is_upload = handle is not None and found.is_view and bool(found.mode & stat.S_IWUSR)
        is_one = self._is_one(path, found, handle)
        may_lose_bits = stat.S_ISREG(found.mode) and found.mode & (stat.S_ISUID | stat.S_ISGID)
        allowed = (is_one or stat.S_ISDIR(found.mode)) and not is_upload and not may_lose_bits
        if allowed is not self._is_caching:
            self._is_caching = allowed
            self._config.attr_timeout = self._attr_timeout if allowed else 0.0
        found = self._with_room(path, found, handle)
        if path is not None and stat.S_ISREG(found.mode):
            if len(self._reported) >= _MOST_NAMES:
                self._reported.keep_only(self._open.paths())
            if len(self._reported) >= _MOST_NAMES:
                self._reported.clear()
            self._reported[path] = _ReportedAttributes(found.ino, found.size, _readers(found))
        return found

    def _is_one(self, path: bytes | None, found: Attributes, handle: int | None) -> bool:
        """Return whether the kernel knows the file by one name only, and no other file by it.

        An open file that the kernel knows by several names is recorded as shared.
        """
        if found.nlink > 1 or self._open.is_elsewhere(found.ino, path, handle):
            self._open.share(found.ino)
            return False
        return found.is_view or not self._open.is_written_by_others(path, found.ino)

    def _with_room(self, path: bytes | None, found: Attributes, handle: int | None) -> Attributes:
        """Return the attributes with a size that cuts off no open reader.

        The kernel knows one size per name, for all files that are open by it. Cached reads end at
        that size. So the largest size is reported, and the readers of shorter files are cut off
        here. The block count grows as well: with too few blocks, cp looks for holes and relies on
        the size.
        """
        ends = self._ends(path, found.ino, found.size, handle)
        size = max([found.size, *ends.values()])
        for each, end in ends.items():
            if end < size:
                self._readers.cut(each)
        if size == found.size:
            return found
        return found._replace(size=size, blocks=max(found.blocks, block_count(size)))

    def _ends(self, path: bytes | None, ino: int, size: int, handle: int | None) -> dict[int, int]:
        """Return the file size of each handle that reads through the kernel's cache.

        These are the handles of `path`, or of the name of `handle`. Those of the inode `ino` have
        the size `size`.
        """
        cached = self._open.through_cache(path, handle)
        return {each: self._end(each, ino, size) for each in cached}

    def _end(self, handle: int, ino: int, size: int) -> int:
        try:
            if not self._fs.is_view(handle) and self._fs.identity(handle) == ino:
                return size
            return self._fs.getattr(None, handle).size
        except OSError:
            return size

    def opening(self, path: bytes) -> OpenRequest:
        """Return the request of this thread to open a name.

        It is a retry if the thread got ESTALE lately and `path` is what it looked up last. That may
        differ from the name it tried before, since a rename may have happened in between. A thread
        that did not retry has looked up another path.
        """
        retry = self._retries.pop(self._thread(), None) if self._retries else None
        return OpenRequest(self, path, retry is not None and retry.is_here(path))

    def _note_lookup(self, path: bytes | None) -> None:
        retry = self._retries.get(self._thread())
        if retry is not None:
            retry.path = path

    def lookup_failed(self) -> None:
        """Record that a lookup of this thread found no file, so that no retry follows."""
        if self._retries:
            self._retries.pop(self._thread(), None)

    def is_known(self, path: bytes, ino: int, size: int | None) -> bool:
        """Return whether the kernel knows this file, and its size unless None, at this path."""
        last = self._reported.get(path)
        return last is not None and last.ino == ino and self._is_current(path, ino, size, last.size)

    def is_view_known(self, path: bytes, found: Attributes) -> bool:
        """Return whether the kernel knows this view and its permissions at this path.

        The permissions of a view follow those of its video, which may change in other ways.
        """
        last = self._reported.get(path)
        has_same_readers = last is not None and last.readers == _readers(found)
        return has_same_readers and self.is_known(path, found.ino, found.size)

    def _is_current(self, path: bytes, ino: int, size: int | None, reported: int) -> bool:
        """Return whether `reported` is the size that would be reported for the file now."""
        if size is None or size == reported:
            return True
        return reported == max([size, *self._ends(path, ino, size, None).values()])

    def send_back(self, path: bytes) -> None:
        """Make the kernel look up and open the name again. Always raises `OSError` (ESTALE)."""
        if len(self._retries) >= _MOST_NAMES:
            self._retries.clear()
        until = time.monotonic() + _RETRY_SECONDS
        self._retries[self._thread()] = _StaleOpen(until, path)
        raise os_error(errno.ESTALE)

    def _thread(self) -> int:
        """Return the id of the thread that made the current request."""
        return int(self._context().contents.pid)

    def forget(self, path: bytes) -> None:
        """Invalidate the attributes and pages that the kernel has cached for a path.

        The kernel may wait for replies to other requests, and this may be the only thread left to
        send them. So another thread makes the call, and the wait for it is short.
        """
        try:
            self._submit_invalidation(path).result(_INVALIDATE_SECONDS)
        except NotInTimeError:
            _log.debug("the kernel has not yet invalidated its cache of %r", path)

    def _submit_invalidation(self, path: bytes) -> Future[int]:
        session = c_void_p(self._context().contents.fuse)
        return self._notifier.submit(self._library.fuse_invalidate_path, session, c_char_p(path))

    # -- bytes

    def require_own_size(self, path: bytes, handle: int) -> None:
        """Require that a new writer sees the size of its own file at SEEK_END.

        The kernel uses the one size that it knows for the name. If another file is open by the same
        name, that may be the other file's size, and a write there would leave a hole. Views are
        exempt, as their writers do not seek. Raises `OSError` (ETXTBSY).
        """
        if not self.is_alone(handle) and isinstance(ino := self._fs.identity(handle), int):
            self.require_only(path, ino)

    def require_unused(self, path: bytes) -> None:
        """Require that nothing is open by the name of a new file. Raises `OSError` (ETXTBSY)."""
        self.require_only(path, None)

    def require_only(self, path: bytes, ino: int | None) -> None:
        """Require that no other file is open by that name. Raises `OSError` (ETXTBSY)."""
        if not self._open.wait_for_others(path, ino, _RELEASE_SECONDS):
            raise os_error(errno.ETXTBSY)

    def is_end_known(self, handle: int) -> bool:
        """Return whether the kernel knows the size of the file that `handle` is open on.

        It knew the size at the open (`OpenRequest.require_size_known`). It still does if all
        changes since then were made by the same name.
        """
        if self._open.is_shared(handle):
            return False
        found = self._fs.getattr(None, handle)
        path = self._open.path_of(handle)
        last = None if path is None else self._reported.get(path)
        return last is not None and last.ino == found.ino and self._is_one(path, found, handle)

    def enter(self, path: bytes, handle: int) -> None:
        """Add a handle that is being opened by a path. Call `leave` at its end."""
        self._open.enter(path, handle, self._fs.identity(handle))

    def leave(self, handle: int) -> None:
        left = self._open.leave(handle)
        self._direct.discard(handle)
        if not self._readers.past_cache.isdisjoint(left):
            # The handles that are left may fill the kernel's cache from now on. It still has bytes
            # of the file that was closed.
            with suppress(RuntimeError, KeyError):  # the mount ends, or the handle was closed too
                path = self._open.path_of(left[0])
                if path is not None:
                    self.forget(path)

    def bypasses_cache(self, handle: int) -> bool:
        """Return whether a handle bypasses the kernel's cache, so that writes are synced here."""
        return handle in self._direct

    def is_alone(self, handle: int) -> bool:
        """Return whether no other file is open by the name of `handle`.

        Another file would share the kernel's cache, and each would be read in place of the other.
        """
        return not self._open.is_mixed(handle)

    def others(self, handle: int) -> list[int]:
        """Return handles of other files that are open by the same name."""
        return self._open.others(handle) if self._open.is_mixed(handle) else []

    def choose(self, info: Any, handle: int) -> None:
        """Choose how the kernel caches a file that is being opened. Call `enter` before.

        The kernel keeps its pages if they hold the same bytes, read by the same name. `info` is the
        ``fuse_file_info`` of the request.
        """
        if info.flags & os.O_ACCMODE != os.O_RDONLY:
            self._open.write(handle)
            found = self._fs.getattr(None, handle)
            if found.nlink > 1:
                self._open.share(found.ino)
        is_only_written = info.flags & os.O_ACCMODE == os.O_WRONLY
        # With O_DSYNC the kernel syncs once per write, and the mount once per part of it.
        is_direct = is_only_written and not info.flags & os.O_DSYNC
        # The kernel's cache is written page by page; appends by other names may come in between.
        is_direct |= bool(info.flags & os.O_APPEND) and self._open.is_shared(handle)
        if self._bypass and (is_direct or is_appended_directly(info.flags)):
            self._set_direct(info, handle)
        elif not self.is_alone(handle):
            self._set_direct(info, handle)
            self._open.swap_cached(handle, None)
            self._keep_uncached(handle)
        else:
            version = self._fs.content_version(handle)
            cached = self._open.swap_cached(handle, version)
            info.keep_cache = int(version is not None and version == cached)
            if version is not None:
                self._open.read_through_cache(handle)

    def _set_direct(self, info: Any, handle: int) -> None:
        info.direct_io = 1
        self._direct.add(handle)

    def _keep_uncached(self, handle: int) -> None:
        """Keep reads of this handle out of the kernel's cache, and empty that cache.

        Reads of the other handles still fill it. Mappings of this handle would see those pages.
        """
        self._readers.past_cache.add(handle)
        path = self._open.path_of(handle)
        if path is not None:
            self.forget(path)

    def invalidate_written(self, handle: int) -> None:
        """Invalidate the cache after a write that failed or went to another offset.

        The kernel may have cached the bytes before it sent them, and would show them to all
        readers. This call does not wait, since this thread has yet to reply to the write.
        """
        self._open.swap_cached(handle, None)
        path = self._open.path_of(handle)
        if path is not None:
            with suppress(RuntimeError):  # the mount ends, and the kernel's cache with it
                self._submit_invalidation(path)

    def moved(self, old: bytes, new: bytes, flags: int) -> None:
        """Record a rename made through the mount.

        It also applies to names that were looked up and are about to be opened.
        """
        for retry in list(self._retries.values()):
            if retry.path is not None and _is_below(retry.path, old, new):
                retry.path = None
        if flags & RENAME_EXCHANGE:
            self._open.exchanged(old, new)
            self._reported.exchanged(old, new)
        else:
            is_folder = self._is_folder(new)
            self._open.moved(old, new, with_all_below=is_folder)
            self._reported.moved(old, new, with_all_below=is_folder)

    def removed(self, path: bytes) -> None:
        self._open.removed(path)
        self._reported.pop(path, None)

    def _is_folder(self, path: bytes) -> bool:
        try:
            return stat.S_ISDIR(self._fs.getattr(os.fsdecode(path)).mode)
        except OSError:
            return True  # it was removed since the rename


class OpenRequest:
    """A request to open a name, which may refer to another file than the kernel has looked up.

    The kernel relies on a lookup of the last second, with its size and mode. ESTALE makes it look
    up the name again, without the caller noticing. This works once: after a second ESTALE the
    kernel fails the open. It makes no lookup for an open without a name, as by open_by_handle_at.
    """

    def __init__(self, cache: KernelCacheInvalidator, path: bytes, is_retry: bool) -> None:
        self._cache = cache
        self._path = path
        self._is_retry = is_retry

    def look_again(self) -> None:
        """Make the kernel look up the name again, unless it has just done so.

        Raises `OSError` (ESTALE).
        """
        if not self._is_retry:
            self._cache.send_back(self._path)

    def require_only(self, found: Attributes) -> None:
        """Require, before a truncation, that the file is known and alone under its name.

        Raises `OSError`: ESTALE if the kernel knows another file, which the caller does not see;
        ETXTBSY if another file is open by the name.
        """
        if not found.is_view:
            self._require(self._cache.is_known(self._path, found.ino, None))
            self._cache.require_only(self._path, found.ino)

    def require_size_known(self, filesystem: Filesystem, handle: int, flags: int) -> None:
        """Require that the kernel knows the size of the file that `handle` is open on.

        `flags` are those of the open. The size matters for views, videos, and files opened for
        direct appends; other files need the right inode only. Raises `OSError` (ESTALE), which the
        caller does not see.
        """
        if filesystem.is_view(handle):
            found = filesystem.getattr(None, handle)
            self._require(self._cache.is_view_known(self._path, found))
            return
        ino = filesystem.identity(handle)
        if isinstance(ino, int):  # else a view that is being written, without a size
            size = filesystem.video_size(handle)
            if is_appended_directly(flags):
                size = filesystem.getattr(None, handle).size
            self._require(self._cache.is_known(self._path, ino, size))

    def _require(self, is_known: bool) -> None:
        if not is_known:
            self.look_again()
            self._cache.forget(self._path)
        elif self._is_retry:
            # A reader of the former file may have made the kernel learn its size in the meantime.
            self._cache.forget(self._path)


def is_appended_directly(flags: int) -> bool:
    """Return whether all writes bypass the caches and go to the end (O_DIRECT and O_APPEND).

    The kernel sends the parts of a large write in order only if it knows that they bypass its
    cache.
    """
    wanted = os.O_DIRECT | os.O_APPEND
    return flags & wanted == wanted


def _is_below(path: bytes, *folders: bytes) -> bool:
    """Return whether a path is one of the folders, or below one."""
    return any(path == folder or path.startswith(folder + b"/") for folder in folders)
