"""``vfsd stats``, ``vfsd top`` and ``vfsd metrics``: statistics of a store and its mount."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from vfsd.cli.command import define
from vfsd.cli.options import Number
from vfsd.cli.output import column_lines, print_facts, print_json, print_line, print_table
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import EXIT_INTERRUPTED, ExtraMissingError, NotFoundError, UsageError
from vfsd.records.store_stats import STORE_FIELDS, StoreStats, store_stats
from vfsd.web.metrics import mount_stats

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.mount.fs.mount_stats import MountStats, OperationTotals
    from vfsd.remote.fetch_protocol import FetchStatus


def fetch_stats(store: Store) -> FetchStatus | None:
    """Statistics of the fetch process; None without a bucket, or if no process runs."""
    objects = store.parts.objects
    if objects.is_local:
        return None
    from vfsd.storage.remote_objects import RemoteObjects

    return objects.client.running_status() if isinstance(objects, RemoteObjects) else None


def fetch_record(fetching: FetchStatus) -> dict[str, Any]:
    return {
        "pid": fetching.pid,
        "seconds": fetching.uptime,
        "clients": fetching.clients,
        "requests": fetching.gets,
        "bytes": fetching.got_bytes,
        "retries": fetching.retries,
        "hits": fetching.hits,
        "hit_bytes": fetching.hit_bytes,
        "cached": fetching.cache_used,
        "cache_limit": fetching.cache_limit,
        "wait": fetching.cost.wait,
        "failure": fetching.failure,
    }


def mount_record(mounted: MountStats) -> dict[str, Any]:
    return {
        "pid": mounted.pid,
        "seconds": mounted.seconds,
        "cpu_seconds": mounted.cpu_seconds,
        "memory": mounted.memory,
        "threads": mounted.threads,
        "descriptors": mounted.descriptors,
        "operations": {
            name: {
                "count": tally.count,
                "failed": tally.failed,
                "seconds": tally.seconds,
                "bytes": tally.bytes,
                "p50": tally.within(0.5),
                "p99": tally.within(0.99),
            }
            for name, tally in mounted.operations.items()
        },
        "rendering": None if mounted.rendering is None else asdict(mounted.rendering),
        "passthrough": mounted.passthrough,
        "inodes": mounted.inodes,
    }


_OPERATION_HEADINGS = ("operation", "count", "failed", "seconds", "p50", "p99", "bytes")


@define(
    "stats",
    examples=["vfsd -s videos stats", "vfsd -s videos stats --json"],
    fields={
        **STORE_FIELDS,
        "fetch": "null unless a process fetches objects from a bucket, else pid, seconds (uptime), "
        "clients, GET requests, bytes, retries, hits (reads that the cache served), hit_bytes, "
        "cached and cache_limit (bytes on the disk), wait (seconds to the first byte of a GET), "
        "and failure: null, or the last error of the bucket",
        "mount": "null without a mount, else pid, seconds (uptime), cpu_seconds, memory (bytes), "
        "threads, descriptors, operations: by name count, failed, seconds, bytes, p50 and p99 "
        "(seconds, within a factor of two), rendering: null, or pid, cpu_seconds, memory and "
        "decoder_memory (bytes) of the process that renders views, passthrough: null, or with "
        "that option the number of files that the kernel reads directly, and inodes: null, or "
        "with VFSD_FUSE_API=inodes the number of files that the kernel knows",
    },
)
def stats(session: Session) -> None:
    """Show the contents of a store, and statistics of its mount.

    Operations are requests of the kernel, without those that its caches answer. `failed` counts all
    errors, including "no such file".
    """
    root = session.root()
    with session.opened(root) as store:
        found = store_stats(store)
        fetching = fetch_stats(store)
    mounted = mount_stats(root)
    if session.json:
        mount = None if mounted is None else mount_record(mounted)
        fetch = None if fetching is None else fetch_record(fetching)
        print_json({**dataclasses.asdict(found), "fetch": fetch, "mount": mount})
        return
    print_facts([*_stats_facts(found, mounted), *_fetch_facts(fetching)])
    if mounted is not None and mounted.operations:
        print_line("")
        print_table([_OPERATION_HEADINGS, *_operation_rows(mounted)], "<>>>>>>")


def _stats_facts(found: StoreStats, mounted: MountStats | None) -> Iterator[tuple[str, str]]:
    yield "videos", str(found.videos)
    if found.damaged:
        yield "damaged files", f"{found.damaged} (`vfsd fsck` names them)"
    if found.without_sums:
        yield "without checksums", f"{found.without_sums} (`vfsd scrub` adds them)"
    for name in ("originals", "tiles", "renditions", "joined", "retired", "pinned", "free"):
        yield name, human_bytes(getattr(found, name))
    if found.home is not None:
        yield "home", f"{found.home} (`vfsd homes` lists all)"
    if mounted is None:
        yield "mount", "none"
        return
    yield "mount", f"process {mounted.pid}, for {mounted.seconds:.0f} s"
    yield "CPU", f"{mounted.cpu_seconds:.1f} s"
    yield "memory", human_bytes(mounted.memory)
    yield "threads", str(mounted.threads)
    yield "open files", str(mounted.descriptors)
    if mounted.passthrough is not None:
        yield "passthrough", f"{mounted.passthrough} files are read by the kernel directly"
    made_by = mounted.rendering
    if made_by is not None:
        yield "views", f"process {made_by.pid}"
        yield "their CPU", f"{made_by.cpu_seconds:.1f} s"
        decoders = human_bytes(made_by.decoder_memory)
        yield "their memory", f"{human_bytes(made_by.memory)}, including {decoders} of decoders"


def _fetch_facts(fetching: FetchStatus | None) -> Iterator[tuple[str, str]]:
    if fetching is None:
        return
    yield "fetching", f"process {fetching.pid}, for {fetching.uptime:.0f} s"
    yield "fetched", f"{human_bytes(fetching.got_bytes)} in {fetching.gets} requests"
    hit = f"{human_bytes(fetching.hit_bytes)} in {fetching.hits} reads"
    yield "from the cache", hit
    yield "cached", f"{human_bytes(fetching.cache_used)} of {human_bytes(fetching.cache_limit)}"
    if fetching.failure is not None:
        yield "bucket", fetching.failure


def _operation_rows(mounted: MountStats) -> Iterator[tuple[str, ...]]:
    busiest = sorted(mounted.operations.items(), key=lambda item: -item[1].seconds)
    for name, tally in busiest:
        yield (
            name,
            str(tally.count),
            str(tally.failed),
            f"{tally.seconds:.3f}",
            brief_seconds(tally.within(0.5)),
            brief_seconds(tally.within(0.99)),
            human_bytes(tally.bytes) if tally.bytes else "",
        )


def brief_seconds(seconds: float) -> str:
    """A time with three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"


_TOP_HEADINGS = ("operation", "per second", "mean", "bytes per second")
_INTERVAL_SECONDS = 2.0


@define(
    "top",
    examples=["vfsd -s videos top", "vfsd -s videos top --every 10 --count 6 --json"],
    fields={
        "seconds": "length of the interval",
        "cpu": "number of busy cores",
        "memory": "resident bytes",
        "threads": "number of threads",
        "descriptors": "open files of the process",
        "operations": "by name: count, seconds and bytes in the interval",
    },
    exits=[NotFoundError, EXIT_INTERRUPTED],
    listing=True,
)
@click.option(
    "--every",
    "interval",
    metavar="SECONDS",
    type=Number(0.1),
    default=_INTERVAL_SECONDS,
    show_default=True,
    help="Length of an interval.",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    help="Number of intervals; the default is unlimited.",
)
def top(session: Session, interval: float, count: int | None) -> None:
    """Show the activity of a mount, again and again.

    Ends with Ctrl-C, or with the mount.
    """
    root = session.root()
    before = _require_mount(root)
    done = 0
    while count is None or done < count:
        time.sleep(interval)
        now = mount_stats(root)
        if now is None or now.pid != before.pid:
            session.remark("the mount has ended")
            return
        _print_interval(session, before, now)
        before = now
        done += 1


def _require_mount(root: Path) -> MountStats:
    found = mount_stats(root)
    if found is None:
        raise NotFoundError(f"{root} is not mounted", hint="mount it with `vfsd mount`")
    return found


def _print_interval(session: Session, before: MountStats, now: MountStats) -> None:
    seconds = now.seconds - before.seconds
    cpu = (now.cpu_seconds - before.cpu_seconds) / seconds
    moved = dict(_changes(before, now))
    if session.json:
        print_json(
            {
                "seconds": seconds,
                "cpu": cpu,
                "memory": now.memory,
                "threads": now.threads,
                "descriptors": now.descriptors,
                "operations": {
                    name: {"count": count, "seconds": busy, "bytes": size}
                    for name, (count, busy, size) in moved.items()
                },
            }
        )
        return
    print_line(
        f"{time.strftime('%H:%M:%S')}  {cpu:.0%} CPU, {human_bytes(now.memory)}, "
        f"{now.threads} threads, {now.descriptors} open files"
    )
    rows = [
        (
            name,
            f"{count / seconds:.1f}",
            brief_seconds(busy / count),
            human_bytes(round(size / seconds)) if size else "",
        )
        for name, (count, busy, size) in sorted(moved.items(), key=lambda item: -item[1][1])
    ]
    for line in column_lines([_TOP_HEADINGS, *rows], "<>>>") if rows else ():
        print_line(f"  {line}")


def _changes(before: MountStats, now: MountStats) -> Iterator[tuple[str, tuple[int, float, int]]]:
    """(count, seconds, bytes) of each operation in the interval."""
    for name, tally in now.operations.items():
        earlier: OperationTotals | None = before.operations.get(name)
        count = tally.count - (earlier.count if earlier else 0)
        if count:
            busy = tally.seconds - (earlier.seconds if earlier else 0.0)
            yield name, (count, busy, tally.bytes - (earlier.bytes if earlier else 0))


@define(
    "metrics",
    examples=["vfsd -s videos metrics"],
    fields={
        "text": "the metrics, null with --listen",
        "address": "URL of the metrics, null without --listen",
    },
    exits=[ExtraMissingError, EXIT_INTERRUPTED],
)
@click.option("--listen", metavar="HOST:PORT", help="Serve HTTP there until Ctrl-C or SIGTERM.")
def metrics(session: Session, listen: str | None) -> None:
    """Export the statistics of `vfsd stats` for Prometheus.

    Needs the extra `metrics`. The printed form is for the textfile collector of node_exporter. With
    `--listen 127.0.0.1:9185` Prometheus can scrape the command. Each answer has the values at that
    moment.
    """
    from vfsd.web.metrics import metrics_registry, metrics_text

    root = session.root()
    with session.opened(root) as store:
        registry = metrics_registry(root, store)
        if listen is None:
            text = metrics_text(registry).decode()
            if session.json:
                print_json({"text": text, "address": None})
            else:
                click.echo(text, nl=False)
            return
        host, port = _parse_address(listen)
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"cannot listen at {listen}: {error.strerror}") from error
        named = f"[{host}]" if ":" in host else host  # IPv6 addresses need brackets in a URL
        address = f"http://{named}:{server.server_port}/metrics"
        try:
            signal.signal(signal.SIGTERM, _stop)
            session.report({"text": None, "address": address}, f"serving {address}")
            thread.join()
        except _StoppedError:
            pass
        finally:
            server.shutdown()
            server.server_close()


class _StoppedError(Exception):
    """SIGTERM arrived, which ends the server."""


def _stop(*_: object) -> NoReturn:
    raise _StoppedError


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"the address must be HOST:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
