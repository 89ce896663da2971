"""Two mounted homes of one store, with a catalog on PostgreSQL and objects in a bucket."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from tests.mount.conftest import Mounted
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings
from vfsd.maintenance.push import use_bucket
from vfsd.storage.homes import join_store


class MountedHome(Mounted):
    """A home and its mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        self.at = root / "mnt"
        self.log = root / "log"
        self.at.mkdir(parents=True)
        with Store.open(self.store) as store:
            directory = store.parts.directory
            self.home = directory.home
            StoreSettings(verify=False, tune=False, compress=False).save(directory.settings)

    def kill(self) -> None:
        """Kill the mount, as a power cut of the host would."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the mount lives on")
        subprocess.run(["umount", "-l", self.at], check=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the mount process."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class SharedMounts:
    """A store with two homes, `a` and `b`, and the proxy in front of its bucket."""

    def __init__(self, folder: Path, url: str, server: SeaweedServer, proxy: HttpProxy) -> None:
        self.proxy = proxy
        self._engine = sa.create_engine(url)
        with Store.create(folder / "a" / "store", catalog_url=url) as store:
            bucket = f"s3://{server.bucket}/{store.parts.directory.id}"
            use_bucket(store.parts, bucket, server.options(proxy.port))
        join_store(folder / "b" / "store", url, None)
        self.a, self.b = MountedHome(folder / "a"), MountedHome(folder / "b")

    @property
    def both(self) -> tuple[MountedHome, MountedHome]:
        return self.a, self.b

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]

    def execute(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)

    def expire_lease(self, home: MountedHome) -> None:
        """Make the last sign of life of a mount five minutes old."""
        self.execute(
            f"UPDATE mounts SET beat = beat - interval '5 minutes' WHERE home = '{home.home}'"
        )

    def close(self) -> None:
        for host in self.both:
            host.unmount()
        self._engine.dispose()


@contextmanager
def shared_mounts(
    folder: Path, url: str, server: SeaweedServer, proxy: HttpProxy
) -> Iterator[SharedMounts]:
    """Yield a new store with two homes, both mounted."""
    with closing(SharedMounts(folder, url, server, proxy)) as made:
        for host in made.both:
            host.mount()
        yield made
