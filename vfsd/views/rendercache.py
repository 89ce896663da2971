"""Rendered parts of views: a little in memory, more in files, each made by one thread only.

The files lie in the store's ``cache`` directory as ``ab/cdef....N``: 32 bytes of blake3, then what
was rendered.  A file appears whole or not at all, and may be deleted at any time, by any process;
one that does not match its checksum is taken for missing.  The one used longest ago goes first.
Beside them are notes about some of them (`vfsd.views.candidates`).  What has another name stays: a
link may lead to the directory, which others use as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vfsd.inhand import NEW_NAME, new_name
from vfsd.integrity.diskfile import open_stored
from vfsd.viewfiles import Patience
from vfsd.views.renderqueue import Check, Lane, Render

Bytes = bytes | memoryview
"""What was rendered; nobody changes it."""

Place = npt.NDArray[np.uint8]
"""Where it is put: one dimension."""

Make = Callable[[Check], Bytes]
"""Makes it, calling the check now and then."""

_log = logging.getLogger(__name__)

_SLOT = r"[0-9a-f]{2}/[0-9a-f]{62}\.[0-9]+"
_NOTE = r"candidates/[0-9a-f]{64}/[0-9]+x[0-9]+_[0-9]+-[0-9]+_[a-z0-9]+"
_FILE = re.compile(f"{_SLOT}|{_NOTE}")
_TEMPORARY = re.compile(f"tmp-{NEW_NAME.pattern}")
_FOLDER = re.compile("[0-9a-f]{2}|candidates|candidates/[0-9a-f]{64}")

_CHECKSUM = 32
_STALE_SECONDS = 600
"""After as long, a temporary file is one that a dead process has left."""
_SWEEPS = 16
"""The directory is looked through whenever a sixteenth of the budget has been written."""


def file_of(key: str) -> str:
    """The name of the file that has what was rendered under a key."""
    return f"{key[:2]}/{key[2:]}"


class FileCache:
    """Bytes in files below a directory, at most about `budget` of them.

    Names are relative, as ``ab/cdef....N``, or those of notes.  Thread-safe, and process-safe.
    """

    def __init__(self, directory: Path, budget: int) -> None:
        self._directory = directory
        self._budget = budget
        self._unswept = budget  # so that the first write looks what is there
        self._guard = threading.Lock()

    def get(self, name: str) -> bytes | None:
        """What a file has, which counts as using it."""
        data = self.look(name)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(self._directory / name)
        return data

    def look(self, name: str) -> bytes | None:
        """What a file has, which is no older or younger for that."""
        path = self._directory / name
        try:
            with open(path, "rb", opener=open_stored) as file:
                data = file.read()
        except OSError:
            return None
        if blake3(data[_CHECKSUM:]).digest() != data[:_CHECKSUM]:
            path.unlink(missing_ok=True)
            return None
        return data[_CHECKSUM:]

    def has(self, name: str) -> bool:
        return (self._directory / name).exists()

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder; none where that is not there."""
        try:
            found = os.listdir(self._directory / folder)
        except OSError:
            return []
        names = (f"{folder}/{name}" for name in sorted(found))
        return [name for name in names if _FILE.fullmatch(name)]

    def drop(self, name: str) -> None:
        """Never fails: what cannot be deleted goes when its time comes."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def put(self, name: str, data: Bytes) -> None:
        """Never fails: what cannot be kept is made again when it is wanted."""
        if len(data) + _CHECKSUM > self._budget:
            return
        path = self._directory / name
        temporary = self._directory / f"tmp-{new_name()}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(blake3(data).digest())
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            _log.debug("a rendered view is not kept: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        with self._guard:
            self._unswept += len(data) + _CHECKSUM
            due = self._unswept * _SWEEPS >= self._budget
            if due:
                self._unswept = 0
        if due:
            self.sweep()

    def sweep(self) -> None:
        """Delete what was used longest ago until the rest is within the budget."""
        found = []
        now = time.time()
        for name in self._listed():
            path = os.path.join(self._directory, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if _FILE.fullmatch(name):
                    found.append((status.st_mtime_ns, status.st_size, path))
                elif _TEMPORARY.fullmatch(name) and status.st_mtime < now - _STALE_SECONDS:
                    os.unlink(path)
        kept = 0
        for _, size, path in sorted(found, reverse=True):
            kept += size
            if kept > self._budget:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _listed(self) -> Iterator[str]:
        """Names of what lies in the cache's own folders, others' files among it."""
        for folder, folders, names in os.walk(self._directory):
            inside = os.path.relpath(folder, self._directory)
            under = "" if inside == "." else f"{inside}/"
            folders[:] = [one for one in folders if _FOLDER.fullmatch(under + one)]
            yield from (under + name for name in names)


class MemoryCache:
    """The bytes used last, at most `budget` of them and the newest entry.  Thread-safe."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0
        self._entries: OrderedDict[str, Bytes] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: str) -> Bytes | None:
        with self._guard:
            data = self._entries.get(key)
            if data is not None:
                self._entries.move_to_end(key)
            return data

    def put(self, key: str, data: Bytes) -> None:
        gone: list[Bytes] = []  # outside of the lock, as giving back memory takes time
        with self._guard:
            self._held -= len(self._entries.pop(key, b""))
            self._entries[key] = data
            self._held += len(data)
            while self._held > self._budget and len(self._entries) > 1:
                gone.append(self._entries.popitem(last=False)[1])
                self._held -= len(gone[-1])


class RenderCache:
    """Gives the bytes of a key, making them at most once however many threads ask."""

    def __init__(self, memory: MemoryCache, files: FileCache | None) -> None:
        self._memory = memory
        self._files = files
        self._renders: dict[str, Render] = {}
        self._guard = threading.Lock()

    def get(
        self, key: str, make: Make, lane: Lane, *, keep: bool, patience: Patience | None = None
    ) -> Bytes:
        """What `make` returns, or has returned before; it is called by one thread of `lane`.

        With `keep` it is worth a file.  When `make` fails, all who wait for it get the error.
        Raises what `patience` does, which is asked while this takes long; when nobody is left who
        waits, `make` is stopped.
        """
        while True:
            found = self._wanted(key, make, lane, keep)
            if not isinstance(found, Render):
                return found
            try:
                found.wait(patience)
            finally:
                found.unwant()
            if found.error is not None:
                raise found.error
            if found.data is not None:
                return found.data

    def ahead(
        self, key: str, make: Make, lane: Lane, then: Callable[[], None], *, keep: bool
    ) -> Render | None:
        """Have something made that nobody waits for yet, and that the caller has to `unwant`.

        `then` is called, by another thread, when it is there, or was given up.  None: it was there
        already, and `then` is not called.
        """
        found = self._wanted(key, make, lane, keep, then)
        return found if isinstance(found, Render) else None

    def has(self, key: str) -> bool:
        """Whether it is there; it may go at any moment."""
        if self._memory.get(key) is not None:
            return True
        return self._files is not None and self._files.has(file_of(key))

    def _wanted(
        self,
        key: str,
        make: Make,
        lane: Lane,
        keep: bool,
        then: Callable[[], None] | None = None,
    ) -> Bytes | Render:
        """The bytes, or what becomes them, wanted once more."""
        with self._guard:
            data = self._memory.get(key)
            if data is not None:
                return data
            render = self._renders.get(key)
            if render is not None and render.want(then):
                return render
            render = Render(
                lambda check: self._made(key, make, check, keep), partial(self._forget, key)
            )
            render.want(then)
            self._renders[key] = render
        lane.submit(render)
        return render

    def _made(self, key: str, make: Make, check: Check, keep: bool) -> Bytes:
        files = self._files if keep else None
        data: Bytes | None = files.get(file_of(key)) if files is not None else None
        if data is None:
            data = make(check)
            if files is not None:
                files.put(file_of(key), data)
        self._memory.put(key, data)
        return data

    def _forget(self, key: str, render: Render) -> None:
        with self._guard:
            if self._renders.get(key) is render:
                del self._renders[key]
