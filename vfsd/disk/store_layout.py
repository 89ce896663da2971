"""The store's directory: every name on disk is made and read here.

STORE/
  vfsd-store.json      what this is: format number, identity, where the catalog is
  config.toml          settings (may be missing)
  catalog.sqlite3      the catalog, with -wal and -shm beside it
  objects/ab/cdef...   immutable objects, named by the blake3 of their bytes
  objects/tmp/         objects on their way
  spool/123            private contents of inode 123, while it is no video
  cache/abcd...        rendered views of the video with that digest; may be deleted at any time
  reserve              room for when the disk is full; may be deleted at any time
  mount.lock           held by the daemon that has the store mounted, or who lets nobody mount it
  mount.log            what that daemon logs, where the user's state directory is not for it
  mount.decoding       what that daemon is decoding, and how it crashed if it did
  mount.rendering      the same of the process that makes views for it
  suspects.json        files whose decoding may have crashed a mount (may be missing)
  scrub.json           how far an interrupted scrub has read a file; may be deleted
  incoming/            private files, settings and a catalog that take the place of those above when
                       somebody opens the store; without the catalog it is nothing yet
  replaced-TIME/       the catalog and the private files from before a restore; may be deleted
  vfsd-backup.json     of which store it is a backup (missing in others); held while it is written
  vfsd-backup-files.json  of what its private files are copies; may be deleted
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
from collections.abc import Callable, Iterator
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
from vfsd.disk.tempfiles import NEW_NAME, new_name, on_their_way, put_in_place
from vfsd.errors import (
    BusyError,
    ExistsError,
    NoStoreError,
    ReadOnlyError,
    StoreError,
    StoreVersionError,
)

FORMAT = 1
"""Of everything below the directory but the catalog, which has revisions of its own."""

CATALOG = "catalog.sqlite3"

_PATIENCE_SECONDS = 2.0
_ASKING_SECONDS = 0.005
"""How long a mount waits for others who have its lock, and how often it tries."""

_MARKER = "vfsd-store.json"
_COPY = ".copy"
_INODE = re.compile("[1-9][0-9]*")
_SPOOL_COPY = re.compile(f"{_INODE.pattern}\\.{NEW_NAME.pattern}{re.escape(_COPY)}")
_UNFINISHED = _MARKER + ".tmp"


def url_of_file(path: Path) -> str:
    """Of an SQLite file, whatever its name: in a URL %20 is a space, and a question mark an end."""
    return "sqlite:///" + os.fspath(path).replace("%", "%25").replace("?", "%3F")


class StoreDirectory:
    """Names below a store's directory, and its marker."""

    def __init__(
        self,
        root: Path,
        marker: dict[str, object],
        held: DirectoryHandle | None = None,
        top: Path | None = None,
    ) -> None:
        """`top` is another path to the same directory, by which everything below is opened."""
        self.root = root  #: as messages name it
        self.top = top or root
        self._marker = marker
        self._anchor = held

    @classmethod
    @contextmanager
    def creating(
        cls, root: Path, *, catalog_url: str | None = None, is_secret: bool = False
    ) -> Iterator[StoreDirectory]:
        """Lay out a new store in `root`, which may exist if it is empty; the block fills it.
        Made anew, it is its owner's alone.  So is the marker where the URL `is_secret`.

        It is a store when the block ends.  What was begun before, and never became one, is begun
        anew.  Raises `ExistsError` for any other directory with something in it, and `BusyError`
        where somebody else is just making a store there.
        """
        root = root.absolute()
        begun = root / _UNFINISHED
        _require_no_store(root)
        if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not begun.exists())):
            raise ExistsError(
                f"{root} exists and is not an empty directory",
                hint="name one that is empty, or not there yet",
            )
        made = [path for path in (root, *root.parents) if not path.exists()]
        # Who can look into it can read every video, whatever its mode is in a mount.
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(root) as fd:
            if is_secret:
                os.fchmod(fd, 0o600)
            marker: dict[str, object] = {
                "format": FORMAT,
                # A catalog elsewhere may know it already, and is for no other store.
                "id": cls.begun_id(root) or str(uuid.uuid4()),
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "catalog": catalog_url,
            }
            # The note that it is unfinished lasts before anything else is there.  The id is
            # written over itself, at the same place, and is never lost.
            written = json.dumps(marker, indent=2).encode() + b"\n"
            os.pwrite(fd, written, 0)
            os.ftruncate(fd, len(written))
            os.fsync(fd)
            fsync_path(root)
            for path in made:
                with suppress(PermissionError):  # a directory may be written by who cannot read it
                    fsync_path(path.parent)
            directory = cls(root, marker)
            directory.objects.mkdir(exist_ok=True)
            directory.lay_out()
            for side in ("", "-wal", "-shm"):
                (root / f"{CATALOG}{side}").unlink(missing_ok=True)
            yield directory
            for path in (root / CATALOG, directory.objects, root):
                if path.exists():
                    fsync_path(path)
            # The marker comes last: without it nobody takes a half-made directory for a store.
            begun.replace(root / _MARKER)
            fsync_path(root)

    @classmethod
    def begun_id(cls, root: Path) -> str | None:
        """The id of the store that somebody was making in `root` when he was interrupted."""
        begun = root / _UNFINISHED
        try:
            if not is_regular_or_missing(begun):
                return None
            return _id_in(begun.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @classmethod
    def open(cls, root: Path) -> StoreDirectory:
        """Raises `NoStoreError`, `StoreVersionError` for a newer format, and as `require_files`."""
        root = root.absolute()
        return cls._opened(root, root)

    @classmethod
    def open_watched(cls, root: Path) -> StoreDirectory:
        """A store whose files are opened by path, for as long as the path leads to it.

        See `require_in_place`.  To be closed.  Raises as `open`.
        """
        root = root.absolute()
        with _no_store_at(root):
            held = DirectoryHandle.open(root)
        found = cls(root, cls._opened(root, root)._marker, held)
        found.require_in_place()
        return found

    @classmethod
    def open_held(cls, root: Path, held: DirectoryHandle | None = None) -> StoreDirectory:
        """A store whose files are opened through a descriptor of its directory.

        The directory may be moved, and another take its path: this object stays with the one that
        was opened.  `held` is a descriptor that the process has already.  Where there is no /proc,
        files are opened by path, as with `open_watched`.  To be closed.  Raises as `open`.
        """
        root = root.absolute()
        with _no_store_at(root):
            held = held or DirectoryHandle.open(root)
        top = held.path or root
        return cls(root, cls._opened(root, top)._marker, held, top)

    @classmethod
    def _opened(cls, root: Path, top: Path) -> StoreDirectory:
        """`top` is another path to `root`, by which everything is opened."""
        try:
            if not is_regular_or_missing(top / _MARKER):
                raise ValueError("it is not a regular file")
            marker = json.loads((top / _MARKER).read_text(encoding="utf-8"))
            number = int(marker["format"])
            str(marker["id"]).encode()  # it is shown
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
        if number > FORMAT:
            raise StoreVersionError(
                f"{root} has store format {number}, this vfsd knows up to {FORMAT}",
                hint="install the version of vfsd that wrote it, or a newer one",
            )
        directory = cls(root, marker, top=top)
        directory.require_files()
        return directory

    @classmethod
    def unmarked(cls, root: Path) -> StoreDirectory:
        """The names below a directory that is to become a store, whatever is there."""
        return cls(root, {})

    def copy_marker(self, root: Path) -> None:
        """Make a store of another directory that has all that belongs to this one, and its catalog
        with it, wherever this one's is."""
        marker = {**self._marker, "catalog": None}
        put_in_place(root / _MARKER, json.dumps(marker, indent=2) + "\n")

    def files_on_their_way(self) -> list[Path]:
        """Those beside the catalog that somebody writes, or that those who died have left."""
        begun = self.top / _UNFINISHED
        files = (
            *(self.settings, self.quarantine, self.scrub_note),
            *(self.top / _MARKER, self.backup_notes),
        )
        left = [path for file in files for path in on_their_way(file)]
        return [*left, begun] if begun.exists() else left

    def require_files(self) -> None:
        """Raises `StoreError` where something else lies under the name of a file, see
        `vfsd.disk.safe_open`, and where a directory whose files are moved or deleted is elsewhere.

        What is only read, or replaced by another file, may be a link to one.
        """
        coming = self.incoming
        for folder in (coming.root, coming.spool, self.objects_tmp):
            if folder.is_symlink():
                raise _leads_away(folder)
        if os.path.lexists(coming.root) and not coming.root.is_dir():
            raise _no_directory(coming.root)
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
            *self.beside_catalog(),
            self.rollback_journal,
            self.reserve,
            self.mount_lock,
            self.decoding_note,
            self.rendering_note,
            self.backup_sign,
            coming.catalog_file,
            coming.settings,
        )

    def require_one_disk(self) -> None:
        """Raises `StoreError` where private files cannot become objects by another name for them,
        as they do when they are videos: on another disk, or where the same one is mounted twice."""
        spool, objects = self.spool, self.objects
        above = {mount_above(Path(os.path.realpath(folder))) for folder in (spool, objects)}
        if spool.stat().st_dev != objects.stat().st_dev or len(above) > 1:
            raise not_of_one_disk(spool, objects)

    def _require_no_others(self, folder: Path) -> None:
        """Raises `StoreError` where a link leads to what belongs to another store, whose files have
        the same names."""
        if not folder.is_symlink():
            return
        for above in Path(os.path.realpath(folder)).parents:
            if (above / _MARKER).exists() and not above.samefile(self.top):
                raise StoreError(
                    f"{folder} is a link into the store in {above}",
                    hint="let it lead to a directory that is this store's alone",
                )

    def lay_out(self) -> None:
        """Make the directories below that are not there, `objects` apart: tools that copy files
        leave out empty ones.

        Raises `StoreError` where something else lies there, `ReadOnlyError`.
        """
        for below in (self.objects_tmp, self.spool, self.cache):
            try:
                below.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise _no_directory(below) from error
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES):
                    raise
                raise ReadOnlyError(
                    f"{below} is missing, and cannot be made: {error.strerror}",
                    hint="say `vfsd ls` of it once as somebody who may write there",
                ) from error

    def require_objects(self) -> None:
        """Raises `StoreError` where the place is gone in which all videos lie: without it checks
        would take all of them for lost, and tiles away."""
        if not self.objects.is_dir():
            raise StoreError(
                f"the store in {self.root} has lost its directory {self.objects.name}",
                hint="where it lies on another disk, mount that; else put it back, as with "
                "`vfsd restore`, or make it anew, and `vfsd fsck` tells what is missing",
            )

    def close(self) -> None:
        """Let go of the directory; nothing is opened through its descriptor any more."""
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def require_in_place(self) -> None:
        """Raises `StoreError` where the directory that was opened is no longer at its path.

        To be called before anything is written or deleted by path: another store may be there.
        """
        if self._anchor is None or self._anchor.is_at(self.top):
            return
        now = self._anchor.location()
        where = "it was deleted" if now is None else f"it is at {now}"
        raise StoreError(
            f"the store that was opened in {self.root} has gone: {where}",
            hint="open the store again at its new place",
        )

    @property
    def anchor(self) -> DirectoryHandle | None:
        """The descriptor through which everything is opened; None where paths are used."""
        return None if self.top == self.root else self._anchor

    @property
    def location(self) -> Path:
        """Where the store is now, as far as that can be told; `root` where it was not moved."""
        if self._anchor is None or self._anchor.is_at(self.root):
            return self.root
        return self._anchor.location() or self.root

    @property
    def identity(self) -> StoreIdentity:
        """Raises `OSError`."""
        found = os.stat(self.top)
        return StoreIdentity(self.id, found.st_dev, found.st_ino)

    @property
    def id(self) -> str:
        return str(self._marker["id"])

    @property
    def catalog_url(self) -> str:
        url = self._marker.get("catalog")
        return str(url) if url else self._own_catalog_url

    @property
    def has_own_catalog(self) -> bool:
        """Whether the catalog lies in the directory, and not elsewhere or on a server."""
        return self.catalog_url == self._own_catalog_url

    @property
    def _own_catalog_url(self) -> str:
        return url_of_file(self.catalog_file)

    @property
    def catalog_file(self) -> Path:
        """Where the catalog is, if the store `has_own_catalog`."""
        return self.top / CATALOG

    def beside_catalog(self) -> tuple[Path, Path]:
        """What SQLite has beside the catalog while it is open: its log, and its shared memory."""
        return self.top / f"{CATALOG}-wal", self.top / f"{CATALOG}-shm"

    @property
    def rollback_journal(self) -> Path:
        """What SQLite has beside the catalog while it changes how that is opened."""
        return self.top / f"{CATALOG}-journal"

    @property
    def incoming(self) -> StoreDirectory:
        """What takes the place of what is here, when there is a catalog in it."""
        return StoreDirectory.unmarked(self.top / "incoming")

    @property
    def new_catalog(self) -> Path:
        """A catalog that is not one yet."""
        return self.top / "catalog.new"

    def replaced(self, when: str) -> Path:
        """Where a catalog and private files are kept in whose place others came at some time."""
        return self.top / f"replaced-{when}"

    @property
    def backup_sign(self) -> Path:
        """A file that only backups have."""
        return self.top / "vfsd-backup.json"

    @property
    def backup_notes(self) -> Path:
        """What a backup knows of its private files."""
        return self.top / "vfsd-backup-files.json"

    @property
    def objects(self) -> Path:
        return self.top / "objects"

    @property
    def objects_tmp(self) -> Path:
        return self.top / "objects" / "tmp"

    @cached_property
    def spool(self) -> Path:
        return self.top / "spool"

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
        """See `vfsd.mount.log_file`."""
        return self.root / "mount.log"

    @property
    def decoding_note(self) -> Path:
        """That of the mount's own process."""
        return self.top / "mount.decoding"

    @property
    def rendering_note(self) -> Path:
        """That of the process which makes views for the mount."""
        return self.top / "mount.rendering"

    @property
    def quarantine(self) -> Path:
        return self.top / "suspects.json"

    @property
    def scrub_note(self) -> Path:
        """See `vfsd.maintenance.scrub`."""
        return self.top / "scrub.json"

    def spool_file(self, ino: int) -> Path:
        """Where the bytes of a file lie that is not a video (yet)."""
        return self.spool / str(ino)

    @property
    def has_own_spool(self) -> bool:
        """Whether private files lie in the store itself, and not where a link leads.

        There anybody may have files whose names are numbers.
        """
        return not self.spool.is_symlink()

    def new_spool_copy(self, ino: int) -> Path:
        """Where other bytes of a file that is not a video are made, to take the place of those."""
        return self.spool / f"{ino}.{new_name()}{_COPY}"

    def spool_copies(self) -> list[Path]:
        """All of these, of processes that live and of those that died."""
        return [path for path in listed(self.spool) if _SPOOL_COPY.fullmatch(path.name)]

    def spooled(self) -> Iterator[tuple[int, Path]]:
        """Every file in the spool with the inode that it belongs to."""
        for path in listed(self.spool):
            if _INODE.fullmatch(path.name):
                yield int(path.name), path

    def sync_spooled(self, ino: int) -> None:
        """Make the private bytes of an inode, and that they are there, survive a power cut.

        Raises `FileNotFoundError`, `StoreError` where something else lies there.
        """
        require_regular(self.spool_file(ino))
        fsync_path(self.spool_file(ino))
        fsync_path(self.spool)

    @contextmanager
    def mounted(self, place: str, log: Path | None = None) -> Iterator[Callable[[str], None]]:
        """Hold the store for one daemon; `log` is where it writes its log, if that is a file.
        Gives what is to be called with the device number of the mount, ``MAJOR:MINOR``, once it is
        there.

        Raises `BusyError`, saying who has it, `ReadOnlyError` where nothing can be written into the
        store, and `StoreError` where something else lies in the place of the lock.
        """
        what: dict[str, object] = {"place": place}
        if log is not None:
            what["log"] = str(log)
        with self._held(what) as note:
            yield lambda device: note({**what, "device": device})

    @contextmanager
    def held_for(self, work: str) -> Iterator[None]:
        """Let nobody mount the store during some work, which is told to who tries: "it is being
        restored".  Raises as `mounted` does."""
        with self._held({"work": work}):
            yield

    @contextmanager
    def _held(self, what: dict[str, object]) -> Iterator[Callable[[dict[str, object]], None]]:
        try:
            fd = open_own(self.mount_lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            raise ReadOnlyError(
                f"{self.root} cannot be written: {error.strerror}", hint="mount it with -o ro"
            ) from error
        try:
            self._lock_alone(fd)

            def note(what: dict[str, object]) -> None:
                text = json.dumps({"pid": os.getpid(), **what}).encode()
                # Never empty: others read it at any moment.
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))

            note(what)
            yield note
            with suppress(OSError):  # it tells nothing any more, as nobody has the lock
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _lock_alone(self, fd: int) -> None:
        """Who only asks whether it is mounted has the lock for a moment, too, and so has who does
        not say what for: he has just begun, or is about to end."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                who = self.mounted_by()
                if not who and time.monotonic() < end:
                    time.sleep(_ASKING_SECONDS)
                    continue
            raise self._refusal(who)

    @contextmanager
    def unmounted(self) -> Iterator[bool]:
        """Nobody mounts the store while the block lasts; False where somebody has mounted it.

        Raises `StoreError` where something else lies in the place of the lock.
        """
        fd = open_own(self.mount_lock, os.O_RDWR | os.O_CREAT)
        try:
            if not _shares_lock(fd):
                yield False
                return
            yield True
        finally:
            os.close(fd)

    def _refusal(self, who: dict[str, object] | None) -> BusyError:
        if who is None:
            return BusyError(
                f"{self.root} is being repaired", hint="mount it when `vfsd fsck` has ended"
            )
        process = f"process {who.get('pid', '?')}"
        if "work" in who:
            return BusyError(
                f"{self.root} is in use: {who['work']} ({process})",
                hint="try again when that is done",
            )
        place = str(who.get("place", "some place"))
        return BusyError(
            f"{self.root} is mounted at {place} already ({process})",
            hint=_unmounting(place, who.get("device"), who.get("pid", "PID")),
        )

    @property
    def can_be_written(self) -> bool:
        """Whether files can be made in it by this process; never so on a read-only disk."""
        return os.access(self.top, os.W_OK)

    def is_shown_at(self, path: Path) -> bool:
        """Whether a path, which may not exist yet, lies in this store's own mount.

        The kernel's table tells, and not the mount, which may not answer.
        """
        there = mount_above(path.resolve())
        return there is not None and there.device == (self.mounted_by() or {}).get("device")

    def mounted_by(self) -> dict[str, object] | None:
        """``{"pid": …, "place": …, "log": …, "device": …}`` of the daemon that has the store
        mounted, if one has (`log` where it is a file, `device` once the mount is there); or
        ``{"pid": …, "work": …}`` of what keeps others from mounting it.

        Raises `StoreError` where something else lies in the place of the lock.
        """
        try:
            fd = open_own(self.mount_lock, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):  # it is for its owner to know
            return None
        try:
            if _shares_lock(fd):
                return None
            try:
                found = json.loads(os.pread(fd, 65536, 0))
            except ValueError:
                found = {}
            return found if isinstance(found, dict) else {}
        finally:
            os.close(fd)


def _unmounting(place: str, device: object, pid: object) -> str:
    """What to do about a mount of the store at `place`, which may be out of sight."""
    unmount = f"vfsd umount {shlex.quote(place)}"
    if device is None or any(mount.is_ours and mount.device == device for mount in mounts()):
        return f"unmount it there first: {unmount}"
    if shares_mounts(pid):
        return (
            "it was detached there, as by `umount -l`, and serves files that are still open: "
            f"close them, or end it with `kill {pid}`"
        )
    return f"it is mounted in another mount namespace: nsenter -m -t {pid} {unmount}"


def _shares_lock(fd: int) -> bool:
    """Whether nobody has a lock for himself; so it is, too, where the file system has no locks, and
    nobody can mount what lies there."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _id_in(text: str) -> str | None:
    """That of a marker, whatever comes after it; None where it has none."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
        number = found["id"]
        number.encode()  # as text that can be written
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return str(number)


def _no_store(root: Path) -> NoStoreError:
    return NoStoreError(
        f"no store found in {root}",
        hint=f"make one with `vfsd init {shlex.quote(str(root))}`",
    )


@contextmanager
def _no_store_at(root: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise _no_store(root) from None


def not_of_one_disk(spool: Path, objects: Path) -> StoreError:
    return StoreError(
        f"{spool} and {objects} are on different disks, or mounted each by itself",
        hint="let both be, or lead to, directories of one disk that is mounted once; or mount the "
        "store with -o ro",
    )


def _no_directory(path: Path) -> StoreError:
    return StoreError(
        f"{path} must be a directory", hint="move what lies there away, and try again"
    )


def _leads_away(folder: Path) -> StoreError:
    return StoreError(
        f"{folder} is a link, and what lies where it leads may be somebody else's",
        hint="move the link away, and try again: the store makes a directory of its own there",
    )


def _require_no_store(root: Path) -> None:
    """Raises `ExistsError`."""
    if (root / _MARKER).exists():
        raise ExistsError(
            f"there is a store in {root} already",
            hint=f"use it with `vfsd -s {shlex.quote(str(root))}`, or name another directory",
        )


@contextmanager
def _alone(root: Path) -> Iterator[int]:
    """Be the only one who makes a store in a directory; gives the file that says so.

    That is the note that it is unfinished, which becomes the marker: whoever comes later makes
    another, and finds the marker beside it.  Raises `BusyError`, `ExistsError`, `StoreError`.
    """
    begun = root / _UNFINISHED
    require_same_process(begun)
    fd = open_own(begun, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"somebody else is just making a store in {root}",
                hint="wait until that is done, and use it, or name another directory",
            ) from None
        try:
            _require_no_store(root)  # somebody may have finished one since it was looked for
        except ExistsError:
            begun.unlink(missing_ok=True)
            raise
        yield fd
    finally:
        os.close(fd)


def listed(folder: Path) -> list[Path]:
    """What lies in a directory of a store, in order; nothing where it is not there, as in a copy
    by a tool that leaves out empty ones."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a directory's entries, survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
