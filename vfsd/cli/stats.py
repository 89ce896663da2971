"""``vfsd stats``: what a store holds, and what its mount has done."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.figures import STORED_FIELDS, Stored, standing_of, standing_record, stored
from vfsd.cli.output import columns, facts, print_json, print_line
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfsd.mount.fs.stats import Standing

_HEADINGS = ("operation", "count", "failed", "seconds", "p50", "p99", "bytes")


@define(
    "stats",
    examples=["vfsd -s videos stats", "vfsd -s videos stats --json"],
    fields={
        **STORED_FIELDS,
        "mount": "null without a mount, else pid, seconds since it began, cpu_seconds, memory "
        "(bytes), threads, descriptors, operations: by name count, failed, seconds, bytes, p50 and "
        "p99 (seconds, to a factor of two), rendering: null, or pid, cpu_seconds, memory and "
        "decoder_memory (bytes) of the process that makes views, and passthrough: null, or with "
        "that option the number of files that the kernel reads by itself just now",
    },
)
@click.pass_obj
def command(session: Session) -> None:
    """Show what a store holds, and what its mount has done.

    Operations are those that the kernel asks for: what it answers from its own caches is not among
    them.  `failed` has all answers that were errors, "no such file" included.
    """
    root = session.root()
    with session.opened(root) as store:
        found = stored(store)
    standing = standing_of(root)
    if session.json:
        mount = None if standing is None else standing_record(standing)
        print_json({**dataclasses.asdict(found), "mount": mount})
        return
    for line in facts(_facts(found, standing)):
        print_line(line)
    if standing is not None and standing.operations:
        print_line("")
        for line in columns([_HEADINGS, *_rows(standing)], "<>>>>>>"):
            print_line(line)


def _facts(found: Stored, standing: Standing | None) -> Iterator[tuple[str, str]]:
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


def _rows(standing: Standing) -> Iterator[tuple[str, ...]]:
    busiest = sorted(standing.operations.items(), key=lambda item: -item[1].seconds)
    for name, tally in busiest:
        yield (
            name,
            str(tally.count),
            str(tally.failed),
            f"{tally.seconds:.3f}",
            brief(tally.within(0.5)),
            brief(tally.within(0.99)),
            human_bytes(tally.bytes) if tally.bytes else "",
        )


def brief(seconds: float) -> str:
    """A time in two or three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"
