"""The private bytes of files that are no videos: all that are needed, and no others."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vfsd.catalog import Transaction
from vfsd.core.model import FileState, Node
from vfsd.disk.direct_io import UNREADABLE, DiskFile
from vfsd.disk.safe_open import STAYS, remove
from vfsd.maintenance.fsck.finding import Finding, Run
from vfsd.storage.context import Parts


def spool(run: Run) -> Iterator[Finding]:
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


def readable(run: Run) -> Iterator[Finding]:
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
    with DiskFile(path) as file:
        position = 0
        while chunk := file.read(position):
            position += len(chunk)


def _own(parts: Parts) -> list[Node]:
    """All files that have private bytes."""
    with parts.catalog.reading() as seen:
        return [
            node
            for wanted in (FileState.SPOOLED, FileState.PLAIN)
            for node in seen.tree.files_in_state(wanted)
        ]


def _called(parts: Parts, node: Node) -> str | None:
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


def _give_empty(parts: Parts, node: Node) -> bool:
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


def stray_spool(parts: Parts) -> Iterator[tuple[int, Path]]:
    """Private files, as they were listed first, and by then none's; nothing where a link leads to
    them, as these may be somebody else's there."""
    if not parts.directory.has_own_spool:
        return iter(())
    listed = sorted(parts.directory.spooled())
    with parts.catalog.reading() as seen:
        needed = seen.tree.private_inodes()
    return ((ino, path) for ino, path in listed if ino not in needed)


def remove_stray_spool(parts: Parts) -> None:
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
