"""The tree that the mount shows: inodes, names, link counts and extended attributes, within one
transaction. Permissions, open files and POSIX semantics belong to `vfsd.mount.fs`.
"""

from __future__ import annotations

import functools
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from reprlib import repr as shown
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.retention import require_no_hold
from vfsd.catalog.rows import PreparedStatement, reads_row
from vfsd.catalog.schema import (
    IS_ROOT,
    ROOT,
    entries,
    nodes,
    orphans,
    policies,
    small_files,
    videos,
    xattrs,
)
from vfsd.core.model import DirectoryEntry, FileState, Node
from vfsd.errors import ExistsError, NotFoundError, UsageError
from vfsd.validation import storable

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

_PARENT = PreparedStatement(
    sa.select(entries.c.parent).where(entries.c.ino == sa.bindparam("which"))
)


class TreeReader:
    """The tree, for reading."""

    def __init__(self, connection: Connection, home: str | None = None) -> None:
        """`home` is the home of this process, where the catalog may have several."""
        self._connection = connection
        self._home = home
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
        return node_from_row(self._row(ino))

    def nodes(self, inos: Iterable[int]) -> dict[int, Node]:
        """Return those of the nodes that exist."""
        wanted = list(inos)
        rows: Iterable[Sequence[Any]]
        if len(wanted) <= _MAX_SINGLE_LOOKUPS:
            rows = (row for ino in wanted for row in _NODE.rows(self._connection, {"ino": ino}))
        else:
            rows = self._connection.execute(_NODES, {"inos": wanted})
        return {node.ino: node for node in map(node_from_row, rows)}

    def lookup(self, parent: int, name: str) -> Node | None:
        """Return the node of `name` in the directory `parent`, or None."""
        rows = _LOOKUP.rows(self._connection, {"parent": parent, "name": os.fsencode(name)})
        return node_from_row(rows[0]) if rows else None

    def children(self, parent: int) -> list[tuple[str, Node]]:
        """Return the entries of a directory, sorted by the bytes of their names."""
        rows = _CHILDREN.rows(self._connection, {"parent": parent})
        return [(os.fsdecode(row[-1]), node_from_row(row[:-1])) for row in rows]

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

    def ancestors(self, ino: int) -> set[int]:
        """Return the inode numbers of a directory and of all directories above it."""
        found: set[int] = set()
        above: int | None = ino
        while above is not None and above not in found:  # a damaged tree may have cycles
            found.add(above)
            rows = _PARENT.rows(self._connection, {"which": above})
            above = int(rows[0][0]) if rows else None
        return found

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
        return (node_from_row(row) for row in self._connection.execute(sa.select(nodes)).all())

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

    def paths_of_stored(self, key: str) -> list[str]:
        """Return the paths of the files that are not videos and have the bytes of an object."""
        query = sa.select(nodes.c.ino).where(
            nodes.c.object_key == key, nodes.c.state == FileState.STORED.value
        )
        found = self._connection.execute(query).scalars().all()
        return [path for ino in found for path in self.paths_of(ino)]

    def files_in_state(self, state: FileState) -> list[Node]:
        """Return the files in that state, private ones of other homes as well."""
        rows = self._connection.execute(sa.select(nodes).where(nodes.c.state == state.value))
        return [node_from_row(row) for row in rows]

    def own_files_in_state(self, state: FileState) -> list[Node]:
        """Return the files in that state, without private files of other homes."""
        return [node for node in self.files_in_state(state) if not self.is_elsewhere(node)]

    def is_elsewhere(self, node: Node) -> bool:
        """Return whether the bytes of a file are in the private file of another home."""
        return node.home is not None and node.home != self._home

    def inodes_in_state(self, state: FileState) -> list[int]:
        """Return the numbers of inodes in that state, without reading their rows."""
        found = self._connection.execute(sa.select(nodes.c.ino).where(nodes.c.state == state.value))
        return list(found.scalars())

    def private_inodes(self) -> set[int]:
        """Return the inodes with private files, without those of other homes.

        Inodes with an invalid state are included, as they may have one.
        """
        state = nodes.c.state
        query = sa.select(nodes.c.ino).where(state.is_not(None), state.not_in(_PUBLISHED))
        if self._home is not None:
            query = query.where(sa.or_(nodes.c.home.is_(None), nodes.c.home == self._home))
        return set(self._connection.execute(query).scalars())

    def orphans(self, home: str | None = None) -> list[tuple[int, tuple[int, str] | None]]:
        """Return orphans, each with the (parent, name) that it is to get back, or None.

        With `home`, those that other homes have open are left out.
        """
        query = sa.select(orphans)
        if home is not None:
            query = query.where(sa.or_(orphans.c.home.is_(None), orphans.c.home == home))
        rows = self._connection.execute(query).all()
        return [
            (
                row.ino,
                None
                if row.former_parent is None
                else (row.former_parent, os.fsdecode(row.former_name)),
            )
            for row in rows
        ]

    def own_orphans(self) -> list[tuple[int, tuple[int, str] | None]]:
        """Return the `orphans` of the home of this process."""
        return self.orphans(self._home)

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        rows = _XATTRS.rows(self._connection, {"which": ino})
        return {row[0]: row[1] for row in rows}

    def small_file(self, ino: int) -> bytes:
        """Return the bytes of a stored file without an object; empty if it is gone."""
        query = sa.select(small_files.c.data).where(small_files.c.ino == ino)
        return bytes(self._connection.execute(query).scalar() or b"")

    def _row(self, ino: int) -> Sequence[Any]:
        rows = _NODE.rows(self._connection, {"ino": ino})
        if not rows:
            raise NotFoundError(f"inode {ino} does not exist")
        return rows[0]


@reads_row(nodes)
def node_from_row(row: Sequence[Any]) -> Node:
    """Convert a row of `nodes`: its columns are in the order of the fields of `Node`."""
    ino, mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, *others = row
    target, state, object_key, link_path, reason, generation, home = others
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
        home,
    )


_MODES = 0o777777
_STATES = {state.value: state for state in FileState}
_PRIVATE = (FileState.SPOOLED, FileState.PLAIN)
_PUBLISHED = (FileState.VIDEO.value, FileState.STORED.value)
assert tuple(nodes.c.keys()) == tuple(field.name for field in fields(Node))


_INCREMENT_VERSION = PreparedStatement(
    sa.update(nodes).where(IS_ROOT).values(generation=nodes.c.generation + sa.literal_column("1"))
)
_NEW_COLUMNS = (
    *("mode", "uid", "gid", "nlink", "size", "atime_ns", "mtime_ns", "ctime_ns"),
    *("rdev", "target", "state"),
)
_INSERT_NODE, _INSERT_NODE_OF_HOME = (
    PreparedStatement(
        sa.insert(nodes)
        .values({column: sa.bindparam(column) for column in columns})
        .returning(nodes.c.ino)
    )
    for columns in (_NEW_COLUMNS, (*_NEW_COLUMNS, "home"))
)
_DELETE_NODE = PreparedStatement(sa.delete(nodes).where(nodes.c.ino == sa.bindparam("which")))
_INSERT_ENTRY = PreparedStatement(
    sa.insert(entries).values(
        {column: sa.bindparam(column) for column in ("parent", "name", "ino")}
    )
)
_DELETE_ENTRY = PreparedStatement(
    sa.delete(entries).where(
        entries.c.parent == sa.bindparam("directory"), entries.c.name == sa.bindparam("entry")
    )
)
_TOUCH_DIRECTORY = PreparedStatement(
    sa.update(nodes)
    .where(nodes.c.ino == sa.bindparam("which"))
    .values(
        mtime_ns=sa.bindparam("now"),
        ctime_ns=sa.bindparam("now"),
        nlink=nodes.c.nlink + sa.bindparam("links"),
    )
)

_ONE_XATTR = (xattrs.c.ino == sa.bindparam("which"), xattrs.c.name == sa.bindparam("key"))
_UPDATE_XATTR = PreparedStatement(
    sa.update(xattrs).where(*_ONE_XATTR).values(value=sa.bindparam("new"))
)
_INSERT_XATTR = PreparedStatement(
    sa.insert(xattrs).values({column: sa.bindparam(column) for column in ("ino", "name", "value")})
)
_DELETE_XATTR = PreparedStatement(sa.delete(xattrs).where(*_ONE_XATTR))


@functools.lru_cache(maxsize=64)
def _update_node(columns: tuple[str, ...]) -> PreparedStatement:
    values: dict[str, Any] = {column: sa.bindparam(column) for column in columns}
    return PreparedStatement(
        sa.update(nodes).where(nodes.c.ino == sa.bindparam("which")).values(values)
    )


class Tree(TreeReader):
    """The tree, for reading and, in a write transaction, changing."""

    def __init__(self, connection: Connection, home: str | None = None) -> None:
        super().__init__(connection, home)
        self._counted = False

    def create(
        self,
        parent: int,
        name: str,
        mode: int,
        *,
        uid: int,
        gid: int,
        now_ns: int,
        rdev: int = 0,
        target: str | None = None,
        state: FileState | None = None,
    ) -> Node:
        """Create an inode with one name.

        Raises `ExistsError` if the name is taken.  Like all methods that set a name, raises as
        `require_name`.
        """
        if self.lookup(parent, name) is not None:
            raise ExistsError(f"{name!r} exists")
        node = self.create_nameless(
            mode, uid=uid, gid=gid, now_ns=now_ns, rdev=rdev, target=target, state=state
        )
        self._enter(parent, name, node)
        self._touch_directory(parent, now_ns, links=1 if node.is_dir else 0)
        return node

    def create_nameless(
        self,
        mode: int,
        *,
        uid: int,
        gid: int,
        now_ns: int,
        rdev: int = 0,
        target: str | None = None,
        state: FileState | None = None,
    ) -> Node:
        """Create an inode that counts one link (a directory two) but has no name yet."""
        encoded = None if target is None else os.fsencode(target)
        values: dict[str, Any] = {
            "mode": mode,
            "uid": uid,
            "gid": gid,
            "nlink": 2 if stat.S_ISDIR(mode) else 1,
            "size": 0 if encoded is None else len(encoded),
            "atime_ns": now_ns,
            "mtime_ns": now_ns,
            "ctime_ns": now_ns,
            "rdev": rdev,
            "target": encoded,
            "state": None if state is None else state.value,
        }
        self._count()
        home = self._home if state in _PRIVATE else None
        if home is None:
            ((ino,),) = _INSERT_NODE.rows(self._connection, values)
        else:
            ((ino,),) = _INSERT_NODE_OF_HOME.rows(self._connection, {**values, "home": home})
        return Node(
            ino=ino,
            mode=mode,
            uid=uid,
            gid=gid,
            nlink=values["nlink"],
            size=values["size"],
            atime_ns=now_ns,
            mtime_ns=now_ns,
            ctime_ns=now_ns,
            rdev=rdev,
            target=target,
            state=state,
            home=home,
        )

    def link(self, ino: int, parent: int, name: str, *, now_ns: int) -> Node:
        """Add a name to a file.  Raises `ExistsError`, `NotFoundError`."""
        node = self.node(ino)
        if self.lookup(parent, name) is not None:
            raise ExistsError(f"{name!r} exists")
        self._enter(parent, name, node)
        self._touch_directory(parent, now_ns)
        return self.update(ino, nlink=node.nlink + 1, ctime_ns=now_ns)

    def unlink(self, parent: int, name: str, *, now_ns: int) -> Node:
        """Remove a name; return the node afterwards.

        A node without names (``nlink == 0``) stays until `delete` or `orphan`.  Raises
        `NotFoundError`, and `HeldError` for the last name of a video under a hold.
        """
        node = self.lookup(parent, name)
        if node is None:
            raise NotFoundError(f"no such file or directory: {name!r}")
        if node.state is FileState.VIDEO and node.nlink == 1:
            require_no_hold(self._connection, node.ino)
        self._leave(parent, name)
        self._touch_directory(parent, now_ns, links=-1 if node.is_dir else 0)
        left = 0 if node.is_dir else node.nlink - 1
        return self.update(node.ino, nlink=left, ctime_ns=now_ns)

    def rename(
        self, parent: int, name: str, new_parent: int, new_name: str, *, now_ns: int
    ) -> Node | None:
        """Rename, replacing an existing target.

        Returns the replaced node as it is afterwards (see `unlink`), or None.  Raises
        `NotFoundError`, `HeldError`.
        """
        node = self.lookup(parent, name)
        if node is None:
            raise NotFoundError(f"no such file or directory: {name!r}")
        replaced = None
        if self.lookup(new_parent, new_name) is not None:
            replaced = self.unlink(new_parent, new_name, now_ns=now_ns)
        self._leave(parent, name)
        self._enter(new_parent, new_name, node)
        moved = 1 if node.is_dir and parent != new_parent else 0
        self._touch_directory(parent, now_ns, links=-moved)
        if new_parent != parent:
            self._touch_directory(new_parent, now_ns, links=moved)
        self.update(node.ino, ctime_ns=now_ns)
        return replaced

    def exchange(
        self, parent: int, name: str, other_parent: int, other_name: str, *, now_ns: int
    ) -> None:
        """Exchange two names.  Raises `NotFoundError`."""
        one, other = self.lookup(parent, name), self.lookup(other_parent, other_name)
        if one is None or other is None:
            raise NotFoundError(
                f"no such file or directory: {name if one is None else other_name!r}"
            )
        self._leave(parent, name)
        self._leave(other_parent, other_name)
        self._enter(parent, name, other)
        self._enter(other_parent, other_name, one)
        gain = int(other.is_dir) - int(one.is_dir) if parent != other_parent else 0
        self._touch_directory(parent, now_ns, links=gain)
        if other_parent != parent:
            self._touch_directory(other_parent, now_ns, links=-gain)
        self.update(one.ino, ctime_ns=now_ns)
        self.update(other.ino, ctime_ns=now_ns)

    def update(self, ino: int, **changes: Any) -> Node:
        """Change columns of a node, and return it; otherwise like `alter`."""
        self.alter(ino, **changes)
        return self.node(ino)

    def alter(self, ino: int, **changes: Any) -> None:
        """Change columns of a node; `state` takes a `FileState`.  Raises `NotFoundError`.

        A file that becomes private belongs to the home of this process.
        """
        state = changes.get("state")
        if isinstance(state, FileState):
            changes["state"] = state.value
            if self._home is not None:
                changes["home"] = self._home if state in _PRIVATE else None
        if isinstance(changes.get("link_path"), str):
            changes["link_path"] = os.fsencode(changes["link_path"])
        if isinstance(changes.get("reason"), str):
            changes["reason"] = storable(changes["reason"])
        statement = _update_node(tuple(sorted(changes)))
        if not self._change(statement, {"which": ino, **changes}):
            raise NotFoundError(f"inode {ino} does not exist")

    def substitute(self, ino: int, **changes: Any) -> Node:
        """Replace the inode of a file by a new one with the same columns, except `changes`.

        Names, attributes and the video move to the new inode, and the old one is deleted.  An open
        handle to it keeps a file without a name.  Raises `NotFoundError`.
        """
        before = dict(zip(nodes.c.keys(), self._row(ino), strict=True))
        values = {key: value for key, value in before.items() if key != "ino"} | changes
        self._count()
        result = self._connection.execute(sa.insert(nodes), values)
        assert result.inserted_primary_key is not None
        new = int(result.inserted_primary_key[0])
        for table in (entries, xattrs, videos, policies):
            self._connection.execute(sa.update(table).where(table.c.ino == ino).values(ino=new))
        self._change(_DELETE_NODE, {"which": ino})
        return self.node(new)

    def delete(self, ino: int) -> None:
        """Delete a node without names, with its attributes and its video."""
        self._change(_DELETE_NODE, {"which": ino})

    def delete_with_names(self, ino: int) -> None:
        """Delete a file with all of its names."""
        self._count()
        self._connection.execute(sa.delete(entries).where(entries.c.ino == ino))
        self.delete(ino)

    def drop_name(self, name: DirectoryEntry) -> None:
        """Remove an invalid name, without changing any link count."""
        self._change(_DELETE_ENTRY, {"directory": name.parent, "entry": name.name})

    def orphan(self, ino: int, *, now_ns: int, former: tuple[int, str] | None = None) -> None:
        """Keep a node without names for the handles that have it open.

        With `former`, it gets that name back when the store is next recovered, if the name is free.
        """
        self._count()
        self._connection.execute(
            sa.insert(orphans).values(
                ino=ino,
                former_parent=None if former is None else former[0],
                former_name=None if former is None else os.fsencode(former[1]),
                since_ns=now_ns,
                **({} if self._home is None else {"home": self._home}),
            )
        )

    def confirm_orphan(self, ino: int, parent: int, name: str) -> None:
        """Record that the orphan must not get that name back; does nothing for another
        former name.
        """
        self._count()
        self._connection.execute(
            sa.update(orphans)
            .where(
                orphans.c.ino == ino,
                orphans.c.former_parent == parent,
                orphans.c.former_name == os.fsencode(name),
            )
            .values(former_parent=None, former_name=None)
        )

    def adopt_orphan(self, ino: int, parent: int, name: str, *, now_ns: int) -> Node:
        """Give an orphan a name again.  Raises `ExistsError` if it is taken."""
        self._count()
        self._connection.execute(sa.delete(orphans).where(orphans.c.ino == ino))
        return self.link(ino, parent, name, now_ns=now_ns)

    def set_xattr(self, ino: int, name: bytes, value: bytes) -> None:
        there = {"which": ino, "key": name, "new": value}
        if not self._change(_UPDATE_XATTR, there):
            self._change(_INSERT_XATTR, {"ino": ino, "name": name, "value": value})

    def put_small_file(self, ino: int, data: bytes | None) -> None:
        """Set the bytes of a stored file without an object; None: it has none any more."""
        self._count()
        self._connection.execute(sa.delete(small_files).where(small_files.c.ino == ino))
        if data is not None:
            self._connection.execute(sa.insert(small_files).values(ino=ino, data=data))

    def remove_xattr(self, ino: int, name: bytes) -> bool:
        """Remove an attribute; return whether it existed."""
        return self._change(_DELETE_XATTR, {"which": ino, "key": name}) > 0

    def _change(self, statement: PreparedStatement, values: Mapping[str, Any]) -> int:
        """Run a statement that writes; return the number of rows."""
        self._count()
        return statement.execute(self._connection, values)

    def _count(self) -> None:
        """Increment the version of the tree, once per transaction, before its first change."""
        if not self._counted:
            _INCREMENT_VERSION.execute(self._connection, {})
            self._counted = True
            self._version = None if self._version is None else self._version + 1

    def _enter(self, parent: int, name: str, node: Node) -> None:
        require_name(name)
        self._change(_INSERT_ENTRY, {"parent": parent, "name": os.fsencode(name), "ino": node.ino})

    def _leave(self, parent: int, name: str) -> None:
        self._change(_DELETE_ENTRY, {"directory": parent, "entry": os.fsencode(name)})

    def _touch_directory(self, ino: int, now_ns: int, *, links: int = 0) -> None:
        self._change(_TOUCH_DIRECTORY, {"which": ino, "now": now_ns, "links": links})
