"""Objects in a bucket for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_proxy import HttpProxy
from tests.support.remote_objects import RemoteObjects, remote_objects
from tests.support.seaweedfs import SeaweedServer


@pytest.fixture
def objects(
    seaweedfs: SeaweedServer, s3_proxy: HttpProxy, tmp_path: Path
) -> Iterator[RemoteObjects]:
    pytest.importorskip("obstore")
    with remote_objects(seaweedfs, s3_proxy, tmp_path) as made:
        yield made
