"""``vfsd overlap``: videos of cameras that see the same place."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import MAKING_EXITS, define, jobs_option, replace_option, yes_option
from vfsd.cli.options import Number, time_value
from vfsd.cli.output import (
    picture_path,
    print_facts,
    print_json,
    print_table,
    printable,
    write_picture,
)
from vfsd.cli.session import Session, single_path
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    ExistsError,
    NotFoundError,
    OutdatedError,
    OutOfRangeError,
    OverBudgetError,
    ReadOnlyError,
    UsageError,
)
from vfsd.records.overlap_records import (
    JOINED_FIELDS,
    PAIR_FIELDS,
    joined_record,
    pair_record,
    verdict_sentence,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfsd.api.store import Store
    from vfsd.overlap.join_encoder import JoinSettings
    from vfsd.overlap.join_videos import JoinedPair, JoinReport
    from vfsd.overlap.overlap_search import OverlapReport, VideoPair


PAIR_HEADINGS = ("left", "right", "", "cameras", "of left", "of right", "dB", "in common", "")
PAIR_ALIGNMENT = "<<<<>>>><"


def pair_cells(pair: VideoPair) -> tuple[str, ...]:
    found = pair.overlap
    seen = found.agreement
    common = (
        f"{human_bytes(found.common_bytes)} ({pair.common_share:.0%})"
        if found.common_bytes
        else "-"
    )
    return (
        printable(pair.left.name),
        printable(pair.right.name),
        str(found.verdict),
        "fixed" if found.fixed else "moving",
        f"{found.shares[0]:.0%}",
        f"{found.shares[1]:.0%}",
        f"{seen.psnr_left:.1f}, {seen.psnr_right:.1f}",
        common,
        found.why,
    )


JOINED_HEADINGS = ("left", "right", "frames", "segments", "added to originals", "worst dB")
JOINED_ALIGNMENT = "<<>>>>"


def joined_cells(pair: JoinedPair) -> tuple[str, ...]:
    return (
        printable(pair.left),
        printable(pair.right),
        str(pair.frames),
        str(len(pair.segments)),
        human_bytes(pair.bytes),
        psnr_text(pair.psnr),
    )


def psnr_text(psnr: tuple[float, float]) -> str:
    """The values of the left and the right video."""
    return f"{psnr[0]:.1f}, {psnr[1]:.1f}"


@define(
    "overlap find",
    examples=[
        "vfsd -s videos overlap find",
        "vfsd -s videos overlap find 'cam1/*' --refused --json",
    ],
    fields=PAIR_FIELDS,
    exits=[NotFoundError, EXIT_FINDINGS],
    listing=True,
)
@click.argument("names", metavar="[VIDEO...]", nargs=-1)
@click.option(
    "--refused",
    is_flag=True,
    help="Also list pairs that show the same place, but not the same pixels.",
)
def overlap_find(session: Session, names: tuple[str, ...], refused: bool) -> None:
    """Find pairs of videos that show the same place.

    Compares a few frames of all videos, or of the named ones: those at 0.5, 1, 2, 4 ... seconds.
    All videos are assumed to start at the same time. A pair agrees at a moment if the common part
    has 24 dB on either side. Its cameras are fixed if one homography fits all moments. Videos with
    different movements were taken at different times, and are refused.

    The size of the common part is an estimate, in bytes of the file that has fewer. Joining does
    not save these bytes, since the originals stay and the joined data is added. Files with equal
    bytes are stored once in any case. Ends with 30 if a video cannot be read.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        report = _find_pairs(session, store, paths)
        pairs = report.pairs if refused else report.joinable
        if session.json:
            for pair in pairs:
                print_json(pair_record(pair))
        elif pairs:
            print_table([PAIR_HEADINGS, *map(pair_cells, pairs)], PAIR_ALIGNMENT)
    left_out = len(report.pairs) - len(pairs)
    session.remark(
        f"{len(pairs)} pairs; compared {report.compared} pairs of {report.videos} videos"
        + (f"; {left_out} more are refused (--refused lists them)" if left_out else "")
    )
    for name, error in report.unreadable.items():
        click.echo(f"{printable(name)} was skipped: {error}", err=True)
    if report.unreadable:
        click.get_current_context().exit(EXIT_FINDINGS)


def _find_pairs(session: Session, store: Store, names: list[str]) -> OverlapReport:
    from vfsd.cli.output import Progress
    from vfsd.cli.session import select_video_list
    from vfsd.overlap import overlaps

    chosen = [video.name for video in select_video_list(store, names)] if names else None
    with Progress("comparing videos", None, shown=session.shows_progress) as progress:
        return overlaps(store, chosen, on_progress=progress.step)


_JOINABLE = ("copy", "join", "partly")


@define(
    "overlap show",
    examples=[
        "vfsd -s videos overlap show cam1/traffic.mp4 cam1/traffic.mp4",
        "vfsd -s videos overlap show cam1/traffic.mp4 cam1/traffic.mp4 -o both.png --at 1",
    ],
    fields=PAIR_FIELDS,
    exits=[NotFoundError, ExistsError, OutOfRangeError],
)
@click.argument("one", metavar="VIDEO")
@click.argument("other", metavar="VIDEO")
@click.option("-o", "--out", metavar="FILE", help="Draw both videos combined, into a .png or .jpg.")
@click.option(
    "--at", "moment", metavar="TIME", type=time_value, help="Draw the frames at this time."
)
@replace_option("Replace an existing FILE.")
def overlap_show(
    session: Session,
    one: str,
    other: str,
    out: str | None,
    moment: Fraction | None,
    replace: bool,
) -> None:
    """Show how the frames of two videos overlap.

    Pairs that `overlap find` refuses are shown as well. The picture has the left frame, and the
    right one projected onto it with the exposure of the left one. The common part is the mean of
    the two. Lines mark the area of each video, the seam (where the left frame would be cut) and the
    edge (where the right one would).
    """
    path = None if out is None else picture_path(out)
    from vfsd.overlap import overlap

    root, names = session.places([one, other])
    with session.opened(root) as store:
        names = [single_path(store.catalog, name, "overlap show") for name in names]
        pair = overlap(store, *names)
        if pair is None:
            raise NotFoundError(
                f"{names[0]!r} and {names[1]!r} do not show the same place",
                hint="`vfsd overlap find` lists pairs that do",
            )
        if path is not None:
            _draw_pair(session, store, pair, moment, path, replace)
        if session.json:
            print_json(pair_record(pair))
            return
        print_facts(_pair_facts(pair))


def _pair_facts(pair: VideoPair) -> Iterator[tuple[str, str]]:
    found = pair.overlap
    seen = found.agreement
    verdict = f"{found.verdict}: {found.why}" if found.why else str(found.verdict)
    yield "left", printable(pair.left.name)
    yield "right", printable(pair.right.name)
    yield "verdict", verdict
    yield "in words", printable(verdict_sentence(pair))
    yield "cameras", "fixed" if found.fixed else "moving relative to each other"
    yield "both see", f"{found.shares[0]:.0%} of the left, {found.shares[1]:.0%} of the right"
    yield "agree", f"{seen.psnr_left:.1f} dB on the left, {seen.psnr_right:.1f} dB on the right"
    if seen.movement is not None:
        yield "movement", f"{seen.movement:.2f} (1: the same in both, 0: different times)"
    if found.cut is not None:
        yield "cut", f"left at column {found.cut.seam}, right at column {found.cut.edge}"
    if found.common_bytes:
        yield (
            "in common",
            f"about {human_bytes(found.common_bytes)}, {pair.common_share:.0%} of both",
        )
    if found.verdict in _JOINABLE:
        yield "saves", "nothing, as both originals stay and the joined data is added"


def _draw_pair(
    session: Session,
    store: Store,
    pair: VideoPair,
    moment: Fraction | None,
    path: Path,
    replace: bool,
) -> None:
    from vfsd.overlap.overlap_search import draw_pair

    time = pair.overlap.times[0] if moment is None else moment
    write_picture(draw_pair(store.tools, pair, time), path, replace=replace)
    session.remark(f"both at {float(time):g} s, to {printable(str(path))}")


@define(
    "overlap join",
    examples=[
        "vfsd -s videos overlap join cam1/west.mp4 cam1/east.mp4",
        "vfsd -s videos overlap join cam1/west.mp4 cam1/east.mp4 --merge unprojected --dry-run",
    ],
    fields={
        "left": "path of the left video",
        "right": "path of the right video",
        "frames": "number of newly joined frames of each video",
        "before": "number of frames that were joined with each other before",
        "left_as_they_are": "object: reason why frames are not joined, such as a join with "
        "another video, and their number for each video",
        "too_poor": "[minimum, maximum] dB of the segments below the requested quality; null "
        "without such segments",
        "unpaired": "number of left frames without a right frame at their time",
        "segments": "number of joined segments",
        "copies": "number of segments whose right frames are equal to the left ones",
        "same": "whether both have the same bytes, which are stored once; nothing is joined then",
        "bytes": "bytes stored for both, the growth of the store",
        "original_bytes": "bytes of the same frames in both originals",
        "psnr": "[left, right]: dB of the worst plane of the worst picture; null if nothing is "
        "joined",
        "stored": "false with --dry-run",
    },
    exits=[*MAKING_EXITS, OverBudgetError, OutdatedError, EXIT_FINDINGS],
)
@click.argument("one", metavar="VIDEO")
@click.argument("other", metavar="VIDEO")
@click.option(
    "--merge",
    type=click.Choice(("mean", "unprojected")),
    default="mean",
    help="Content of the common part: the mean of both videos (the default), or the encoded "
    "pixels of the left one.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(24, 100),
    default=30.0,
    help="Minimum PSNR of every picture of both videos against the original, per plane; the "
    "default is 30.",
)
@click.option(
    "--codec",
    type=click.Choice(("fast", "small")),
    default="fast",
    help="Codec of the pieces: fast (H.264, the default) or small (AV1).",
)
@click.option(
    "--quality",
    metavar="N",
    type=click.IntRange(0, 63),
    help="One rate factor for all pieces; by default the one that gives each 40 dB.",
)
@jobs_option
@click.option(
    "--seconds",
    metavar="S",
    type=Number(0, min_open=True),
    default=1.0,
    help="Approximate length of a segment; the default is 1.",
)
@click.option("--dry-run", is_flag=True, help="Do everything but store the result.")
def overlap_join(
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

    The originals stay. Three pieces are stored in addition: the part that only the left video sees,
    the common part, and the part that only the right one sees. Reads of either video use them where
    the quality suffices and the cost is lower. They count for the budgets of both videos, the
    common part half each.

    Segments of about a second are joined one by one, each with its own homography. Before a segment
    is stored, every picture of both videos is rebuilt from the pieces and compared with the
    original. Segments below the requested quality are not joined. After an interruption, the same
    command continues. Both videos are assumed to start at the same time. Pairs that `overlap find`
    refuses, and files with equal bytes, are not joined. Ends with 30 if nothing is joined.
    """
    from vfsd.overlap.join_encoder import JoinSettings

    settings = JoinSettings(merge, psnr, codec, quality=quality)
    root, names = session.places([one, other])
    with session.opened(root, writing=not dry_run) as store:
        names = [single_path(store.catalog, name, "overlap join") for name in names]
        if names[0] == names[1]:
            raise UsageError("a video cannot be joined with itself")
        report = _join_videos(session, store, names, settings, seconds, dry_run, jobs)
    if session.json:
        print_json(_join_record(report, dry_run))
    else:
        print_facts(_join_facts(report, dry_run))
        if dry_run:
            session.remark("nothing was stored")
    if not report.frames and not report.before and not report.is_one_file:
        click.get_current_context().exit(EXIT_FINDINGS)


def _join_videos(
    session: Session,
    store: Store,
    names: list[str],
    settings: JoinSettings,
    seconds: float,
    dry_run: bool,
    jobs: int | None,
) -> JoinReport:
    from vfsd.cli.output import Progress
    from vfsd.overlap import join

    with Progress("joining", None, shown=session.shows_progress) as progress:
        one, other = names
        return join(
            store,
            one,
            other,
            settings,
            seconds_each=seconds,
            dry_run=dry_run,
            jobs=jobs,
            on_progress=progress.reach,
        )


def _join_record(report: JoinReport, dry_run: bool) -> dict[str, Any]:
    return {
        "left": report.left,
        "right": report.right,
        "frames": report.frames,
        "before": report.before,
        "left_as_they_are": dict(report.reasons),
        "too_poor": None if report.rejected_psnr is None else list(report.rejected_psnr),
        "unpaired": report.unpaired,
        "segments": len(report.joined),
        "copies": sum(run.is_copy for run in report.joined),
        "same": report.is_one_file,
        "bytes": report.bytes,
        "original_bytes": report.original_bytes,
        "psnr": None if report.psnr is None else list(report.psnr),
        "stored": not dry_run,
    }


def _join_facts(report: JoinReport, dry_run: bool) -> Iterator[tuple[str, str]]:
    yield "left", printable(report.left)
    yield "right", printable(report.right)
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
        yield "not joined", f"{frames} frames: {why}"
    if report.rejected_psnr is not None:
        yield "would have", "{:.1f} to {:.1f} dB".format(*report.rejected_psnr)
    if report.unpaired:
        yield "without partner", f"{report.unpaired} frames"
    if report.psnr is not None:
        yield "worst picture", psnr_text(report.psnr)
        yield (
            "bytes",
            f"{human_bytes(report.bytes)} for both; in the originals "
            f"{human_bytes(report.original_bytes)}",
        )
        are = "would be" if dry_run else "are"
        yield "store", f"{human_bytes(report.bytes)} {are} added, as the originals stay"


@define(
    "overlap ls",
    examples=["vfsd -s videos overlap ls", "vfsd -s videos overlap ls cam1/west.mp4 --json"],
    fields=JOINED_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("name", metavar="[VIDEO]", required=False)
def overlap_ls(session: Session, name: str | None) -> None:
    """List joined videos, or the partners of one video."""
    from vfsd.overlap import joined

    root, names = (session.root(), []) if name is None else session.places([name])
    with session.opened(root) as store:
        found = joined(store, names[0] if names else None)
    if session.json:
        for pair in found:
            print_json(joined_record(pair))
    elif found:
        print_table([JOINED_HEADINGS, *map(joined_cells, found)], JOINED_ALIGNMENT)
    else:
        session.remark("nothing is joined")


@define(
    "overlap split",
    examples=[
        "vfsd -s videos overlap split cam1/west.mp4",
        "vfsd -s videos overlap split cam1/west.mp4 cam1/east.mp4 -y",
    ],
    fields=JOINED_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("other", metavar="[VIDEO]", required=False)
@yes_option
def overlap_split(session: Session, name: str, other: str | None, yes: bool) -> None:
    """Delete the joined data of two videos.

    With one VIDEO, the joined data of all its partners is deleted. Reads then decode the originals,
    which always stay. At a terminal the command asks first.
    """
    given = [name] if other is None else [name, other]
    from vfsd.overlap import split

    root, names = session.places(given)
    with session.opened(root, writing=True) as store:
        names = [single_path(store.catalog, name, "overlap split") for name in names]
        if not yes and sys.stdin.isatty():
            partner = "all its partners" if other is None else printable(names[1])
            if not click.confirm(f"split {printable(names[0])} from {partner}?", err=True):
                return
        gone = split(store, *names)
    for pair in gone:
        session.report(
            joined_record(pair),
            f"split {printable(pair.left)} and {printable(pair.right)}: {pair.frames} frames, "
            f"{human_bytes(pair.bytes)}",
        )
