"""Files and folders that appear under their name whole, or not at all.

They are written beside it, under a name that nobody else has.  A process that is killed leaves that
there, ``.NAME.PID-....part``, where it is in nobody's way.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO

from vfsd.disk.enospc import NO_SPACE
from vfsd.disk.tempfiles import NEW_NAME, NewFile, held_directory, new_name
from vfsd.errors import ExistsError, NoSpaceError, NotFoundError, UsageError

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_TOLD = 64
"""Bytes of a name that its temporary one begins with: all of it may be as long as names can be."""
_TEMPORARY = re.compile(r".*\." + NEW_NAME.pattern + r"\.part", re.DOTALL)


def require_directory(path: Path) -> None:
    """Raises `NotFoundError` where there is none, in which something is to be made."""
    if not path.is_dir():
        raise NotFoundError(
            f"directory not found: {path}",
            hint=f"make it with `mkdir -p {shlex.quote(str(path))}`",
        )


@contextmanager
def whole_file(path: Path, replace: bool) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block has ended well.

    Its bytes are on the disk then, so that a power cut leaves it or what was there before.  Pipes
    and devices are written as they are.  Raises `ExistsError` unless `replace`, `NotFoundError`
    where there is no directory for it, `UsageError` where it is one itself, `NoSpaceError`,
    `OSError`.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file in it")
    require_directory(path.parent)
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            yield device
        return
    if not replace:
        _require_free(path)
    with (
        _told_of(path),
        NewFile(partial(_temporary, path)) as new,
        BufferedWriter(new.file) as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())
        if replace or not _link(new.path, path):
            new.path.replace(path)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to put files into, which gets its name when the block has ended well.

    They are on the disk then.  A folder that is there has to be empty.  Where others know it by
    more than its name (somebody works in it, it is a link or a mount point) it stays, and the files
    are moved into it.  Raises `ExistsError` for what else is there, `NotFoundError` where there is
    no directory for it, `NoSpaceError`, `OSError`.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise _no_empty_folder(path)
    require_directory(path.parent)
    stays = path.is_dir() and (path.is_symlink() or path.is_mount() or path.samefile(os.curdir))
    with _told_of(path):
        folder = _temporary(path / path.resolve().name if stays else path)
        folder.mkdir()
        try:
            yield folder
            for one in (*folder.rglob("*"), folder):
                _sync(one)
            if stays:
                _move_all(folder, path)
                return
            try:
                folder.replace(path)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise _no_empty_folder(path) from error  # somebody has been faster
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # what went wrong before is what counts


def _move_all(folder: Path, into: Path) -> None:
    """Out of a folder into that which it is in, and in which nothing else is."""
    with held_directory(into, fcntl.LOCK_EX):
        if any(one != folder for one in into.iterdir() if not _TEMPORARY.fullmatch(one.name)):
            raise _no_empty_folder(into)
        for one in folder.iterdir():
            one.rename(into / one.name)
        _sync(into)


def _link(new: Path, path: Path) -> bool:
    """Give a file its name unless something has it; False where the file system has no links.

    Raises `ExistsError`.
    """
    try:
        os.link(new, path, follow_symlinks=False)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _require_free(path)  # somebody may have been faster
        return False
    return True


def _require_free(path: Path) -> None:
    if path.exists():
        raise _exists(path)


def _exists(path: Path) -> ExistsError:
    return ExistsError(
        f"{path} exists",
        hint="replace=True overwrites it",
        command_hint="`--replace` overwrites it",
    )


def _no_empty_folder(path: Path) -> ExistsError:
    return ExistsError(
        f"{path} exists and is not an empty folder",
        hint="files that are there would be taken for part of what is written",
    )


def _temporary(path: Path) -> Path:
    told = os.fsencode(path.name)[:_TOLD].decode(errors="ignore")
    return path.with_name(f".{told}.{new_name()}.part")


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Errors name the file itself: nobody has heard of the other name."""
    try:
        yield
    except OSError as error:
        is_ours = _TEMPORARY.fullmatch(str(error.filename)) is not None
        if error.errno in NO_SPACE and (is_ours or error.filename is None):
            raise NoSpaceError(f"no room for {path}: {error.strerror}") from error
        if is_ours:
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
