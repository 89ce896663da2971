"""A Ray of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import pytest


@contextmanager
def running_ray(workers: int) -> Iterator[Any]:
    """Yield the module ray, connected to workers on this machine; skip the test without Ray."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="ray", dir="/tmp") as it:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=100 << 20,
            _node_ip_address="127.0.0.1",
            _temp_dir=it,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            yield ray
        finally:
            ray.shutdown()
