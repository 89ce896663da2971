"""``vfsd work``: orders of work in units, and the option ``--on`` that makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vfsd.cli.command import define
from vfsd.cli.output import (
    Progress,
    local_time,
    print_facts,
    print_json,
    print_line,
    print_table,
    printable,
)
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    BusyError,
    ExtraMissingError,
    NotFoundError,
    ReadOnlyError,
    UnreachableError,
    UsageError,
)
from vfsd.records.work_records import ORDER_FIELDS, order_record

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.work.orders import Order, OrderState
    from vfsd.work.plan import PlanSegments
    from vfsd.work.units import Unit

_F = TypeVar("_F", bound=Callable[..., Any])

LATER = "later"
# How long a second Ctrl-C cancels an order.
_CANCEL_SECONDS = 3.0
# Failures that are printed for people; --json has all.
_SHOWN_FAILURES = 20


PLAN_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "units": "number of units",
        "cost": "expected CPU seconds",
        "file": "the file with the units, or null",
    }
)
"""Keys of a plan that is not stored."""

ORDER_VARIANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"--on": ORDER_FIELDS, "--units": PLAN_FIELDS}
)
ORDER_EXITS = (EXIT_FINDINGS, BusyError, ExtraMissingError, UnreachableError)
"""Exit codes of commands with ``--on``."""


def engine_options(function: _F) -> _F:
    """Add the parameters `on` and `units` to a command."""
    units = click.option(
        "--units",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Only write the units to this file, one JSON object a line.",
    )
    return click.option(
        "--on",
        metavar="ENGINE",
        help="Work in units on local:N (processes), ray, ray://HOST:PORT or dask://HOST:PORT; "
        f"{LATER} only plans them, for `vfsd work run`. Ctrl-C leaves them running, a second one "
        "cancels them. Ends with 30 if a unit failed, with 12 if some were not performed.",
    )(units(function))


def run_on(
    session: Session,
    store: Store,
    verb: str,
    videos: Sequence[Video],
    spec: Mapping[str, Any],
    *,
    on: str | None,
    units: Path | None,
    plan: PlanSegments | None = None,
    dry_run: bool = False,
) -> None:
    """Plan an order about videos and perform it on an engine, or write its units to a file.

    `spec` and `plan` are those of `vfsd.work.make_units`.  Videos that have to be verified for it
    are verified by an order of their own.
    """
    from vfsd.work.orders import create_order, make_units

    names = [video.name for video in videos]

    if verb in ("retile", "render") and on is not None and not dry_run:
        unverified = [video for video in videos if not video.original.verified]
        if unverified:
            if on == LATER:
                raise UsageError(
                    f"{unverified[0].name} was not verified", hint="run `vfsd verify` first"
                )
            checks = list(make_units("verify", unverified, {}))
            unsure = [video.name for video in unverified]
            order = create_order(store, "verify", unsure, spec={}, units=checks)
            _perform(session, order, on)
            videos = [store[name] for name in names]
    label = f"planning {verb}"
    with Progress(label, len(videos), shown=session.shows_progress) as progress:
        found: list[Unit] = []
        for number, video in enumerate(videos):
            found += make_units(verb, [video], spec, plan=plan)
            progress.reach(number + 1, len(videos))
    run_units(session, store, verb, names, spec, found, on=on, units=units, dry_run=dry_run)


def run_units(
    session: Session,
    store: Store,
    verb: str,
    names: Sequence[str],
    spec: Mapping[str, Any],
    found: Sequence[Unit],
    *,
    on: str | None,
    units: Path | None,
    dry_run: bool = False,
    concludes: bool = True,
) -> None:
    """Store planned units as an order and perform it on an engine, or write them to a file.

    The result is printed if `concludes`, and where the order is left for later or has failures.
    """
    from vfsd.work.orders import create_order

    if units is not None or dry_run or on is None:
        _report_plan(session, [one.to_json() for one in found], units)
        return
    order = create_order(store, verb, names, spec=spec, units=found)
    if on == LATER:
        _report(session, order, order.state())
        return
    _perform(session, order, on)
    state = order.state()
    if concludes or state.failures or state.ended < state.units:
        _conclude(session, order, state)


def _report_plan(session: Session, units: Sequence[Mapping[str, Any]], file: Path | None) -> None:
    cost = sum(float(one["cost"]) for one in units)
    if file is not None:
        text = "".join(f"{json.dumps(one)}\n" for one in units)
        file.write_text(text, encoding="utf-8")
    record = {"units": len(units), "cost": cost, "file": None if file is None else os.fspath(file)}
    session.print_result(record, f"{len(units)} units, about {_cpu_text(cost)}")


def _perform(session: Session, order: Order, on: str) -> None:
    session.remark(
        f"order {order.id}: {order.record.units} units, about {_cpu_text(order.record.cost)}"
    )
    from vfsd.work.units import LeaveRunning

    began, before = time.monotonic(), order.state().frames
    stopping = f"\nvfsd: leaving order {order.id} running; Ctrl-C again cancels it\n".encode()
    try:
        with Progress(
            f"order {order.id}",
            order.record.units,
            shown=session.shows_progress,
            stopping=stopping,
        ) as progress:

            def on_progress(state: OrderState) -> None:
                speed = (state.frames - before) / max(0.5, time.monotonic() - began)
                try:
                    progress.step(_progress_text(state, speed), state.ended, state.units)
                except KeyboardInterrupt:
                    raise LeaveRunning from None

            order.run(on, on_progress=on_progress)
    except LeaveRunning:
        if not on.startswith("local"):  # other engines end the tasks of a process that ends
            _run_apart(order, on)
        try:
            if session.shows_progress:
                time.sleep(_CANCEL_SECONDS)
        except KeyboardInterrupt:
            _cancel(session, order)
        else:
            session.remark(
                f"order {order.id} goes on: `vfsd work show {order.id}` shows it, "
                f"`vfsd work cancel {order.id}` cancels it"
            )
        raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        _cancel(session, order)
        raise


def _progress_text(state: OrderState, speed: float) -> str:
    workers = len(set(state.running.values()))
    return (
        f"{speed:.0f} frames/s  {workers} workers  {state.again} again  "
        f"{len(state.failures)} failed"
    )


def _cancel(session: Session, order: Order) -> None:
    order.cancel()
    session.remark(
        f"order {order.id} is cancelled; `vfsd work retry {order.id}` takes that back, and "
        f"`vfsd work run {order.id}` continues"
    )


def _run_apart(order: Order, on: str) -> None:
    """Continue an order in a process that outlives this one and its terminal."""
    subprocess.Popen(
        [sys.executable, "-m", "vfsd", "-s", order.root, "work", "run", order.id, "--on", on],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _conclude(session: Session, order: Order, state: OrderState, *, whole: bool = True) -> None:
    """Print the result; set the exit code if units failed or are left."""
    _report(session, order, state)
    for number, row in sorted(state.failures.items())[:_SHOWN_FAILURES]:
        session.remark(f"unit {number} {row.outcome}: {row.error or ''}")
    if state.failures:
        session.remark(f"`vfsd work retry {order.id} --failed` lets them run again")
        click.get_current_context().exit(EXIT_FINDINGS)
    left = state.units - state.ended
    if whole and left:
        raise BusyError(
            f"{left} of {state.units} units were not performed",
            hint=f"`vfsd work retry {order.id}` takes back a cancellation, and "
            f"`vfsd work run {order.id}` continues",
        )


def _report(session: Session, order: Order, state: OrderState) -> None:
    if session.json:
        print_json(order_record(order, state))
    else:
        print_line(f"{order.id}  {_state_text(order, state)}")


def _state_text(order: Order, state: OrderState) -> str:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in state.counts.items())
    text = f"{order.record.verb}, {state.units} units: {counts or 'none'}"
    if state.runs:
        text += (
            f"; {state.frames} frames, {_cpu_text(state.cpu_seconds)}, "
            f"{human_bytes(state.bytes_written)} written by {len(state.workers)} processes"
        )
    return text if order.record.cancelled_ns is None else f"{text}; cancelled"


def _cpu_text(seconds: float) -> str:
    return f"{seconds:.1f} CPU s" if seconds < 600 else f"{seconds / 3600:.1f} CPU h"


# --------------------------------------------------------------------------------------- commands


order_argument = click.argument("order", metavar="ORDER")


@define(
    "work ls",
    examples=["vfsd -s videos work ls", "vfsd -s videos work ls --json"],
    fields=ORDER_FIELDS,
    listing=True,
)
def work_ls(session: Session) -> None:
    """List orders, newest first."""
    from vfsd.work.orders import Order

    with session.opened(session.root()) as store:
        rows = []
        for record in store.catalog.work.orders():
            order = Order(store, record)
            state = order.state()
            if session.json:
                print_json(order_record(order, state))
            rows.append((order.id, local_time(record.created_ns), _state_text(order, state)))
        if not session.json:
            print_table(rows, "<<<")
            if not rows:
                session.remark("no orders yet; commands with `--on` make them")


@define(
    "work show",
    examples=["vfsd -s videos work show last", "vfsd -s videos work show last --json"],
    fields={
        **ORDER_FIELDS,
        "spec": "object: the arguments of the command, and the first videos",
        "failures": "list of units that failed: objects of unit, outcome, error, exit_code, "
        "worker, video and frames ([first, end], or null)",
    },
    exits=[NotFoundError],
)
@order_argument
def work_show(session: Session, order: str) -> None:
    """Show an order: its arguments, progress and failures.

    ORDER is an id, the beginning of one, or `last`.
    """
    with session.opened(session.root()) as store:
        found = _find(store, order)
        state = found.state()
        units = {one.number: one for one in found.units()} if state.failures else {}
        failures: list[dict[str, Any]] = [
            {
                "unit": number,
                "outcome": row.outcome,
                "error": row.error,
                "exit_code": row.exit_code,
                "worker": row.host,
                "video": _name_of(store, units[number]),
                "frames": units[number].to_json()["frames"],
            }
            for number, row in sorted(state.failures.items())
        ]
        if session.json:
            spec = found.record.spec
            print_json({**order_record(found, state), "spec": spec, "failures": failures})
            return
        facts = [(key, str(value)) for key, value in order_record(found, state).items()]
        print_facts(facts)
        for one in failures:
            what = printable(one["video"] or "?")
            if one["frames"] is not None:
                what += f", frames {one['frames'][0]} to {one['frames'][1] - 1}"
            print_line(f"unit {one['unit']} {one['outcome']}: {what}: {one['error']}")


@define(
    "work cancel",
    examples=["vfsd -s videos work cancel last"],
    fields=ORDER_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
)
@order_argument
def work_cancel(session: Session, order: str) -> None:
    """Cancel an order: units end within about a second.

    Their results stay. `vfsd work retry` takes the cancellation back.
    """
    with session.opened(session.root(), writing=True) as store:
        found = _find(store, order)
        found.cancel()
        again = _find(store, found.id)
        _report(session, again, again.state())


@define(
    "work retry",
    examples=["vfsd -s videos work retry last --failed"],
    fields=ORDER_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
)
@order_argument
@click.option("--failed", is_flag=True, help="Only units that failed, not a cancellation.")
def work_retry(session: Session, order: str, failed: bool) -> None:
    """Let failed or cancelled units run again.

    `vfsd work run` performs them.
    """
    with session.opened(session.root(), writing=True) as store:
        found = _find(store, order)
        found.retry(failed=failed)
        again = _find(store, found.id)
        _report(session, again, again.state())


@define(
    "work run",
    examples=[
        "vfsd -s videos work run last",
        "vfsd -s videos work run last --on local:2 --json",
        "vfsd -s videos work run last --part 0/4",
    ],
    fields=ORDER_FIELDS,
    exits=[NotFoundError, ReadOnlyError, *ORDER_EXITS, EXIT_INTERRUPTED],
)
@order_argument
@click.option("--on", metavar="ENGINE", help="As for `vfsd retile`; the default is this process.")
@click.option(
    "--part",
    metavar="I/N",
    help="Only part I of N, from 0, in this process: for a Slurm array or an indexed Job.",
)
def work_run(session: Session, order: str, on: str | None, part: str | None) -> None:
    """Perform the units of an order that have no result yet.

    Units that another process performs at the same time are stored once.
    """
    if on is not None and part is not None:
        raise UsageError("give either --on or --part, not both")
    from vfsd.work.orders import parse_part

    chosen = (0, 1) if part is None else parse_part(part)
    with session.opened(session.root(), writing=True) as store:
        found = _find(store, order)
        if on is not None:
            _perform(session, found, on)
        else:
            label = f"order {found.id}"
            with Progress(label, found.record.units, shown=session.shows_progress) as progress:
                found.run_part(chosen, on_progress=lambda one: progress.reach(one.ended, one.units))
        _conclude(session, found, found.state(), whole=part is None)


@define(
    "work rm",
    examples=["vfsd -s videos work rm last"],
    fields={"order": "id of the order"},
    exits=[NotFoundError, ReadOnlyError],
)
@order_argument
def work_rm(session: Session, order: str) -> None:
    """Remove an order and its log. The results in the store stay."""
    with session.opened(session.root(), writing=True) as store:
        found = _find(store, order)
        store.catalog.work.remove(found.id)
        session.report({"order": found.id}, f"order {found.id} removed")


def _find(store: Store, order: str) -> Order:
    from vfsd.work.orders import Order, find_order

    if order == "last":
        newest = store.catalog.work.orders()
        if not newest:
            raise NotFoundError("no orders yet", hint="commands with `--on` make them")
        return Order(store, newest[0])
    return find_order(store, order)


def _name_of(store: Store, unit: Unit) -> str | None:
    if unit.video is None:
        return str(unit.spec.get("name", f"objects {', '.join(unit.spec.get('keys', ()))}"))
    try:
        with store.catalog.reading() as seen:
            return seen.videos.get(unit.video).name
    except NotFoundError:
        return None
