"""Objects in a bucket of the tests' S3 server, and clients that read them."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from vfsd.remote.fetch_client import FetchClient
from vfsd.remote.fetch_protocol import FetchSettings, fetch_settings
from vfsd.remote.remote_reader import RemoteReader

_END_SECONDS = 10.0


class RemoteObjects:
    """A prefix of the bucket for one test, with random objects, and a cache folder."""

    def __init__(self, server: SeaweedServer, proxy: HttpProxy, folder: Path) -> None:
        self.server = server
        self.proxy = proxy
        self.folder = folder
        self.cache = folder / "cache"
        self.bytes: dict[str, bytes] = {}  #: of each object, by its place
        self._prefix = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self._clients: list[FetchClient] = []

    def settings(
        self, *, cache_bytes: int = 0, seconds: float = 20.0, cache: Path | None = None
    ) -> FetchSettings:
        made = fetch_settings(
            cache or self.cache,
            f"s3://{self.server.bucket}/{self._prefix}",
            self.server.options(self.proxy.port),
            cache_bytes=cache_bytes,
            seconds=seconds,
        )
        return msgspec.structs.replace(made, idle_seconds=2.0)

    def client(
        self, *, cache_bytes: int = 0, seconds: float = 20.0, cache: Path | None = None
    ) -> FetchClient:
        """Make a client, which is closed at the end of the test."""
        client = FetchClient(self.settings(cache_bytes=cache_bytes, seconds=seconds, cache=cache))
        self._clients.append(client)
        return client

    def upload(self, client: FetchClient, size: int, *, seed: int = 0) -> str:
        """Upload random bytes, and return their place."""
        data = random.Random(f"{size} {seed}").randbytes(size)
        key = hashlib.sha256(data).hexdigest()
        place = f"o/{key[:2]}/{key}-{seed:016x}"
        file = self.folder / "upload"
        file.write_bytes(data)
        client.put(place, file)
        self.bytes[place] = data
        return place

    def reader(self, client: FetchClient, place: str) -> RemoteReader:
        return client.open(place, len(self.bytes[place]))

    def process(self, cache: Path | None = None) -> int | None:
        """Return the pid of the running fetch process."""
        return running_process((cache or self.cache) / "fetch.lock")

    def kill(self) -> None:
        """Kill the fetch process, and wait for its end."""
        pid = self.process()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not _runs(pid))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.kill()


@contextmanager
def remote_objects(
    server: SeaweedServer, proxy: HttpProxy, folder: Path
) -> Iterator[RemoteObjects]:
    """Objects for one test. The credentials are in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        objects = RemoteObjects(server, proxy, folder)
        try:
            yield objects
        finally:
            objects.close()


def wait_until(condition: object, seconds: float = _END_SECONDS) -> None:
    """Wait until a function returns a true value; fail after some seconds."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def running_process(lock: Path) -> int | None:
    """Return the pid of the fetch process that has a lock; None if it does not run."""
    try:
        pid = int(lock.read_text() or 0)
    except FileNotFoundError:
        return None
    return pid if pid and _runs(pid) else None


def _runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
