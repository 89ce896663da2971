"""Repairs the names in a catalog so that they form a tree again.

`plan_tree_repair` compares names and inodes without a catalog.  `repair_tree` applies the plan:
files without a valid name get one in the directory `LOST_AND_FOUND`.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import DirectoryEntry, Node
from vfsd.write.crash_recovery import numbered_names, unused_name

LOST_AND_FOUND = "lost+found"


@dataclass(frozen=True, slots=True)
class TreeRepair:
    """The changes that turn names and inodes into a tree."""

    outside_directories: list[DirectoryEntry] = field(default_factory=list)
    """Names to delete: their parent is not a directory."""
    dangling: list[DirectoryEntry] = field(default_factory=list)
    """Names to delete: their inode does not exist."""
    extra: list[DirectoryEntry] = field(default_factory=list)
    """Names to delete: second names of a directory, or names that put it inside itself."""
    unreachable: list[int] = field(default_factory=list)
    """Inodes that need a name, without those below another unreachable directory."""
    link_counts: dict[int, int] = field(default_factory=dict)
    """Link count of each inode after all these changes."""


def plan_tree_repair(
    nodes: Mapping[int, Node], names: Iterable[DirectoryEntry], orphans: Collection[int]
) -> TreeRepair:
    """Return the changes that make a tree; the root must be a directory.

    `orphans` are inodes that must not have a name, such as deleted files that are still open.
    """
    return _Walk(nodes, names, orphans).repair


class _Walk:
    """Walks down from the root, and then from each inode that was not reached."""

    def __init__(
        self, nodes: Mapping[int, Node], names: Iterable[DirectoryEntry], orphans: Collection[int]
    ) -> None:
        self._nodes = nodes
        self._names: dict[int, list[DirectoryEntry]] = {}  # by parent
        self._above: dict[int, int] = {}  # one parent of each inode
        self._seen: set[int] = set()
        self.repair = TreeRepair(
            link_counts={ino: 2 if node.is_dir else 0 for ino, node in nodes.items()}
        )
        for name in names:
            if name.ino not in nodes:
                self.repair.dangling.append(name)
            elif (
                name.parent not in nodes or not nodes[name.parent].is_dir or name.parent in orphans
            ):
                self.repair.outside_directories.append(name)
            else:
                self._names.setdefault(name.parent, []).append(name)
                self._above.setdefault(name.ino, name.parent)
        self._descend(ROOT)
        left = [ino for ino in sorted(nodes) if ino not in self._seen and ino not in orphans]
        for ino in left:
            if ino not in self._above:
                self._note_unreachable(ino)
        for ino in left:  # the rest has names, but no path: rings of directories
            if ino not in self._seen:
                self._note_unreachable(self._ring_member_above(ino))
        for ino in orphans:
            self.repair.link_counts.pop(ino, None)

    def _descend(self, top: int) -> None:
        """Visit and count all names below a directory, and note extra names of directories."""
        self._seen.add(top)
        waiting = [top]
        while waiting:
            directory = waiting.pop()
            for name in self._names.get(directory, ()):
                is_dir = self._nodes[name.ino].is_dir
                if is_dir and name.ino in self._seen:
                    self.repair.extra.append(name)
                    continue
                self._seen.add(name.ino)
                self.repair.link_counts[directory if is_dir else name.ino] += 1
                if is_dir:
                    waiting.append(name.ino)

    def _note_unreachable(self, ino: int) -> None:
        self.repair.unreachable.append(ino)
        if self._nodes[ino].is_dir:
            self._descend(ino)
        else:
            self._seen.add(ino)
            self.repair.link_counts[ino] += 1

    def _ring_member_above(self, ino: int) -> int:
        """Return a directory of the ring that the parents of an inode lead into."""
        passed: set[int] = set()
        while ino not in passed:
            passed.add(ino)
            ino = self._above[ino]
        return ino


def current_tree_repair(seen: Transaction, nodes: Mapping[int, Node]) -> TreeRepair:
    """Return the changes that make a tree of all names in the catalog."""
    return plan_tree_repair(nodes, seen.tree.all_names(), {ino for ino, _ in seen.tree.orphans()})


def repair_tree(change: Transaction) -> None:
    """Delete invalid names, name unreachable inodes, and correct the link counts."""
    plan = current_tree_repair(change, _nodes(change))
    for name in (*plan.outside_directories, *plan.dangling, *plan.extra):
        change.tree.drop_name(name)
    if plan.unreachable:
        now = time.time_ns()
        place = _lost_and_found(change, now)
        for ino in plan.unreachable:
            change.tree.link(ino, place, unused_name(change, place, f"#{ino}"), now_ns=now)
    nodes = _nodes(change)
    for ino, right in current_tree_repair(change, nodes).link_counts.items():
        if nodes[ino].nlink != right:
            change.tree.alter(ino, nlink=right)


def _nodes(seen: Transaction) -> dict[int, Node]:
    return {node.ino: node for node in seen.tree.all_nodes()}


def _lost_and_found(change: Transaction, now: int) -> int:
    """Return the inode of `LOST_AND_FOUND`, or of the next numbered name if a file has that one."""
    for name in numbered_names(LOST_AND_FOUND):
        there = change.tree.lookup(ROOT, name)
        if there is None:
            mode = stat.S_IFDIR | 0o700
            return change.tree.create(ROOT, name, mode, uid=0, gid=0, now_ns=now).ino
        if there.is_dir:
            return there.ino
    raise AssertionError("unreachable: the sequence of names is infinite")
