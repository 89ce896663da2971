"""Checks names, inodes, link counts and the private files of the spool, and repairs the tree of
names.  Each file that is not a video has one private file, which holds its bytes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import DirectoryEntry, FileState, Node
from vfsd.disk.safe_open import STAYS, UNREADABLE, DirectFile
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.storage.context import StoreContext
from vfsd.write.shared_files import remove_stray
from vfsd.write.unfinished_files import (
    classify_spooled_file,
    delete_orphans,
    numbered_names,
    unused_name,
)

LOST_AND_FOUND = "lost+found"


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
            for node in seen.tree.own_files_in_state(wanted)
        ]


def _describe(context: StoreContext, node: Node) -> str | None:
    """Name the private bytes of a file for a message; None if it was replaced or removed."""
    with context.catalog.reading() as seen:
        if not _is_same(seen, node):
            return None
        name = " or ".join(map(repr, seen.tree.paths_of(node.ino)))
    return f"the bytes of {name or 'a file without a name'} (inode {node.ino})"


def _is_same(seen: Transaction, node: Node) -> bool:
    """Return whether a file has had the same private file since `node` was read."""
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
    """Return whether a path is a regular file; links are not followed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def stray_spool(context: StoreContext) -> Iterator[tuple[int, Path]]:
    """Return (inode number, path) of each private file without an inode that needs it."""
    # A spool behind a symbolic link may hold files of other programs.
    if not context.directory.has_own_spool:
        return iter(())
    # Files are listed before the catalog is read, so that a new file is never reported.
    listed = sorted(context.directory.spooled())
    with context.catalog.reading() as seen:
        needed = seen.tree.private_inodes()
    return ((ino, path) for ino, path in listed if ino not in needed)


def remove_stray_spool(context: StoreContext) -> None:
    """Delete stray private files."""
    suspects = list(stray_spool(context))
    if not suspects:
        return
    context.catalog.sync()
    # A mount creates a private file and its row in one write transaction, so this one sees both or
    # neither.
    with context.catalog.writing() as change:
        needed = change.tree.private_inodes()
        for ino, path in suspects:
            if ino not in needed:
                with suppress(*STAYS):
                    remove_stray(context, ino, path)


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
        waiting = {node.ino for node in seen.tree.own_files_in_state(FileState.SPOOLED)}
        return len(waiting.union(ino for ino, _ in seen.tree.own_orphans()))


def orphans(run: CheckRun) -> Iterator[Finding]:
    if run.is_backup:
        return  # see `unfinished_file_count`
    with run.unmounted() as is_unmounted:
        if not is_unmounted:
            return
        with run.context.catalog.reading() as seen:
            count = len(seen.tree.own_orphans())
        if count and run.repair:
            with run.context.catalog.writing() as change:
                left = change.tree.own_orphans()
                count = len(left)
                delete_orphans(change, left)
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
            waiting = seen.tree.own_files_in_state(FileState.SPOOLED)
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
