"""``vfsd budget log``: what went to make room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.budget.common import subjects
from vfsd.cli.command import define
from vfsd.cli.output import columns, iso_time, local_time, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.core.budgets import Eviction


@define(
    "budget log",
    examples=["vfsd -s videos budget log --limit 20", "vfsd -s videos budget log --json"],
    fields={
        "name": "path from the root of the store",
        "at": "when it went, ISO 8601, UTC",
        "why": "whose budget was full: video, partner (that of the video that it was joined with; "
        "its own may have had room) or store",
        "what": "tiles, rendition or joined",
        "size": "[width, height] of the displayed frame",
        "frames": "[first, end]",
        "layout": "of the stored picture",
        "codec": "of the tiles: fast, small, stitchable or lossless; h264, hevc or av1 where they "
        "were encoded for a view; joined-left or joined-right",
        "bytes": "of the segment",
        "retired": "whether it was only kept for a step back",
        "created": "when it was made, ISO 8601, UTC",
        "used": "when it was last read, ISO 8601, UTC; null: never",
        "uses": "reads that used it, those of long ago counting less",
        "saved": "CPU seconds that it saved these reads, counted likewise",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the newest N.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List what went to make room, the newest first.

    The newest 100000 are remembered.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        of_number = {video.id: video.name for video in store.catalog.find()}
        found = [one for _, budget in subjects(store, paths) for one in budget.evictions(limit)]
    newest = sorted(found, key=lambda one: -one.id)[:limit]
    rows = [("when", "full", "what", "frames", "bytes", "saved", "video")]
    for one in newest:
        name = of_number.get(one.video_id, "")
        if session.json:
            print_json(_record(name, one))
        else:
            rows.append(_cells(name, one))
    if session.json:
        return
    if not newest:
        session.remark("nothing had to go")
        return
    for line in columns(rows, "<<<<>><"):
        print_line(line)


def _record(name: str, one: Eviction) -> dict[str, Any]:
    return {
        "name": name,
        "at": iso_time(one.at_ns),
        "why": one.why,
        "what": _kind(one),
        "size": list(one.size),
        "frames": [one.frames.start, one.frames.stop],
        "layout": one.layout,
        "codec": one.profile,
        "bytes": one.bytes,
        "retired": one.is_retired,
        "created": iso_time(one.created_ns),
        "used": None if one.used_ns is None else iso_time(one.used_ns),
        "uses": one.uses,
        "saved": one.saved,
    }


def _cells(name: str, one: Eviction) -> tuple[str, str, str, str, str, str, str]:
    from vfsd.cli.explainview import duration
    from vfsd.tiling.cost import VIEW_PROFILES

    kind = _kind(one)
    what = kind if kind == "tiles" else f"{kind} {one.size[0]}x{one.size[1]}"
    if one.profile in VIEW_PROFILES:
        what += " of a view"
    return (
        local_time(one.at_ns),
        one.why,
        f"{what}, retired" if one.is_retired else what,
        f"{one.frames.start}-{one.frames.stop - 1}",
        human_bytes(one.bytes),
        duration(one.saved),
        shown(name),
    )


def _kind(one: Eviction) -> str:
    from vfsd.core.model import Role

    if one.role is Role.JOINED:
        return "joined"
    return "tiles" if one.role is Role.TILED else "rendition"
