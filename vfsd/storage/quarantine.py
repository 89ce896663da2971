"""Files whose decoding has ended a process of a mount: not decoded for mounts again.

Views are made of what was examined and found good, by a process that does so for the mount.  Should
a decoder crash all the same, that process is gone; but which encodings were being decoded stands in
a file that is mapped into memory, and outlives it, and behind that what the signal handler wrote
(see `faulthandler`).  The mount makes them suspects: their bytes can be read as ever, but their
pictures cannot, until a process of its own has decoded all of it and ended well (`vfsd verify`).
The mount keeps such a note as well, of what little it decodes itself, for the next one.

A kill, or a power cut, is no crash, and makes nobody a suspect.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import logging
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BufferedRandom
from pathlib import Path

from vfsd.core.atfork import reset_after_fork
from vfsd.core.model import ByteLocation, PhysicalVideo
from vfsd.disk.disk_reserve import with_reserve
from vfsd.disk.enospc import NO_SPACE
from vfsd.disk.object_store import is_key
from vfsd.disk.store_layout import StoreDirectory, fsync_path
from vfsd.disk.tempfiles import held_directory, put_in_place
from vfsd.errors import RefusedMediaError

_SLOTS = 512
_SLOT = struct.Struct("<q")
_TABLE_BYTES = _SLOTS * _SLOT.size
_MOST_TRACE = 64 << 10
_TRACE_ROOM = 16 << 10
"""For what the signal handler writes, should the disk be full by then; many threads take more."""
_MOST_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Of one file."""

    crashes: int  #: mounts that ended while it was decoded
    at: float  #: Unix time at which the last one was found out
    how: str  #: what the signal handler has said
    barred: bool  #: its pictures are not decoded in the process of who wants them

    @property
    def reason(self) -> str:
        return (
            f"decoding it may have crashed a mount ({self.how}); its bytes can be read, "
            "its pictures not"
        )


class Quarantine:
    """The suspects of a store, and the note of what is being decoded.  Thread-safe."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._path = directory.suspects
        self._guard = threading.Lock()
        self._known: dict[str, QuarantineEntry] = {}
        self._seen: tuple[int, int] | None = None
        self._note: mmap.mmap | None = None
        self._free = list(range(_SLOTS))
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        self._guard = threading.Lock()
        self._note = None  # that is the parent's
        self._free = list(range(_SLOTS))

    def of(self, physical: PhysicalVideo) -> QuarantineEntry | None:
        """What speaks against that file; None: nothing ever did."""
        return self._current().get(_key(physical))

    def barred(self) -> dict[ByteLocation, QuarantineEntry]:
        """Those whose pictures are not decoded, by where their bytes are."""
        return {_place(key): one for key, one in self._current().items() if one.barred}

    @contextmanager
    def decoding(self, physical: PhysicalVideo) -> Iterator[None]:
        """To be held while FFmpeg works on that file in this process.

        Raises `RefusedMediaError` for one that is barred.
        """
        suspicion = self.of(physical)
        if suspicion is not None and suspicion.barred:
            raise RefusedMediaError(
                suspicion.reason,
                hint="`vfsd verify NAME` decodes all of it in a process of its own, and lifts this "
                "where that ends well",
            )
        slot = self._occupy(physical.id)
        try:
            yield
        finally:
            if slot is not None:
                self._vacate(slot)

    def lift(self, physical: PhysicalVideo) -> None:
        """All of it was decoded elsewhere, and well; the crashes are remembered.  Raises
        `OSError`."""
        with self._changing():
            suspicion = self.of(physical)
            if suspicion is not None and suspicion.barred:
                told = {**asdict(suspicion), "barred": False}
                self._save({**self._current(), _key(physical): QuarantineEntry(**told)})

    def accuse(self, physical: PhysicalVideo, how: str) -> None:
        """It was being decoded when a mount crashed.  Raises `OSError`."""
        with self._changing():
            before = self.of(physical)
            crashes = 1 if before is None else before.crashes + 1
            suspicion = QuarantineEntry(crashes, time.time(), how, barred=True)
            self._save({**self._current(), _key(physical): suspicion})

    # -- the note

    @staticmethod
    def crashed(note: Path) -> tuple[list[int], str]:
        """The ids of encodings that were being decoded when a process crashed that kept this note,
        and how it did.

        Nothing where it ended otherwise.
        """
        try:
            with open(note, "rb") as file:
                table, trace = file.read(_TABLE_BYTES), file.read(_MOST_TRACE).rstrip(b"\0")
        except FileNotFoundError:
            return [], ""
        if len(table) < _TABLE_BYTES or not trace:
            return [], ""
        text = trace.decode("utf-8", "replace")
        _log.error("what showed videos has crashed:\n%s", text)
        ids = {number for (number,) in _SLOT.iter_unpack(table) if number}
        return sorted(ids), text.splitlines()[0].removeprefix("Fatal Python error: ")

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Keep the note in that file, which is this process's alone.

        A disk so full that not even the store's reserve has room for it has none.
        """
        path.unlink(missing_ok=True)  # what was in it was dealt with
        try:
            file = with_reserve(self._directory, partial(_new_note, path))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            _log.warning("what is being decoded is not noted, should that crash: the disk is full")
            yield
            return
        with file:
            note = mmap.mmap(file.fileno(), _TABLE_BYTES)
            faulthandler.enable(file, all_threads=True)
            self._note = note
            try:
                yield
            finally:
                self._note = None
                faulthandler.enable(sys.__stderr__ or 2)
                with self._guard:
                    note.close()
        path.unlink(missing_ok=True)

    def _occupy(self, number: int) -> int | None:
        if self._note is None or number <= 0:
            return None
        with self._guard:
            if not self._free or self._note is None:
                return None
            slot = self._free.pop()
            _SLOT.pack_into(self._note, slot * _SLOT.size, number)
        return slot

    def _vacate(self, slot: int) -> None:
        with self._guard:
            self._free.append(slot)
            if self._note is not None:
                _SLOT.pack_into(self._note, slot * _SLOT.size, 0)

    # -- the file

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Nobody else changes the file while the block lasts, in any thread or process."""
        with held_directory(self._path.parent, fcntl.LOCK_EX):
            self._seen = None  # two changes in one tick of the clock may look the same
            yield

    def _current(self) -> dict[str, QuarantineEntry]:
        """As it is now: another process may have changed it."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._seen = None
            return {}
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._known, self._seen = _load(self._path), seen
        return self._known

    def _save(self, known: dict[str, QuarantineEntry]) -> None:
        told = {key: asdict(suspicion) for key, suspicion in sorted(known.items())}
        put_in_place(self._path, json.dumps(told, indent=1) + "\n")
        fsync_path(self._path.parent)


def _new_note(path: Path) -> BufferedRandom:
    """An empty one, open where the signal handler is to write.  Raises `OSError`."""
    with ExitStack() as undoing:
        file = undoing.enter_context(open(path, "xb+"))
        undoing.callback(path.unlink)
        # A page of a map for which the disk has no block ends the process that writes to it.
        os.posix_fallocate(file.fileno(), 0, _TABLE_BYTES + _TRACE_ROOM)
        file.seek(_TABLE_BYTES)
        undoing.pop_all()
    return file


def _load(path: Path) -> dict[str, QuarantineEntry]:
    """What cannot be read is nothing: what it says can be found out again, at a price."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if path.stat().st_size <= _MOST_BYTES:
            told = json.loads(path.read_text(encoding="utf-8"))
            return {_path(key): QuarantineEntry(**value) for key, value in told.items()}
    _log.warning("%s cannot be read, and is passed over", path)
    return {}


def _path(key: str) -> str:
    """Raises `ValueError` for what is neither a path nor an object's key."""
    os.fsencode(key)
    return key


def _key(physical: PhysicalVideo) -> str:
    return physical.object_key or physical.link_path or ""


def _place(key: str) -> ByteLocation:
    return ByteLocation(key, None) if is_key(key) else ByteLocation(None, key)
