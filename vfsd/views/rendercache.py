"""Rendered parts of views: a little in memory, more in files, each made by one thread only.

The files lie in the store's ``cache`` directory, in a folder for each video (`vfsd.keptviews`): 32
bytes of blake3, then what was rendered.  A file appears whole or not at all, and may be deleted at
any time, by any process; one that does not match its checksum is taken for missing.  The one used
longest ago goes first, and all of a video go with it.  Beside them are notes about some of them
(`vfsd.views.candidates`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vfsd import keptviews
from vfsd.errors import VfsdError
from vfsd.integrity.diskfile import open_stored
from vfsd.parts import Parts
from vfsd.viewfiles import Patience
from vfsd.views.renderqueue import Check, Lane, Render

Bytes = bytes | memoryview
"""What was rendered; nobody changes it."""

Place = npt.NDArray[np.uint8]
"""Where it is put: one dimension."""

Make = Callable[[Check], Bytes]
"""Makes it, calling the check now and then."""

_log = logging.getLogger(__name__)

_CHECKSUM = 32
_SWEEPS = 16
"""The directory is looked through whenever a sixteenth of the budget has been written."""


def file_of(digest: str, key: str) -> str:
    """The name of the file that has what was rendered of a video under a key: that of a rendition,
    and the number of the slot after a dot."""
    return f"{digest}/{key}"


class FileCache:
    """Bytes in files below a directory, at most about `budget` of them.

    Names are relative, those of `file_of` or of notes; under others nothing is found, or kept.
    Thread-safe, and process-safe.
    """

    def __init__(
        self, directory: Path, budget: int, is_shown: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`is_shown` tells whether any video has a digest; of others nothing is kept."""
        self._directory = directory
        self._budget = budget
        self._is_shown = is_shown
        self._unswept = budget  # so that the first write looks what is there
        self._guard = threading.Lock()

    @classmethod
    def of_store(cls, parts: Parts) -> FileCache:
        return cls(
            parts.directory.cache,
            parts.settings.view_cache_bytes,
            lambda digest: digest in shown(parts, [digest]),
        )

    def get(self, name: str) -> bytes | None:
        """What a file has, which counts as using it."""
        data = self.look(name)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(self._directory / name)
        return data

    def look(self, name: str) -> bytes | None:
        """What a file has, which is no older or younger for that."""
        if not _is_name(name):
            return None
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
        return _is_name(name) and (self._directory / name).exists()

    def notes(self, digest: str) -> list[str]:
        """The names of those about a video; none where nothing is kept of it."""
        try:
            found = os.listdir(self._directory / digest)
        except OSError:
            return []
        names = (f"{digest}/{name}" for name in sorted(found))
        return [name for name in names if keptviews.is_note(name)]

    def drop(self, name: str) -> None:
        """Never fails: what cannot be deleted goes when its time comes."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def put(self, name: str, data: Bytes) -> None:
        """Never fails: what cannot be kept is made again when it is wanted."""
        if len(data) + _CHECKSUM > self._budget or not _is_name(name):
            return
        path = self._directory / name
        temporary = keptviews.temporary_beside(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(blake3(data).digest())
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            _log.debug("a rendered view is not kept: %s", error)
            keptviews.delete(self._directory, [temporary])
            return
        self._drop_unless_shown(path)
        with self._guard:
            self._unswept += len(data) + _CHECKSUM
            due = self._unswept * _SWEEPS >= self._budget
            if due:
                self._unswept = 0
        if due:
            self.sweep()

    def sweep(self) -> None:
        """Delete what is of no use, and what was used longest ago until the rest is within the
        budget."""
        kept, gone = 0, []
        found = list(keptviews.kept_files(self._directory))
        for one in sorted(found, key=lambda one: one.used_ns, reverse=True):
            if not one.is_useless:
                kept += one.size
            if one.is_useless or kept > self._budget:
                gone.append(self._directory / one.name)
        keptviews.delete(self._directory, gone)

    def _drop_unless_shown(self, path: Path) -> None:
        """Let nothing come back of a video that went while it was rendered.

        Whoever takes a video away looks here when its row has gone.  So either he finds what has
        just been put here, or we find no row.
        """
        if not self._is_shown(path.parent.name):
            keptviews.delete(self._directory, [path])


def _digest_of(key: str) -> str:
    return key.partition("/")[0]


def shown(parts: Parts, digests: Collection[str]) -> set[str]:
    """Those that any video has; none where nobody can tell."""
    try:
        with parts.catalog.reading() as seen:
            return seen.videos.digests(digests)
    except (OSError, VfsdError):
        return set()


def _is_name(name: str) -> bool:
    """What a catalog says of digests leads nowhere else."""
    return keptviews.is_slot(name) or keptviews.is_note(name)


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

    def all_keys(self) -> list[str]:
        with self._guard:
            return list(self._entries)

    def drop(self, key: str) -> None:
        with self._guard:
            self._held -= len(self._entries.pop(key, b""))


class RenderCache:
    """Gives the bytes of a key, making them at most once however many threads ask.

    Keys are the names of files, see `file_of`.
    """

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
        return self._files is not None and self._files.has(key)

    def digests(self) -> set[str]:
        """Of the videos that what is in memory shows."""
        return {_digest_of(key) for key in self._memory.all_keys()} - {""}

    def forget(self, digests: Collection[str]) -> None:
        """Keep nothing in memory of those videos, which have gone."""
        for key in self._memory.all_keys():
            if _digest_of(key) in digests:
                self._memory.drop(key)

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
        data: Bytes | None = files.get(key) if files is not None else None
        if data is None:
            data = make(check)
            if files is not None:
                files.put(key, data)
        self._memory.put(key, data)
        return data

    def _forget(self, key: str, render: Render) -> None:
        with self._guard:
            if self._renders.get(key) is render:
                del self._renders[key]
