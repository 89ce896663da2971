"""``vfsd layout history``: the tiles that a video has or had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.layout.records import (
    ALIGNMENT,
    HEADINGS,
    SEGMENT_FIELDS,
    run_cells,
    runs,
    segment_record,
)
from vfsd.cli.output import columns, iso_time, local_time, print_json, print_line, shown
from vfsd.cli.selecting import for_each, named
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfsd.api.video import Video
    from vfsd.core.model import Segment


@define(
    "layout history",
    examples=["vfsd -s videos layout history cam1/traffic.mp4 --json"],
    fields={
        "name": "path from the root of the store",
        **SEGMENT_FIELDS,
        "retired": "when another layout took its place, ISO 8601, UTC; null: reads may use it",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """List the present and past tiles of videos.

    A VIDEO is a name or a pattern; of several, each has its name above its lines.

    Retired tiles are kept for `vfsd layout rollback`, until the layout changes again or until
    `vfsd layout drop --retired`.
    """
    from vfsd.derive import layout_history

    root, paths = session.places(names)

    def show(path: str, video: Video) -> None:
        found = layout_history.history(store.parts, video.info)
        if session.json:
            for segment in found:
                retired = segment.retired_ns
                print_json(
                    {
                        "name": video.name,
                        **segment_record(video, segment),
                        "retired": None if retired is None else iso_time(retired),
                    }
                )
            return
        if not found:
            session.remark(f"{shown(path)} has never had tiles")
            return
        rows: list[tuple[str, ...]] = [("made", "state", *HEADINGS)]
        for run in _steps(found):
            state = "in use" if run[0].retired_ns is None else "retired"
            made = local_time(run[0].created_ns)
            rows.append((made, state, *run_cells(video, run)))
        for line in columns(rows, "<<" + ALIGNMENT):
            print_line(line)

    with session.opened(root) as store:
        for_each(session, named(store, paths), show)


def _steps(found: Sequence[Segment]) -> list[list[Segment]]:
    """Segments of the same run of `retile` that follow each other, by when that was."""
    steps: dict[tuple[int, bool], list[Segment]] = {}
    for segment in sorted(found, key=lambda one: (one.physical_id, one.first_frame)):
        steps.setdefault((segment.physical_id, segment.retired_ns is None), []).append(segment)
    in_a_row = [run for together in steps.values() for run in runs(together)]
    return sorted(in_a_row, key=lambda run: (run[0].physical_id, run[0].first_frame))
