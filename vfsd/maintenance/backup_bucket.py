"""`BackupBucket`: the files of backups below a prefix of a bucket.

``vfsd-backup.json``        names the store that the backups are of
``backup-TIME-ID.json``     a manifest: one complete backup; written after all that it needs
``o/ab/KEY-NUMBER``         bytes with the BLAKE3 hash KEY: objects of the store, its other files,
                            and for each backup a catalog and a list of the others

No file is written twice.  A copy that turned out to be damaged gets the next NUMBER, so a file that
exists is either complete, or named as damaged by the next manifest.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3

from vfsd.errors import ExistsError, IntegrityError, NoStoreError, StoreVersionError
from vfsd.remote.fetch_client import FetchClient
from vfsd.remote.fetch_protocol import NO_CACHE, fetch_settings, is_place

FORMAT = 1
STREAMS = 8
"""Files that are copied at the same time."""

_OWNER = "vfsd-backup.json"
_MANIFEST = "backup-"
_GET_BYTES = 8 << 20
_IDLE_SECONDS = 1.0
_T = TypeVar("_T")
_R = TypeVar("_R")


class StoredBytes(msgspec.Struct, frozen=True):
    """Bytes that a backup needs."""

    key: str  #: BLAKE3, hexadecimal
    size: int


class BackupFile(msgspec.Struct, frozen=True):
    """A file that is not a video."""

    key: str
    size: int
    mode: int  #: permission bits of the private file
    mtime_ns: int


class Contents(msgspec.Struct, frozen=True):
    """The list of what a backup needs besides the catalog."""

    objects: dict[str, int]  #: size of each object in bytes, by key
    files: dict[int, BackupFile]  #: by inode


class Notes(msgspec.Struct, frozen=True):
    """Damage that is known to a backup."""

    damaged: list[str] = []  #: keys of objects that the store did not have intact
    bad: list[str] = []  #: names of damaged files in the bucket, also of earlier backups


class Manifest(msgspec.Struct, frozen=True):
    """A complete backup."""

    format: int
    store: str  #: id of the store
    marker: dict[str, str]  #: other entries of its marker file
    settings: str | None  #: text of its settings file
    catalog: StoredBytes
    contents: StoredBytes
    notes: StoredBytes
    videos: int
    bytes: int  #: of all objects and files
    damaged: int  #: number of objects that the store did not have intact
    name: str = ""  #: of its file in the bucket


class _Owner(msgspec.Struct, frozen=True):
    format: int
    id: str


_S = TypeVar("_S", Manifest, Contents, Notes, _Owner)


class BackupBucket:
    """The backups below one prefix.  Thread-safe, apart from `look`."""

    def __init__(self, client: FetchClient, url: str) -> None:
        """Use `opened`."""
        self._client = client
        self.url = url
        self._copies: dict[str, dict[int, int]] = {}  # sizes by number, by key

    @classmethod
    @contextmanager
    def opened(cls, url: str, options: Mapping[str, str | bool]) -> Iterator[BackupBucket]:
        """Yield the backups at `url`.  Raises `UsageError` for an invalid URL or option."""
        # Not the cache of a store: its fetch process has another bucket.
        folder = tempfile.mkdtemp(prefix="vfsd-backup-")
        try:
            settings = msgspec.structs.replace(
                fetch_settings(folder, url, options), idle_seconds=_IDLE_SECONDS
            )
            with closing(FetchClient(settings)) as client:
                yield cls(client, url)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def claim(self, store: str) -> None:
        """Make a store the owner of the backups.

        Raises `ExistsError` if the prefix has backups or objects of another store.
        """
        if self._client.size("store.json") is not None:
            raise ExistsError(
                f"{self.url} has the objects of a store", hint="give another prefix for backups"
            )
        if self._client.size(_OWNER) is None:
            with suppress(IntegrityError):  # another process was faster
                self._put_bytes(_OWNER, msgspec.json.encode(_Owner(FORMAT, store)))
        if self.owner() != store:
            raise ExistsError(
                f"{self.url} has backups of another store", hint="give another prefix"
            )

    def owner(self) -> str:
        """Return the id of the store.  Raises `NoStoreError` if there are no backups."""
        try:
            text = self._client.read_file(_OWNER)
        except FileNotFoundError:
            raise NoStoreError(
                f"no backup found in {self.url}",
                hint="correct the URL, or make one with `vfsd backup URL`",
            ) from None
        return _decoded(text, _Owner, f"{_OWNER} in {self.url}").id

    def manifests(self) -> list[str]:
        """Return the names of all complete backups, the oldest one first."""
        found = []
        for name, _, _ in self._client.list():
            if name.startswith(_MANIFEST):
                found.append(name)
            elif name > _MANIFEST:  # names are sorted
                break
        return sorted(found)

    def manifest(self, beginning: str = "") -> Manifest:
        """Return the newest backup with a name that begins so.

        Raises `NoStoreError` if there is none, `IntegrityError` if its manifest is damaged.
        """
        self.owner()
        names = [name for name in self.manifests() if name.startswith(beginning)]
        if not names:
            raise NoStoreError(
                f"no finished backup {beginning} in {self.url}".replace("  ", " "),
                hint="`vfsd backups ls URL` lists them",
            )
        where = f"{names[-1]} in {self.url}"
        found = _decoded(self._client.read_file(names[-1]), Manifest, where)
        return msgspec.structs.replace(found, name=names[-1])

    def publish(self, manifest: Manifest) -> str:
        """Write the manifest of a backup with all bytes there; return its name."""
        # The latest backup is the last by name, also of several in a second.
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        name = f"{_MANIFEST}{now}-{secrets.token_hex(4)}.json"
        self._put_bytes(name, msgspec.json.encode(manifest))
        return name

    # -- copies

    def look(self) -> None:
        """List the copies in the bucket, for the methods below."""
        self._copies.clear()
        for name, size, _ in self._client.list():
            if is_place(name) and not name.endswith(".sums"):
                key, _, number = name[5:].partition("-")
                self._copies.setdefault(key, {})[int(number, 16)] = size

    def copy_of(self, key: str, size: int | None, bad: Iterable[str] = ()) -> str | None:
        """Return the name of a copy with the right size that is not known to be damaged."""
        for number, there in sorted(self._copies.get(key, {}).items(), reverse=True):
            name = _name(key, number)
            if size in (None, there) and name not in bad:
                return name
        return None

    def size(self, key: str) -> int | None:
        """Return the size of the newest copy in bytes; None without one."""
        found = self._copies.get(key)
        return None if not found else found[max(found)]

    def put(self, key: str, path: Path) -> int:
        """Upload a file that hashes to `key`; return its size.  Raises `UnreachableError`."""
        copies = self._copies.setdefault(key, {})
        number = max(copies, default=-1) + 1
        size = self._client.put(_name(key, number), path)
        copies[number] = size
        return size

    def put_data(self, data: bytes) -> StoredBytes:
        """Upload bytes, unless they are there."""
        key = blake3(data).hexdigest()
        if self.copy_of(key, len(data)) is None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                self.put(key, Path(file.name))
        return StoredBytes(key, len(data))

    def chunks(self, key: str, size: int | None, name: str) -> Iterator[bytes]:
        """Yield the bytes of a copy.

        Raises `FileNotFoundError`, `UnreachableError`, and `IntegrityError` if it is too short.
        """
        size = self._copies[key][int(name.rpartition("-")[2], 16)] if size is None else size
        step = STREAMS // 2 * _GET_BYTES
        for start in range(0, size, step):
            end = min(size, start + step)
            pieces = [(at, min(end, at + _GET_BYTES)) for at in range(start, end, _GET_BYTES)]
            yield from self._client.get(name, size, pieces, NO_CACHE) or ()

    def is_intact(self, key: str, size: int | None, name: str) -> bool:
        """Read a copy, and return whether it hashes to its name.  Raises `UnreachableError`."""
        hasher = blake3()
        try:
            for chunk in self.chunks(key, size, name):
                hasher.update(chunk)
        except (FileNotFoundError, IntegrityError):
            return False
        return hasher.hexdigest() == key

    def copies(self, key: str, size: int | None) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield name and bytes of each copy, the newest first; the caller compares the hash."""
        for number, there in sorted(self._copies.get(key, {}).items(), reverse=True):
            if size in (None, there):
                name = _name(key, number)
                yield name, self.chunks(key, there, name)

    def download(self, wanted: StoredBytes, path: Path) -> None:
        """Write bytes of the backup to a file.  Raises `IntegrityError` without a good copy."""
        for _, chunks in self.copies(wanted.key, wanted.size):
            hasher = blake3()
            with suppress(FileNotFoundError, IntegrityError), open(path, "wb") as file:
                for chunk in chunks:
                    hasher.update(chunk)
                    file.write(chunk)
            if hasher.hexdigest() == wanted.key:
                return
        raise IntegrityError(
            f"{self.url} has no good copy of {wanted.key}, which the backup needs",
            hint="restore an earlier backup: `vfsd backups ls URL` lists them",
        )

    def contents(self, manifest: Manifest) -> Contents:
        """Return the list of a backup.  Raises as `download`."""
        return self._decoded_copy(manifest.contents, Contents)

    def notes(self, manifest: Manifest) -> Notes:
        """Return the notes of a backup.  Raises as `download`."""
        return self._decoded_copy(manifest.notes, Notes)

    def _decoded_copy(self, stored: StoredBytes, kind: type[_S]) -> _S:
        with tempfile.NamedTemporaryFile() as file:
            self.download(stored, Path(file.name))
            return _decoded(Path(file.name).read_bytes(), kind, stored.key)

    def _put_bytes(self, name: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self._client.put(name, file.name)


def in_parallel(action: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """Yield the results of `action` as they are done.  After an error nothing more is begun."""
    waiting = iter(items)
    running: set[Future[_R]] = set()
    with ThreadPoolExecutor(STREAMS, "vfsd-backup") as pool:
        try:
            while True:
                while len(running) < 2 * STREAMS:
                    try:
                        running.add(pool.submit(action, next(waiting)))
                    except StopIteration:
                        break
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()


def _name(key: str, number: int) -> str:
    return f"o/{key[:2]}/{key}-{number:016x}"


def _decoded(text: bytes, kind: type[_S], where: str) -> _S:
    """Decode a file of a backup.  Raises `IntegrityError`, `StoreVersionError`."""
    try:
        found = msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise IntegrityError(f"{where} is damaged: {error}") from error
    if isinstance(found, Manifest | _Owner) and found.format > FORMAT:
        raise StoreVersionError(
            f"{where} has format {found.format}, this vfsd knows up to {FORMAT}",
            hint="install the version of vfsd that wrote it, or a newer one",
        )
    return found
