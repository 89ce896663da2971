"""An examiner that remembers its results by the bytes of a file.

Hundreds of tests ingest the same few sample videos, in this process or through a mount.  Each
examination decodes a file in another process, which takes longer than the rest of such a test.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from vfsd.codecs.inventory.inventory import Inventory
from vfsd.codecs.probing.probe import Examination
from vfsd.core.model import MediaInfo
from vfsd.storage.sandbox_pool import Examiner, OnProgress, SandboxPool
from vfsd.storage.sandbox_protocol import SandboxLimits

_LARGEST = 16 << 20
"""Bytes of the largest file that is remembered, since hashing larger files takes too long."""

_Found = TypeVar("_Found", Examination, Inventory)


class RememberingExaminer(Examiner):
    """Returns the result of an earlier examination of the same bytes with the same arguments.

    Only successes are remembered.  `on_progress` is called as it was the first time.  A process to
    examine files is started when the first file needs one.
    """

    def __init__(
        self, limits: SandboxLimits, *, folder: Path, workers: SandboxPool | None = None
    ) -> None:
        """`folder` holds the results, for all processes of a test run."""
        super().__init__(limits, workers)
        self._folder = folder

    def start(self) -> None:
        pass

    def require_start(self) -> None:
        pass

    def examine_open(
        self,
        fd: int,
        called: str,
        *,
        full: bool = False,
        stream: int | None = None,
        in_largest_size: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Examination:
        def examine(told: OnProgress) -> Examination:
            return super(RememberingExaminer, self).examine_open(
                fd,
                called,
                full=full,
                stream=stream,
                in_largest_size=in_largest_size,
                on_progress=told if on_progress is not None else None,
            )

        key = self._key(fd, full, stream, in_largest_size, on_progress is None)
        return self._remembered(
            key, examine, on_progress, lambda found: not any(called in note for note in found.notes)
        )

    def inventory_open(self, fd: int, media: MediaInfo, called: str) -> Inventory:
        def take(_: OnProgress) -> Inventory:
            return super(RememberingExaminer, self).inventory_open(fd, media, called)

        key = self._key(fd, media.container, media.stream_index)
        return self._remembered(key, take, None, lambda _: True)

    def _key(self, fd: int, *arguments: object) -> str | None:
        """None if the file is too large."""
        size = os.fstat(fd).st_size
        if size > _LARGEST or self.limits != SandboxLimits():
            return None
        return hashlib.sha256(os.pread(fd, size, 0) + repr(arguments).encode()).hexdigest()

    def _remembered(
        self,
        key: str | None,
        find: Callable[[OnProgress], _Found],
        on_progress: OnProgress | None,
        may_keep: Callable[[_Found], bool],
    ) -> _Found:
        if key is not None:
            with suppress(OSError):
                found: _Found
                found, progress = pickle.loads((self._folder / key).read_bytes())
                if on_progress is not None:
                    for done, total in progress:
                        on_progress(done, total)
                return found
        told: list[tuple[int, int]] = []

        def note(done: int, total: int) -> None:
            told.append((done, total))
            if on_progress is not None:
                on_progress(done, total)

        found = find(note)
        if key is not None and may_keep(found):
            self._keep(key, pickle.dumps((found, told)))
        return found

    def _keep(self, key: str, data: bytes) -> None:
        with suppress(OSError):  # a test may run as a user who must not write there
            fd, path = tempfile.mkstemp(dir=self._folder)
            with open(fd, "wb") as file:
                file.write(data)
            os.rename(path, self._folder / key)
