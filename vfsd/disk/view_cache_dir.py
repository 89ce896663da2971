"""What is kept of rendered views: files in the store's ``cache``, and which of them are whose.

    <digest>/<key>.<slot>    a part of a view, of the video whose file has that blake3
    <digest>/<note>          what is known of such a part, see `vfsd.derive.promotion_candidates`
    <digest>/tmp-...         what becomes one of these

All of a video lies in one folder, since it shows what that shows, and has to go with it: whoever
takes a video out of the store finds it by its name, however much is kept of others.  What has
another name stays: a link may lead to the directory, which others use as well.
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

_STALE_NS = 600 * 10**9
"""After as long, a temporary file is one that a dead process has left."""
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class CachedFile(NamedTuple):
    """A file in the cache."""

    name: str  #: relative to that
    used_ns: int  #: Unix time
    size: int  #: bytes

    @property
    def digest(self) -> str:
        """Of the video."""
        return self.name.partition("/")[0]

    @property
    def is_useless(self) -> bool:
        """Whether no reader of any video can have something of it."""
        if _TEMPORARY.fullmatch(self.name) is None:
            return False
        return self.used_ns < time.time_ns() - _STALE_NS


def is_slot(name: str) -> bool:
    """Whether a part of a view may be called so."""
    return _SLOT.fullmatch(name) is not None


def is_note(name: str) -> bool:
    """Whether a note about such a part may be called so."""
    return _NOTE.fullmatch(name) is not None


def temporary_beside(path: Path) -> Path:
    """A name for what becomes `path`; it goes with the same video."""
    return path.with_name(f"tmp-{new_name()}")


def cached_files(cache: Path) -> Iterator[CachedFile]:
    """All that there are, those on their way too; others' files are not among them."""
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
    """Whether something may be kept of a video."""
    return _DIGEST.fullmatch(digest) is not None and os.path.lexists(cache / digest)


def stray_files(cache: Path, known: Collection[str]) -> list[Path]:
    """Those that are of no use, or of videos whose digests are not `known`."""
    return sorted(
        cache / one.name for one in cached_files(cache) if one.is_useless or one.digest not in known
    )


def delete(cache: Path, files: Iterable[Path]) -> None:
    """Delete files of the cache, and folders in which there is nothing then.

    What may not be deleted stays.
    """
    folders: set[Path] = set()
    for path in files:
        with suppress(OSError, IntegrityError):
            remove(path)
        folders.update(takewhile(lambda above: above != cache, path.parents))
    for folder in sorted(folders, reverse=True):  # what is in others before these
        with suppress(OSError):
            folder.rmdir()


def drop(cache: Path, digest: str) -> None:
    """Delete all that is kept of a video, what is on its way too.  Raises `OSError`."""
    if not _DIGEST.fullmatch(digest):
        return
    folder = cache / digest
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return  # a link leads to what is somebody else's
        raise
    try:
        for name in os.listdir(fd):
            if any(kind.fullmatch(f"{digest}/{name}") for kind in (_SLOT, _NOTE, _TEMPORARY)):
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    with suppress(OSError):  # others' files are in it, or somebody has just put one there
        folder.rmdir()
