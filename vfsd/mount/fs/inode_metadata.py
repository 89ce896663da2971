"""Changes of mode, owner and times, and extended attributes.

Attributes below ``user.vfsd.`` are computed; users set all others.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from vfsd.catalog import NAME_BYTES, ROOT, Catalog
from vfsd.core.model import WAITS_FOR_UPLOAD, FileState, LogicalVideo, Node, is_waiting
from vfsd.core.retention_policy import hold_message
from vfsd.disk.mount_queries import MountedNode
from vfsd.errors import IntegrityError, NotFoundError
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache, TreeTransaction
from vfsd.mount.fs.handles import without_setid
from vfsd.mount.fs.open_inodes import CAPABILITIES, OpenInodes
from vfsd.mount.fs.posix import Caller, is_private, os_error
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import ATTRIBUTE
from vfsd.views.layout_files import layout_text

_LATEST_NS = (1 << 63) - 1
COMPUTED = "user.vfsd."
TUNER = COMPUTED + "tuner"
"""State of the background tuner. An attribute of the root that is in no listing."""
STATS = COMPUTED + "stats"
"""Statistics of the mount (`vfsd.mount.fs.mount_stats`). An attribute of the root that is in no
listing."""
_TRUSTED = "trusted."
_NAMESPACES = ("user.", _TRUSTED, "security.")
_VALUE_BYTES = 65536
_LIST_BYTES = 65536
_SETTLE_SECONDS = 30.0
# Computed attributes that only some videos have.
_OPTIONAL = frozenset(("replaced", "held", "damaged", "damaged_frames"))


class AttributeChanges:
    """Changes mode, owner and times. The kernel has checked the permission to do so."""

    def __init__(
        self,
        context: StoreContext,
        names: DentryCache,
        open_inodes: OpenInodes,
    ) -> None:
        self._context = context
        self._names = names
        self._open_inodes = open_inodes

    def chmod(self, ino: int, mode: int) -> None:
        """Change the permission bits."""
        with self._names.changing() as change:
            node = self._node(change, ino)
            mode = stat.S_IFMT(node.mode) | mode & 0o7777
            change.tree.alter(ino, mode=mode, ctime_ns=time.time_ns())
        inode = self._open_inodes.peek(ino)
        if inode is not None:
            inode.setid = bool(mode & 0o6000)

    def chown(self, ino: int, uid: int | None, gid: int | None) -> None:
        """Change owner and group; None leaves a value unchanged."""
        with self._names.changing() as change:
            node = self._node(change, ino)
            change.tree.alter(
                ino,
                uid=node.uid if uid is None else uid,
                gid=node.gid if gid is None else gid,
                mode=node.mode if node.is_dir else without_setid(node.mode),
                ctime_ns=time.time_ns(),
            )
            if node.is_file:
                change.remove_xattr(ino, CAPABILITIES)

    def utimens(self, ino: int, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Set times in Unix nanoseconds; None leaves a time unchanged.

        The catalog stores signed 64-bit values (years 1678 to 2262). Other times are clamped to
        these, as on disks with narrower limits.
        """
        atime_ns, mtime_ns = _within_limits(atime_ns), _within_limits(mtime_ns)
        with self._names.changing() as change:
            node = self._node(change, ino)
            new_atime = node.atime_ns if atime_ns is None else atime_ns
            changes = {"atime_ns": new_atime, "ctime_ns": time.time_ns()}
            if mtime_ns is not None:
                changes["mtime_ns"] = mtime_ns
                if is_private(node) and not self._context.is_elsewhere(node):
                    path = self._context.directory.spool_file(ino)
                    os.utime(path, ns=(new_atime, mtime_ns))
            change.tree.alter(ino, **changes)

    def _node(self, change: TreeTransaction, ino: int) -> Node:
        change.touch(ino)
        node = change.tree.nodes([ino]).get(ino)
        if node is None:
            raise os_error(errno.ENOENT)
        return node


def _within_limits(time_ns: int | None) -> int | None:
    return None if time_ns is None else min(max(time_ns, -_LATEST_NS), _LATEST_NS)


class ExtendedAttributes:
    """Stored and computed extended attributes.

    Names are text with surrogateescape for bytes that are not UTF-8. Values are bytes.
    """

    def __init__(
        self,
        context: StoreContext,
        names: DentryCache,
        open_inodes: OpenInodes,
        classifier: Classifier,
        reports: Mapping[str, Callable[[], str]],
    ) -> None:
        self._context = context
        self._names = names
        self._open_inodes = open_inodes
        self._classifier = classifier
        self._reports = reports

    def get(self, node: Node, name: str) -> bytes:
        """Return a value. A computed one waits until the file is classified, up to 30 seconds.

        Raises `OSError`: ENODATA, EOPNOTSUPP for unknown namespaces.
        """
        if name == ATTRIBUTE and node.is_file:
            return b"1" if self._open_inodes.is_open(node.ino) else b"0"
        if name.startswith(COMPUTED) and node.is_file:
            value = self._computed(node, name.removeprefix(COMPUTED))
        elif name in self._reports and node.ino == ROOT:
            value = os.fsencode(self._reports[name]())
        else:
            _require_supported(name)
            value = self._names.xattrs(node.ino).get(os.fsencode(name))
        if value is None:
            raise os_error(errno.ENODATA)
        return value

    def identity(self, path: str) -> bytes:
        """Return the value of `vfsd.disk.mount_queries.IDENTITY` for a path."""
        directory = self._context.directory
        root = str(directory.location)
        return MountedNode(directory.identity, root, path.strip("/")).encode()

    def list(self, node: Node, caller: Caller) -> list[str]:
        """Return all names visible to the caller. ``trusted.`` names are for root; see xattr(7).

        For a file that waits for classification, only what is known so far.
        """
        names = [os.fsdecode(name) for name in self._names.xattrs(node.ino)]
        if not caller.is_privileged:
            names = [name for name in names if not name.startswith(_TRUSTED)]
        if node.is_file:
            names += self._computed_names(node, names)
        return names

    def _computed_names(self, node: Node, names: Sequence[str]) -> Sequence[str]:
        """Return the computed names that fit into a list after the stored `names`."""
        keys = ["state"]
        if self._reason(node):
            keys.append("reason")
        if node.state is FileState.VIDEO:
            values = self._present_optional(node)
            keys += [key for key in _VIDEO_ATTRIBUTES if key not in _OPTIONAL or key in values]
        found, free = [], _LIST_BYTES - _list_bytes([os.fsencode(name) for name in names])
        for name in (COMPUTED + key for key in keys):
            free -= len(name) + 1
            if free < 0:
                break
            found.append(name)
        return found

    def set(self, node: Node, name: str, value: bytes, flags: int) -> None:
        """Set a value.

        `flags` is 0, XATTR_CREATE (EEXIST if present) or XATTR_REPLACE (ENODATA if missing).
        Computed attributes are silently left unchanged; see `_is_computed`.
        """
        _require_supported(name)
        if _is_computed(node, name):
            return
        if len(value) > _VALUE_BYTES:
            raise os_error(errno.E2BIG)
        encoded = os.fsencode(name)
        with self._names.changing() as change:
            known = self._names.xattrs(node.ino)
            if flags & os.XATTR_CREATE and encoded in known:
                raise os_error(errno.EEXIST)
            if flags & os.XATTR_REPLACE and encoded not in known:
                raise os_error(errno.ENODATA)
            # Any file may become a video later, so every file leaves room for all computed names.
            limit = _LIST_BYTES - _computed_bytes() if node.is_file else _LIST_BYTES
            if encoded not in known and _list_bytes(known) + len(encoded) + 1 > limit:
                raise os_error(errno.ENOSPC)
            change.tree.alter(node.ino, ctime_ns=time.time_ns())
            change.set_xattr(node.ino, encoded, value)
        inode = self._open_inodes.peek(node.ino)
        # The next write must remove them, as the kernel does for other file systems.
        if inode is not None and encoded == CAPABILITIES:
            inode.has_capabilities = True

    def remove(self, node: Node, name: str) -> None:
        """Remove an attribute. Raises ENODATA if missing; computed ones stay, as in `set`."""
        _require_supported(name)
        if _is_computed(node, name):
            return
        with self._names.changing() as change:
            if not change.remove_xattr(node.ino, os.fsencode(name)):
                raise os_error(errno.ENODATA)
            change.tree.alter(node.ino, ctime_ns=time.time_ns())

    def _computed(self, node: Node, key: str) -> bytes | None:
        # A program that closes a file and asks for its codec expects an answer.
        settled = self._classifier.settle(node.ino, _SETTLE_SECONDS) or node
        if key == "state":
            return self._state(settled).encode() if settled.state is not None else None
        if key == "reason":
            reason = self._reason(settled)
            return None if reason is None else os.fsencode(reason)
        if key not in _VIDEO_ATTRIBUTES or settled.state is not FileState.VIDEO:
            return None
        try:
            with self._context.catalog.reading() as seen:
                video = seen.videos.by_inode(node.ino)
        except NotFoundError:
            return None
        if key in _OPTIONAL and key not in self._present_optional(node):
            return None
        return _VIDEO_ATTRIBUTES[key](video, self._context.catalog).encode()

    def _state(self, node: Node) -> str:
        if self._classifier.waits_for_upload(node.ino) or is_waiting(node):
            return WAITS_FOR_UPLOAD
        assert node.state is not None
        # Where the bytes of a file are makes no difference to its users.
        state = FileState.PLAIN if node.state is FileState.STORED else node.state
        return str(state.value)

    def _reason(self, node: Node) -> str | None:
        """Return why a file is not a video, is not examined yet, or cannot be decoded."""
        if node.state is FileState.PLAIN or node.state is FileState.SPOOLED:
            if self._context.is_elsewhere(node):
                return self._context.elsewhere_reason(node)
            return node.reason or None
        if node.state is FileState.STORED:
            return node.reason or None
        if node.state is not FileState.VIDEO:
            return None
        try:
            with self._context.catalog.reading() as seen:
                video = seen.videos.by_inode(node.ino)
        except NotFoundError:
            return None
        entry = self._context.quarantine.of(video.original)
        return entry.reason if entry is not None and entry.barred else None

    def _present_optional(self, node: Node) -> Collection[str]:
        """Return which of `_OPTIONAL` the file has."""
        with self._context.catalog.reading() as seen:
            try:
                video = seen.videos.by_inode(node.ino)
            except NotFoundError:
                return ()
            values = ["held"] if seen.retention.holds(video.id) else []
            if seen.retention.replacement(video.id, video.digest) is not None:
                values.append("replaced")
            found = seen.integrity.inspection(video.original.place)
            if found is not None and found.damage:
                values.append("damaged")
            if video.original.damage is not None:
                values.append("damaged_frames")
            return values


def _require_supported(name: str) -> None:
    if len(os.fsencode(name)) > NAME_BYTES:
        raise os_error(errno.ERANGE)
    if not name.startswith(_NAMESPACES) or name in _NAMESPACES:
        raise os_error(errno.EOPNOTSUPP)


def _list_bytes(names: Collection[bytes]) -> int:
    """Return the size of the listxattr(2) result for these names: each ends with a NUL byte."""
    return sum(map(len, names)) + len(names)


def _computed_bytes() -> int:
    """Return the size of the listxattr(2) result for all computed names of a file."""
    return _list_bytes(
        [(COMPUTED + key).encode() for key in ("state", "reason", *_VIDEO_ATTRIBUTES)]
    )


def _is_computed(node: Node, name: str) -> bool:
    """Return whether a name is computed for files. Raises EPERM for other ``user.vfsd.`` names.

    ``rsync -X`` removes attributes that the source does not have; ``cp -a`` and ``tar --xattrs``
    set those of the source. If that failed, a tree with attributes could not be copied in twice, or
    restored.
    """
    if not name.startswith(COMPUTED):
        return False
    if node.is_file and name.removeprefix(COMPUTED) in {"state", "reason", *_VIDEO_ATTRIBUTES}:
        return True
    raise os_error(errno.EPERM)


def _rate(video: LogicalVideo, _: Catalog) -> str:
    rate = video.original.mean_rate
    return "unknown" if rate is None else str(rate)


def _layout(video: LogicalVideo, catalog: Catalog) -> str:
    segments = catalog.segments(video)
    return layout_text(video.original, catalog.frame_table(video.original), segments)


def _replaced(video: LogicalVideo, catalog: Catalog) -> str:
    with catalog.reading() as seen:
        done = seen.retention.replacement(video.id, video.digest)
    if done is None:
        return ""
    values = {"digest": done.digest, "size": done.size, "at_ns": done.at_ns, "psnr": done.psnr}
    return json.dumps(values)


def _held(video: LogicalVideo, catalog: Catalog) -> str:
    with catalog.reading() as seen:
        return hold_message(seen.retention.holds(video.id))


def _damaged(video: LogicalVideo, catalog: Catalog) -> str:
    with catalog.reading() as seen:
        found = seen.integrity.inspection(video.original.place)
    if found is None:
        return ""
    frames = None
    with suppress(IntegrityError):  # the frame table is damaged as well
        frames = [[one.start, one.stop] for one in catalog.unreadable_frames(video)]
    values = {
        "bytes": [[one.start, one.stop] for one in found.damage],
        "frames": frames,
        "found_ns": found.found_ns,
    }
    return json.dumps(values)


_VIDEO_ATTRIBUTES: dict[str, Callable[[LogicalVideo, Catalog], str]] = {
    "codec": lambda video, _: video.original.media.codec,
    "frames": lambda video, _: str(video.original.frames),
    "width": lambda video, _: str(video.original.media.display_width),
    "height": lambda video, _: str(video.original.media.display_height),
    "duration": lambda video, _: f"{float(video.original.duration):.6f}",
    "rate": _rate,
    "digest": lambda video, _: video.digest,
    "layout": _layout,
    "replaced": _replaced,
    "held": _held,
    "damaged": _damaged,
    "damaged_frames": lambda video, _: str(video.original.damaged_frames),
}
