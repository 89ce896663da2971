"""What is remembered of the kernel's names."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T")


class ByPath(dict[bytes, T]):
    """Something for each name, which goes along when names are moved through the mount.

    libfuse answers nothing about a name, or about one below, while it is moved.
    """

    def moved(self, old: bytes, new: bytes, *, with_all_below: bool) -> None:
        """The name was moved, over another if there was one."""
        self._put(new, self._taken(old, with_all_below))

    def exchanged(self, one: bytes, other: bytes) -> None:
        """Two names were, with all below them."""
        first, second = self._taken(one, True), self._taken(other, True)
        self._put(other, first)
        self._put(one, second)

    def keep_only(self, paths: Collection[bytes]) -> None:
        """Forget what there is of other names."""
        for path in list(self):
            if path not in paths:
                self.pop(path, None)

    def _taken(self, path: bytes, with_all_below: bool) -> dict[bytes, T]:
        """What there is, by what follows `path`, which is known no longer."""
        paths = [path] if path in self else []
        if with_all_below:
            paths += [each for each in list(self) if each.startswith(path + b"/")]
        return {each[len(path) :]: self.pop(each) for each in paths if each in self}

    def _put(self, path: bytes, found: dict[bytes, T]) -> None:
        self.pop(path, None)
        for rest, one in found.items():
            self[path + rest] = one
