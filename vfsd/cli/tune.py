"""``vfsd tune``: tiles and renditions that the read log suggests.

Layouts, regions and sizes refer to the displayed frame, and times to the first frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import MAKING_EXITS, define, limit_option
from vfsd.cli.options import Number, byte_count_value
from vfsd.cli.output import (
    Progress,
    local_time,
    print_json,
    print_line,
    print_remark,
    print_table,
    printable,
)
from vfsd.cli.session import Session, select_video_list
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_units
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    ExistsError,
    NotFoundError,
    OutdatedError,
    ReadOnlyError,
    UsageError,
    VfsdError,
)
from vfsd.records.tile_records import (
    DECISION_FIELDS,
    PROPOSAL_FIELDS,
    decision_record,
    displayed_region,
    displayed_size,
    proposal_record,
    span_of,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import LogicalVideo, TilingDecision, TilingReason
    from vfsd.derive.proposals import Proposal
    from vfsd.derive.tuner import TuningBudget


def reasons_text(video: Video, reasons: Sequence[Iterable[TilingReason]]) -> str:
    """The reads that several segments serve, as words, most frequent first."""
    counted: dict[str, int] = {}
    for reason in (one for reasons_of_one in reasons for one in reasons_of_one):
        size = displayed_size(video, reason)
        name = reason.label or displayed_region(video, reason) or "x".join(map(str, size or ()))
        counted[name] = counted.get(name, 0) + reason.reads
    return ", ".join(sorted(counted, key=lambda name: (-counted[name], name)))


_PROPOSAL_HEADINGS = ("video", "seconds", "segments", "for", "reads", "costs", "saves", "size")
_PROPOSAL_ALIGNMENT = "<<><>>>>"


@define(
    "tune",
    examples=[
        "vfsd -s videos tune",
        "vfsd -s videos tune cam1/traffic.mp4 --json",
        "vfsd -s videos tune --apply --budget-seconds 60 --budget-bytes 500M",
    ],
    fields=PROPOSAL_FIELDS,
    variants={"--apply": DECISION_FIELDS, **ORDER_VARIANTS},
    exits=[*MAKING_EXITS, *ORDER_EXITS],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option(
    "--apply/--dry-run",
    "apply",
    default=False,
    help="Make the tiles, or only list them (the default).",
)
@click.option(
    "--budget-seconds",
    metavar="S",
    type=Number(0),
    help="Start no segment whose predicted time would exceed this total.",
)
@click.option(
    "--budget-bytes",
    metavar="B",
    type=byte_count_value,
    help="Start no segment whose predicted size would exceed this total: 5000000, 500M or 2G.",
)
@engine_options
def tune(
    session: Session,
    names: tuple[str, ...],
    apply: bool,
    budget_seconds: float | None,
    budget_bytes: int | None,
    on: str | None,
    units: Path | None,
) -> None:
    """List tiles that pay for the logged reads, and make them.

    A VIDEO is a name or a pattern; the default is all videos in the read log (`vfsd reads`). Each
    line has the labels or regions that the tiles serve, the cost to make them, and the savings on
    the logged reads, in CPU seconds predicted by the cost model of the store. For reads of whole
    frames in a smaller size, renditions are proposed as well.

    --apply makes them, the best ratio of savings to cost first. Each second of video is made and
    used on its own. After Ctrl-C, the same command continues. `vfsd tune history` lists the
    decisions, `vfsd tune undo` reverts one. With --on, other processes make
    the tiles, and views that are cached on this machine are left for --apply. A video that is
    damaged or cannot be tiled is named and skipped, and the exit code is 30.
    """
    from vfsd.derive.tuner import TuningBudget

    budget = TuningBudget(budget_seconds, budget_bytes)
    root, paths = session.places_or_root(names)
    with session.opened(root, writing=apply or on is not None) as store:
        chosen = [video.name for video in select_video_list(store, paths)] if names else None
        if on is not None or units is not None:
            from vfsd.work.orders import make_tune_units

            with Progress("searching the read log", None, shown=session.shows_progress):
                found = make_tune_units(store, chosen, budget)
            spec = {"budget_seconds": budget_seconds, "budget_bytes": budget_bytes}
            run_units(session, store, "tune", chosen or [], spec, found, on=on, units=units)
            return
        if apply:
            _make_proposals(session, store, chosen, budget)
        else:
            _print_proposals(session, store, chosen, budget)


# --------------------------------------------------------------------------------------------- make


def _make_proposals(
    session: Session, store: Store, names: Sequence[str] | None, budget: TuningBudget
) -> None:
    failed: list[tuple[LogicalVideo, VfsdError]] = []
    with Progress("making tiles", None, shown=session.shows_progress) as progress:
        made = store.tune(
            names,
            budget=budget,
            on_progress=progress.reach,
            on_failed=lambda *one: failed.append(one),
        )
    for video, error in failed:
        print_remark(f"{printable(video.name)} is skipped: {error}")
    if session.json:
        for decision in made:
            print_json(decision_record(_video_of(store, decision.video_id), decision))
    elif made:
        _print_made(made)
    elif not failed:
        session.remark("nothing to make; `vfsd tune` lists proposals")
    if failed:
        click.get_current_context().exit(EXIT_FINDINGS)


def _print_made(made: Sequence[TilingDecision]) -> None:
    first, last = made[0].id, made[-1].id
    numbers = f"decision {first}" if first == last else f"decisions {first} to {last}"
    print_line(
        f"made {len(made)} segments in {sum(one.seconds for one in made):.1f} s, "
        f"{human_bytes(sum(one.bytes for one in made))}; they save "
        f"{sum(one.predicted_saved for one in made):.1f} s on the logged reads; {numbers}"
    )


def _video_of(store: Store, video_id: int) -> Video:
    with store.catalog.reading() as seen:
        return store.open_video(seen.videos.get(video_id))


# ---------------------------------------------------------------------------------------- proposals


def _print_proposals(
    session: Session, store: Store, names: Sequence[str] | None, budget: TuningBudget
) -> None:
    with Progress("searching the read log", None, shown=session.shows_progress):
        proposals = store.proposals(names)
    videos = {one.video.id: store.open_video(one.video) for one in proposals}
    allowed = []
    for proposal in proposals:
        if is_allowed := budget.allows(proposal):
            budget = budget.less(proposal.seconds, proposal.bytes)
            allowed.append(proposal)
        if session.json:
            video = videos[proposal.video.id]
            print_json(proposal_record(video, proposal, allowed=is_allowed))
    if session.json:
        return
    if not proposals:
        session.remark("nothing to make: tiles and renditions would not pay for the logged reads")
        return
    if allowed:
        rows: list[tuple[str, ...]] = [_PROPOSAL_HEADINGS]
        rows += [_proposal_cells(videos[run[0].video.id], run) for run in _runs(allowed)]
        print_table(rows, _PROPOSAL_ALIGNMENT)
    session.remark(
        f"{len(allowed)} segments would take "
        f"{_seconds_text(sum(one.seconds for one in allowed))} and "
        f"{human_bytes(sum(one.bytes for one in allowed))}, and save "
        f"{_seconds_text(sum(one.saved for one in allowed))} on the logged reads; `vfsd tune "
        "--apply` makes them"
    )
    if len(allowed) < len(proposals):
        session.remark(f"{len(proposals) - len(allowed)} more exceed the budget")


def _runs(proposals: Sequence[Proposal]) -> Iterator[list[Proposal]]:
    """Adjacent proposals of a video that serve the same reads."""

    def by_place(proposal: Proposal) -> tuple[str, tuple[int, int], int]:
        layout, frames = proposal.plan.layout, proposal.plan.frames
        return proposal.video.name, (layout.width, layout.height), frames.start

    order = sorted(proposals, key=by_place)
    place, numbered = 0, []
    for number, proposal in enumerate(order):
        before = order[number - 1]
        follows = before.plan.frames.stop == proposal.plan.frames.start
        if before.video.id != proposal.video.id or not follows:
            place += 1
        purposes = frozenset((one.label, one.region, one.size) for one in proposal.reasons)
        numbered.append(((place, purposes), proposal))
    for _, group in groupby(numbered, key=lambda pair: pair[0]):
        yield [proposal for _, proposal in group]


def _proposal_cells(video: Video, run: Sequence[Proposal]) -> tuple[str, ...]:

    start, end = span_of(video, range(run[0].plan.frames.start, run[-1].plan.frames.stop))
    return (
        printable(video.name),
        f"{clock_text(start)}-{clock_text(end)}",
        str(len(run)),
        printable(reasons_text(video, [one.reasons for one in run])),
        str(max(one.reads for one in run)),
        _seconds_text(sum(one.seconds for one in run)),
        _seconds_text(sum(one.saved for one in run)),
        human_bytes(sum(one.bytes for one in run)),
    )


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


_DECISION_HEADINGS = (
    "id",
    "made",
    "by",
    "video",
    "seconds",
    "for",
    "reads",
    "thought",
    "took",
    "saves",
    "size",
    "state",
)
_DECISION_ALIGNMENT = "><<<<<>>>>><"


@define(
    "tune history",
    examples=[
        "vfsd -s videos tune history",
        "vfsd -s videos tune history cam1/traffic.mp4 --limit 10 --json",
    ],
    fields=DECISION_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@limit_option
def tune_history(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List the decisions of the tuner, newest first.

    Each line has the predicted and the actual cost in CPU seconds, and the predicted savings on the
    reads logged at that time.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        chosen = {video.info.id for video in select_video_list(store, paths)} if names else None
        found = [
            one for one in store.catalog.decisions() if chosen is None or one.video_id in chosen
        ][:limit]
        videos = _videos_of(store, found)
        if session.json:
            for one in found:
                print_json(decision_record(videos[one.video_id], one))
            return
        if not found:
            session.remark("no decisions yet; `vfsd tune` lists proposals")
            return
        rows = [_DECISION_HEADINGS, *(_decision_cells(videos[one.video_id], one) for one in found)]
        print_table(rows, _DECISION_ALIGNMENT)


def _videos_of(store: Store, found: Sequence[TilingDecision]) -> dict[int, Video]:
    with store.catalog.reading() as seen:
        return {
            number: store.open_video(seen.videos.get(number))
            for number in {one.video_id for one in found}
        }


def _decision_cells(video: Video, one: TilingDecision) -> tuple[str, ...]:

    start, end = span_of(video, one.frames)
    return (
        str(one.id),
        local_time(one.at_ns),
        one.maker,
        printable(video.name),
        f"{clock_text(start)}-{clock_text(end)}",
        printable(reasons_text(video, [one.reasons])),
        str(one.reads),
        f"{one.predicted_seconds:.2f}",
        f"{one.seconds:.2f}",
        f"{one.predicted_saved:.2f}",
        human_bytes(one.bytes),
        one.state,
    )


@define(
    "tune undo",
    examples=["vfsd -s videos tune undo --last"],
    fields={
        "id": "number of the decision",
        "name": "path from the root of the store",
        "frames": "[first, end) of its frames",
        "span": "[from, to] in seconds",
        "restored": "number of segments that reads use again",
    },
    exits=[NotFoundError, ExistsError, ReadOnlyError, OutdatedError],
)
@click.argument("number", metavar="[ID]", type=int, required=False)
@click.option("--last", is_flag=True, help="The latest decision in use.")
def tune_undo(session: Session, number: int | None, last: bool) -> None:
    """Undo a decision: reads use the data from before.

    Reads logged until now no longer suggest the same tiles; later reads may. `vfsd layout rollback`
    reverts the undo.
    """
    from vfsd.derive.tuner import undo_decision

    if (number is None) != last:
        raise UsageError(
            "give either the number of a decision or --last", hint="see `vfsd tune history`"
        )
    with session.opened(session.root(), writing=True) as store:
        decision, restored = undo_decision(store.parts, number)
        with store.catalog.reading() as seen:
            video = store.open_video(seen.videos.get(decision.video_id))
        start, end = span_of(video, decision.frames)
    if session.json:
        print_json(
            {
                "id": decision.id,
                "name": video.name,
                "frames": [decision.first_frame, decision.end_frame],
                "span": [float(start), float(end)],
                "restored": len(restored),
            }
        )
        return
    state = "reads use the original"
    if restored:
        state = f"{len(restored)} segments are in use again"
    session.remark(
        f"decision {decision.id} is undone: in {printable(video.name)}, {clock_text(start)} to "
        f"{clock_text(end)}, {state}"
    )
