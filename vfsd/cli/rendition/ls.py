"""``vfsd rendition ls``: in which other sizes videos are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.origins import origin_of
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment


@define(
    "rendition ls",
    examples=[
        "vfsd -s videos rendition ls",
        "vfsd -s videos rendition ls cam1/traffic.mp4",
    ],
    fields={
        "name": "path from the root of the store",
        "width": "pixels of the displayed frame",
        "height": "pixels of the displayed frame",
        "codecs": "list of the names of codecs in it: fast, small, lossless; h264, hevc or av1 "
        "where it was encoded for a view",
        "origins": "list of where its segments come from: command (`vfsd render`, or frames that "
        "were written), tuner, view (encoded for somebody who read one)",
        "segments": "number of segments",
        "frames": "number of frames in them",
        "total_frames": "number of frames of the video",
        "bytes": "their size",
        "psnr": "dB of luma of the worst segment, against the original in that size",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """List the sizes in which videos are stored besides their own.

    A VIDEO is a name or a pattern; without one all are listed.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        found = [
            record
            for video in (videos_named(store, paths) if names else _all(store))
            for record in _records(store, video)
        ]
        if session.json:
            for record in found:
                print_json(record)
            return
        if not found:
            session.remark("no renditions yet; `vfsd render` makes them")
        rows = [_cells(record) for record in found]
        for line in columns(rows, "<><<>>>"):
            print_line(line)


def _all(store: Store) -> Iterator[Video]:
    return store.find()


def _records(store: Store, video: Video) -> Iterator[dict[str, Any]]:
    by_size: dict[tuple[int, int], list[Segment]] = {}
    for segment in store.catalog.renditions(video.info):
        by_size.setdefault(segment.picture, []).append(segment)
    decided = {one.segment_id for one in store.catalog.decisions(video.info)}
    is_turned = video.original.media.rotation in (90, 270)
    for size, segments in sorted(by_size.items(), reverse=True):
        width, height = size[::-1] if is_turned else size
        yield {
            "name": video.name,
            "width": width,
            "height": height,
            "codecs": sorted({segment.profile for segment in segments}),
            "origins": sorted({origin_of(segment, decided) for segment in segments}),
            "segments": len(segments),
            "frames": sum(len(segment.frames) for segment in segments),
            "total_frames": len(video),
            "bytes": sum(segment.size for segment in segments),
            "psnr": min(segment.psnr for segment in segments),
        }


def _cells(record: Mapping[str, Any]) -> Sequence[str]:
    return (
        shown(record["name"]),
        f"{record['width']}x{record['height']}",
        ", ".join(record["codecs"]),
        "by " + ", ".join(record["origins"]),
        f"{record['frames'] / record['total_frames']:.0%} of frames",
        human_bytes(record["bytes"]),
        f"{record['psnr']:.1f} dB",
    )
