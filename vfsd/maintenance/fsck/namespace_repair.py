"""Turns the names in a catalog into a tree again.

A pure comparison finds what is wrong; files without a valid name move below `LOST_AND_FOUND`.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import DirectoryEntry, Node
from vfsd.write.crash_recovery import numbered_names, unused_name


@dataclass(frozen=True, slots=True)
class TreeRepair:
    """What has to go, and to come, to make a tree of it."""

    astray: list[DirectoryEntry] = field(default_factory=list)  #: those in what is no directory
    nowhere: list[DirectoryEntry] = field(
        default_factory=list
    )  #: those of inodes that are not there
    second: list[DirectoryEntry] = field(default_factory=list)
    """Of directories that have another name, or lie in themselves by it."""
    lost: list[int] = field(default_factory=list)
    """Inodes to which no name leads that is to stay; what lies below them is lost with them."""
    links: dict[int, int] = field(default_factory=dict)
    """As many links as each inode has when the former have gone, and the latter have a name."""


def plan_tree_repair(
    nodes: Mapping[int, Node], names: Iterable[DirectoryEntry], orphans: Collection[int]
) -> TreeRepair:
    """The root has to be a directory; `orphans` are to have no name."""
    return _Walk(nodes, names, orphans).shape


class _Walk:
    """Down from the root, and then from what that has not come to."""

    def __init__(
        self, nodes: Mapping[int, Node], names: Iterable[DirectoryEntry], orphans: Collection[int]
    ) -> None:
        self._nodes = nodes
        self._names: dict[int, list[DirectoryEntry]] = {}  # by directory
        self._above: dict[int, int] = {}  # a directory that has a name of it
        self._seen: set[int] = set()
        self.shape = TreeRepair(links={ino: 2 if node.is_dir else 0 for ino, node in nodes.items()})
        for name in names:
            if name.ino not in nodes:
                self.shape.nowhere.append(name)
            elif (
                name.parent not in nodes or not nodes[name.parent].is_dir or name.parent in orphans
            ):
                self.shape.astray.append(name)
            else:
                self._names.setdefault(name.parent, []).append(name)
                self._above.setdefault(name.ino, name.parent)
        self._descend(ROOT)
        left = [ino for ino in sorted(nodes) if ino not in self._seen and ino not in orphans]
        for ino in left:
            if ino not in self._above:
                self._lose(ino)
        for ino in left:  # what has a name, and no path: directories that lie in themselves
            if ino not in self._seen:
                self._lose(self._in_ring_above(ino))
        for ino in orphans:
            self.shape.links.pop(ino, None)

    def _descend(self, top: int) -> None:
        """Count all names below a directory; a second one of another directory is one too many."""
        self._seen.add(top)
        waiting = [top]
        while waiting:
            at = waiting.pop()
            for name in self._names.get(at, ()):
                is_dir = self._nodes[name.ino].is_dir
                if is_dir and name.ino in self._seen:
                    self.shape.second.append(name)
                    continue
                self._seen.add(name.ino)
                self.shape.links[at if is_dir else name.ino] += 1
                if is_dir:
                    waiting.append(name.ino)

    def _lose(self, ino: int) -> None:
        self.shape.lost.append(ino)
        if self._nodes[ino].is_dir:
            self._descend(ino)
        else:
            self._seen.add(ino)
            self.shape.links[ino] += 1

    def _in_ring_above(self, ino: int) -> int:
        passed: set[int] = set()
        while ino not in passed:
            passed.add(ino)
            ino = self._above[ino]
        return ino


LOST_AND_FOUND = "lost+found"


def current_shape(seen: Transaction, nodes: Mapping[int, Node]) -> TreeRepair:
    """How all names differ from those of a tree."""
    return plan_tree_repair(nodes, seen.tree.all_names(), {ino for ino, _ in seen.tree.orphans()})


def repair_tree(change: Transaction) -> None:
    """Take away names that no tree has, give one to what is lost, and count them all."""
    shape = current_shape(change, _nodes(change))
    for name in (*shape.astray, *shape.nowhere, *shape.second):
        change.tree.drop_name(name)
    if shape.lost:
        now = time.time_ns()
        place = _place(change, now)
        for ino in shape.lost:
            change.tree.link(ino, place, unused_name(change, place, f"#{ino}"), now_ns=now)
    nodes = _nodes(change)
    for ino, right in current_shape(change, nodes).links.items():
        if nodes[ino].nlink != right:
            change.tree.alter(ino, nlink=right)


def _nodes(seen: Transaction) -> dict[int, Node]:
    return {node.ino: node for node in seen.tree.all_nodes()}


def _place(change: Transaction, now: int) -> int:
    """The directory for what was lost, where no file has its name; else the next."""
    for name in numbered_names(LOST_AND_FOUND):
        there = change.tree.lookup(ROOT, name)
        if there is None:
            mode = stat.S_IFDIR | 0o700
            return change.tree.create(ROOT, name, mode, uid=0, gid=0, now_ns=now).ino
        if there.is_dir:
            return there.ino
    raise AssertionError("numbers end nowhere")
