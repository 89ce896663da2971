"""Caches inodes and directory entries, so that most lookups need no SQL.

Changes by this process update the cache. Changes by other processes are noticed by the tree version
in the catalog. It is compared before each change and whenever the catalog watch reports a change.
The watch is asked before a name is reported missing, and otherwise every `_CHECK_SECONDS`.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from vfsd.catalog import BUSY_SECONDS, NAME_BYTES, ROOT, Transaction, Tree
from vfsd.core.model import FileState, Node
from vfsd.errors import BusyError, NotFoundError, VfsdError
from vfsd.mount.fs.posix import EntryName, Place, ViewPath, os_error
from vfsd.storage.context import StoreContext

_CHECK_SECONDS = 0.05
_COMPARE_SECONDS = 1.0
_MAX_CACHED = 200_000
_MAX_EXPIRED = 10_000
# After `_MISSES` uncached names, a directory with at most this many entries is read as a whole.
_MISSES, _FEW_NAMES = 4, 500


class NamePosition(NamedTuple):
    """A name in a directory, whether or not it exists."""

    parent: Node
    name: str


@dataclass(frozen=True, slots=True)
class ForgottenFile:
    """A file that was deleted from the catalog, with the objects that may be deleted."""

    node: Node  #: its last state
    keys: frozenset[str]  #: of the objects of its video


class TreeTransaction:
    """One catalog transaction, with the changes to apply to the cache after the commit."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.touched: set[int] = set()
        self.names: list[tuple[int, str, int | None]] = []
        self.new: list[int] = []
        self.xattrs: dict[int, dict[bytes, bytes | None]] = {}  # None: removed

    @property
    def tree(self) -> Tree:
        return self.transaction.tree

    def node_at(self, position: NamePosition) -> Node:
        """Return the node at a position. Raises `OSError`: ENOENT."""
        node = self.tree.lookup(position.parent.ino, position.name)
        if node is None:
            raise os_error(errno.ENOENT)
        return node

    def require_replaceable(self, node: Node) -> None:
        """Raise EBUSY for the last name of a file that another home writes, or has the only bytes
        of. A file that was being written by a mount without a valid lease may be replaced.
        """
        if node.nlink != 1 or not self.tree.is_elsewhere(node):
            return
        if node.state is not FileState.SPOOLED or self.transaction.homes.is_live(node.home):
            raise os_error(errno.EBUSY)

    def touch(self, *inos: int) -> None:
        """Record that these nodes or their attributes change."""
        self.touched.update(inos)

    def delete(self, node: Node) -> ForgottenFile:
        """Delete a file without names, and its video, from the catalog."""
        keys = self.objects_of(node)
        self.tree.delete(node.ino)
        self.touched.add(node.ino)
        return ForgottenFile(node, keys)

    def objects_of(self, node: Node) -> frozenset[str]:
        """Return the keys of all objects of a file, including tiles and renditions."""
        if node.state is not FileState.VIDEO and node.object_key is None:
            return frozenset()
        return frozenset(self.transaction.objects.of_file(node.ino))

    def set_xattr(self, ino: int, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        self.tree.set_xattr(ino, name, value)
        self.touched.add(ino)
        self.xattrs.setdefault(ino, {})[name] = value

    def remove_xattr(self, ino: int, name: bytes) -> bool:
        """Remove an extended attribute; return whether it existed."""
        if not self.tree.remove_xattr(ino, name):
            return False
        self.touched.add(ino)
        self.xattrs.setdefault(ino, {})[name] = None
        return True

    def set_name(self, parent: int, name: str, ino: int) -> None:
        """Record that a name was added or refers to another inode."""
        self.names.append((parent, name, ino))
        self.touched.update((parent, ino))

    def remove_name(self, parent: int, name: str) -> None:
        """Record that a name was removed."""
        self.names.append((parent, name, None))
        self.touched.add(parent)


class DentryCache:
    """Inodes and their names. Thread-safe.

    Lookups of cached names take no lock. Changes are serialised.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._watch = context.catalog.watch()
        self._lock = threading.RLock()
        self._nodes: dict[int, Node] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._complete: set[int] = set()  # directories with all entries cached
        self._xattrs: dict[int, dict[bytes, bytes]] = {}
        self._aliases: dict[tuple[int, str], int] = {}
        self._aliases_of: dict[int, set[tuple[int, str]]] = {}
        self._alias_guard = threading.Lock()
        self._misses: dict[int, int] = {}  # uncached lookups by directory
        self._expired: OrderedDict[tuple[int, str], int] = OrderedDict()  # former aliases
        self._version = -1
        self._serial = 0  # changes when reads in progress become stale
        self._outside_changes = 0  # noticed so far
        self._may_be_stale = True
        self._last_check = 0.0
        self._last_compare = 0.0
        self._current_at: int | None = None  # number of changes that the cache has seen

    def close(self) -> None:
        self._watch.close()

    # -- lookups

    def node(self, ino: int) -> Node:
        """Return a node. Raises `NotFoundError`."""
        found = self._nodes.get(ino)
        if found is not None:
            return found
        serial = self._serial
        with self._context.catalog.reading() as seen:
            found = seen.tree.node(ino)
        self._cache(serial, found)
        return found

    def node_if_any(self, ino: int) -> Node | None:
        try:
            return self.node(ino)
        except NotFoundError:
            return None

    def reread(self, ino: int) -> Node | None:
        """Return the node as it is in the catalog now."""
        serial = self._serial
        with self._context.catalog.reading() as seen:
            found = seen.tree.nodes([ino]).get(ino)
        if found is not None:
            self._cache(serial, found)
        else:
            self._may_be_stale, self._last_check = True, 0.0  # another process deleted it
            self._nodes.pop(ino, None)  # a writer may hold the lock that a check needs
        return found

    def resolve(self, place: Place) -> Node:
        """Return the real node at a place.

        Raises `OSError`: ENOENT, ENOTDIR, ENAMETOOLONG, and ESTALE for an inode that is gone.
        """
        if time.monotonic() - self._last_check > _CHECK_SECONDS:
            self._check_current()
        if isinstance(place, int):
            return self._inode(place)
        if isinstance(place, EntryName):
            return self._step(self._real_parent(place), place.name)
        if isinstance(place, ViewPath):
            raise os_error(errno.ENOENT)
        node = self._nodes.get(ROOT) or self.node(ROOT)
        for name in place.split("/"):
            if name:
                node = self._step(node, name)
        return node

    def change_serial(self) -> int:
        """Return a number that differs whenever a cached value has changed, by any process.

        Changes by other processes are checked as often as in `resolve`.
        """
        if time.monotonic() - self._last_check > _CHECK_SECONDS:
            self._check_current()
        return self._serial

    def outside_changes(self) -> int:
        """Return how many changes by other processes were noticed; checked as in `resolve`."""
        if time.monotonic() - self._last_check > _CHECK_SECONDS:
            self._check_current()
        return self._outside_changes

    def position(self, place: Place) -> NamePosition:
        """Return the position of a path, or of a name, without looking up the last name.

        Raises `OSError` when the directory does not exist, and EBUSY for the root.
        """
        if time.monotonic() - self._last_check > _CHECK_SECONDS:
            self._check_current()
        if isinstance(place, EntryName):
            node, name = self._real_parent(place), place.name
        elif isinstance(place, str):
            *folders, name = [part for part in place.split("/") if part] or [""]
            if not name:
                raise os_error(errno.EBUSY)
            node = self.node(ROOT)
            for folder in folders:
                node = self._step(node, folder)
        else:
            raise os_error(errno.ENOENT)
        if not node.is_dir:
            raise os_error(errno.ENOTDIR)
        require_short(name)
        return NamePosition(node, name)

    def lookup(self, parent: int, name: str) -> Node | None:
        """Return the node of a name, or None. Raises `OSError`: ESTALE for an expired alias."""
        found = self._cached(parent, name)
        if found is not None:
            return found
        if self._aliases and (alias := self._aliases.get((parent, name))) is not None:
            return self.node_if_any(alias)
        if (parent, name) in self._expired:
            raise os_error(errno.ESTALE)
        require_short(name)
        current, serial = self._check_current(), self._serial
        if current and parent in self._complete:
            ino = self._entries.get(parent, {}).get(name)
            if ino is not None:
                return self.node_if_any(ino)
            if serial == self._serial:  # otherwise the cache may have been cleared
                self.require_current()  # another host may have added it before this lookup
                if serial == self._serial:
                    return None
        if self._prefetched(parent) and (found := self._cached(parent, name)) is not None:
            return found
        serial = self._serial
        with self._context.catalog.reading() as seen:
            found = seen.tree.lookup(parent, name)
        if found is not None:
            self._cache(serial, found, (parent, name))
        return found

    def _prefetched(self, parent: int) -> bool:
        """Read a directory as a whole after several uncached lookups; return whether it did.

        A program that examines many files one by one, for instance after a start, waits only once.
        """
        misses = self._misses.get(parent, 0) + 1
        self._misses[parent] = misses
        if len(self._misses) > _MAX_EXPIRED:
            self._misses.clear()
        if misses % _MISSES:
            return False
        with self._context.catalog.reading() as seen:
            if seen.tree.has_more_children(parent, _FEW_NAMES):
                return False
        self.children(parent)
        return True

    def children(self, parent: int) -> list[tuple[str, Node]]:
        """Return the current entries of a directory, in the byte order of their names."""
        current, serial = self._check_current(), self._serial
        if current and parent in self._complete:
            entries = self._entries.get(parent, {}).copy()
            nodes = [(name, self._nodes.get(ino)) for name, ino in entries.items()]
            known = [(name, node) for name, node in nodes if node is not None]
            if len(known) == len(nodes) and serial == self._serial:
                return sorted(known, key=lambda entry: os.fsencode(entry[0]))
        serial = self._serial
        with self._context.catalog.reading() as seen:
            found = seen.tree.children(parent)
            with_xattrs = seen.tree.children_with_xattrs(parent)
        with self._may_cache(serial) as may:
            if may and len(self._nodes) + len(found) < _MAX_CACHED:
                self._nodes.update((node.ino, node) for _, node in found)
                self._entries[parent] = {name: node.ino for name, node in found}
                self._complete.add(parent)
                for _, node in found:
                    if node.ino not in with_xattrs:
                        self._xattrs[node.ino] = {}
        return found

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        """Return the stored attributes of a node. The caller must not change them."""
        found = self._xattrs.get(ino)
        if found is None:
            serial = self._serial
            with self._context.catalog.reading() as seen:
                found = seen.tree.xattrs(ino)
            with self._may_cache(serial) as may:
                if may:
                    self._xattrs[ino] = found
        return found

    def path_of(self, ino: int) -> str:
        """Return the first path of a node, relative to the root. Raises `OSError` ENOENT."""
        with self._context.catalog.reading() as seen:
            paths = seen.tree.paths_of(ino)
        if not paths:
            raise os_error(errno.ENOENT)
        return paths[0]

    def log_name(self, ino: int) -> str:
        """Return the paths of a node for a log, or its number if it has none. Never fails."""
        try:
            with self._context.catalog.reading() as seen:
                paths = seen.tree.paths_of(ino)
        except VfsdError:
            paths = []
        return " or ".join(map(repr, paths)) or f"inode {ino}"

    # -- changes

    @contextmanager
    def changing(self, seconds: float | None = None) -> Iterator[TreeTransaction]:
        """Open one transaction; the cache is updated when it has been committed.

        Raises `ReadOnlyError`, `NoSpaceError`, and `BusyError` if other processes lock the catalog
        for longer than `seconds` (None: `BUSY_SECONDS`). Must not be nested.
        """
        seconds = BUSY_SECONDS if seconds is None else seconds
        with self._locked(seconds) as remaining:
            with self._context.catalog.writing(remaining) as transaction:
                version = transaction.tree.version()
                if version != self._version:
                    self._outside_changes += 1
                    self._clear(version)
                change = TreeTransaction(transaction)
                yield change
                fresh = transaction.tree.nodes(change.touched)
                version = transaction.tree.version()
            self._apply(change, fresh, version)
            # Consume the event of our own commit. If another process has committed before this
            # line, the next comparison of versions notices it.
            self._watch.changed()

    @contextmanager
    def _locked(self, seconds: float) -> Iterator[float]:
        """Take the lock; yield the seconds that are left to wait for other processes.

        All of `seconds` are left if the lock was free. Raises `BusyError` if earlier waiters used
        all of them.
        """
        began = time.monotonic()
        if not self._lock.acquire(timeout=seconds):
            raise BusyError(f"the catalog was busy for {seconds:.0f} seconds")
        try:
            waited = time.monotonic() - began
            yield seconds if waited < 1 else max(1.0, seconds - waited)
        finally:
            self._lock.release()

    def hold_changes(self) -> AbstractContextManager[object]:
        """Block all changes while the returned context is held."""
        return self._lock

    def set_alias(self, parent: int, name: str, ino: int) -> None:
        """Make a path lead to a node that has lost its name. No listing shows it."""
        with self._alias_guard:
            self._drop_alias((parent, name))
            self._aliases[parent, name] = ino
            self._aliases_of.setdefault(ino, set()).add((parent, name))
            self._expired.pop((parent, name), None)

    def revive_alias(self, path: Place, ino: int) -> None:
        """Restore the alias that a file was just opened by, if its last close expired it."""
        with suppress(OSError):  # the directory is gone
            position = self.position(path)
            key = (position.parent.ino, position.name)
            if self._expired.get(key) == ino:
                self.set_alias(*key, ino)

    def alias(self, path: Place) -> int | None:
        """Return the inode that a path leads to, or led to, as an alias."""
        if not self._aliases and not self._expired:
            return None
        position = self.position(path)
        key = (position.parent.ino, position.name)
        ino = self._aliases.get(key)
        if ino is None and self._cached(*key) is None:
            ino = self._expired.get(key)
        return ino

    def drop_aliases(self, ino: int) -> None:
        """Expire the aliases of a file: lookups raise ESTALE.

        The kernel then looks up the name again if it still knows the file by such a path.
        """
        with self._alias_guard:
            for key in tuple(self._aliases_of.get(ino, ())):
                self._drop_alias(key)
                self._expired[key] = ino
                if len(self._expired) > _MAX_EXPIRED:
                    self._expired.popitem(last=False)

    def _drop_alias(self, key: tuple[int, str]) -> None:
        """Remove an alias if it exists. The caller holds `_alias_guard`."""
        ino = self._aliases.pop(key, None)
        if ino is None:
            return
        others = self._aliases_of[ino]
        others.discard(key)
        if not others:
            del self._aliases_of[ino]

    # -- internals

    def _inode(self, ino: int) -> Node:
        node = self._nodes.get(ino) or self.node_if_any(ino)
        if node is None:
            raise os_error(errno.ESTALE)
        return node

    def _real_parent(self, place: EntryName) -> Node:
        if isinstance(place.parent, ViewPath):
            raise os_error(errno.ENOENT)
        return self._inode(place.parent)

    def _step(self, directory: Node, name: str) -> Node:
        if not directory.is_dir:
            raise os_error(errno.ENOTDIR)
        found = self._cached(directory.ino, name) or self.lookup(directory.ino, name)
        if found is None:
            raise os_error(errno.ENOENT)
        return found

    def _cached(self, parent: int, name: str) -> Node | None:
        entries = self._entries.get(parent)
        ino = None if entries is None else entries.get(name)
        return None if ino is None else self._nodes.get(ino)

    def require_current(self) -> None:
        """Notice all changes that other processes have committed so far.

        Raises `UnreachableError` while the server of the catalog is away.
        """
        if not self._watch.may_lag:
            return
        # Not `changed`: it reports a change to one thread, which may still be comparing versions.
        number = self._watch.number_now()
        if number == self._current_at:
            return
        self._may_be_stale = True
        if self._check_current():
            self._current_at = number
        else:
            self._outside_changes += 1
            self._forget()  # a change by this mount has the lock, and may wait for other hosts

    def _check_current(self) -> bool:
        """Clear the cache if another process changed the tree.

        Return False if that cannot be checked without waiting.
        """
        now = time.monotonic()
        is_due = not self._watch.sees_all and now - self._last_compare > _COMPARE_SECONDS
        if self._watch.changed() or is_due:
            self._may_be_stale = True
        if not self._may_be_stale:
            self._last_check = now
            return True
        if not self._lock.acquire(blocking=False):
            return False  # the holder of the lock compares, or the next call here
        try:
            self._may_be_stale = False
            self._last_check = self._last_compare = now
            with self._context.catalog.reading() as seen:
                version = seen.tree.version()
            if version != self._version:
                self._outside_changes += 1
                self._clear(version)
        except BaseException:
            self._may_be_stale = True
            raise
        finally:
            self._lock.release()
        return True

    @contextmanager
    def _may_cache(self, serial: int) -> Iterator[bool]:
        """Yield whether a value read since `serial` may be cached.

        It may not if it is stale, or while a change is in progress: the change may wait for another
        process, and lookups must not wait for that.
        """
        may = self._lock.acquire(blocking=False)
        try:
            yield may and serial == self._serial
        finally:
            if may:
                self._lock.release()

    def _cache(self, serial: int, node: Node, name: tuple[int, str] | None = None) -> None:
        with self._may_cache(serial) as may:
            if not may:
                return
            if len(self._nodes) >= _MAX_CACHED:
                self._clear(self._version)
            self._nodes[node.ino] = node
            if name is not None:
                self._entries.setdefault(name[0], {})[name[1]] = node.ino

    def _apply(self, change: TreeTransaction, fresh: dict[int, Node], version: int) -> None:
        if len(self._nodes) >= _MAX_CACHED:
            self._clear(version)
        self._serial += 1
        self._version = version
        self._nodes.update(fresh)
        for ino, changed in change.xattrs.items():
            known = self._xattrs.get(ino)
            if known is not None:  # copied: callers may still read the old dict
                self._xattrs[ino] = now = known.copy()
                for attribute, value in changed.items():
                    if value is None:
                        now.pop(attribute, None)
                    else:
                        now[attribute] = value
        for ino in change.touched:
            if ino not in fresh:
                self._nodes.pop(ino, None)
                self._xattrs.pop(ino, None)
                self._entries.pop(ino, None)
                self._complete.discard(ino)
        for parent, name, target in change.names:
            if target is not None:
                self._entries.setdefault(parent, {})[name] = target
                self._expired.pop((parent, name), None)
            elif parent in self._entries:
                self._entries[parent].pop(name, None)
        for ino in change.new:
            self._xattrs[ino] = {}
            if ino in fresh and fresh[ino].is_dir:
                self._entries.setdefault(ino, {})
                self._complete.add(ino)

    def _clear(self, version: int) -> None:
        self._version = version
        self._forget()

    def _forget(self) -> None:
        """Empty the cache. Without the lock only while another thread has it, so nothing is added.

        The change of that thread adds what it has read after its begin, which is as new.
        """
        self._serial += 1
        self._complete.clear()
        self._entries.clear()
        self._nodes.clear()
        self._xattrs.clear()


def require_short(name: str) -> None:
    """Raise `OSError` ENAMETOOLONG for a name that is too long."""
    if len(name) > NAME_BYTES // 4 and len(os.fsencode(name)) > NAME_BYTES:
        raise os_error(errno.ENAMETOOLONG)
