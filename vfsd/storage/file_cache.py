"""A bounded cache of rendered bytes, in files of the store's ``cache`` directory.

The files lie in a folder for each video (`vfsd.disk.view_cache_dir`): 32 bytes of BLAKE3, then the
data.  A file appears whole or not at all, and any process may delete it at any time.  A file that
does not match its checksum counts as missing.  The least recently used file is deleted first, and
all files of a video are deleted with the video.  Notes about some of them lie beside them
(`vfsd.derive.promotion_candidates`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from blake3 import blake3

from vfsd.disk import view_cache_dir
from vfsd.disk.direct_io import open_stored
from vfsd.errors import VfsdError
from vfsd.storage.context import StoreContext

Bytes = bytes | memoryview
"""Rendered bytes, which must not be changed."""

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
    def of_store(cls, parts: StoreContext) -> FileCache:
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
        return [name for name in names if view_cache_dir.is_note(name)]

    def drop(self, name: str) -> None:
        """Never fails: what cannot be deleted goes when its time comes."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def put(self, name: str, data: Bytes) -> None:
        """Never fails: what cannot be kept is made again when it is wanted."""
        if len(data) + _CHECKSUM > self._budget or not _is_name(name):
            return
        path = self._directory / name
        temporary = view_cache_dir.temporary_beside(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(blake3(data).digest())
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            _log.debug("a rendered view is not kept: %s", error)
            view_cache_dir.delete(self._directory, [temporary])
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
        found = list(view_cache_dir.cached_files(self._directory))
        for one in sorted(found, key=lambda one: one.used_ns, reverse=True):
            if not one.is_useless:
                kept += one.size
            if one.is_useless or kept > self._budget:
                gone.append(self._directory / one.name)
        view_cache_dir.delete(self._directory, gone)

    def _drop_unless_shown(self, path: Path) -> None:
        """Let nothing come back of a video that went while it was rendered.

        Whoever takes a video away looks here when its row has gone.  So either he finds what has
        just been put here, or we find no row.
        """
        if not self._is_shown(path.parent.name):
            view_cache_dir.delete(self._directory, [path])


def shown(parts: StoreContext, digests: Collection[str]) -> set[str]:
    """Those that any video has; none where nobody can tell."""
    try:
        with parts.catalog.reading() as seen:
            return seen.videos.digests(digests)
    except (OSError, VfsdError):
        return set()


def _is_name(name: str) -> bool:
    """What a catalog says of digests leads nowhere else."""
    return view_cache_dir.is_slot(name) or view_cache_dir.is_note(name)
