"""``vfsd overlap join``: keep what two cameras see once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import facts, print_json, print_line, shown
from vfsd.cli.overlap.records import pair_of_psnr
from vfsd.cli.selecting import single_path
from vfsd.cli.session import Session
from vfsd.cli.values import Number
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutdatedError,
    OverBudgetError,
    ReadOnlyError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfsd.api.store import Store
    from vfsd.overlap.join_settings import JoinSettings
    from vfsd.overlap.join_videos import JoinReport


@define(
    "overlap join",
    examples=[
        "vfsd -s videos overlap join cam1/west.mp4 cam1/east.mp4",
        "vfsd -s videos overlap join cam1/west.mp4 cam1/east.mp4 --merge unprojected --dry-run",
    ],
    fields={
        "left": "path of the video that is the left one",
        "right": "path of the other",
        "frames": "of either, that were joined",
        "before": "frames of either that were joined with each other before",
        "left_as_they_are": "object: why frames stay as they are, as by being joined with another "
        "video already, and how many of either",
        "too_poor": "[from, to]: dB that segments would have had that have too few; null: none",
        "unpaired": "frames of the left video at whose time the right one has none",
        "segments": "number of segments that were joined",
        "copies": "number of those in which the right one is nothing but the left one",
        "same": "whether both have the same bytes, which are stored once: nothing is joined then",
        "bytes": "that were stored for both: by so much the store grows, as the originals stay",
        "original_bytes": "of the packets of the same frames in both files",
        "psnr": "[left, right]: dB of the worst plane of the worst picture; null: none is joined",
        "stored": "false with --dry-run",
    },
    exits=[
        NotFoundError,
        ReadOnlyError,
        IntegrityError,
        NoSpaceError,
        OverBudgetError,
        OutdatedError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("one", metavar="VIDEO")
@click.argument("other", metavar="VIDEO")
@click.option(
    "--merge",
    type=click.Choice(("mean", "unprojected")),
    default="mean",
    help="What is kept of what both see: the mean of the two (the rule), or what the left one saw, "
    "whose pictures are then only encoded.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(24, 100),
    default=30.0,
    help="What every picture of either has at least against the original, in every plane; 30 if "
    "nothing is said.",
)
@click.option(
    "--codec",
    type=click.Choice(("fast", "small")),
    default="fast",
    help="Of the pieces: fast (H.264, the rule) or small (AV1).",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all pieces; if nothing is said, what gives each 40 dB.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Segments at a time.")
@click.option(
    "--seconds",
    metavar="S",
    type=Number(0, min_open=True),
    default=1.0,
    help="How long a segment is, about; 1 if nothing is said.",
)
@click.option("--dry-run", is_flag=True, help="Do all of it, but store nothing.")
@click.pass_obj
def command(
    session: Session,
    one: str,
    other: str,
    merge: str,
    psnr: float,
    codec: str,
    quality: int | None,
    jobs: int | None,
    seconds: float,
    dry_run: bool,
) -> None:
    """Join two videos that show the same place at the same time.

    Beside the originals, which stay as they are, three pieces are stored: what only the left one
    sees, what both see, and what only the right one sees.  Reads of either may use them where they
    are good enough and cheaper; they count for the budgets of both, half for each what both need.

    Segments of about a second are joined by themselves, each with the homography that holds in it.
    Every picture of both is made again from the pieces and compared with the original before they
    are stored; segments in which one has less than is asked for stay as they are.  What was
    interrupted goes on when it is said again.  The store grows by the pieces, as the originals
    stay; of two files with the same bytes nothing is joined.  Both videos are taken to have started
    at the same time; pairs that `overlap find` refuses are refused.  Ends with 30 when nothing is
    joined.
    """
    from vfsd.overlap.join_settings import JoinSettings

    settings = JoinSettings(merge, psnr, codec, quality=quality)
    root, names = session.places([one, other])
    with session.opened(root, writing=not dry_run) as store:
        names = [single_path(store.catalog, name, "overlap join") for name in names]
        if names[0] == names[1]:
            raise UsageError("a video cannot be joined with itself")
        report = _joined(session, store, names, settings, seconds, dry_run, jobs)
    if session.json:
        print_json(_record(report, dry_run))
    else:
        for line in facts(_facts(report, dry_run)):
            print_line(line)
        if dry_run:
            session.remark("nothing was stored")
    if not report.frames and not report.before and not report.is_one_file:
        click.get_current_context().exit(EXIT_FINDINGS)


def _joined(
    session: Session,
    store: Store,
    names: list[str],
    settings: JoinSettings,
    seconds: float,
    dry_run: bool,
    jobs: int | None,
) -> JoinReport:
    from vfsd.cli.progress import Progress
    from vfsd.overlap.cameras import join

    with Progress("joining", None, shown=session.shows_progress) as progress:

        def tell(done: int, total: int) -> None:
            progress.reach(done, total)

        one, other = names
        return join(
            store,
            one,
            other,
            settings,
            seconds_each=seconds,
            dry_run=dry_run,
            jobs=jobs,
            on_progress=tell,
        )


def _record(report: JoinReport, dry_run: bool) -> dict[str, Any]:
    return {
        "left": report.left,
        "right": report.right,
        "frames": report.frames,
        "before": report.before,
        "left_as_they_are": dict(report.reasons),
        "too_poor": None if report.too_poor is None else list(report.too_poor),
        "unpaired": report.unpaired,
        "segments": len(report.joined),
        "copies": sum(run.is_copy for run in report.joined),
        "same": report.is_one_file,
        "bytes": report.bytes,
        "original_bytes": report.original_bytes,
        "psnr": None if report.psnr is None else list(report.psnr),
        "stored": not dry_run,
    }


def _facts(report: JoinReport, dry_run: bool) -> Iterator[tuple[str, str]]:
    yield "left", shown(report.left)
    yield "right", shown(report.right)
    if report.is_one_file:
        yield "joined", "nothing: both have the same bytes, which are stored once already"
        return
    yield "joined", f"{report.frames} frames in {len(report.joined)} segments"
    copies = sum(run.is_copy for run in report.joined)
    if copies:
        yield "copies", f"{copies} segments"
    if report.before:
        yield "before", f"{report.before} frames"
    for why, frames in report.reasons.most_common():
        yield "as it is", f"{frames} frames: {why}"
    if report.too_poor is not None:
        yield "would have", "{:.1f} to {:.1f} dB".format(*report.too_poor)
    if report.unpaired:
        yield "without partner", f"{report.unpaired} frames"
    if report.psnr is not None:
        yield "worst picture", pair_of_psnr(report.psnr)
        yield (
            "bytes",
            f"{human_bytes(report.bytes)} for both; in the originals "
            f"{human_bytes(report.original_bytes)}",
        )
        are = "would be" if dry_run else "are"
        yield "store", f"{human_bytes(report.bytes)} {are} more: originals stay"
