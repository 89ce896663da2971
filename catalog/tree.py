"""The tree that the mount shows: inodes and the names that lead to them.

Plain bookkeeping within one transaction: what exists, what it is called, how many names it has.
Permissions, open files and what POSIX says of them are `vfsd.fs`'s business.
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

from vfsd.catalog.originals import require_free
from vfsd.catalog.prepared import Prepared
from vfsd.catalog.rows import row_of
from vfsd.catalog.schema import entries, nodes, orphans, policies, videos, xattrs
from vfsd.errors import ExistsError, NotFoundError, UsageError
from vfsd.model import FileState, Name, Node

ROOT = 1
"""The inode number of the root directory."""

NAME_BYTES = 255
"""The longest name, as everywhere on Linux."""

_MANY = 16
"""So many nodes are asked for one by one; more with a statement that is made for their number."""

_IS_ROOT = nodes.c.ino == sa.literal_column(str(ROOT))
_NODE = Prepared(sa.select(nodes).where(nodes.c.ino == sa.bindparam("ino")))
_NODES = sa.select(nodes).where(nodes.c.ino.in_(sa.bindparam("inos", expanding=True)))
_VERSION = Prepared(sa.select(nodes.c.generation).where(_IS_ROOT))
_COUNT = Prepared(
    sa.update(nodes).where(_IS_ROOT).values(generation=nodes.c.generation + sa.literal_column("1"))
)
_LOOKUP = Prepared(
    sa.select(nodes)
    .join(entries, entries.c.ino == nodes.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"), entries.c.name == sa.bindparam("name"))
)
_CHILDREN = Prepared(
    sa.select(nodes, entries.c.name.label("entry"))
    .join(entries, entries.c.ino == nodes.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"))
    .order_by(entries.c.name)
)
_CHILDREN_WITH_XATTRS = Prepared(
    sa.select(xattrs.c.ino)
    .distinct()
    .join(entries, entries.c.ino == xattrs.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"))
)
_SOME_CHILDREN = Prepared(
    sa.select(entries.c.ino)
    .where(entries.c.parent == sa.bindparam("parent"))
    .offset(sa.bindparam("skipped"))
    .limit(sa.bindparam("most"))
)

_NEW_COLUMNS = (
    *("mode", "uid", "gid", "nlink", "size", "atime_ns", "mtime_ns", "ctime_ns"),
    *("rdev", "target", "state"),
)
_INSERT_NODE = Prepared(
    sa.insert(nodes)
    .values({column: sa.bindparam(column) for column in _NEW_COLUMNS})
    .returning(nodes.c.ino)
)
_DELETE_NODE = Prepared(sa.delete(nodes).where(nodes.c.ino == sa.bindparam("which")))
_INSERT_ENTRY = Prepared(
    sa.insert(entries).values(
        {column: sa.bindparam(column) for column in ("parent", "name", "ino")}
    )
)
_DELETE_ENTRY = Prepared(
    sa.delete(entries).where(
        entries.c.parent == sa.bindparam("directory"), entries.c.name == sa.bindparam("entry")
    )
)
_TOUCH_DIRECTORY = Prepared(
    sa.update(nodes)
    .where(nodes.c.ino == sa.bindparam("which"))
    .values(
        mtime_ns=sa.bindparam("now"),
        ctime_ns=sa.bindparam("now"),
        nlink=nodes.c.nlink + sa.bindparam("links"),
    )
)

_XATTRS = Prepared(
    sa.select(xattrs.c.name, xattrs.c.value)
    .where(xattrs.c.ino == sa.bindparam("which"))
    .order_by(xattrs.c.name)
)
_ONE_XATTR = (xattrs.c.ino == sa.bindparam("which"), xattrs.c.name == sa.bindparam("key"))
_UPDATE_XATTR = Prepared(sa.update(xattrs).where(*_ONE_XATTR).values(value=sa.bindparam("new")))
_INSERT_XATTR = Prepared(
    sa.insert(xattrs).values({column: sa.bindparam(column) for column in ("ino", "name", "value")})
)
_DELETE_XATTR = Prepared(sa.delete(xattrs).where(*_ONE_XATTR))


@functools.lru_cache(maxsize=64)
def _update_node(columns: tuple[str, ...]) -> Prepared:
    values: dict[str, Any] = {column: sa.bindparam(column) for column in columns}
    return Prepared(sa.update(nodes).where(nodes.c.ino == sa.bindparam("which")).values(values))


class Tree:
    """The tree as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._counted = False
        self._version: int | None = None

    # -- looking

    def version(self) -> int:
        """Counts the transactions that have changed the tree; what was read before is stale.

        It is the generation of the root directory.
        """
        if self._version is None:
            ((version,),) = _VERSION.rows(self._connection, {})
            self._version = int(version)
        return self._version

    def node(self, ino: int) -> Node:
        """Raises `NotFoundError`."""
        rows = _NODE.rows(self._connection, {"ino": ino})
        if not rows:
            raise NotFoundError(f"there is no inode {ino}")
        return _node(rows[0])

    def nodes(self, inos: Iterable[int]) -> dict[int, Node]:
        """Those of the nodes that exist."""
        wanted = list(inos)
        rows: Iterable[Sequence[Any]]
        if len(wanted) <= _MANY:
            rows = (row for ino in wanted for row in _NODE.rows(self._connection, {"ino": ino}))
        else:
            rows = self._connection.execute(_NODES, {"inos": wanted})
        return {node.ino: node for node in map(_node, rows)}

    def lookup(self, parent: int, name: str) -> Node | None:
        """What `name` in the directory `parent` leads to."""
        rows = _LOOKUP.rows(self._connection, {"parent": parent, "name": os.fsencode(name)})
        return _node(rows[0]) if rows else None

    def children(self, parent: int) -> list[tuple[str, Node]]:
        """The entries of a directory, in the order of their names' bytes."""
        rows = _CHILDREN.rows(self._connection, {"parent": parent})
        return [(os.fsdecode(row[-1]), _node(row[:-1])) for row in rows]

    def children_with_xattrs(self, parent: int) -> set[int]:
        """Which of a directory's entries have any extended attributes: inode numbers."""
        return {ino for (ino,) in _CHILDREN_WITH_XATTRS.rows(self._connection, {"parent": parent})}

    def has_more_children(self, parent: int, count: int) -> bool:
        """Whether a directory has more than `count` entries."""
        values = {"parent": parent, "skipped": count, "most": 1}
        return bool(_SOME_CHILDREN.rows(self._connection, values))

    def is_empty(self, parent: int) -> bool:
        return not self.has_more_children(parent, 0)

    def resolve(self, path: str) -> Node:
        """The node at `path`, counted from the root; no symbolic link is followed.

        Raises `NotFoundError`.
        """
        node = self.node(ROOT)
        for name in split(path):
            found = self.lookup(node.ino, name) if node.is_dir else None
            if found is None:
                raise not_there(path)
            node = found
        return node

    def paths_of(self, ino: int) -> list[str]:
        """Every path that leads to `ino`, sorted; none for an orphan."""
        paths = []
        # And the names below, upwards, and what these lead to: a directory may lie in itself where
        # something has gone wrong.
        waiting: list[tuple[int, list[bytes], frozenset[int]]] = [(ino, [], frozenset())]
        while waiting:  # not by recursion: trees may be deeper than Python's stack
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

    def walk(self, ino: int = ROOT, path: str = "") -> Iterator[tuple[str, Node]]:
        """Everything below a directory: (path from the root, node), parents before children.

        What a directory has below itself that lies above it, too, is named and not gone into.
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
        """Every inode, whether it can be reached or not."""
        return (_node(row) for row in self._connection.execute(sa.select(nodes)).all())

    def all_names(self) -> list[Name]:
        """Every name, whether it can be reached or not; by directory and bytes."""
        query = sa.select(entries.c.parent, entries.c.name, entries.c.ino)
        rows = self._connection.execute(query.order_by(entries.c.parent, entries.c.name))
        return [Name(*row) for row in rows]

    def has_hard_links(self) -> bool:
        """Whether anything but a directory has several names."""
        is_dir = nodes.c.mode.op("&")(stat.S_IFMT(0o777777)) == stat.S_IFDIR
        query = sa.select(nodes.c.ino).where(nodes.c.nlink > 1, ~is_dir).limit(1)
        return self._connection.execute(query).first() is not None

    def files_in_state(self, state: FileState) -> list[Node]:
        rows = self._connection.execute(sa.select(nodes).where(nodes.c.state == state.value))
        return [_node(row) for row in rows]

    def private_inodes(self) -> set[int]:
        """Inodes whose bytes are private files; also those of which the row says what makes no
        sense, since they may be."""
        state = nodes.c.state
        rows = self._connection.execute(
            sa.select(nodes.c.ino).where(state.is_not(None), state != FileState.VIDEO.value)
        )
        return set(rows.scalars())

    # -- changing

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
        """A new inode with one name.

        Raises `ExistsError` when the name is taken, and as `require_name`, like all that gives one.
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
        """A new inode that counts a link (a directory two) without having a name yet."""
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
        ((ino,),) = _INSERT_NODE.rows(self._connection, values)
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
        )

    def link(self, ino: int, parent: int, name: str, *, now_ns: int) -> Node:
        """One more name for a file.  Raises `ExistsError`, `NotFoundError`."""
        node = self.node(ino)
        if self.lookup(parent, name) is not None:
            raise ExistsError(f"{name!r} exists")
        self._enter(parent, name, node)
        self._touch_directory(parent, now_ns)
        return self.update(ino, nlink=node.nlink + 1, ctime_ns=now_ns)

    def unlink(self, parent: int, name: str, *, now_ns: int) -> Node:
        """Take a name away; returns what it led to, as it is afterwards.

        A node that is left without a name (``nlink == 0``) stays until `delete` or `orphan`.
        Raises `NotFoundError`, and `HeldError` for the last name of a video that has a hold.
        """
        node = self.lookup(parent, name)
        if node is None:
            raise NotFoundError(f"there is no {name!r}")
        if node.state is FileState.VIDEO and node.nlink == 1:
            require_free(self._connection, node.ino)
        self._leave(parent, name)
        self._touch_directory(parent, now_ns, links=-1 if node.is_dir else 0)
        left = 0 if node.is_dir else node.nlink - 1
        return self.update(node.ino, nlink=left, ctime_ns=now_ns)

    def rename(
        self, parent: int, name: str, new_parent: int, new_name: str, *, now_ns: int
    ) -> Node | None:
        """Move a name, over another if need be.

        Returns what the target led to, as it is afterwards (see `unlink`), if there was one.
        Raises `NotFoundError`, `HeldError`.
        """
        node = self.lookup(parent, name)
        if node is None:
            raise NotFoundError(f"there is no {name!r}")
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
        """Let two names change places.  Raises `NotFoundError`."""
        one, other = self.lookup(parent, name), self.lookup(other_parent, other_name)
        if one is None or other is None:
            raise NotFoundError(f"there is no {name if one is None else other_name!r}")
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
        """Change columns of a node, and look at it; else as `alter`."""
        self.alter(ino, **changes)
        return self.node(ino)

    def alter(self, ino: int, **changes: Any) -> None:
        """Change columns of a node; `state` takes a `FileState`.  Raises `NotFoundError`."""
        if isinstance(changes.get("state"), FileState):
            changes["state"] = changes["state"].value
        if isinstance(changes.get("link_path"), str):
            changes["link_path"] = os.fsencode(changes["link_path"])
        statement = _update_node(tuple(sorted(changes)))
        if not self._change(statement, {"which": ino, **changes}):
            raise NotFoundError(f"there is no inode {ino}")

    def substitute(self, ino: int, **changes: Any) -> Node:
        """Let a new inode have all that a file has, but for these columns; the old one goes.

        Names, attributes and the video are those of the new one then.  Whoever has the old one
        open is left with a file without a name.  Raises `NotFoundError`.
        """
        rows = _NODE.rows(self._connection, {"ino": ino})
        if not rows:
            raise NotFoundError(f"there is no inode {ino}")
        before = dict(zip(nodes.c.keys(), rows[0], strict=True))
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
        """Forget a node without names, and with it its attributes and its video."""
        self._change(_DELETE_NODE, {"which": ino})

    def drop_name(self, name: Name) -> None:
        """Take away a name that should not be there; whatever counts it is left as it is."""
        self._change(_DELETE_ENTRY, {"directory": name.parent, "entry": name.name})

    # -- files without a name

    def orphan(self, ino: int, *, now_ns: int, former: tuple[int, str] | None = None) -> None:
        """Keep a node without names for those that have it open.

        With `former` it gets that name back when the store is next recovered, if it is free.
        """
        self._count()
        self._connection.execute(
            sa.insert(orphans).values(
                ino=ino,
                former_parent=None if former is None else former[0],
                former_name=None if former is None else os.fsencode(former[1]),
                since_ns=now_ns,
            )
        )

    def settle_orphan(self, ino: int) -> None:
        """The orphan will not get its name back."""
        self._count()
        self._connection.execute(
            sa.update(orphans)
            .where(orphans.c.ino == ino)
            .values(former_parent=None, former_name=None)
        )

    def orphans(self) -> list[tuple[int, tuple[int, str] | None]]:
        """All orphans, each with the name that it is to get back, if any."""
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

    def adopt_orphan(self, ino: int, parent: int, name: str, *, now_ns: int) -> Node:
        """Give an orphan a name again.  Raises `ExistsError` when it is taken."""
        self._count()
        self._connection.execute(sa.delete(orphans).where(orphans.c.ino == ino))
        return self.link(ino, parent, name, now_ns=now_ns)

    # -- extended attributes

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        rows = _XATTRS.rows(self._connection, {"which": ino})
        return {row[0]: row[1] for row in rows}

    def set_xattr(self, ino: int, name: bytes, value: bytes) -> None:
        there = {"which": ino, "key": name, "new": value}
        if not self._change(_UPDATE_XATTR, there):
            self._change(_INSERT_XATTR, {"ino": ino, "name": name, "value": value})

    def remove_xattr(self, ino: int, name: bytes) -> bool:
        """Whether there was one."""
        return self._change(_DELETE_XATTR, {"which": ino, "key": name}) > 0

    # -- bookkeeping

    def _change(self, statement: Prepared, values: Mapping[str, Any]) -> int:
        """Run what writes; how many rows that were."""
        self._count()
        return statement.change(self._connection, values)

    def _count(self) -> None:
        """To be called before anything is written; the first time in a transaction counts it."""
        if not self._counted:
            _COUNT.change(self._connection, {})
            self._counted = True
            self._version = None if self._version is None else self._version + 1

    def _enter(self, parent: int, name: str, node: Node) -> None:
        require_name(name)
        self._change(_INSERT_ENTRY, {"parent": parent, "name": os.fsencode(name), "ino": node.ino})

    def _leave(self, parent: int, name: str) -> None:
        self._change(_DELETE_ENTRY, {"directory": parent, "entry": os.fsencode(name)})

    def _touch_directory(self, ino: int, now_ns: int, *, links: int = 0) -> None:
        self._change(_TOUCH_DIRECTORY, {"which": ino, "now": now_ns, "links": links})


def not_there(path: str) -> NotFoundError:
    """What to raise where a path leads to nothing."""
    hint = "`vfsd ls -R` lists what there is"
    if set("*?[") & set(path):
        hint = f"this command takes no patterns; `vfsd find {shlex.quote(path)}` does"
    return NotFoundError(f"there is no {path!r} in the store", hint=hint)


def split(path: str) -> list[str]:
    """The components of a path from the root: ``"/a//b/"`` is ``["a", "b"]``.

    Raises `UsageError` for what is no text, or none that can be a name in bytes.
    """
    if not isinstance(path, str):
        raise UsageError(f"{shown(path)} is no name", hint="names in a store are text")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"{path!r} is no name: it cannot be written as UTF-8") from None
    return [name for name in path.split("/") if name]


def require_name(name: str) -> None:
    """Raises `UsageError` where a file or directory cannot be called so: no mount could show it.

    `name` is one component of a path.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} is no name for a file")
    if len(os.fsencode(name)) > NAME_BYTES:
        raise UsageError(
            f"{shown(name)} is no name for a file: it has {len(os.fsencode(name))} bytes",
            hint=f"names have {NAME_BYTES} at most, in UTF-8; paths may be longer",
        )


@row_of(nodes)
def _node(row: Sequence[Any]) -> Node:
    """Of a row of `nodes`, in the order of its columns, which is that of `Node`."""
    ino, mode, uid, gid, nlink, size, atime_ns, mtime_ns, ctime_ns, rdev, *others = row
    target, state, object_key, link_path, reason, generation = others
    if not (isinstance(mode, int) and 0 <= mode <= _MODES):
        raise ValueError(f"{mode!r} is no mode of a file")
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
