"""Immutable objects, named by their content.

An object appears under its name whole and durable, or not at all: the bytes are written under a
temporary name and synced, then the name is given and the directory synced.  What had that name
before may have changed on disk: it is never relied on, but gives way to the bytes that have just
been hashed.  What nobody refers to in the catalog is garbage, and only `delete` and `vfsd gc` take
it away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from vfsd.blocksums import BlockSummer, BlockSums
from vfsd.config import Settings
from vfsd.errors import IntegrityError, NoSpaceError
from vfsd.forks import at_fork
from vfsd.storedir import StoreDirectory, fsync_path

_CHUNK = 1 << 20
_KEY = re.compile("[0-9a-f]{64}")
_PID = re.compile(r"(?:^|\.)([0-9]{1,9})-")

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def is_key(text: str) -> bool:
    """Whether it is the name of an object, there or not: a blake3 in hexadecimal digits."""
    return _KEY.fullmatch(text) is not None


class Digest(NamedTuple):
    """What bytes come to."""

    key: str  #: blake3, hexadecimal
    size: int  #: bytes
    sums: BlockSums


class ObjectStore:
    def __init__(self, directory: StoreDirectory) -> None:
        self._root = directory.objects
        self._tmp = directory.objects_tmp
        self._settings = directory.settings

    def path(self, key: str) -> Path:
        """Where an object lies, or would.  Raises `IntegrityError` for what is no key: names in the
        catalog lead nowhere else."""
        if not is_key(key):
            raise IntegrityError(f"{key[:80]!r} is no name of an object")
        return self._root.joinpath(key[:2], key[2:])

    def exists(self, key: str) -> bool:
        return is_key(key) and self.path(key).exists()

    def put_file(self, source: Path, *, on_progress: Progress | None = None) -> Digest:
        """Copy a file in; what its bytes come to.

        Raises `NoSpaceError` and leaves nothing behind when the disk is full.
        """
        with open(source, "rb", buffering=0) as reading:
            return self._put(iter(lambda: reading.read(_CHUNK), b""), str(source), on_progress)

    def put_bytes(self, data: bytes, what: str) -> Digest:
        """As `put_file`, what is in memory; `what` names it in errors."""
        return self._put([data], what, None)

    def temporary(self) -> Path:
        """A new name for bytes on their way, which nobody has; `adopt` makes an object of them.

        What this process leaves there when it ends is among the `leftovers`.
        """
        return self._tmp / f"{os.getpid()}-{uuid.uuid4().hex}"

    def on_their_way(self) -> list[Path]:
        """Everything under such a name, of writers that live and of those that died."""
        return sorted(self._tmp.iterdir())

    def _put(self, chunks: Iterable[bytes], what: str, on_progress: Progress | None) -> Digest:
        temporary = self.temporary()
        hasher, summer = blake3(), BlockSummer()
        try:
            with open(temporary, "xb", 0) as writing:
                hold(writing)
                for chunk in chunks:
                    hasher.update(chunk)
                    summer.update(chunk)
                    _write_all(writing, chunk)
                    if on_progress is not None:
                        on_progress(len(chunk))
                os.fsync(writing.fileno())
            key = hasher.hexdigest()
            self.exchange(temporary, key)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpaceError(f"no room for {what}: {error.strerror}") from error
            raise
        sums = summer.finish()
        return Digest(key, sums.size, sums)

    def adopt(self, source: Path, key: str) -> None:
        """Give a file of the store a name among the objects too; its bytes hash to `key`.

        The file must not be written any more, under whatever name.
        """
        fsync_path(source)
        if _are_one(source, self.path(key)):  # then a rename would do nothing, and leave the other
            self._sync_name(key)
            return
        temporary = self.temporary()
        os.link(source, temporary)
        try:
            self.exchange(temporary, key)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def put_back(self, source: Path, key: str, *, on_progress: Progress | None = None) -> Path:
        """Copy what should be the bytes of an object beside it, durably; for `exchange`.

        Raises `IntegrityError` where they do not hash to `key`, `NoSpaceError`, `OSError`; nothing
        is left behind then.
        """
        temporary = self.temporary()
        hasher = blake3()
        try:
            with open(source, "rb", buffering=0) as reading, open(temporary, "xb", 0) as writing:
                hold(writing)
                while chunk := reading.read(_CHUNK):
                    hasher.update(chunk)
                    _write_all(writing, chunk)
                    if on_progress is not None:
                        on_progress(len(chunk))
                os.fsync(writing.fileno())
            if hasher.hexdigest() != key:
                raise IntegrityError(f"{source} is no good copy of object {key}")
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpaceError(f"no room for object {key}: {error.strerror}") from error
            raise
        return temporary

    def exchange(self, temporary: Path, key: str) -> None:
        """Let synced bytes that hash to `key` have its name, whatever had it before; who has that
        open keeps it."""
        final = self.path(key)
        final.parent.mkdir(exist_ok=True)
        temporary.replace(final)
        self._sync_name(key)

    def delete(self, key: str) -> None:
        """Nothing may refer to it any more; that it is gone already is fine, or never could be."""
        if is_key(key):
            self.path(key).unlink(missing_ok=True)

    def all_keys(self) -> Iterator[str]:
        """Every object, recorded in the catalog or not."""
        return (key for key, _ in self._named() if is_key(key))

    def misnamed(self) -> list[Path]:
        """What lies among the objects under a name that no object has."""
        return [path for key, path in self._named() if not is_key(key)]

    def _named(self) -> Iterator[tuple[str, Path]]:
        for folder in sorted(self._root.iterdir()):
            if len(folder.name) == 2:
                for path in sorted(folder.iterdir()):
                    yield folder.name + path.name, path

    def leftovers(self) -> list[Path]:
        """What writers that died have left on its way, settings among it."""
        beside = Settings.on_their_way(self._settings)
        return [path for path in [*self.on_their_way(), *beside] if not is_in_hand(path)]

    def _sync_name(self, key: str) -> None:
        fsync_path(self.path(key).parent)
        fsync_path(self._root)


def _are_one(one: Path, other: Path) -> bool:
    """Whether both are names of one file."""
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except FileNotFoundError:
        return False


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class Held:
    """Lets others see that a file is being written: see `hold`."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", 0)  # noqa: SIM115
        hold(self._file)
        at_fork(self)

    def let_go(self) -> None:
        self._file.close()

    def begin_anew(self) -> None:
        """See `vfsd.forks`.  It is the parent who writes; a child may live longer."""
        self.let_go()


def hold(file: FileIO) -> None:
    """Let others see that somebody writes a file, as long as that, or a copy of it, is open.

    The pid in its name says nothing to who lives in another container.
    """
    with suppress(OSError):  # where the file system cannot, the pid has to do
        fcntl.flock(file, fcntl.LOCK_SH)


def is_in_hand(path: Path) -> bool:
    """Whether whoever gave this temporary name, or one beside it, still writes the file."""
    return is_alive(path.name) or _is_held(path.with_name(path.name.partition(".")[0] or path.name))


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def is_alive(name: str) -> bool:
    """Whether the process that gave this temporary name still runs, as far as pids can tell."""
    found = _PID.search(name)
    if found is None:
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def digest(fd: int, *, on_progress: Progress | None = None) -> Digest:
    """What everything in an open file comes to.

    Reads instead of mapping: a mapped file that shrinks meanwhile kills the process.
    """
    hasher, summer = blake3(), BlockSummer()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    at = 0
    while count := os.preadv(fd, [buffer], at):
        hasher.update(view[:count])
        summer.update(view[:count])
        at += count
        if on_progress is not None:
            on_progress(count)
    return Digest(hasher.hexdigest(), at, summer.finish())
