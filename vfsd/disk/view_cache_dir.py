"""The files of rendered views in the store's ``cache`` directory, grouped by video.

``DIGEST/KEY.SLOT`` is a part of a view of the video with that BLAKE3. ``DIGEST/NOTE`` describes
such a part (`vfsd.derive.promotion_candidates`). ``DIGEST/tmp-...`` is a file being written.

All files of a video are in one directory, so that deleting the video deletes them at a cost
independent of other videos. Files with other names stay: the directory may be a link to one with
other users.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from vfsd.disk.safe_open import remove
from vfsd.disk.tempfiles import NEW_NAME, new_name
from vfsd.errors import IntegrityError

_DIGEST = re.compile("[0-9a-f]{64}")
_SLOT = re.compile(rf"{_DIGEST.pattern}/[0-9a-f]{{64}}\.[0-9]+")
_NOTE = re.compile(rf"{_DIGEST.pattern}/[0-9]+x[0-9]+_[0-9]+-[0-9]+_[a-z0-9]+")
_TEMPORARY = re.compile(f"{_DIGEST.pattern}/tmp-{NEW_NAME.pattern}")

# A temporary file of this age belongs to a dead process.
_STALE_NS = 600 * 10**9
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class CachedFile(NamedTuple):
    """A file in the cache."""

    name: str  #: relative to the cache
    used_ns: int  #: Unix time
    size: int  #: bytes

    @property
    def digest(self) -> str:
        """The digest of the video."""
        return self.name.partition("/")[0]

    @property
    def is_useless(self) -> bool:
        """Whether no reader can use it: a stale temporary file."""
        if _TEMPORARY.fullmatch(self.name) is None:
            return False
        return self.used_ns < time.time_ns() - _STALE_NS


def is_slot(name: str) -> bool:
    """Return whether a name is valid for a part of a view."""
    return _SLOT.fullmatch(name) is not None


def is_note(name: str) -> bool:
    """Return whether a name is valid for a note."""
    return _NOTE.fullmatch(name) is not None


def temporary_next_to(path: Path) -> Path:
    """Return a temporary name for a file that is renamed to `path` later."""
    return path.with_name(f"tmp-{new_name()}")


def cached_files(cache: Path) -> Iterator[CachedFile]:
    """Yield all files of the cache, including temporary ones but no foreign files."""
    for folder, folders, names in os.walk(cache):
        inside = os.path.relpath(folder, cache)
        under = "" if inside == "." else f"{inside}/"
        folders[:] = [one for one in folders if _DIGEST.fullmatch(under + one)]
        for name in (under + one for one in names):
            if any(kind.fullmatch(name) for kind in (_SLOT, _NOTE, _TEMPORARY)):
                with suppress(OSError):
                    status = os.lstat(os.path.join(cache, name))
                    yield CachedFile(name, status.st_mtime_ns, status.st_size)


def may_be_kept(cache: Path, digest: str) -> bool:
    """Return whether the cache may have files of a video."""
    return _DIGEST.fullmatch(digest) is not None and os.path.lexists(cache / digest)


def stray_files(cache: Path, known: Collection[str]) -> list[Path]:
    """Return useless files, and files of videos with digests that are not in `known`."""
    return sorted(
        cache / one.name for one in cached_files(cache) if one.is_useless or one.digest not in known
    )


def delete(cache: Path, files: Iterable[Path]) -> None:
    """Delete files of the cache, and directories that are then empty.

    Files that cannot be deleted stay.
    """
    folders: set[Path] = set()
    for path in files:
        with suppress(OSError, IntegrityError):
            remove(path)
        folders.update(takewhile(lambda above: above != cache, path.parents))
    for folder in sorted(folders, reverse=True):  # subdirectories first
        with suppress(OSError):
            folder.rmdir()


def drop(cache: Path, digest: str) -> None:
    """Delete all files of a video, including temporary ones. Raises `OSError`."""
    if not _DIGEST.fullmatch(digest):
        return
    folder = cache / digest
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return  # missing, or a link to a foreign directory
        raise
    try:
        for name in os.listdir(fd):
            if any(kind.fullmatch(f"{digest}/{name}") for kind in (_SLOT, _NOTE, _TEMPORARY)):
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    with suppress(OSError):  # it has foreign files, or a new one
        folder.rmdir()
