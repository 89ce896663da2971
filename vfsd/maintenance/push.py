"""Copies the objects of a store into a bucket, where other hosts read them.

Only a store that was local before has such objects: others are uploaded when they are made.  See
`vfsd.storage.remote_objects`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import msgspec

from vfsd.codecs.cells.pack import packed_tables
from vfsd.core.model import StoreBucket
from vfsd.errors import IntegrityError, LeaseLostError, StoreError, UsageError, VfsdError
from vfsd.storage.context import StoreContext
from vfsd.storage.remote_objects import RemoteObjects

if TYPE_CHECKING:
    from vfsd.remote.fetch_client import FetchClient

OWNER_NAME = "store.json"
"""The file of a bucket that names its store."""

_UPLOADS = 4
"""Objects that are uploaded at the same time."""
_PUBLISH_SECONDS = 2.0
"""A killed run uploads the objects of this time again."""

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """The result of a push."""

    objects: int  #: copied into the bucket by this run
    bytes: int
    elsewhere: int  #: objects that are not in the bucket, nor in a file of this home
    damaged: tuple[str, ...]  #: keys of objects that do not hash to their names


class _BucketOwner(msgspec.Struct, frozen=True):
    """The content of `OWNER_NAME`."""

    format: int
    id: str


def use_bucket(parts: StoreContext, url: str, options: Mapping[str, str | bool]) -> StoreBucket:
    """Give a store a bucket for its objects, unless it has that one; return it.

    The store must be opened again to use it.  Raises `UsageError` for another bucket than before,
    `StoreError` for that of another store, `UnreachableError`.
    """
    from vfsd.remote.fetch_client import FetchClient
    from vfsd.remote.fetch_protocol import fetch_settings

    parts.require_writable()
    bucket = StoreBucket(url, dict(options))
    with parts.catalog.reading() as seen:
        known = seen.objects.bucket()
    if known is not None and known.url != url:
        raise UsageError(
            f"the objects of this store are in {known.url}",
            hint="a store has one bucket; leave out --objects",
        )
    settings = fetch_settings(
        parts.directory.location / "cache",
        url,
        options,
        cache_bytes=parts.settings.object_cache_bytes,
    )
    with closing(FetchClient(settings)) as client:
        _claim(client, bucket, parts.directory.id)
    if known != bucket:
        with parts.catalog.writing() as change:
            change.objects.set_bucket(bucket)
    parts.directory.set_bucket(url, options)
    return bucket


def _claim(client: FetchClient, bucket: StoreBucket, store_id: str) -> None:
    """Make a store the owner of a bucket.  Raises `StoreError` if another one owns it."""
    if client.size(OWNER_NAME) is None:
        with NamedTemporaryFile() as file:
            file.write(msgspec.json.encode(_BucketOwner(1, store_id)))
            file.flush()
            with suppress(IntegrityError):  # another store was faster
                client.put(OWNER_NAME, file.name)
    _require_owner(client, bucket, store_id)


def _require_owner(client: FetchClient, bucket: StoreBucket, store_id: str) -> None:
    if client.size(OWNER_NAME) is None:
        raise StoreError(
            f"{bucket.url} has no file {OWNER_NAME}",
            hint="correct the URL, or run `vfsd push --objects` again",
        )
    text = client.read_file(OWNER_NAME)
    try:
        owner = msgspec.json.decode(text, type=_BucketOwner)
    except msgspec.MsgspecError:
        raise StoreError(
            f"{bucket.url} has a file {OWNER_NAME} of another program",
            hint="give another prefix: s3://bucket/PREFIX",
        ) from None
    if owner.id != store_id:
        raise StoreError(
            f"{bucket.url} belongs to the store {owner.id}",
            hint="give another prefix: s3://bucket/PREFIX",
        )


def bucket_text(objects: RemoteObjects, store_id: str) -> str:
    """Return a line about the bucket of a store and its server.

    Raises `StoreError` for a bucket of another store, `UnreachableError`, `OSError`.
    """
    _require_owner(objects.client, objects.bucket, store_id)
    began = time.monotonic()
    objects.client.size(OWNER_NAME)
    answered = time.monotonic() - began
    cost = objects.client.status().cost
    return (
        f"{objects.bucket.url} answered after {1000 * answered:.0f} ms; reads are planned with "
        f"{1000 * cost.wait:.0f} ms and {1e-6 / cost.byte:.0f} MB/s for each request"
    )


def push(parts: StoreContext, *, on_progress: OnProgress = lambda done, total: None) -> PushReport:
    """Copy all objects that are not in the bucket of the store yet.

    An interrupted run continues with the rest.  Raises `UsageError` without a bucket,
    `UnreachableError`, and what `on_progress` raises.
    """
    parts.require_writable()
    objects = parts.objects
    if not isinstance(objects, RemoteObjects):
        raise UsageError(
            "the store has no bucket", hint="name it once: `vfsd push --objects s3://bucket/prefix`"
        )
    with parts.catalog.reading() as seen:
        missing = seen.objects.unplaced()
    here = {key: path for key in missing if (path := _file(objects, key)) is not None}
    total = sum(missing[key] for key in here)
    done = pushed = pushed_bytes = 0
    damaged = []
    for key, place in _uploaded(objects, here, missing, parts):
        done += missing[key]
        if place is None:
            damaged.append(key)
        else:
            pushed += 1
            pushed_bytes += missing[key]
        on_progress(done, total)
    return PushReport(pushed, pushed_bytes, len(missing) - len(here), tuple(damaged))


def _file(objects: RemoteObjects, key: str) -> Path | None:
    """Return the file of an object; None if it is not in this home."""
    path = objects.path(key)
    return path if path.is_file() else None


def _uploaded(
    objects: RemoteObjects, here: Mapping[str, Path], sizes: Mapping[str, int], parts: StoreContext
) -> Iterator[tuple[str, str | None]]:
    """Yield (key, name in the bucket) of published objects; the name is None for damaged ones."""

    def upload(key: str) -> str | None:
        if not objects.is_intact(key, sizes[key]):
            return None
        return objects.upload(key, sizes[key], keep=False)

    ready: dict[str, str] = {}
    published = time.monotonic()
    waiting = iter(here)
    running: dict[Future[str | None], str] = {}
    with ThreadPoolExecutor(_UPLOADS, "vfsd-push") as pool:
        try:
            while True:
                while len(running) < 2 * _UPLOADS and (key := next(waiting, None)) is not None:
                    running[pool.submit(upload, key)] = key
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    key = running.pop(future)
                    place = future.result()
                    if place is None:
                        yield key, None
                    else:
                        ready[key] = place
                if ready and (not running or time.monotonic() - published > _PUBLISH_SECONDS):
                    batch, ready, published = ready, {}, time.monotonic()
                    yield from _publish(parts, batch, sizes)
                if not running:
                    return
        finally:
            # Complete uploads count, whatever interrupted the others.
            left = [future for future in running if not future.cancel()]
            wait(left)
            for future in left:
                if future.exception() is None and (place := future.result()) is not None:
                    ready[running[future]] = place
            if ready:
                with suppress(VfsdError):
                    list(_publish(parts, ready, sizes))


def _tables(path: Path, size: int) -> list[tuple[int, bytes]]:
    """Return the tables of the packs in a file; none for a file that has gone."""
    with suppress(OSError), path.open("rb") as file:
        return packed_tables(lambda at, count: os.pread(file.fileno(), count, at), size)
    return []


def _publish(
    parts: StoreContext, ready: Mapping[str, str], sizes: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Record where objects are now, and yield those that were recorded."""
    recorded = []
    tables = {key: _tables(parts.objects.path(key), sizes[key]) for key in ready}
    with parts.catalog.writing() as change:
        for key, place in ready.items():
            with suppress(LeaseLostError):  # this process was stopped; the next push repeats it
                if change.objects.place_upload(key, place, sizes[key]):
                    recorded.append((key, place))
                change.objects.record_tables(key, tables[key])
    yield from recorded
