"""``vfsd layout diff``, ``rollback`` and ``drop``, and ``vfsd compress``: compare, restore, delete
and recompress tiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import MAKING_EXITS, define, jobs_option, yes_option
from vfsd.cli.layout import retired_and_active, segments_touching, span_option
from vfsd.cli.options import Span
from vfsd.cli.output import Progress, print_json, print_line, print_table, printable
from vfsd.cli.session import Session, for_each, select_or_all, select_videos
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_on
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    IntegrityError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    UsageError,
)
from vfsd.records.tile_records import displayed_layout_of, span_of

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment


@define(
    "layout diff",
    examples=["vfsd -s videos layout diff cam1/traffic.mp4"],
    fields={
        "name": "path from the root of the store",
        "frames": "[first, end) of the frames",
        "span": "[from, to] in seconds",
        "before": "object before the last change: layout, codec, tiles (number of stored ones), "
        "size and psnr; null without tiles",
        "now": "object: the same for the present tiles; null without tiles",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
def layout_diff(session: Session, names: tuple[str, ...]) -> None:
    """Compare the present tiles of videos with the earlier ones.

    A VIDEO is a name or a pattern. The list shows what `vfsd layout rollback` would change, with
    the earlier state on the left.
    """

    root, paths = session.places(names)

    def show(path: str, video: Video) -> None:
        found = differences(video, *retired_and_active(store, video))
        if session.json:
            for change in found:
                print_json(change.record(video))
            return
        rows = [change.cells(video) for change in found]
        if not rows:
            session.remark(f"{printable(path)} has no tiles")
        print_table(rows, "<<><<>>")

    with session.opened(root) as store:
        for_each(session, select_videos(store, paths), show)


@dataclass(frozen=True, slots=True)
class Difference:
    """Frames whose tiles changed. Either side may be empty."""

    frames: range
    before: tuple[Segment, ...]
    now: tuple[Segment, ...]

    def record(self, video: Video) -> dict[str, Any]:
        return {
            "name": video.name,
            "frames": [self.frames.start, self.frames.stop],
            "span": [float(at) for at in span_of(video, self.frames)],
            "before": _side_record(video, self.before),
            "now": _side_record(video, self.now),
        }

    def cells(self, video: Video) -> tuple[str, ...]:
        """Seconds, layout and size of both sides, and the present quality."""
        start, end = span_of(video, self.frames)
        before, now = _side_record(video, self.before), _side_record(video, self.now)
        return (
            f"{clock_text(start)}-{clock_text(end)}",
            "untiled" if before is None else _side_text(before),
            "" if before is None else human_bytes(before["size"]),
            "->",
            "untiled" if now is None else _side_text(now),
            "" if now is None else human_bytes(now["size"]),
            "" if now is None else f"{now['psnr']:.1f} dB",
        )


def differences(
    video: Video, before: Sequence[Segment], now: Sequence[Segment]
) -> list[Difference]:
    """Changes by time, with equal neighbours merged.

    `before` has the retired segments, `now` the active ones.
    """
    edges = sorted({edge for one in (*before, *now) for edge in (one.first_frame, one.end_frame)})
    found = [
        Difference(range(start, end), _segments_at(before, start), _segments_at(now, start))
        for start, end in pairwise(edges)
    ]
    merged = []
    for _, group in groupby(
        (one for one in found if one.before or one.now),
        lambda one: (_layout_names(video, one.before), _layout_names(video, one.now)),
    ):
        merged += _merge_adjacent(list(group))
    return merged


def _merge_adjacent(changes: list[Difference]) -> list[Difference]:
    """Merge adjacent changes."""
    joined: list[Difference] = []
    for change in changes:
        if joined and joined[-1].frames.stop == change.frames.start:
            last = joined[-1]
            joined[-1] = Difference(
                range(last.frames.start, change.frames.stop),
                tuple(dict.fromkeys((*last.before, *change.before))),
                tuple(dict.fromkeys((*last.now, *change.now))),
            )
        else:
            joined.append(change)
    return joined


def _segments_at(segments: Sequence[Segment], frame: int) -> tuple[Segment, ...]:
    return tuple(one for one in segments if frame in one.frames)


def _layout_names(video: Video, segments: Sequence[Segment]) -> tuple[str, ...]:
    return tuple(f"{displayed_layout_of(video, one)} {one.tiles} {one.profile}" for one in segments)


def _side_text(side: dict[str, Any]) -> str:
    return f"{side['layout']} ({side['tiles']} tiles)"


def _side_record(video: Video, segments: Sequence[Segment]) -> dict[str, Any] | None:
    if not segments:
        return None
    return {
        "layout": ", ".join(dict.fromkeys(displayed_layout_of(video, one) for one in segments)),
        "codec": ", ".join(dict.fromkeys(one.profile for one in segments)),
        "tiles": sum(len(one.cells) for one in segments),
        "size": sum(one.size for one in segments),
        "psnr": min(one.psnr for one in segments),
    }


@define(
    "layout rollback",
    examples=["vfsd -s videos layout rollback cam1/traffic.mp4 --span 0-1"],
    fields={
        "name": "path from the root of the store",
        "retired": "number of retired segments",
        "restored": "number of segments that reads use again",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@span_option
def layout_rollback(session: Session, names: tuple[str, ...], span: Span | None) -> None:
    """Go back to the layouts before the present ones.

    A VIDEO is a name or a pattern. The command works segment by segment: on all segments of a
    video, or on those that --span overlaps. A second call undoes the first. Segments without an
    earlier layout are read from the original.
    """
    from vfsd.derive import derived_data

    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        # Check the span for all videos before the first change.
        chosen = [(video, video.frames_in(span)) for video in select_videos(store, paths).values()]
        for video, frames in chosen:
            retired, restored = derived_data.rollback_layouts(store.parts, video.info, frames)
            session.report(
                {"name": video.name, "retired": retired, "restored": restored},
                f"{printable(video.name)}: {restored} segments are in use again, "
                f"{retired} are retired",
            )


@define(
    "layout drop",
    examples=[
        "vfsd -s videos layout drop cam1/traffic.mp4 --retired",
        "vfsd -s videos layout drop cam1/traffic.mp4 --span 0-1 -y",
    ],
    fields={
        "name": "path from the root of the store",
        "segments": "number of deleted segments",
        "bytes": "their size",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@span_option
@click.option("--retired", is_flag=True, help="Only the tiles kept for a rollback.")
@yes_option
def layout_drop(
    session: Session, names: tuple[str, ...], span: Span | None, retired: bool, yes: bool
) -> None:
    """Delete tiles.

    A VIDEO is a name or a pattern.  The original stays, and reads decode it.  At a terminal the
    command asks first.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        # Check the span for all videos before the first deletion.
        chosen = [(video, video.frames_in(span)) for video in select_videos(store, paths).values()]
        for video, frames in chosen:
            found = _drop_segments(store, video, frames, retired, yes)
            size = sum(segment.size for segment in found)
            session.report(
                {"name": video.name, "segments": len(found), "bytes": size},
                f"{printable(video.name)}: dropped {len(found)} segments, {human_bytes(size)}",
            )


def _drop_segments(
    store: Store, video: Video, frames: range, retired: bool, yes: bool
) -> Sequence[Segment]:
    """Delete segments, and return them."""
    from vfsd.derive import derived_data

    old, active = retired_and_active(store, video)
    count = len(segments_touching(old if retired else old + active, frames))
    if count and not yes and sys.stdin.isatty():
        kind = "retired segments" if retired else "segments of tiles"
        if not click.confirm(f"drop {count} {kind} of {printable(video.name)}?", err=True):
            return []
    if not count:
        return []
    drop = derived_data.drop_retired_tiles if retired else derived_data.drop_tiles
    return drop(store.parts, video.info, frames)


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
    variants=ORDER_VARIANTS,
    exits=[*MAKING_EXITS, *ORDER_EXITS],
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
@engine_options
def compress(
    session: Session,
    names: tuple[str, ...],
    level: int | None,
    by_budget: bool,
    jobs: int | None,
    on: str | None,
    units: Path | None,
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
        videos = select_or_all(store, paths)
        if not names:
            videos = [video for video in videos if lossless_segments(store.parts, video.info)]
            if not videos and not session.json:
                print_line("nothing to do, no video has lossless tiles or renditions")
        if on is not None or units is not None:
            spec = {"by_budget": True} if by_budget else {"level": level or _LEVEL}
            run_on(session, store, "compress", videos, spec, on=on, units=units)
            return
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
