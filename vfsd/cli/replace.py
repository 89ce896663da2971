"""``vfsd replace``: replace originals by smaller encodings."""

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
        "codec": "codec of the new original: h264, hevc or av1",
        "bytes": "size of the file before",
        "new_bytes": "size of the file afterwards",
        "measured": "dB of the worst plane of the worst picture against the original before; "
        "null: lossless",
        "psnr": "minimum dB of each picture, per plane, against the very first original; null: "
        "lossless",
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
            "new_bytes": "estimated size of the file afterwards",
            "measured": "dB of the worst plane of the worst encoded picture; with --keep in the "
            "kept regions",
            "frames": "number of frames encoded",
            "seconds": "estimated duration",
            "refused": "why it may not, would not (no savings) or cannot be replaced; else null. "
            "Without an encoding, frames is 0 and the new bytes are missing",
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
    help="Codec; the default is hevc.",
)
@click.option(
    "--psnr",
    metavar="DB",
    type=Number(20, 80),
    help="Minimum PSNR of each picture, per plane, against the very first original. The default "
    "and the minimum are in the policy.",
)
@click.option(
    "--keep",
    metavar="LABELS",
    help="Keep the quality of regions with these labels only: car|truck or an expression of "
    "`vfsd labels query`.",
)
@click.option("--dry-run", is_flag=True, help="Encode a few seconds, and print an estimate.")
@click.pass_obj
def replace(
    session: Session,
    names: tuple[str, ...],
    codec: str,
    psnr: float | None,
    keep: str | None,
    dry_run: bool,
) -> None:
    """Replace originals by smaller encodings.

    A VIDEO is a name or a pattern, and its policy must allow it (`vfsd policy set`). Before
    anything changes, every picture of the new file is decoded and compared with the original.
    Frames, their times, sound and all other streams are kept. Then the old bytes are deleted for
    good; until then the disk needs space for both. Labels, tiles and renditions stay. A video
    without savings is left unchanged.

    With --keep, only regions around boxes keep that quality, against the present original. The rest
    is blurred and updated every two seconds, and takes very few bytes. Tiles and renditions are
    deleted. A detector must have examined the whole video (`vfsd detect`).
    """
    root, paths = session.places(names)
    with session.opened(root, writing=not dry_run) as store:
        for video in select_video_list(store, paths):
            with Progress("", None, shown=session.shows_progress) as progress:

                def report(what: str, done: int, total: int, name: str = video.name) -> None:
                    progress.label(f"{what} {printable(name)}")
                    progress.reach(done, total)

                if dry_run:
                    forecast = _forecast(video, psnr, codec, keep, report)
                    _print_forecast(session, video.name, forecast, decays=keep is not None)
                    continue
                done = _replace(video, psnr, codec, keep, report)
            _print_replaced(session, done)


def _forecast(
    video: Video, psnr: float | None, codec: str, keep: str | None, report: OnProgress
) -> ReencodeForecast:
    if keep is not None:
        return video.policy.forecast_decay(keep, psnr=psnr, codec=codec, on_progress=report)
    return video.policy.forecast_replacement(psnr=psnr, codec=codec, on_progress=report)


def _replace(
    video: Video, psnr: float | None, codec: str, keep: str | None, report: OnProgress
) -> Replacement:
    if keep is not None:
        return video.policy.decay(keep, psnr=psnr, codec=codec, on_progress=report)
    return video.policy.replace_original(psnr=psnr, codec=codec, on_progress=report)


def _print_replaced(session: Session, done: Replacement) -> None:
    if session.json:
        print_json(_replacement_record(done.video.name, done))
        return
    session.remark(
        f"{printable(done.video.name)}: {human_bytes(done.size)} became "
        f"{human_bytes(done.new_size)} of {done.codec}, "
        f"at least {done.psnr:.1f} dB against the first original"
    )


def _print_forecast(
    session: Session, name: str, forecast: ReencodeForecast, *, decays: bool
) -> None:
    refused = forecast.refused or (None if forecast.saves else "nothing would be saved")
    if session.json:
        measured = {"frames": forecast.frames, "seconds": forecast.seconds, "refused": refused}
        print_json({**_replacement_record(name, forecast), **measured})
        return
    if forecast.stays:
        print_line(f"{printable(name)} would stay unchanged: {refused}")
        return
    where = " in the kept regions" if decays else ""
    print_line(
        f"{printable(name)}: {human_bytes(forecast.size)} would become about "
        f"{human_bytes(forecast.new_size)} of {forecast.codec} in {forecast.seconds:.0f} s; "
        f"{forecast.frames} sample frames have at least {forecast.psnr:.1f} dB{where}"
        + (f"; but {refused}" if refused else "")
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
