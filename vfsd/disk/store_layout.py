"""Paths of everything in the directory of a store, its marker file and its mount lock.

STORE/
  vfsd-store.json      marker: format number, id, URL of the catalog
  config.toml          settings (may be missing)
  catalog.sqlite3      the catalog, with -wal and -shm next to it
  objects/ab/cdef...   immutable objects, named by the BLAKE3 of their bytes
  objects/tmp/         objects that are being written; another home of the store has tmp-HOME/
  spool/123            private bytes of inode 123 while it is not a video
  kept/                bytes of files that another host took over before they were published
  cache/abcd...        rendered views of the video with that digest; may be deleted at any time
  reserve              preallocated space for a full disk; may be deleted at any time
  mount.lock           locked by the daemon that mounts the store, or by work that prevents mounts
  mount.log            log of that daemon, if the user's state directory cannot be used
  mount.decoding       what that daemon is decoding, and how it crashed if it did
  mount.rendering      the same for its render process
  suspects.json        files whose decoding may have crashed a process (may be missing)
  scrub.json           position of an interrupted scrub; may be deleted
  incoming/            private files, settings and a catalog that replace those above when the store
                       is opened next; ignored while the catalog is missing
  replaced-TIME/       catalog and private files from before a restore; may be deleted
  vfsd-backup.json     only in backups: the id of the source; locked while the backup is written
  vfsd-backup-files.json  sources of the private files of a backup; may be deleted
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from vfsd.disk.mount_queries import StoreIdentity, mount_above, mounts, shares_mounts
from vfsd.disk.safe_open import (
    DirectoryHandle,
    is_regular_or_missing,
    open_own,
    require_regular,
    require_same_process,
)
from vfsd.disk.tempfiles import NEW_NAME, new_name, temporary_files, write_atomically
from vfsd.errors import (
    BusyError,
    ExistsError,
    NoStoreError,
    ReadOnlyError,
    StoreError,
    StoreVersionError,
)

FORMAT = 1
"""Version of everything in the directory but the catalog, which has revisions of its own."""
SHARED_FORMAT = 2
"""The same for a home that joined a store, or a store with objects in a bucket."""

CATALOG = "catalog.sqlite3"

# How long a mount waits for other users of its lock.
_LOCK_SECONDS = 2.0
# How often it tries.
_POLL_SECONDS = 0.005

_MARKER = "vfsd-store.json"
_COPY = ".copy"
_INODE = re.compile("[1-9][0-9]*")
_SPOOL_COPY = re.compile(f"{_INODE.pattern}\\.{NEW_NAME.pattern}{re.escape(_COPY)}")
_UNFINISHED = _MARKER + ".tmp"


def url_of_file(path: Path) -> str:
    """Return the URL of an SQLite file. Escapes % and ?, which have a meaning in URLs."""
    return "sqlite:///" + os.fspath(path).replace("%", "%25").replace("?", "%3F")


class StoreDirectory:
    """Paths in the directory of a store, its marker file, and its mount lock."""

    def __init__(
        self,
        root: Path,
        marker: dict[str, object],
        held: DirectoryHandle | None = None,
        top: Path | None = None,
    ) -> None:
        """`top` is another path to the same directory, used to open everything in it."""
        self.root = root  #: used in messages
        self.top = top or root
        self._marker = marker
        self._anchor = held

    @classmethod
    @contextmanager
    def creating(
        cls,
        root: Path,
        *,
        catalog_url: str | None = None,
        is_secret: bool = False,
        joins: str | None = None,
        objects: Path | None = None,
        bucket: tuple[str, Mapping[str, str | bool]] | None = None,
    ) -> Iterator[StoreDirectory]:
        """Create a store in `root`, which must be missing or empty; the block fills it.

        With `joins`, the id of a store, it becomes another home of that store. Then `objects` is
        the directory with the store's objects, and `bucket` the store's bucket and its options.

        A new directory is accessible only to its owner. So is the marker if the URL `is_secret`.
        The directory becomes a store when the block succeeds; an interrupted creation can be
        repeated. Raises `ExistsError` for a directory with other content, and `BusyError` if
        another process is creating a store there.
        """
        root = root.absolute()
        begun = root / _UNFINISHED
        _require_no_store(root)
        if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not begun.exists())):
            raise ExistsError(
                f"{root} exists and is not an empty directory",
                hint="give an empty or missing directory",
            )
        made = [path for path in (root, *root.parents) if not path.exists()]
        # Access to the directory gives access to every video, whatever its mode in a mount.
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock_creation(root) as fd:
            if is_secret:
                os.fchmod(fd, 0o600)
            marker: dict[str, object] = {
                "format": FORMAT,
                # An external catalog may have recorded the id of the interrupted creation.
                "id": cls.begun_id(root) or str(uuid.uuid4()),
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "catalog": catalog_url,
            }
            if joins is not None:
                # An interrupted creation may have recorded this home in the catalog.
                home = cls._begun_home(root) or str(uuid.uuid4())
                marker.update(format=SHARED_FORMAT, id=joins, home=home)
            if bucket is not None:
                marker.update(objects=bucket[0], objects_options=dict(bucket[1]))
            # The marker of the unfinished store is synced before anything else exists. The id is
            # overwritten by itself in place, so it is never lost.
            written = json.dumps(marker, indent=2).encode() + b"\n"
            os.pwrite(fd, written, 0)
            os.ftruncate(fd, len(written))
            os.fsync(fd)
            fsync_path(root)
            for path in made:
                with suppress(PermissionError):  # a directory can be writable but not readable
                    fsync_path(path.parent)
            directory = cls(root, marker)
            if objects is None:
                directory.objects.mkdir(exist_ok=True)
            else:
                directory.objects.unlink(missing_ok=True)
                directory.objects.symlink_to(objects)
            directory.create_directories()
            # An interrupted creation may have left a catalog without its tables.
            for side in ("", "-wal", "-shm"):
                (root / f"{CATALOG}{side}").unlink(missing_ok=True)
            yield directory
            for path in (root / CATALOG, directory.objects, root):
                if path.exists():
                    fsync_path(path)
            # The marker is last: without it the directory is not a store.
            begun.replace(root / _MARKER)
            fsync_path(root)

    @classmethod
    def begun_id(cls, root: Path) -> str | None:
        """Return the id of the store whose creation in `root` was interrupted."""
        return cls._begun(root, "id")

    @classmethod
    def _begun_home(cls, root: Path) -> str | None:
        return cls._begun(root, "home")

    @classmethod
    def _begun(cls, root: Path, key: str) -> str | None:
        begun = root / _UNFINISHED
        try:
            if not is_regular_or_missing(begun):
                return None
            return _id_in(begun.read_text(encoding="utf-8"), key)
        except (OSError, ValueError):
            return None

    @classmethod
    def open(cls, root: Path) -> StoreDirectory:
        """Open a store. Raises `NoStoreError`, `StoreVersionError`, and as `require_files`."""
        root = root.absolute()
        return cls._opened(root, root)

    @classmethod
    def is_at(cls, root: Path) -> bool:
        """Return whether a directory has the marker of a store, readable or not."""
        return (root / _MARKER).exists()

    @classmethod
    def open_watched(cls, root: Path) -> StoreDirectory:
        """Open a store whose files are opened by path, as long as the path leads to it.

        See `require_in_place`. The caller closes it. Raises as `open`.
        """
        root = root.absolute()
        with _no_store_at(root):
            held = DirectoryHandle.open(root)
        found = cls(root, cls._opened(root, root)._marker, held)
        found.require_in_place()
        return found

    @classmethod
    def open_held(cls, root: Path, held: DirectoryHandle | None = None) -> StoreDirectory:
        """Open a store whose files are opened through a descriptor of its directory.

        The directory may be moved and replaced at its path: this object keeps the opened one.
        `held` is an existing descriptor. Without /proc, files are opened by path as with
        `open_watched`. The caller closes it. Raises as `open`.
        """
        root = root.absolute()
        with _no_store_at(root):
            held = held or DirectoryHandle.open(root)
        top = held.path or root
        return cls(root, cls._opened(root, top)._marker, held, top)

    @classmethod
    def _opened(cls, root: Path, top: Path) -> StoreDirectory:
        """Read and check the marker. `top` is another path to `root`, used to open everything."""
        try:
            if not is_regular_or_missing(top / _MARKER):
                raise ValueError("it is not a regular file")
            marker = json.loads((top / _MARKER).read_text(encoding="utf-8"))
            number = int(marker["format"])
            str(marker["id"]).encode()  # must be encodable for messages
            str(marker.get("home", "")).encode()
        except (FileNotFoundError, NotADirectoryError):
            if (top / CATALOG).exists():
                raise NoStoreError(
                    f"the store in {root} has lost its {_MARKER}",
                    hint="put it back from a backup of this store (`vfsd restore`)",
                ) from None
            raise _no_store(root) from None
        except (
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise NoStoreError(
                f"{root / _MARKER} cannot be read: {error}",
                hint="put it back from a backup of this store (`vfsd restore`)",
            ) from error
        if number > SHARED_FORMAT:
            raise StoreVersionError(
                f"{root} has store format {number}, this vfsd knows up to {SHARED_FORMAT}",
                hint="install the version of vfsd that wrote it, or a newer one",
            )
        directory = cls(root, marker, top=top)
        directory.require_files()
        return directory

    @classmethod
    def unmarked(cls, root: Path) -> StoreDirectory:
        """Return the paths in a directory that is not a store yet."""
        return cls(root, {})

    def copy_marker(self, root: Path) -> None:
        """Make `root`, which has a copy of everything including the catalog, a store."""
        # A copy has all objects as files.
        gone = ("objects", "objects_options")
        kept = {key: value for key, value in self._marker.items() if key not in gone}
        marker = {**kept, "format": FORMAT, "catalog": None}
        write_atomically(root / _MARKER, json.dumps(marker, indent=2) + "\n")

    @staticmethod
    def write_marker(root: Path, store: str, entries: Mapping[str, str]) -> None:
        """Make `root`, which has everything including the catalog, a store with that id."""
        marker = {"format": FORMAT, "id": store, **entries, "catalog": None}
        write_atomically(root / _MARKER, json.dumps(marker, indent=2) + "\n")

    def temporary_files(self) -> list[Path]:
        """Return temporary files next to the catalog, of live and dead processes."""
        begun = self.top / _UNFINISHED
        files = (
            *(self.settings, self.quarantine, self.scrub_note),
            *(self.top / _MARKER, self.backup_notes),
        )
        left = [path for file in files for path in temporary_files(file)]
        return [*left, begun] if begun.exists() else left

    def require_files(self) -> None:
        """Raise `StoreError` if a path of the store is not of the right type; see
        `vfsd.disk.safe_open`.

        Directories in which files are moved or deleted must not be links into other stores. Files
        that are only read or replaced may be links.
        """
        incoming = self.incoming
        for folder in (incoming.root, incoming.spool, self.objects_tmp):
            if folder.is_symlink():
                raise _is_link(folder)
        if os.path.lexists(incoming.root) and not incoming.root.is_dir():
            raise _not_a_directory(incoming.root)
        for folder in (self.objects, self.spool, self.cache):
            self._require_no_others(folder)
        require_regular(
            self.top / _MARKER,
            self.settings,
            self.catalog_file,
            self.quarantine,
            self.scrub_note,
            self.backup_notes,
        )
        require_same_process(
            *self.sqlite_side_files(),
            self.rollback_journal,
            self.reserve,
            self.mount_lock,
            self.decoding_note,
            self.rendering_note,
            self.backup_sign,
            incoming.catalog_file,
            incoming.settings,
        )

    def require_one_disk(self) -> None:
        """Raise `StoreError` if private files cannot be hard-linked as objects.

        That is so on another disk, or where one disk is mounted twice.
        """
        spool, objects = self.spool, self.objects
        above = {mount_above(Path(os.path.realpath(folder))) for folder in (spool, objects)}
        if spool.stat().st_dev != objects.stat().st_dev or len(above) > 1:
            raise not_of_one_disk(spool, objects)

    def _require_no_others(self, folder: Path) -> None:
        """Raise `StoreError` for a link into another store, which uses the same file names."""
        if not folder.is_symlink():
            return
        for above in Path(os.path.realpath(folder)).parents:
            if (above / _MARKER).exists() and not above.samefile(self.top):
                if folder == self.objects and self._shares_objects(above):
                    continue
                raise StoreError(
                    f"{folder} is a link into the store in {above}",
                    hint="link to a directory that only this store uses",
                )

    def _shares_objects(self, other: Path) -> bool:
        """Return whether `other` is a home of the store that this home joined."""
        try:
            return self.is_joined and _id_in((other / _MARKER).read_text()) == self.id
        except (OSError, ValueError):
            return False

    def create_directories(self) -> None:
        """Create missing directories, except `objects`: copy tools may skip empty ones.

        Raises `StoreError` if a path is not a directory, `ReadOnlyError`.
        """
        for below in (self.objects_tmp, self.spool, self.cache):
            try:
                below.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise _not_a_directory(below) from error
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES):
                    raise
                raise ReadOnlyError(
                    f"{below} is missing and cannot be created: {error.strerror}",
                    hint="run `vfsd ls` on the store once as a user who may write there",
                ) from error

    def require_objects(self) -> None:
        """Raise `StoreError` if the directory of the objects is missing.

        Otherwise checks would report all videos as lost and delete their tiles.
        """
        if not self.objects.is_dir():
            raise StoreError(
                f"the store in {self.root} has lost its directory {self.objects.name}",
                hint="mount its disk if it is on another one; else restore it, for instance with "
                "`vfsd restore`, or create it and run `vfsd fsck` to list missing objects",
            )

    def close(self) -> None:
        """Close the descriptor of the directory."""
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def require_in_place(self) -> None:
        """Raise `StoreError` if the opened directory is no longer at its path.

        Call it before writing or deleting by path: another store may be there.
        """
        if self._anchor is None or self._anchor.is_at(self.top):
            return
        now = self._anchor.location()
        where = "it was deleted" if now is None else f"it is at {now}"
        raise StoreError(
            f"the store opened in {self.root} was moved or deleted: {where}",
            hint="open the store again at its new place",
        )

    @property
    def anchor(self) -> DirectoryHandle | None:
        """The descriptor used to open everything; None if paths are used."""
        return None if self.top == self.root else self._anchor

    @property
    def location(self) -> Path:
        """The current path of the store if known, else `root`."""
        if self._anchor is None or self._anchor.is_at(self.root):
            return self.root
        return self._anchor.location() or self.root

    @property
    def identity(self) -> StoreIdentity:
        """The identity for comparisons with a mount. Raises `OSError`."""
        found = os.stat(self.top)
        return StoreIdentity(self.id, found.st_dev, found.st_ino)

    @property
    def id(self) -> str:
        return str(self._marker["id"])

    @property
    def creation(self) -> dict[str, str]:
        """The entries of the marker that a restored store keeps, besides the id."""
        return {"created": str(self._marker.get("created", ""))}

    @property
    def is_joined(self) -> bool:
        """Whether the directory is a home that joined the store of another."""
        return "home" in self._marker

    @property
    def home(self) -> str:
        """The id of this directory among all homes of its store; the first home has the store's."""
        return str(self._marker.get("home", self.id))

    def home_at(self, place: Path) -> str | None:
        """Return the `home` of the directory at another path; None if it is not a store."""
        try:
            text = (place / _MARKER).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
        return _id_in(text, "home") or _id_in(text)

    @property
    def bucket(self) -> tuple[str, dict[str, str | bool]] | None:
        """The URL of the bucket with the store's objects, and its options; None: it has none."""
        url, options = self._marker.get("objects"), self._marker.get("objects_options")
        if not isinstance(url, str):
            return None
        return url, dict(options) if isinstance(options, dict) else {}

    def set_bucket(self, url: str, options: Mapping[str, str | bool]) -> None:
        """Record the bucket in the marker, which older versions of vfsd refuse from then on."""
        self._change_marker(
            {"format": SHARED_FORMAT, "objects": url, "objects_options": dict(options)}
        )

    def set_catalog(self, url: str) -> None:
        """Record another URL of the same catalog in the marker."""
        if url != self.catalog_url:
            self._change_marker({"catalog": url})

    def _change_marker(self, new: Mapping[str, object]) -> None:
        path = self.top / _MARKER
        is_secret = path.stat().st_mode & 0o077 == 0
        marker = {**self._marker, **new}
        write_atomically(path, json.dumps(marker, indent=2) + "\n", is_secret=is_secret)
        fsync_path(self.top)
        self._marker = marker

    @property
    def catalog_url(self) -> str:
        url = self._marker.get("catalog")
        return str(url) if url else self._own_catalog_url

    @property
    def has_own_catalog(self) -> bool:
        """Whether the catalog is in this directory, not elsewhere or on a server."""
        return self.catalog_url == self._own_catalog_url

    @property
    def _own_catalog_url(self) -> str:
        return url_of_file(self.catalog_file)

    @property
    def catalog_file(self) -> Path:
        """The catalog, if the store `has_own_catalog`."""
        return self.top / CATALOG

    def sqlite_side_files(self) -> tuple[Path, Path]:
        """Return SQLite's write-ahead log and shared-memory file."""
        return self.top / f"{CATALOG}-wal", self.top / f"{CATALOG}-shm"

    @property
    def rollback_journal(self) -> Path:
        """SQLite's journal while it changes the journal mode."""
        return self.top / f"{CATALOG}-journal"

    @property
    def incoming(self) -> StoreDirectory:
        """The directory with files of a pending catalog swap; see `vfsd.storage.catalog_swap`."""
        return StoreDirectory.unmarked(self.top / "incoming")

    @property
    def new_catalog(self) -> Path:
        """The catalog of a swap that is not committed yet."""
        return self.top / "catalog.new"

    def replaced(self, when: str) -> Path:
        """Return where a catalog and private files are kept that a restore replaced."""
        return self.top / f"replaced-{when}"

    @property
    def backup_sign(self) -> Path:
        """A file that only backups have."""
        return self.top / "vfsd-backup.json"

    @property
    def backup_notes(self) -> Path:
        """Describes the private files of a backup."""
        return self.top / "vfsd-backup-files.json"

    @property
    def objects(self) -> Path:
        return self.top / "objects"

    @property
    def objects_tmp(self) -> Path:
        return self.temporary_objects_of(self.home) if self.is_joined else self.objects / "tmp"

    def temporary_objects_of(self, home: str) -> Path:
        """Return where a home of the store makes objects."""
        # Locks of other hosts may not be seen, so each home has temporary objects of its own.
        return self.objects / ("tmp" if home == self.id else f"tmp-{home}")

    @cached_property
    def spool(self) -> Path:
        return self.top / "spool"

    @property
    def kept(self) -> Path:
        """Bytes that could not be published; users may copy and delete them."""
        return self.top / "kept"

    @property
    def cache(self) -> Path:
        return self.top / "cache"

    @property
    def settings(self) -> Path:
        return self.top / "config.toml"

    @cached_property
    def reserve(self) -> Path:
        return self.top / "reserve"

    @property
    def mount_lock(self) -> Path:
        return self.top / "mount.lock"

    @property
    def mount_log(self) -> Path:
        """The log of a mount; see `vfsd.mount.mount_log`."""
        return self.root / "mount.log"

    @property
    def decoding_note(self) -> Path:
        """Note of the mount process; see `vfsd.storage.quarantine`."""
        return self.top / "mount.decoding"

    @property
    def rendering_note(self) -> Path:
        """Note of the render process of a mount."""
        return self.top / "mount.rendering"

    @property
    def quarantine(self) -> Path:
        return self.top / "suspects.json"

    @property
    def scrub_note(self) -> Path:
        """Progress of a scrub; see `vfsd.maintenance.scrub`."""
        return self.top / "scrub.json"

    def spool_file(self, ino: int) -> Path:
        """Return the path of the private bytes of a file that is not a video (yet)."""
        return self.spool / str(ino)

    @property
    def has_own_spool(self) -> bool:
        """Whether the spool is a directory of the store, not a link.

        The target of a link may have unrelated files with numeric names.
        """
        return not self.spool.is_symlink()

    def new_spool_copy(self, ino: int) -> Path:
        """Return a temporary path for new private bytes of a file."""
        return self.spool / f"{ino}.{new_name()}{_COPY}"

    def spool_copies(self) -> list[Path]:
        """Return all temporary private files, of live and dead processes."""
        return [path for path in list_directory(self.spool) if _SPOOL_COPY.fullmatch(path.name)]

    def spooled(self) -> Iterator[tuple[int, Path]]:
        """Yield (inode number, path) of every private file."""
        for path in list_directory(self.spool):
            if _INODE.fullmatch(path.name):
                yield int(path.name), path

    def sync_spooled(self, ino: int) -> None:
        """Sync the private bytes of an inode and their name.

        Raises `FileNotFoundError`, `StoreError` if the path is not a regular file.
        """
        require_regular(self.spool_file(ino))
        fsync_path(self.spool_file(ino))
        fsync_path(self.spool)

    @contextmanager
    def mounted(self, place: str, log: Path | None = None) -> Iterator[Callable[[str], None]]:
        """Hold the mount lock for a daemon.

        Yields a function to be called with the device number of the mount, ``MAJOR:MINOR``, once it
        exists. `log` is the log file of the daemon. Raises `BusyError` with the owner of the lock,
        `ReadOnlyError` if the store cannot be written, `StoreError` if the lock is not a regular
        file.
        """
        what: dict[str, object] = {"place": place}
        if log is not None:
            what["log"] = str(log)
        with self._locked(what) as note:
            yield lambda device: note({**what, "device": device})

    @contextmanager
    def locked_for(self, work: str) -> Iterator[None]:
        """Prevent mounts of the store during `work`, such as "it is being restored".

        `work` appears in the error of refused mounts. Raises as `mounted`.
        """
        with self._locked({"work": work}):
            yield

    @contextmanager
    def _locked(self, what: dict[str, object]) -> Iterator[Callable[[dict[str, object]], None]]:
        try:
            fd = open_own(self.mount_lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            raise ReadOnlyError(
                f"{self.root} cannot be written: {error.strerror}", hint="mount it with -o ro"
            ) from error
        try:
            self._lock_exclusively(fd)

            def note(what: dict[str, object]) -> None:
                text = json.dumps({"pid": os.getpid(), **what}).encode()
                # Never empty: other processes read it at any time.
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))

            note(what)
            yield note
            with suppress(OSError):  # the note has no meaning without the lock
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _lock_exclusively(self, fd: int) -> None:
        """Take the mount lock."""
        # Processes that only check for a mount hold it for a moment as well. A holder without a
        # note has just begun or is about to end. Both are worth a short wait.
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = self.mounted_by()
                if not holder and time.monotonic() < end:
                    time.sleep(_POLL_SECONDS)
                    continue
            raise self._refusal(holder)

    @contextmanager
    def unmounted(self) -> Iterator[bool]:
        """Prevent mounts during the block; yield False if the store is mounted.

        Raises `StoreError` if the lock is not a regular file.
        """
        fd = open_own(self.mount_lock, os.O_RDWR | os.O_CREAT)
        try:
            if not _is_unlocked(fd):
                yield False
                return
            yield True
        finally:
            os.close(fd)

    def _refusal(self, holder: dict[str, object] | None) -> BusyError:
        if holder is None:
            return BusyError(
                f"{self.root} is being repaired", hint="mount it when `vfsd fsck` has finished"
            )
        process = f"process {holder.get('pid', '?')}"
        if "work" in holder:
            return BusyError(
                f"{self.root} is in use: {holder['work']} ({process})",
                hint="try again later",
            )
        place = str(holder.get("place", "some place"))
        return BusyError(
            f"{self.root} is mounted at {place} already ({process})",
            hint=_unmount_hint(place, holder.get("device"), holder.get("pid", "PID")),
        )

    @property
    def can_be_written(self) -> bool:
        """Whether this process can create files in it; False on a read-only disk."""
        return os.access(self.top, os.W_OK)

    def is_shown_at(self, path: Path) -> bool:
        """Return whether a path, which may not exist, is in the mount of this store."""
        # By the mount table of the kernel: the mount itself may not answer.
        there = mount_above(path.resolve())
        return there is not None and there.device == (self.mounted_by() or {}).get("device")

    def mounted_by(self) -> dict[str, object] | None:
        """Return the note of the process that holds the mount lock; None if there is none.

        For a daemon: ``{"pid": …, "place": …, "log": …, "device": …}``. `log` is missing without a
        log file, `device` until the mount exists. For other work: ``{"pid": …, "work": …}``. Raises
        `StoreError` if the lock is not a regular file.
        """
        try:
            fd = open_own(self.mount_lock, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):  # readable only by its owner
            return None
        try:
            # The note of a process that was killed stays; only the lock shows that it is gone.
            if _is_unlocked(fd):
                return None
            try:
                found = json.loads(os.pread(fd, 65536, 0))
            except ValueError:  # read while it was being written
                found = {}
            return found if isinstance(found, dict) else {}
        finally:
            os.close(fd)


def _unmount_hint(place: str, device: object, pid: object) -> str:
    """Return a hint about how to unmount the store, which may be in another mount namespace."""
    unmount = f"vfsd umount {shlex.quote(place)}"
    if device is None or any(mount.is_ours and mount.device == device for mount in mounts()):
        return f"unmount it there first: {unmount}"
    if shares_mounts(pid):
        return (
            "it was detached, for instance with `umount -l`, and still serves open files: "
            f"close them, or run `kill {pid}`"
        )
    return f"it is mounted in another mount namespace: nsenter -m -t {pid} {unmount}"


def _is_unlocked(fd: int) -> bool:
    """Take a shared lock; return False if another process has an exclusive one."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: a store there cannot be mounted
    return True


def _id_in(text: str, key: str = "id") -> str | None:
    """Return the id in a marker, ignoring trailing text; None if there is none."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
        number = found[key]
        number.encode()  # as text that can be written
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return str(number)


def _no_store(root: Path) -> NoStoreError:
    return NoStoreError(
        f"no store found in {root}",
        hint=f"create one with `vfsd init {shlex.quote(str(root))}`",
    )


@contextmanager
def _no_store_at(root: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise _no_store(root) from None


def not_of_one_disk(spool: Path, objects: Path) -> StoreError:
    return StoreError(
        f"{spool} and {objects} must be on one disk that is mounted once",
        hint="move or link both to one disk, or mount the store with -o ro",
    )


def _not_a_directory(path: Path) -> StoreError:
    return StoreError(f"{path} must be a directory", hint="move it away and try again")


def _is_link(folder: Path) -> StoreError:
    return StoreError(
        f"{folder} is a link: its target may have other users",
        hint="move the link away and try again: the store creates its own directory there",
    )


def _require_no_store(root: Path) -> None:
    """Raise `ExistsError` if the directory is a store."""
    if (root / _MARKER).exists():
        raise ExistsError(
            f"{root} is a store already",
            hint=f"use it with `vfsd -s {shlex.quote(str(root))}`, or name another directory",
        )


@contextmanager
def _lock_creation(root: Path) -> Iterator[int]:
    """Lock the creation of a store; yield the descriptor of the unfinished marker.

    Raises `BusyError`, `ExistsError`, `StoreError`.
    """
    # The unfinished marker is renamed to the final one. A process that waited for the lock then
    # creates a new unfinished marker, and finds the final one below.
    begun = root / _UNFINISHED
    require_same_process(begun)
    fd = open_own(begun, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process is creating a store in {root}",
                hint="wait for it and use that store, or give another directory",
            ) from None
        try:
            _require_no_store(root)  # it may have been finished in the meantime
        except ExistsError:
            begun.unlink(missing_ok=True)
            raise
        yield fd
    finally:
        os.close(fd)


def list_directory(folder: Path) -> list[Path]:
    """Return the sorted paths in a directory; empty if it is missing, as in copies by some
    tools."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def fsync_path(path: Path) -> None:
    """Sync the bytes of a file, or the entries of a directory."""
    # O_NONBLOCK: opening a pipe that was put in its place would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
