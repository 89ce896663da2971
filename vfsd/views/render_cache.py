"""Rendered parts of views: recent ones in memory, more in files, each made by one thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial

import numpy as np
import numpy.typing as npt

from vfsd.core.view_file import Patience
from vfsd.storage.file_cache import Bytes, FileCache
from vfsd.views.render_queue import Check, Lane, Render

Place = npt.NDArray[np.uint8]
"""Where it is put: one dimension."""

Make = Callable[[Check], Bytes]
"""Makes it, calling the check now and then."""


# Slots lie in a directory for each digest: removing a video removes all its views by one name, and
# a twin with the same digest shares them.
def _digest_of(key: str) -> str:
    return key.partition("/")[0]


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
