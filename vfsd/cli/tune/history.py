"""``vfsd tune history``: which tiles and renditions were made, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, local_time, print_json, print_line, shown
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.tune.records import DECISION_FIELDS, decision_record, what_for
from vfsd.core.timebase import clock, human_bytes
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Decision

_HEADINGS = (
    "id",
    "made",
    "by",
    "video",
    "seconds",
    "for",
    "reads",
    "thought",
    "took",
    "saves",
    "size",
    "state",
)
_ALIGNMENT = "><<<<<>>>>><"


@define(
    "tune history",
    examples=[
        "vfsd -s videos tune history",
        "vfsd -s videos tune history cam1/traffic.mp4 --limit 10 --json",
    ],
    fields=DECISION_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the newest N.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List what was made because of reads, the newest first.

    Told are what it was thought to take and what it took, in seconds, and what was thought to be
    saved on the reads seen by then.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        chosen = {video.info.id for video in videos_named(store, paths)} if names else None
        found = [
            one for one in store.catalog.decisions() if chosen is None or one.video_id in chosen
        ][:limit]
        videos = _videos(store, found)
        if session.json:
            for one in found:
                print_json(decision_record(videos[one.video_id], one))
            return
        if not found:
            session.remark("nothing was decided yet; `vfsd tune` says what could be")
            return
        rows = [_HEADINGS, *(_cells(videos[one.video_id], one) for one in found)]
        for line in columns(rows, _ALIGNMENT):
            print_line(line)


def _videos(store: Store, found: Sequence[Decision]) -> dict[int, Video]:
    with store.catalog.reading() as seen:
        return {
            number: store.open_video(seen.videos.get(number))
            for number in {one.video_id for one in found}
        }


def _cells(video: Video, one: Decision) -> tuple[str, ...]:
    from vfsd.cli.layout.records import span_of

    start, end = span_of(video, one.frames)
    return (
        str(one.id),
        local_time(one.at_ns),
        one.maker,
        shown(video.name),
        f"{clock(start)}-{clock(end)}",
        shown(what_for(video, [one.reasons])),
        str(one.reads),
        f"{one.predicted_seconds:.2f}",
        f"{one.seconds:.2f}",
        f"{one.predicted_saved:.2f}",
        human_bytes(one.bytes),
        one.state,
    )
