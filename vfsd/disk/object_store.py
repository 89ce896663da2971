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
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from vfsd.disk.block_checksums import BlockChecksummer, BlockChecksums
from vfsd.disk.direct_io import UNREADABLE, open_stored, stored_chunks
from vfsd.disk.enospc import room_for, write_all
from vfsd.disk.safe_open import remove, remove_directory
from vfsd.disk.store_layout import StoreDirectory, fsync_path, listed, not_of_one_disk
from vfsd.disk.tempfiles import (
    NEW_NAME,
    NewFile,
    delete_file,
    held_directory,
    hold,
    is_locked,
    new_name,
)
from vfsd.errors import BusyError, IntegrityError

_CHUNK = 1 << 20
_BEGINNING_SECONDS = 30.0
"""As long as others are waited for who begin a file, which takes them milliseconds."""
_KEY = re.compile("[0-9a-f]{64}")
_FOLDER = re.compile("[0-9a-f]{2}")
_ON_ITS_WAY = re.compile(NEW_NAME.pattern + r"(\.json(\.part)?)?")

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def is_key(text: str) -> bool:
    """Whether it is the name of an object, there or not: a blake3 in hexadecimal digits."""
    return _KEY.fullmatch(text) is not None


class Digest(NamedTuple):
    """What bytes come to."""

    key: str  #: blake3, hexadecimal
    size: int  #: bytes
    sums: BlockChecksums


class ObjectStore:
    """The objects of a store, and files on their way to become some."""

    def __init__(
        self, directory: StoreDirectory, before_first: Callable[[str], None] = lambda _: None
    ) -> None:
        """`before_first` is called with the first that comes where it `is_bare`; where it raises,
        none does."""
        self._directory = directory
        self._root = directory.objects
        self._tmp = directory.objects_tmp
        self._before_first = before_first

    def path(self, key: str) -> Path:
        """Where an object lies, or would.  Raises `IntegrityError` for what is no key: names in the
        catalog lead nowhere else."""
        if not is_key(key):
            raise IntegrityError(f"an object's name must be its hash, got {key[:80]!r}")
        return self._root.joinpath(key[:2], key[2:])

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """Bytes of an object; None where it is not there."""
        return _size(self.path(key)) if is_key(key) else None

    def is_intact(self, key: str, size: int | None) -> bool:
        """Whether an object is there, and its bytes hash to its name; reads all of it, unless its
        `size` is known, and another.

        False where they cannot be read.
        """
        try:
            with open(self.path(key), "rb", buffering=0, opener=open_stored) as file:
                found = os.fstat(file.fileno())
                return size in (None, found.st_size) and digest(file.fileno()).key == key
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in UNREADABLE:
                return False
            raise

    def is_one_with(self, path: Path, key: str) -> bool:
        """Whether a file of the store is an object under another name."""
        return is_key(key) and _are_one(path, self.path(key))

    def put_file(self, source: Path, *, on_progress: Progress | None = None) -> Digest:
        """Copy a file in; what its bytes come to.

        Raises `NoSpaceError` and leaves nothing behind when the disk is full.
        """
        with open(source, "rb", buffering=0) as reading:
            return self._put(iter(lambda: reading.read(_CHUNK), b""), str(source), on_progress)

    def put_bytes(self, data: bytes, what: str) -> Digest:
        """As `put_file`, what is in memory; `what` names it in errors."""
        return self._put([data], what, None)

    def new_file(self) -> NewFile:
        """A new file for bytes on their way; `adopt` makes an object of them.

        What a process leaves there when it ends is among the `leftovers`.
        """
        return NewFile(self._new_path)

    def nameless_file(self) -> FileIO:
        """A new file that goes when it is closed."""
        new = NewFile(self._new_path, mode=0o600)
        new.path.unlink()
        return new.file

    def _new_path(self) -> Path:
        return self._tmp / new_name()

    def on_their_way(self) -> list[Path]:
        """Everything under such a name, of writers that live and of those that died, and the notes
        beside it."""
        return [path for path in listed(self._tmp) if _ON_ITS_WAY.fullmatch(path.name)]

    @contextmanager
    def beginning_alone(self) -> Iterator[None]:
        """For a block that begins something unless another is on its way: one at a time, of all
        threads and processes.

        Raises `BusyError` where another takes longer than such a block can, as one that was
        stopped does, `OSError`.
        """
        with ExitStack() as held:
            try:
                held.enter_context(
                    held_directory(self._tmp, fcntl.LOCK_EX, patience=_BEGINNING_SECONDS)
                )
            except BlockingIOError:
                raise BusyError(
                    f"another process has been beginning a file for {_BEGINNING_SECONDS:g} seconds",
                    hint=f"`fuser {self._tmp}` tells which: go on with it, or end it",
                ) from None
            yield

    def _put(self, chunks: Iterable[bytes], what: str, on_progress: Progress | None) -> Digest:
        hasher, summer = blake3(), BlockChecksummer()
        with room_for(what), self.new_file() as new:
            for chunk in chunks:
                hasher.update(chunk)
                summer.update(chunk)
                write_all(new.file, chunk)
                if on_progress is not None:
                    on_progress(len(chunk))
            key = hasher.hexdigest()
            os.fsync(new.file.fileno())
            self.exchange(new.path, key)
        sums = summer.finish()
        return Digest(key, sums.size, sums)

    def adopt(self, source: Path, key: str) -> None:
        """Give a file of the store a name among the objects too; its bytes hash to `key`.

        The file must not be written any more, under whatever name.  Who may read other objects may
        read it from now on, too.  Raises `StoreError` for a file of another disk.
        """
        fsync_path(source)
        if self.is_one_with(source, key):  # then a rename would do nothing, and leave the other
            self._sync_name(key)
            return
        with open(source, "rb", buffering=0) as file:
            hold(file)  # as the other name is of the same file; whoever claims it is this process
            if source.parent != self._tmp:  # where new files are made as objects are
                with suppress(PermissionError):  # it is somebody else's, who says who may read it
                    os.fchmod(file.fileno(), self._usual_mode())
            temporary = self._new_path()
            try:
                os.link(source, temporary)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                raise not_of_one_disk(source.parent, self._root) from error
            try:
                self.exchange(temporary, key)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    @contextmanager
    def good_copy(
        self, source: Path, key: str, *, on_progress: Progress | None = None
    ) -> Iterator[Path]:
        """A copy of what should be the bytes of an object beside it, durable; for `exchange`, and
        gone when the block ends without.

        Raises `IntegrityError` where they do not hash to `key`, `NoSpaceError`, `OSError`.
        """
        with (
            open(source, "rb", buffering=0) as reading,
            self._compared(
                iter(lambda: reading.read(_CHUNK), b""), key, source, on_progress
            ) as new,
        ):
            yield new

    @contextmanager
    def good_copy_of(
        self,
        other: ObjectStore,
        key: str,
        *,
        on_progress: Progress | None = None,
        summer: BlockChecksummer | None = None,
    ) -> Iterator[Path]:
        """As `good_copy`, of what another store has as this object; its bytes pass a `summer`, too.

        Raises `FileNotFoundError` where it is not there, `IntegrityError` also where it cannot be
        read.
        """
        source = other.path(key)
        with self._compared(stored_chunks(source), key, source, on_progress, summer) as new:
            yield new

    @contextmanager
    def _compared(
        self,
        chunks: Iterable[bytes],
        key: str,
        source: Path,
        on_progress: Progress | None,
        summer: BlockChecksummer | None = None,
    ) -> Iterator[Path]:
        hasher = blake3()
        with self.new_file() as new:
            with room_for(f"object {key}"):
                for chunk in chunks:
                    hasher.update(chunk)
                    if summer is not None:
                        summer.update(chunk)
                    write_all(new.file, chunk)
                    if on_progress is not None:
                        on_progress(len(chunk))
                if hasher.hexdigest() != key:
                    raise IntegrityError(f"{source} is not a good copy of object {key}")
                os.fsync(new.file.fileno())
            yield new.path

    def exchange(self, temporary: Path, key: str) -> None:
        """Let synced bytes that hash to `key` have its name, whatever had it before; who has that
        open keeps it.  Raises `IntegrityError` for a directory that is not empty, and where
        something else lies in the place of the one above; `StoreError` where another store has
        taken this one's place."""
        self._directory.require_in_place()
        final = self.path(key)
        if not final.parent.exists() and self.is_bare():
            self._before_first(key)
        try:
            final.parent.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise IntegrityError(
                f"{final.parent} must be a directory",
                hint="move what lies there away, and try again",
            ) from error
        _require_own_folder(final)
        try:
            temporary.replace(final)
        except IsADirectoryError:
            remove_directory(final)
            temporary.replace(final)
        # rename(2) does nothing where both are names of one file, which inode numbers do not always
        # tell: FUSE disks such as mergerfs and sshfs may show two for it.
        # The object is there by then, so a disk that fails here loses nothing: gc ends the name.
        with suppress(OSError):
            temporary.unlink()
        self._sync_name(key)

    def delete(self, key: str) -> None:
        """Nothing may refer to it any more; that it is gone already is fine, or never could be.

        Raises `IntegrityError` for a directory that is not empty, and where a link leads to the
        one above; `StoreError` where another store has taken this one's place.
        """
        self._directory.require_in_place()
        if is_key(key):
            path = self.path(key)
            _require_own_folder(path)
            remove(path)

    def drop_other_names(self, key: str) -> None:
        """Take away the name that a published object had on its way, and the note, where whoever
        published it was killed before he could; nothing that somebody has in hand.

        Without the object it would be a recording that was not finished.  Raises `OSError`.
        """
        if not is_key(key) or not _has_other_names(self.path(key)):
            return
        on_their_way = self.on_their_way()
        for path in [one for one in on_their_way if self.is_one_with(self.main_file(one), key)]:
            self.take_away(path)

    def is_bare(self) -> bool:
        """Whether there is not even a folder for objects, as before the first one comes, or in a
        directory over which nothing is mounted."""
        return not any(map(_FOLDER.fullmatch, os.listdir(self._root)))

    def all_keys(self) -> Iterator[str]:
        """Every object, recorded in the catalog or not."""
        return (key for key, _ in self._named() if is_key(key))

    def misnamed(self) -> list[Path]:
        """What lies among the objects under a name that no object has; nothing where a link leads
        to them, as it may be somebody else's there."""
        if self._root.is_symlink():
            return []
        return [path for key, path in self._named() if not is_key(key)]

    def _named(self) -> Iterator[tuple[str, Path]]:
        for folder in sorted(self._root.iterdir()):
            if not _FOLDER.fullmatch(folder.name) or folder.is_symlink():
                continue
            if not folder.is_dir():
                yield folder.name, folder
                continue
            for path in sorted(folder.iterdir()):
                yield folder.name + path.name, path

    def leftovers(self) -> list[Path]:
        """What writers that died have left on its way."""
        return [path for path in self.on_their_way() if not is_locked(self.main_file(path))]

    def main_file(self, path: Path) -> Path:
        """Of a file on its way, or a note beside it: that which whoever writes it holds."""
        return path.with_name(path.name.partition(".")[0])

    def take_away(self, path: Path) -> bool:
        """Delete one of the `leftovers`; whether it is gone, or somebody has it in hand by now.

        Raises `IntegrityError` for a directory that is not empty, `OSError`, and `StoreError` where
        another store has taken this one's place.
        """
        self._directory.require_in_place()
        main = self.main_file(path)
        if main == path:
            return delete_file(path)
        if is_locked(main):
            return False
        remove(path)
        return True

    def _usual_mode(self) -> int:
        """What new files have here, by umask and directory: only a new file tells."""
        with self.new_file() as new:
            return stat.S_IMODE(os.fstat(new.file.fileno()).st_mode)

    def _sync_name(self, key: str) -> None:
        fsync_path(self.path(key).parent)
        fsync_path(self._root)


def _require_own_folder(path: Path) -> None:
    """Raises `IntegrityError` where a link leads to the directory of an object."""
    if path.parent.is_symlink():
        raise IntegrityError(
            f"{path.parent} is a link, and what lies where it leads may be somebody else's",
            hint="put a directory in its place, with the objects that are there",
        )


def _size(path: Path) -> int | None:
    """Of a stored file; None where there is none, but nothing, a link, a pipe or a directory."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _has_other_names(path: Path) -> bool:
    try:
        return path.lstat().st_nlink > 1
    except (FileNotFoundError, NotADirectoryError):
        return False


def _are_one(one: Path, other: Path) -> bool:
    """Whether both are names of one file."""
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def digest(fd: int, *, on_progress: Progress | None = None) -> Digest:
    """What everything in an open file comes to.

    Reads instead of mapping: a mapped file that shrinks meanwhile kills the process.
    """
    hasher, summer = blake3(), BlockChecksummer()
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


def digest_file(path: Path, *, on_progress: Progress | None = None) -> Digest:
    """What everything in the file at `path` comes to.  Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        return digest(file.fileno(), on_progress=on_progress)
