"""``vfsd labels ls``: what there is to find in a video, and who has looked where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.detections import Source

_MOST_RANGES = 6


@define(
    "labels ls",
    examples=[
        "vfsd -s videos labels ls cam1/traffic.mp4",
        "vfsd -s videos labels ls 'cam1/*' --json",
    ],
    fields={
        "name": "path from the root of the store",
        "labels": "list of objects, one for each label of each source: label, source, model, "
        "version, boxes, frames (that have one), tracks, first_frame, end_frame (exclusive)",
        "sources": "list of objects: name, model, version, parameters, examined (list of "
        "[first frame, end frame), what was looked at)",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """List the labels of videos, and frames examined.

    A NAME is a name or a pattern.  With several videos, each is headed by its name.

    A line gives a label, its source, the number of boxes, of frames that have one and of tracks,
    and the first and last such frame.  Sources are never added up: two sources that saw the same
    car have a line each.  A frame that a source has examined and that has no box of it is empty,
    as far as that source can tell.
    """
    root, paths = session.places(names)
    with session.opened(root) as store:
        found = named(store, paths)
        for path, video in found.items():
            record = _record(video)
            if session.json:
                print_json({"name": path, **record})
                continue
            if len(found) > 1:
                print_line(f"{shown(path)}:")
            _print(record)


def _print(record: Mapping[str, Any]) -> None:
    rows = [
        (
            shown(one["label"]),
            shown(_source_words(one["source"], one["model"], one["version"])),
            f"{one['boxes']} boxes",
            f"{one['frames']} frames",
            f"{one['tracks']} tracks",
            f"{one['first_frame']}-{one['end_frame'] - 1}",
        )
        for one in record["labels"]
    ]
    for line in columns(rows, "<<>>><"):
        print_line(line)
    for one in record["sources"]:
        words = _source_words(one["name"], one["model"], one["version"])
        print_line(f"{shown(words)}: {_ranges(one['examined'])}")


def _record(video: Video) -> dict[str, Any]:
    ranges: dict[Source, list[list[int]]] = {one: [] for one in video.sources()}
    for one in video.examined():
        ranges.setdefault(one.source, []).append([one.frames.start, one.frames.stop])
    return {
        "labels": [
            {
                "label": one.label,
                "source": source.name,
                "model": source.model,
                "version": source.version,
                "boxes": one.boxes,
                "frames": one.frames,
                "tracks": one.tracks,
                "first_frame": one.first_frame,
                "end_frame": one.end_frame,
            }
            for source in ranges
            for one in video.labels(source=source)
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


def _source_words(name: str, model: str, version: str) -> str:
    return " ".join(word for word in (name, model, version) if word)


def _ranges(examined: list[list[int]]) -> str:
    if not examined:
        return "it is not known which frames were examined"
    parts = [f"{start}-{stop - 1}" for start, stop in examined[:_MOST_RANGES]]
    more = len(examined) - len(parts)
    return f"examined {', '.join(parts)}{f' and {more} more ranges' if more else ''}"
