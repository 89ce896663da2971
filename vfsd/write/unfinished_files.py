"""Files that are being written, and what processes that died have left: unfinished recordings,
unclassified files, orphaned inodes and temporary files.  Each `PartialFile` has a JSON note of
its name, and of its time of recording if that is known, that other processes can read.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from vfsd.catalog import ROOT, Transaction
from vfsd.core.capture_time import CaptureClock, CaptureTime
from vfsd.core.model import FileState, Node
from vfsd.core.process_control import reset_after_fork
from vfsd.core.retention_policy import is_plausible_time
from vfsd.core.timebase import human_bytes
from vfsd.disk.object_store import ObjectStore, digest_file
from vfsd.disk.safe_open import STAYS, open_stored
from vfsd.disk.store_layout import fsync_path
from vfsd.disk.tempfiles import NewFile, claimed, delete_file, is_locked
from vfsd.errors import (
    BusyError,
    ExistsError,
    ForbiddenError,
    IntegrityError,
    NotFoundError,
    ReadOnlyError,
    StoreError,
)
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import (
    AcceptedVideo,
    PendingObject,
    Verdict,
    classify_file,
    file_version,
    pending_own_file,
    publish_verdict,
)

RECOVER_HINT = (
    "`vfsd recover` makes a video of it; until then it takes disk space, which `vfsd gc "
    "--recordings 0` frees"
)
"""The options for an unfinished recording."""

_RETRYABLE_ERRORS = (
    OSError,
    StoreError,
    ExistsError,
    ForbiddenError,
    NotFoundError,
    ReadOnlyError,
)

_NOTE_SUFFIX = ".json"

_log = logging.getLogger(__name__)

KEPT_DAYS = 30
"""Then `vfsd gc` deletes an unfinished recording."""
_DAY_NS = 24 * 3600 * 10**9


class OwnedFile:
    """A file that belongs to this process, but not to its forked children."""

    def __init__(self, new: NewFile) -> None:
        self._new = new
        reset_after_fork(self)

    def unlock(self) -> None:
        self._new.close()

    @property
    def is_unlocked(self) -> bool:
        return self._new.file.closed

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`.  The parent is the writer, and a child may outlive
        it."""
        self.unlock()


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A file that is being written."""

    name: str  #: of the future video
    path: Path
    held: OwnedFile | None = field(default=None, compare=False)  #: set if this process writes it
    captured: CaptureTime | None = None  #: when it was recorded, as known at its beginning

    @property
    def writer(self) -> int:
        """The process id of the writer."""
        return int(self.path.name.partition("-")[0])

    @property
    def is_empty(self) -> bool:
        """Whether no byte has reached the disk, so that there is nothing to recover."""
        try:
            return not self.path.stat().st_size
        except FileNotFoundError:
            return True

    def remove(self) -> None:
        """Delete the bytes and the note; processes that have the file open keep it.

        Does nothing in a forked child or after `keep_for_recovery`.  A file that cannot be deleted
        is left for `vfsd gc`, because the result of the write is decided already.
        """
        if self.writer != os.getpid() or (self.held is not None and self.held.is_unlocked):
            return
        self.delete()
        self.keep_for_recovery()

    def keep_for_recovery(self) -> None:
        """Keep the file for recovery, as if the process had died."""
        if self.held is not None:
            self.held.unlock()

    def delete(self) -> None:
        """Delete the bytes and the note of any writer; files that cannot be deleted stay."""
        # The note goes first: bytes without a note are a leftover that `vfsd gc` deletes.
        for path in (self._note, self.path):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s could not be deleted and is left for `vfsd gc`: %s", path, error)

    @property
    def _note(self) -> Path:
        return self.path.with_name(self.path.name + _NOTE_SUFFIX)


def create_partial(
    objects: ObjectStore, name: str, captured: CaptureTime | None = None
) -> PartialFile:
    """Create an empty file for the video `name`, which a recovery gives the time `captured`.

    Raises `BusyError` while another live process or writer uses that name.
    """
    # Two processes must not both find the name unused.
    with objects.exclusive_start():
        for other in active_partials(objects):
            if other.name == name:
                raise BusyError(
                    f"{name!r} is being written by process {other.writer}",
                    hint="wait until it is done, or use another name",
                )
        return _create_with_note(objects, name, captured)


def _create_with_note(objects: ObjectStore, name: str, captured: CaptureTime | None) -> PartialFile:
    """Create a file with a note that tells others its name.  Raises `OSError`."""
    new = objects.new_file()
    file = PartialFile(name, new.path, OwnedFile(new), captured)
    known: dict[str, object] = {"name": name}
    if captured is not None:
        known |= {"captured_ns": captured.ns, "clock": captured.clock.value}
    note = file.path.with_name(file.path.name + _NOTE_SUFFIX)
    part = note.with_name(note.name + ".part")
    try:
        # Other processes must never read half a note.
        part.write_text(json.dumps(known), encoding="ascii")
        os.replace(part, note)
    except BaseException:
        part.unlink(missing_ok=True)
        file.remove()
        raise
    return file


def active_partials(objects: ObjectStore) -> Iterator[PartialFile]:
    """Yield all files of live processes."""
    return (file for file in _partials_with_notes(objects) if is_locked(file.path))


def abandoned_partials(objects: ObjectStore) -> Iterator[PartialFile]:
    """Yield all files without a writer."""
    return (file for file in _partials_with_notes(objects) if not is_locked(file.path))


def is_retryable(error: BaseException) -> bool:
    """Return whether publishing the same file may succeed later, or under another name.

    These errors do not concern the file itself: for example the name is in use, or the old file is
    under a hold.
    """
    return isinstance(error, _RETRYABLE_ERRORS) and not isinstance(error, IntegrityError)


def _partials_with_notes(objects: ObjectStore) -> Iterator[PartialFile]:
    for note in objects.temporary_files():
        if note.suffix != _NOTE_SUFFIX:
            continue
        with suppress(
            OSError, ValueError, KeyError, TypeError, RecursionError
        ):  # it may be deleted at any moment
            with open(note, encoding="ascii", opener=open_stored) as file:
                known = json.load(file)
            captured = None
            if "clock" in known:
                captured = CaptureTime(int(known["captured_ns"]), CaptureClock(known["clock"]))
            path = note.with_name(note.name.removesuffix(_NOTE_SUFFIX))
            yield PartialFile(str(known["name"]), path, captured=captured)


@dataclass(frozen=True, slots=True)
class UnfinishedRecording:
    """A recording that was not finished."""

    name: str  #: of the future video
    path: Path
    size: int  #: bytes
    at_ns: int  #: last write, Unix time
    captured: CaptureTime | None = None  #: set if its recorder knew it

    def __str__(self) -> str:
        return (
            f"a recording of {self.name!r} was not finished ({human_bytes(self.size)}): "
            f"`vfsd recover` makes a video of it, `vfsd gc` deletes it after {KEPT_DAYS} days, "
            "with `--recordings 0` at once"
        )

    def is_older(self, days: float) -> bool:
        """Return whether the last write is `days` ago.

        With an implausible time of the last write, caused by a wrong clock, only 0 days count as
        passed.
        """
        if days > 0 and not is_plausible_time(self.at_ns):
            return False
        return time.time_ns() - self.at_ns >= days * _DAY_NS

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock it for the block.  Raises `BusyError`, and `NotFoundError` if it is gone."""
        with claimed(self.path):
            yield

    def forget(self) -> None:
        """Delete it; the caller must have claimed it.  Raises `OSError`."""
        PartialFile(self.name, self.path).delete()


def unfinished_recordings(parts: StoreContext) -> list[UnfinishedRecording]:
    """Return all recordings without a writer, oldest first."""
    found = []
    for file in abandoned_partials(parts.objects):
        try:
            seen = file.path.stat()
        except FileNotFoundError:
            continue
        if seen.st_size and not _is_published(parts, file.path, seen):
            found.append(
                UnfinishedRecording(
                    file.name, file.path, seen.st_size, seen.st_mtime_ns, file.captured
                )
            )
    return sorted(found, key=lambda one: one.at_ns)


def recovered_name(parts: StoreContext, recording: UnfinishedRecording) -> str:
    """Return the name for a recovered video: its own, or a numbered one if that is in use."""
    written = {one.name for one in active_partials(parts.objects) if one.path != recording.path}
    stem, ending = posixpath.splitext(recording.name)
    with parts.catalog.reading() as seen:
        for number in count():
            more = "" if not number else f"-recovered{f'-{number}' if number > 1 else ''}"
            name = f"{stem}{more}{ending}"
            if name in written:
                continue
            try:
                seen.tree.resolve(name)
            except NotFoundError:
                return name
    raise AssertionError("numbers do not run out")


def _is_published(parts: StoreContext, path: Path, seen: os.stat_result) -> bool:
    """Return whether the writer died after publishing the video under any name."""
    if not parts.objects.is_local:
        with parts.catalog.reading() as looking:
            sizes = looking.objects.sizes()
        return seen.st_size in sizes.values() and digest_file(path).key in sizes
    if seen.st_nlink < 2:  # publishing adds a second name
        return False
    with parts.catalog.reading() as looking:
        sizes = looking.objects.sizes()
    return any(
        size == seen.st_size and parts.objects.is_same_file(path, key)
        for key, size in sizes.items()
    )


def classify_spooled_file(parts: StoreContext, node: Node) -> Node | None:
    """Classify a spooled file that has no writer, and publish the verdict.

    Returns the updated node, or None if the file was changed in the meantime.
    """
    spool = parts.directory.spool_file(node.ino)
    before = spool.stat()
    verdict = classify_file(parts, spool)
    if parts.is_shared:
        from vfsd.write.shared_files import publish_spooled  # most stores have no bucket

        return publish_spooled(parts, node, verdict)
    with ExitStack() as arriving:
        arrival = None
        if isinstance(verdict, AcceptedVideo):
            fsync_path(spool)  # the catalog is not locked yet, so this may take a while
            own = pending_own_file(parts, spool, verdict.digest, verdict.size)
            arrival = arriving.enter_context(own)
            arrival.upload()
        settled = _published_verdict(parts, node, verdict, arrival, before)
        if settled is None and arrival is not None and not parts.objects.is_local:
            arrival.withdraw()
    if settled is not None and settled.state is FileState.VIDEO:
        parts.catalog.sync()  # the private name must not go before the new one is durable
        with parts.catalog.writing() as change:
            now = change.tree.nodes([node.ino]).get(node.ino)
            if now is None or now.state is FileState.VIDEO:  # otherwise it has a new writer
                spool.unlink(missing_ok=True)
    return settled


def _published_verdict(
    parts: StoreContext,
    node: Node,
    verdict: Verdict,
    arrival: PendingObject | None,
    before: os.stat_result,
) -> Node | None:
    """Publish a verdict, and return the updated node; None if the file was changed since
    `before`."""
    spool = parts.directory.spool_file(node.ino)
    with parts.catalog.writing() as change:
        now = change.tree.nodes([node.ino]).get(node.ino)
        if now is None or (now.state, now.generation) != (FileState.SPOOLED, node.generation):
            return None
        found = spool.stat()
        if file_version(found) != file_version(before):
            return None
        change.tree.update(node.ino, size=found.st_size, mtime_ns=found.st_mtime_ns)
        # Only now is it certain that these are the bytes that were hashed.
        publish_verdict(change, node, verdict, arrival)
        return change.tree.node(node.ino)


def delete_orphans(
    change: Transaction, orphans: Sequence[tuple[int, tuple[int, str] | None]]
) -> None:
    """Delete files that lost their name while they were open: the `orphans` of a home.

    Only for a home that is not mounted.  A file whose name was taken for a rename over it gets its
    name back if the rename never came and the directory still exists.  A file under a hold must not
    be deleted and gets a name at the top of the store.
    """
    now = time.time_ns()
    parents = change.tree.nodes(former[0] for _, former in orphans if former is not None)
    for ino, former in orphans:
        if former is not None and former[0] in parents and change.tree.lookup(*former) is None:
            change.tree.adopt_orphan(ino, *former, now_ns=now)
        elif change.retention.is_held(ino):
            name = unused_name(change, ROOT, f"held-{ino}")
            change.tree.adopt_orphan(ino, ROOT, name, now_ns=now)
        else:
            change.tree.delete(ino)


def unused_name(seen: Transaction, directory: int, wanted: str) -> str:
    """Return a name that is unused in a directory: `wanted`, or one of `numbered_names`."""
    return next(
        name for name in numbered_names(wanted) if seen.tree.lookup(directory, name) is None
    )


def numbered_names(name: str) -> Iterator[str]:
    """Yield a name, then the same name with `.1`, `.2` and so on."""
    yield name
    for number in count(1):
        yield f"{name}.{number}"


def find_leftovers(
    parts: StoreContext, *, but: Sequence[UnfinishedRecording] | None = None
) -> list[Path]:
    """Return files without a writer or an owner.

    These are objects, files next to the catalog, and copies by a mount or a backup.  The files of
    recordings are excluded: those of `but`, by default of all recordings.
    """
    kept = {one.path for one in (unfinished_recordings(parts) if but is None else but)}
    own = [path for path in parts.objects.leftovers() if parts.objects.main_file(path) not in kept]
    others = [*parts.directory.temporary_files(), *parts.directory.spool_copies()]
    return [*own, *(path for path in others if not is_locked(path))]


def delete_leftover(parts: StoreContext, path: Path) -> bool:
    """Delete a leftover file; return False if it is in use by now.

    Raises `IntegrityError` for a directory that is not empty, `OSError`.
    """
    if path.parent == parts.directory.objects_tmp:
        return parts.objects.delete_temporary(path)
    return delete_file(path)


def delete_leftovers(parts: StoreContext, left: Sequence[Path]) -> list[Path]:
    """Delete leftover files and return the deleted ones; others are in use or cannot be deleted."""
    gone = []
    for path in left:
        try:
            if delete_leftover(parts, path):
                gone.append(path)
        except STAYS as error:
            _log.warning("%s", error)
    return gone
