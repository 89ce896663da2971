"""``vfsd compress``: recompress lossless tiles and renditions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, jobs_option
from vfsd.cli.output import print_json, print_line, printable
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.cli.video_args import select_video_list
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment

_LEVEL = 9


@define(
    "compress",
    examples=[
        "vfsd -s videos compress",
        "vfsd -s videos compress 'cam1/*.mp4' --level 19 --json",
        "vfsd -s videos compress --by-budget",
    ],
    fields={
        "name": "path from the root of the store",
        "level": "compression level now, at least; 0: unchanged",
        "segments": "number of compressed segments",
        "kept": "number of lossless segments that had this level already",
        "unread": "[first, end] of the frames of each segment whose tiles are damaged or "
        "unreadable; they are unchanged",
        "before": "size of the compressed segments before",
        "bytes": "their size now",
        "seconds": "duration",
    },
    exits=[
        NotFoundError,
        ReadOnlyError,
        IntegrityError,
        NoSpaceError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option(
    "--level",
    metavar="N",
    type=click.IntRange(1, 19),
    help=f"1 (fastest) to 19 (smallest); the default is {_LEVEL}.",
)
@click.option(
    "--by-budget",
    is_flag=True,
    help="Use the level that the budget requires, as mounts do: none below a quarter of the "
    "budget, then higher the fuller it is.",
)
@jobs_option
@click.pass_obj
def compress(
    session: Session,
    names: tuple[str, ...],
    level: int | None,
    by_budget: bool,
    jobs: int | None,
) -> None:
    """Compress lossless tiles and renditions.

    A VIDEO is a name or a pattern; the default is all videos. Pixels stay the same, and segments
    that have the level already are skipped. After Ctrl-C, the same command continues. Ends with 30
    if tiles are damaged or unreadable.
    """
    if by_budget and level is not None:
        raise UsageError("give either --level or --by-budget, not both")
    from vfsd.derive.deferred_compression import lossless_segments

    root, paths = session.places_or_root(names)
    with session.opened(root, writing=True) as store:
        videos = select_video_list(store, paths) if names else list(store.find())
        if not names:
            videos = [video for video in videos if lossless_segments(store.parts, video.info)]
            if not videos and not session.json:
                print_line("nothing to do, no video has lossless tiles or renditions")
        unread = 0
        for video in videos:
            asked = _budget_level(store, video) if by_budget else level or _LEVEL
            unread += _compress_video(session, store, video, asked, jobs)
    if unread:
        session.remark("`vfsd fsck --deep --repair` removes damaged tiles")
        click.get_current_context().exit(EXIT_FINDINGS)


def _budget_level(store: Store, video: Video) -> int:
    from vfsd.derive.deferred_compression import wanted_level

    return wanted_level(store.parts, video.info.id)


def _compress_video(
    session: Session, store: Store, video: Video, level: int, jobs: int | None
) -> int:
    """Compress the segments of a video. Returns the number of unreadable segments."""
    from vfsd.derive.deferred_compression import compressible, lossless_segments

    there = lossless_segments(store.parts, video.info)
    waiting = compressible(store.parts, video.info, level) if level else []
    size = {segment.id: segment.size for segment in waiting}
    total = sum(size.values())
    label = f"compressing {video.name}"
    unread: list[tuple[Segment, IntegrityError]] = []
    began = time.monotonic()
    try:
        with Progress(label, total, shown=session.shows_progress, in_bytes=True) as progress:
            made = (
                video.tiles.compress(
                    level,
                    jobs=jobs,
                    on_progress=progress.reach,
                    on_unread=lambda *one: unread.append(one),
                )
                if waiting
                else []
            )
    except KeyboardInterrupt:
        left = len(compressible(store.parts, video.info, level))
        session.remark(
            f"{len(there) - left} of {len(there)} segments of {printable(video.name)} are "
            "compressed; run the command again to continue"
        )
        raise
    before = sum(size.get(segment.id, segment.size) for segment in made)
    after = sum(segment.size for segment in made)
    kept = len(there) - len(waiting)
    seconds = time.monotonic() - began
    for segment, error in unread:
        session.remark(
            f"frames {segment.first_frame} to {segment.end_frame - 1} of {printable(video.name)} "
            f"are unchanged: {error}"
        )
    if session.json:
        print_json(
            {
                "name": video.name,
                "level": level,
                "segments": len(made),
                "kept": kept,
                "unread": [[one.first_frame, one.end_frame] for one, _ in unread],
                "before": before,
                "bytes": after,
                "seconds": seconds,
            }
        )
    elif not made and not unread:
        if there and not level:
            nothing = "less than a quarter of its budget is used"
        else:
            nothing = (
                f"all {kept} segments have this level already" if kept else "no lossless tiles"
            )
        print_line(f"{printable(video.name)}: nothing to do, {nothing}")
    else:
        print_line(
            f"{printable(video.name)}: {len(made)} segments, {human_bytes(before)} became "
            f"{human_bytes(after)} in {seconds:.1f} s"
            + (f"; {kept} segments had this level already" if kept else "")
        )
    return len(unread)
