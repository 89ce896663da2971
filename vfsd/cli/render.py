"""``vfsd render``: store whole frames in another size as well."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.making import FORETOLD_FIELDS, MADE_FIELDS, PSNR, foretell, make, require_consent
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.values import Number, Span, a_size, a_span
from vfsd.errors import (
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    NothingSavedError,
    OutdatedError,
    OutOfRangeError,
    OverBudgetError,
    ReadOnlyError,
    UsageError,
)

_PURPOSES = {"decoding": "fast", "web": "small"}
"""Codec of `--for`."""


@define(
    "render",
    examples=[
        "vfsd -s videos render cam1/traffic.mp4 --size 160x120",
        "vfsd -s videos render 'cam1/*.mp4' --size 160x0 --for web --dry-run",
    ],
    fields=MADE_FIELDS,
    variants={"--dry-run": FORETOLD_FIELDS},
    exits=[
        NotFoundError,
        NothingSavedError,
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
    help="fast (H.264) decodes fastest and is the default, small (AV1) takes least space, lossless "
    "keeps every pixel of that size and takes most.",
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(tuple(_PURPOSES)),
    help="decoding: H.264, which may be larger than the original; web: AV1, the smallest.",
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
@click.option("-y", "--yes", is_flag=True, help="Also if it is larger than the original.")
@click.option("--dry-run", is_flag=True, help="Only estimate size and time.")
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    size: tuple[int, int],
    span: Span | None,
    codec: str | None,
    purpose: str | None,
    psnr: float | None,
    quality: int | None,
    jobs: int | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Store whole frames in a smaller size as well.

    A VIDEO is a name or a pattern.  The original stays.  Reads and views of this size, or of a half
    or a third of it, use the rendition where it is cheaper.  So do reads of regions whose edges are
    whole pixels in it.  Segments of about a second are made one by one, and each is used at once.
    After Ctrl-C, the same command makes the rest.

    The command first encodes one segment of each video to estimate the size.  A rendition that is
    larger than the original gets a warning.  If it is 1.5 times as large and at least 1 MiB larger,
    the command asks at a terminal, and else ends with exit code 8; --yes or --for decoding makes it
    without the estimate.  --dry-run only prints the estimate.
    """
    if codec is not None and purpose is not None:
        raise UsageError("give either --codec or --for, not both")
    if psnr is not None and quality is not None:
        raise UsageError("give either --psnr or --quality, not both")
    from vfsd.cli.retiling import Order
    from vfsd.derive.tile_spec import TileSettings

    codec = codec or _PURPOSES.get(purpose or "", "fast")
    settings = TileSettings(codec, PSNR if psnr is None else psnr, quality)
    order = Order(None, (), None, None, span, 1.0, True, settings, size)
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        videos = videos_named(store, paths)
        for video in videos:
            order.plan(video)  # what cannot be done should not cost the others
        is_agreed = yes or dry_run or purpose == "decoding"
        if not is_agreed and not require_consent(session, store, videos, order, jobs):
            return
        for video in videos:
            if dry_run:
                foretell(session, store, video, order, jobs)
            else:
                make(session, store, video, order, jobs)
