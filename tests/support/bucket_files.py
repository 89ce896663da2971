"""The files of a store's bucket, compared with its catalog."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from blake3 import blake3

from tests.cli.conftest import run_command
from tests.support.seaweedfs import SeaweedServer
from vfsd.api.store import Store
from vfsd.maintenance.fsck.bucket import compare
from vfsd.remote.fetch_protocol import is_place
from vfsd.storage.remote_objects import RemoteObjects


def make_home(place: Path, catalog: str, options: dict[str, str | bool]) -> None:
    """Create the first home of a store with a bucket."""
    given = [
        f"--option={name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]
    url = f"s3://videos/{place.parent.name}"
    done = run_command("init", place, "--catalog", catalog, "--objects", url, *given)
    assert done.code == 0, done.err


def remote_objects_of(store: Store) -> RemoteObjects:
    assert isinstance(store.parts.objects, RemoteObjects)
    return store.parts.objects


def places(store: Store) -> set[str]:
    """Return the names of all objects in the bucket."""
    return {name for name, *_ in remote_objects_of(store).client.list() if is_place(name)}


def recorded_objects(store: Store) -> dict[str, tuple[str, int]]:
    """Return the place and the size of each object that should be in the bucket."""
    with store.catalog.reading() as seen:
        return seen.objects.placed()


def is_exact(store: Store) -> bool:
    """Return whether the bucket has nothing that the catalog lacks.

    Fails unless it has all objects, with the bytes that their names promise.
    """
    for key, (place, _) in recorded_objects(store).items():
        assert blake3(bytes_at(store, place)).hexdigest() == key
    assert compare(store.parts).lost == []
    return not store.catalog.garbage.unnamed(places(store))


def bytes_at(store: Store, place: str) -> bytes:
    """Return the bytes of an object, past the cache."""
    found = bytearray()
    with closing(remote_objects_of(store).client.open_uncached(place)) as file:
        while data := file.read(len(found)):
            found += data
    return bytes(found)


def damage(store: Store, server: SeaweedServer, place: str, position: int = 1000) -> None:
    """Change bytes of an object, in the bucket alone."""
    data = bytearray(bytes_at(store, place))
    data[position : position + 6] = b"damage"
    prefix = remote_objects_of(store).bucket.url.rpartition("/")[2]
    server.overwrite(f"{prefix}/{place}", bytes(data))
