"""``vfsd age``: replace and delete old videos according to their policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define, limit_option
from vfsd.cli.output import (
    Progress,
    local_time,
    print_json,
    print_line,
    print_table,
    printable,
)
from vfsd.cli.session import Session, select_video_list
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
from vfsd.records.original_records import (
    AGE_FIELDS,
    LOG_FIELDS,
    forecast_record,
    log_record,
    unchanged_record,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.retention_policy import OriginalLogEntry
    from vfsd.derive.reencode import ReencodeForecast
    from vfsd.maintenance.age import RetentionExecutor, RetentionPlan
    from vfsd.maintenance.due_rules import DueStep


def log_text(entry: OriginalLogEntry) -> str:
    """The line for people."""
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
    fields=AGE_FIELDS,
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
    help="Apply the policies, or only print what would be done, with measured savings and losses "
    "(the default).",
)
@click.option("--quick", is_flag=True, help="With --dry-run: measure nothing, so encode nothing.")
@click.option(
    "--clock-is-right",
    is_flag=True,
    help="Trust the clock although it is behind the newest time in the store, or more than 30 days "
    "after the last run, and allow a run that deletes most videos.",
)
def age(
    session: Session, names: tuple[str, ...], apply: bool, quick: bool, clock_is_right: bool
) -> None:
    """Replace and delete old videos according to their policies.

    A PATH is a video, a pattern, or a directory with everything below it; the default is all
    videos. The age counts from the end of the recording, the arrival in the store, or the last
    change of the file, whichever is latest; with clock=recording in the policy, from the recording.
    The output names the time that counted. The oldest videos come first. Videos with a hold, or
    indexed in place, are not changed.

    The command refuses to work by a clock that is behind the newest time in the store, or more than
    30 days after the last run with --apply (before the first run: after the first video was
    stored). If the clock is right, give --clock-is-right once. The command is meant for cron: an
    error of one video (exit code 30) does not stop the others.
    """
    from vfsd.maintenance.age import RetentionExecutor

    if apply and quick:
        raise UsageError("--quick needs --dry-run", hint="leave out --quick or --apply")
    root, paths = session.places_or_root(names)
    with session.opened(root, writing=apply) as store:
        executor = RetentionExecutor(
            store.parts, _chosen_videos(store, paths), is_clock_right=clock_is_right
        )
        plan = executor.plan()
        with Progress("", None, shown=session.shows_progress) as progress:
            if apply:
                # Before the first change: an interrupted run counts as one that trusted the clock.
                executor.remember_clock()
                failed = _apply_plan(session, executor, plan, progress)
                if failed:
                    click.get_current_context().exit(EXIT_FINDINGS)
                return
            _print_forecasts(session, executor, plan, progress, quick=quick)


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


def _apply_plan(
    session: Session, executor: RetentionExecutor, plan: RetentionPlan, progress: Progress
) -> int:
    """Apply the plan. Returns the number of failures."""
    done, failed = 0, 0
    for due in plan.due:
        try:
            entry = executor.apply(due, progress.step)
        except NoSpaceError:  # it would hit the next video, too
            raise
        except OutdatedError as error:  # not a failure: the next run has a new plan
            with progress.hidden():
                session.remark(printable(str(error)))
            continue
        except VfsdError as error:
            failed += 1
            with progress.hidden():
                click.echo(f"vfsd: {printable(due.candidate.name)}: {error}", err=True)
            continue
        done += entry.saved
        with progress.hidden():
            session.report(log_record(entry), log_text(entry))
    with progress.hidden():
        session.remark(f"{human_bytes(done)} saved" if plan.due else _nothing_due_text(plan))
    return failed


def _print_forecasts(
    session: Session,
    executor: RetentionExecutor,
    plan: RetentionPlan,
    progress: Progress,
    *,
    quick: bool,
) -> None:
    from vfsd.maintenance.age import IMPOSSIBLE_ERRORS
    from vfsd.maintenance.due_rules import FreedSpace

    total, freed_so_far = 0, FreedSpace()
    made: set[object] = set()
    for due in plan.due:
        forecast: ReencodeForecast | None = None
        why: str | None = None
        if not quick:
            try:
                forecast = executor.forecast(due, progress.step)
            except IMPOSSIBLE_ERRORS as error:
                with progress.hidden():
                    _print_left(session, due, plan.now_ns, str(error))
                continue
            except VfsdError as error:
                why = str(error)
        if forecast is not None and forecast.stays:
            with progress.hidden():
                _print_left(session, due, plan.now_ns, forecast.refused)
            continue
        record = forecast_record(due, forecast, why, freed_so_far, made, plan.now_ns)
        total += record["saved"] or 0
        with progress.hidden():
            session.print_result(record, _forecast_text(due, record))
    with progress.hidden():
        for held in plan.held:
            session.print_result(
                unchanged_record(held, "held", None, plan.now_ns),
                f"held: {printable(held.name)}",
            )
        for left in plan.left:
            _print_left(session, left, plan.now_ns)
        session.remark(
            f"about {human_bytes(total)} would be saved" if plan.due else _nothing_due_text(plan)
        )


def _print_left(session: Session, due: DueStep, now_ns: int, why: str | None = None) -> None:
    """Print a video that stays unchanged. `why` is set if the reason was found in this run."""
    candidate = due.candidate
    if session.json:
        print_json({**unchanged_record(candidate, "left", due.reason, now_ns), "failed": why})
    elif why is not None:
        print_line(f"left: {printable(candidate.name)}: {due.reason}; {why}")


def _nothing_due_text(plan: RetentionPlan) -> str:
    """Why nothing is due, or when the next action is due."""
    from vfsd.maintenance.due_rules import NS

    if plan.waiting:
        left, candidate = plan.waiting[0]
        return (
            f"nothing is due; the next is {printable(candidate.name)}, in {human_wait(left / NS)}"
        )
    if plan.held or plan.left:
        return "nothing is due, except videos with a hold or without possible savings"
    if plan.may_free_space:
        return "nothing is due: the disk has as much space as the policies require"
    return "nothing is due, and no policy will make it so: see `vfsd policy set`"


def _forecast_text(due: DueStep, record: dict[str, Any]) -> str:
    since = f"its age counts from {record['since'][:10]} ({record['clock']})"
    parts = [f"{printable(due.candidate.name)}: {due.reason}", since]
    saved = record["saved"]
    if saved is not None and saved < 0:
        parts.append(f"about {human_bytes(-saved)} more, as another file has these bytes")
    elif saved is not None:
        parts.append(f"about {human_bytes(saved)} of {human_bytes(due.candidate.size)} saved")
    if record["psnr"] is not None:
        where = " in the kept regions," if due.stage.value == "decay" else ""
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
@limit_option
def age_log(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List changes of originals and their reasons, newest first.

    Entries of deleted videos stay; a NAME is the name of a video at that time.
    """
    root, paths = session.places_or_root(names)
    with session.opened_context(root) as parts, parts.catalog.reading() as seen:
        found = [one for one in seen.retention.log() if not paths or one.name in paths][:limit]
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
        session.remark("no original was changed")
    print_table(rows, "<<>>><<")
