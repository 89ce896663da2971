"""``vfsd labels ls``: what there is to find in a video, and who has looked where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.detections import Source
    from vfsd.videos.video import Video

_MOST_RANGES = 6


@define(
    "labels ls",
    examples=[
        "vfsd -s videos labels ls cam1/traffic.mp4",
        "vfsd -s videos labels ls cam1/traffic.mp4 --json",
    ],
    fields={
        "name": "path from the root of the store",
        "labels": "list of objects: label, boxes, frames (that have one), tracks, first_frame, "
        "end_frame (exclusive)",
        "sources": "list of objects: name, model, version, parameters, examined (list of "
        "[first frame, end frame), what was looked at)",
    },
    exits=[NotFoundError],
)
@click.argument("name", metavar="VIDEO")
@click.pass_obj
def command(session: Session, name: str) -> None:
    """Sum up the labels of a VIDEO, and who has looked where.

    A line of a label gives its boxes, the frames that have one, its tracks, and the first and last
    such frame.  Where a source has examined a frame and there is no box, there was nothing.
    """
    place = session.place(name)
    with session.opened(place.root) as store:
        video = store[place.name]
        record = _record(video)
    if session.json:
        print_json({"name": place.name, **record})
        return
    rows = [
        (
            shown(one["label"]),
            f"{one['boxes']} boxes",
            f"{one['frames']} frames",
            f"{one['tracks']} tracks",
            f"{one['first_frame']}-{one['end_frame'] - 1}",
        )
        for one in record["labels"]
    ]
    for line in columns(rows, "<>>><"):
        print_line(line)
    for one in record["sources"]:
        words = " ".join(one[key] for key in ("name", "model", "version") if one[key])
        print_line(f"{shown(words)}: {_ranges(one['examined'])}")


def _record(video: Video) -> dict[str, Any]:
    ranges: dict[Source, list[list[int]]] = {one: [] for one in video.sources()}
    for one in video.examined():
        ranges.setdefault(one.source, []).append([one.frames.start, one.frames.stop])
    return {
        "labels": [
            {
                "label": one.label,
                "boxes": one.boxes,
                "frames": one.frames,
                "tracks": one.tracks,
                "first_frame": one.first_frame,
                "end_frame": one.end_frame,
            }
            for one in video.labels()
        ],
        "sources": [
            {
                "name": one.name,
                "model": one.model,
                "version": one.version,
                "parameters": dict(one.parameters),
                "examined": examined,
            }
            for one, examined in ranges.items()
        ],
    }


def _ranges(examined: list[list[int]]) -> str:
    if not examined:
        return "it is not known which frames were examined"
    parts = [f"{start}-{stop - 1}" for start, stop in examined[:_MOST_RANGES]]
    more = len(examined) - len(parts)
    return f"examined {', '.join(parts)}{f' and {more} more ranges' if more else ''}"
