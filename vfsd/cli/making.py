"""Making tiles and renditions, and saying what came of it: for ``vfsd retile`` and ``render``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from vfsd.cli.output import facts, print_json, print_line, print_remark, shown
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NothingSavedError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.cli.retiling import Estimate, Order
    from vfsd.core.model import Segment
    from vfsd.derive.tile_spec import PlannedSegment
    from vfsd.tiling import TileLayout

PSNR = 40.0

_LARGE_TIMES = 1.5
_LARGE_BYTES = 1 << 20
"""A rendition that is larger than the original by both of these needs consent."""

MADE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "segments": "number of segments that were made",
        "kept": "number of segments that were there already",
        "frames": "number of frames in the segments that were made",
        "tiles": "number of tiles in them",
        "bytes": "their size",
        "original_bytes": "size of the same frames in the original, about",
        "psnr": "dB of the worst tile that was made, null where none was",
        "seconds": "that it took",
        "rate": "frames a second, null where none was tiled",
    }
)
"""What is printed of what was made."""

FORETOLD_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "segments": "number of segments that would be made",
        "kept": "number of segments that are there already",
        "frames": "number of frames in the segments to make",
        "tiles": "number of tiles in them",
        "bytes": "their size, estimated",
        "seconds": "that making them would take, estimated",
        "psnr": "dB of the worst tile of the segment that was tried",
        "sampled": "[first, end]: the frames of that segment; null where nothing is to make",
        "read": "object: what a read of the regions (or of an average tile) decodes: pixels, "
        "seconds (predicted), untiled_pixels, untiled_seconds, and gain (untiled_pixels / "
        "pixels); null where nothing is to make",
    }
)
"""What is printed of what would be made."""


# ------------------------------------------------------------------------------------- for real


def make(session: Session, store: Store, video: Video, order: Order, jobs: int | None) -> None:
    from vfsd.derive.retile import missing

    if not video.original.verified:
        label = f"checking the frames of {video.name}"
        shows = session.shows_progress
        with Progress(label, video.info.size, shown=shows, in_bytes=True) as progress:
            video.verify(on_progress=progress.reach)
    planned = order.plan(video)
    wanted = missing(store.parts, video.info, planned, order.settings)
    total = sum(len(plan.frames) for plan in wanted)
    began = time.monotonic()
    try:
        with Progress(f"tiling {video.name}", total, shown=session.shows_progress) as progress:
            made = video.retile(
                planned, settings=order.settings, jobs=jobs, on_progress=progress.reach
            )
    except KeyboardInterrupt:
        _say_what_is_there(session, store, video, order, planned)
        raise
    kept, seconds = len(planned) - len(wanted), time.monotonic() - began
    _report(session, store, video, order, made, kept, seconds)


def require_consent(
    session: Session, store: Store, videos: Sequence[Video], order: Order, jobs: int | None
) -> bool:
    """Compare the expected size with that of the original; whether to go on.

    A warning says by how much a rendition is larger.  Where it is much larger, a terminal is asked.
    Raises `NothingSavedError` for that without a terminal.
    """
    total = original = 0.0
    for video in videos:
        size, same_frames = _expected(session, store, video, order, jobs)
        total, original = total + size, original + same_frames
        if size > same_frames and not session.quiet:
            print_remark(f"warning: {shown(video.name)}: {_compared(size, same_frames)}")
    if total <= original * _LARGE_TIMES or total - original < _LARGE_BYTES:
        return True
    what = shown(videos[0].name) if len(videos) == 1 else f"{len(videos)} videos"
    if sys.stdin.isatty():
        return click.confirm(f"{what}: {_compared(total, original)}. Go on?", err=True)
    raise NothingSavedError(
        f"{what}: {_compared(total, original)}",
        hint="`--yes` or `--for decoding` makes it anyway; `--for web` or a lower `--psnr` takes "
        "less",
    )


def _expected(
    session: Session, store: Store, video: Video, order: Order, jobs: int | None
) -> tuple[float, float]:
    """(bytes of the rendition, bytes of the same frames in the original), from one segment."""
    from vfsd.cli.retiling import estimate

    with Progress(f"trying a segment of {video.name}", None, shown=session.shows_progress):
        found = estimate(store, video, order, jobs)
    return found.bytes, video.original.size * found.frames / len(video)


def _compared(size: float, original: float) -> str:
    return (
        f"the rendition will take about {human_bytes(round(size))}, {size / original:.1f} times "
        "the size of these frames in the original"
    )


def _say_what_is_there(
    session: Session,
    store: Store,
    video: Video,
    order: Order,
    planned: Sequence[PlannedSegment],
) -> None:
    from vfsd.derive.retile import missing

    left = len(missing(store.parts, video.info, planned, order.settings))
    session.remark(
        f"{len(planned) - left} of {len(planned)} segments of {shown(video.name)} are there; "
        "say it again to go on"
    )


def _report(
    session: Session,
    store: Store,
    video: Video,
    order: Order,
    made: Sequence[Segment],
    kept: int,
    seconds: float,
) -> None:
    from vfsd.storage.policy_service import usual_psnr

    frames = sum(len(segment.frames) for segment in made)
    tiles = sum(len(segment.cells) for segment in made)
    size = sum(segment.size for segment in made)
    original = video.original.size * frames / len(video)
    worst = min((segment.psnr for segment in made), default=None)
    if session.json:
        print_json(
            {
                "name": video.name,
                "segments": len(made),
                "kept": kept,
                "frames": frames,
                "tiles": tiles,
                "bytes": size,
                "original_bytes": round(original),
                "psnr": worst,
                "seconds": seconds,
                "rate": frames / seconds if frames and seconds else None,
            }
        )
        return
    if worst is None and not kept:
        print_line(f"{shown(video.name)}: {_nothing_to_make(order)}")
        return
    if worst is None:
        print_line(f"{shown(video.name)}: nothing to do, all {kept} segments are there")
        return
    print_line(
        f"{shown(video.name)}: {len(made)} segments of {tiles} tiles together, "
        f"{human_bytes(size)} ({size / original:.0%} of those frames in the original), "
        f"at least {worst:.1f} dB; {frames} frames in {seconds:.1f} s, "
        f"{frames / seconds:.0f} a second" + (f"; {kept} segments were there" if kept else "")
    )
    usual = usual_psnr(store.parts, video.info)
    if worst < usual:
        session.remark(
            f"reads use tiles from {usual:g} dB on, which not all of these have; `vfsd config "
            "minimum_psnr` changes that, or reads=DB in the policy of the video"
        )


def _nothing_to_make(order: Order) -> str:
    if order.file is not None:
        return f"nothing to make: {shown(str(order.file))} wants no tiles there"
    return (
        "nothing to make: either no box has these labels (see `vfsd labels ls`), or tiles around "
        "them would not pay"
    )


# -------------------------------------------------------------------------------------- dry run


def foretell(session: Session, store: Store, video: Video, order: Order, jobs: int | None) -> None:
    from vfsd.cli.retiling import estimate

    label = f"trying a segment of {video.name}"
    with Progress(label, None, shown=session.shows_progress):
        found = estimate(store, video, order, jobs)
    if session.json:
        print_json(_estimated(video, found))
        return
    for line in facts(_foretold(video, order, found)):
        print_line(line)


def _estimated(video: Video, found: Estimate) -> dict[str, object]:
    one = found.sample
    return {
        "name": video.name,
        "segments": len(found.missing),
        "kept": len(found.planned) - len(found.missing),
        "frames": found.frames,
        "tiles": found.tiles,
        "bytes": found.bytes,
        "seconds": found.seconds,
        "psnr": None if one is None else one.psnr,
        "sampled": None if one is None else [one.frames.start, one.frames.stop],
        "read": None
        if one is None
        else {
            "pixels": found.read.pixels,
            "seconds": found.read_seconds,
            "untiled_pixels": found.untiled.pixels,
            "untiled_seconds": found.untiled_seconds,
            "gain": found.untiled.pixels / max(1, found.read.pixels),
        },
    }


def _foretold(video: Video, order: Order, found: Estimate) -> list[tuple[str, str]]:
    from vfsd.core.orientation import layout_in_display

    kept = len(found.planned) - len(found.missing)
    segments = f"{len(found.missing)} to make, {kept} already there"
    lines = [
        ("name", shown(video.name)),
        ("segments", segments if found.planned else _nothing_to_make(order)),
    ]
    one = found.sample
    if one is None:
        return lines
    layout = layout_in_display(one.layout, video.original.media)
    what = "of an average tile" if not order.regions else "of the region"
    share = found.bytes / max(1, video.original.size)
    return [
        *lines,
        ("tiles", f"{found.tiles}; the segment tried has {_of(one.tiles, layout)}: {layout}"),
        ("size", f"about {human_bytes(found.bytes)}, {share:.0%} of the original"),
        ("time", f"about {found.seconds:.1f} s for {found.frames} frames"),
        ("quality", f"{one.psnr:.1f} dB in the worst tile, rate factors {_extent(one.qualities)}"),
        (
            f"a read {what}",
            f"decodes {found.untiled.pixels / max(1, found.read.pixels):.1f} times fewer pixels; "
            f"predicted {_milliseconds(found.read_seconds)} instead of "
            f"{_milliseconds(found.untiled_seconds)}",
        ),
        (
            "estimated",
            f"from one segment, frames {one.frames.start} to {one.frames.stop - 1}, which was "
            "encoded and not stored",
        ),
    ]


def _of(tiles: Sequence[int], layout: TileLayout) -> str:
    return f"{len(tiles)}" + (f" of {layout.count}" if len(tiles) < layout.count else "")


def _extent(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
