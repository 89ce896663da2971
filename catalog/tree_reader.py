"""Reads the tree that the mount shows: inodes, and the paths that lead to them.

`vfsd.catalog.tree` adds the changes.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from reprlib import repr as shown
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.row_mapping import reads_row
from vfsd.catalog.schema import IS_ROOT, ROOT, entries, nodes, orphans, xattrs
from vfsd.catalog.statements import PreparedStatement
from vfsd.core.model import DirectoryEntry, FileState, Node
from vfsd.errors import NotFoundError, UsageError

NAME_BYTES = 255
"""Maximum length of a name, as for most Linux file systems."""


def not_found_error(path: str) -> NotFoundError:
    """Return the error for a path that does not exist."""
    hint = "`vfsd ls -R` lists all files"
    if set("*?[") & set(path):
        hint = f"this command does not accept patterns; use `vfsd find {shlex.quote(path)}`"
    return NotFoundError(f"{path!r} is not in the store", hint=hint)


def split_path(path: str) -> list[str]:
    """Return the components of a path from the root: ``"/a//b/"`` is ``["a", "b"]``.

    Raises `UsageError` for anything but text that can be encoded as a file name.
    """
    if not isinstance(path, str):
        raise UsageError(f"a name in a store must be a str, got {shown(path)}")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"a name must be valid UTF-8, got {path!r}") from None
    return [name for name in path.split("/") if name]


def require_name(name: str) -> None:
    """Raises `UsageError` for a component of a path that cannot be the name of a file."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UsageError(
            f"a file name must not be empty, . or .., or contain / or NUL, got {name!r}"
        )
    if len(os.fsencode(name)) > NAME_BYTES:
        raise UsageError(
            f"a file name must be at most {NAME_BYTES} bytes, got {len(os.fsencode(name))}: "
            f"{shown(name)}",
            hint="the limit applies to one name in UTF-8; paths may be longer",
        )


_MAX_SINGLE_LOOKUPS = 16
"""Up to this many nodes are looked up one by one, more of them with one statement."""

_NODE = PreparedStatement(sa.select(nodes).where(nodes.c.ino == sa.bindparam("ino")))
_NODES = sa.select(nodes).where(nodes.c.ino.in_(sa.bindparam("inos", expanding=True)))
_VERSION = PreparedStatement(sa.select(nodes.c.generation).where(IS_ROOT))
_LOOKUP = PreparedStatement(
    sa.select(nodes)
    .join(entries, entries.c.ino == nodes.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"), entries.c.name == sa.bindparam("name"))
)
_CHILDREN = PreparedStatement(
    sa.select(nodes, entries.c.name.label("entry"))
    .join(entries, entries.c.ino == nodes.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"))
    .order_by(entries.c.name)
)
_CHILDREN_WITH_XATTRS = PreparedStatement(
    sa.select(xattrs.c.ino)
    .distinct()
    .join(entries, entries.c.ino == xattrs.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"))
)
_SOME_CHILDREN = PreparedStatement(
    sa.select(entries.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"))
    .offset(sa.bindparam("skipped"))
    .limit(sa.bindparam("most"))
)
_XATTRS = PreparedStatement(
    sa.select(xattrs.c.name, xattrs.c.value)
    .where(xattrs.c.ino == sa.bindparam("which"))
    .order_by(xattrs.c.name)
)


class TreeReader:
    """The tree, for reading."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._version: int | None = None

    def version(self) -> int:
        """Return the number of transactions that have changed the tree, to detect stale caches.

        It is stored as the generation of the root directory.
        """
        if self._version is None:
            ((version,),) = _VERSION.rows(self._connection, {})
            self._version = int(version)
        return self._version

    def node(self, ino: int) -> Node:
        """Return a node.  Raises `NotFoundError`."""
        return _node_from_row(self._row(ino))

    def nodes(self, inos: Iterable[int]) -> dict[int, Node]:
        """Return those of the nodes that exist."""
        wanted = list(inos)
        rows: Iterable[Sequence[Any]]
        if len(wanted) <= _MAX_SINGLE_LOOKUPS:
            rows = (row for ino in wanted for row in _NODE.rows(self._connection, {"ino": ino}))
        else:
            rows = self._connection.execute(_NODES, {"inos": wanted})
        return {node.ino: node for node in map(_node_from_row, rows)}

    def lookup(self, parent: int, name: str) -> Node | None:
        """Return the node of `name` in the directory `parent`, or None."""
        rows = _LOOKUP.rows(self._connection, {"parent": parent, "name": os.fsencode(name)})
        return _node_from_row(rows[0]) if rows else None

    def children(self, parent: int) -> list[tuple[str, Node]]:
        """Return the entries of a directory, sorted by the bytes of their names."""
        rows = _CHILDREN.rows(self._connection, {"parent": parent})
        return [(os.fsdecode(row[-1]), _node_from_row(row[:-1])) for row in rows]

    def children_with_xattrs(self, parent: int) -> set[int]:
        """Return the inodes of a directory's entries that have extended attributes."""
        return {ino for (ino,) in _CHILDREN_WITH_XATTRS.rows(self._connection, {"parent": parent})}

    def has_more_children(self, parent: int, count: int) -> bool:
        """Return whether a directory has more than `count` entries."""
        values = {"parent": parent, "skipped": count, "most": 1}
        return bool(_SOME_CHILDREN.rows(self._connection, values))

    def is_empty(self, parent: int) -> bool:
        return not self.has_more_children(parent, 0)

    def resolve(self, path: str) -> Node:
        """Return the node at `path`, relative to the root, without following symbolic links.

        Raises `NotFoundError`.
        """
        node = self.node(ROOT)
        for name in split_path(path):
            found = self.lookup(node.ino, name) if node.is_dir else None
            if found is None:
                raise not_found_error(path)
            node = found
        return node

    def paths_of(self, ino: int) -> list[str]:
        """Return every path that leads to `ino`, sorted; none for an orphan."""
        paths = []
        # Each item: an inode, the names below it in upward order, and the inodes below it.  The
        # latter detect cycles of a damaged tree.
        waiting: list[tuple[int, list[bytes], frozenset[int]]] = [(ino, [], frozenset())]
        while waiting:  # not recursive: trees may be deeper than Python's stack
            above, names, passed = waiting.pop()
            if above == ROOT:
                paths.append(os.fsdecode(b"/".join(reversed(names))))
                continue
            if above in passed:
                continue
            rows = self._connection.execute(
                sa.select(entries.c.parent, entries.c.name).where(entries.c.ino == above)
            ).all()
            waiting += [(parent, [*names, name], passed | {above}) for parent, name in rows]
        return sorted(paths)

    def display_path(self, ino: int) -> str:
        """Return the first path of a node, or its number if it has none; for messages."""
        return next(iter(self.paths_of(ino)), f"inode {ino}")

    def walk(self, ino: int = ROOT, path: str = "") -> Iterator[tuple[str, Node]]:
        """Yield everything below a directory as (path from the root, node), parents before
        children.

        A directory that contains itself, in a damaged tree, is yielded but not entered.
        """
        waiting = [(ino, path, iter(self.children(ino)))]
        within = {ino}
        while waiting:
            at, above, children = waiting[-1]
            for name, node in children:
                full = f"{above}/{name}" if above else name
                yield full, node
                if node.is_dir and node.ino not in within:
                    waiting.append((node.ino, full, iter(self.children(node.ino))))
                    within.add(node.ino)
                    break
            else:
                waiting.pop()
                within.discard(at)

    def all_nodes(self) -> Iterator[Node]:
        """Yield every inode, reachable or not."""
        return (_node_from_row(row) for row in self._connection.execute(sa.select(nodes)).all())

    def all_names(self) -> list[DirectoryEntry]:
        """Return every name, reachable or not, by directory and bytes."""
        query = sa.select(entries.c.parent, entries.c.name, entries.c.ino)
        rows = self._connection.execute(query.order_by(entries.c.parent, entries.c.name))
        return [DirectoryEntry(*row) for row in rows]

    def has_hard_links(self) -> bool:
        """Return whether any file other than a directory has several names."""
        is_dir = nodes.c.mode.op("&")(stat.S_IFMT(0o777777)) == stat.S_IFDIR
        query = sa.select(nodes.c.ino).where(nodes.c.nlink > 1, ~is_dir).limit(1)
        return self._connection.execute(query).first() is not None

    def files_in_state(self, state: FileState) -> list[Node]:
        rows = self._connection.execute(sa.select(nodes).where(nodes.c.state == state.value))
        return [_node_from_row(row) for row in rows]

    def inodes_in_state(self, state: FileState) -> list[int]:
        """Return the numbers of inodes in that state, without reading their rows."""
        found = self._connection.execute(sa.select(nodes.c.ino).where(nodes.c.state == state.value))
        return list(found.scalars())

    def private_inodes(self) -> set[int]:
        """Return the inodes with private files.

        Inodes with an invalid state are included, as they may have one.
        """
        state = nodes.c.state
        rows = self._connection.execute(
            sa.select(nodes.c.ino).where(state.is_not(None), state != FileState.VIDEO.value)
        )
        return set(rows.scalars())

    def orphans(self) -> list[tuple[int, tuple[int, str] | None]]:
        """Return all orphans, each with the (parent, name) that it is to get back, or None."""
        rows = self._connection.execute(sa.select(orphans)).all()
        return [
            (
                row.ino,
                None
                if row.former_parent is None
                else (row.former_parent, os.fsdecode(row.former_name)),
            )
            for row in rows
        ]

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        rows = _XATTRS.rows(self._connection, {"which": ino})
        return {row[0]: row[1] for row in rows}

    def _row(self, ino: int) -> Sequence[Any]:
        rows = _NODE.rows(self._connection, {"ino": ino})
        if not rows:
            raise NotFoundError(f"inode {ino} does not exist")
        return rows[0]


@reads_row(nodes)
def _node_from_row(row: Sequence[Any]) -> Node:
    """Convert a row of `nodes`: its columns are in the order of the fields of `Node`."""
    ino, mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, *others = row
    target, state, object_key, link_path, reason, generation = others
    if not (isinstance(mode, int) and 0 <= mode <= _MODES):
        raise ValueError(f"mode must be a valid st_mode, got {mode!r}")
    return Node(
        ino,
        mode,
        uid,
        gid,
        nlink,
        size,
        atime_ns,
        mtime_ns,
        ctime_ns,
        rdev,
        None if target is None else os.fsdecode(target),
        None if state is None else _STATES[state],
        object_key,
        None if link_path is None else os.fsdecode(link_path),
        reason,
        generation,
    )


_MODES = 0o777777
_STATES = {state.value: state for state in FileState}
assert tuple(nodes.c.keys()) == tuple(field.name for field in fields(Node))
