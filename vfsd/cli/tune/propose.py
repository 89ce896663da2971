"""``vfsd tune``: which tiles and renditions pay, going by what was read, and making them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, print_remark, shown
from vfsd.cli.progress import Progress
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.tune.records import (
    DECISION_FIELDS,
    PROPOSAL_FIELDS,
    decision_record,
    proposal_record,
    what_for,
)
from vfsd.cli.values import Number, a_byte_count
from vfsd.core.timebase import clock, human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Decision, LogicalVideo
    from vfsd.derive.proposals import Proposal
    from vfsd.derive.tuner import Budget

_HEADINGS = ("video", "seconds", "segments", "for", "reads", "costs", "saves", "size")
_ALIGNMENT = "<<><>>>>"


@define(
    "tune",
    examples=[
        "vfsd -s videos tune",
        "vfsd -s videos tune cam1/traffic.mp4 --json",
        "vfsd -s videos tune --apply --budget-seconds 60 --budget-bytes 500M",
    ],
    fields=PROPOSAL_FIELDS,
    variants={"--apply": DECISION_FIELDS},
    exits=[
        NotFoundError,
        ReadOnlyError,
        IntegrityError,
        NoSpaceError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option(
    "--apply/--dry-run",
    "apply",
    default=False,
    help="Make them, or (the rule) only say which they are.",
)
@click.option(
    "--budget-seconds",
    metavar="S",
    type=Number(0),
    help="Begin no segment that would go beyond so many seconds of making them.",
)
@click.option(
    "--budget-bytes",
    metavar="B",
    type=a_byte_count,
    help="Begin no segment with which they would have more bytes: 5000000, 500M or 2G.",
)
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    apply: bool,
    budget_seconds: float | None,
    budget_bytes: int | None,
) -> None:
    """Say which tiles pay, going by what was read, and make them.

    A VIDEO is a name or a pattern; without one all are looked at of which reads are remembered (see
    `vfsd reads`).  It is told what they would be for (labels, regions), what making them costs, and
    what they save of the reads that were seen: in seconds of CPU time, by the store's own
    figures.  Where whole frames were read in a smaller size, renditions are proposed as well.

    With --apply they are made, those first that save most for what they cost.  Each second is
    made and used by itself: what was interrupted with Ctrl-C goes on when it is said again.
    `vfsd tune history` tells what was decided and why, `vfsd tune undo` takes it back.
    It ends with 30 where a video is damaged, or cannot be tiled: it is named, and left out.
    """
    from vfsd.derive.tuner import Budget

    budget = Budget(budget_seconds, budget_bytes)
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root, writing=apply) as store:
        chosen = [video.name for video in videos_named(store, paths)] if names else None
        if apply:
            _apply(session, store, chosen, budget)
        else:
            _foretell(session, store, chosen, budget)


# ------------------------------------------------------------------------------------- for real


def _apply(session: Session, store: Store, names: Sequence[str] | None, budget: Budget) -> None:
    failed: list[tuple[LogicalVideo, VfsdError]] = []
    with Progress("tiling what is read", None, shown=session.shows_progress) as progress:
        made = store.tune(
            names,
            budget=budget,
            on_progress=progress.reach,
            on_failed=lambda *one: failed.append(one),
        )
    for video, error in failed:
        print_remark(f"{shown(video.name)} is left out: {error}")
    if session.json:
        for decision in made:
            print_json(decision_record(_video(store, decision.video_id), decision))
    elif made:
        _tell(made)
    elif not failed:
        session.remark("nothing to make: `vfsd tune` says what there would be")
    if failed:
        click.get_current_context().exit(EXIT_FINDINGS)


def _tell(made: Sequence[Decision]) -> None:
    first, last = made[0].id, made[-1].id
    numbers = f"decision {first}" if first == last else f"decisions {first} to {last}"
    print_line(
        f"{len(made)} segments made in {sum(one.seconds for one in made):.1f} s, "
        f"{human_bytes(sum(one.bytes for one in made))}, which save "
        f"{sum(one.predicted_saved for one in made):.1f} s on the reads seen; {numbers}"
    )


def _video(store: Store, video_id: int) -> Video:
    with store.catalog.reading() as seen:
        return store.open_video(seen.videos.get(video_id))


# -------------------------------------------------------------------------------------- dry run


def _foretell(session: Session, store: Store, names: Sequence[str] | None, budget: Budget) -> None:
    with Progress("going through the reads", None, shown=session.shows_progress):
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
        session.remark("nothing to make: tiles and renditions would not pay for the reads so far")
        return
    if allowed:
        rows: list[tuple[str, ...]] = [_HEADINGS]
        rows += [_cells(videos[run[0].video.id], run) for run in _runs(allowed)]
        for line in columns(rows, _ALIGNMENT):
            print_line(line)
    session.remark(
        f"{len(allowed)} segments would take {_seconds(sum(one.seconds for one in allowed))} and "
        f"{human_bytes(sum(one.bytes for one in allowed))}, and save "
        f"{_seconds(sum(one.saved for one in allowed))} on the reads seen; "
        "`vfsd tune --apply` makes them"
    )
    if len(allowed) < len(proposals):
        session.remark(f"{len(proposals) - len(allowed)} more go beyond the budget")


def _runs(proposals: Sequence[Proposal]) -> Iterator[list[Proposal]]:
    """Neighbours in a video that are made for the same."""

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
        aims = frozenset((one.label, one.region, one.size) for one in proposal.reasons)
        numbered.append(((place, aims), proposal))
    for _, group in groupby(numbered, key=lambda pair: pair[0]):
        yield [proposal for _, proposal in group]


def _cells(video: Video, run: Sequence[Proposal]) -> tuple[str, ...]:
    from vfsd.cli.layout.records import span_of

    start, end = span_of(video, range(run[0].plan.frames.start, run[-1].plan.frames.stop))
    return (
        shown(video.name),
        f"{clock(start)}-{clock(end)}",
        str(len(run)),
        shown(what_for(video, [one.reasons for one in run])),
        str(max(one.reads for one in run)),
        _seconds(sum(one.seconds for one in run)),
        _seconds(sum(one.saved for one in run)),
        human_bytes(sum(one.bytes for one in run)),
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
