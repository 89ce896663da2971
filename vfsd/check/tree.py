"""Names, inodes and links: does every file have those that it counts?"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator

from vfsd.catalog import ROOT, Transaction
from vfsd.check.finding import Finding, Run
from vfsd.model import FileState, Node
from vfsd.settle import recover_orphans, settle_file

LOST_AND_FOUND = "lost+found"


def catalog(run: Run) -> Iterator[Finding]:
    for message in run.parts.catalog.damage():
        yield Finding("catalog", message)


def orphans(run: Run) -> Iterator[Finding]:
    with run.unmounted() as alone:
        if not alone:
            return
        with run.parts.catalog.reading() as seen:
            count = len(seen.tree.orphans())
        if count and run.repair:
            with run.parts.catalog.writing() as change:
                count = recover_orphans(change)
    if count:
        yield Finding("orphans", f"{count} files without a name are left over", repaired=run.repair)


def pending(run: Run) -> Iterator[Finding]:
    with run.unmounted() as alone:
        if not alone:
            return
        with run.parts.catalog.reading() as seen:
            waiting = seen.tree.files_in_state(FileState.SPOOLED)
            names = {node.ino: seen.tree.paths_of(node.ino) for node in waiting}
        for node in waiting:
            if not run.parts.directory.spool_file(node.ino).exists():
                continue  # "spool" has to see to that first
            done = run.repair and settle_file(run.parts, node) is not None
            name = (names[node.ino] or [f"inode {node.ino}"])[0]
            yield Finding("pending", f"{name!r} waits to be judged", repaired=done)


def links(run: Run) -> Iterator[Finding]:
    with run.parts.catalog.reading() as seen:
        found = _wrong_links(seen)
    if found and run.repair:
        with run.parts.catalog.writing() as change:
            found = _wrong_links(change)
            for node, right in found:
                if right is None:
                    _to_lost_and_found(change, node)
                else:
                    change.tree.update(node.ino, nlink=right)
    for node, right in found:
        if right is None:
            message = f"inode {node.ino} cannot be reached by any name"
        else:
            message = f"inode {node.ino} counts {node.nlink} names and has {right}"
        yield Finding("links", message, repaired=run.repair)


def _wrong_links(seen: Transaction) -> list[tuple[Node, int | None]]:
    """Files that count other names than they have, with how many these are; None: no path leads
    there."""
    nodes = {node.ino: node for node in seen.tree.all_nodes()}
    counted = dict.fromkeys(nodes, 0)
    nameless = {ino for ino, _ in seen.tree.orphans()}
    subdirectories = dict.fromkeys(nodes, 0)
    reached = {ROOT}
    _count_names(seen, ROOT, counted, subdirectories, reached)
    lost: list[tuple[Node, int | None]] = []
    wrong: list[tuple[Node, int | None]] = []
    for ino, node in nodes.items():
        if ino in nameless:
            continue
        right = 2 + subdirectories[ino] if node.is_dir else counted[ino]
        if ino not in reached:
            lost.append((node, None))
        elif node.nlink != right:
            wrong.append((node, right))
    return lost + wrong


def _count_names(
    seen: Transaction,
    directory: int,
    counted: dict[int, int],
    subdirectories: dict[int, int],
    reached: set[int],
) -> None:
    stack = [directory]
    while stack:
        at = stack.pop()
        for _, child in seen.tree.children(at):
            counted[child.ino] += 1
            if child.is_dir:
                subdirectories[at] += 1
                if child.ino not in reached:
                    stack.append(child.ino)
            reached.add(child.ino)


def _to_lost_and_found(change: Transaction, node: Node) -> None:
    now = time.time_ns()
    place = change.tree.lookup(ROOT, LOST_AND_FOUND)
    if place is None:
        place = change.tree.create(
            ROOT, LOST_AND_FOUND, stat.S_IFDIR | 0o700, uid=0, gid=0, now_ns=now
        )
    change.tree.update(node.ino, nlink=1 if node.is_dir else 0)
    change.tree.link(node.ino, place.ino, f"#{node.ino}", now_ns=now)
