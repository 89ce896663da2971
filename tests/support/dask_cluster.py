"""A scheduler of Dask with workers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def running_dask(workers: int) -> Iterator[Any]:
    """Yield the cluster; skip the test without Dask."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    import dask

    # By default, the cluster gives up workers that take longer than 15 seconds to restart, as they
    # do on a busy machine.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
    ):
        yield cluster
