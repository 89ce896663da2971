"""Files that are being written, and recordings that were left unfinished.

Each `PartialFile` lies among the incoming objects with a JSON note that holds its name, so that
other processes can read it. A file whose writer died becomes an `UnfinishedRecording`, which `vfsd
recover` can publish.
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
    "`vfsd recover` makes a video of it; until then it keeps its room, which "
    "`vfsd gc --recordings 0` gives back"
)
"""What can be done about one that is left."""

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
    """A file in the hands of this process, and not in those of its forked children."""

    def __init__(self, new: NewFile) -> None:
        self._new = new
        reset_after_fork(self)

    def let_go(self) -> None:
        self._new.close()

    @property
    def is_let_go(self) -> bool:
        return self._new.file.closed

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`.  It is the parent who writes; a child may live longer."""
        self.let_go()


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A file on its way."""

    name: str  #: that it is to have in the store
    path: Path
    held: OwnedFile | None = field(default=None, compare=False)  #: where it is this process's

    @property
    def writer(self) -> int:
        """The process that writes it."""
        return int(self.path.name.partition("-")[0])

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it has reached the disk, so that there is nothing to recover."""
        try:
            return not self.path.stat().st_size
        except FileNotFoundError:
            return True

    def remove(self) -> None:
        """Its bytes, and the note; who has it open keeps it.

        Nothing in a forked child, nor of what was left.  What cannot be deleted is left for
        `vfsd gc`: all else is done, or has failed, before.
        """
        if self.writer != os.getpid() or (self.held is not None and self.held.is_let_go):
            return
        self.delete()
        self.leave()

    def leave(self) -> None:
        """Let it lie, as somebody who dies does: what is there can be recovered."""
        if self.held is not None:
            self.held.let_go()

    def delete(self) -> None:
        """Its bytes, and the note, whoever wrote them; what cannot be deleted is left."""
        for path in (self._note, self.path):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s could not be deleted, `vfsd gc` does it: %s", path, error)

    @property
    def _note(self) -> Path:
        return self.path.with_name(self.path.name + _NOTE_SUFFIX)


def create_partial(objects: ObjectStore, name: str) -> PartialFile:
    """A new, empty file for the video `name`.

    Raises `BusyError` while another live process or writer is at that name.
    """
    with objects.beginning_alone():
        for other in active_partials(objects):
            if other.name == name:
                raise BusyError(
                    f"{name!r} is being written by process {other.writer}",
                    hint="wait until it is done, or take another name",
                )
        return _create_with_note(objects, name)


def _create_with_note(objects: ObjectStore, name: str) -> PartialFile:
    """A file whose name others can see.  Raises `OSError`."""
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
    """All files that live processes write."""
    return (file for file in _partials_with_notes(objects) if is_locked(file.path))


def abandoned_partials(objects: ObjectStore) -> Iterator[PartialFile]:
    """All that nobody writes any more."""
    return (file for file in _partials_with_notes(objects) if not is_locked(file.path))


def is_retryable(error: BaseException) -> bool:
    """Whether publishing the same file may succeed another time, or under another name.

    Nothing is wrong with it, then: the name was taken while it was written, or what has it is held.
    """
    return isinstance(error, _RETRYABLE_ERRORS) and not isinstance(error, IntegrityError)


def _partials_with_notes(objects: ObjectStore) -> Iterator[PartialFile]:
    for note in objects.on_their_way():
        if note.suffix != _NOTE_SUFFIX:
            continue
        with suppress(
            OSError, ValueError, KeyError, TypeError, RecursionError
        ):  # it may go at any moment
            with open(note, encoding="ascii", opener=open_stored) as file:
                name = json.load(file)["name"]
            yield PartialFile(str(name), note.with_name(note.name.removesuffix(_NOTE_SUFFIX)))


KEPT_DAYS = 30
"""After that `vfsd gc` takes a recording away."""
_DAY_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class UnfinishedRecording:
    """A recording that was not finished."""

    name: str  #: that it was to have
    path: Path
    size: int  #: bytes
    at_ns: int  #: when it was last written, Unix time

    def __str__(self) -> str:
        return (
            f"a recording of {self.name!r} was not finished ({human_bytes(self.size)}): "
            f"`vfsd recover` makes a video of it, `vfsd gc` deletes it after {KEPT_DAYS} days, "
            "with `--recordings 0` at once"
        )

    def is_older(self, days: float) -> bool:
        """Of one that was written while the clock had forgotten the time that is not known: it is
        older than nothing but 0 days."""
        if days > 0 and not is_plausible_time(self.at_ns):
            return False
        return time.time_ns() - self.at_ns >= days * _DAY_NS

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Have it for oneself.  Raises `BusyError`, and `NotFoundError` where it has gone."""
        with claimed(self.path):
            yield

    def forget(self) -> None:
        """Delete it; whoever does that has claimed it.  Raises `OSError`."""
        PartialFile(self.name, self.path).delete()


def unfinished_recordings(parts: StoreContext) -> list[UnfinishedRecording]:
    """All that nobody has in hand; the oldest first."""
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
    """The name that it was to have; another like it where somebody has that, or writes it."""
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
    raise AssertionError("there is always another number")


def _is_published(parts: StoreContext, path: Path, seen: os.stat_result) -> bool:
    """Whether who wrote or recovered it died only after it had become a video, whatever that is
    called."""
    if seen.st_nlink < 2:
        return False
    with parts.catalog.reading() as looking:
        sizes = looking.objects.sizes()
    return any(
        size == seen.st_size and parts.objects.is_one_with(path, key) for key, size in sizes.items()
    )
