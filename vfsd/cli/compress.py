"""``vfsd compress``: take less room for what is stored losslessly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
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
        "level": "how hard they are compressed now, at least; 0: as they were",
        "segments": "number of segments that were compressed",
        "kept": "number of segments of lossless tiles that were compressed as hard already",
        "unread": "[first, end] of the frames of each segment whose tiles are damaged, or could "
        "not be read: they stay as they are",
        "before": "bytes that they took before",
        "bytes": "bytes that they take now",
        "seconds": "that it took",
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
    help=f"1 (fastest) to 19 (smallest); {_LEVEL} if nothing is said.",
)
@click.option(
    "--by-budget",
    is_flag=True,
    help="As hard as budgets ask for, which mounts do by themselves: not at all where less than a "
    "quarter of them is used, then the harder the fuller.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Segments at a time.")
@click.pass_obj
def compress(
    session: Session,
    names: tuple[str, ...],
    level: int | None,
    by_budget: bool,
    jobs: int | None,
) -> None:
    """Compress lossless tiles and renditions.

    A VIDEO is a name or a pattern; without one all are looked at.  What is compressed as hard
    already stays as it is.  Pixels stay the same, and each segment is replaced by itself: what was
    interrupted with Ctrl-C goes on when it is said again.  Ends with 30 where tiles are damaged or
    could not be read.
    """
    if by_budget and level is not None:
        raise UsageError("give either --level or --by-budget, not both")
    from vfsd.derive.recompress import lossless_segments

    root, paths = session.places(names) if names else (session.root(), [])
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
        session.remark("`vfsd fsck --deep --repair` forgets tiles that are damaged")
        click.get_current_context().exit(EXIT_FINDINGS)


def _budget_level(store: Store, video: Video) -> int:
    from vfsd.derive.compression_schedule import wanted_level

    return wanted_level(store.parts, video.info.id)


def _compress_video(
    session: Session, store: Store, video: Video, level: int, jobs: int | None
) -> int:
    """How many segments could not be read."""
    from vfsd.derive.recompress import compressible, lossless_segments

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
                video.compress(
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
            "compressed; say it again to go on"
        )
        raise
    before = sum(size.get(segment.id, segment.size) for segment in made)
    after = sum(segment.size for segment in made)
    kept = len(there) - len(waiting)
    seconds = time.monotonic() - began
    for segment, error in unread:
        session.remark(
            f"frames {segment.first_frame} to {segment.end_frame - 1} of {printable(video.name)} "
            f"stay as they are: {error}"
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
            nothing = f"all {kept} segments are compressed as hard" if kept else "no lossless tiles"
        print_line(f"{printable(video.name)}: nothing to do, {nothing}")
    else:
        print_line(
            f"{printable(video.name)}: {len(made)} segments, {human_bytes(before)} became "
            f"{human_bytes(after)} in {seconds:.1f} s"
            + (f"; {kept} segments were compressed as hard" if kept else "")
        )
    return len(unread)
