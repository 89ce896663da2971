"""Turns files into videos.

Classifying a file is slow and needs no lock; publishing the verdict is one transaction. The caller
must check before publishing that the file was not changed since.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vfsd import __version__
from vfsd.catalog import ROOT, Transaction, require_name, split_path
from vfsd.catalog.videos import Page
from vfsd.codecs import library_versions
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table_pages import paginate
from vfsd.core.model import FileState, LogicalVideo, Node, PhysicalVideo, Role
from vfsd.disk.block_checksums import BlockChecksums
from vfsd.disk.external_files import is_below, require_linkable
from vfsd.disk.object_store import Progress, digest_file
from vfsd.errors import (
    ExistsError,
    NotFoundError,
    RefusedMediaError,
    UsageError,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import clear_away
from vfsd.storage.sandbox_pool import sniff_open
from vfsd.write.pending_object import changed_during_read, pending_copy, pending_own_file

_FILE_LABEL = "this file"
"""What messages call one whose name may change meanwhile."""


@dataclass(frozen=True)
class AcceptedVideo:
    """The bytes are a video."""

    examination: Examination
    digest: str  #: blake3 of the file, hexadecimal
    sums: BlockChecksums
    mtime_ns: int | None = None  #: of a file that is indexed in place, when its bytes were read

    @property
    def size(self) -> int:
        """Bytes."""
        return self.sums.size


@dataclass(frozen=True)
class RejectedFile:
    """The bytes are no video that we serve."""

    reason: str


Verdict = AcceptedVideo | RejectedFile


def classify_file(parts: StoreContext, path: Path) -> Verdict:
    """Look at a file that nobody writes: is it a video, and what is in it?

    Raises `OSError` only where the file cannot be read.
    """
    try:
        examination = parts.examiner.examine(path, name=_FILE_LABEL)
    except RefusedMediaError as refusal:
        return _rejection(refusal)
    found = digest_file(path)
    return AcceptedVideo(examination, found.key, found.sums)


def reject_by_header(path: str | os.PathLike[str]) -> RejectedFile | None:
    """The verdict of `judge` on a file whose first bytes are those of no video; None for others.

    Raises `OSError` where the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is waited for else
    try:
        sniff_open(fd, _FILE_LABEL)
    except RefusedMediaError as refusal:
        return _rejection(refusal)
    finally:
        os.close(fd)
    return None


def _rejection(refusal: RefusedMediaError) -> RejectedFile:
    """The reason stands beside the name of the file, whatever that is by then."""
    return RejectedFile(str(refusal).removeprefix(f"{_FILE_LABEL}: "))


def publish_verdict(change: Transaction, node: Node, verdict: Verdict) -> None:
    """Write a verdict on a spooled file down.

    For `AcceptedVideo` the object has to be in place already, durable, and the node's row has to
    have the file's size and mtime.  Neither times nor the inode number change.
    """
    if isinstance(verdict, RejectedFile):
        change.videos.remove(node.ino)
        change.tree.alter(node.ino, state=FileState.PLAIN, reason=verdict.reason)
        return
    now = time.time_ns()
    change.objects.record(verdict.digest, verdict.size, now_ns=now)
    node = change.tree.update(
        node.ino,
        state=FileState.VIDEO,
        object_key=verdict.digest,
        link_path=None,
        reason=None,
        size=verdict.size,
    )
    _put_video(change, node, verdict, now)


# ------------------------------------------------------------------------------ from outside


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file outside the store, and the name that it is to have inside."""

    path: Path
    name: str
    size: int


def plan_tree(top: Path, under: str) -> Iterator[SourceFile]:
    """Every regular file below `top`, named as it lies there, in the directory `under`.

    Symbolic links are not followed.
    """
    for folder, folders, files in os.walk(top):
        folders.sort()
        for file in sorted(files):
            path = Path(folder) / file
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                inside = path.relative_to(top).as_posix()
                yield SourceFile(path, f"{under}/{inside}" if under else inside, found.st_size)


def require_outside_store(parts: StoreContext, source: SourceFile) -> None:
    """Raises `UsageError` for a file of the store's own, which only the store may know the use of.

    What is in its mount is another matter: that is copied as any file is.
    """
    path, top = source.path.resolve(), parts.directory.top
    if path.is_relative_to(top.resolve()) or is_below(path, top) or _is_private(parts, path):
        raise _own_file(source.path)


def _own_file(path: Path) -> UsageError:
    return UsageError(
        f"{path} is one of the store's own files",
        hint="copy what the mount or `vfsd ls` shows; `vfsd mv` gives a video another name",
    )


def _is_private(parts: StoreContext, path: Path) -> bool:
    """Whether a file is the private file of an inode under another name."""
    found = path.stat()
    return any(os.path.samestat(found, one.stat()) for _, one in parts.directory.spooled())


def is_ingested(
    parts: StoreContext,
    source: SourceFile,
    stream: int | None = None,
    *,
    in_largest_size: bool | None = None,
) -> bool:
    """Whether a video of that name, size and mtime is in the store: a copy went through before.

    With `stream`, its frames have to be those of that stream; with `in_largest_size`, they have to
    be shown so.
    """
    with parts.catalog.reading() as seen:
        try:
            node = seen.tree.resolve(source.name)
            if stream is not None or in_largest_size is not None:
                known = seen.videos.of_inode(node.ino).original.media
                if stream not in (None, known.stream_index):
                    return False
                if in_largest_size not in (None, known.in_largest_size):
                    return False
        except NotFoundError:
            return False
    return (
        node.state is FileState.VIDEO
        and node.size == source.size
        and node.mtime_ns == source.path.stat().st_mtime_ns
    )


def ingest_copy(
    parts: StoreContext,
    source: SourceFile,
    *,
    replace: bool = False,
    stream: int | None = None,
    in_largest_size: bool = False,
    on_progress: Progress | None = None,
) -> LogicalVideo:
    """Copy a video file into the store; the file's times and permissions go with it.

    Raises `RefusedMediaError`, `ExistsError` (unless `replace`), `NoSpaceError`, `BusyError` where
    somebody writes it meanwhile; the store is then as it was before.
    """
    require_name_free(parts, source.name, replace)
    before = source.path.stat()
    examination = parts.examiner.examine(
        source.path, name=source.path.name, stream=stream, in_largest_size=in_largest_size
    )
    arrival, found = pending_copy(parts, source.path, on_progress)
    verdict = AcceptedVideo(examination, found.key, found.sums)
    with arrival:
        _require_unchanged(source.path, before)
        with arrival.recorded() as change:
            video, replaced = _put_stored(change, source, verdict, replace)
    _delete_replaced(parts, replaced)
    return video


def ingest_own_file(
    parts: StoreContext,
    source: SourceFile,
    *,
    replace: bool = False,
    on_progress: Progress | None = None,
    check: Callable[[Examination], None] = lambda _: None,
) -> LogicalVideo:
    """Make a file that was written among the store's temporary ones a video; it is not copied.

    Its temporary name stays the caller's.  `check` sees what is in the file before anybody else
    does, and may raise.  Raises as `ingest_copy` does.
    """
    require_name_free(parts, source.name, replace)
    examination = parts.examiner.examine(source.path, name=source.name)
    check(examination)
    key, size, sums = digest_file(source.path, on_progress=on_progress)
    verdict = AcceptedVideo(examination, key, sums)
    arrival = pending_own_file(parts, source.path, key, size)
    with arrival, arrival.recorded() as change:
        video, replaced = _put_stored(change, source, verdict, replace)
    _delete_replaced(parts, replaced)
    return video


def ingest_link(
    parts: StoreContext,
    source: SourceFile,
    *,
    replace: bool = False,
    stream: int | None = None,
    in_largest_size: bool = False,
    on_progress: Progress | None = None,
) -> LogicalVideo:
    """Index a video file where it lies.  The store never writes or deletes it.

    Raises `RefusedMediaError`, `ExistsError` (unless `replace`), `UsageError` for a file of the
    store's own, `BusyError` where somebody writes it meanwhile: the table of one version does not
    go with the sums of another.
    """
    require_name_free(parts, source.name, replace)
    require_outside_store(parts, source)
    path = source.path.resolve()
    require_linkable(path)
    before = path.stat()
    examination = parts.examiner.examine(
        path, name=path.name, stream=stream, in_largest_size=in_largest_size
    )
    key, size, sums = digest_file(path, on_progress=on_progress)
    _require_unchanged(path, before)
    if parts.objects.is_one_with(path, key):
        raise _own_file(path)
    verdict = AcceptedVideo(examination, key, sums, before.st_mtime_ns)
    with parts.catalog.writing() as change:
        node, replaced = _new_file(change, source, replace)
        node = change.tree.update(node.ino, link_path=str(path), state=FileState.VIDEO, size=size)
        video = _put_video(change, node, verdict, time.time_ns())
    _delete_replaced(parts, replaced)
    return video


def make_directories(change: Transaction, path: str, *, uid: int, gid: int) -> Node:
    """The directory at `path`, made with its parents where they are missing.

    Raises `ExistsError` when a file is in the way.
    """
    node = change.tree.node(ROOT)
    for name in split_path(path):
        found = change.tree.lookup(node.ino, name)
        if found is None:
            found = change.tree.create(
                node.ino,
                name,
                stat.S_IFDIR | 0o755,
                uid=uid,
                gid=gid,
                now_ns=time.time_ns(),
            )
        if not found.is_dir:
            raise _name_conflict(name, path)
        node = found
    return node


def _name_conflict(name: str, path: str) -> ExistsError:
    return ExistsError(f"{name!r} in {path!r} is a file, not a directory")


def require_name_free(parts: StoreContext, name: str, replace: bool) -> None:
    """Raises `ExistsError` where a new file cannot have that name, as another has it, or lies where
    its directory would; `UsageError` for none at all."""
    if not split_path(name):
        raise UsageError(f"{name!r} cannot be the name of a file")
    for part in split_path(name):
        require_name(part)
    with parts.catalog.reading() as seen:
        node, above = seen.tree.node(ROOT), "/"
        for part in split_path(name):
            if not node.is_dir:
                raise _name_conflict(above, name)
            found = seen.tree.lookup(node.ino, part)
            if found is None:
                return
            node, above = found, part
    if not node.is_file:
        raise ExistsError(f"{name!r} is a directory")
    if not replace:
        raise ExistsError(
            f"{name!r} exists",
            hint="replace=True puts the new file in its place",
            command_hint="`--replace` puts the new file in its place",
        )


def _put_stored(
    change: Transaction, source: SourceFile, verdict: AcceptedVideo, replace: bool
) -> tuple[LogicalVideo, _ReplacedFile | None]:
    """The video of bytes that are a recorded object, under the name of `source`, and what had that
    before."""
    node, replaced = _new_file(change, source, replace)
    node = change.tree.update(
        node.ino, object_key=verdict.digest, state=FileState.VIDEO, size=verdict.size
    )
    return _put_video(change, node, verdict, time.time_ns()), replaced


@dataclass(frozen=True, slots=True)
class _ReplacedFile:
    """A file that has lost its name to another."""

    ino: int
    keys: set[str]  #: of the objects that nothing may need any more


def _delete_replaced(parts: StoreContext, replaced: _ReplacedFile | None) -> None:
    """Delete the bytes of what has lost its name: objects, and its private file."""
    if replaced is not None:
        clear_away(parts, keys=replaced.keys, inodes=[replaced.ino])


def file_version(found: os.stat_result) -> tuple[int, int, int]:
    """Another one when a file has been written, or another has its name."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _require_unchanged(path: Path, before: os.stat_result) -> None:
    if file_version(path.stat()) != file_version(before):
        raise changed_during_read(path)


def _new_file(
    change: Transaction, source: SourceFile, replace: bool
) -> tuple[Node, _ReplacedFile | None]:
    """An inode for `source`, under its name; what had the name before, and loses it."""
    found = source.path.stat()
    *folders, name = split_path(source.name)
    now = time.time_ns()
    parent = make_directories(change, "/".join(folders), uid=os.getuid(), gid=os.getgid())
    displaced = None
    if replace and change.tree.lookup(parent.ino, name) is not None:
        before = change.tree.unlink(parent.ino, name, now_ns=now)
        displaced = _ReplacedFile(before.ino, set())
        if before.nlink == 0:
            displaced.keys.update(change.objects.of_file(before.ino))
            change.tree.delete(before.ino)
    node = change.tree.create(
        parent.ino,
        name,
        stat.S_IFREG | stat.S_IMODE(found.st_mode),
        uid=os.getuid(),
        gid=os.getgid(),
        now_ns=now,
        state=FileState.SPOOLED,
    )
    node = change.tree.update(node.ino, mtime_ns=found.st_mtime_ns, atime_ns=found.st_atime_ns)
    return node, displaced


# ------------------------------------------------------------------------------------- values


def _put_video(
    change: Transaction, node: Node, verdict: AcceptedVideo, now_ns: int
) -> LogicalVideo:
    original = describe_original(
        verdict.examination,
        object_key=node.object_key,
        link_path=node.link_path,
        size=verdict.size,
        now_ns=now_ns,
    )
    video = change.videos.put(
        node.ino, original, encoded_pages(verdict.examination), digest=verdict.digest, now_ns=now_ns
    )
    put_audio(change, video.original, verdict.examination)
    change.integrity.put_sums(video.original.place, verdict.sums, mtime_ns=verdict.mtime_ns)
    return video


def put_audio(change: Transaction, original: PhysicalVideo, examination: Examination) -> None:
    """Write down what is known of an original's sound."""
    found = examination.sound
    if found is None:
        change.sounds.remove(original.id)
        return
    order = np.arange(len(found.columns))
    change.sounds.put(original.id, found.sound, paginate(found.columns, order))


def describe_original(
    examination: Examination,
    *,
    object_key: str | None,
    link_path: str | None,
    size: int,
    now_ns: int,
) -> PhysicalVideo:
    """What is stored about an original; its numbers are 0 until the catalog gives them."""
    shown = examination.columns.pts[examination.order]
    return PhysicalVideo(
        id=0,
        video_id=0,
        role=Role.ORIGINAL,
        media=examination.media,
        access=examination.access,
        frames=len(examination.order),
        packets=len(examination.columns),
        first_pts=int(np.min(shown)),
        end_pts=examination.end_pts,
        object_key=object_key,
        link_path=link_path,
        size=size,
        verified=examination.verified,
        parent_id=None,
        parameters={},
        software=software_versions(),
        created_ns=now_ns,
        notes=examination.notes,
        damage=examination.damage,
    )


def encoded_pages(examination: Examination) -> Iterator[Page]:
    """The frame table in the form in which it is stored."""
    return paginate(examination.columns, examination.order)


def software_versions() -> str:
    """What indexed or made it: our version and those of the libraries that read the media."""
    return f"vfsd {__version__}, {library_versions()}"
