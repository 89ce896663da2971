"""`RemoteObjects`: the objects of a store that has a bucket.

A new object is a file of the home until the bucket has it, which is before the catalog knows it.
Then the file is deleted, and the cache has its bytes.  Reads prefer a file, such as those of a
store that was local before.  Without it, they fetch what they need from the bucket.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vfsd.catalog import Catalog
from vfsd.core.model import StoreBucket
from vfsd.core.process_control import lazy, reset_after_fork
from vfsd.disk.checksums import WholeFile, verify_stored_file
from vfsd.disk.object_reader import ObjectReader
from vfsd.disk.object_store import ObjectStore, is_key
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import LeaseLostError, VfsdError
from vfsd.tiling.cost import RemoteCost

if TYPE_CHECKING:
    from vfsd.remote.fetch_client import FetchClient

_COST_SECONDS = 30.0
"""How long a measured cost is used."""
_MAX_PLACES = 1 << 17
"""Objects with known places: some 30 MB."""
_PLACE_SECONDS = 3600.0
"""How long places are known.  An object that was removed and made again has another one."""
_LARGE = 64 << 20
"""Size of uploads that may outlast their lease."""

_log = logging.getLogger(__name__)


class Collected(NamedTuple):
    """The result of `RemoteObjects.collect`: deleted files of the bucket."""

    files: int
    bytes: int


class RemoteObjects(ObjectStore):
    """The objects of a store, in its directory and in its bucket. Thread-safe."""

    def __init__(
        self,
        directory: StoreDirectory,
        before_first: Callable[[str], None],
        catalog: Catalog,
        bucket: StoreBucket,
        cache_bytes: int = 0,
    ) -> None:
        """`cache_bytes` is the limit for fetched bytes on the disk; 0: a tenth of the disk."""
        super().__init__(directory, before_first)
        self.bucket = bucket
        # Not through this process's descriptor, as the fetch process has none.
        self._cache = directory.location / directory.cache.name
        self._cache_bytes = cache_bytes
        self.fetch_seconds = 20.0  #: after which an error says that the bucket does not answer
        self._catalog = catalog
        self._places: dict[str, tuple[str, int]] = {}
        self._places_expire = 0.0  #: by `time.monotonic`
        self._cost = RemoteCost()
        self._cost_expires = 0.0  #: by `time.monotonic`
        self._keeps_tables = True
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    @lazy
    def client(self) -> FetchClient:
        """The connection to the fetch process, which is started at the first request."""
        from vfsd.remote.fetch_client import FetchClient  # other stores need none
        from vfsd.remote.fetch_protocol import fetch_settings

        settings = fetch_settings(
            self._cache,
            self.bucket.url,
            self.bucket.options,
            cache_bytes=self._cache_bytes,
            seconds=self.fetch_seconds,
        )
        return FetchClient(settings)

    @property
    def is_local(self) -> bool:
        return False

    def open(self, key: str) -> ObjectReader:
        try:
            return super().open(key)
        except FileNotFoundError:
            found = self._place(key) or self._removed(key)
            if found is None:
                raise
        return self.client.open(*found)

    def pack_tables(self, packs: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], bytes]:
        """Return the tables that the catalog has of packs, given by key and position.

        Those with a file in this home are left out.  Raises `UnreachableError`.
        """
        remote = [one for one in packs if not self.is_here(one[0])]
        if not remote:
            return {}
        found = self._catalog.pack_tables.find(remote)
        self._remember(found.places)
        return found.tables

    def keep_table(self, key: str, at: int, packed: bytes) -> None:
        """Add the table of a pack that was read from the bucket to the catalog, if possible."""
        if not self._keeps_tables or self.is_here(key):
            return
        try:
            self._catalog.pack_tables.add(key, at, packed)
        except VfsdError as error:  # without the right to write, or without the server
            self._keeps_tables = False
            _log.info("the tables of packs are not kept: %s", error)

    def collect(self, grace: float, should_stop: Callable[[], bool] = lambda: False) -> Collected:
        """Delete files of the bucket that nothing has needed for `grace` seconds.

        Several processes may do this at the same time.  Raises `UnreachableError`, `ReadOnlyError`.
        """
        garbage = self._catalog.garbage
        garbage.expire_uploads()
        done = Collected(0, 0)
        while not should_stop():
            with garbage.due(grace) as places:
                if places:
                    self.client.delete(list(places))
            if not places:
                break
            done = Collected(done.files + len(places), done.bytes + sum(places.values()))
        return done

    def refresh(self, key: str) -> None:
        self._places.pop(key, None)

    def whole_file(self, key: str) -> WholeFile:
        found = self._place(key) if ObjectStore.size(self, key) is None else None
        return super().whole_file(key) if found is None else self.client.open_uncached(found[0])

    def fetch_cost(self) -> RemoteCost:
        now = time.monotonic()
        if now > self._cost_expires:
            self._cost_expires = now + _COST_SECONDS
            with suppress(OSError, VfsdError):  # the read reports it
                found = self.client.status().cost
                self._cost = RemoteCost(
                    found.wait, found.byte, found.streams, found.request_cpu, found.byte_cpu
                )
        return self._cost

    def is_elsewhere(self, key: str) -> bool:
        if self._catalog.home is None or self.size(key) is not None:
            return False
        with self._catalog.reading() as seen:
            return len(seen.homes.all()) > 1

    def size(self, key: str) -> int | None:
        found = super().size(key)
        if found is None and is_key(key):
            self.refresh(key)  # a removed object must not seem to be there
            remote = self._place(key)
            return None if remote is None else remote[1]
        return found

    def local_path(self, key: str) -> Path | None:
        path = self.path(key)
        is_remote = super().size(key) is None and self._place(key) is not None
        return None if is_remote else path

    def upload(self, key: str, size: int, *, keep: bool = True, source: Path | None = None) -> str:
        """Send a local object, or another file `source` with its bytes, to the bucket under a new
        name, and return that name.

        Its lease must be ended by `Objects.record_upload`, or by `abandon`.  Raises
        `FileNotFoundError` without the local file, `UnreachableError`, `LeaseLostError`.
        """
        place = f"o/{key[:2]}/{key}-{secrets.token_hex(8)}"
        self._catalog.uploads.begin(place, key, size)
        try:
            with self._renewing(place, size):
                # The path may lead through a descriptor, which the fetch process does not have.
                self.client.put(place, os.path.realpath(source or self.path(key)), keep=keep)
        except BaseException:
            self.abandon(place)
            raise
        return place

    def abandon(self, place: str) -> None:
        try:
            self._catalog.uploads.abandon(place)
        except (OSError, VfsdError) as error:
            # The end of its lease does the same.
            _log.info("the upload of %s was not abandoned: %s", place, error)

    def release(self, key: str) -> None:
        try:
            if not self.is_here(key):
                return
            with self._catalog.reading() as seen:
                is_uploaded = seen.objects.place(key) is not None
            if is_uploaded:
                self.delete(key)
        except (OSError, VfsdError) as error:
            _log.warning("a copy of object %s stays in this home: %s", key, error)

    def give_up_file(self, key: str) -> bool:
        self.refresh(key)
        if not self.is_here(key) or (found := self._place(key)) is None:
            return False
        try:
            with suppress(FileNotFoundError):
                opening = partial(self.client.open_uncached, found[0])
                if verify_stored_file(opening, key, None, lambda count: None).is_whole:
                    self.delete(key)
                    return True
        except (OSError, VfsdError) as error:
            _log.warning("object %s cannot be read from the bucket: %s", key, error)
        return False

    @contextmanager
    def _renewing(self, place: str, size: int) -> Iterator[None]:
        """Renew the lease of an upload as long as the block runs."""
        if size < _LARGE:
            yield
            return
        from vfsd.catalog.bucket_objects import RENEW_SECONDS

        done = threading.Event()

        def renew() -> None:
            while not done.wait(RENEW_SECONDS):
                try:
                    self._catalog.uploads.renew(place)
                except LeaseLostError:
                    return  # the transaction that records the object finds it, too
                except (OSError, VfsdError) as error:
                    _log.warning("the lease of %s was not renewed: %s", place, error)

        thread = threading.Thread(target=renew, name="vfsd-upload-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def has_no_folders(self) -> bool:
        """Return False: a home without a file is as good as any other."""
        return False

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()

    def _removed(self, key: str) -> tuple[str, int] | None:
        """Return where a removed object can still be read, for handles from before."""
        with self._catalog.reading() as seen:
            return seen.objects.removed(key)

    def _place(self, key: str) -> tuple[str, int] | None:
        """Return the name in the bucket and the size of an object; None if it is not there."""
        if time.monotonic() > self._places_expire:
            self._places_expire = time.monotonic() + _PLACE_SECONDS
            self._places.clear()
        found = self._places.get(key)
        if found is None:
            with self._catalog.reading() as seen:
                found = seen.objects.place(key)
            if found is not None:
                self._remember({key: found})
        return found

    def _remember(self, places: Mapping[str, tuple[str, int]]) -> None:
        with self._guard:
            if len(self._places) + len(places) > _MAX_PLACES:
                self._places.clear()
            self._places.update(places)
