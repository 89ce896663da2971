"""Immutable objects, named by the hash of their content.

An object appears complete and synced, or not at all: it is written to a temporary file, synced and
renamed, and the directory is synced. A file that has the name already may be damaged: it is never
reused but replaced by the bytes that were just hashed. Objects without references in the catalog
are garbage. Only `delete` and `vfsd gc` remove them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from vfsd.disk.checksums import BlockChecksummer, BlockChecksums, WholeFile
from vfsd.disk.object_reader import LocalReader, ObjectReader
from vfsd.disk.safe_open import (
    UNREADABLE,
    DirectFile,
    open_stored,
    remove,
    remove_directory,
    stored_chunks,
)
from vfsd.disk.store_layout import StoreDirectory, fsync_path, list_directory, not_of_one_disk
from vfsd.disk.tempfiles import (
    NEW_NAME,
    NewFile,
    delete_file,
    hold,
    is_locked,
    locked_directory,
    new_name,
    room_for,
    write_all,
)
from vfsd.errors import BusyError, IntegrityError
from vfsd.tiling.cost import RemoteCost

_CHUNK = 1 << 20
# How long to wait for other processes that start a file, which takes milliseconds.
_START_SECONDS = 30.0
_KEY = re.compile("[0-9a-f]{64}")
_FOLDER = re.compile("[0-9a-f]{2}")
_TEMPORARY = re.compile(NEW_NAME.pattern + r"(\.json(\.part)?)?")

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def is_key(text: str) -> bool:
    """Return whether a text is the name of an object: 64 hexadecimal digits of BLAKE3."""
    return _KEY.fullmatch(text) is not None


class Digest(NamedTuple):
    """The hash, size and block checksums of some bytes."""

    key: str  #: BLAKE3, hexadecimal
    size: int  #: bytes
    sums: BlockChecksums


class ObjectStore:
    """The objects of a store, and the temporary files for new ones."""

    def __init__(
        self, directory: StoreDirectory, before_first: Callable[[str], None] = lambda _: None
    ) -> None:
        """`before_first` is called with the first key if the store `has_no_folders`; it may
        raise."""
        self._directory = directory
        self._root = directory.objects
        self._tmp = directory.objects_tmp
        self._before_first = before_first

    @property
    def is_local(self) -> bool:
        """See `StoredObjects.is_local`."""
        return True

    def path(self, key: str) -> Path:
        """Return the path of an object. Raises `IntegrityError` for an invalid key from the
        catalog."""
        if not is_key(key):
            raise IntegrityError(f"an object's name must be its hash, got {key[:80]!r}")
        return self._root.joinpath(key[:2], key[2:])

    def fetch_cost(self) -> RemoteCost:
        """Return the cost of fetching from the bucket, as last measured."""
        return RemoteCost()

    def is_elsewhere(self, key: str) -> bool:
        """Return False: see `StoredObjects.is_elsewhere`."""
        return False

    def open(self, key: str) -> ObjectReader:
        """Open an object. Raises `IntegrityError` for an invalid key, `OSError`."""
        return LocalReader(open_stored(self.path(key)))

    def refresh(self, key: str) -> None:
        """See `StoredObjects.refresh`."""

    def whole_file(self, key: str) -> WholeFile:
        """Open an object for a check of all its bytes, past the caches. Raises as `open`."""
        return DirectFile(self.path(key))

    def local_path(self, key: str) -> Path | None:
        """Return the path of an object; see `StoredObjects.local_path`."""
        return self.path(key)

    def close(self) -> None:
        """Close connections to other hosts."""

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def is_here(self, key: str) -> bool:
        """Return whether an object is a local file."""
        return is_key(key) and _size(self.path(key)) is not None

    def upload(self, key: str, size: int, *, keep: bool = True, source: Path | None = None) -> str:
        """Send a local object, or a file with its bytes, to the bucket of the store; return its
        place there.

        With `keep`, its bytes are cached, so that the local file may go.
        """
        raise AssertionError("the store has no bucket")

    def abandon(self, place: str) -> None:
        """Count an upload that will not be recorded as garbage. Never fails."""

    def give_up_file(self, key: str) -> bool:
        """Delete a damaged local file if the bucket has intact bytes; return whether it did."""
        return False

    def release(self, key: str) -> None:
        """Delete the local file of an object if the bucket has it. Never fails."""

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if it is missing."""
        return _size(self.path(key)) if is_key(key) else None

    def is_intact(self, key: str, size: int | None) -> bool:
        """Return whether an object exists and hashes to its name.

        Reads all of it, unless its size differs from `size`. False if it cannot be read.
        """
        try:
            with closing(self.open(key)) as file:
                # The size is compared first: it costs nothing, and finds files that were cut off.
                return size in (None, file.size) and digest(file.descriptor()).key == key
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in UNREADABLE:
                return False
            raise

    def is_same_file(self, path: Path, key: str) -> bool:
        """Return whether `path` is a hard link of an object."""
        return is_key(key) and _is_same_inode(path, self.path(key))

    def put_file(self, source: Path, *, on_progress: Progress | None = None) -> Digest:
        """Copy a file into the store.

        Raises `NoSpaceError`; then nothing is left behind.
        """
        with open(source, "rb", buffering=0) as source_file:
            return self._put(iter(lambda: source_file.read(_CHUNK), b""), str(source), on_progress)

    def put_bytes(self, data: bytes, what: str) -> Digest:
        """Store bytes from memory as `put_file`; `what` names them in errors."""
        return self._put([data], what, None)

    def new_file(self) -> NewFile:
        """Return a new temporary file; `adopt` makes it an object.

        If the process dies, the file is among the `leftovers`.
        """
        return NewFile(self._new_path)

    def nameless_file(self) -> FileIO:
        """Return a new file that is deleted when it is closed."""
        # O_TMPFILE would need no name, but not all file systems have it.
        new = NewFile(self._new_path, mode=0o600)
        new.path.unlink()
        return new.file

    def _new_path(self) -> Path:
        return self._tmp / new_name()

    def temporary_files(self) -> list[Path]:
        """Return all temporary files and notes, of live and dead writers."""
        return [path for path in list_directory(self._tmp) if _TEMPORARY.fullmatch(path.name)]

    @contextmanager
    def exclusive_start(self) -> Iterator[None]:
        """Wrap a check for, and the start of, a new file: one thread of all processes at a time.

        Raises `BusyError` if another process takes too long, for instance because it was stopped;
        `OSError`.
        """
        with ExitStack() as held:
            try:
                held.enter_context(
                    locked_directory(self._tmp, fcntl.LOCK_EX, timeout=_START_SECONDS)
                )
            except BlockingIOError:
                raise BusyError(
                    f"another process has been starting a file for {_START_SECONDS:g} seconds",
                    hint=f"run `fuser {self._tmp}` to find it, and continue or end it",
                ) from None
            yield

    def _put(self, chunks: Iterable[bytes], what: str, on_progress: Progress | None) -> Digest:
        hasher, checksummer = blake3(), BlockChecksummer()
        with room_for(what), self.new_file() as new:
            for chunk in chunks:
                hasher.update(chunk)
                checksummer.update(chunk)
                write_all(new.file, chunk)
                if on_progress is not None:
                    on_progress(len(chunk))
            key = hasher.hexdigest()
            # A name that survives a power cut must never lead to fewer bytes than were written.
            os.fsync(new.file.fileno())
            self.exchange(new.path, key)
        sums = checksummer.finish()
        return Digest(key, sums.size, sums)

    def adopt(self, source: Path, key: str) -> None:
        """Make a file of the store an object as well, with a second name; its bytes hash to `key`.

        The file must not be written any more under any name. It becomes as readable as other
        objects. Raises `StoreError` for a file on another disk.
        """
        fsync_path(source)
        if self.is_same_file(source, key):  # rename(2) would do nothing and leave both names
            self._sync_name(key)
            return
        with open(source, "rb", buffering=0) as file:
            hold(file)  # the lock covers both names
            if source.parent != self._tmp:  # temporary files have the mode of objects already
                with suppress(PermissionError):  # another user's file: its owner decides
                    os.fchmod(file.fileno(), self._default_mode())
            # link(2) cannot replace a damaged object of the same key, rename(2) can.
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
    def verified_copy(
        self, source: Path, key: str, *, on_progress: Progress | None = None
    ) -> Iterator[Path]:
        """Yield a synced temporary copy of `source`, which must hash to `key`; for `exchange`.

        It is deleted at the end of the block otherwise. Raises `IntegrityError` if it does not hash
        to `key`, `NoSpaceError`, `OSError`.
        """
        with (
            open(source, "rb", buffering=0) as source_file,
            self.verified_temporary(
                iter(lambda: source_file.read(_CHUNK), b""), key, source, on_progress
            ) as new,
        ):
            yield new

    @contextmanager
    def verified_copy_of(
        self,
        other: ObjectStore,
        key: str,
        *,
        on_progress: Progress | None = None,
        checksummer: BlockChecksummer | None = None,
    ) -> Iterator[Path]:
        """Yield a copy as `verified_copy`, of the object in another store.

        Its bytes are also passed to `checksummer`. Raises `FileNotFoundError` if it is missing,
        `IntegrityError` also if it cannot be read.
        """
        source = other.path(key)
        with self.verified_temporary(
            stored_chunks(source), key, source, on_progress, checksummer
        ) as new:
            yield new

    @contextmanager
    def verified_temporary(
        self,
        chunks: Iterable[bytes],
        key: str,
        source: str | Path,
        on_progress: Progress | None,
        checksummer: BlockChecksummer | None = None,
    ) -> Iterator[Path]:
        """Yield a synced copy of bytes that must hash to `key`; see `verified_copy_of`.

        `source` is for messages.
        """
        hasher = blake3()
        with self.new_file() as new:
            with room_for(f"object {key}"):
                for chunk in chunks:
                    hasher.update(chunk)
                    if checksummer is not None:
                        checksummer.update(chunk)
                    write_all(new.file, chunk)
                    if on_progress is not None:
                        on_progress(len(chunk))
                if hasher.hexdigest() != key:
                    raise IntegrityError(f"{source} is not a good copy of object {key}")
                os.fsync(new.file.fileno())
            yield new.path

    def exchange(self, temporary: Path, key: str) -> None:
        """Rename synced bytes that hash to `key` to their object name, replacing any existing file.

        Readers of the old file keep it. Raises `IntegrityError` for a directory that is not empty,
        and if the parent is not a directory. Raises `StoreError` if another store has taken the
        path of this one.
        """
        self._directory.require_in_place()
        final = self.path(key)
        # No folder at all may mean that the disk of the objects is not mounted.
        if not final.parent.exists() and self.has_no_folders():
            self._before_first(key)
        try:
            final.parent.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise IntegrityError(
                f"{final.parent} must be a directory",
                hint="move it away and try again",
            ) from error
        _require_own_folder(final)
        try:
            temporary.replace(final)
        except IsADirectoryError:  # left there by another tool; only an empty one is removed
            remove_directory(final)
            temporary.replace(final)
        # rename(2) does nothing for two names of one file, and inode numbers do not always show
        # that: FUSE disks such as mergerfs and sshfs may report two. The object exists by now,
        # so an error here loses nothing: gc deletes the temporary name.
        with suppress(OSError):
            temporary.unlink()
        self._sync_name(key)

    def delete(self, key: str) -> None:
        """Delete an object without references, if it exists.

        Raises `IntegrityError` for a directory that is not empty, and if the parent is a link.
        Raises `StoreError` if another store has taken the path of this one.
        """
        self._directory.require_in_place()
        if is_key(key):
            path = self.path(key)
            _require_own_folder(path)
            remove(path)

    def delete_temporary_names(self, key: str) -> None:
        """Delete the temporary name and note of a published object whose publisher was killed.

        Files in use stay. Without the object they would look like an unfinished recording. Raises
        `OSError`.
        """
        if not is_key(key) or not _has_other_names(self.path(key)):
            return
        temporary = self.temporary_files()
        for path in [one for one in temporary if self.is_same_file(self.main_file(one), key)]:
            self.delete_temporary(path)

    def has_no_folders(self) -> bool:
        """Return whether there is no directory for objects yet: a new store, or an empty mount
        point."""
        return not any(map(_FOLDER.fullmatch, os.listdir(self._root)))

    def all_keys(self) -> Iterator[str]:
        """Yield the key of every object, in the catalog or not."""
        return (key for key, _ in self._named() if is_key(key))

    def misnamed(self) -> list[Path]:
        """Return files among the objects with an invalid name; empty if the directory is a link."""
        if self._root.is_symlink():  # others may use its target
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
        """Return the temporary files of dead writers."""
        return [path for path in self.temporary_files() if not is_locked(self.main_file(path))]

    def main_file(self, path: Path) -> Path:
        """Return the temporary file that a note belongs to, which its writer locks."""
        return path.with_name(path.name.partition(".")[0])

    def delete_temporary(self, path: Path) -> bool:
        """Delete one of the `leftovers`; return False if it is in use.

        Raises `IntegrityError` for a directory that is not empty, `OSError`, and `StoreError` if
        another store has taken the path of this one.
        """
        self._directory.require_in_place()
        main = self.main_file(path)
        # A note has no lock of its own: its writer locks the main file.
        if main == path:
            return delete_file(path)
        if is_locked(main):
            return False
        remove(path)
        return True

    def _default_mode(self) -> int:
        """Return the mode of new files here. Only a new file shows the effect of umask and ACLs."""
        with self.new_file() as new:
            return stat.S_IMODE(os.fstat(new.file.fileno()).st_mode)

    def _sync_name(self, key: str) -> None:
        fsync_path(self.path(key).parent)
        # The folder may be new: its own name is an entry of the root.
        fsync_path(self._root)


def _require_own_folder(path: Path) -> None:
    """Raise `IntegrityError` if the directory of an object is a link."""
    if path.parent.is_symlink():
        raise IntegrityError(
            f"{path.parent} is a link: its target may belong to another user or program",
            hint="replace it by a directory with the same objects",
        )


def _size(path: Path) -> int | None:
    """Return the size of a regular file; None for anything else."""
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


def _is_same_inode(one: Path, other: Path) -> bool:
    """Return whether both are names of one file."""
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def digest(fd: int, *, on_progress: Progress | None = None) -> Digest:
    """Hash everything in an open file."""
    # Not mapped: a mapped file that shrinks would kill the process.
    hasher, checksummer = blake3(), BlockChecksummer()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    at = 0
    while count := os.preadv(fd, [buffer], at):
        hasher.update(view[:count])
        checksummer.update(view[:count])
        at += count
        if on_progress is not None:
            on_progress(count)
    return Digest(hasher.hexdigest(), at, checksummer.finish())


def digest_file(path: Path, *, on_progress: Progress | None = None) -> Digest:
    """Hash the file at `path`. Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        return digest(file.fileno(), on_progress=on_progress)
