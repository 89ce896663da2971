"""``vfsd top``: what a mount does at the moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.figures import standing_of
from vfsd.cli.output import columns, print_json, print_line
from vfsd.cli.session import Session
from vfsd.cli.stats import brief
from vfsd.cli.values import Number
from vfsd.core.timebase import human_bytes
from vfsd.errors import EXIT_INTERRUPTED, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vfsd.mount.fs.op_stats import Tally
    from vfsd.mount.fs.stats import Standing

_HEADINGS = ("operation", "a second", "mean", "bytes a second")
_SECONDS = 2.0


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
    default=_SECONDS,
    show_default=True,
    help="How long a stretch of time is.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="So many of them, then end.")
@click.pass_obj
def command(session: Session, interval: float, count: int | None) -> None:
    """Show what a mount does, again and again.

    Until Ctrl-C, or the end of the mount.
    """
    root = session.root()
    before = _required(root)
    done = 0
    while count is None or done < count:
        time.sleep(interval)
        now = standing_of(root)
        if now is None or now.pid != before.pid:
            session.remark("the mount has ended")
            return
        _print(session, before, now)
        before = now
        done += 1


def _required(root: Path) -> Standing:
    found = standing_of(root)
    if found is None:
        raise NotFoundError(f"{root} is not mounted", hint="mount it with `vfsd mount`")
    return found


def _print(session: Session, before: Standing, now: Standing) -> None:
    seconds = now.seconds - before.seconds
    cpu = (now.cpu_seconds - before.cpu_seconds) / seconds
    moved = dict(_moved(before, now))
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
            brief(busy / count),
            human_bytes(round(size / seconds)) if size else "",
        )
        for name, (count, busy, size) in sorted(moved.items(), key=lambda item: -item[1][1])
    ]
    for line in columns([_HEADINGS, *rows], "<>>>") if rows else ():
        print_line(f"  {line}")


def _moved(before: Standing, now: Standing) -> Iterator[tuple[str, tuple[int, float, int]]]:
    """(count, seconds, bytes) of the operations that were asked for in between."""
    for name, tally in now.operations.items():
        was: Tally | None = before.operations.get(name)
        count = tally.count - (was.count if was else 0)
        if count:
            busy = tally.seconds - (was.seconds if was else 0.0)
            yield name, (count, busy, tally.bytes - (was.bytes if was else 0))
