"""Synchronous writes are on the disk when they return, even if the kernel sends no fsync."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted

CREATE = os.O_CREAT | os.O_APPEND
SYNCED_APPEND = CREATE | os.O_RDWR | os.O_DIRECT | os.O_DSYNC


@pytest.fixture
def syncs(mounted: Mounted, tmp_path: Path) -> Callable[[Callable[[], object]], int]:
    """A function that counts the data syncs of the mount during an action."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")

    def count(action: Callable[[], object]) -> int:
        trace = tmp_path / "trace"
        with traced(mounted, trace):
            action()
        return trace.read_text().count("fdatasync(")

    return count


@contextmanager
def traced(mounted: Mounted, trace: Path) -> Iterator[None]:
    command = ["strace", "-f", "-e", "trace=fdatasync", "-o", str(trace), "-p", str(mounted.pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        try:
            mounted.wait_for(lambda: is_traced(mounted.pid), "strace does not begin")
            yield
        finally:
            strace.terminate()


def is_traced(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR])
def test_sync_mount(
    mounted: Mounted, syncs: Callable[[Callable[[], object]], int], access: int
) -> None:
    file = os.open(mounted.mount("sync") / "f", access | CREATE)
    assert syncs(lambda: os.write(file, b"data")) == 1
    os.close(file)


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR])
def test_synced_write(
    mounted: Mounted, syncs: Callable[[Callable[[], object]], int], access: int
) -> None:
    file = os.open(mounted.mount() / "f", access | CREATE)
    assert syncs(lambda: os.write(file, b"data")) == 0
    assert syncs(lambda: os.pwritev(file, [b"data"], 0, os.RWF_DSYNC)) == 1
    os.close(file)


@pytest.mark.parametrize("left", [os.O_DIRECT | os.O_APPEND, os.O_APPEND, os.O_DIRECT, 0])
def test_sync_flag_after_setfl(
    mounted: Mounted, syncs: Callable[[Callable[[], object]], int], left: int
) -> None:
    file = os.open(mounted.mount() / "f", SYNCED_APPEND)
    fcntl.fcntl(file, fcntl.F_SETFL, left)
    assert syncs(lambda: os.write(file, b"data")) == 1
    os.close(file)
