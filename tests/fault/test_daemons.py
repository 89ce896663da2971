"""Daemons that die, and two daemons for one store."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.api.store import Store
from vfsd.errors import BusyError
from vfsd.mount import control

VIDEO = FOLDER / "portrait.mp4"

pytestmark = pytest.mark.mount


@pytest.fixture
def mounted(tmp_path: Path, mountable: None) -> Iterator[Mounted]:
    place = Mounted(tmp_path)
    yield place
    place.unmount()


def kill(mounted: Mounted) -> int:
    """Kill the daemon, wait until the kernel has noticed, and return its process id."""
    pid = mounted.pid

    def is_dead() -> bool:
        try:
            os.statvfs(mounted.at)
        except OSError as error:
            return error.errno == errno.ENOTCONN
        return False

    os.kill(pid, signal.SIGKILL)
    mounted.wait_for(is_dead, "the mount lives")
    return pid


def test_remount_after_kill(
    mounted: Mounted,
) -> None:
    with Store.open(mounted.store) as store:
        store.ingest(VIDEO, "v.mp4")
        directory = store.parts.directory
    at = mounted.mount()
    fd = os.open(at / "v.mp4", os.O_RDONLY)
    assert os.pread(fd, 100, 0) == VIDEO.read_bytes()[:100]
    pid = kill(mounted)
    assert json.loads(directory.mount_lock.read_text())["pid"] == pid
    mounted.wait_for(lambda: directory.mounted_by() is None, "its lock lives")
    for action in (lambda: os.fstat(fd), lambda: os.listdir(at), lambda: os.open(at / "v.mp4", 0)):
        with pytest.raises(OSError, match="not connected"):
            action()
    mounted.mount()  # while the old descriptor is still open
    assert (at / "v.mp4").read_bytes() == VIDEO.read_bytes()
    with pytest.raises(OSError, match=r"connected|abort"):
        os.fstat(fd)
    with suppress(OSError):  # it belongs to the dead mount
        os.close(fd)


def test_second_daemon_refused(mounted: Mounted, tmp_path: Path) -> None:
    at = mounted.mount()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BusyError, match="is mounted at"):
        control.mount(mounted.store, other, ["ro"], log_file=mounted.root / "second")
    (at / "still").write_text("works")
    assert os.listdir(other) == []
