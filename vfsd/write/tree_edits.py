"""Removes and renames files and directories of a store, and publishes files of any kind.

See `Store.remove`, `Store.move` and `put_file`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from vfsd.catalog import not_found_error, split_path
from vfsd.core.model import FileState, Node
from vfsd.disk.tempfiles import NewFile
from vfsd.errors import BusyError, ExistsError, NotFoundError, RefusedMediaError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.write.ingest_file import (
    RejectedFile,
    SourceFile,
    create_file,
    delete_replaced,
    ingest_own_file,
    make_directories,
    reject_by_header,
    require_name_free,
)

_CLASSIFY_TIMEOUT_SECONDS = 30.0


def remove(parts: StoreContext, path: str, recursive: bool) -> int:
    """Remove a file or, with `recursive`, a directory; returns the number of files."""
    parts.require_writable()
    gone, keys, inodes = parts.with_reserve(lambda: _remove_names(parts, path, recursive))
    reclaim_or_log(parts, keys=keys, inodes=inodes)
    return gone


def _remove_names(
    parts: StoreContext, path: str, recursive: bool
) -> tuple[int, set[str], list[int]]:
    """Return the number of removed files, objects that may be unused, and inodes without a name."""
    *above, name = split_path(path) or [""]
    if not name:
        raise UsageError("the root of a store cannot be removed")
    with parts.catalog.writing() as change:
        parent = change.tree.resolve("/".join(above))
        node = change.tree.lookup(parent.ino, name)
        if node is None:
            raise not_found_error(path)
        below = list(change.tree.walk(node.ino, path)) if node.is_dir else []
        if below and not recursive:
            raise UsageError(
                f"{path!r} is not empty",
                hint="recursive=True removes everything in it, too",
                command_hint="`--recursive` removes everything in it, too",
            )
        gone, lost, inodes = 0, list[int](), list[int]()
        # Deepest first, because only an empty directory can be unlinked.
        for full, inner in [*reversed(below), (path, node)]:
            folder, _, last = "/".join(split_path(full)).rpartition("/")
            left = change.tree.unlink(change.tree.resolve(folder).ino, last, now_ns=time.time_ns())
            if left.nlink == 0:
                lost.append(left.ino)
            if inner.is_file:
                inodes.append(left.ino)
            gone += not inner.is_dir
        keys = change.objects.of_files(lost)
        for ino in lost:
            change.tree.delete(ino)
    return gone, keys, inodes


def move(parts: StoreContext, old: str, new: str, replace: bool) -> None:
    """Rename a file or a directory."""
    parts.require_writable()
    *above, name = split_path(old) or [""]
    if not name:
        raise UsageError("the root of a store cannot be moved")
    # A sync may be slow, so it comes before the write lock.
    if replace:
        _sync_private(parts, old)
    with parts.catalog.writing() as change:
        tree = change.tree
        parent = tree.resolve("/".join(above))
        node = tree.lookup(parent.ino, name)
        if node is None:
            raise not_found_error(old)
        if not split_path(new) or (new.endswith("/") and not node.is_dir):
            new = f"{new}{name}"
        if node.is_dir and split_path(new)[: len(split_path(old))] == split_path(old):
            raise UsageError(f"{old!r} cannot be moved into itself")
        *folders, last = split_path(new)
        target = make_directories(change, "/".join(folders), uid=os.getuid(), gid=os.getgid())
        there = tree.lookup(target.ino, last)
        if there is not None and there.is_dir:
            target, last = there, name
            there = tree.lookup(target.ino, last)
        if there is not None:
            if there.ino == node.ino:
                return
            if there.is_dir or node.is_dir or not replace:
                raise ExistsError(
                    f"{new!r} exists",
                    hint="replace=True replaces the file",
                    command_hint="`--replace` replaces the file",
                )
            if there.nlink == 1 and tree.is_elsewhere(there):
                raise BusyError(
                    f"the bytes of {new!r} are in another home of the store",
                    hint="replace it there; `vfsd homes` lists the homes",
                )
        replaced = tree.rename(parent.ino, name, target.ino, last, now_ns=time.time_ns())
        keys = set[str]()
        if replaced is not None and replaced.nlink == 0:
            keys = change.objects.of_file(replaced.ino)
            tree.delete(replaced.ino)
    if replaced is not None:
        reclaim_or_log(parts, keys=keys, inodes=[replaced.ino])


def _sync_private(parts: StoreContext, name: str) -> None:
    """Sync a file before it replaces a video, so that a power cut loses neither."""
    # It may become a video, or be removed, at the same time.
    with suppress(NotFoundError, FileNotFoundError):
        with parts.catalog.reading() as seen:
            node = seen.tree.resolve(name)
        if node.state in (FileState.SPOOLED, FileState.PLAIN):
            parts.directory.sync_spooled(node.ino)


def wait_until_classified(parts: StoreContext, name: str) -> None:
    """Wait while a mount still classifies a file that was just written.

    Raises `BusyError` after 30 seconds, or where the mount is gone.
    """
    end = time.monotonic() + _CLASSIFY_TIMEOUT_SECONDS
    pause = 0.005
    while True:
        try:
            with parts.catalog.reading() as seen:
                node = seen.tree.resolve(name)
        except NotFoundError:
            return
        if node.state is not FileState.SPOOLED:
            return
        parts.require_here(node, name)
        if parts.directory.mounted_by() is None:
            raise BusyError(
                f"{name!r} was being written when its mount ended",
                hint="mount the store again, or run `vfsd fsck --repair`",
            )
        if time.monotonic() > end:
            raise BusyError(
                f"{name!r} is still being written, or waits for its examination",
                hint="try again later; the log of the mount says why it takes long",
            )
        time.sleep(pause)
        # Small files take milliseconds, large ones seconds.
        pause = min(0.2, pause * 2)


# The directory of private files may be readable by others; the mount checks permissions by the row.
_PRIVATE_MODE = 0o600


def put_file(parts: StoreContext, new: NewFile, name: str, *, replace: bool = False) -> Node:
    """Publish one of the store's temporary files, which is complete, and return its node.

    The bytes are on the disk before the name exists. Raises `ExistsError` (unless `replace`),
    `UsageError` for a name that a mount cannot show, `HeldError` for the last name of a held video
    and `ReadOnlyError`. On an error the store is unchanged, and the caller deletes `new`.
    """
    parts.require_writable()
    os.fsync(new.file.fileno())
    source = SourceFile(new.path, name, new.path.stat().st_size)
    require_name_free(parts, name, replace)
    rejected = reject_by_header(new.path)
    if rejected is not None:
        return _put_plain(parts, source, rejected.reason, replace)
    try:
        video = ingest_own_file(parts, source, replace=replace)
    except RefusedMediaError as refusal:
        # Users see the reason next to the current name of the file.
        return _put_plain(parts, source, str(refusal).removeprefix(f"{name}: "), replace)
    with parts.catalog.reading() as seen:
        return seen.tree.node(video.ino)


def _put_plain(parts: StoreContext, source: SourceFile, reason: str, replace: bool) -> Node:
    if parts.is_shared:
        return _put_stored(parts, source, reason, replace)
    private: Path | None = None
    try:
        with parts.catalog.writing() as change:
            node, replaced = create_file(change, source, replace)
            private = parts.directory.spool_file(node.ino)
            # Inside the transaction: `vfsd gc` deletes private files without a row.
            _move(source.path, private)
            parts.directory.sync_spooled(node.ino)
            node = change.tree.update(node.ino, state=FileState.PLAIN, reason=reason)
    except BaseException:
        if private is not None:
            with suppress(FileNotFoundError):
                private.unlink()
        raise
    delete_replaced(parts, replaced)
    return node


def _put_stored(parts: StoreContext, source: SourceFile, reason: str, replace: bool) -> Node:
    from vfsd.write.shared_files import (
        discard_sent,
        record_sent,
        send_file,
    )  # most stores have no bucket

    sent = send_file(parts, source.path, RejectedFile(reason))
    try:
        with parts.catalog.writing() as change:
            node, replaced = create_file(change, source, replace)
            node = change.tree.update(node.ino, size=source.size)
            record_sent(change, node, sent)
            node = change.tree.node(node.ino)
    except BaseException:
        discard_sent(sent)
        raise
    delete_replaced(parts, replaced)
    source.path.unlink()
    return node


def _move(source: Path, private: Path) -> None:
    with suppress(FileNotFoundError):
        private.unlink()  # left by an inode that was never committed
    try:
        source.rename(private)
    except OSError as error:
        # Objects may be on another disk than private files.
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, private)
    os.chmod(private, _PRIVATE_MODE)


def make_directory(parts: StoreContext, path: str, *, parents: bool) -> Node:
    """Create a directory and, with `parents`, the missing ones above it.

    Raises `ExistsError` if the name is taken, `NotFoundError` for a missing parent, `UsageError`
    for a name that a mount cannot show, and `ReadOnlyError`.
    """
    parts.require_writable()
    *above, name = split_path(path) or [""]
    if not name:
        raise ExistsError("the root of a store exists")
    with parts.catalog.writing() as change:
        folder = "/".join(above)
        uid, gid = os.getuid(), os.getgid()
        if parents:
            parent = make_directories(change, folder, uid=uid, gid=gid)
        else:
            parent = change.tree.resolve(folder)
        if not parent.is_dir:
            raise ExistsError(f"{folder!r} is a file, not a directory")
        return change.tree.create(
            parent.ino, name, stat.S_IFDIR | 0o755, uid=uid, gid=gid, now_ns=time.time_ns()
        )
