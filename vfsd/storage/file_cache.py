"""A bounded cache of rendered bytes, in files of the store's ``cache`` directory.

Each video has a directory (`vfsd.disk.view_cache_dir`). A file has 32 bytes of BLAKE3, then the
data. Files are written atomically, and any process may delete them at any time. A file that does
not match its checksum counts as missing. The least recently used file is deleted first, and all
files of a video are deleted with the video. Notes about promotion are stored next to them
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
from vfsd.disk.safe_open import open_stored
from vfsd.errors import VfsdError
from vfsd.storage.context import StoreContext

Bytes = bytes | memoryview
"""Rendered bytes. Callers must not change them."""

_log = logging.getLogger(__name__)

_CHECKSUM_BYTES = 32
_SWEEPS_PER_BUDGET = 16
"""The directory is swept whenever this fraction (1/16) of the budget has been written."""


def cache_file_name(digest: str, key: str) -> str:
    """Return the relative name of a cache file. `key` is a rendition key, a dot and the slot
    number."""
    return f"{digest}/{key}"


class FileCache:
    """A cache directory with at most about `budget` bytes. Thread-safe and process-safe.

    Names are relative, from `cache_file_name` or of notes. Other names are never found or stored.
    """

    def __init__(
        self, directory: Path, budget: int, is_in_use: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`is_in_use` returns whether any video has a digest; for others nothing is stored."""
        self._directory = directory
        self._budget = budget
        self._is_in_use = is_in_use
        self._written_since_sweep = budget  # so the first write sweeps
        self._guard = threading.Lock()

    @classmethod
    def of_store(cls, context: StoreContext) -> FileCache:
        """Return the cache of a store, with the budget from its settings."""
        return cls(
            context.directory.cache,
            context.settings.view_cache_bytes,
            lambda digest: digest in digests_in_use(context, [digest]),
        )

    def get(self, name: str) -> bytes | None:
        """Return the content of a file and mark it as used; None if missing."""
        data = self.peek(name)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(self._directory / name)
        return data

    def peek(self, name: str) -> bytes | None:
        """Return the content of a file without marking it as used; None if missing."""
        if not _is_name(name):
            return None
        path = self._directory / name
        try:
            with open(path, "rb", opener=open_stored) as file:
                data = file.read()
        except OSError:
            return None
        if blake3(data[_CHECKSUM_BYTES:]).digest() != data[:_CHECKSUM_BYTES]:
            path.unlink(missing_ok=True)
            return None
        return data[_CHECKSUM_BYTES:]

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return _is_name(name) and (self._directory / name).exists()

    def notes(self, digest: str) -> list[str]:
        """Return the names of the notes about a video."""
        try:
            found = os.listdir(self._directory / digest)
        except OSError:
            return []
        names = (f"{digest}/{name}" for name in sorted(found))
        return [name for name in names if view_cache_dir.is_note(name)]

    def drop(self, name: str) -> None:
        """Delete a file. Never fails: the rest is left to `sweep`."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def put(self, name: str, data: Bytes) -> None:
        """Store a file. Never fails: missing files are rendered again."""
        if len(data) + _CHECKSUM_BYTES > self._budget or not _is_name(name):
            return
        path = self._directory / name
        temporary = view_cache_dir.temporary_next_to(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(blake3(data).digest())
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            _log.debug("a rendered view could not be cached: %s", error)
            view_cache_dir.delete(self._directory, [temporary])
            return
        self._drop_unless_in_use(path)
        with self._guard:
            self._written_since_sweep += len(data) + _CHECKSUM_BYTES
            due = self._written_since_sweep * _SWEEPS_PER_BUDGET >= self._budget
            if due:
                self._written_since_sweep = 0
        if due:
            self.sweep()

    def sweep(self) -> None:
        """Delete useless files, then the least recently used ones until the rest fits the
        budget."""
        kept, gone = 0, []
        found = list(view_cache_dir.cached_files(self._directory))
        for one in sorted(found, key=lambda one: one.used_ns, reverse=True):
            if not one.is_useless:
                kept += one.size
            if one.is_useless or kept > self._budget:
                gone.append(self._directory / one.name)
        view_cache_dir.delete(self._directory, gone)

    def _drop_unless_in_use(self, path: Path) -> None:
        """Delete a new file if its video was deleted while it was rendered.

        Deleting a video removes the row first and its cache files afterwards. So either that step
        finds the new file, or this one finds no row.
        """
        if not self._is_in_use(path.parent.name):
            view_cache_dir.delete(self._directory, [path])


def digests_in_use(context: StoreContext, digests: Collection[str]) -> set[str]:
    """Return those digests that any video has; empty if the catalog cannot be read."""
    try:
        with context.catalog.reading() as seen:
            return seen.videos.digests(digests)
    except (OSError, VfsdError):
        return set()


def _is_name(name: str) -> bool:
    """Return whether a name is valid. Digests from a damaged catalog must not lead elsewhere."""
    return view_cache_dir.is_slot(name) or view_cache_dir.is_note(name)
