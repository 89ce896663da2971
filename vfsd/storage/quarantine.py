"""Files whose decoding has crashed a process of a mount are not decoded for mounts again.

The render process notes which files it is decoding in a memory-mapped file, which survives a crash.
The fault handler appends the reason (`faulthandler`). After a crash the mount puts these files into
quarantine: their bytes can be read, but not decoded, until `vfsd verify` has decoded them
completely in a separate process. The mount keeps such a note for its own decoding as well, for the
next mount.

A killed process or a power failure is not a crash, and quarantines nothing.

The entries are in a file of the store, or in the catalog if that is on a server: then mounts and
workers of all hosts follow them.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BufferedRandom
from pathlib import Path

from vfsd.catalog import Catalog, ChangeWatch
from vfsd.catalog.integrity import Values
from vfsd.core.model import ByteLocation, PhysicalVideo
from vfsd.core.process_control import reset_after_fork
from vfsd.disk.disk_reserve import with_reserve
from vfsd.disk.object_store import is_key
from vfsd.disk.store_layout import StoreDirectory, fsync_path
from vfsd.disk.tempfiles import NO_SPACE, locked_directory, write_atomically
from vfsd.errors import RefusedMediaError, UnreachableError

_SLOTS = 512
_SLOT = struct.Struct("<q")
_TABLE_BYTES = _SLOTS * _SLOT.size
_MAX_TRACE = 64 << 10
_RESERVED_TRACE = 16 << 10
"""Space that is reserved for the fault handler, in case the disk is full by then. Many threads
write more."""
_MAX_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """The crashes of one file."""

    crashes: int  #: processes that crashed while decoding it
    at: float  #: Unix time when the last crash was found
    how: str  #: the reason that the fault handler wrote
    barred: bool  #: it is not decoded in the process of the reader

    @property
    def reason(self) -> str:
        return (
            f"decoding it may have crashed a process ({self.how}); its bytes can be read, "
            "its frames cannot"
        )


class Quarantine:
    """The quarantined files of a store, and the note of files being decoded. Thread-safe."""

    def __init__(self, directory: StoreDirectory, shared: Catalog | None = None) -> None:
        """`shared` is a catalog on a server, which has the entries."""
        self._directory = directory
        self._catalog = shared
        self._watch: ChangeWatch | None = None
        self._path = directory.quarantine
        self._guard = threading.Lock()
        self._known: dict[str, QuarantineEntry] = {}
        self._seen: tuple[int, int] | None = None
        self._note: mmap.mmap | None = None
        self._free = list(range(_SLOTS))
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()
        self._note = None  # the note belongs to the parent
        self._watch = None
        self._free = list(range(_SLOTS))

    def of(self, physical: PhysicalVideo, *, now: bool = False) -> QuarantineEntry | None:
        """Return the entry of a file, or None.

        With a catalog on a server, only mounts see later changes of it, and calls with `now`.
        """
        known = self._shared(self._catalog) if self._catalog and now else self._current()
        return known.get(_key(physical))

    def barred(self) -> dict[ByteLocation, QuarantineEntry]:
        """Return the entries of files that are not decoded, by location."""
        return {_location(key): one for key, one in self._current().items() if one.barred}

    @contextmanager
    def decoding(self, physical: PhysicalVideo) -> Iterator[None]:
        """Note the file while FFmpeg decodes it in this process.

        Raises `RefusedMediaError` for a quarantined file.
        """
        entry = self.of(physical)
        if entry is not None and entry.barred:
            raise RefusedMediaError(
                entry.reason,
                hint="run `vfsd verify NAME`: it decodes the file in a separate process and ends "
                "the quarantine on success",
            )
        slot = self._occupy(physical.id)
        try:
            yield
        finally:
            if slot is not None:
                self._vacate(slot)

    def lift(self, physical: PhysicalVideo) -> None:
        """End the quarantine of a file that was decoded completely; its crashes stay counted.

        Raises `OSError`.
        """
        self._change(physical, lambda entry: entry and replace(entry, barred=False))

    def add_crash(self, physical: PhysicalVideo, how: str, *, barred_from: int = 1) -> None:
        """Count a crash while a file was being decoded, and quarantine it from some number on.

        Raises `OSError`.
        """

        def crashed(before: QuarantineEntry | None) -> QuarantineEntry:
            crashes = 1 if before is None else before.crashes + 1
            barred = crashes >= barred_from or (before is not None and before.barred)
            return QuarantineEntry(crashes, time.time(), how, barred)

        self._change(physical, crashed)

    def forget(self, physical: PhysicalVideo) -> None:
        """Remove the entry of a file.  Raises `OSError`."""
        self._change(physical, lambda _: None)

    # -- the note

    @staticmethod
    def crashed(note: Path) -> tuple[list[int], str]:
        """Read the note of a process that has ended.

        Return (ids of the physical videos that it was decoding, reason), empty if it did not crash.
        """
        try:
            with open(note, "rb") as file:
                table, trace = file.read(_TABLE_BYTES), file.read(_MAX_TRACE).rstrip(b"\0")
        except FileNotFoundError:
            return [], ""
        if len(table) < _TABLE_BYTES or not trace:
            return [], ""
        text = trace.decode("utf-8", "replace")
        _log.error("a process that decodes videos has crashed:\n%s", text)
        ids = {number for (number,) in _SLOT.iter_unpack(table) if number}
        return sorted(ids), text.splitlines()[0].removeprefix("Fatal Python error: ")

    @contextmanager
    def record_decoding(self, path: Path) -> Iterator[None]:
        """Keep the note in the file `path`, which only this process uses.

        There is no note if even the disk reserve has no space for it.
        """
        path.unlink(missing_ok=True)  # an old note has been processed
        try:
            file = with_reserve(self._directory, partial(_new_note, path))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            _log.warning(
                "files being decoded are not noted for the case of a crash: the disk is full"
            )
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

    # -- the entries

    def _change(
        self,
        physical: PhysicalVideo,
        change: Callable[[QuarantineEntry | None], QuarantineEntry | None],
    ) -> None:
        key = _key(physical)
        if (catalog := self._catalog) is not None:

            def changed(before: Values | None) -> Values | None:
                after = change(None if before is None else QuarantineEntry(**before))
                return None if after is None else asdict(after)

            before = self._shared(catalog).get(key)
            if before != change(before):  # most calls lift what is not there
                catalog.suspects.change(key, changed)
                self._shared(catalog)
            return
        with self._locked():
            known = dict(self._current())
            before = known.pop(key, None)
            after = change(before)
            if after is not None:
                known[key] = after
            if after != before:
                self._save(known)

    def _shared(self, catalog: Catalog) -> dict[str, QuarantineEntry]:
        """Return the entries of the catalog as they are now."""
        found = catalog.suspects.all()
        self._known = {key: QuarantineEntry(**values) for key, values in found.items()}
        return self._known

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against changes by other threads and processes."""
        with locked_directory(self._path.parent, fcntl.LOCK_EX):
            self._seen = None  # two changes within one clock tick may have equal times
            yield

    def _current(self) -> dict[str, QuarantineEntry]:
        """Return the entries, read again if another process has changed the file."""
        if self._catalog is not None:
            # Only mounts keep a note. Others must not ask the server for each decoder.
            if self._note is None:
                return self._known
            is_new = self._watch is None
            self._watch = self._watch or self._catalog.watch()
            if self._watch.changed() or is_new:
                with suppress(UnreachableError):  # open videos are read on
                    return self._shared(self._catalog)
            return self._known
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
        values = {key: asdict(entry) for key, entry in sorted(known.items())}
        write_atomically(self._path, json.dumps(values, indent=1) + "\n")
        fsync_path(self._path.parent)


def _new_note(path: Path) -> BufferedRandom:
    """Create an empty note, positioned where the fault handler writes. Raises `OSError`."""
    with ExitStack() as undoing:
        file = undoing.enter_context(open(path, "xb+"))
        undoing.callback(path.unlink)
        # Writing to a mapped page without a disk block would raise SIGBUS on a full disk.
        os.posix_fallocate(file.fileno(), 0, _TABLE_BYTES + _RESERVED_TRACE)
        file.seek(_TABLE_BYTES)
        undoing.pop_all()
    return file


def _load(path: Path) -> dict[str, QuarantineEntry]:
    """Read the entries. An unreadable file counts as empty: crashes would only be found again."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if path.stat().st_size <= _MAX_BYTES:
            values = json.loads(path.read_text(encoding="utf-8"))
            return {_path(key): QuarantineEntry(**value) for key, value in values.items()}
    _log.warning("%s cannot be read and is ignored", path)
    return {}


def _path(key: str) -> str:
    """Return the key. Raises `ValueError` if it is neither a path nor an object key."""
    os.fsencode(key)
    return key


def _key(physical: PhysicalVideo) -> str:
    return physical.object_key or physical.link_path or ""


def _location(key: str) -> ByteLocation:
    return ByteLocation(key, None) if is_key(key) else ByteLocation(None, key)
