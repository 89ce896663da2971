"""Objects in a bucket for each test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_proxy import HttpProxy
from tests.support.remote_objects import RemoteObjects, remote_objects, running_process
from tests.support.seaweedfs import SeaweedServer


@pytest.fixture(autouse=True)
def ended_processes(tmp_path: Path) -> Iterator[None]:
    """End the fetch processes of all homes of a test; they would go on for a minute."""
    yield
    for lock in tmp_path.rglob("fetch.lock"):
        pid = running_process(lock)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def credentials(seaweedfs: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the bucket in the environment."""
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def objects(
    seaweedfs: SeaweedServer, s3_proxy: HttpProxy, tmp_path: Path
) -> Iterator[RemoteObjects]:
    pytest.importorskip("obstore")
    with remote_objects(seaweedfs, s3_proxy, tmp_path) as made:
        yield made
