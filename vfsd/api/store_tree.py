"""Files and folders: the part of `Store` that puts videos in, moves and removes them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from reprlib import repr as shown
from typing import TYPE_CHECKING

from vfsd.api.store_writes import StoreWrites
from vfsd.catalog import Transaction, not_found_error, require_name, split_path
from vfsd.core.model import FileState, Node
from vfsd.errors import BusyError, ExistsError, NotFoundError, UsageError
from vfsd.validation import local_path, no_such_file, whole_number, yes_or_no

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.retention_policy import RetentionPolicy
    from vfsd.disk.object_store import Progress

_SETTLE_SECONDS = 30.0


class StoreTree(StoreWrites):
    """The names of a store, and what they stand for."""

    def node(self, path: str) -> Node:
        """The file or directory at `path`.  Raises `NotFoundError`."""
        with self._parts.catalog.reading() as seen:
            return seen.tree.resolve(path)

    def entries(self, path: str = "") -> list[tuple[str, Node]]:
        """What is in a directory, by name.  Raises `NotFoundError`, `UsageError` for a file."""
        with self._parts.catalog.reading() as seen:
            node = seen.tree.resolve(path)
            if not node.is_dir:
                raise UsageError(f"{path!r} is not a directory")
            return seen.tree.children(node.ino)

    def ingest(
        self,
        source: str | os.PathLike[str],
        name: str | None = None,
        *,
        link: bool = False,
        replace: bool = False,
        stream: int | None = None,
        size: str = "first",
        on_progress: Progress | None = None,
    ) -> Video:
        """Put a video file into the store, under its own name or `name`, which may also be that of
        a directory with a slash at the end.

        The file is copied as it is; with `link` it stays where it is, is indexed there, and is
        never written or deleted by the store.  The frames are those of the video stream that FFmpeg
        takes for the best, or of `stream`, a number counted among all streams of the file.  One
        file may be ingested under two names with two streams; its bytes are stored once.  Pictures
        that change their size on the way are scaled to that of the first one, or with the `size`
        "largest" to the largest.

        Raises `RefusedMediaError` for what is no video,
        `ExistsError`, `UsageError` for a file of the store's own and for a name that no mount can
        show (of more than 255 bytes in UTF-8, or with a NUL), `BusyError` where somebody writes the
        file meanwhile, `NoSpaceError`; the store is then as it was before.
        """
        from vfsd.write.ingest_file import (
            SourceFile,
            ingest_copy,
            ingest_link,
            require_outside_store,
        )

        self._require_writable()
        link, replace = yes_or_no(link, "link"), yes_or_no(replace, "replace")
        path = local_path(source, "a file")
        if path.is_dir():
            raise UsageError(
                f"{path} is a directory", hint="give a file; `vfsd ingest` takes all below one"
            )
        if not path.is_file():
            raise no_such_file(path)
        if isinstance(name, str) and name.endswith("/"):
            name += path.name
        what = SourceFile(path, name or path.name, path.stat().st_size)
        require_outside_store(self._parts, what)
        put = ingest_link if link else ingest_copy
        if stream is not None:
            stream = whole_number(stream, "stream")
        if size not in ("first", "largest"):
            raise UsageError(f"size must be first or largest, got {shown(size)}")
        return self.open_video(
            put(
                self._parts,
                what,
                replace=replace,
                stream=stream,
                in_largest_size=size == "largest",
                on_progress=on_progress,
            )
        )

    def set_policy(self, path: str, policy: RetentionPolicy | str | None) -> RetentionPolicy:
        """Say what may become of the original of a video, or of those below a directory.

            store.set_policy("cam1/", "original=replaceable,psnr=40,replace-after=30d")

        With a slash at the end a directory is meant, which is made where it is missing: it has its
        policy then before there is a video in it.  None: as where nothing was said.  Gives what
        counts now.  Raises `NotFoundError`, `ReadOnlyError`, `ExistsError` for a file with a slash,
        `UsageError` for the store as a whole, and for what is no policy.
        """
        from vfsd.core.retention_policy import RetentionPolicy
        from vfsd.storage.original_guard import set_policy
        from vfsd.write.ingest_file import make_directories

        self._require_writable()
        if not isinstance(path, str):
            raise UsageError(f"{shown(path)} names no video", hint="give its name, as text")
        chosen = RetentionPolicy.parse(policy) if isinstance(policy, str) else policy
        folders = split_path(path) if path.endswith("/") else []
        for name in folders:
            require_name(name)
        if folders:

            def make(change: Transaction) -> None:
                make_directories(change, "/".join(folders), uid=os.getuid(), gid=os.getgid())

            self._parts.write_with_reserve(make)
        return set_policy(self._parts, path, chosen)

    def remove(self, path: str, *, recursive: bool = False) -> int:
        """Take a file, or with `recursive` a directory, out of the store; how many files went.

        What was indexed in place stays where it is.  Raises `NotFoundError`, `UsageError` for a
        directory that is not empty.
        """
        from vfsd.storage.reclaim import clear_away

        self._require_writable()
        recursive = yes_or_no(recursive, "recursive")
        gone, keys, inodes = self._parts.with_reserve(lambda: self._remove_names(path, recursive))
        clear_away(self._parts, keys=keys, inodes=inodes)
        return gone

    def _remove_names(self, path: str, recursive: bool) -> tuple[int, set[str], list[int]]:
        """How many files went, the objects that nothing may need any more, and the inodes that may
        have lost their last name."""
        *above, name = split_path(path) or [""]
        if not name:
            raise UsageError("the root of a store cannot be removed")
        with self._parts.catalog.writing() as change:
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
            for full, inner in [*reversed(below), (path, node)]:
                folder, _, last = "/".join(split_path(full)).rpartition("/")
                left = change.tree.unlink(
                    change.tree.resolve(folder).ino, last, now_ns=time.time_ns()
                )
                if left.nlink == 0:
                    lost.append(left.ino)
                if inner.is_file:
                    inodes.append(left.ino)
                gone += not inner.is_dir
            keys = change.objects.of_files(lost)
            for ino in lost:
                change.tree.delete(ino)
        return gone, keys, inodes

    def move(self, old: str, new: str, *, replace: bool = False) -> None:
        """Give a file or directory another name; missing directories on the way are made.

        Into an existing directory it moves under its own name, and so does a file into one that is
        called with a slash at the end.  Raises `NotFoundError`,
        `ExistsError` (unless `replace`, for files), `UsageError` for a name that no mount can show.
        """
        from vfsd.storage.reclaim import clear_away
        from vfsd.write.ingest_file import make_directories

        self._require_writable()
        replace = yes_or_no(replace, "replace")
        *above, name = split_path(old) or [""]
        if not name:
            raise UsageError("the root of a store cannot be moved")
        if replace:
            self._sync_private(old)
        with self._parts.catalog.writing() as change:
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
                        hint="replace=True lets the file take its place",
                        command_hint="`--replace` lets the file take its place",
                    )
            replaced = tree.rename(parent.ino, name, target.ino, last, now_ns=time.time_ns())
            keys = set[str]()
            if replaced is not None and replaced.nlink == 0:
                keys = change.objects.of_file(replaced.ino)
                tree.delete(replaced.ino)
        if replaced is not None:
            clear_away(self._parts, keys=keys, inodes=[replaced.ino])

    # -- help

    def _sync_private(self, name: str) -> None:
        """What takes the place of a video is on the disk before that goes."""
        with suppress(NotFoundError, FileNotFoundError):  # it becomes a video, or goes
            node = self.node(name)
            if node.state in (FileState.SPOOLED, FileState.PLAIN):
                self._parts.directory.sync_spooled(node.ino)

    def _settle(self, name: str) -> None:
        """Wait until a mount has judged a file that somebody has just written."""
        end = time.monotonic() + _SETTLE_SECONDS
        pause = 0.005
        while True:
            try:
                node = self.node(name)
            except NotFoundError:
                return
            if node.state is not FileState.SPOOLED:
                return
            if self._parts.directory.mounted_by() is None:
                raise BusyError(
                    f"{name!r} was being written when its mount went away",
                    hint="mount the store again, or run `vfsd fsck --repair`",
                )
            if time.monotonic() > end:
                raise BusyError(
                    f"{name!r} is still being written, or waits to be looked at",
                    hint="try again when it is done; if that takes long, the mount's log says why",
                )
            time.sleep(pause)
            pause = min(0.2, pause * 2)
