"""Turns files into videos.

Classifying a file is slow and needs no lock; publishing the verdict is one transaction.
`PendingObject` puts an object in place first and removes it again if the transaction fails.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from vfsd import __version__
from vfsd.catalog import BUSY_SECONDS, ROOT, Transaction, require_name, split_path
from vfsd.catalog.videos import Page
from vfsd.codecs.cells.pack import packed_tables
from vfsd.codecs.probing.probe import Examination
from vfsd.codecs.pyav import library_versions
from vfsd.core.frame_table_pages import paginate
from vfsd.core.model import FileState, LogicalVideo, Node, PhysicalVideo, Role
from vfsd.disk.checksums import BlockChecksums
from vfsd.disk.external_files import is_below, require_linkable
from vfsd.disk.object_store import Digest, Progress, digest_file
from vfsd.errors import (
    BusyError,
    ExistsError,
    IntegrityError,
    LeaseLostError,
    NotFoundError,
    RefusedMediaError,
    UsageError,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import discard_failed, reclaim_or_log
from vfsd.storage.sandbox_pool import sniff_open

# Used in messages about a file whose name may change in the meantime.
_FILE_LABEL = "this file"

# How long to wait for the catalog after a wait for it has already timed out.
_BUSY_TIMEOUT_SECONDS = 1

# How often an object is put in place that another process deletes after its own upload.
_UPLOAD_ATTEMPTS = 3


@dataclass(frozen=True)
class AcceptedVideo:
    """The file is a video."""

    examination: Examination
    digest: str  #: blake3 of the file, hexadecimal
    sums: BlockChecksums
    mtime_ns: int | None = None  #: of a file that is indexed in place, when it was read

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.sums.size


@dataclass(frozen=True)
class RejectedFile:
    """The file is not a supported video."""

    reason: str


Verdict = AcceptedVideo | RejectedFile


def classify_file(parts: StoreContext, path: Path) -> Verdict:
    """Examine a file without a writer and return the verdict.

    Raises `OSError` only if the file cannot be read.
    """
    try:
        examination = parts.examiner.examine(path, name=_FILE_LABEL)
    except RefusedMediaError as refusal:
        return _rejection(refusal)
    found = digest_file(path)
    return AcceptedVideo(examination, found.key, found.sums)


def reject_by_header(path: str | os.PathLike[str]) -> RejectedFile | None:
    """Return the verdict if the first bytes rule out a video, otherwise None.

    Raises `OSError` if the file cannot be read.
    """
    # O_NONBLOCK: opening a pipe would block
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        sniff_open(fd, _FILE_LABEL)
    except RefusedMediaError as refusal:
        return _rejection(refusal)
    finally:
        os.close(fd)
    return None


def _rejection(refusal: RefusedMediaError) -> RejectedFile:
    # Users see the reason next to the current name of the file.
    return RejectedFile(str(refusal).removeprefix(f"{_FILE_LABEL}: "))


def publish_verdict(
    change: Transaction, node: Node, verdict: Verdict, arrival: PendingObject | None = None
) -> None:
    """Store the verdict on a spooled file.

    For `AcceptedVideo`, `arrival` is the object, which must be in place, and the node must have the
    file's size and mtime. Times and inode number do not change.  Raises `LeaseLostError`.
    """
    if isinstance(verdict, RejectedFile):
        change.videos.remove(node.ino)  # the file may have been a video before it was written
        change.tree.alter(node.ino, state=FileState.PLAIN, reason=verdict.reason)
        return
    now = time.time_ns()
    assert arrival is not None
    arrival.record(change)
    node = change.tree.update(
        node.ino,
        state=FileState.VIDEO,
        object_key=verdict.digest,
        link_path=None,
        reason=None,
        size=verdict.size,
    )
    _put_video(change, node, verdict, now)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file outside the store, and its name in the store."""

    path: Path
    name: str
    size: int


def plan_tree(top: Path, under: str) -> Iterator[SourceFile]:
    """Yield every regular file below `top` with its relative name in the directory `under`.

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
    """Raises `UsageError` for one of the store's private files.

    A file in the store's mount is copied like any other file.
    """
    path, top = source.path.resolve(), parts.directory.top
    if path.is_relative_to(top.resolve()) or is_below(path, top) or _is_private(parts, path):
        raise _own_file(source.path)


def _own_file(path: Path) -> UsageError:
    return UsageError(
        f"{path} is one of the store's own files",
        hint="copy files that the mount or `vfsd ls` shows; `vfsd mv` renames a video",
    )


def _is_private(parts: StoreContext, path: Path) -> bool:
    """Return whether a file is the private file of an inode under another name."""
    found = path.stat()
    return any(os.path.samestat(found, one.stat()) for _, one in parts.directory.spooled())


def is_ingested(
    parts: StoreContext,
    source: SourceFile,
    stream: int | None = None,
    *,
    in_largest_size: bool | None = None,
) -> bool:
    """Return whether the store has a video of that name, size and mtime from an earlier copy.

    With `stream`, its frames must be those of that stream.  With `in_largest_size`, they must be
    shown accordingly.
    """
    with parts.catalog.reading() as seen:
        try:
            node = seen.tree.resolve(source.name)
            if stream is not None or in_largest_size is not None:
                known = seen.videos.by_inode(node.ino).original.media
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
    """Copy a video file into the store with its times and permissions.

    Raises `RefusedMediaError`, `ExistsError` (unless `replace`), `NoSpaceError`, and `BusyError` if
    the file is written in the meantime.  On an error the store is unchanged.
    """
    require_name_free(parts, source.name, replace)
    before = source.path.stat()
    examination = parts.examiner.examine(
        source.path, name=source.path.name, stream=stream, in_largest_size=in_largest_size
    )
    arrival, found = pending_copy(parts, source.path, on_progress)
    verdict = AcceptedVideo(examination, found.key, found.sums)
    with arrival:
        # The examination and the copy must be of the same version.
        _require_unchanged(source.path, before)
        with arrival.recorded() as change:
            video, replaced = _put_stored(change, source, verdict, replace)
    delete_replaced(parts, replaced)
    return video


def ingest_own_file(
    parts: StoreContext,
    source: SourceFile,
    *,
    replace: bool = False,
    on_progress: Progress | None = None,
    check: Callable[[Examination], None] = lambda _: None,
) -> LogicalVideo:
    """Publish a file among the store's temporary files as a video without copying it.

    The caller keeps its temporary name.  `check` is called with the examination before publishing,
    and may raise. Raises as `ingest_copy` does.
    """
    require_name_free(parts, source.name, replace)
    examination = parts.examiner.examine(source.path, name=source.name)
    check(examination)
    key, size, sums = digest_file(source.path, on_progress=on_progress)
    verdict = AcceptedVideo(examination, key, sums)
    arrival = pending_own_file(parts, source.path, key, size)
    with arrival, arrival.recorded() as change:
        video, replaced = _put_stored(change, source, verdict, replace)
    delete_replaced(parts, replaced)
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
    """Index a video file in its place.  The store never writes or deletes it.

    Raises `RefusedMediaError`, `ExistsError` (unless `replace`), `UsageError` for one of the
    store's own files, and `BusyError` if the file is written in the meantime, because table and
    checksums must belong to the same version.
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
    if parts.objects.is_same_file(path, key):  # a hard link of an object
        raise _own_file(path)
    verdict = AcceptedVideo(examination, key, sums, before.st_mtime_ns)
    with parts.catalog.writing() as change:
        node, replaced = create_file(change, source, replace)
        node = change.tree.update(node.ino, link_path=str(path), state=FileState.VIDEO, size=size)
        video = _put_video(change, node, verdict, time.time_ns())
    delete_replaced(parts, replaced)
    return video


def make_directories(change: Transaction, path: str, *, uid: int, gid: int) -> Node:
    """Return the directory at `path`; create it and its parents if they are missing.

    Raises `ExistsError` if a file has that name.
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
    """Raises `ExistsError` if a new file cannot have that name, `UsageError` for an empty name.

    A file of that name is an error unless `replace` is set; a directory, or a file in place of a
    parent, always is.
    """
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
    if replace and node.nlink == 1:
        parts.require_here(node, name)
    if not replace:
        raise ExistsError(
            f"{name!r} exists",
            hint="replace=True replaces the file",
            command_hint="`--replace` replaces the file",
        )


def _put_stored(
    change: Transaction, source: SourceFile, verdict: AcceptedVideo, replace: bool
) -> tuple[LogicalVideo, ReplacedFile | None]:
    """Create the video of a recorded object under the name of `source`, and return the replaced
    file.
    """
    node, replaced = create_file(change, source, replace)
    node = change.tree.update(
        node.ino, object_key=verdict.digest, state=FileState.VIDEO, size=verdict.size
    )
    return _put_video(change, node, verdict, time.time_ns()), replaced


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file that has lost its name to another."""

    ino: int
    keys: set[str]  #: of objects that may be unused now


def delete_replaced(parts: StoreContext, replaced: ReplacedFile | None) -> None:
    if replaced is not None:
        reclaim_or_log(parts, keys=replaced.keys, inodes=[replaced.ino])


def file_version(found: os.stat_result) -> tuple[int, int, int]:
    """Return a value that changes when the file is written or replaced."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _require_unchanged(path: Path, before: os.stat_result) -> None:
    if file_version(path.stat()) != file_version(before):
        raise changed_during_read(path)


def create_file(
    change: Transaction, source: SourceFile, replace: bool
) -> tuple[Node, ReplacedFile | None]:
    """Create an inode for `source` under its name, and return the file that had the name before."""
    found = source.path.stat()
    *folders, name = split_path(source.name)
    now = time.time_ns()
    parent = make_directories(change, "/".join(folders), uid=os.getuid(), gid=os.getgid())
    displaced = None
    there = change.tree.lookup(parent.ino, name) if replace else None
    if there is not None:
        if there.nlink == 1 and change.tree.is_elsewhere(there):
            raise BusyError(
                f"{source.name!r} was written in another home of the store in the meantime",
                hint="replace it there, or try again",
            )
        before = change.tree.unlink(parent.ino, name, now_ns=now)
        displaced = ReplacedFile(before.ino, set())
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
    # `create` sets the current time, and policies count ages from the mtime of the source.
    node = change.tree.update(node.ino, mtime_ns=found.st_mtime_ns, atime_ns=found.st_atime_ns)
    return node, displaced


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
    change.integrity.put_checksums(video.original.place, verdict.sums, mtime_ns=verdict.mtime_ns)
    return video


def put_audio(change: Transaction, original: PhysicalVideo, examination: Examination) -> None:
    """Store the audio index of an original."""
    found = examination.sound
    if found is None:
        change.audio_tracks.remove(original.id)
        return
    order = np.arange(len(found.columns))
    change.audio_tracks.put(original.id, found.sound, paginate(found.columns, order))


def describe_original(
    examination: Examination,
    *,
    object_key: str | None,
    link_path: str | None,
    size: int,
    now_ns: int,
) -> PhysicalVideo:
    """Return the record of an original; its ids are 0 until the catalog assigns them."""
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
    """Return the frame table in its stored form."""
    return paginate(examination.columns, examination.order)


def software_versions() -> str:
    """Return the version of vfsd and of the libraries that read the media."""
    return f"vfsd {__version__}, {library_versions()}"


class PendingObject:
    """An object that is being added; as a context manager it deletes the object after a failure.

    In a store with a bucket, the bytes are there before the object is recorded.
    """

    def __init__(
        self,
        parts: StoreContext,
        key: str,
        size: int,
        ensure: Callable[[], None],
        source: Path | None = None,
    ) -> None:
        """`ensure` puts it in place, durably, if it is not there.

        With `source`, that file is uploaded, and `ensure` is for stores without a bucket only.
        """
        self._parts = parts
        self._ensure = ensure
        self._source = source
        self.key = key
        self.size = size  #: bytes
        self._place: str | None = None  #: in the bucket, of an upload that is not recorded yet
        self._is_recorded = False
        self.tables: Sequence[tuple[int, bytes]] = ()
        """Copies of the tables of its packs for the catalog, by position; see `packed_table`."""

    def ensure_stored(self) -> None:
        """Put it in place if it is not there.

        The first call is slow because it syncs or uploads, so make it without holding a lock.
        Raises `NoSpaceError`, `OSError`, `UnreachableError`.
        """
        if self._parts.objects.is_local:
            self._ensure()
        else:
            self.upload()

    def upload(self) -> None:
        """Send the object to the bucket if the store has one that lacks it.

        Raises as `ensure_stored`.
        """
        if self._parts.objects.is_local or self._place is not None:
            return
        for attempt in range(1, _UPLOAD_ATTEMPTS + 1):
            with self._parts.catalog.reading() as seen:
                if seen.objects.is_uploaded(self.key):
                    return
            if self._source is None:
                self._ensure()
            try:
                self._place = self._parts.objects.upload(self.key, self.size, source=self._source)
                return
            except FileNotFoundError:
                # Another process of this home has uploaded the same bytes, and deleted the file.
                if attempt == _UPLOAD_ATTEMPTS:
                    raise

    def record(self, change: Transaction) -> None:
        """Record the object in a transaction, after `ensure_stored`.

        Raises `LeaseLostError` if it must be uploaded again.
        """
        if self._parts.objects.is_local:
            # Garbage collection may have deleted it since; under the write lock it cannot.
            self._ensure()
            change.objects.record(self.key, self.size, now_ns=time.time_ns())
            return
        if self._place is not None:
            change.objects.record_upload(self.key, self.size, self._place, now_ns=time.time_ns())
            change.objects.record_tables(self.key, self.tables)
        elif change.objects.place(self.key) is None:
            raise LeaseLostError(
                f"object {self.key} was removed while it was added again", hint="try again"
            )
        self._is_recorded = True

    @contextmanager
    def recorded(self) -> Iterator[Transaction]:
        """Open a transaction in which the object is in place and recorded.

        After its success the object is not garbage.  Raises as `ensure_stored` and any transaction
        do.
        """
        for is_last in (False, True):
            self.ensure_stored()
            with self._parts.catalog.writing() as change:
                try:
                    self.record(change)
                except LeaseLostError:
                    if is_last:
                        raise
                else:
                    yield change
                    return
            self._abandon()

    def withdraw(self, *, timeout: float = BUSY_SECONDS) -> None:
        """Delete the object after a failure, unless another file needs it by now.

        Waits at most `timeout` seconds for other writers of the catalog.
        """
        self._abandon()
        discard_failed(self._parts, self.key, timeout)
        self._parts.objects.release(self.key)

    def _abandon(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            self._parts.objects.abandon(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, BusyError):
            self.withdraw(timeout=_BUSY_TIMEOUT_SECONDS)
        elif kind is not None:
            self.withdraw()
        elif self._is_recorded:
            self._parts.objects.release(self.key)


def pending_bytes(parts: StoreContext, data: bytes, what: str) -> PendingObject:
    """Store bytes from memory; `what` is their name in errors.

    Raises `NoSpaceError`.
    """
    found = parts.objects.put_bytes(data, what)

    def ensure() -> None:
        if not parts.objects.is_here(found.key):
            parts.objects.put_bytes(data, what)

    pending = PendingObject(parts, found.key, found.size, ensure)
    if not parts.objects.is_local:
        pending.tables = packed_tables(lambda at, size: data[at : at + size], len(data))
    return pending


def pending_own_file(parts: StoreContext, path: Path, key: str, size: int) -> PendingObject:
    """Prepare a file of the store without a writer, with bytes that hash to `key`.

    `ensure_stored` adds a second name for it; the first one stays.
    """
    return PendingObject(parts, key, size, lambda: parts.objects.adopt(path, key))


def pending_copy(
    parts: StoreContext, source: Path, on_progress: Progress | None
) -> tuple[PendingObject, Digest]:
    """Store a copy of a file, and return it with its digest.

    Raises `NoSpaceError`, `OSError`.  `ensure_stored` raises `BusyError` if the file has to be
    copied again and has changed.
    """
    found = parts.objects.put_file(source, on_progress=on_progress)

    def ensure() -> None:
        if parts.objects.is_here(found.key):
            return
        with ExitStack() as stack:
            try:
                copy = stack.enter_context(parts.objects.verified_copy(source, found.key))
            except IntegrityError:
                raise changed_during_read(source) from None
            parts.objects.exchange(copy, found.key)

    return PendingObject(parts, found.key, found.size, ensure), found


def changed_during_read(path: Path) -> BusyError:
    return BusyError(f"{path} was written while it was read", hint="try again later")
