"""Output files and directories that appear completely or not at all.

They are written next to the target under a unique temporary name. A killed process leaves
``.NAME.PID-....part``, which does not affect later writes.
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
from vfsd.disk.tempfiles import NEW_NAME, NewFile, locked_directory, new_name
from vfsd.errors import ExistsError, NoSpaceError, NotFoundError, UsageError

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_PREFIX_BYTES = 64
"""How much of the name a temporary name starts with. A full name could exceed the length limit."""
_TEMPORARY = re.compile(r".*\." + NEW_NAME.pattern + r"\.part", re.DOTALL)


def require_directory(path: Path) -> None:
    """Raise `NotFoundError` if the directory for an output does not exist."""
    if not path.is_dir():
        raise NotFoundError(
            f"directory not found: {path}",
            hint=f"make it with `mkdir -p {shlex.quote(str(path))}`",
        )


@contextmanager
def atomic_file(path: Path, replace: bool) -> Iterator[BinaryIO]:
    """Yield a file for writing that gets its name when the block succeeds.

    Its bytes are synced first: after a power failure either the new or the old file is there. Pipes
    and devices are written directly. Raises `ExistsError` unless `replace`, `NotFoundError` if the
    parent directory is missing, `UsageError` if `path` is a directory, `NoSpaceError`, `OSError`.
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
        _reporting_target(path),
        NewFile(partial(_temporary, path)) as new,
        BufferedWriter(new.file) as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())
        if replace or not _link(new.path, path):
            new.path.replace(path)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a directory for new files that gets its name when the block succeeds.

    Its files are synced first. An existing directory must be empty. It stays, and the files are
    moved into it, if it is the current directory, a link or a mount point. Raises `ExistsError` for
    anything else at `path`, `NotFoundError` if the parent directory is missing, `NoSpaceError`,
    `OSError`.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise _not_empty_error(path)
    require_directory(path.parent)
    keeps_inode = path.is_dir() and (
        path.is_symlink() or path.is_mount() or path.samefile(os.curdir)
    )
    with _reporting_target(path):
        directory = _temporary(path / path.resolve().name if keeps_inode else path)
        directory.mkdir()
        try:
            yield directory
            for one in (*directory.rglob("*"), directory):
                _sync(one)
            if keeps_inode:
                _move_all(directory, path)
                return
            try:
                directory.replace(path)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise _not_empty_error(path) from error  # created in the meantime
                raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)  # do not hide the first error


def _move_all(directory: Path, into: Path) -> None:
    """Move all files from a temporary directory into its parent, which must be empty otherwise."""
    with locked_directory(into, fcntl.LOCK_EX):
        if any(one != directory for one in into.iterdir() if not _TEMPORARY.fullmatch(one.name)):
            raise _not_empty_error(into)
        for one in directory.iterdir():
            one.rename(into / one.name)
        _sync(into)


def _link(new: Path, path: Path) -> bool:
    """Give a file its name unless that exists; return False if hard links are not supported.

    Raises `ExistsError`.
    """
    try:
        os.link(new, path, follow_symlinks=False)
    except FileExistsError:
        raise _exists_error(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _require_free(path)  # it may have been created in the meantime
        return False
    return True


def _require_free(path: Path) -> None:
    if path.exists():
        raise _exists_error(path)


def _exists_error(path: Path) -> ExistsError:
    return ExistsError(
        f"{path} exists",
        hint="replace=True overwrites it",
        command_hint="`--replace` overwrites it",
    )


def _not_empty_error(path: Path) -> ExistsError:
    return ExistsError(
        f"{path} exists and is not an empty directory",
        hint="existing files would be taken for part of the output",
    )


def _temporary(path: Path) -> Path:
    prefix = os.fsencode(path.name)[:_PREFIX_BYTES].decode(errors="ignore")
    return path.with_name(f".{prefix}.{new_name()}.part")


@contextmanager
def _reporting_target(path: Path) -> Iterator[None]:
    """Make errors name the target instead of its temporary name."""
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
