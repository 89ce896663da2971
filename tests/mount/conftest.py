"""Fixtures for real mounts, if this machine can mount."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.process_control import cpu_seconds
from vfsd.disk.mount_queries import mount_at
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, VfsdError
from vfsd.mount import control
from vfsd.mount.fs.inode_metadata import STATS
from vfsd.mount.fs.mount_stats import MountStats
from vfsd.mount.fuse import libfuse
from vfsd.mount.fuse.fuse_session import kernel_version
from vfsd.mount.fuse.passthrough import require_passthrough


@pytest.fixture(scope="session", autouse=True)
def fuse(mountable: None) -> None:
    """Skip all tests here if this machine cannot mount."""


@pytest.fixture(scope="session")
def by_path(fuse: None) -> None:
    """Skip a test of what the kernel does if it knows files by path only; see test_inodes.py."""
    if libfuse.speaks_inodes(libfuse.load()):
        pytest.skip("each file has its own cache and size")


class Mounted:
    """A store and a mountpoint, with helpers for tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        self.at = root / "mnt"
        self.log = root / "log"
        self.at.mkdir(parents=True)
        with new_store(self.store) as store:
            # Background work has tests of its own.
            StoreSettings(verify=False, tune=False, compress=False).save(
                store.parts.directory.settings
            )

    def mount(self, *options: str) -> Path:
        control.mount(self.store, self.at, options, log_file=self.log)
        return self.at

    def unmount(self) -> None:
        """Unmount, even if the mount is dead or in use."""
        found = mount_at(self.at)
        if found is None:
            return
        try:
            os.stat(self.at)
            self._unmount_patiently()
        except Exception as error:
            error.add_note(self._stacks())
            error.add_note(f"in use by: {users_of(self.at)}")
            if mount_at(self.at) is not None:
                subprocess.run(["umount", "-l", self.at], check=True)
            raise

    def _unmount_patiently(self) -> None:
        """Retry, since other tests look at all mounts and keep each busy for a moment."""
        end = time.monotonic() + 20
        while True:
            try:
                control.unmount(self.at)
            except BusyError:
                if time.monotonic() > end:
                    raise
            else:
                return

    def _logged(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _stacks(self) -> str:
        """Have the daemon append a stack trace of each thread to its log."""
        pid = (StoreDirectory.open(self.store).mounted_by() or {}).get("pid")
        if isinstance(pid, int):
            before = self._logged()
            os.kill(pid, signal.SIGUSR1)  # see `vfsd.mount.daemon`
            end = time.monotonic() + 5
            while self._logged() == before and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.2)  # for the rest of it
        return self._logged()[-20_000:]

    @property
    def pid(self) -> int:
        with Store.open(self.store, read_only=True) as store:
            holder = store.parts.directory.mounted_by() or {}
        pid = holder["pid"]
        assert isinstance(pid, int)
        return pid

    @property
    def standing(self) -> MountStats:
        """The counters that the mount reports."""
        return MountStats.parse(os.getxattr(self.at, STATS).decode())

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the mount's process and of its view worker."""
        made_by = self.standing.rendering
        views = 0.0 if made_by is None else made_by.cpu_seconds
        return cpu_seconds(self.pid) + views

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, f"{what}; the log says: {self._logged()}"
            time.sleep(0.01)


def users_of(place: Path) -> list[str]:
    """The processes with open files below `place`: pid, command and path."""
    found = []
    for link in (*Path("/proc").glob("[0-9]*/fd/*"), *Path("/proc").glob("[0-9]*/cwd")):
        with suppress(OSError):
            path = os.readlink(link)
            if path.startswith(str(place)):
                pid = link.parts[2]
                name = Path("/proc", pid, "comm").read_text().strip()
                found.append(f"{pid} {name} {'/'.join(link.parts[3:])} {path}")
    return found


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    """A store that is not mounted yet, and is unmounted at the end."""
    place = Mounted(tmp_path)
    yield place
    place.unmount()


@pytest.fixture(scope="session")
def passthrough(fuse: None) -> str:
    """The option for passthrough; skips the test if this machine does not support it."""
    try:
        require_passthrough(libfuse.load(), kernel_version())
    except VfsdError as error:
        pytest.skip(str(error))
    return "passthrough"


@pytest.fixture(scope="session", params=one_in(2, ["ordinary", "passthrough"]))
def shared(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, fuse: None
) -> Iterator[Mounted]:
    """A mount shared by tests that only use it; its log must not contain errors at the end."""
    place = Mounted(tmp_path_factory.mktemp("shared"))
    if request.param == "ordinary":
        place.mount()
    else:
        place.mount(request.getfixturevalue("passthrough"))
    yield place
    place.unmount()
    log = place.log.read_text()
    assert "ERROR" not in log
    assert "Traceback" not in log


@pytest.fixture
def here(shared: Mounted, request: pytest.FixtureRequest) -> Path:
    """An empty directory in the shared mount."""
    path = shared.at / str(request.node.name).replace("/", "_")[:200]
    path.mkdir()
    return path
