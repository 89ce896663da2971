"""Checks of names, inodes and link counts, and of the private bytes of files that are not
videos."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import FileState, Node
from vfsd.disk.direct_io import UNREADABLE, DirectFile
from vfsd.disk.safe_open import STAYS, remove
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.maintenance.fsck.namespace_repair import current_shape, repair_tree
from vfsd.storage.context import StoreContext
from vfsd.write.crash_recovery import classify_spooled_file, delete_orphans


def spool(run: CheckRun) -> Iterator[Finding]:
    parts = run.parts
    for node in _own(parts):
        path = parts.directory.spool_file(node.ino)
        if not is_file(path):
            called = _called(parts, node)
            if called is None:
                continue
            if os.path.lexists(path):
                what = "a directory, link or device"
                yield Finding("spool", f"{called} are not in {path}, {what}: move that away")
                continue
            if run.repair and not _give_empty(parts, node):
                continue
            yield Finding("spool", f"{called} are missing", repaired=run.repair)
    stray = list(stray_spool(parts))
    if run.repair:
        remove_stray_spool(parts)
    for ino, path in stray:
        if not run.repair and not path.exists():
            continue  # a mount was about to take it away
        told = f"private bytes of inode {ino} that nobody needs"
        yield Finding("spool", told, repaired=run.repair and not os.path.lexists(path))


def readable(run: CheckRun) -> Iterator[Finding]:
    """They have no checksums: that the disk gives them is all that can be known."""
    for node in _own(run.parts):
        path = run.parts.directory.spool_file(node.ino)
        if not is_file(path):
            continue  # see "spool"
        try:
            _read_through(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in UNREADABLE | {errno.EACCES}:
                raise
            called = _called(run.parts, node)
            if called is not None:
                yield Finding("private", f"{called}, {path}, cannot be read: {error.strerror}")


def _read_through(path: Path) -> None:
    with DirectFile(path) as file:
        position = 0
        while chunk := file.read(position):
            position += len(chunk)


def _own(parts: StoreContext) -> list[Node]:
    """All files that have private bytes."""
    with parts.catalog.reading() as seen:
        return [
            node
            for wanted in (FileState.SPOOLED, FileState.PLAIN)
            for node in seen.tree.files_in_state(wanted)
        ]


def _called(parts: StoreContext, node: Node) -> str | None:
    """The private bytes of a file, for people; None where it has others since, or has gone."""
    with parts.catalog.reading() as seen:
        if not _is_same(seen, node):
            return None
        name = " or ".join(map(repr, seen.tree.paths_of(node.ino)))
    return f"the bytes of {name or 'a file without a name'} (inode {node.ino})"


def _is_same(seen: Transaction, node: Node) -> bool:
    """Whether a file still has private bytes, and never had others since it was looked at."""
    now = seen.tree.nodes([node.ino]).get(node.ino)
    return (
        now is not None
        and now.state in (FileState.SPOOLED, FileState.PLAIN)
        and now.generation == node.generation
    )


def _give_empty(parts: StoreContext, node: Node) -> bool:
    """Let a file be empty whose bytes are missing; False where that is so no longer."""
    path = parts.directory.spool_file(node.ino)
    with parts.catalog.writing() as change:
        if not _is_same(change, node) or os.path.lexists(path):
            return False
        reason = "its bytes were lost in a crash"
        change.tree.update(node.ino, state=FileState.PLAIN, reason=reason)
        path.touch(mode=0o600)
    return True


def is_file(path: Path) -> bool:
    """Whether there is a file of the store's own; links are not followed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def stray_spool(parts: StoreContext) -> Iterator[tuple[int, Path]]:
    """Private files, as they were listed first, and by then none's; nothing where a link leads to
    them, as these may be somebody else's there."""
    if not parts.directory.has_own_spool:
        return iter(())
    listed = sorted(parts.directory.spooled())
    with parts.catalog.reading() as seen:
        needed = seen.tree.private_inodes()
    return ((ino, path) for ino, path in listed if ino not in needed)


def remove_stray_spool(parts: StoreContext) -> None:
    """Inside a write transaction: a mount makes a private file and its row in one, too."""
    suspects = list(stray_spool(parts))
    if not suspects:
        return
    parts.catalog.sync()
    with parts.catalog.writing() as change:
        needed = change.tree.private_inodes()
        for ino, path in suspects:
            if ino not in needed:
                with suppress(*STAYS):
                    remove(path)


def catalog(run: CheckRun) -> Iterator[Finding]:
    for message in run.parts.catalog.damage():
        yield Finding("catalog", message)


def under_way(parts: StoreContext) -> int:
    """How many files of a backup were being written when it was made, or open without a name.

    That is nothing wrong there: who mounts what is restored of it sees to them.  0 for others.
    """
    if not CheckRun(parts, repair=False).is_backup:
        return 0
    with parts.catalog.reading() as seen:
        waiting = {node.ino for node in seen.tree.files_in_state(FileState.SPOOLED)}
        return len(waiting.union(ino for ino, _ in seen.tree.orphans()))


def orphans(run: CheckRun) -> Iterator[Finding]:
    if run.is_backup:
        return  # see `under_way`
    with run.unmounted() as alone:
        if not alone:
            return
        with run.parts.catalog.reading() as seen:
            count = len(seen.tree.orphans())
        if count and run.repair:
            with run.parts.catalog.writing() as change:
                count = delete_orphans(change)
    if count:
        yield Finding("orphans", f"{count} files without a name are left over", repaired=run.repair)


def pending(run: CheckRun) -> Iterator[Finding]:
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
            done = run.repair and classify_spooled_file(run.parts, node) is not None
            name = (names[node.ino] or [f"inode {node.ino}"])[0]
            yield Finding("pending", f"{name!r} waits to be judged", repaired=done)


def links(run: CheckRun) -> Iterator[Finding]:
    """Names that make a tree, and as many of each inode as it counts."""
    with run.parts.catalog.reading() as seen:
        if not seen.tree.node(ROOT).is_dir:
            yield Finding("links", f"inode {ROOT}, the root, must be a directory")
            return
        found = _faults(seen)
    if found and run.repair:
        with run.parts.catalog.writing() as change:
            found = _faults(change)
            repair_tree(change)
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
