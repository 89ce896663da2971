"""``vfsd retile``: store pixels in tiles as well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import facts, print_json, print_line, shown
from vfsd.cli.progress import Progress
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.values import Span, a_region, a_span
from vfsd.errors import (
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
    UsageError,
)
from vfsd.units import human_bytes

if TYPE_CHECKING:
    from vfsd.cli.retiling import Estimate, Order
    from vfsd.model import Segment
    from vfsd.planned import PlannedSegment
    from vfsd.store import Store
    from vfsd.tiling import Rect, TileLayout
    from vfsd.video import Video

PSNR = 40.0


@define(
    "retile",
    examples=[
        "vfsd -s videos retile cam1/traffic.mp4 --layout uniform:2x2",
        "vfsd -s videos retile cam1/traffic.mp4 --around car,truck",
        "vfsd -s videos retile cam1/traffic.mp4 --roi 80x60+100+90 --span 1:3 --codec small",
        "vfsd -s videos retile 'cam1/*.mp4' --layout 160+160x128+112 --psnr 42 --dry-run",
    ],
    fields={
        "name": "path from the root of the store",
        "segments": "number of segments that were made",
        "kept": "number of segments that were there already",
        "frames": "number of frames in the segments that were made",
        "tiles": "number of tiles in them",
        "bytes": "their size",
        "psnr": "dB of the worst tile that was made, null where none was",
        "seconds": "that it took",
        "rate": "frames a second, null where none was tiled",
    },
    variants={
        "--dry-run": {
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
    },
    exits=[
        NotFoundError,
        OutOfRangeError,
        ReadOnlyError,
        IntegrityError,
        NoSpaceError,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--layout",
    metavar="LAYOUT",
    help="uniform:RxC (rows x columns), or widths x heights of the displayed frame as in "
    "480+960+480x272+808.",
)
@click.option(
    "--roi",
    "regions",
    metavar="WxH+X+Y",
    type=a_region,
    multiple=True,
    help="One tile around this region of the displayed frame; several are one together.",
)
@click.option(
    "--around",
    metavar="LABELS",
    help="Around what was seen with these labels, where that pays: car,truck or an expression as "
    "of `vfsd labels query`.",
)
@click.option(
    "--coarse/--fine",
    default=None,
    help="With --around: one tile for all that was seen, or tiles that tell it apart (the rule).",
)
@click.option(
    "--padding",
    metavar="PIXELS",
    type=click.IntRange(0),
    help="With --around: kept around each box.",
)
@click.option(
    "--whole",
    is_flag=True,
    help="With --roi or --around: all tiles of the layout, not just those that hold what is "
    "wanted; what is not in tiles is read from the original.",
)
@click.option(
    "--layout-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='What `vfsd layout show --json` printed, or a list of {"frames": [first, end], '
    '"layout": LAYOUT, "tiles": [NUMBER, ...]}; without "tiles": all.',
)
@click.option("--span", metavar="A:B", type=a_span, help="Only what appears in these seconds.")
@click.option(
    "--codec",
    type=click.Choice(("fast", "small", "stitchable")),
    default="fast",
    help="fast (H.264) decodes fastest and is the default, small (AV1) takes least space, "
    "stitchable (HEVC, needs the extra stitch to make) is served without decoding.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=click.FloatRange(1, 100),
    help=f"What every tile has at least against the original; {PSNR:.0f} if nothing is said.",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all tiles instead; lower is better.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Segments at a time.")
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="How long a segment is, about; 1 if nothing is said.",
)
@click.option("--dry-run", is_flag=True, help="Only say what it would come to.")
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    layout: str | None,
    regions: tuple[Rect, ...],
    around: str | None,
    coarse: bool | None,
    padding: int | None,
    whole: bool,
    layout_file: Path | None,
    span: Span | None,
    codec: str,
    psnr: float | None,
    quality: int | None,
    jobs: int | None,
    seconds: float | None,
    dry_run: bool,
) -> None:
    """Store pixels in tiles, for cheap reads of regions.

    A VIDEO is a name or a pattern.  The original stays as it is, and reads take whichever is
    cheaper.  Segments of about a second are made and used one by one: what was interrupted with
    Ctrl-C goes on when it is said again.  A new layout takes the place of the one before
    (`vfsd layout rollback` takes that back).  `--dry-run` encodes one segment without storing it.
    """
    ways = (layout is not None, bool(regions), around is not None, layout_file is not None)
    if sum(ways) != 1:
        raise UsageError("give one of --layout, --roi, --around and --layout-file")
    if around is None and (coarse is not None or padding is not None):
        raise UsageError("--coarse, --fine and --padding go with --around")
    if whole and around is None and not regions:
        raise UsageError("--whole goes with --around and --roi")
    if psnr is not None and quality is not None:
        raise UsageError("give either --psnr or --quality, not both")
    if layout_file is not None and seconds is not None:
        raise UsageError("a --layout-file says how long segments are", hint="leave out --seconds")
    from vfsd.cli.retiling import Around, Order
    from vfsd.planned import TileSettings

    settings = TileSettings(codec, PSNR if psnr is None else psnr, quality)
    boxes = None if around is None else Around(around, bool(coarse), padding or 0)
    order = Order(layout, regions, boxes, layout_file, span, seconds or 1.0, whole, settings)
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        videos = videos_named(store, paths)
        for video in videos:
            order.plan(video)  # what cannot be done should not cost the others
        for video in videos:
            if dry_run:
                _foretell(session, store, video, order, jobs)
            else:
                _retile(session, store, video, order, jobs)


# ------------------------------------------------------------------------------------- for real


def _retile(session: Session, store: Store, video: Video, order: Order, jobs: int | None) -> None:
    from vfsd.retile import missing

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
    _report(session, store, video, made, len(planned) - len(wanted), time.monotonic() - began)


def _say_what_is_there(
    session: Session,
    store: Store,
    video: Video,
    order: Order,
    planned: Sequence[PlannedSegment],
) -> None:
    from vfsd.retile import missing

    left = len(missing(store.parts, video.info, planned, order.settings))
    session.remark(
        f"{len(planned) - left} of {len(planned)} segments of {shown(video.name)} are there; "
        "say it again to go on"
    )


def _report(
    session: Session,
    store: Store,
    video: Video,
    made: Sequence[Segment],
    kept: int,
    seconds: float,
) -> None:
    frames = sum(len(segment.frames) for segment in made)
    tiles = sum(len(segment.cells) for segment in made)
    size = sum(segment.size for segment in made)
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
                "psnr": worst,
                "seconds": seconds,
                "rate": frames / seconds if frames and seconds else None,
            }
        )
        return
    if worst is None and not kept:
        print_line(
            f"{shown(video.name)}: nothing to make: either there are no such boxes (see"
            " `vfsd labels ls`), or tiles around them would not pay"
        )
        return
    if worst is None:
        print_line(f"{shown(video.name)}: nothing to do, all {kept} segments are there")
        return
    print_line(
        f"{shown(video.name)}: {len(made)} segments of {tiles} tiles together, "
        f"{human_bytes(size)}, at least {worst:.1f} dB; {frames} frames in {seconds:.1f} s, "
        f"{frames / seconds:.0f} a second" + (f"; {kept} segments were there" if kept else "")
    )
    if worst < store.settings.minimum_psnr:
        session.remark(
            f"reads use tiles from {store.settings.minimum_psnr} dB on, which not all of these "
            "have; `vfsd config minimum_psnr` changes that"
        )


# -------------------------------------------------------------------------------------- dry run


def _foretell(session: Session, store: Store, video: Video, order: Order, jobs: int | None) -> None:
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
    from vfsd.codecs.pixels import layout_in_display

    kept = len(found.planned) - len(found.missing)
    lines = [
        ("name", shown(video.name)),
        ("segments", f"{len(found.missing)} to make, {kept} already there"),
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
