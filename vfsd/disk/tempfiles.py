"""Temporary files that are owned by a lock and removed after a crash, files and directories that
appear whole or not at all, and errors of full disks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedWriter, FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from vfsd.disk.safe_open import remove
from vfsd.errors import BusyError, ExistsError, NoSpaceError, NotFoundError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


NEW_NAME = re.compile("[0-9]+-[0-9a-f]{32}")
"""Matches the result of `new_name`."""

# Interval between attempts to lock a directory.
_POLL_SECONDS = 0.005
_WRITEBACK_BYTES = 16 << 20
_PID = re.compile(r"(?:^|\.)([0-9]{1,9})-")
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def new_name() -> str:
    """Return a unique name for a file of this process. Callers may add parts, separated by dots."""
    return f"{os.getpid()}-{uuid.uuid4().hex}"


class NewFile:
    """A new file that this process writes, locked until it is closed.

    As a context manager it is deleted at the end, unless it was renamed.
    """

    def __init__(self, name: Callable[[], Path], *, mode: int = 0o666) -> None:
        """`name` returns new names (see `new_name`). Raises `OSError`."""
        while True:
            self.path = name()
            self.file: FileIO = _WritebackFile(self.path, "x+b", opener=_opener(mode))
            try:
                # Between open and lock, a cleaner may take the file for a leftover and delete it.
                if hold(self.file) and _has_name(self.file.fileno(), self.path):
                    return
            except BaseException:
                self.remove()
                raise
            self.remove()  # a cleaner has locked it as a leftover; use another name

    def close(self) -> None:
        """Close the file and release the lock."""
        self.file.close()

    def remove(self) -> None:
        """Delete the file, unless it was renamed, and close it."""
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.remove()


class _WritebackFile(FileIO):
    """A file that starts writing to the disk early."""

    # Every temporary file is synced in the end. Without early writeback the sync takes nearly as
    # long as the writes: a third of the total for 467 MB of raw video.
    _pending_bytes = 0

    def write(self, data: ReadableBuffer, /) -> int:
        count = super().write(data)
        self._pending_bytes += count
        if self._pending_bytes >= _WRITEBACK_BYTES:
            # Starts writeback without waiting, and drops pages that are clean already.
            with suppress(OSError):
                begin = self.tell() - self._pending_bytes
                os.posix_fadvise(
                    self.fileno(), max(0, begin), self._pending_bytes, os.POSIX_FADV_DONTNEED
                )
            self._pending_bytes = 0
        return count


def write_atomically(path: Path, text: str, *, is_secret: bool = False) -> None:
    """Replace the content of a file by `text`, atomically. Raises `OSError` that names it.

    The bytes are synced. The caller syncs the directory. A secret can be read by the owner only.
    """
    try:
        mode = 0o600 if is_secret else 0o666
        with NewFile(lambda: path.with_name(f".{path.name}.{new_name()}.tmp"), mode=mode) as new:
            new.path.write_text(text, encoding="utf-8")
            # Without the sync, a power cut after the rename may leave an empty file.
            os.fsync(new.file.fileno())
            new.path.replace(path)
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None  # not the temporary name
        raise


def temporary_files(path: Path) -> list[Path]:
    """Return the temporary files of `write_atomically` for `path`, also of dead processes."""
    ours = re.compile(re.escape(f".{path.name}.") + NEW_NAME.pattern + r"\.tmp")
    return sorted(one for one in path.parent.iterdir() if ours.fullmatch(one.name))


def hold(file: FileIO) -> bool:
    """Mark a file as in use while it, or a duplicate, is open.

    Return False if another process has `claimed` or is checking it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks on this file system: the pid must do
    return True


def unlock(fd: int) -> None:
    """Release the lock of an open file that is not temporary any more."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def locked_directory(path: Path, how: int, *, timeout: float | None = None) -> Iterator[None]:
    """Lock a directory, also against other threads; `how` is that of flock(2).

    With `timeout`, wait up to that many seconds. Raises `BlockingIOError` if it is still locked,
    `OSError`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            _flock(fd, how, timeout)
        except BlockingIOError:
            raise
        except OSError:
            pass  # no locks on this file system; a race needs microseconds
        yield
    finally:
        unlock(fd)  # explicitly, since a forked child may still have it open
        os.close(fd)


def _flock(fd: int, how: int, timeout: float | None) -> None:
    if timeout is None:
        fcntl.flock(fd, how)
        return
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        # flock(2) has no timeout, and a signal would need the main thread.
        time.sleep(_POLL_SECONDS)


def is_locked(path: Path) -> bool:
    """Return whether a temporary file is in use. False if it is missing."""
    try:
        fd = _open_existing(path)
    except OSError as error:
        # A link is not a temporary file. A file that cannot be opened counts as locked.
        return error.errno not in (errno.ENOENT, errno.ELOOP)
    try:
        return not _lock_exclusively(fd, path)
    finally:
        os.close(fd)


def delete_file(path: Path) -> bool:
    """Delete a temporary file of a dead process; return False if it is in use.

    Raises `IntegrityError` for a directory that is not empty, `OSError`.
    """
    try:
        with claimed(path):
            remove(path)
    except NotFoundError:
        path.unlink(missing_ok=True)  # a dangling link
    except BusyError:
        return False
    return True


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Lock a temporary file of a dead process exclusively.

    Raises `BusyError` if it is in use, `NotFoundError` if it is missing.
    """
    try:
        fd = _open_existing(path)
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist any more") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotFoundError(f"{path} is a link") from None
        raise
    try:
        if not _lock_exclusively(fd, path):
            raise BusyError(f"{path} is in use by another process", hint="try again later")
        # The writer may have renamed it before the lock was taken: it is an object now.
        if not _has_name(fd, path):
            raise NotFoundError(f"{path} does not exist any more")
        yield
    finally:
        os.close(fd)


def _opener(mode: int) -> Callable[[str, int], int]:
    return lambda path, flags: os.open(path, flags, mode)


def _open_existing(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | _OPEN_FLAGS)  # NFS: exclusive locks need O_RDWR
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise
        return os.open(path, os.O_RDONLY | _OPEN_FLAGS)


def _lock_exclusively(fd: int, path: Path) -> bool:
    """Lock a file until `fd` is closed; return False if it is in use."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not is_alive(path.name)
    return True


def _has_name(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def is_alive(name: str) -> bool:
    """Return whether the process of a temporary name is running, judged by its pid."""
    found = _PID.search(name)
    if found is None:
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it exists, and belongs to another user
        return True
    return True


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raise `NoSpaceError` with the name `what` if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"no room for {what}: {error.strerror}") from error
        raise


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all of `data`. Unbuffered files may otherwise write only a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# How much of the name a temporary name starts with. A full name could exceed the length limit.
_PREFIX_BYTES = 64
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
    # Renaming over /dev/stdout or a pipe would replace it by a file.
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
        # link(2) refuses a name that exists, so two writers cannot both succeed.
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
    # A rename would detach the shell's current directory, replace a link, or fail on a mount point.
    keeps_inode = path.is_dir() and (
        path.is_symlink() or path.is_mount() or path.samefile(os.curdir)
    )
    with _reporting_target(path):
        directory = _temporary(path / path.resolve().name if keeps_inode else path)
        directory.mkdir()
        try:
            yield directory
            # Before the rename: the directory must not appear with files that a crash empties.
            for one in (*directory.rglob("*"), directory):
                if not one.is_symlink():  # the target is not ours, and may be missing
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
    # The lock keeps two writers from mixing their files: moving many files is not atomic.
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
    # The cut may split a character of several bytes.
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
