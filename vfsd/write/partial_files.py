"""Files that are being written, and what they are to be called.

They lie among the objects on their way, each with a note beside it that tells its name, so that
others can read what is there already.  The catalog knows nothing of them.  What a process leaves
behind that ends before it is done is a recording that was not finished: see
`vfsd.write.recordings`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vfsd.core.atfork import at_fork
from vfsd.disk.direct_io import open_stored
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.tempfiles import NewFile, is_in_hand
from vfsd.errors import (
    BusyError,
    ExistsError,
    ForbiddenError,
    IntegrityError,
    NotFoundError,
    ReadOnlyError,
    StoreError,
)

RECOVER = (
    "`vfsd recover` makes a video of it; until then it keeps its room, which "
    "`vfsd gc --recordings 0` gives back"
)
"""What can be done about one that is left."""

_NO_FAULT_OF_THE_FILE = (
    OSError,
    StoreError,
    ExistsError,
    ForbiddenError,
    NotFoundError,
    ReadOnlyError,
)

_NOTE = ".json"

_log = logging.getLogger(__name__)


class Held:
    """A file in the hands of this process, and not in those of its forked children."""

    def __init__(self, new: NewFile) -> None:
        self._new = new
        at_fork(self)

    def let_go(self) -> None:
        self._new.close()

    @property
    def is_let_go(self) -> bool:
        return self._new.file.closed

    def begin_anew(self) -> None:
        """See `vfsd.core.atfork`.  It is the parent who writes; a child may live longer."""
        self.let_go()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A file on its way."""

    name: str  #: that it is to have in the store
    path: Path
    held: Held | None = field(default=None, compare=False)  #: where it is this process's

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
        return self.path.with_name(self.path.name + _NOTE)


def begin(objects: ObjectStore, name: str) -> Unfinished:
    """A new, empty file for the video `name`.

    Raises `BusyError` while another live process or writer is at that name.
    """
    with objects.beginning_alone():
        for other in unfinished(objects):
            if other.name == name:
                raise BusyError(
                    f"{name!r} is being written by process {other.writer}",
                    hint="wait until it is done, or take another name",
                )
        return _noted_file(objects, name)


def _noted_file(objects: ObjectStore, name: str) -> Unfinished:
    """A file whose name others can see.  Raises `OSError`."""
    new = objects.new_file()
    file = Unfinished(name, new.path, Held(new))
    note = file.path.with_name(file.path.name + _NOTE)
    part = note.with_name(note.name + ".part")
    try:
        part.write_text(json.dumps({"name": name}), encoding="ascii")
        os.replace(part, note)
    except BaseException:
        part.unlink(missing_ok=True)
        file.remove()
        raise
    return file


def unfinished(objects: ObjectStore) -> Iterator[Unfinished]:
    """All files that live processes write."""
    return (file for file in _noted(objects) if is_in_hand(file.path))


def left_behind(objects: ObjectStore) -> Iterator[Unfinished]:
    """All that nobody writes any more."""
    return (file for file in _noted(objects) if not is_in_hand(file.path))


def may_pass(error: BaseException) -> bool:
    """Whether publishing the same file may succeed another time, or under another name.

    Nothing is wrong with it, then: the name was taken while it was written, or what has it is held.
    """
    return isinstance(error, _NO_FAULT_OF_THE_FILE) and not isinstance(error, IntegrityError)


def _noted(objects: ObjectStore) -> Iterator[Unfinished]:
    for note in objects.on_their_way():
        if note.suffix != _NOTE:
            continue
        with suppress(
            OSError, ValueError, KeyError, TypeError, RecursionError
        ):  # it may go at any moment
            with open(note, encoding="ascii", opener=open_stored) as file:
                name = json.load(file)["name"]
            yield Unfinished(str(name), note.with_name(note.name.removesuffix(_NOTE)))
