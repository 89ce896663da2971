"""The inodes that the kernel knows, by node id, and how often it has looked up each.

A file's node id is its inode number, which is never used again. Views get ids of their own: while
one is open, the kernel must not learn another size for it, nor mix cached pages of two versions. So
a view with other bytes is another node.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Hashable

from vfsd.catalog import ROOT
from vfsd.mount.fs import FIRST_VIEW_INO, Attributes, ViewPath

_READABLE = 0o444


class ViewNode:
    """A view as the kernel knows it."""

    __slots__ = (
        "handles",
        "id",
        "is_outdated",
        "is_written",
        "owner",
        "size",
        "version",
        "view",
    )

    def __init__(self, number: int, view: ViewPath, found: Attributes) -> None:
        self.id = number
        self.view = view
        self.size = found.size  #: that the kernel knows
        self.owner = _owner(found)  #: mode, user and group that the kernel knows
        self.version: Hashable = None  #: of the bytes that its handles read
        self.handles: set[int] = set()
        self.is_outdated = False  #: the next lookup gives another node
        self.is_written = False  #: its handles write another video in its place

    def is_as_known(self, found: Attributes) -> bool:
        """Return whether the kernel knows the size and the readers of an open view."""
        return self.size == found.size and self.owner == _owner(found)


def _owner(found: Attributes) -> tuple[int, int, int]:
    return found.mode & _READABLE, found.uid, found.gid


class KernelNodes:
    """The nodes of a mount. Thread-safe."""

    def __init__(self, *, keeps_views: bool = False) -> None:
        """`keeps_views`: a view stays valid for file handles when the kernel forgets it."""
        self._keeps_views = keeps_views
        self._guard = threading.Lock()
        self._lookups: dict[int, int] = {}
        self._views: dict[int, ViewNode] = {}
        self._newest: dict[tuple[int, str], ViewNode] = {}  # by video and path
        self._next_view = FIRST_VIEW_INO
        self._views_generation = secrets.randbelow((1 << 31) - 1) + 1
        self._fresh: set[int] = set()  # looked up since the last change by another process
        self.changes = 0  #: number of calls of `names_changed`
        self._versions: dict[int, Hashable] = {}  # of the pages that the kernel has cached

    def __len__(self) -> int:
        return len(self._lookups)

    def generation(self, node: int) -> int:
        """Return the generation of a node. Those of views differ from one mount to the next."""
        return self._views_generation if node >= FIRST_VIEW_INO else 0

    def place(self, node: int) -> int | ViewPath | None:
        """Return what a node id stands for; None for a view that is gone."""
        if node < FIRST_VIEW_INO:
            return node
        view = self._views.get(node)
        return None if view is None else view.view

    def view(self, node: int) -> ViewNode | None:
        """Return the view with a node id; None for a file."""
        return self._views.get(node) if node >= FIRST_VIEW_INO else None

    def looked_up(self, place: int | ViewPath, found: Attributes) -> int:
        """Count a lookup that is being answered, and return the node id."""
        with self._guard:
            node = place if isinstance(place, int) else self._view_of(place, found).id
            self._lookups[node] = self._lookups.get(node, 0) + 1
            self._fresh.add(node)
        return node

    def looked_up_files(self, nodes: Collection[int], changes: int) -> None:
        """Count a lookup of each file; `changes` is the value of that attribute before them."""
        with self._guard:
            for node in nodes:
                self._lookups[node] = self._lookups.get(node, 0) + 1
            if changes == self.changes:
                self._fresh.update(nodes)

    def forget(self, node: int, count: int) -> None:
        """Take back `count` lookups."""
        with self._guard:
            left = self._lookups.get(node, 0) - count
            if left > 0:
                self._lookups[node] = left
                return
            self._lookups.pop(node, None)
            self._fresh.discard(node)
            self._versions.pop(node, None)
            view = self._views.get(node)
            if view is not None and not view.handles and not self._keeps_views:
                self._drop(view)

    def outdate(self, view: ViewNode) -> None:
        """Give the next lookup of a view another node."""
        with self._guard:
            view.is_outdated = True

    def opened(
        self, view: ViewNode, handle: int, version: Hashable, found: Attributes | None
    ) -> bool:
        """Add a handle to a view, with its attributes, or None if it writes the view.

        Return False, and add nothing, if the kernel knows other bytes, another size or other
        readers by this node. A view that is written is another node to all others.
        """
        with self._guard:
            is_same = not view.handles or view.version == version
            is_known = found is None or view.is_as_known(found)
            was_outdated, view.is_outdated = view.is_outdated, True
            if was_outdated or not is_same or not is_known:
                return False
            view.is_outdated = view.is_written = found is None
            view.version = version
            view.handles.add(handle)
        return True

    def released(self, node: int, handle: int) -> None:
        """Take away a handle of a view."""
        with self._guard:
            view = self._views.get(node)
            if view is None:
                return
            view.handles.discard(handle)
            if not view.handles and node not in self._lookups and not self._keeps_views:
                self._drop(view)

    def swap_version(self, node: int, version: Hashable) -> Hashable:
        """Set the version of the pages that the kernel caches of a node; return the former one.

        None: the pages are unknown.
        """
        with self._guard:
            before = self._versions.pop(node, None)
            if version is not None:
                self._versions[node] = version
        return before

    def names_changed(self) -> None:
        """Record that another process has changed names or files."""
        with self._guard:
            self._fresh.clear()
            self.changes += 1

    def is_fresh(self, node: int) -> bool:
        """Return whether the kernel has looked up a node since the last `names_changed`."""
        return node in self._fresh

    # -- internals; the caller has the guard

    def _view_of(self, place: ViewPath, found: Attributes) -> ViewNode:
        key = place.video.ino, place.path
        view = self._newest.get(key)
        if view is None or view.is_outdated or view.size != found.size:
            view = ViewNode(self._next_view, place, found)
            self._next_view += 1
            self._views[view.id] = view
            self._newest[key] = view
        view.owner = _owner(found)
        return view

    def _drop(self, view: ViewNode) -> None:
        self._views.pop(view.id, None)
        key = view.view.video.ino, view.view.path
        if self._newest.get(key) is view:
            del self._newest[key]


assert ROOT == 1, "the node id of the root, by the kernel's protocol"
