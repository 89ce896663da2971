"""Which handles are open by each path that the kernel knows.

`PathMap` keeps a value per path and follows renames made through the mount.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Hashable
from typing import TypeVar

V = TypeVar("V")


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


_MOST_NAMES = 10_000

T = TypeVar("T", bound=Hashable)


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
