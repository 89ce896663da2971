"""Changes of mode, owner and times, and extended attributes.

Attributes below ``user.vfsd.`` are computed; users set all others.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from vfsd.catalog import NAME_BYTES, ROOT, Catalog
from vfsd.core.model import FileState, LogicalVideo, Node
from vfsd.core.retention_policy import hold_message
from vfsd.disk.mount_queries import MountedNode
from vfsd.errors import IntegrityError, NotFoundError
from vfsd.mount.fs.attributes import Caller, is_private
from vfsd.mount.fs.classify import Classifier
from vfsd.mount.fs.dentry_cache import DentryCache, TreeTransaction
from vfsd.mount.fs.handles import without_setid
from vfsd.mount.fs.open_inodes import CAPABILITIES, OpenInodes
from vfsd.mount.fs.syscalls import failure
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import ATTRIBUTE
from vfsd.views.layout_summary import layout_text

_LATEST_NS = (1 << 63) - 1


class AttributeChanges:
    """Changes of attributes.  Who may make them is the kernel's business."""

    def __init__(
        self, parts: StoreContext, names: DentryCache, contents: OpenInodes, now: Callable[[], int]
    ) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        self._now = now

    def chmod(self, ino: int, mode: int) -> None:
        with self._names.changing() as change:
            node = self._node(change, ino)
            mode = stat.S_IFMT(node.mode) | mode & 0o7777
            change.tree.alter(ino, mode=mode, ctime_ns=self._now())
        content = self._contents.peek(ino)
        if content is not None:
            content.setid = bool(mode & 0o6000)

    def chown(self, ino: int, uid: int | None, gid: int | None) -> None:
        """None leaves the owner or the group as it is."""
        with self._names.changing() as change:
            node = self._node(change, ino)
            change.tree.alter(
                ino,
                uid=node.uid if uid is None else uid,
                gid=node.gid if gid is None else gid,
                mode=node.mode if node.is_dir else without_setid(node.mode),
                ctime_ns=self._now(),
            )
            if node.is_file:
                change.remove_xattr(ino, CAPABILITIES)

    def utimens(self, ino: int, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Unix time in nanoseconds; None leaves a time as it is.

        Between 1678 and 2262, as there are 64 bits: others become the first or the last of these,
        as on disks with narrower limits.
        """
        atime_ns, mtime_ns = _within_limits(atime_ns), _within_limits(mtime_ns)
        with self._names.changing() as change:
            node = self._node(change, ino)
            new_atime = node.atime_ns if atime_ns is None else atime_ns
            changes = {"atime_ns": new_atime, "ctime_ns": self._now()}
            if mtime_ns is not None:
                changes["mtime_ns"] = mtime_ns
                if is_private(node):
                    path = self._parts.directory.spool_file(ino)
                    os.utime(path, ns=(new_atime, mtime_ns))
            change.tree.alter(ino, **changes)

    def _node(self, change: TreeTransaction, ino: int) -> Node:
        change.touch(ino)
        node = change.tree.nodes([ino]).get(ino)
        if node is None:
            raise failure(errno.ENOENT)
        return node


def _within_limits(time_ns: int | None) -> int | None:
    return None if time_ns is None else min(max(time_ns, -_LATEST_NS), _LATEST_NS)


COMPUTED = "user.vfsd."
TUNER = COMPUTED + "tuner"
"""Of the root, but in no listing: what a mount that makes tiles by itself is doing."""
STATS = COMPUTED + "stats"
"""Of the root, but in no listing: see `vfsd.mount.fs.mount_stats`."""

_TRUSTED = "trusted."
_SPACES = ("user.", _TRUSTED, "security.")
_VALUE_BYTES = 65536
_LIST_BYTES = 65536
_SETTLE_SECONDS = 30.0


class ExtendedAttributes:
    """Names are text, surrogateescape for what is not UTF-8; values are bytes."""

    def __init__(
        self,
        parts: StoreContext,
        names: DentryCache,
        contents: OpenInodes,
        judging: Classifier,
        reports: Mapping[str, Callable[[], str]],
        now: Callable[[], int],
    ) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        self._judging = judging
        self._reports = reports
        self._now = now

    def get(self, node: Node, name: str) -> bytes:
        """Waits, within bounds, for the judgement of a file whose computed value is wanted.

        Raises `OSError`: ENODATA, EOPNOTSUPP for name spaces that there are not.
        """
        if name == ATTRIBUTE and node.is_file:
            return b"1" if self._contents.is_open(node.ino) else b"0"
        if name.startswith(COMPUTED) and node.is_file:
            value = self._computed(node, name.removeprefix(COMPUTED))
        elif name in self._reports and node.ino == ROOT:
            value = os.fsencode(self._reports[name]())
        else:
            _require_supported(name)
            value = self._names.xattrs(node.ino).get(os.fsencode(name))
        if value is None:
            raise failure(errno.ENODATA)
        return value

    def identity(self, path: str) -> bytes:
        """What `mount_client.IDENTITY` says of a path.  Raises `OSError`."""
        directory = self._parts.directory
        root = str(directory.location)
        return MountedNode(directory.identity, root, path.strip("/")).encode()

    def list(self, node: Node, caller: Caller) -> list[str]:
        """All names that are for the caller: ``trusted.`` ones are for root, see xattr(7).

        Of a file that waits for its judgement only what is known yet.
        """
        names = [os.fsdecode(name) for name in self._names.xattrs(node.ino)]
        if not caller.is_privileged:
            names = [name for name in names if not name.startswith(_TRUSTED)]
        if node.is_file:
            names += self._computed_names(node, names)
        return names

    def _computed_names(self, node: Node, names: Sequence[str]) -> Sequence[str]:
        """Those that fit into a list beside the file's own `names`, which always do."""
        keys = ["state"]
        if self._reason(node):
            keys.append("reason")
        if node.state is FileState.VIDEO:
            told = self._told_of_original(node)
            keys += [key for key in _OF_VIDEOS if key not in _IF_SO or key in told]
        found, free = [], _LIST_BYTES - _list_bytes([os.fsencode(name) for name in names])
        for name in (COMPUTED + key for key in keys):
            free -= len(name) + 1
            if free < 0:
                break
            found.append(name)
        return found

    def set(self, node: Node, name: str, value: bytes, flags: int) -> None:
        """`flags` is 0, XATTR_CREATE (else EEXIST) or XATTR_REPLACE (else ENODATA).

        What is computed stays what it is, and who copies it along from another mount, or from a
        backup of one, is not told: see `_is_left_alone`.
        """
        _require_supported(name)
        if _is_left_alone(node, name):
            return
        if len(value) > _VALUE_BYTES:
            raise failure(errno.E2BIG)
        encoded = os.fsencode(name)
        with self._names.changing() as change:
            known = self._names.xattrs(node.ino)
            if flags & os.XATTR_CREATE and encoded in known:
                raise failure(errno.EEXIST)
            if flags & os.XATTR_REPLACE and encoded not in known:
                raise failure(errno.ENODATA)
            # A file may become a video later, so every file leaves room for all computed names.
            limit = _LIST_BYTES - _computed_bytes() if node.is_file else _LIST_BYTES
            if encoded not in known and _list_bytes(known) + len(encoded) + 1 > limit:
                raise failure(errno.ENOSPC)
            change.tree.alter(node.ino, ctime_ns=self._now())
            change.set_xattr(node.ino, encoded, value)
        content = self._contents.peek(node.ino)
        if content is not None and encoded == CAPABILITIES:
            content.grants = True

    def remove(self, node: Node, name: str) -> None:
        """ENODATA where there is none; what is computed stays, as in `set`."""
        _require_supported(name)
        if _is_left_alone(node, name):
            return
        with self._names.changing() as change:
            if not change.remove_xattr(node.ino, os.fsencode(name)):
                raise failure(errno.ENODATA)
            change.tree.alter(node.ino, ctime_ns=self._now())

    def _computed(self, node: Node, key: str) -> bytes | None:
        settled = self._judging.settle(node.ino, _SETTLE_SECONDS) or node
        if key == "state":
            return None if settled.state is None else settled.state.value.encode()
        if key == "reason":
            reason = self._reason(settled)
            return None if reason is None else os.fsencode(reason)
        if key not in _OF_VIDEOS or settled.state is not FileState.VIDEO:
            return None
        try:
            with self._parts.catalog.reading() as seen:
                video = seen.videos.of_inode(node.ino)
        except NotFoundError:
            return None
        if key in _IF_SO and key not in self._told_of_original(node):
            return None
        return _OF_VIDEOS[key](video, self._parts.catalog).encode()

    def _reason(self, node: Node) -> str | None:
        """Why a file is no video, or not examined yet, or why the pictures of one are not shown."""
        if node.state is FileState.PLAIN or node.state is FileState.SPOOLED:
            return node.reason or None
        if node.state is not FileState.VIDEO:
            return None
        try:
            with self._parts.catalog.reading() as seen:
                video = seen.videos.of_inode(node.ino)
        except NotFoundError:
            return None
        suspicion = self._parts.suspects.of(video.original)
        return suspicion.reason if suspicion is not None and suspicion.barred else None

    def _told_of_original(self, node: Node) -> Collection[str]:
        """Which of `_IF_SO` there is anything to say of."""
        with self._parts.catalog.reading() as seen:
            try:
                video = seen.videos.of_inode(node.ino)
            except NotFoundError:
                return ()
            told = ["held"] if seen.originals.holds(video.id) else []
            if seen.originals.replacement(video.id, video.digest) is not None:
                told.append("replaced")
            found = seen.integrity.inspection(video.original.place)
            if found is not None and found.damage:
                told.append("damaged")
            if video.original.damage is not None:
                told.append("damaged_frames")
            return told


def _require_supported(name: str) -> None:
    if len(os.fsencode(name)) > NAME_BYTES:
        raise failure(errno.ERANGE)
    if not name.startswith(_SPACES) or name in _SPACES:
        raise failure(errno.EOPNOTSUPP)


def _list_bytes(names: Collection[bytes]) -> int:
    """What listxattr(2) returns for these names: each ends with a zero."""
    return sum(map(len, names)) + len(names)


def _computed_bytes() -> int:
    """What listxattr(2) returns for all computed names of a file."""
    return _list_bytes([(COMPUTED + key).encode() for key in ("state", "reason", *_OF_VIDEOS)])


def _is_left_alone(node: Node, name: str) -> bool:
    """Whether a name is one of those that are computed for files; EPERM for others like them.

    ``rsync -X`` takes away what the source has not, ``cp -a`` and ``tar --xattrs`` bring what the
    source had: were that an error, no tree with attributes could be copied in twice, or back.
    """
    if not name.startswith(COMPUTED):
        return False
    if node.is_file and name.removeprefix(COMPUTED) in {"state", "reason", *_OF_VIDEOS}:
        return True
    raise failure(errno.EPERM)


def _rate(video: LogicalVideo, _: Catalog) -> str:
    rate = video.original.mean_rate
    return "unknown" if rate is None else str(rate)


def _layout(video: LogicalVideo, catalog: Catalog) -> str:
    segments = catalog.segments(video)
    return layout_text(video.original, catalog.frame_table(video.original), segments)


def _replaced(video: LogicalVideo, catalog: Catalog) -> str:
    with catalog.reading() as seen:
        done = seen.originals.replacement(video.id, video.digest)
    if done is None:
        return ""
    told = {"digest": done.digest, "size": done.size, "at_ns": done.at_ns, "psnr": done.psnr}
    return json.dumps(told)


def _held(video: LogicalVideo, catalog: Catalog) -> str:
    with catalog.reading() as seen:
        return hold_message(seen.originals.holds(video.id))


def _damaged(video: LogicalVideo, catalog: Catalog) -> str:
    with catalog.reading() as seen:
        found = seen.integrity.inspection(video.original.place)
    if found is None:
        return ""
    frames = None
    with suppress(IntegrityError):  # its frame table is damaged, too
        frames = [[one.start, one.stop] for one in catalog.unreadable_frames(video)]
    told = {
        "bytes": [[one.start, one.stop] for one in found.damage],
        "frames": frames,
        "found_ns": found.found_ns,
    }
    return json.dumps(told)


_IF_SO = frozenset(("replaced", "held", "damaged", "damaged_frames"))
"""Attributes that only some videos have."""
_OF_VIDEOS: dict[str, Callable[[LogicalVideo, Catalog], str]] = {
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
