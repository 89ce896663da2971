"""Names, inodes and links: does every file have those that it counts?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import FileState
from vfsd.maintenance.fsck.finding import Finding, Run
from vfsd.maintenance.fsck.lost_and_found import current_shape, make_a_tree
from vfsd.maintenance.fsck.spool import is_file
from vfsd.storage.context import Parts
from vfsd.write.offline_classify import recover_orphans, settle_file


def catalog(run: Run) -> Iterator[Finding]:
    for message in run.parts.catalog.damage():
        yield Finding("catalog", message)


def under_way(parts: Parts) -> int:
    """How many files of a backup were being written when it was made, or open without a name.

    That is nothing wrong there: who mounts what is restored of it sees to them.  0 for others.
    """
    if not Run(parts, repair=False).is_backup:
        return 0
    with parts.catalog.reading() as seen:
        waiting = {node.ino for node in seen.tree.files_in_state(FileState.SPOOLED)}
        return len(waiting.union(ino for ino, _ in seen.tree.orphans()))


def orphans(run: Run) -> Iterator[Finding]:
    if run.is_backup:
        return  # see `under_way`
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
    if run.is_backup:
        return  # see `under_way`
    with run.unmounted() as alone:
        if not alone:
            return
        with run.parts.catalog.reading() as seen:
            waiting = seen.tree.files_in_state(FileState.SPOOLED)
            names = {node.ino: seen.tree.paths_of(node.ino) for node in waiting}
        for node in waiting:
            if not is_file(run.parts.directory.spool_file(node.ino)):
                continue  # "spool" has to see to that first
            done = run.repair and settle_file(run.parts, node) is not None
            name = (names[node.ino] or [f"inode {node.ino}"])[0]
            yield Finding("pending", f"{name!r} waits to be judged", repaired=done)


def links(run: Run) -> Iterator[Finding]:
    """Names that make a tree, and as many of each inode as it counts."""
    with run.parts.catalog.reading() as seen:
        if not seen.tree.node(ROOT).is_dir:
            yield Finding("links", f"inode {ROOT}, the root, must be a directory")
            return
        found = _faults(seen)
    if found and run.repair:
        with run.parts.catalog.writing() as change:
            found = _faults(change)
            make_a_tree(change)
    for message in found:
        yield Finding("links", message, repaired=run.repair)


def _faults(seen: Transaction) -> list[str]:
    nodes = {node.ino: node for node in seen.tree.all_nodes()}
    shape = current_shape(seen, nodes)
    found = [
        f"{os.fsdecode(name.name)!r} leads to inode {name.ino} from inode {name.parent}, "
        "which must be a directory"
        for name in shape.astray
    ]
    found += [
        f"{os.fsdecode(name.name)!r} in directory {name.parent} leads to inode {name.ino}, which "
        "is not there"
        for name in shape.nowhere
    ]
    found += [
        f"directory {name.ino} has a name too many, {os.fsdecode(name.name)!r} in directory "
        f"{name.parent}"
        for name in shape.second
    ]
    found += [f"inode {ino} cannot be reached by any name" for ino in shape.lost]
    found += [
        f"inode {ino} counts {nodes[ino].nlink} names and has {right}"
        for ino, right in shape.links.items()
        if nodes[ino].nlink != right and ino not in shape.lost
    ]
    return found
