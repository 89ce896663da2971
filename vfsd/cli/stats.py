"""``vfsd stats``, ``vfsd top`` and ``vfsd metrics``: statistics of a store and its mount."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from vfsd.cli.command import define
from vfsd.cli.output import column_lines, fact_lines, print_json, print_line
from vfsd.cli.param_types import Number
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import EXIT_INTERRUPTED, BusyError, ExtraMissingError, NotFoundError, UsageError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.mount.fs.mount_stats import MountStats, OperationTotals


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds.  Bytes, but for `videos`, `damaged` and `without_sums`."""

    videos: int
    damaged: int  #: files of which bytes are known to be damaged
    without_sums: int  #: originals that are read without being compared
    originals: int  #: what several videos have counts once
    tiles: int  #: that reads may use
    renditions: int  #: that reads may use
    joined: int  #: pictures of cameras that are kept together
    retired: int  #: kept for a step back
    pinned: int
    free: int  #: on the disk


STORE_FIELDS = {
    "videos": "number of videos",
    "damaged": "number of stored files with bytes that are known to be damaged: `vfsd fsck` names "
    "them",
    "without_sums": "number of originals that have no sums of their blocks yet: `vfsd scrub` makes "
    "them",
    "originals": "bytes of originals; what several videos have counts once",
    "tiles": "bytes of tiles that reads may use",
    "renditions": "bytes of renditions that reads may use",
    "joined": "bytes of pictures of cameras that are kept together",
    "retired": "bytes of what is kept for a step back",
    "pinned": "bytes of what is pinned",
    "free": "bytes that are free on the disk",
}


def store_stats(store: Store) -> StoreStats:
    usage = store.budget.usage()
    with store.catalog.reading() as seen:
        damaged = len(seen.integrity.damaged())
        without_sums = seen.integrity.without_sums()
        originals = seen.holdings.stored_bytes()
    return StoreStats(
        len(store),
        damaged,
        without_sums,
        originals,
        usage.tiles,
        usage.renditions,
        usage.joined,
        usage.retired,
        usage.pinned,
        shutil.disk_usage(store.path).free,
    )


def mount_stats(root: Path) -> MountStats | None:
    """How the mount of a store is doing; None where it is not mounted, or does not answer."""
    from vfsd.disk.mount_queries import own_attribute
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.mount.fs.inode_metadata import STATS
    from vfsd.mount.fs.mount_stats import MountStats

    directory = StoreDirectory.open(root)
    place = (directory.mounted_by() or {}).get("place")
    if not place:
        return None
    try:
        return MountStats.parse(own_attribute(str(place), STATS, directory.identity).decode())
    except (OSError, BusyError, ValueError):
        return None


def mount_record(standing: MountStats) -> dict[str, Any]:
    return {
        "pid": standing.pid,
        "seconds": standing.seconds,
        "cpu_seconds": standing.cpu_seconds,
        "memory": standing.memory,
        "threads": standing.threads,
        "descriptors": standing.descriptors,
        "operations": {
            name: {
                "count": tally.count,
                "failed": tally.failed,
                "seconds": tally.seconds,
                "bytes": tally.bytes,
                "p50": tally.within(0.5),
                "p99": tally.within(0.99),
            }
            for name, tally in standing.operations.items()
        },
        "rendering": None if standing.rendering is None else asdict(standing.rendering),
        "passthrough": standing.passthrough,
    }


_OPERATION_HEADINGS = ("operation", "count", "failed", "seconds", "p50", "p99", "bytes")


@define(
    "stats",
    examples=["vfsd -s videos stats", "vfsd -s videos stats --json"],
    fields={
        **STORE_FIELDS,
        "mount": "null without a mount, else pid, seconds since it began, cpu_seconds, memory "
        "(bytes), threads, descriptors, operations: by name count, failed, seconds, bytes, p50 and "
        "p99 (seconds, to a factor of two), rendering: null, or pid, cpu_seconds, memory and "
        "decoder_memory (bytes) of the process that makes views, and passthrough: null, or with "
        "that option the number of files that the kernel reads by itself just now",
    },
)
@click.pass_obj
def stats(session: Session) -> None:
    """Show what a store holds, and what its mount has done.

    Operations are those that the kernel asks for: what it answers from its own caches is not among
    them.  `failed` has all answers that were errors, "no such file" included.
    """
    root = session.root()
    with session.opened(root) as store:
        found = store_stats(store)
    standing = mount_stats(root)
    if session.json:
        mount = None if standing is None else mount_record(standing)
        print_json({**dataclasses.asdict(found), "mount": mount})
        return
    for line in fact_lines(_stats_facts(found, standing)):
        print_line(line)
    if standing is not None and standing.operations:
        print_line("")
        for line in column_lines([_OPERATION_HEADINGS, *_operation_rows(standing)], "<>>>>>>"):
            print_line(line)


def _stats_facts(found: StoreStats, standing: MountStats | None) -> Iterator[tuple[str, str]]:
    yield "videos", str(found.videos)
    if found.damaged:
        yield "damaged files", f"{found.damaged} (vfsd fsck names them)"
    if found.without_sums:
        yield "without sums", f"{found.without_sums} (vfsd scrub makes them)"
    for name in ("originals", "tiles", "renditions", "joined", "retired", "pinned", "free"):
        yield name, human_bytes(getattr(found, name))
    if standing is None:
        yield "mount", "none"
        return
    yield "mount", f"process {standing.pid}, for {standing.seconds:.0f} s"
    yield "CPU", f"{standing.cpu_seconds:.1f} s"
    yield "memory", human_bytes(standing.memory)
    yield "threads", str(standing.threads)
    yield "open files", str(standing.descriptors)
    if standing.passthrough is not None:
        yield "passthrough", f"{standing.passthrough} files are read by the kernel itself"
    made_by = standing.rendering
    if made_by is not None:
        yield "views", f"process {made_by.pid}"
        yield "their CPU", f"{made_by.cpu_seconds:.1f} s"
        decoders = human_bytes(made_by.decoder_memory)
        yield "their memory", f"{human_bytes(made_by.memory)}, of which decoders keep {decoders}"


def _operation_rows(standing: MountStats) -> Iterator[tuple[str, ...]]:
    busiest = sorted(standing.operations.items(), key=lambda item: -item[1].seconds)
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
    """A time in two or three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"


_TOP_HEADINGS = ("operation", "a second", "mean", "bytes a second")
_INTERVAL_SECONDS = 2.0


@define(
    "top",
    examples=["vfsd -s videos top", "vfsd -s videos top --every 10 --count 6 --json"],
    fields={
        "seconds": "of the stretch of time that this is about",
        "cpu": "cores that the mount has kept busy",
        "memory": "bytes that are resident",
        "threads": "number of threads",
        "descriptors": "open files of the process",
        "operations": "by name: count, seconds and bytes in that time",
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
    help="How long a stretch of time is.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="So many of them, then end.")
@click.pass_obj
def top(session: Session, interval: float, count: int | None) -> None:
    """Show what a mount does, again and again.

    Until Ctrl-C, or the end of the mount.
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
    """(count, seconds, bytes) of the operations that were asked for in between."""
    for name, tally in now.operations.items():
        was: OperationTotals | None = before.operations.get(name)
        count = tally.count - (was.count if was else 0)
        if count:
            busy = tally.seconds - (was.seconds if was else 0.0)
            yield name, (count, busy, tally.bytes - (was.bytes if was else 0))


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
def metrics(session: Session, listen: str | None) -> None:
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
        host, port = _parse_address(listen)
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"{listen} cannot be listened to: {error.strerror}") from error
        named = f"[{host}]" if ":" in host else host  # an address of IPv6, in a URL
        address = f"http://{named}:{server.server_port}/metrics"
        try:
            signal.signal(signal.SIGTERM, _stop)
            if session.json:
                print_json({"text": None, "address": address})
            else:
                session.remark(f"answering at {address}")
            thread.join()
        except _StoppedError:
            pass  # as it should
        finally:
            server.shutdown()
            server.server_close()


class _StoppedError(Exception):
    """Somebody has sent SIGTERM, which is how this ends."""


def _stop(*_: object) -> NoReturn:
    raise _StoppedError


class _Collector:
    """Asked whenever somebody wants the figures."""

    def __init__(self, root: Path, store: Store) -> None:
        self._root = root
        self._store = store

    def collect(self) -> Iterator[Any]:
        yield from _store_metrics(store_stats(self._store))
        standing = mount_stats(self._root)
        yield _gauge("vfsd_mounted", "Whether the store is mounted.", int(standing is not None))
        if standing is not None:
            yield from _mount_metrics(standing)


def _store_metrics(found: StoreStats) -> Iterator[Any]:
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


def _mount_metrics(standing: MountStats) -> Iterator[Any]:
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


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"the address must be HOST:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
