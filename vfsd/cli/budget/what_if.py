"""``vfsd budget what-if``: what a budget would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.budget.common import (
    LIMIT_FIELDS,
    budget_argument,
    kind_text,
    limit_record,
    limit_text,
    subjects,
)
from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfsd.core.budgets import Limit, WhatIf


@define(
    "budget what-if",
    examples=[
        "vfsd -s videos budget what-if 1G",
        "vfsd -s videos budget what-if cam1/traffic.mp4 0.5x",
    ],
    fields={
        **LIMIT_FIELDS,
        "used": "bytes that would be charged",
        "segments": "number of segments that would go",
        "bytes": "their size",
        "uses": "reads that used them, those of long ago counting less",
        "saved": "CPU seconds that they saved these reads, counted likewise",
        "gone": "list of objects with name, what (tiles, rendition WxH, rendition WxH of a view, "
        "joined, retired), frames ([first, end]), bytes and saved (up to its last use), what goes "
        "first first",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@budget_argument
@click.pass_obj
def command(session: Session, names: tuple[str, ...], limit: Limit | None) -> None:
    """Tell what another budget would cost.

    Nothing is changed.  VIDEO and BUDGET are as for `vfsd budget set`.  The cost is what the
    segments that would go have saved the reads that used them: half of it fades with every 500
    reads of the store, so that it tells what as many reads as lately would take more.
    """
    if limit is None:
        raise UsageError("a budget is wanted: 20M, 10x or none")
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        of_number = {video.id: video.name for video in store.catalog.find()}
        for name, budget in subjects(store, paths):
            found = budget.what_if(limit)
            if session.json:
                print_json(_record(name, found, of_number))
            else:
                _print(session, name, found, of_number)


def _record(name: str | None, found: WhatIf, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        **limit_record(name, found.usage),
        "segments": len(found.gone),
        "bytes": sum(one.bytes for one in found.gone),
        "uses": found.uses,
        "saved": found.saved,
        "gone": [
            {
                "name": names.get(one.video_id),
                "what": kind_text(one),
                "frames": [one.frames.start, one.frames.stop],
                "bytes": one.bytes,
                "saved": one.saved,
            }
            for one in found.gone
        ],
    }


def _print(session: Session, name: str | None, found: WhatIf, names: Mapping[int, str]) -> None:
    from vfsd.cli.explainview import duration

    whose = f"{'the store' if name is None else shown(name)} with {limit_text(found.usage.limit)}"
    if not found.gone:
        session.remark(f"{whose}: nothing would go")
        return
    sums: dict[tuple[str, str], list[int]] = {}
    for one in found.gone:
        entry = sums.setdefault((names.get(one.video_id, ""), kind_text(one)), [0, 0])
        entry[0] += 1
        entry[1] += one.bytes
    size = sum(one.bytes for one in found.gone)
    print_line(
        f"{whose}: {len(found.gone)} segments, {human_bytes(size)}, would go; they have saved "
        f"{duration(found.saved)} in {found.uses:.1f} uses lately"
    )
    rows = [
        (shown(video), kind, str(count), human_bytes(part))
        for (video, kind), (count, part) in sorted(sums.items())
    ]
    for line in columns([("video", "what", "segments", "size"), *rows], "<<>>"):
        print_line(line)
