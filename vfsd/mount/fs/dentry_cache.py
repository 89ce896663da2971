"""The tree, remembered: nodes and names, so that most questions need no SQL.

What this process changes keeps the memory right.  What others change is noticed by the tree's
version.  It is compared before anything is changed, and whenever the catalog says that somebody
else has changed something; that is asked before anything is said not to exist, and otherwise every
now and then.
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
from vfsd.mount.fs.syscalls import failure
from vfsd.storage.context import StoreContext

_ASK_SECONDS = 0.05
_COMPARE_SECONDS = 1.0
_REMEMBERED = 200_000
_SPENT = 10_000
_MISSES, _FEW_NAMES = 4, 500
"""After so many names that were not remembered a directory is read, if it has no more than that."""


class NamePosition(NamedTuple):
    """Where a name stands, whether or not it leads anywhere."""

    parent: Node
    name: str
    above: tuple[int, ...]  #: inode numbers of the directories down to `parent`


@dataclass(frozen=True, slots=True)
class ForgottenFile:
    """A file that was forgotten, with what may go besides."""

    node: Node  #: as it was last
    keys: frozenset[str]  #: of the objects of its video


class TreeTransaction:
    """One transaction, with a note of what the memory has to learn when it is committed."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.touched: set[int] = set()
        self.names: list[tuple[int, str, int | None]] = []
        self.new: list[int] = []
        self.xattrs: dict[int, dict[bytes, bytes | None]] = {}  # None: it goes

    @property
    def tree(self) -> Tree:
        return self.transaction.tree

    def node_at(self, place: NamePosition) -> Node:
        """What a name leads to.  Raises `OSError`: ENOENT."""
        node = self.tree.lookup(place.parent.ino, place.name)
        if node is None:
            raise failure(errno.ENOENT)
        return node

    def touch(self, *inos: int) -> None:
        """These nodes, or their attributes, change, come or go."""
        self.touched.update(inos)

    def delete(self, node: Node) -> ForgottenFile:
        """Forget a file without names, and its video."""
        keys = self.objects_of(node)
        self.tree.delete(node.ino)
        self.touched.add(node.ino)
        return ForgottenFile(node, keys)

    def objects_of(self, node: Node) -> frozenset[str]:
        """The keys of all that is stored of a file, tiles and renditions included."""
        if node.state is not FileState.VIDEO:
            return frozenset()
        return frozenset(self.transaction.objects.of_file(node.ino))

    def set_xattr(self, ino: int, name: bytes, value: bytes) -> None:
        """An extended attribute comes, or gets another value."""
        self.tree.set_xattr(ino, name, value)
        self.touched.add(ino)
        self.xattrs.setdefault(ino, {})[name] = value

    def remove_xattr(self, ino: int, name: bytes) -> bool:
        """An extended attribute goes; whether there was one."""
        if not self.tree.remove_xattr(ino, name):
            return False
        self.touched.add(ino)
        self.xattrs.setdefault(ino, {})[name] = None
        return True

    def enter(self, parent: int, name: str, ino: int) -> None:
        """A name comes, or leads elsewhere now."""
        self.names.append((parent, name, ino))
        self.touched.update((parent, ino))

    def leave(self, parent: int, name: str) -> None:
        """A name goes."""
        self.names.append((parent, name, None))
        self.touched.add(parent)


class DentryCache:
    """Inodes and the names that lead to them.  Safe to use from many threads.

    Questions whose answer is remembered take no lock; changes take turns.
    """

    def __init__(self, parts: StoreContext) -> None:
        self._parts = parts
        self._watch = parts.catalog.watch()
        self._turn = threading.RLock()
        self._nodes: dict[int, Node] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._complete: set[int] = set()  # directories of which every entry is remembered
        self._xattrs: dict[int, dict[bytes, bytes]] = {}
        self._aliases: dict[tuple[int, str], int] = {}
        self._aliases_of: dict[int, set[tuple[int, str]]] = {}
        self._alias_guard = threading.Lock()
        self._misses: dict[int, int] = {}  # by directory: names that were not remembered
        self._spent: OrderedDict[tuple[int, str], int] = OrderedDict()  # aliases, some time ago
        self._version = -1
        self._serial = 0  # counts what makes an answer that is still being fetched stale
        self._suspect = True
        self._asked = 0.0
        self._compared = 0.0

    def close(self) -> None:
        self._watch.close()

    # -- looking

    def node(self, ino: int) -> Node:
        """Raises `NotFoundError`."""
        found = self._nodes.get(ino)
        if found is not None:
            return found
        serial = self._serial
        with self._parts.catalog.reading() as seen:
            found = seen.tree.node(ino)
        self._remember(serial, found)
        return found

    def node_if_any(self, ino: int) -> Node | None:
        try:
            return self.node(ino)
        except NotFoundError:
            return None

    def reread(self, ino: int) -> Node | None:
        """The node as the catalog has it now, whatever is remembered."""
        serial = self._serial
        with self._parts.catalog.reading() as seen:
            found = seen.tree.nodes([ino]).get(ino)
        if found is not None:
            self._remember(serial, found)
        else:
            self._suspect, self._asked = True, 0.0  # others have taken it away
            self._nodes.pop(ino, None)  # whoever has the turn may keep us from asking
        return found

    def resolve(self, path: str) -> Node:
        """The node at an absolute path.  Raises `OSError`: ENOENT, ENOTDIR, ENAMETOOLONG."""
        if time.monotonic() - self._asked > _ASK_SECONDS:
            self._is_current()
        node = self._nodes.get(ROOT) or self.node(ROOT)
        for name in path.split("/"):
            if name:
                node = self._step(node, name)
        return node

    def state(self) -> int:
        """Another number whenever anything that is remembered has changed, by whomever.

        What others do is looked for as often as in `resolve`.
        """
        if time.monotonic() - self._asked > _ASK_SECONDS:
            self._is_current()
        return self._serial

    def place(self, path: str) -> NamePosition:
        """Raises `OSError` when the directory does not exist; EBUSY for the root, which has none.

        The name is not looked up.
        """
        if time.monotonic() - self._asked > _ASK_SECONDS:
            self._is_current()
        *folders, name = [part for part in path.split("/") if part] or [""]
        if not name:
            raise failure(errno.EBUSY)
        node = self.node(ROOT)
        above = [ROOT]
        for folder in folders:
            node = self._step(node, folder)
            above.append(node.ino)
        if not node.is_dir:
            raise failure(errno.ENOTDIR)
        require_short(name)
        return NamePosition(node, name, tuple(above))

    def lookup(self, parent: int, name: str) -> Node | None:
        """What a name in a directory leads to.  Raises `OSError` ESTALE for a spent alias."""
        found = self._remembered(parent, name)
        if found is not None:
            return found
        if self._aliases and (alias := self._aliases.get((parent, name))) is not None:
            return self.node_if_any(alias)
        if (parent, name) in self._spent:
            raise failure(errno.ESTALE)
        require_short(name)
        current, serial = self._is_current(), self._serial
        if current and parent in self._complete:
            ino = self._entries.get(parent, {}).get(name)
            if ino is not None:
                return self.node_if_any(ino)
            if serial == self._serial:  # otherwise it may have been forgotten meanwhile
                return None
        if self._reads_all_of(parent) and (found := self._remembered(parent, name)) is not None:
            return found
        serial = self._serial
        with self._parts.catalog.reading() as seen:
            found = seen.tree.lookup(parent, name)
        if found is not None:
            self._remember(serial, found, (parent, name))
        return found

    def _reads_all_of(self, parent: int) -> bool:
        """Whether a directory of which several names were looked up was read as a whole just now.

        Who looks at many files one by one, after a start for instance, waits once.
        """
        misses = self._misses.get(parent, 0) + 1
        self._misses[parent] = misses
        if len(self._misses) > _SPENT:
            self._misses.clear()
        if misses % _MISSES:
            return False
        with self._parts.catalog.reading() as seen:
            if seen.tree.has_more_children(parent, _FEW_NAMES):
                return False
        self.children(parent)
        return True

    def children(self, parent: int) -> list[tuple[str, Node]]:
        """The entries of a directory as they are now, in the order of their names' bytes."""
        current, serial = self._is_current(), self._serial
        if current and parent in self._complete:
            entries = self._entries.get(parent, {}).copy()
            nodes = [(name, self._nodes.get(ino)) for name, ino in entries.items()]
            known = [(name, node) for name, node in nodes if node is not None]
            if len(known) == len(nodes) and serial == self._serial:
                return sorted(known, key=lambda entry: os.fsencode(entry[0]))
        serial = self._serial
        with self._parts.catalog.reading() as seen:
            found = seen.tree.children(parent)
            with_xattrs = seen.tree.children_with_xattrs(parent)
        with self._remembering(serial) as may:
            if may and len(self._nodes) + len(found) < _REMEMBERED:
                self._nodes.update((node.ino, node) for _, node in found)
                self._entries[parent] = {name: node.ino for name, node in found}
                self._complete.add(parent)
                for _, node in found:
                    if node.ino not in with_xattrs:
                        self._xattrs[node.ino] = {}
        return found

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        """The attributes that are stored for a node; not to be changed by the caller."""
        found = self._xattrs.get(ino)
        if found is None:
            serial = self._serial
            with self._parts.catalog.reading() as seen:
                found = seen.tree.xattrs(ino)
            with self._remembering(serial) as may:
                if may:
                    self._xattrs[ino] = found
        return found

    def told(self, ino: int) -> str:
        """What a log calls a node: its paths, or its number when it has none; never fails."""
        try:
            with self._parts.catalog.reading() as seen:
                paths = seen.tree.paths_of(ino)
        except VfsdError:
            paths = []
        return " or ".join(map(repr, paths)) or f"inode {ino}"

    # -- changing

    @contextmanager
    def changing(self, seconds: float | None = None) -> Iterator[TreeTransaction]:
        """One transaction; the cache is updated when it has been committed.

        Raises `ReadOnlyError`, `NoSpaceError`, and `BusyError` where other processes lock the
        catalog for longer than `seconds` (None: `BUSY_SECONDS`).  Must not be nested.
        """
        seconds = BUSY_SECONDS if seconds is None else seconds
        with self._waiting_turn(seconds) as patience:
            with self._parts.catalog.writing(patience) as transaction:
                version = transaction.tree.version()
                if version != self._version:
                    self._forget(version)
                change = TreeTransaction(transaction)
                yield change
                fresh = transaction.tree.nodes(change.touched)
                version = transaction.tree.version()
            self._learn(change, fresh, version)
            # Our own commit is no news.  Should another process have committed between that and
            # this line, it is noticed when the version is next compared.
            self._watch.changed()

    @contextmanager
    def _waiting_turn(self, seconds: float) -> Iterator[float]:
        """How many seconds are left to wait for other processes: all where the turn came at once.

        Raises `BusyError` where those before, who wait as well, have taken all of them.
        """
        began = time.monotonic()
        if not self._turn.acquire(timeout=seconds):
            raise BusyError(f"others have waited for the catalog for {seconds:.0f} seconds")
        try:
            waited = time.monotonic() - began
            yield seconds if waited < 1 else max(1.0, seconds - waited)
        finally:
            self._turn.release()

    def standing_still(self) -> AbstractContextManager[object]:
        """While this is held nothing changes."""
        return self._turn

    def set_alias(self, parent: int, name: str, ino: int) -> None:
        """Let a path lead to a node that has lost its name; no listing shows it."""
        with self._alias_guard:
            self._drop_alias((parent, name))
            self._aliases[parent, name] = ino
            self._aliases_of.setdefault(ino, set()).add((parent, name))
            self._spent.pop((parent, name), None)

    def keep_alias(self, path: str, ino: int) -> None:
        """Of a file that was just opened by it; who has closed it meanwhile may have spent it."""
        with suppress(OSError):  # there is no such directory any more
            place = self.place(path)
            key = (place.parent.ino, place.name)
            if self._spent.get(key) == ino:
                self.set_alias(*key, ino)

    def alias(self, path: str) -> int | None:
        """The file that a path leads to, or has led to, as an alias."""
        if not self._aliases and not self._spent:
            return None
        place = self.place(path)
        key = (place.parent.ino, place.name)
        ino = self._aliases.get(key)
        if ino is None and self._remembered(*key) is None:
            ino = self._spent.get(key)
        return ino

    def drop_aliases(self, ino: int) -> None:
        """They lead nowhere now, and say ESTALE.

        That makes a kernel which still holds the file by such a path look for its name again.
        """
        with self._alias_guard:
            for key in tuple(self._aliases_of.get(ino, ())):
                self._drop_alias(key)
                self._spent[key] = ino
                if len(self._spent) > _SPENT:
                    self._spent.popitem(last=False)

    def _drop_alias(self, key: tuple[int, str]) -> None:
        """If it is one; for who has the guard."""
        ino = self._aliases.pop(key, None)
        if ino is None:
            return
        others = self._aliases_of[ino]
        others.discard(key)
        if not others:
            del self._aliases_of[ino]

    # -- memory

    def _step(self, directory: Node, name: str) -> Node:
        if not directory.is_dir:
            raise failure(errno.ENOTDIR)
        found = self._remembered(directory.ino, name) or self.lookup(directory.ino, name)
        if found is None:
            raise failure(errno.ENOENT)
        return found

    def _remembered(self, parent: int, name: str) -> Node | None:
        entries = self._entries.get(parent)
        ino = None if entries is None else entries.get(name)
        return None if ino is None else self._nodes.get(ino)

    def _is_current(self) -> bool:
        """Forget what others have changed; False when that cannot be told without waiting."""
        now = time.monotonic()
        if self._watch.changed() or now - self._compared > _COMPARE_SECONDS:
            self._suspect = True
        if not self._suspect:
            self._asked = now
            return True
        if not self._turn.acquire(blocking=False):
            return False  # whoever has the turn compares, or the next who comes here does
        try:
            self._suspect = False
            self._asked = self._compared = now
            with self._parts.catalog.reading() as seen:
                version = seen.tree.version()
            if version != self._version:
                self._forget(version)
        except BaseException:
            self._suspect = True
            raise
        finally:
            self._turn.release()
        return True

    @contextmanager
    def _remembering(self, serial: int) -> Iterator[bool]:
        """Whether what was asked for at a time may be remembered.

        Not what is stale by now; nor while somebody changes something: he may be waiting for
        another process, for whom nobody waits who just looks.
        """
        may = self._turn.acquire(blocking=False)
        try:
            yield may and serial == self._serial
        finally:
            if may:
                self._turn.release()

    def _remember(self, serial: int, node: Node, name: tuple[int, str] | None = None) -> None:
        with self._remembering(serial) as may:
            if not may:
                return
            if len(self._nodes) >= _REMEMBERED:
                self._forget(self._version)
            self._nodes[node.ino] = node
            if name is not None:
                self._entries.setdefault(name[0], {})[name[1]] = node.ino

    def _learn(self, change: TreeTransaction, fresh: dict[int, Node], version: int) -> None:
        if len(self._nodes) >= _REMEMBERED:
            self._forget(version)
        self._serial += 1
        self._version = version
        self._nodes.update(fresh)
        for ino, changed in change.xattrs.items():
            known = self._xattrs.get(ino)
            if known is not None:  # whoever looks at the old ones goes on with them
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
                self._spent.pop((parent, name), None)
            elif parent in self._entries:
                self._entries[parent].pop(name, None)
        for ino in change.new:
            self._xattrs[ino] = {}
            if ino in fresh and fresh[ino].is_dir:
                self._entries.setdefault(ino, {})
                self._complete.add(ino)

    def _forget(self, version: int) -> None:
        self._serial += 1
        self._version = version
        self._complete.clear()
        self._entries.clear()
        self._nodes.clear()
        self._xattrs.clear()


def require_short(name: str) -> None:
    """Raises `OSError` ENAMETOOLONG for a name that no file can have."""
    if len(name) > NAME_BYTES // 4 and len(os.fsencode(name)) > NAME_BYTES:
        raise failure(errno.ENAMETOOLONG)
