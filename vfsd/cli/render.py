"""``vfsd render``: store whole frames in another size as well."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.making import FORETOLD_FIELDS, MADE_FIELDS, PSNR, foretell, make, warn_of_size
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.values import Number, Span, a_size, a_span
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


@define(
    "render",
    examples=[
        "vfsd -s videos render cam1/traffic.mp4 --size 160x120",
        "vfsd -s videos render 'cam1/*.mp4' --size 160x0 --codec small --dry-run",
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
    "--size",
    metavar="WxH",
    type=a_size,
    required=True,
    help="Of the displayed frame; both even, or one 0: as the other has it.",
)
@click.option("--span", metavar="A-B", type=a_span, help="Only what appears in these seconds.")
@click.option(
    "--codec",
    type=click.Choice(("fast", "small", "lossless")),
    default="fast",
    help="fast (H.264) decodes fastest and is the default, small (AV1) takes least space, lossless "
    "keeps every pixel of that size and takes most.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(1, 100),
    help="What luma of every segment has at least against the original in that size; "
    f"{PSNR:.0f} if nothing is said.",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all segments instead; lower is better. Of lossless: how hard to "
    "compress, 0 (not at all) to 19; 1 if nothing is said.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Segments at a time.")
@click.option("--dry-run", is_flag=True, help="Only say what it would come to.")
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    size: tuple[int, int],
    span: Span | None,
    codec: str,
    psnr: float | None,
    quality: int | None,
    jobs: int | None,
    dry_run: bool,
) -> None:
    """Store whole frames in a smaller size as well.

    A VIDEO is a name or a pattern.  The original stays as it is.  Reads and views of that size, or
    of a half or a third of it, and of regions whose edges are whole pixels in it, take such a
    rendition where it is cheaper.  Segments of about a second are made and used one by one: what
    was interrupted with Ctrl-C goes on when it is said again.  `--dry-run` encodes one segment
    without storing it.  A warning says so first where a rendition will be larger than the original.
    """
    if psnr is not None and quality is not None:
        raise UsageError("give either --psnr or --quality, not both")
    from vfsd.cli.retiling import Order
    from vfsd.making.planned import TileSettings

    settings = TileSettings(codec, PSNR if psnr is None else psnr, quality)
    order = Order(None, (), None, None, span, 1.0, True, settings, size)
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        videos = videos_named(store, paths)
        for video in videos:
            order.plan(video)  # what cannot be done should not cost the others
        for video in videos:
            if dry_run:
                foretell(session, store, video, order, jobs)
            else:
                warn_of_size(session, store, video, order, jobs)
                make(session, store, video, order, jobs)
