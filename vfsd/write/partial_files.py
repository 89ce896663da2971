"""Files that are being written, and unfinished recordings.

Each `PartialFile` is among the incoming objects, with a JSON note of its name that other processes
can read.  A file whose writer died becomes an `UnfinishedRecording`, which `vfsd recover` can
publish.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from vfsd.core.atfork import reset_after_fork
from vfsd.core.clock_check import is_plausible_time
from vfsd.core.timebase import human_bytes
from vfsd.disk.direct_io import open_stored
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.tempfiles import NewFile, claimed, is_locked
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
        """See `vfsd.core.atfork`.  The parent is the writer, and a child may outlive it."""
        self.unlock()


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A file that is being written."""

    name: str  #: of the future video
    path: Path
    held: OwnedFile | None = field(default=None, compare=False)  #: set if this process writes it

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
        for path in (self._note, self.path):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s could not be deleted and is left for `vfsd gc`: %s", path, error)

    @property
    def _note(self) -> Path:
        return self.path.with_name(self.path.name + _NOTE_SUFFIX)


def create_partial(objects: ObjectStore, name: str) -> PartialFile:
    """Create an empty file for the video `name`.

    Raises `BusyError` while another live process or writer uses that name.
    """
    with objects.exclusive_start():
        for other in active_partials(objects):
            if other.name == name:
                raise BusyError(
                    f"{name!r} is being written by process {other.writer}",
                    hint="wait until it is done, or use another name",
                )
        return _create_with_note(objects, name)


def _create_with_note(objects: ObjectStore, name: str) -> PartialFile:
    """Create a file with a note that tells others its name.  Raises `OSError`."""
    new = objects.new_file()
    file = PartialFile(name, new.path, OwnedFile(new))
    note = file.path.with_name(file.path.name + _NOTE_SUFFIX)
    part = note.with_name(note.name + ".part")
    try:
        part.write_text(json.dumps({"name": name}), encoding="ascii")
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
                name = json.load(file)["name"]
            yield PartialFile(str(name), note.with_name(note.name.removesuffix(_NOTE_SUFFIX)))


KEPT_DAYS = 30
"""Then `vfsd gc` deletes an unfinished recording."""
_DAY_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class UnfinishedRecording:
    """A recording that was not finished."""

    name: str  #: of the future video
    path: Path
    size: int  #: bytes
    at_ns: int  #: last write, Unix time

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
            found.append(UnfinishedRecording(file.name, file.path, seen.st_size, seen.st_mtime_ns))
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
    if seen.st_nlink < 2:
        return False
    with parts.catalog.reading() as looking:
        sizes = looking.objects.sizes()
    return any(
        size == seen.st_size and parts.objects.is_same_file(path, key)
        for key, size in sizes.items()
    )
