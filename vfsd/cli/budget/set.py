"""``vfsd budget set``: how much derived data may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.budget.common import (
    LIMIT_FIELDS,
    budget_argument,
    limit_record,
    limit_text,
    subjects,
)
from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, ReadOnlyError

if TYPE_CHECKING:
    from vfsd.core.budgets import Limit


@define(
    "budget set",
    examples=[
        "vfsd -s videos budget set 20G",
        "vfsd -s videos budget set cam1/traffic.mp4 5x",
        "vfsd -s videos budget set 'cam1/*' default",
    ],
    fields={
        **LIMIT_FIELDS,
        "evicted": "number of segments that had to go",
        "bytes": "their size",
    },
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@budget_argument
@click.pass_obj
def command(session: Session, names: tuple[str, ...], limit: Limit | None) -> None:
    """Set how much tiles and renditions may take.

    A VIDEO is a name or a pattern; without one all videos together are meant.  The BUDGET is a
    number of bytes (500000, 20M, 2G), a multiple of the original's bytes (5x), none: no limit,
    or default: 10x for a video and no limit for the store.  What is above it goes at once: first
    what is kept for a step back, then what saves least for its bytes.  What is pinned is neither
    counted nor taken away.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root, writing=True) as store:
        for name, budget in subjects(store, paths):
            gone = budget.set(limit)
            usage, freed = budget.usage(), sum(one.bytes for one in gone)
            if session.json:
                record = limit_record(name, usage)
                print_json({**record, "evicted": len(gone), "bytes": freed})
                continue
            text = f"{'the store' if name is None else shown(name)}: {limit_text(usage.limit)}"
            if gone:
                text += f"; {len(gone)} segments, {human_bytes(freed)}, had to go"
            session.remark(text)
