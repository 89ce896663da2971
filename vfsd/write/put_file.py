"""Publishes a file of any kind under a name: as a video where it is one, else as a plain file.

The result is that of a file written through the mount. Only the order differs: the file is
classified before it has a name, so a name never leads to half a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from vfsd.catalog import split_path
from vfsd.core.model import FileState, Node
from vfsd.disk.tempfiles import NewFile
from vfsd.errors import ExistsError, RefusedMediaError
from vfsd.storage.context import StoreContext
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
