"""``vfsd pin`` and ``vfsd unpin``: exempt tiles and renditions from eviction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, printable
from vfsd.cli.param_types import Span, size_value, span_value
from vfsd.cli.session import Session
from vfsd.cli.video_args import select_videos
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError

if TYPE_CHECKING:
    from vfsd.api.video import Video


def pin_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options that select the data of a video."""
    for option in (
        click.option(
            "--size", metavar="WxH", type=size_value, help="Only the rendition in that size."
        ),
        click.option("--tiles", is_flag=True, help="Only tiles."),
        click.option(
            "--span", metavar="A-B", type=span_value, help="Only frames in these seconds."
        ),
    ):
        function = option(function)
    return function


def _displayed_size(video: Video, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """A size of the displayed frame, with a side of 0 computed from the aspect ratio."""
    if size is None:
        return None
    from vfsd.cli.retile_plan import coded_size

    media = video.original.media
    width, height = coded_size(size, media)
    return (height, width) if media.rotation in (90, 270) else (width, height)


@define(
    "pin",
    examples=[
        "vfsd -s videos pin cam1/traffic.mp4",
        "vfsd -s videos pin cam1/traffic.mp4 --tiles --span 0-2",
        "vfsd -s videos pin cam1/traffic.mp4 --size 160x120",
    ],
    fields={
        "name": "path from the root of the store",
        "frames": "[first, end]",
        "what": "all, tiles, or the size of a rendition, WxH",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@pin_options
@click.pass_obj
def pin(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    tiles: bool,
    size: tuple[int, int] | None,
) -> None:
    """Keep tiles and renditions even over budget.

    A VIDEO is a name or a pattern. A pin covers present and future tiles and renditions that reads
    may use; retired tiles are excluded. Pinned bytes do not count for the budget. `vfsd layout
    drop` and `vfsd rendition drop` delete pinned data, too.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        videos = select_videos(store, paths)
        for video in videos.values():
            video.frames_in(span)  # check the span for all videos first
        for path, video in videos.items():
            picture = _displayed_size(video, size)
            pin = video.budget.pin(span=span, tiles=tiles, size=picture)
            what = "tiles" if tiles else "all"
            if picture is not None:
                what = f"{picture[0]}x{picture[1]}"
            if session.json:
                frames = [pin.frames.start, pin.frames.stop]
                print_json({"name": path, "frames": frames, "what": what})
            else:
                session.remark(
                    f"pinned: {what}, frames {pin.frames.start} to {pin.frames.stop - 1} of "
                    f"{printable(path)}"
                )


@define(
    "unpin",
    examples=[
        "vfsd -s videos unpin cam1/traffic.mp4",
        "vfsd -s videos unpin cam1/traffic.mp4 --span 0-1",
    ],
    fields={
        "name": "path from the root of the store",
        "evicted": "number of segments deleted, including those of joined videos",
        "bytes": "their size",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@pin_options
@click.pass_obj
def unpin(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    tiles: bool,
    size: tuple[int, int] | None,
) -> None:
    """Remove pins of `vfsd pin`.

    A VIDEO is a name or a pattern. The options select a pin; without options, all pins of a video
    are removed. With `--span`, the rest of a longer pin stays. The bytes count for the budget
    again, and tiles over budget are deleted. Joined data counts for both budgets.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        videos = select_videos(store, paths)
        for video in videos.values():
            video.frames_in(span)  # check the span for all videos first
        for path, video in videos.items():
            evicted = video.budget.unpin(span=span, tiles=tiles, size=_displayed_size(video, size))
            freed = sum(one.bytes for one in evicted)
            if session.json:
                print_json({"name": path, "evicted": len(evicted), "bytes": freed})
                continue
            text = f"{printable(path)} is unpinned"
            if evicted:
                text += f"; {len(evicted)} segments, {human_bytes(freed)}, were deleted"
            session.remark(text)
