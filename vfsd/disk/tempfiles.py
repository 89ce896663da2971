"""Files under temporary names: those that somebody writes, and those that the dead have left; and
directories in which one thing is done at a time.

Whoever makes such a file holds it, by a lock (flock) that ends with the process, whatever becomes
of that.  The lock alone tells whether somebody is there, also to who lives in another container: a
pid may be that of anybody by now.  Only where the file system has no such locks does the pid in the
name have to do.

Between making a file and locking it nobody holds it.  So who takes a file away locks it for himself
first, and who has made one looks, once it is locked, whether it still has its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vfsd.disk.safe_open import remove
from vfsd.errors import BusyError, NotFoundError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NEW_NAME = re.compile("[0-9]+-[0-9a-f]{32}")
"""What `new_name` gives."""

_ASKING_SECONDS = 0.005
"""How often who waits for a directory with patience tries again."""
_SENT_BYTES = 16 << 20
_PID = re.compile(r"(?:^|\.)([0-9]{1,9})-")
_HOW = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def new_name() -> str:
    """A name for a file of this process, which nobody has; more may stand around it, after dots."""
    return f"{os.getpid()}-{uuid.uuid4().hex}"


class NewFile:
    """A new file that this process writes, held until it is closed.

    In a ``with`` statement it is deleted at the end, unless it has another name by then.
    """

    def __init__(self, name: Callable[[], Path], *, mode: int = 0o666) -> None:
        """`name` gives new names (see `new_name`).  Raises `OSError`."""
        while True:
            self.path = name()
            self.file: FileIO = _WritebackFile(self.path, "x+b", opener=_opener(mode))
            try:
                if hold(self.file) and _has_name(self.file.fileno(), self.path):
                    return
            except BaseException:
                self.remove()
                raise
            self.remove()  # somebody is at it who takes it for a leftover

    def close(self) -> None:
        """Let it be anybody's, whatever its name is now."""
        self.file.close()

    def remove(self) -> None:
        """Delete it, unless it has another name, and close it."""
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
    """A file whose bytes are sent to the disk while more are written.

    Whoever makes one syncs it in the end.  Where the disk has had nothing to do until then, that
    takes nearly as long again as writing did: a third of the time for 467 MB of raw pictures.
    """

    _kept_back = 0

    def write(self, data: ReadableBuffer, /) -> int:
        count = super().write(data)
        self._kept_back += count
        if self._kept_back >= _SENT_BYTES:
            # Asks for nothing to be waited for.  Pages that are on the disk already may be let go.
            with suppress(OSError):
                begin = self.tell() - self._kept_back
                os.posix_fadvise(
                    self.fileno(), max(0, begin), self._kept_back, os.POSIX_FADV_DONTNEED
                )
            self._kept_back = 0
        return count


def put_in_place(path: Path, text: str) -> None:
    """Have a file say `text`, and nothing between that and what it said.  Raises `OSError`, which
    names it.

    Its bytes are on the disk then; that the file is it, only once its directory is synced.
    """
    try:
        with NewFile(lambda: path.with_name(f".{path.name}.{new_name()}.tmp")) as new:
            new.path.write_text(text, encoding="utf-8")
            os.fsync(new.file.fileno())
            new.path.replace(path)
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None  # nobody has heard of the other
        raise


def on_their_way(path: Path) -> list[Path]:
    """What `put_in_place` writes before it is `path`: also that of processes which have died.
    Nothing else in that directory is called so; copies that somebody has made are theirs."""
    ours = re.compile(re.escape(f".{path.name}.") + NEW_NAME.pattern + r"\.tmp")
    return sorted(one for one in path.parent.iterdir() if ours.fullmatch(one.name))


def hold(file: FileIO) -> bool:
    """Let others see that somebody has a file, as long as that, or a copy of it, is open.

    False where somebody has `claimed` it, or just looks at it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file system cannot: the pid has to do
    return True


def let_go(fd: int) -> None:
    """An open file is not a temporary one any more."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def held_directory(path: Path, how: int, *, patience: float | None = None) -> Iterator[None]:
    """Hold a directory, against other threads too; `how` is that of flock(2).

    With `patience` others are waited for so many seconds at most.  Raises `BlockingIOError` where
    they hold it longer, or are not waited for, `OSError`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            _flock(fd, how, patience)
        except BlockingIOError:
            raise
        except OSError:
            pass  # where the file system cannot, it is a matter of microseconds
        yield
    finally:
        let_go(fd)  # a child that was forked meanwhile has it open, too, and does not know
        os.close(fd)


def _flock(fd: int, how: int, patience: float | None) -> None:
    if patience is None:
        fcntl.flock(fd, how)
        return
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(_ASKING_SECONDS)


def is_locked(path: Path) -> bool:
    """Whether somebody has a file under a temporary name; never where there is none."""
    try:
        fd = _opened(path)
    except OSError as error:
        # A link is nothing that we have made.  What may not be opened cannot be asked either.
        return error.errno not in (errno.ENOENT, errno.ELOOP)
    try:
        return not _lock_alone(fd, path)
    finally:
        os.close(fd)


def delete_file(path: Path) -> bool:
    """Delete what the dead have left under a temporary name; whether it is gone.

    Raises `IntegrityError` for a directory that is not empty, `OSError`.
    """
    try:
        with claimed(path):
            remove(path)
    except NotFoundError:
        path.unlink(missing_ok=True)  # a link that leads nowhere
    except BusyError:
        return False
    return True


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Have for oneself what the dead have left under a temporary name.

    Raises `BusyError` where somebody has it, `NotFoundError` where there is no such file.
    """
    try:
        fd = _opened(path)
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist any more") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotFoundError(f"{path} is a link") from None
        raise
    try:
        if not _lock_alone(fd, path):
            raise BusyError(f"somebody has {path} in hand", hint="wait until that is done")
        if not _has_name(fd, path):
            raise NotFoundError(f"{path} does not exist any more")
        yield
    finally:
        os.close(fd)


def _opener(mode: int) -> Callable[[str, int], int]:
    return lambda path, flags: os.open(path, flags, mode)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | _HOW)  # without which NFS locks nothing for one alone
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise
        return os.open(path, os.O_RDONLY | _HOW)


def _lock_alone(fd: int, path: Path) -> bool:
    """Whether nobody else has it, nor gets it before `fd` is closed."""
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
    """Whether the process that gave this temporary name still runs, as far as pids can tell."""
    found = _PID.search(name)
    if found is None:
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
