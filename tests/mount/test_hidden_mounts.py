"""A store whose mount is out of sight: the error says where it is, and how to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from vfsd.core.subprocess_entry import child_environment
from vfsd.disk.mount_queries import mount_at
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError
from vfsd.mount import control

pytestmark = pytest.mark.mount


def hint(mounted: Mounted, tmp_path: Path) -> str:
    """What is advised to a caller who mounts the store once more."""
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BusyError, match="is mounted at") as caught:
        control.mount(mounted.store, other, log_file=tmp_path / "log2")
    return str(caught.value.hint)


def test_mount_in_sight(mounted: Mounted, tmp_path: Path) -> None:
    mounted.mount()
    assert hint(mounted, tmp_path).endswith(f": vfsd umount {mounted.at}")


def test_detached_mount(mounted: Mounted, tmp_path: Path) -> None:
    at = mounted.mount()
    pid = mounted.pid
    (at / "a").touch()
    with suppress(OSError), (at / "a").open("rb"):  # its process ends before it is closed
        subprocess.run(["umount", "-l", at], check=True)
        told = hint(mounted, tmp_path)
        os.kill(pid, signal.SIGTERM)
        directory = StoreDirectory.open(mounted.store)
        mounted.wait_for(lambda: directory.mounted_by() is None, "it goes on")
    assert told.endswith(f"`kill {pid}`")
    assert mount_at(at) is None
    assert (mounted.mount() / "a").exists()


@pytest.mark.thorough
def test_mount_in_other_namespace(mounted: Mounted, tmp_path: Path) -> None:
    alone = ["unshare", "-m", "--propagation", "private"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made")
    words = ["vfsd", "mount", "-f", str(mounted.store), str(mounted.at)]
    command = [*alone, sys.executable, "-m", *words]
    directory = StoreDirectory.open(mounted.store)
    with subprocess.Popen(command, env=child_environment(), stderr=subprocess.DEVNULL) as process:
        try:
            mounted.wait_for(lambda: bool(directory.mounted_by()), "its process does not start")
            mounted.wait_for(
                lambda: "device" in (directory.mounted_by() or {}), "it is not mounted"
            )
            assert mount_at(mounted.at) is None
            assert "another mount namespace: nsenter" in hint(mounted, tmp_path)
        finally:
            process.terminate()
