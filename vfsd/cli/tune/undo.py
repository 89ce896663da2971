"""``vfsd tune undo``: take a decision back."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.core.timebase import clock
from vfsd.errors import ExistsError, NotFoundError, OutdatedError, ReadOnlyError, UsageError


@define(
    "tune undo",
    examples=["vfsd -s videos tune undo --last"],
    fields={
        "id": "number of the decision",
        "name": "path from the root of the store",
        "frames": "[first, end]: the frames that it is about, the end not included",
        "span": "[from, to] in seconds",
        "restored": "number of segments that reads use again",
    },
    exits=[NotFoundError, ExistsError, ReadOnlyError, OutdatedError],
)
@click.argument("number", metavar="[ID]", type=int, required=False)
@click.option("--last", is_flag=True, help="The last decision that is in use.")
@click.pass_obj
def command(session: Session, number: int | None, last: bool) -> None:
    """Take a decision back: reads use what was there before.

    The reads that were seen until now do not speak for the same again; later ones may.  Saying
    `vfsd layout rollback` takes the taking back back.
    """
    from vfsd.cli.layout.records import span_of
    from vfsd.derive.tuner import undo

    if (number is None) != last:
        raise UsageError(
            "give either the number of a decision or --last", hint="see `vfsd tune history`"
        )
    with session.opened(session.root(), writing=True) as store:
        decision, restored = undo(store.parts, number)
        with store.catalog.reading() as seen:
            video = store.open_video(seen.videos.get(decision.video_id))
        start, end = span_of(video, decision.frames)
    if session.json:
        print_json(
            {
                "id": decision.id,
                "name": video.name,
                "frames": [decision.first_frame, decision.end_frame],
                "span": [float(start), float(end)],
                "restored": len(restored),
            }
        )
        return
    before = f"{len(restored)} segments are in use again" if restored else "the original is read"
    session.remark(
        f"decision {decision.id} is taken back: in {shown(video.name)}, {clock(start)} to "
        f"{clock(end)}, {before}"
    )
