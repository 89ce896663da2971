"""Making a tree of the names in a catalog: what was lost is found below `LOST_AND_FOUND`."""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import Node
from vfsd.maintenance.fsck.namespace_diff import Shape, shape_of
from vfsd.write.offline_classify import free_name, numbered

LOST_AND_FOUND = "lost+found"


def current_shape(seen: Transaction, nodes: Mapping[int, Node]) -> Shape:
    """How all names differ from those of a tree."""
    return shape_of(nodes, seen.tree.all_names(), {ino for ino, _ in seen.tree.orphans()})


def make_a_tree(change: Transaction) -> None:
    """Take away names that no tree has, give one to what is lost, and count them all."""
    shape = current_shape(change, _nodes(change))
    for name in (*shape.astray, *shape.nowhere, *shape.second):
        change.tree.drop_name(name)
    if shape.lost:
        now = time.time_ns()
        place = _place(change, now)
        for ino in shape.lost:
            change.tree.link(ino, place, free_name(change, place, f"#{ino}"), now_ns=now)
    nodes = _nodes(change)
    for ino, right in current_shape(change, nodes).links.items():
        if nodes[ino].nlink != right:
            change.tree.alter(ino, nlink=right)


def _nodes(seen: Transaction) -> dict[int, Node]:
    return {node.ino: node for node in seen.tree.all_nodes()}


def _place(change: Transaction, now: int) -> int:
    """The directory for what was lost, where no file has its name; else the next."""
    for name in numbered(LOST_AND_FOUND):
        there = change.tree.lookup(ROOT, name)
        if there is None:
            mode = stat.S_IFDIR | 0o700
            return change.tree.create(ROOT, name, mode, uid=0, gid=0, now_ns=now).ino
        if there.is_dir:
            return there.ino
    raise AssertionError("numbers end nowhere")
