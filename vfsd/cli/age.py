"""``vfsd age``: replace and delete old videos according to their policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import column_lines, iso_time, local_time, print_json, print_line, printable
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.cli.video_args import select_video_list
from vfsd.core.timebase import human_bytes, human_wait
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    ForbiddenError,
    NoSpaceError,
    NoStoreError,
    NotFoundError,
    OutdatedError,
    ReadOnlyError,
    UsageError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.retention_policy import OriginalLogEntry
    from vfsd.derive.reencode import OnProgress, ReencodeForecast
    from vfsd.maintenance.age import RetentionExecutor, RetentionPlan
    from vfsd.maintenance.due_rules import DueStep, FreedSpace


LOG_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "id": "number of the line",
        "at": "ISO 8601, UTC",
        "action": "replaced, decayed, deleted, left (nothing could be done, or saved), held or "
        "released",
        "name": "path from the root of the store, as it was then",
        "reason": "why",
        "digest": "blake3 of the file before",
        "bytes": "of the file before",
        "new_digest": "blake3 of the file afterwards; null: it is the same, or the file is gone",
        "new_bytes": "of the file afterwards, or null",
        "saved": "bytes that are free since: of those that other files had, too, none; negative "
        "where they stay beside the new ones",
        "psnr": "dB that each picture has at least against the very first original, or null",
        "details": "object: what was measured, and how it was made",
    }
)


def log_record(entry: OriginalLogEntry) -> dict[str, Any]:
    """The values of `ENTRY_FIELDS`."""
    return {
        "id": entry.id,
        "at": iso_time(entry.at_ns),
        "action": entry.action.value,
        "name": entry.name,
        "reason": entry.reason,
        "digest": entry.digest,
        "bytes": entry.size,
        "new_digest": entry.new_digest,
        "new_bytes": entry.new_size,
        "saved": entry.saved,
        "psnr": entry.psnr,
        "details": dict(entry.details or {}),
    }


def log_text(entry: OriginalLogEntry) -> str:
    """For people."""
    text = f"{entry.action.value} {printable(entry.name)} ({entry.reason})"
    if entry.new_size is not None:
        text += f": {human_bytes(entry.size)} became {human_bytes(entry.new_size)}"
    why = (entry.details or {}).get("why")
    return f"{text}: {why}" if why else text


@define(
    "age",
    examples=[
        "vfsd -s videos age",
        "vfsd -s videos age cam1 --quick --json",
        "vfsd -s videos age --apply",
    ],
    fields={
        "name": "path from the root of the store",
        "stage": "replace, decay or delete; held: it would be due, and nobody may change it; left: "
        "nothing can be done, or would be saved",
        "reason": "what its policy says; of held ones null",
        "bytes": "of the file",
        "saved": "bytes that would be free afterwards, about: of those that other files have, too, "
        "none; negative where they stay beside the new ones; null: not known",
        "psnr": "dB of the worst picture among those that were encoded, against the very first "
        "original, where it decays of the areas that are kept; null: nothing was encoded",
        "frames": "that were encoded",
        "failed": "why nothing could be encoded, or nothing can be done, if that was found out "
        "just now; or null",
    },
    variants={"--apply": LOG_FIELDS},
    exits=[
        NotFoundError,
        ReadOnlyError,
        ForbiddenError,
        NoStoreError,
        NoSpaceError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="[PATH]...", nargs=-1)
@click.option(
    "--apply/--dry-run",
    "apply",
    default=False,
    help="Do it, or (the rule) only say what would be done, and measure what it would save and "
    "lose.",
)
@click.option("--quick", is_flag=True, help="With --dry-run: encode nothing to measure it.")
@click.option(
    "--clock-is-right",
    is_flag=True,
    help="Believe the clock although nothing was written down for a week, something at a time that "
    "is still to come, or earlier than what came before it, or most videos would go.",
)
@click.pass_obj
def age(
    session: Session, names: tuple[str, ...], apply: bool, quick: bool, clock_is_right: bool
) -> None:
    """Replace, and delete, what is old enough, as policies have it.

    A PATH is a video, a pattern, or a directory with all below it; without one all videos are
    meant.  Ages count from the last change of a file, or from when the store got it if that was
    later.  The oldest come first.  What is held, or indexed in place, is left alone, and so is all
    while the clock of this machine does not agree with what the store has written down; with
    --apply it is remembered that the clock was believed, so that --clock-is-right need not be said
    twice of the same.  Meant to be run by cron; what fails for one video (exit code 30) does not
    stop the others.
    """
    from vfsd.maintenance.age import RetentionExecutor

    if apply and quick:
        raise UsageError("--quick goes with --dry-run", hint="leave one of --quick and --apply out")
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root, writing=apply) as store:
        ager = RetentionExecutor(
            store.parts, _chosen_videos(store, paths), is_clock_right=clock_is_right
        )
        plan = ager.plan()
        with Progress("", None, shown=session.shows_progress) as progress:
            if apply:
                ager.remember_clock()
                failed = _apply_plan(session, ager, plan, progress)
                if failed:
                    click.get_current_context().exit(EXIT_FINDINGS)
                return
            _print_forecasts(session, ager, plan, progress, quick=quick)


def _chosen_videos(store: Store, paths: Sequence[str]) -> list[Video]:
    if not paths:
        return list(store.find())
    found: dict[str, Video] = {}
    for path in paths:
        is_dir = path not in store and _is_dir(store, path)
        some = store.find(f"{path}/**") if is_dir else select_video_list(store, [path])
        found.update((video.name, video) for video in some)
    return list(found.values())


def _is_dir(store: Store, path: str) -> bool:
    try:
        return store.node(path).is_dir
    except NotFoundError:
        return False


def _progress_callback(progress: Progress) -> OnProgress:
    def report(what: str, done: int, total: int) -> None:
        progress.label(what)
        progress.reach(done, total)

    return report


def _apply_plan(
    session: Session, ager: RetentionExecutor, plan: RetentionPlan, progress: Progress
) -> int:
    """How many failed."""
    done, failed = 0, 0
    for due in plan.due:
        try:
            entry = ager.apply(due, _progress_callback(progress))
        except NoSpaceError:
            raise
        except OutdatedError as error:  # nothing has failed: who asks again sees what is due now
            with progress.aside():
                session.remark(printable(str(error)))
            continue
        except VfsdError as error:
            failed += 1
            with progress.aside():
                click.echo(f"vfsd: {printable(due.aged.name)}: {error}", err=True)
            continue
        done += entry.saved
        with progress.aside():
            if session.json:
                print_json(log_record(entry))
            else:
                session.remark(log_text(entry))
    with progress.aside():
        session.remark(f"{human_bytes(done)} saved" if plan.due else _nothing_due_text(plan))
    return failed


def _print_forecasts(
    session: Session,
    ager: RetentionExecutor,
    plan: RetentionPlan,
    progress: Progress,
    *,
    quick: bool,
) -> None:
    from vfsd.maintenance.age import CANNOT_BE_DONE
    from vfsd.maintenance.due_rules import FreedSpace

    total, given_up = 0, FreedSpace()
    made: set[object] = set()
    for due in plan.due:
        told: ReencodeForecast | None = None
        why: str | None = None
        if not quick:
            try:
                told = ager.forecast(due, _progress_callback(progress))
            except CANNOT_BE_DONE as error:
                with progress.aside():
                    _print_left(session, due, str(error))
                continue
            except VfsdError as error:
                why = str(error)
        if told is not None and told.stays:
            with progress.aside():
                _print_left(session, due, told.refused)
            continue
        record = _forecast_record(due, told, why, given_up, made)
        total += record["saved"] or 0
        with progress.aside():
            if session.json:
                print_json(record)
            else:
                print_line(_forecast_text(due, record))
    with progress.aside():
        for held in plan.held:
            if session.json:
                print_json(_other_record(held.name, "held", None, held.size))
            else:
                print_line(f"held: {printable(held.name)}")
        for left in plan.left:
            _print_left(session, left)
        session.remark(
            f"about {human_bytes(total)} would be saved" if plan.due else _nothing_due_text(plan)
        )


def _print_left(session: Session, due: DueStep, why: str | None = None) -> None:
    """`why` is given where it was found out just now."""
    aged = due.aged
    if session.json:
        print_json({**_other_record(aged.name, "left", due.reason, aged.size), "failed": why})
    elif why is not None:
        print_line(f"left: {printable(aged.name)}: {due.reason}; {why}")


def _nothing_due_text(plan: RetentionPlan) -> str:
    """Why nothing is due, or when something will be."""
    from vfsd.maintenance.due_rules import NS

    if plan.waiting:
        left, aged = plan.waiting[0]
        return f"nothing is due; the next is {printable(aged.name)}, in {human_wait(left / NS)}"
    if plan.held or plan.left:
        return "nothing is due but what is held, or cannot be made smaller"
    if plan.goes_by_room:
        return "nothing is due: there is as much room as policies ask for"
    return "nothing is due, nor will it be: `vfsd policy set` says what becomes of videos, and when"


def _saved_bytes(
    due: DueStep, told: ReencodeForecast | None, given_up: FreedSpace, made: set[object]
) -> int | None:
    """Bytes that would be free afterwards; None: that is not known.  What is `made` of the same
    bytes in the same way is the same file, and stored once."""
    if due.stage.value == "delete":
        return given_up.by(due.aged)
    if told is None:
        given_up.perhaps(due.aged)
        return None
    if not told.saves:
        return 0
    freed = given_up.by(due.aged)
    new = (due.aged.digest, due.stage, told.codec, told.psnr, told.new_size)
    added = 0 if new in made else told.new_size
    made.add(new)
    return None if freed is None else freed - added


def _forecast_record(
    due: DueStep,
    told: ReencodeForecast | None,
    why: str | None,
    given_up: FreedSpace,
    made: set[object],
) -> dict[str, Any]:
    saved = _saved_bytes(due, told, given_up, made)
    return {
        "name": due.aged.name,
        "stage": due.stage.value,
        "reason": due.reason,
        "bytes": due.aged.size,
        "saved": saved,
        "psnr": None if told is None or told.psnr == float("inf") else told.psnr,
        "frames": 0 if told is None else told.frames,
        "failed": why,
    }


def _other_record(name: str, stage: str, reason: str | None, size: int) -> dict[str, Any]:
    return {
        "name": name,
        "stage": stage,
        "reason": reason,
        "bytes": size,
        "saved": 0,
        "psnr": None,
        "frames": 0,
        "failed": None,
    }


def _forecast_text(due: DueStep, record: dict[str, Any]) -> str:
    parts = [f"{printable(due.aged.name)}: {due.reason}"]
    saved = record["saved"]
    if saved is not None and saved < 0:
        parts.append(f"about {human_bytes(-saved)} more, as another file has these bytes")
    elif saved is not None:
        parts.append(f"about {human_bytes(saved)} of {human_bytes(due.aged.size)} saved")
    if record["psnr"] is not None:
        where = " around what is kept," if due.stage.value == "decay" else ""
        parts.append(f"{record['psnr']:.1f} dB{where} in the worst of {record['frames']} frames")
    if record["failed"]:
        parts.append(record["failed"])
    return "; ".join(parts)


@define(
    "age log",
    examples=["vfsd -s videos age log", "vfsd -s videos age log cam1/traffic.mp4 --json"],
    fields=LOG_FIELDS,
    listing=True,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the newest N.")
@click.pass_obj
def age_log(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List what became of originals and why, the newest first.

    Lines about videos that are gone stay; a NAME is what a video was called then.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.looked_into(root) as parts, parts.catalog.reading() as seen:
        found = [one for one in seen.originals.log() if not paths or one.name in paths][:limit]
    rows = []
    for one in found:
        if session.json:
            print_json(log_record(one))
            continue
        after = "" if one.new_size is None else human_bytes(one.new_size)
        quality = "" if one.psnr is None else f"{one.psnr:.1f} dB"
        rows.append(
            (
                local_time(one.at_ns),
                one.action.value,
                human_bytes(one.size),
                after,
                quality,
                printable(one.name),
                printable(one.reason),
            )
        )
    if not found:
        session.remark("nothing has become of any original")
    for line in column_lines(rows, "<<>>><<"):
        print_line(line)
