"""The open handles of a mount, by the path that the kernel knows, and how each is read.

Reads of views are cancelled when the requesting process is interrupted or has ended.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import TypeVar

from vfsd.mount.fs import Filesystem, ReadInto, os_error

V = TypeVar("V")
_MOST_NAMES = 10_000
T = TypeVar("T", bound=Hashable)
# States in proc(5) of processes that have ended.
_ENDED = (b"Z", b"X")


class PathMap(dict[bytes, V]):
    """A value for each path, updated by renames through the mount.

    libfuse locks a path, and all paths below it, during a rename.
    """

    def moved(self, old: bytes, new: bytes, *, with_all_below: bool) -> None:
        """Record a rename, which may replace another name."""
        self._put(new, self._remove(old, with_all_below))

    def exchanged(self, one: bytes, other: bytes) -> None:
        """Record an exchange of two names and everything below them."""
        first, second = self._remove(one, True), self._remove(other, True)
        self._put(other, first)
        self._put(one, second)

    def keep_only(self, paths: Collection[bytes]) -> None:
        """Remove all other paths."""
        for path in list(self):
            if path not in paths:
                self.pop(path, None)

    def _remove(self, path: bytes, with_all_below: bool) -> dict[bytes, V]:
        """Remove and return the values of `path`, and of paths below it, by their suffix."""
        paths = [path] if path in self else []
        if with_all_below:
            paths += [each for each in list(self) if each.startswith(path + b"/")]
        return {each[len(path) :]: self.pop(each) for each in paths if each in self}

    def _put(self, path: bytes, found: dict[bytes, V]) -> None:
        self.pop(path, None)
        for rest, one in found.items():
            self[path + rest] = one


class _OpenPath:
    def __init__(self, path: bytes) -> None:
        self.path: bytes | None = path  # last known path; None: it was removed
        self.open: Counter[Hashable] = Counter()  # number of handles of each file
        self.cached: Hashable | None = None  # content version of the kernel's cached pages
        self.through_cache: set[int] = set()  # handles
        self.writing: set[int] = set()  # handles


class OpenPaths:
    """The open handles of each path. Thread-safe.

    A file is identified by a hashable value `what`: handles with equal values read the same bytes.
    libfuse opens no path during its rename.
    """

    def __init__(self) -> None:
        self._guard = threading.Condition(threading.Lock())
        self._names: PathMap[_OpenPath] = PathMap()
        self._handles: dict[int, tuple[_OpenPath, Hashable]] = {}
        self._places: dict[Hashable, Counter[_OpenPath]] = {}  # by file
        self._shared: set[Hashable] = set()  # files that had several names while they were open

    def enter(self, path: bytes, handle: int, what: Hashable) -> None:
        """Add a handle that is being opened by a path."""
        with self._guard:
            if len(self._names) >= _MOST_NAMES:
                self._names = PathMap({path: one for path, one in self._names.items() if one.open})
            name = self._names.setdefault(path, _OpenPath(path))
            name.open[what] += 1
            self._handles[handle] = name, what
            places = self._places.setdefault(what, Counter())
            places[name] += 1
            if len(places) > 1:
                self._shared.add(what)
            if len(name.open) > 1:
                name.cached = None

    def leave(self, handle: int) -> list[int]:
        """Remove a handle that was closed, or not opened after all.

        Return the other handles of its name if they were of several files and are now of one;
        otherwise an empty list.
        """
        with self._guard:
            if handle not in self._handles:
                return []
            name, what = self._handles.pop(handle)
            name.through_cache.discard(handle)
            name.writing.discard(handle)
            places = self._places[what]
            was_mixed = len(name.open) > 1
            _decrement(name.open, what)
            _decrement(places, name)
            if not places:
                del self._places[what]
                self._shared.discard(what)
            self._guard.notify_all()
            if not was_mixed or len(name.open) > 1:
                return []
            return [each for each, (by, _) in self._handles.items() if by is name]

    def paths(self) -> set[bytes]:
        """Return the paths with open handles."""
        with self._guard:
            return {path for path, name in self._names.items() if name.open}

    def is_mixed(self, handle: int) -> bool:
        """Return whether other files are open by the name of a handle as well."""
        with self._guard:
            return len(self._handles[handle][0].open) > 1

    def others(self, handle: int) -> list[int]:
        """Return the handles of other files that are open by the name of a handle."""
        with self._guard:
            name, what = self._handles[handle]
            return [each for each, (by, on) in self._handles.items() if by is name and on != what]

    def wait_for_others(self, path: bytes, what: Hashable, seconds: float) -> bool:
        """Wait up to `seconds` until no other file than `what` is open by a path.

        Return whether that is so now.
        """

        def has_no_others() -> bool:
            name = self._names.get(path)
            return name is None or all(other == what for other in name.open)

        with self._guard:
            return self._guard.wait_for(has_no_others, seconds)

    def is_elsewhere(self, what: Hashable, path: bytes | None, handle: int | None) -> bool:
        """Return whether a file is open by another name than `path`, or that of `handle`."""
        if what not in self._places:
            return False
        with self._guard:
            name = self._names.get(path) if path is not None else None
            if handle is not None:
                name = self._handles[handle][0]
            return any(place is not name for place in self._places.get(what, ()))

    def share(self, what: Hashable) -> None:
        """Record that a file has another name. This counts until its last handle is closed."""
        with self._guard:
            if what in self._places:
                self._shared.add(what)

    def is_shared(self, handle: int) -> bool:
        """Return whether the file of a handle has had several names since its first open."""
        return self._handles[handle][1] in self._shared

    def write(self, handle: int) -> None:
        """Record that a handle may write."""
        with self._guard:
            self._handles[handle][0].writing.add(handle)

    def is_written_by_others(self, path: bytes | None, what: Hashable) -> bool:
        """Return whether a file other than `what` is open for writing by a path."""
        if path is None or path not in self._names:
            return False
        with self._guard:
            name = self._names.get(path)
            return name is not None and any(self._handles[each][1] != what for each in name.writing)

    def through_cache(self, path: bytes | None, handle: int | None) -> tuple[int, ...]:
        """Return the handles that read through the kernel's cache, by `path` or by the name of
        `handle`."""
        with self._guard:
            name = self._names.get(path) if path is not None else None
            if handle is not None:
                name = self._handles[handle][0]
            return () if name is None else tuple(name.through_cache)

    def read_through_cache(self, handle: int) -> None:
        with self._guard:
            self._handles[handle][0].through_cache.add(handle)

    def path_of(self, handle: int) -> bytes | None:
        """Return the current path of the name of a handle; None if it was removed."""
        with self._guard:
            name, _ = self._handles[handle]
            if name.path is not None and self._names.get(name.path) is not name:  # it was renamed
                found = (path for path, one in self._names.items() if one is name)
                name.path = next(found, None)
            return name.path

    def swap_cached(self, handle: int, version: Hashable | None) -> Hashable | None:
        """Set the content version that the kernel has cached under the name of a handle.

        Return the version before. None means that the cached bytes are unknown.
        """
        with self._guard:
            name, _ = self._handles[handle]
            before, name.cached = name.cached, version
            return before

    def moved(self, old: bytes, new: bytes, *, with_all_below: bool) -> None:
        """Record a rename through the mount, which may replace another name."""
        with self._guard:
            self._names.moved(old, new, with_all_below=with_all_below)

    def exchanged(self, one: bytes, other: bytes) -> None:
        """Record an exchange of two names, with everything below them."""
        with self._guard:
            self._names.exchanged(one, other)

    def removed(self, path: bytes) -> None:
        with self._guard:
            name = self._names.pop(path, None)
            if name is not None:
                name.path = None


def _decrement(counter: Counter[T], what: T) -> None:
    counter[what] -= 1
    if not counter[what]:
        del counter[what]


Read = Callable[[memoryview, int], int]
"""Fills a buffer from an offset; returns the number of bytes."""


class ViewReaders:
    """Tracks open views and the threads that closed them, to cancel reads. Thread-safe."""

    def __init__(self, interrupted: Callable[[], int], thread: Callable[[], int]) -> None:
        """`interrupted` returns whether the current request was, `thread` the thread id that made
        it."""
        self._interrupted = interrupted
        self._thread = thread
        self._closings: dict[int, dict[int, float]] = {}  # by view handle: time by thread

    def read_function(self, handle: int, read: ReadInto) -> Read:
        """Return the read function of a view. It raises EINTR when the reader is gone."""
        self._closings[handle] = {}

        def read_for_thread(buffer: memoryview, offset: int) -> int:
            return read(buffer, offset, partial(self._require_interest, handle, time.monotonic()))

        return read_for_thread

    def flushed(self, handle: int) -> None:
        """Record that the calling thread has closed a descriptor of the file."""
        closings = self._closings.get(handle)
        if closings is not None:
            closings[self._thread()] = time.monotonic()

    def released(self, handle: int) -> None:
        self._closings.pop(handle, None)

    def _require_interest(self, handle: int, since: float) -> None:
        """Raise EINTR if the reader was interrupted or is gone. Call it in the thread of the
        request."""
        if self._interrupted():
            raise os_error(errno.EINTR)
        thread = self._thread()
        if not thread:
            return  # the thread is in another pid namespace
        closed = self._closings.get(handle, {}).get(thread)
        if (closed is not None and closed >= since) or _has_ended(thread):
            raise os_error(errno.EINTR)


def _has_ended(thread: int) -> bool:
    try:
        with open(f"/proc/{thread}/stat", "rb") as file:
            state = file.read(1024).rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError):
        return False
    return state in _ENDED


class ReadDispatch:
    """The read functions of all open handles. Thread-safe."""

    def __init__(self, filesystem: Filesystem, view_readers: ViewReaders) -> None:
        self._fs = filesystem
        self._view_readers = view_readers
        self._guard = threading.Lock()
        self.files: dict[int, Read] = {}  #: by handle, for files that are not views
        self.views: dict[int, Read] = {}
        self.past_cache: set[int] = set()
        """Handles that must not fill the kernel's cache, since it holds another file's bytes."""

    def enter(self, handle: int) -> None:
        """Add a handle."""
        read = self._fs.reader(handle)
        if self._fs.is_view(handle):
            self.views[handle] = self._view_readers.read_function(handle, read)
        else:
            self.files[handle] = read

    def leave(self, handle: int) -> None:
        with self._guard:
            self.files.pop(handle, None)
            self.views.pop(handle, None)
            self.past_cache.discard(handle)
        self._view_readers.released(handle)

    def cut(self, handle: int) -> None:
        """Make reads beyond the end of the file fail with ESTALE.

        The kernel is about to use a size larger than the file, and would fill the rest with zeros.
        The error stays even if the kernel learns the right size, since that may change again before
        the reader looks. The end is evaluated at each read: the reader may be the writer as well.
        """
        with self._guard:
            readers = self.views if handle in self.views else self.files
            read = readers.get(handle)
            if read is not None and not isinstance(read, _UpToEnd):
                readers[handle] = _UpToEnd(read, lambda: self._fs.getattr(None, handle).size)


class _UpToEnd:
    def __init__(self, read: Read, end: Callable[[], int]) -> None:
        self._read = read
        self._end = end

    def __call__(self, buffer: memoryview, offset: int) -> int:
        if offset + len(buffer) > self._end():
            raise os_error(errno.ESTALE)
        return self._read(buffer, offset)
