"""Metrics of a store, its mount and its web server for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfsd.errors import BusyError, ExtraMissingError
from vfsd.records.store_stats import StoreStats, store_stats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from vfsd.api.store import Store
    from vfsd.mount.fs.mount_stats import MountStats
    from vfsd.web.request_limits import ClientCounts, WorkQueue

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def metrics_registry(root: Path, store: Store) -> CollectorRegistry:
    """Return a registry that collects at each request.

    Raises `ExtraMissingError` without the extra `metrics`.
    """
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise ExtraMissingError(
            "metrics need prometheus-client", hint="pip install 'vfsd[metrics]'"
        ) from None
    # Describing would collect again, and read the whole catalog.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StoreCollector(root, store))
    return registry


def metrics_text(registry: CollectorRegistry) -> bytes:
    """Return the metrics in the text format of Prometheus."""
    from prometheus_client import generate_latest

    return generate_latest(registry)


def mount_stats(root: Path) -> MountStats | None:
    """Statistics of the mount of a store; None without a mount, or if it does not answer."""
    from vfsd.disk.mount_queries import own_attribute
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.mount.fs.inode_metadata import STATS
    from vfsd.mount.fs.mount_stats import MountStats

    directory = StoreDirectory.open(root)
    place = (directory.mounted_by() or {}).get("place")
    if not place:
        return None
    try:
        # The mount may end, or hang, between the two questions.
        return MountStats.parse(own_attribute(str(place), STATS, directory.identity).decode())
    except (OSError, BusyError, ValueError):
        return None


class _StoreCollector:
    """Collects the metrics for each request."""

    def __init__(self, root: Path, store: Store) -> None:
        self._root = root
        self._store = store

    def collect(self) -> Iterator[Any]:
        yield from _store_metrics(store_stats(self._store))
        mounted = mount_stats(self._root)
        yield gauge("vfsd_mounted", "Whether the store is mounted.", int(mounted is not None))
        if mounted is not None:
            yield from _mount_metrics(mounted)


def _store_metrics(found: StoreStats) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    yield gauge("vfsd_videos", "Videos in the store.", found.videos)
    yield gauge("vfsd_damaged_files", "Stored files with damaged bytes.", found.damaged)
    yield gauge(
        "vfsd_originals_without_sums",
        "Originals without block checksums.",
        found.without_sums,
    )
    sizes = GaugeMetricFamily(
        "vfsd_stored_bytes", "Contents of the store, by kind.", labels=["kind"]
    )
    for kind in ("originals", "tiles", "renditions", "joined", "retired", "pinned"):
        sizes.add_metric([kind], getattr(found, kind))
    yield sizes
    yield gauge("vfsd_free_bytes", "Free bytes on the disk of the store.", found.free)


def _mount_metrics(mounted: MountStats) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    yield gauge("vfsd_mount_start_seconds", "Unix time of the start of the mount.", mounted.since)
    yield gauge("vfsd_mount_memory_bytes", "Resident memory of the mount.", mounted.memory)
    yield gauge("vfsd_mount_threads", "Threads of the mount.", mounted.threads)
    yield gauge("vfsd_mount_open_files", "Open files of the mount.", mounted.descriptors)
    cpu = CounterMetricFamily("vfsd_mount_cpu_seconds", "CPU time of the mount.")
    cpu.add_metric([], mounted.cpu_seconds)
    yield cpu
    made_by = mounted.rendering
    if made_by is not None:
        yield gauge(
            "vfsd_views_memory_bytes", "Memory of the process that renders views.", made_by.memory
        )
        yield gauge("vfsd_views_decoder_bytes", "Memory of idle decoders.", made_by.decoder_memory)
        work = CounterMetricFamily(
            "vfsd_views_cpu_seconds", "CPU time of the process that renders views."
        )
        work.add_metric([], made_by.cpu_seconds)
        yield work
    times = HistogramMetricFamily(
        "vfsd_operation_seconds", "Requests of the kernel.", labels=["operation"]
    )
    failed = CounterMetricFamily(
        "vfsd_operation_errors", "Requests that failed.", labels=["operation"]
    )
    moved = CounterMetricFamily("vfsd_operation_bytes", "Bytes transferred.", labels=["operation"])
    for name, tally in mounted.operations.items():
        # Prometheus counts cumulatively: each bucket includes the shorter ones.
        buckets, seen = [], 0
        for limit, count in sorted(tally.buckets.items()):
            seen += count
            buckets.append((repr(limit), seen))
        times.add_metric([name], [*buckets, ("+Inf", tally.count)], tally.seconds)
        failed.add_metric([name], tally.failed)
        if tally.bytes:
            moved.add_metric([name], tally.bytes)
    yield from (times, failed, moved)


def gauge(name: str, about: str, value: float) -> Any:
    """Return a metric with one value."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, about, value)


class RequestCounts:
    """Counts the requests of a server; a collector of prometheus_client.  For one event loop."""

    def __init__(self, work: WorkQueue, clients: ClientCounts) -> None:
        self._work = work
        self._clients = clients
        self._requests: Counter[tuple[str, int]] = Counter()
        self._bytes = 0
        self._seconds = 0.0

    def add(self, method: str, status: int, size: int, seconds: float) -> None:
        """Count a request with its status, bytes sent and duration."""
        known = method if method in _METHODS else "other"
        self._requests[known, status] += 1
        self._bytes += size
        self._seconds += seconds

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        requests = CounterMetricFamily(
            "vfsd_web_requests", "Requests answered.", labels=["method", "status"]
        )
        # A copy: the event loop goes on counting.
        for (method, status), count in list(self._requests.items()):
            requests.add_metric([method, str(status)], count)
        yield requests
        for name, about, value in (
            ("vfsd_web_bytes", "Bytes of bodies sent.", self._bytes),
            ("vfsd_web_seconds", "Time spent on all requests.", self._seconds),
            ("vfsd_web_refused", "Requests refused for lack of an encoder.", self._work.refused),
        ):
            total = CounterMetricFamily(name, about)
            total.add_metric([], value)
            yield total
        yield gauge("vfsd_web_active_requests", "Requests in progress.", self._clients.total)
        yield gauge("vfsd_web_encoding_requests", "Requests that encode.", self._work.running)
        yield gauge("vfsd_web_waiting_requests", "Requests that wait.", self._work.waiting)
