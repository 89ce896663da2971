"""``vfsd metrics``: the figures of a store and its mount, for Prometheus."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from vfsd.cli.command import define
from vfsd.cli.figures import Stored, standing_of, stored
from vfsd.cli.output import print_json
from vfsd.cli.session import Session
from vfsd.errors import EXIT_INTERRUPTED, ExtraMissingError, UsageError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.mount.fs.stats import Standing


@define(
    "metrics",
    examples=["vfsd -s videos metrics"],
    fields={
        "text": "the figures, null with --listen",
        "address": "where they are to be had, null without --listen",
    },
    exits=[ExtraMissingError, EXIT_INTERRUPTED],
)
@click.option("--listen", metavar="HOST:PORT", help="Answer HTTP there until Ctrl-C or SIGTERM.")
@click.pass_obj
def command(session: Session, listen: str | None) -> None:
    """Give the figures of `vfsd stats` to Prometheus.

    Needs the extra `metrics`.  Printed figures are for the textfile collector of node_exporter;
    with `--listen 127.0.0.1:9185` Prometheus comes for them itself.  Each answer has the figures of
    that moment.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    except ImportError:
        raise ExtraMissingError(
            "metrics need prometheus-client", hint="pip install 'vfsd[metrics]'"
        ) from None
    root = session.root()
    with session.opened(root) as store:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(root, store))
        if listen is None:
            text = generate_latest(registry).decode()
            if session.json:
                print_json({"text": text, "address": None})
            else:
                click.echo(text, nl=False)
            return
        host, port = _address(listen)
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"{listen} cannot be listened to: {error.strerror}") from error
        named = f"[{host}]" if ":" in host else host  # an address of IPv6, in a URL
        address = f"http://{named}:{server.server_port}/metrics"
        try:
            signal.signal(signal.SIGTERM, _end)
            if session.json:
                print_json({"text": None, "address": address})
            else:
                session.remark(f"answering at {address}")
            thread.join()
        except _EndedError:
            pass  # as it should
        finally:
            server.shutdown()
            server.server_close()


class _EndedError(Exception):
    """Somebody has sent SIGTERM, which is how this ends."""


def _end(*_: object) -> NoReturn:
    raise _EndedError


class _Collector:
    """Asked whenever somebody wants the figures."""

    def __init__(self, root: Path, store: Store) -> None:
        self._root = root
        self._store = store

    def collect(self) -> Iterator[Any]:
        yield from _of_store(stored(self._store))
        standing = standing_of(self._root)
        yield _gauge("vfsd_mounted", "Whether the store is mounted.", int(standing is not None))
        if standing is not None:
            yield from _of_mount(standing)


def _of_store(found: Stored) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    yield _gauge("vfsd_videos", "Videos in the store.", found.videos)
    yield _gauge("vfsd_damaged_files", "Stored files with damaged bytes.", found.damaged)
    yield _gauge(
        "vfsd_originals_without_sums",
        "Originals that are read without being compared.",
        found.without_sums,
    )
    sizes = GaugeMetricFamily(
        "vfsd_stored_bytes", "What the store holds, by kind.", labels=["kind"]
    )
    for kind in ("originals", "tiles", "renditions", "joined", "retired", "pinned"):
        sizes.add_metric([kind], getattr(found, kind))
    yield sizes
    yield _gauge("vfsd_free_bytes", "Free on the disk that holds the store.", found.free)


def _of_mount(standing: Standing) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    yield _gauge("vfsd_mount_start_seconds", "Unix time at which the mount began.", standing.since)
    yield _gauge("vfsd_mount_memory_bytes", "Resident memory of the mount.", standing.memory)
    yield _gauge("vfsd_mount_threads", "Threads of the mount.", standing.threads)
    yield _gauge("vfsd_mount_open_files", "Open files of the mount.", standing.descriptors)
    cpu = CounterMetricFamily("vfsd_mount_cpu_seconds", "Used by the mount.")
    cpu.add_metric([], standing.cpu_seconds)
    yield cpu
    made_by = standing.rendering
    if made_by is not None:
        yield _gauge("vfsd_views_memory_bytes", "Of the process that makes views.", made_by.memory)
        yield _gauge("vfsd_views_decoder_bytes", "Kept by idle decoders.", made_by.decoder_memory)
        work = CounterMetricFamily("vfsd_views_cpu_seconds", "Used by what makes views.")
        work.add_metric([], made_by.cpu_seconds)
        yield work
    times = HistogramMetricFamily(
        "vfsd_operation_seconds", "Answers to the kernel.", labels=["operation"]
    )
    failed = CounterMetricFamily(
        "vfsd_operation_errors", "Answers that were errors.", labels=["operation"]
    )
    moved = CounterMetricFamily(
        "vfsd_operation_bytes", "Bytes moved by answers.", labels=["operation"]
    )
    for name, tally in standing.operations.items():
        buckets, seen = [], 0
        for limit, count in sorted(tally.buckets.items()):
            seen += count
            buckets.append((repr(limit), seen))
        times.add_metric([name], [*buckets, ("+Inf", tally.count)], tally.seconds)
        failed.add_metric([name], tally.failed)
        if tally.bytes:
            moved.add_metric([name], tally.bytes)
    yield from (times, failed, moved)


def _gauge(name: str, about: str, value: float) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, about, value)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"the address must be HOST:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
