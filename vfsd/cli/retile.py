"""``vfsd retile``: store pixels in tiles as well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.making import FORETOLD_FIELDS, MADE_FIELDS, PSNR, foretell, make
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.values import Number, Span, a_region, a_span
from vfsd.errors import (
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutdatedError,
    OutOfRangeError,
    OverBudgetError,
    ReadOnlyError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.tiling import Rect


@define(
    "retile",
    examples=[
        "vfsd -s videos retile cam1/traffic.mp4 --layout uniform:2x2",
        "vfsd -s videos retile cam1/traffic.mp4 --around car,truck",
        "vfsd -s videos retile cam1/traffic.mp4 --roi 80x60+100+90 --span 1-3 --codec small",
        "vfsd -s videos retile 'cam1/*.mp4' --layout 160+160x128+112 --psnr 42 --dry-run",
    ],
    fields=MADE_FIELDS,
    variants={"--dry-run": FORETOLD_FIELDS},
    exits=[
        NotFoundError,
        OutOfRangeError,
        ReadOnlyError,
        IntegrityError,
        NoSpaceError,
        OverBudgetError,
        OutdatedError,
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
    help="Around what was seen with these labels, where that pays: car,truck or another expression "
    "as of `vfsd labels query`.",
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
@click.option("--span", metavar="A-B", type=a_span, help="Only what appears in these seconds.")
@click.option(
    "--codec",
    type=click.Choice(("fast", "small", "stitchable", "lossless")),
    default="fast",
    help="fast (H.264) decodes fastest and is the default, small (AV1) takes least space, "
    "stitchable (HEVC, needs the extra stitch to make) is served without decoding, lossless keeps "
    "every pixel as it is and takes most space.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(1, 100),
    help="What luma of every tile has at least against the original; "
    f"{PSNR:.0f} if nothing is said.",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all tiles instead; lower is better. Of lossless: how hard to "
    "compress, 0 (not at all) to 19; 1 if nothing is said.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Segments at a time.")
@click.option(
    "--seconds",
    metavar="S",
    type=Number(0, min_open=True),
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
    (`vfsd layout rollback` takes that back, of all segments or those of a span).  `--dry-run`
    encodes one segment without storing it.
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
    from vfsd.derive.tile_spec import TileSettings

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
                foretell(session, store, video, order, jobs)
            else:
                make(session, store, video, order, jobs)
