"""``vfsd retile``: store pixels in tiles."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import MAKING_EXITS, define, jobs_option
from vfsd.cli.options import Number, Span, gop_option, region_value, span_value
from vfsd.cli.output import (
    Progress,
    duration_text,
    print_facts,
    print_json,
    print_line,
    print_remark,
    printable,
)
from vfsd.cli.session import Session, select_video_list
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_on
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    NothingSavedError,
    OutdatedError,
    OutOfRangeError,
    OverBudgetError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.cli.retile_plan import RetileEstimate, RetileOrder
    from vfsd.core.model import Segment
    from vfsd.derive.rendition_plan import GopLength
    from vfsd.derive.tile_encoder import PlannedSegment
    from vfsd.tiling import Rect, TileLayout


DEFAULT_PSNR = 40.0

_LARGE_TIMES = 1.5
# A rendition needs consent if it exceeds the original by both of these.
_LARGE_BYTES = 1 << 20

MADE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "segments": "number of new segments",
        "kept": "number of segments that existed already",
        "frames": "number of frames in the new segments",
        "tiles": "number of tiles in them",
        "bytes": "their size",
        "original_bytes": "approximate size of the same frames in the original",
        "psnr": "dB of the worst new tile, null without new tiles",
        "seconds": "duration",
        "rate": "frames per second, null without new tiles",
    }
)
"""Keys of a result."""

ESTIMATE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "segments": "number of segments to make",
        "kept": "number of segments that exist already",
        "frames": "number of frames in the segments to make",
        "tiles": "number of tiles in them",
        "bytes": "their estimated size",
        "seconds": "estimated duration",
        "psnr": "dB of the worst tile of the sample segment",
        "sampled": "[first, end]: the frames of the sample segment; null if nothing is to be made",
        "read": "object, null if nothing is to be made: work of a read of the regions, or of an "
        "average tile: pixels, seconds (predicted), untiled_pixels, untiled_seconds, and gain "
        "(untiled_pixels / pixels)",
    }
)
"""Keys of an estimate."""


@define(
    "retile",
    examples=[
        "vfsd -s videos retile cam1/traffic.mp4 --layout uniform:2x2",
        "vfsd -s videos retile cam1/traffic.mp4 --around car,truck",
        "vfsd -s videos retile cam1/traffic.mp4 --roi 80x60+100+90 --span 1-3 --codec small",
        "vfsd -s videos retile 'cam1/*.mp4' --layout 160+160x128+112 --psnr 42 --dry-run",
    ],
    fields=MADE_FIELDS,
    variants={"--dry-run": ESTIMATE_FIELDS, **ORDER_VARIANTS},
    exits=[*MAKING_EXITS, OutOfRangeError, OverBudgetError, OutdatedError, *ORDER_EXITS],
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
    type=region_value,
    multiple=True,
    help="One tile around this region of the displayed frame; several regions share one tile.",
)
@click.option(
    "--around",
    metavar="LABELS",
    help="Tiles around boxes with these labels, where tiles pay: car,truck or another expression "
    "of `vfsd labels query`.",
)
@click.option(
    "--coarse/--fine",
    default=None,
    help="With --around: one tile for all boxes, or separate tiles (the default).",
)
@click.option(
    "--padding",
    metavar="PIXELS",
    type=click.IntRange(0),
    help="With --around: margin around each box.",
)
@click.option(
    "--whole",
    is_flag=True,
    help="With --roi or --around: store all tiles of the layout, not only those with regions or "
    "boxes. The original serves areas without tiles.",
)
@click.option(
    "--layout-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='Output of `vfsd layout show --json`, or a list of {"frames": [first, end], "layout": '
    'LAYOUT, "tiles": [NUMBER, ...]}; without "tiles": all tiles.',
)
@click.option("--span", metavar="A-B", type=span_value, help="Only frames in these seconds.")
@click.option(
    "--codec",
    type=click.Choice(("fast", "small", "stitchable", "lossless")),
    default="fast",
    help="fast (H.264, the default) decodes fastest; small (AV1) is smallest; stitchable (HEVC, "
    "made with the extra `stitch`) is served without decoding; lossless keeps every pixel and is "
    "largest.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(1, 100),
    help="Minimum luma PSNR of every tile against the original; the default is "
    f"{DEFAULT_PSNR:.0f}.",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all tiles instead; lower is better. For lossless: compression "
    "level, 0 (none) to 19; the default is 1.",
)
@jobs_option
@click.option(
    "--seconds",
    metavar="S",
    type=Number(0, min_open=True),
    help="Approximate length of a segment; the default is 1.",
)
@gop_option
@engine_options
@click.option("--dry-run", is_flag=True, help="Only print an estimate.")
def retile(
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
    gop: GopLength,
    on: str | None,
    units: Path | None,
    dry_run: bool,
) -> None:
    """Store pixels in tiles, for cheap reads of regions.

    A VIDEO is a name or a pattern. The original stays, and reads use whichever is cheaper. Segments
    of about a second are made one by one, and reads use each of them at once. After Ctrl-C, the
    same command continues. A new layout replaces the one before; `vfsd layout rollback` reverts
    that, for all segments or for a span. `--dry-run` encodes one segment without storing it.
    """
    ways = (layout is not None, bool(regions), around is not None, layout_file is not None)
    if sum(ways) != 1:
        raise UsageError("give one of --layout, --roi, --around and --layout-file")
    if around is None and (coarse is not None or padding is not None):
        raise UsageError("--coarse, --fine and --padding need --around")
    if whole and around is None and not regions:
        raise UsageError("--whole needs --around or --roi")
    if psnr is not None and quality is not None:
        raise UsageError("give either --psnr or --quality, not both")
    if layout_file is not None and seconds is not None:
        raise UsageError("a --layout-file sets the length of segments", hint="leave out --seconds")
    from vfsd.cli.retile_plan import LayoutAround, RetileOrder
    from vfsd.derive.tile_encoder import TileSettings

    settings = TileSettings(codec, DEFAULT_PSNR if psnr is None else psnr, quality)
    boxes = None if around is None else LayoutAround(around, bool(coarse), padding or 0)
    order = RetileOrder(
        layout, regions, boxes, layout_file, span, seconds or 1.0, whole, settings, gop=gop
    )
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        videos = select_video_list(store, paths)
        for video in videos:
            order.plan(video)  # check all videos before the first is encoded
        if on is not None or units is not None:
            spec = {"settings": settings, "layout": layout, "around": around}
            run_on(
                *(session, store, "retile", videos, spec),
                on=on,
                units=units,
                plan=order.plan,
                dry_run=dry_run,
            )
            return
        for video in videos:
            if dry_run:
                print_estimate(session, store, video, order, jobs)
            else:
                make_tiles(session, store, video, order, jobs)


# --------------------------------------------------------------------------------------------- make


def make_tiles(
    session: Session, store: Store, video: Video, order: RetileOrder, jobs: int | None
) -> None:
    from vfsd.derive.retile import missing_segments

    # Tiles of wrong frames would have to be made again.
    if not video.original.verified:
        label = f"checking the frames of {video.name}"
        shows = session.shows_progress
        with Progress(label, video.info.size, shown=shows, in_bytes=True) as progress:
            video.verify(on_progress=progress.reach)
    planned = order.plan(video)
    wanted = missing_segments(store.parts, video.info, planned, order.settings)
    total = sum(len(plan.frames) for plan in wanted)
    began = time.monotonic()
    try:
        with Progress(f"tiling {video.name}", total, shown=session.shows_progress) as progress:
            made = video.tiles.retile(
                planned, settings=order.settings, jobs=jobs, on_progress=progress.reach
            )
    except KeyboardInterrupt:
        _report_progress(session, store, video, order, planned)
        raise
    # Another process may have made some of them in the meantime.
    kept, seconds = len(planned) - len(made), time.monotonic() - began
    _report_made(session, store, video, order, made, kept, seconds)


def require_consent(
    session: Session, store: Store, videos: Sequence[Video], order: RetileOrder, jobs: int | None
) -> bool:
    """Compare the expected size with that of the original. Returns whether to continue.

    A larger rendition gets a warning. If it is much larger, the user is asked at a terminal. Raises
    `NothingSavedError` for that without a terminal.
    """
    total = original = 0.0
    for video in videos:
        size, same_frames = _expected_sizes(session, store, video, order, jobs)
        total, original = total + size, original + same_frames
        if size > same_frames and not session.quiet:
            print_remark(f"warning: {printable(video.name)}: {_size_comparison(size, same_frames)}")
    if total <= original * _LARGE_TIMES or total - original < _LARGE_BYTES:
        return True
    what = printable(videos[0].name) if len(videos) == 1 else f"{len(videos)} videos"
    if sys.stdin.isatty():
        return click.confirm(f"{what}: {_size_comparison(total, original)}. Continue?", err=True)
    raise NothingSavedError(
        f"{what}: {_size_comparison(total, original)}",
        hint="`--yes` or `--for decoding` makes it anyway; `--for web` or a lower `--psnr` takes "
        "less space",
    )


def _expected_sizes(
    session: Session, store: Store, video: Video, order: RetileOrder, jobs: int | None
) -> tuple[float, float]:
    """(bytes of the rendition, bytes of the same frames in the original), estimated from one
    segment.
    """
    from vfsd.cli.retile_plan import estimate

    with Progress(f"encoding a sample of {video.name}", None, shown=session.shows_progress):
        found = estimate(store, video, order, jobs)
    return found.bytes, video.original.size * found.frames / len(video)


def _size_comparison(size: float, original: float) -> str:
    return (
        f"the rendition will take about {human_bytes(round(size))}, {size / original:.1f} times "
        "the size of these frames in the original"
    )


def _report_progress(
    session: Session,
    store: Store,
    video: Video,
    order: RetileOrder,
    planned: Sequence[PlannedSegment],
) -> None:
    from vfsd.derive.retile import missing_segments

    left = len(missing_segments(store.parts, video.info, planned, order.settings))
    session.remark(
        f"{len(planned) - left} of {len(planned)} segments of {printable(video.name)} are "
        "stored; run the command again to continue"
    )


def _report_made(
    session: Session,
    store: Store,
    video: Video,
    order: RetileOrder,
    made: Sequence[Segment],
    kept: int,
    seconds: float,
) -> None:
    from vfsd.storage.original_guard import default_psnr

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
        print_line(f"{printable(video.name)}: {_nothing_to_make_text(order)}")
        return
    if worst is None:
        print_line(f"{printable(video.name)}: nothing to do, all {kept} segments exist")
        return
    print_line(
        f"{printable(video.name)}: {len(made)} segments with {tiles} tiles, {human_bytes(size)} "
        f"({size / original:.0%} of those frames in the original), at least {worst:.1f} dB; "
        f"{frames} frames in {seconds:.1f} s, {frames / seconds:.0f} per second"
        + (f"; {kept} segments existed already" if kept else "")
    )
    usual = default_psnr(store.parts, video.info)
    if worst < usual:
        session.remark(
            f"reads use tiles with at least {usual:g} dB, and some of these have less; change "
            "`vfsd config minimum_psnr`, or reads=DB in the policy of the video"
        )


def _nothing_to_make_text(order: RetileOrder) -> str:
    if order.file is not None:
        return f"nothing to make: {printable(str(order.file))} has no tiles there"
    return (
        "nothing to make: either no box has these labels (see `vfsd labels ls`), or tiles around "
        "them would not pay"
    )


# ----------------------------------------------------------------------------------------- estimate


def print_estimate(
    session: Session, store: Store, video: Video, order: RetileOrder, jobs: int | None
) -> None:
    from vfsd.cli.retile_plan import estimate

    label = f"encoding a sample of {video.name}"
    with Progress(label, None, shown=session.shows_progress):
        found = estimate(store, video, order, jobs)
    if session.json:
        print_json(_estimate_record(video, found))
        return
    print_facts(_estimate_facts(video, order, found))


def _estimate_record(video: Video, found: RetileEstimate) -> dict[str, object]:
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


def _estimate_facts(
    video: Video, order: RetileOrder, found: RetileEstimate
) -> list[tuple[str, str]]:
    from vfsd.core.frames import to_display_layout

    kept = len(found.planned) - len(found.missing)
    segments = f"{len(found.missing)} to make, {kept} exist already"
    lines = [
        ("name", printable(video.name)),
        ("segments", segments if found.planned else _nothing_to_make_text(order)),
    ]
    one = found.sample
    if one is None:
        return lines
    layout = to_display_layout(one.layout, video.original.media)
    what = "of an average tile" if not order.regions else "of the region"
    share = found.bytes / max(1, video.original.size)
    return [
        *lines,
        (
            "tiles",
            f"{found.tiles}; the sample has {_tiles_of_layout_text(one.tiles, layout)}: {layout}",
        ),
        ("size", f"about {human_bytes(found.bytes)}, {share:.0%} of the original"),
        ("time", f"about {found.seconds:.1f} s for {found.frames} frames"),
        (
            "quality",
            f"{one.psnr:.1f} dB in the worst tile, rate factors {_range_text(one.qualities)}",
        ),
        (
            f"a read {what}",
            f"decodes {found.untiled.pixels / max(1, found.read.pixels):.1f} times fewer pixels; "
            f"predicted {duration_text(found.read_seconds)} instead of "
            f"{duration_text(found.untiled_seconds)}",
        ),
        (
            "estimated",
            f"from one segment, frames {one.frames.start} to {one.frames.stop - 1}, encoded and "
            "not stored",
        ),
    ]


def _tiles_of_layout_text(tiles: Sequence[int], layout: TileLayout) -> str:
    return f"{len(tiles)}" + (f" of {layout.count}" if len(tiles) < layout.count else "")


def _range_text(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
