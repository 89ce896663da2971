"""``vfsd render`` and ``vfsd rendition``: whole frames in other sizes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import MAKING_EXITS, define, jobs_option, yes_option
from vfsd.cli.options import Number, Span, gop_option, size_value, span_value
from vfsd.cli.output import print_json, print_table, printable
from vfsd.cli.retile import (
    DEFAULT_PSNR,
    ESTIMATE_FIELDS,
    MADE_FIELDS,
    make_tiles,
    print_estimate,
    require_consent,
)
from vfsd.cli.session import Session, select_or_all, select_video_list, select_videos
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_on
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    NotFoundError,
    NothingSavedError,
    OutdatedError,
    OutOfRangeError,
    OverBudgetError,
    ReadOnlyError,
    UsageError,
)
from vfsd.records.tile_records import RENDITION_FIELDS, rendition_records

if TYPE_CHECKING:
    from pathlib import Path

    from vfsd.core.view_request import Size
    from vfsd.derive.rendition_plan import GopLength


# Codec of each `--for`.
_CODEC_FOR = {"decoding": "fast", "web": "web"}


@define(
    "render",
    examples=[
        "vfsd -s videos render cam1/traffic.mp4 --size 160x120",
        "vfsd -s videos render 'cam1/*.mp4' --size 160x0 --for web --dry-run",
        "vfsd -s videos render cam1/traffic.mp4 --browser",
    ],
    fields=MADE_FIELDS,
    variants={"--dry-run": ESTIMATE_FIELDS, **ORDER_VARIANTS},
    exits=[
        *MAKING_EXITS,
        NothingSavedError,
        OutOfRangeError,
        OverBudgetError,
        OutdatedError,
        *ORDER_EXITS,
    ],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--size",
    metavar="WxH",
    type=size_value,
    help="Size of the displayed frame, both even; 0 for width or height keeps the aspect ratio.",
)
@click.option(
    "--browser",
    is_flag=True,
    help="A rendition for web browsers, at most 1280 pixels wide: as --for web.",
)
@click.option("--span", metavar="A-B", type=span_value, help="Only frames in these seconds.")
@click.option(
    "--codec",
    type=click.Choice(("fast", "small", "web", "lossless")),
    help="fast (H.264, the default) decodes fastest; small (AV1) is smallest; web (H.264) is "
    "small and plays in browsers; lossless keeps every pixel of that size and is largest.",
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(tuple(_CODEC_FOR)),
    help="decoding: fast, which may be larger than the original; web: for browsers, with a GOP "
    "of two seconds, and views of that size copy its packets.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(1, 100),
    help="Minimum luma PSNR of every segment against the original in that size; the default is "
    f"{DEFAULT_PSNR:.0f}, and none for web.",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all segments instead; lower is better. The default for web is 26. "
    "For lossless: compression level, 0 (none) to 19; the default is 1.",
)
@gop_option
@jobs_option
@click.option(
    "-y", "--yes", is_flag=True, help="Also make a rendition that is larger than the original."
)
@engine_options
@click.option("--dry-run", is_flag=True, help="Only estimate size and time.")
def render(
    session: Session,
    names: tuple[str, ...],
    size: Size | None,
    browser: bool,
    span: Span | None,
    codec: str | None,
    purpose: str | None,
    psnr: float | None,
    quality: int | None,
    gop: GopLength,
    jobs: int | None,
    yes: bool,
    on: str | None,
    units: Path | None,
    dry_run: bool,
) -> None:
    """Store whole frames in a smaller size as well.

    A VIDEO is a name or a pattern. The original stays. Reads and views of this size, or of a half
    or a third of it, use the rendition where it is cheaper. So do reads of regions whose edges are
    whole pixels in it. Segments of about a second are made one by one, and reads use each of them
    at once. After Ctrl-C, the same command continues.

    The command first encodes one segment of each video to estimate the size. A rendition that is
    larger than the original gets a warning. If it is 1.5 times as large and at least 1 MiB larger,
    the command asks at a terminal, and else ends with exit code 8; --yes or --for decoding makes it
    without the estimate. --dry-run only prints the estimate.
    """
    if codec is not None and purpose is not None:
        raise UsageError("give either --codec or --for, not both")
    if psnr is not None and quality is not None:
        raise UsageError("give either --psnr or --quality, not both")
    if browser and (size, codec, purpose, psnr, quality, gop) != (None,) * 6:
        raise UsageError(
            "--browser has a size, a codec, a quality and a GOP length of its own",
            hint="--size WxH --for web takes options",
        )
    if not browser and size is None:
        raise UsageError("give --size, or --browser")
    from vfsd.cli.retile_plan import RetileOrder
    from vfsd.codecs.cells.cell_encoders import WEB_QUALITY
    from vfsd.derive.rendition_plan import BROWSER_WIDTH
    from vfsd.derive.tile_encoder import TileSettings

    codec = "web" if browser else codec or _CODEC_FOR.get(purpose or "", "fast")
    if codec == "web" and psnr is None and quality is None:
        quality = WEB_QUALITY
    settings = TileSettings(codec, DEFAULT_PSNR if psnr is None else psnr, quality)
    width = BROWSER_WIDTH if browser else None
    order = RetileOrder(None, (), None, None, span, 1.0, True, settings, size, gop, width)
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        videos = select_video_list(store, paths)
        for video in videos:
            order.plan(video)  # check all videos before the first is encoded
        is_agreed = yes or dry_run or purpose == "decoding"
        if not is_agreed and not require_consent(session, store, videos, order, jobs):
            return
        if on is not None or units is not None:
            spec = {"settings": settings, "size": size}
            run_on(
                *(session, store, "render", videos, spec),
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


@define(
    "rendition ls",
    examples=[
        "vfsd -s videos rendition ls",
        "vfsd -s videos rendition ls cam1/traffic.mp4",
    ],
    fields=RENDITION_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
def rendition_ls(session: Session, names: tuple[str, ...]) -> None:
    """List renditions: the frames of videos in other sizes.

    A VIDEO is a name or a pattern; the default is all videos.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        found = [
            record
            for video in select_or_all(store, paths)
            for record in rendition_records(store.catalog, video)
        ]
        if session.json:
            for record in found:
                print_json(record)
            return
        if not found:
            session.remark("no renditions yet; `vfsd render` makes them")
        rows = [_rendition_cells(record) for record in found]
        print_table(rows, "<><<>>><")


def _rendition_cells(record: Mapping[str, Any]) -> Sequence[str]:
    return (
        printable(record["name"]),
        f"{record['width']}x{record['height']}",
        ", ".join(record["codecs"]),
        "by " + ", ".join(record["origins"]),
        f"{record['frames'] / record['total_frames']:.0%} of frames",
        human_bytes(record["bytes"]),
        f"{record['psnr']:.1f} dB",
        f"GOP {gop_text(record['gop'])}",
    )


@define(
    "rendition drop",
    examples=[
        "vfsd -s videos rendition drop cam1/traffic.mp4 --size 160x120 -y",
        "vfsd -s videos rendition drop cam1/traffic.mp4 -y",
    ],
    fields={
        "name": "path from the root of the store",
        "segments": "number of deleted segments",
        "bytes": "their size",
    },
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--size",
    metavar="WxH",
    type=size_value,
    help="Only the rendition of this size; the default is all.",
)
@yes_option
def rendition_drop(session: Session, names: tuple[str, ...], size: Size | None, yes: bool) -> None:
    """Delete renditions of videos.

    A VIDEO is a name or a pattern.  The original stays, and reads decode it.  At a terminal the
    command asks first.
    """
    from vfsd.cli.retile_plan import coded_size
    from vfsd.core.view_request import size_text
    from vfsd.derive import derived_data

    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for path, video in select_videos(store, paths).items():
            picture = None if size is None else coded_size(size, video.original.media, "auto")
            what = "all renditions" if size is None else f"the rendition in {size_text(size)}"
            question = f"drop {what} of {printable(path)}?"
            if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
                found = []
            else:
                found = derived_data.drop_renditions(store.parts, video.info, picture)
            total = sum(segment.size for segment in found)
            session.report(
                {"name": path, "segments": len(found), "bytes": total},
                f"{printable(path)}: dropped {len(found)} segments, {human_bytes(total)}",
            )


def gop_text(lengths: Sequence[int]) -> str:
    """The shortest and the longest GOP, in frames."""
    shortest, longest = lengths
    return str(longest) if shortest == longest else f"{shortest} to {longest}"
