"""Checks names, inodes and link counts, and the private files of the spool.

Each file that is not a video has one private file, which holds its bytes.
"""

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
from vfsd.maintenance.fsck.namespace_repair import current_tree_repair, repair_tree
from vfsd.storage.context import StoreContext
from vfsd.write.crash_recovery import classify_spooled_file, delete_orphans


def spool(run: CheckRun) -> Iterator[Finding]:
    context = run.context
    for node in _private_nodes(context):
        path = context.directory.spool_file(node.ino)
        if not is_file(path):
            text = _describe(context, node)
            if text is None:
                continue
            if os.path.lexists(path):
                what = "a directory, link or device"
                yield Finding(
                    "spool", f"{text} must be in a file, got {what} at {path}: move it away"
                )
                continue
            if run.repair and not _make_empty(context, node):
                continue
            yield Finding("spool", f"{text} are missing", repaired=run.repair)
    stray = list(stray_spool(context))
    if run.repair:
        remove_stray_spool(context)
    for ino, path in stray:
        if not run.repair and not path.exists():
            continue  # a mount has deleted it since
        message = f"private file {path} of inode {ino} is not used"
        yield Finding("spool", message, repaired=run.repair and not os.path.lexists(path))


def readable(run: CheckRun) -> Iterator[Finding]:
    """Check that private files can be read; they have no checksums to compare."""
    for node in _private_nodes(run.context):
        path = run.context.directory.spool_file(node.ino)
        if not is_file(path):
            continue  # "spool" reports it
        try:
            _read_through(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in UNREADABLE | {errno.EACCES}:
                raise
            text = _describe(run.context, node)
            if text is not None:
                yield Finding("private", f"{text}, {path}, cannot be read: {error.strerror}")


def _read_through(path: Path) -> None:
    with DirectFile(path) as file:
        position = 0
        while chunk := file.read(position):
            position += len(chunk)


def _private_nodes(context: StoreContext) -> list[Node]:
    """Return the inodes of all files that have a private file."""
    with context.catalog.reading() as seen:
        return [
            node
            for wanted in (FileState.SPOOLED, FileState.PLAIN)
            for node in seen.tree.files_in_state(wanted)
        ]


def _describe(context: StoreContext, node: Node) -> str | None:
    """Name the private bytes of a file for a message; None if it was replaced or removed."""
    with context.catalog.reading() as seen:
        if not _is_same(seen, node):
            return None
        name = " or ".join(map(repr, seen.tree.paths_of(node.ino)))
    return f"the bytes of {name or 'a file without a name'} (inode {node.ino})"


def _is_same(seen: Transaction, node: Node) -> bool:
    """Whether a file has had the same private file since `node` was read."""
    now = seen.tree.nodes([node.ino]).get(node.ino)
    return (
        now is not None
        and now.state in (FileState.SPOOLED, FileState.PLAIN)
        and now.generation == node.generation
    )


def _make_empty(context: StoreContext, node: Node) -> bool:
    """Create an empty private file for lost bytes; False if they exist or are not needed."""
    path = context.directory.spool_file(node.ino)
    with context.catalog.writing() as change:
        if not _is_same(change, node) or os.path.lexists(path):
            return False
        reason = "its bytes were lost in a crash"
        change.tree.update(node.ino, state=FileState.PLAIN, reason=reason)
        path.touch(mode=0o600)
    return True


def is_file(path: Path) -> bool:
    """Whether a path is a regular file; links are not followed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def stray_spool(context: StoreContext) -> Iterator[tuple[int, Path]]:
    """Return (inode number, path) of each private file without an inode that needs it.

    Files are listed before the catalog is read, so that a new file is never reported.  A spool
    behind a symbolic link may hold files of other programs, so it has no stray files.
    """
    if not context.directory.has_own_spool:
        return iter(())
    listed = sorted(context.directory.spooled())
    with context.catalog.reading() as seen:
        needed = seen.tree.private_inodes()
    return ((ino, path) for ino, path in listed if ino not in needed)


def remove_stray_spool(context: StoreContext) -> None:
    """Delete stray private files.

    A mount creates a private file and its row in one write transaction.  This transaction therefore
    sees both or neither.
    """
    suspects = list(stray_spool(context))
    if not suspects:
        return
    context.catalog.sync()
    with context.catalog.writing() as change:
        needed = change.tree.private_inodes()
        for ino, path in suspects:
            if ino not in needed:
                with suppress(*STAYS):
                    remove(path)


def catalog(run: CheckRun) -> Iterator[Finding]:
    for message in run.context.catalog.damage():
        yield Finding("catalog", message)


def unfinished_file_count(context: StoreContext) -> int:
    """Count the files of a backup that were open or unclassified when it was made.

    They are not a fault: the first mount of the restored store handles them.  0 if the store is not
    a backup.
    """
    if not CheckRun(context, repair=False).is_backup:
        return 0
    with context.catalog.reading() as seen:
        waiting = {node.ino for node in seen.tree.files_in_state(FileState.SPOOLED)}
        return len(waiting.union(ino for ino, _ in seen.tree.orphans()))


def orphans(run: CheckRun) -> Iterator[Finding]:
    if run.is_backup:
        return  # see `unfinished_file_count`
    with run.unmounted() as is_unmounted:
        if not is_unmounted:
            return
        with run.context.catalog.reading() as seen:
            count = len(seen.tree.orphans())
        if count and run.repair:
            with run.context.catalog.writing() as change:
                count = delete_orphans(change)
    if count:
        yield Finding(
            "orphans", f"{count} files without a name must be deleted", repaired=run.repair
        )


def pending(run: CheckRun) -> Iterator[Finding]:
    if run.is_backup:
        return  # see `unfinished_file_count`
    with run.unmounted() as is_unmounted:
        if not is_unmounted:
            return
        with run.context.catalog.reading() as seen:
            waiting = seen.tree.files_in_state(FileState.SPOOLED)
            names = {node.ino: seen.tree.paths_of(node.ino) for node in waiting}
        for node in waiting:
            if not is_file(run.context.directory.spool_file(node.ino)):
                continue  # "spool" has to repair it first
            done = run.repair and classify_spooled_file(run.context, node) is not None
            name = (names[node.ino] or [f"inode {node.ino}"])[0]
            yield Finding("pending", f"{name!r} waits for classification", repaired=done)


def links(run: CheckRun) -> Iterator[Finding]:
    """Check that names form a tree, and that link counts match the names."""
    with run.context.catalog.reading() as seen:
        if not seen.tree.node(ROOT).is_dir:
            yield Finding("links", f"inode {ROOT}, the root, must be a directory")
            return
        found = _faults(seen)
    if found and run.repair:
        with run.context.catalog.writing() as change:
            found = _faults(change)
            repair_tree(change)
    for message in found:
        yield Finding("links", message, repaired=run.repair)


def _faults(seen: Transaction) -> list[str]:
    nodes = {node.ino: node for node in seen.tree.all_nodes()}
    wrong = current_tree_repair(seen, nodes)
    found = [
        f"{os.fsdecode(name.name)!r} leads to inode {name.ino} from inode {name.parent}, "
        "which must be a directory"
        for name in wrong.outside_directories
    ]
    found += [
        f"{os.fsdecode(name.name)!r} in directory {name.parent} leads to inode {name.ino}, which "
        "does not exist"
        for name in wrong.dangling
    ]
    found += [
        f"directory {name.ino} must have one name, got another: {os.fsdecode(name.name)!r} in "
        f"directory {name.parent}"
        for name in wrong.extra
    ]
    found += [f"inode {ino} cannot be reached by any name" for ino in wrong.unreachable]
    found += [
        f"link count of inode {ino} must be {right}, got {nodes[ino].nlink}"
        for ino, right in wrong.link_counts.items()
        if nodes[ino].nlink != right and ino not in wrong.unreachable
    ]
    return found
