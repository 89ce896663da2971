"""``vfsd replace``: put smaller encodings in the place of originals."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, printable
from vfsd.cli.param_types import Number
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.cli.video_args import select_video_list
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_INTERRUPTED,
    ForbiddenError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutdatedError,
    ReadOnlyError,
    RefusedMediaError,
)

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.derive.reencode import OnProgress, ReencodeForecast
    from vfsd.derive.replace_original import Replacement

_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "codec": "of the new original: h264, hevc or av1",
        "bytes": "of the file before",
        "new_bytes": "of the file afterwards",
        "measured": "dB of the worst plane of the worst picture against the original before; null: "
        "nothing was lost",
        "psnr": "dB that each picture has at least, in each plane, against the very first "
        "original; null: nothing was lost",
    }
)


@define(
    "replace",
    examples=[
        "vfsd -s videos replace cam1/traffic.mp4 --psnr 38 --dry-run",
        "vfsd -s videos replace cam1/traffic.mp4 --codec h264",
    ],
    fields=_FIELDS,
    variants={
        "--dry-run": {
            **_FIELDS,
            "new_bytes": "of the file afterwards, about",
            "measured": "dB of the worst plane of the worst picture among those that were encoded; "
            "with --keep of the areas that are kept",
            "frames": "that were encoded",
            "seconds": "that replacing it would take, about",
            "refused": "why it may not be replaced as things are, or would not be (nothing would "
            "be saved), or cannot be, of which nothing is encoded and no bytes are new; else null",
        }
    },
    exits=[
        NotFoundError,
        ReadOnlyError,
        RefusedMediaError,
        ForbiddenError,
        OutdatedError,
        IntegrityError,
        NoSpaceError,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--codec",
    type=click.Choice(("h264", "hevc", "av1")),
    default="hevc",
    help="What to encode in; hevc if nothing is said.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(20, 80),
    help="What each picture has at least, in each plane, against the very first original; as the "
    "policy has it if nothing is said, and no less.",
)
@click.option(
    "--keep",
    metavar="LABELS",
    help="Let all decay but what was seen with these labels: car|truck or an expression as of "
    "`vfsd labels query`.",
)
@click.option("--dry-run", is_flag=True, help="Encode a few seconds, and say what it comes to.")
@click.pass_obj
def replace(
    session: Session,
    names: tuple[str, ...],
    codec: str,
    psnr: float | None,
    keep: str | None,
    dry_run: bool,
) -> None:
    """Put smaller encodings in the place of originals.

    A VIDEO is a name or a pattern, and its policy has to allow it (`vfsd policy set`).  Every
    picture of the new file is decoded and compared with the original before anything changes;
    frames, their times, sound and all other streams stay as they are.  Then the old bytes are
    deleted, which cannot be taken back.  Until then the disk has to hold both.  What is known of
    frames stays, with tiles and renditions; what would save nothing is left as it is.

    With --keep only areas around what was seen have that quality, against the original that there
    is; the rest is blurred, stands still for two seconds at a time, and takes next to no bytes.
    Tiles and renditions go then.  Somebody has to have looked at the whole video (`vfsd detect`).
    """
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        for video in select_video_list(store, paths):
            with Progress("", None, shown=session.shows_progress) as progress:

                def report(what: str, done: int, total: int, name: str = video.name) -> None:
                    progress.label(f"{what} {printable(name)}")
                    progress.reach(done, total)

                if dry_run:
                    told = _forecast(video, psnr, codec, keep, report)
                    _print_forecast(session, video.name, told, decays=keep is not None)
                    continue
                done = _replace(video, psnr, codec, keep, report)
            _print_replaced(session, done)


def _forecast(
    video: Video, psnr: float | None, codec: str, keep: str | None, report: OnProgress
) -> ReencodeForecast:
    if keep is not None:
        return video.forecast_decay(keep, psnr=psnr, codec=codec, on_progress=report)
    return video.forecast_replacement(psnr=psnr, codec=codec, on_progress=report)


def _replace(
    video: Video, psnr: float | None, codec: str, keep: str | None, report: OnProgress
) -> Replacement:
    if keep is not None:
        return video.decay(keep, psnr=psnr, codec=codec, on_progress=report)
    return video.replace_original(psnr=psnr, codec=codec, on_progress=report)


def _print_replaced(session: Session, done: Replacement) -> None:
    if session.json:
        print_json(_replacement_record(done.video.name, done))
        return
    session.remark(
        f"{printable(done.video.name)}: {human_bytes(done.size)} became "
        f"{human_bytes(done.new_size)} of {done.codec}, "
        f"at least {done.psnr:.1f} dB against the first original"
    )


def _print_forecast(session: Session, name: str, told: ReencodeForecast, *, decays: bool) -> None:
    refused = told.refused or (None if told.saves else "nothing would be saved")
    if session.json:
        measured = {"frames": told.frames, "seconds": told.seconds, "refused": refused}
        print_json({**_replacement_record(name, told), **measured})
        return
    if told.stays:
        print_line(f"{printable(name)} would stay as it is: {refused}")
        return
    where = " around what is kept," if decays else ""
    print_line(
        f"{printable(name)}: {human_bytes(told.size)} would become about "
        f"{human_bytes(told.new_size)} of {told.codec} in {told.seconds:.0f} s; "
        f"{told.frames} frames were encoded, with "
        f"{told.psnr:.1f} dB{where} in the worst" + (f"; but {refused}" if refused else "")
    )


def _replacement_record(name: str, one: Replacement | ReencodeForecast) -> dict[str, Any]:
    return {
        "name": name,
        "codec": one.codec,
        "bytes": one.size,
        "new_bytes": one.new_size,
        "measured": _finite(one.measured),
        "psnr": _finite(one.psnr),
    }


def _finite(decibels: float) -> float | None:
    return None if decibels == float("inf") else decibels
