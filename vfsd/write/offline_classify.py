"""Judging spooled files where no mount does it: after a crash, and from the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import FileState, Node
from vfsd.disk.store_layout import fsync_path
from vfsd.storage.context import Parts
from vfsd.write.ingest import Indexed, file_version, judge, publish
from vfsd.write.publish import arrival_of_own_file


def settle_file(parts: Parts, node: Node) -> Node | None:
    """Judge a spooled file that nobody writes, and publish the verdict.

    Returns the node as it is afterwards, or None where somebody changed it meanwhile.
    """
    spool = parts.directory.spool_file(node.ino)
    before = spool.stat()
    verdict = judge(parts, spool)
    if isinstance(verdict, Indexed):
        fsync_path(spool)  # here it may take its time: nobody waits for a lock
    with ExitStack() as arriving, parts.catalog.writing() as change:
        now = change.tree.nodes([node.ino]).get(node.ino)
        if now is None or (now.state, now.generation) != (FileState.SPOOLED, node.generation):
            return None
        found = spool.stat()
        if file_version(found) != file_version(before):
            return None
        if isinstance(verdict, Indexed):
            # Not before it is known that these are the bytes that were hashed.
            own = arrival_of_own_file(parts, spool, verdict.digest, verdict.size)
            arriving.enter_context(own).ensure()
        change.tree.update(node.ino, size=found.st_size, mtime_ns=found.st_mtime_ns)
        publish(change, node, verdict)
        settled = change.tree.node(node.ino)
    if settled.state is FileState.VIDEO:
        parts.catalog.sync()  # the private name may go only when the new one is sure to stay
        with parts.catalog.writing() as change:
            now = change.tree.nodes([node.ino]).get(node.ino)
            if now is None or now.state is FileState.VIDEO:  # else somebody writes there by now
                spool.unlink(missing_ok=True)
    return settled


def recover_orphans(change: Transaction) -> int:
    """Delete files that lost their name while they were open, where nobody can have them open.

    One whose name was taken only to let a rename over it follow gets it back, if the rename never
    came, and the directory is still there.  One that is held gets a name at the top of the store:
    it must not go.  Only for a store that is not mounted.  Returns how many there were.
    """
    now = time.time_ns()
    orphans = change.tree.orphans()
    parents = change.tree.nodes(former[0] for _, former in orphans if former is not None)
    for ino, former in orphans:
        if former is not None and former[0] in parents and change.tree.lookup(*former) is None:
            change.tree.adopt_orphan(ino, *former, now_ns=now)
        elif change.originals.is_held(ino):
            name = free_name(change, ROOT, f"held-{ino}")
            change.tree.adopt_orphan(ino, ROOT, name, now_ns=now)
        else:
            change.tree.delete(ino)
    return len(orphans)


def free_name(seen: Transaction, directory: int, wanted: str) -> str:
    """A name that nothing in a directory has: `wanted`, or one of `numbered`."""
    return next(name for name in numbered(wanted) if seen.tree.lookup(directory, name) is None)


def numbered(name: str) -> Iterator[str]:
    """A name, and those that people give to the second and third."""
    yield name
    for number in count(1):
        yield f"{name}.{number}"
