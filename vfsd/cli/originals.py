"""``vfsd policy``, ``vfsd hold`` and ``vfsd replace``: what may happen to originals, and their
replacement by smaller encodings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import MAKING_EXITS, define
from vfsd.cli.options import Number
from vfsd.cli.output import (
    Progress,
    local_time,
    print_json,
    print_line,
    print_table,
    printable,
)
from vfsd.cli.session import Session, matched_paths, select_or_all, select_video_list
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_on
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    ExistsError,
    ForbiddenError,
    NotFoundError,
    OutdatedError,
    ReadOnlyError,
    RefusedMediaError,
)
from vfsd.records.original_records import HOLD_FIELDS, POLICY_FIELDS, hold_record, policy_record

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.derive.reencode import OnProgress, ReencodeForecast
    from vfsd.derive.replace_original import Replacement


@define(
    "policy show",
    examples=["vfsd -s videos policy show", "vfsd -s videos policy show cam1/traffic.mp4 --json"],
    fields=POLICY_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[PATH]...", nargs=-1)
def policy_show(session: Session, names: tuple[str, ...]) -> None:
    """Show the policies of originals.

    A PATH is a video, a directory, or a pattern for the names of videos. Its policy is its own, or
    that of the nearest directory above. Without a PATH, all policies that were set are listed.
    """
    root, paths = session.places_or_root(names)
    with session.opened_context(root) as parts, parts.catalog.reading() as seen:
        own_policies = seen.retention.policies()
        if paths:
            chosen = matched_paths(parts.catalog, paths)
            nodes = [(path, seen.tree.resolve(path).ino) for path in chosen]
        else:
            nodes = sorted((path, ino) for ino in own_policies for path in seen.tree.paths_of(ino))
        found = [(path, seen.retention.policy(ino), ino in own_policies) for path, ino in nodes]
    if session.json:
        for path, policy, own in found:
            print_json(policy_record(path, policy, own))
        return
    if not found:
        session.remark("all originals stay as they were written")
    rows = [
        (str(policy), "" if own else "inherited", printable(path)) for path, policy, own in found
    ]
    print_table(rows, "<<<")


@define(
    "policy set",
    examples=[
        "vfsd -s videos policy set cam1/traffic.mp4 original=replaceable,psnr=42",
        "vfsd -s videos policy set cam1 original=keep,delete-after=365d",
        "vfsd -s videos policy set cam7/ original=replaceable",
        "vfsd -s videos policy set cam8/ delete-above=500G",
        "vfsd -s videos policy set cam9/ delete-after=30d,clock=recording",
        "vfsd -s videos policy set cam1 'original=replaceable,psnr=38,replace-after=30d,"
        "decay-after=90d,keep=car|truck,delete-after=1y'",
        "vfsd -s videos policy set cam1 original=keep,reads=34",
        "vfsd -s videos policy set cam1 browser=h264:160 --dry-run",
        "vfsd -s videos policy set cam1/traffic.mp4 default",
    ],
    fields=POLICY_FIELDS,
    variants={
        "--dry-run": {
            **POLICY_FIELDS,
            "videos": "number of videos that would get a rendition for browsers",
            "seconds": "duration of these videos",
            "bytes": "estimated size of their renditions",
        }
    },
    exits=[NotFoundError, ExistsError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="PATH...", nargs=-1, required=True)
@click.argument("policy", metavar="POLICY")
@click.option(
    "--dry-run", is_flag=True, help="Change nothing; print what the rule browser would make."
)
def policy_set(session: Session, names: tuple[str, ...], policy: str, dry_run: bool) -> None:
    """Set the policy of originals.

    A PATH is a video, a pattern for the names of videos, or a directory. The policy of a directory
    holds for all videos below it without a policy of their own. With a slash at the end, a missing
    directory is created. The store as a whole has no policy.

    The POLICY is original=keep, or original=replaceable,psnr=DB: an encoding with at least DB
    against the very first original, per plane of each picture, may replace the original (the
    default is 40; see `vfsd replace`). With original=keep no encoding may replace it; delete-after,
    delete-below and delete-above are allowed. `default` removes the policy.

    Rules for `vfsd age`: replace-after=AGE, decay-after=AGE with keep=LABELS (only regions with
    these labels keep their quality), delete-after=AGE, delete-below=BYTES (delete the oldest while
    less is free on the disk), delete-above=BYTES (for a directory: delete the oldest while the
    videos under this policy have more), codec=h264, hevc or av1. An AGE is 12h, 30d, 2w or 1y. This
    command alone changes no video.

    Ages count from the end of the recording, the arrival in the store, or the last change of the
    file, whichever is latest: an archive imported today is new. With clock=recording they count
    from the end of the recording, so `vfsd age --apply` may delete an imported archive at once.
    Only times of recording that a user, the name or the recording host gave count, after 2000 and
    not in the future; the clocks of cameras and containers do not. Without one, the latest counts.

    reads=DB, 0 to 100, is the minimum luma PSNR of tiles, renditions and joined data for reads and
    views without a psnr. It replaces the setting minimum_psnr of the store.

    browser=h264:WIDTH stores a rendition of each video that browsers cannot play, or that is wider
    than WIDTH pixels; see `vfsd render --browser`. Mounts and `vfsd serve --tune` make it in idle
    time, `vfsd ingest --browser` at once. Each video gets it once: what the budget evicts is not
    made again.
    """
    root, paths = session.places(names)
    chosen = None if policy == "default" else policy
    if dry_run:
        _show_policy(session, root, paths, chosen or "original=keep")
        return
    with session.opened(root, writing=True) as store:
        for given, name in zip(names, paths, strict=True):
            if name and given.endswith("/"):  # a directory that may not exist yet
                targets = [f"{name}/"]
            else:
                targets = matched_paths(store.catalog, [name])
            for target in targets:
                now, path = store.set_policy(target, chosen), target.rstrip("/")
                session.report(
                    policy_record(path, now, chosen is not None), f"{printable(path)}: {now}"
                )


def _show_policy(session: Session, root: Path, paths: Sequence[str], text: str) -> None:
    from vfsd.core.retention_policy import RetentionPolicy
    from vfsd.maintenance.browser_policy import BrowserForecast, forecast_browser

    policy = RetentionPolicy.parse(text)
    with session.opened(root) as store:
        for path in matched_paths(store.catalog, paths):
            forecast = BrowserForecast(0, 0.0, 0)
            if policy.browser is not None:
                forecast = forecast_browser(store, path, policy.browser)
            session.report(
                policy_record(path, policy, True) | asdict(forecast),
                f"{printable(path)}: {policy} would make {forecast.videos} renditions of "
                f"{forecast.seconds:.1f} s, about {human_bytes(forecast.bytes)}",
            )


@define(
    "hold add",
    examples=["vfsd -s videos hold add cam1/traffic.mp4 --reason 'case 17'"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--reason",
    metavar="TEXT",
    required=True,
    help="Reason, which is part of the error for refused changes.",
)
def hold_add(session: Session, names: tuple[str, ...], reason: str) -> None:
    """Forbid changes to videos, and their removal.

    A VIDEO is a name or a pattern; later videos that match the pattern are not held. A video may
    have several holds, and is free when the last one is lifted.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_video_list(store, paths):
            made = video.policy.hold(reason)
            session.report(
                hold_record(video.name, made), f"{printable(video.name)} is held: {reason}"
            )


@define(
    "hold remove",
    examples=["vfsd -s videos hold remove cam1/traffic.mp4 --reason 'case 17 is closed'"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Reason, which is stored in the log.")
@click.option("--id", "number", metavar="N", type=int, help="Only the hold with this number.")
def hold_remove(session: Session, names: tuple[str, ...], reason: str, number: int | None) -> None:
    """Lift the holds of videos.

    The log (`vfsd age log`) keeps the video, the time of the hold, and the reason for lifting it.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_video_list(store, paths):
            for one in video.policy.release(reason, number):
                session.report(
                    hold_record(video.name, one),
                    f"{printable(video.name)} is released: {one.reason}",
                )


@define(
    "hold ls",
    examples=["vfsd -s videos hold ls", "vfsd -s videos hold ls cam1/traffic.mp4 --json"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
def hold_ls(session: Session, names: tuple[str, ...]) -> None:
    """List the holds of videos, and their reasons."""
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        videos = select_or_all(store, paths)
        found = [(video.name, one) for video in videos for one in video.policy.holds()]
    rows = []
    for name, one in found:
        if session.json:
            print_json(hold_record(name, one))
        else:
            rows.append(
                (str(one.id), local_time(one.at_ns), printable(name), printable(one.reason))
            )
    if not found:
        session.remark("there are no holds")
    print_table(rows, "><<<")


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
        },
        **ORDER_VARIANTS,
    },
    exits=[*MAKING_EXITS, RefusedMediaError, ForbiddenError, OutdatedError, *ORDER_EXITS],
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
@engine_options
@click.option("--dry-run", is_flag=True, help="Encode a few seconds, and print an estimate.")
def replace(
    session: Session,
    names: tuple[str, ...],
    codec: str,
    psnr: float | None,
    keep: str | None,
    on: str | None,
    units: Path | None,
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
        if on is not None or units is not None:
            run_on(
                *(session, store, "replace", select_video_list(store, paths)),
                {"psnr": psnr, "codec": codec, "keep": keep},
                on=on,
                units=units,
                dry_run=dry_run,
            )
            return
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
