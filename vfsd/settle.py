"""Judging spooled files where no mount does it: after a crash, and from the command line."""

from __future__ import annotations

import time

from vfsd.errors import NotFoundError
from vfsd.ingest import Indexed, judge, publish
from vfsd.model import FileState, Node
from vfsd.parts import Parts
from vfsd.reclaim import discard_unpublished


def settle_file(parts: Parts, node: Node) -> Node | None:
    """Judge a spooled file that nobody writes, and publish the verdict.

    Returns the node as it is afterwards, or None where somebody changed it meanwhile.
    """
    spool = parts.directory.spool_file(node.ino)
    verdict = judge(parts, spool)
    found = spool.stat()
    if isinstance(verdict, Indexed):
        parts.objects.adopt(spool, verdict.digest)
    with parts.catalog.writing() as change:
        try:
            now = change.tree.node(node.ino)
        except NotFoundError:
            now = None
        unchanged = (
            now is not None and now.state is FileState.SPOOLED and now.generation == node.generation
        )
        settled = None
        if unchanged:
            if isinstance(verdict, Indexed):
                parts.objects.adopt(spool, verdict.digest)  # unless it was collected, no work
            change.tree.update(node.ino, size=found.st_size, mtime_ns=found.st_mtime_ns)
            publish(change, node, verdict)
            settled = change.tree.node(node.ino)
    if settled is None:
        if isinstance(verdict, Indexed):
            discard_unpublished(parts, verdict.digest)
        return None
    if settled.state is FileState.VIDEO:
        parts.catalog.sync()  # the private name may go only when the new one is sure to stay
        spool.unlink(missing_ok=True)
    return settled


def recover_orphans(parts: Parts) -> int:
    """Delete files that lost their name while they were open, where nobody can have them open.

    One whose name was taken only to let a rename over it follow gets it back, if the rename never
    came.  Only for a store that is not mounted.  Returns how many there were.
    """
    now = time.time_ns()
    with parts.catalog.writing() as change:
        orphans = change.tree.orphans()
        for ino, former in orphans:
            if former is not None and change.tree.lookup(*former) is None:
                change.tree.adopt_orphan(ino, *former, now_ns=now)
            else:
                change.tree.delete(ino)
    return len(orphans)
