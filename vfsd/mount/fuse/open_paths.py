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
    """A value for each path, kept up to date when names are renamed through the mount.

    libfuse locks a path, and everything below it, while it is renamed.
    """

    def moved(self, old: bytes, new: bytes, *, with_all_below: bool) -> None:
        """Record a rename, which may replace another name."""
        self._put(new, self._taken(old, with_all_below))

    def exchanged(self, one: bytes, other: bytes) -> None:
        """Record an exchange of two names and everything below them."""
        first, second = self._taken(one, True), self._taken(other, True)
        self._put(other, first)
        self._put(one, second)

    def keep_only(self, paths: Collection[bytes]) -> None:
        """Remove all other paths."""
        for path in list(self):
            if path not in paths:
                self.pop(path, None)

    def _taken(self, path: bytes, with_all_below: bool) -> dict[bytes, V]:
        """What there is, by what follows `path`, which is known no longer."""
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
        self.path: bytes | None = path  # as it was last; None: it has gone
        self.open: Counter[Hashable] = Counter()  # handles, by what they are open on
        self.cached: Hashable | None = None  # the version of all that the kernel may have cached
        self.through_cache: set[int] = set()  # handles
        self.writing: set[int] = set()  # handles


class OpenPaths:
    """The open handles of each path. Thread-safe.

    libfuse opens no file while its path is being renamed.
    """

    def __init__(self) -> None:
        self._guard = threading.Condition(threading.Lock())
        self._names: PathMap[_OpenPath] = PathMap()
        self._handles: dict[int, tuple[_OpenPath, Hashable]] = {}
        self._places: dict[Hashable, Counter[_OpenPath]] = {}  # by what is open there
        self._shared: set[Hashable] = set()  # what has had several names while it was open

    def enter(self, path: bytes, handle: int, what: Hashable) -> None:
        """`handle` is about to be open by that name; equal `what` read the same bytes."""
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
        """It is closed, or was not opened after all.  Gives the handles of something else that is
        open by the name, where nothing but that is since."""
        with self._guard:
            if handle not in self._handles:
                return []
            name, what = self._handles.pop(handle)
            name.through_cache.discard(handle)
            name.writing.discard(handle)
            places = self._places[what]
            was_mixed = len(name.open) > 1
            _one_less(name.open, what)
            _one_less(places, name)
            if not places:
                del self._places[what]
                self._shared.discard(what)
            self._guard.notify_all()
            if not was_mixed or len(name.open) > 1:
                return []
            return [each for each, (by, _) in self._handles.items() if by is name]

    def paths(self) -> set[bytes]:
        """The names that anything is open by."""
        with self._guard:
            return {path for path, name in self._names.items() if name.open}

    def is_mixed(self, handle: int) -> bool:
        """Whether something else is open by the name of that handle, too."""
        with self._guard:
            return len(self._handles[handle][0].open) > 1

    def others(self, handle: int) -> list[int]:
        """Which handles that something else is by the name of that one."""
        with self._guard:
            name, what = self._handles[handle]
            return [each for each, (by, on) in self._handles.items() if by is name and on != what]

    def wait_for_others(self, path: bytes, what: Hashable, seconds: float) -> bool:
        """Until nothing but `what` is open by that name, but no longer; whether that is so."""

        def are_gone() -> bool:
            name = self._names.get(path)
            return name is None or all(other == what for other in name.open)

        with self._guard:
            return self._guard.wait_for(are_gone, seconds)

    def is_elsewhere(self, what: Hashable, path: bytes | None, handle: int | None) -> bool:
        """Whether it is open by another name than by `path`, or that of `handle`."""
        if what not in self._places:
            return False
        with self._guard:
            name = self._names.get(path) if path is not None else None
            if handle is not None:
                name = self._handles[handle][0]
            return any(place is not name for place in self._places.get(what, ()))

    def share(self, what: Hashable) -> None:
        """It has another name, too; that counts as long as it is open by any."""
        with self._guard:
            if what in self._places:
                self._shared.add(what)

    def is_shared(self, handle: int) -> bool:
        """Whether what is open there has had another name, too, since somebody opened it."""
        return self._handles[handle][1] in self._shared

    def write(self, handle: int) -> None:
        """It may, from now on."""
        with self._guard:
            self._handles[handle][0].writing.add(handle)

    def is_written_by_others(self, path: bytes | None, what: Hashable) -> bool:
        """Whether something else is open by that name to be written."""
        if path is None or path not in self._names:
            return False
        with self._guard:
            name = self._names.get(path)
            return name is not None and any(self._handles[each][1] != what for each in name.writing)

    def through_cache(self, path: bytes | None, handle: int | None) -> tuple[int, ...]:
        """The handles that read through the kernel's cache by that path, or by the name of
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
        """The name that `handle` was opened by; None where that has gone."""
        with self._guard:
            name, _ = self._handles[handle]
            if name.path is not None and self._names.get(name.path) is not name:  # it was moved
                found = (path for path, one in self._names.items() if one is name)
                name.path = next(found, None)
            return name.path

    def swap_cached(self, handle: int, version: Hashable | None) -> Hashable | None:
        """What the kernel may have cached under the name of `handle`, which has `version`.

        From now on that is in the cache, and nothing else; None: nobody knows what is.
        """
        with self._guard:
            name, _ = self._handles[handle]
            before, name.cached = name.cached, version
            return before

    def moved(self, old: bytes, new: bytes, *, with_all_below: bool) -> None:
        """The name was moved through the mount, over another if there was one."""
        with self._guard:
            self._names.moved(old, new, with_all_below=with_all_below)

    def exchanged(self, one: bytes, other: bytes) -> None:
        """Two names were, with all below them."""
        with self._guard:
            self._names.exchanged(one, other)

    def removed(self, path: bytes) -> None:
        with self._guard:
            name = self._names.pop(path, None)
            if name is not None:
                name.path = None


def _one_less(counter: Counter[T], what: T) -> None:
    counter[what] -= 1
    if not counter[what]:
        del counter[what]
