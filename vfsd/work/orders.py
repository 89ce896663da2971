"""`Order`: work on many videos, stored in the catalog with its units and their results."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog.work_log import (
    AGAIN,
    BEGUN,
    CRASHED,
    DONE,
    KILLED,
    RETRY,
    WorkOrder,
    WorkResult,
)
from vfsd.core.process_control import host_name
from vfsd.core.retention_policy import CODEC
from vfsd.derive.deferred_compression import wanted_level
from vfsd.derive.tile_encoder import TileSettings
from vfsd.derive.tuner import TuningBudget
from vfsd.errors import NotFoundError, UsageError, VfsdError
from vfsd.validation import not_one_of, value_or_default
from vfsd.work.engines import ENGINES
from vfsd.work.perform import TRANSIENT, perform_at
from vfsd.work.plan import (
    PlanSegments,
    backup_units,
    compress_units,
    detect_units,
    ingest_units,
    named_sources,
    segment_units,
    tile_plan,
    tune_units,
    whole_unit,
)
from vfsd.work.units import MADE, REFUSED, SKIPPED, VERBS, Unit

WAITING = "waiting"
"""State of a unit without a result."""

_NOT_RESULTS = frozenset({BEGUN, AGAIN, CRASHED, KILLED})
_PART = re.compile(r"(\d+)/(\d+)")
# Without an engine, a unit is tried again for so long while the catalog is away or busy.
_AGAIN_SECONDS = 600.0
_LONGEST_PAUSE = 10.0
_DAY_SECONDS = 86400
_SHOWN_NAMES = 20
_LEVEL = 9
"""Of compress, if none is given."""

OnOrderProgress = Callable[["OrderState"], None]
"""Called about once a second; may raise to stop."""


@dataclass
class OrderState:
    """The units of an order, by the log of their results."""

    units: int
    outcomes: dict[int, str] = field(default_factory=dict)  #: of the units with a result
    failures: dict[int, WorkResult] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    running: dict[str, str] = field(default_factory=dict)  #: workers by attempt, if known to run
    again: int = 0  #: attempts that found a server away, or whose process ended
    runs: int = 0  #: attempts that were begun
    cpu_seconds: float = 0.0
    frames: int = 0
    made: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_id: int = 0

    def feed(self, rows: Sequence[WorkResult]) -> None:
        """Count more rows of the log."""
        for row in rows:
            self.last_id = max(self.last_id, row.id)
            if row.outcome == RETRY:
                self._forget(row.number)
                continue
            assert row.number is not None
            self.workers.add(row.host)
            if row.outcome == BEGUN:
                self.running[row.attempt] = row.host
            else:
                self.running.pop(row.attempt, None)
            self.runs += row.outcome == BEGUN
            self.again += row.outcome in (AGAIN, CRASHED, KILLED)
            self.cpu_seconds += row.cpu or 0.0
            self.frames += row.frames or 0
            self.made += row.made or 0
            self.bytes_read += row.bytes_read or 0
            self.bytes_written += row.bytes_written or 0
            before = self.outcomes.get(row.number)
            # Of two processes that performed a unit at once, the one that stored it counts.
            is_better = before not in DONE or (before, row.outcome) == (SKIPPED, MADE)
            if row.outcome not in _NOT_RESULTS and is_better:
                self.outcomes[row.number] = row.outcome
                self.failures.pop(row.number, None)
                if row.outcome not in DONE:
                    self.failures[row.number] = row

    def _forget(self, number: int | None) -> None:
        for one in [number] if number is not None else list(self.failures):
            if self.failures.pop(one, None) is not None:
                del self.outcomes[one]

    @property
    def ended(self) -> int:
        """Number of units with a result."""
        return len(self.outcomes)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of units by outcome; those without are "waiting"."""
        found = Counter(self.outcomes.values())
        if self.ended < self.units:
            found[WAITING] = self.units - self.ended
        return dict(sorted(found.items()))


class Order:
    """An order in the catalog of a store.

    order = store.order("retile", "cam1/**", layout="uniform:2x2")
    order.run("ray://head:10001", on_progress=lambda state: print(state.counts))
    """

    def __init__(self, store: Store, record: WorkOrder) -> None:
        """Use `Store.order` or `find_order`."""
        self._store = store
        self.record = record

    def __repr__(self) -> str:
        return f"<Order {self.id} {self.record.verb}, {self.record.units} units>"

    @property
    def id(self) -> str:
        """Eight hexadecimal digits."""
        return self.record.id

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._store.tools.address.root

    def units(self, part: tuple[int, int] = (0, 1)) -> list[Unit]:
        """Return all units, the dearest first, or those of the part (i, n)."""
        found = self._store.catalog.work.units(self.id, part)
        return [Unit.from_json(unit, self.id, number) for number, unit in found.items()]

    def pending(self, part: tuple[int, int] = (0, 1)) -> list[Unit]:
        """Return the units without a result, the dearest first."""
        outcomes = self.state().outcomes
        return [one for one in self.units(part) if one.number not in outcomes]

    def state(self) -> OrderState:
        """Return the results up to now."""
        state = OrderState(self.record.units)
        state.feed(self._store.catalog.work.results(self.id))
        return state

    def results(self) -> list[WorkResult]:
        """Return the log of all attempts, in order of arrival."""
        return self._store.catalog.work.results(self.id)

    def cancel(self) -> None:
        """Let running units stop within a segment; others do not begin."""
        self._store.catalog.work.cancel(self.id)

    def retry(self, *, failed: bool = False) -> None:
        """Let units that failed or were cancelled run again; only those that failed if `failed`.

        Also takes back a cancellation of the order, and the quarantine of files that crashed
        workers in units that were refused.
        """
        failures = self.state().failures
        refused = {number for number, row in failures.items() if row.outcome == REFUSED}
        if refused:
            self._end_quarantine([one for one in self.units() if one.number in refused])
        numbers: list[int | None] = list(failures) if failed else [None]
        self._store.catalog.work.retry(self.id, numbers, host=host_name())

    def _end_quarantine(self, units: Sequence[Unit]) -> None:
        for video in {unit.video for unit in units if unit.video is not None}:
            with suppress(NotFoundError), self._store.catalog.reading() as seen:
                original = seen.videos.get(video).original
                self._store.parts.quarantine.forget(original)

    def run(self, on: str = "local:1", *, on_progress: OnOrderProgress | None = None) -> OrderState:
        """Perform the pending units on an engine, and return the results.

        Args:
            on: ``local:N`` for N processes, ``ray`` for a Ray of this process,
                ``ray://HOST:PORT`` or ``dask://HOST:PORT``.
            on_progress: Called about once a second; it may raise to stop.  After
                `vfsd.work.units.LeaveRunning`, the processes of ``local:N`` go on.

        Raises `UsageError` for another engine, `ExtraMissingError`, `UnreachableError` (also if
        the engine has no workers for ten minutes), and `VfsdError` if units stay without a result.
        """
        run = ENGINES[_engine_of(on)]
        state = self.state()

        def tick() -> None:
            if on_progress is None:
                return
            with suppress(*TRANSIENT):  # the workers wait for the catalog, too
                state.feed(self._store.catalog.work.results(self.id, after_id=state.last_id))
            on_progress(state)

        left = self.pending()
        if left:
            run(left, self._store.tools.address, on, tick)
        state = self.state()
        waiting = state.units - state.ended
        if waiting and not self._store.catalog.work.is_cancelled(self.id):
            raise VfsdError(
                f"{on} has ended, but {waiting} of {state.units} units have no result",
                hint=f"see the log of the engine; `vfsd work run {self.id}` performs them",
            )
        return state

    def run_part(
        self, part: tuple[int, int] = (0, 1), *, on_progress: OnOrderProgress | None = None
    ) -> OrderState:
        """Perform the pending units of a part in this process, one after the other.

        Units are tried again for ten minutes while the catalog is away or busy.
        """
        home = str(self._store.path)
        for unit in self.pending(part):
            _perform_patiently(home, unit)
            if on_progress is not None:
                on_progress(self.state())
        return self.state()


def parse_part(text: str) -> tuple[int, int]:
    """Return (i, n) for a part ``I/N``, 0 <= I < N.  Raises `UsageError`."""
    found = _PART.fullmatch(text)
    if found is None or not int(found[1]) < int(found[2]):
        raise UsageError(f"part must be I/N with I from 0 to N - 1, got {text!r}")
    return int(found[1]), int(found[2])


def find_order(store: Store, beginning: str) -> Order:
    """Return the order whose id begins with that text.  Raises `NotFoundError`, `UsageError`."""
    return Order(store, store.catalog.work.order(beginning))


def create_order(
    store: Store,
    verb: str,
    names: Sequence[str],
    *,
    spec: Mapping[str, Any],
    units: Sequence[Unit],
) -> Order:
    """Store an order with these units, numbered by descending cost.

    `names` of videos and `spec`, the arguments, are for people.
    """
    store.parts.require_writable()
    # Long units that begin last leave the other workers idle.
    units = sorted(units, key=lambda one: -one.cost)
    shown = {"videos": list(names[:_SHOWN_NAMES]), **_shown(spec)}
    record = WorkOrder(
        id=uuid4().hex[:8],
        verb=verb,
        spec=shown,
        units=len(units),
        cost=sum(one.cost for one in units),
        created_ns=time.time_ns(),
        cancelled_ns=None,
    )
    rows = [one.to_json() for one in units]
    for row in rows:
        del row["order"], row["number"]
    store.catalog.work.add(record, rows)
    return Order(store, record)


def make_order(
    store: Store,
    verb: str,
    videos: str | Sequence[str] | None,
    unit_seconds: float | None,
    spec: Mapping[str, Any],
) -> Order:
    """See `Store.order`."""
    if verb not in VERBS:
        raise not_one_of("verb", verb, VERBS)
    if verb == "ingest":
        given = dict(spec)
        if videos is None:
            raise UsageError("an ingest needs files or URLs")
        sources = list(named_sources(videos, given.pop("to", "")))
        units = list(ingest_units(sources, given))
        return create_order(store, verb, [name for _, name, _ in sources], spec=spec, units=units)
    if verb == "backup":
        units = list(backup_units(store, spec))
        return create_order(store, verb, [], spec=spec, units=units)
    found = store.named(videos) if videos is not None else list(store.find())
    if verb == "tune":
        units = make_tune_units(store, [video.name for video in found] if videos else None)
    else:
        units = list(make_units(verb, found, spec, seconds=unit_seconds))
    return create_order(store, verb, [one.name for one in found], spec=spec, units=units)


def make_tune_units(
    store: Store, names: Sequence[str] | None, budget: TuningBudget | None = None
) -> list[Unit]:
    """Return the units of the proposals that a budget covers."""
    left = value_or_default(budget, TuningBudget)
    chosen = []
    for proposal in store.proposals(names):
        if proposal.candidate is None and left.allows(proposal):
            left = left.less(proposal.seconds, proposal.bytes)
            chosen.append(proposal)
    return list(tune_units(chosen, store.open_video))


def make_units(
    verb: str,
    videos: Sequence[Video],
    spec: Mapping[str, Any],
    *,
    plan: PlanSegments | None = None,
    seconds: float | None = None,
) -> Iterator[Unit]:
    """Yield the units of an order.

    Args:
        verb: One of `vfsd.work.units.VERBS`, but neither ingest nor tune.
        videos: The videos.
        spec: Keyword arguments of `tile_plan` and `settings` for retile and render; those of
            `make_detector`, `every`, `span` and `replace` for detect; `level` or `by_budget` for
            compress; `psnr`, `codec` and `keep` for replace; else empty.
        plan: Plans the segments of retile and render instead.
        seconds: The length of a unit; default: by the length of the video.

    Raises `UsageError` for videos that were not verified, if the verb needs that.
    """
    given = dict(spec)
    if verb in ("retile", "render"):
        settings = given.pop("settings", None) or TileSettings()
        plan = plan or tile_plan(settings, **given)
        for video in videos:
            if not video.original.verified:
                raise UsageError(
                    f"{video.name} was not verified",
                    hint='run `store.order("verify", names).run()` first',
                    command_hint="run `vfsd verify` first",
                )
            yield from segment_units(video, plan(video), settings, verb, seconds)
    elif verb == "detect":
        span = given.pop("span", None)
        for video in videos:
            yield from detect_units(video, given, span=span, seconds=seconds)
    elif verb == "compress":
        level = given.get("level") or _LEVEL
        for video in videos:
            if given.get("by_budget"):
                level = wanted_level(context_of(video).parts, video.info.id)
            if level:
                yield from compress_units(video, level, seconds)
    else:
        if verb == "replace":
            given = {"codec": CODEC, **given}
        if verb == "scrub":
            older_than = given.pop("older_than", None)
            given["since"] = time.time() - (older_than or 0) * _DAY_SECONDS
        for video in videos:
            yield whole_unit(video, verb, given)


def _shown(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, int | float | str | list | bool) else str(value)
        for key, value in spec.items()
        if value not in (None, False, ())
    }


def _engine_of(on: str) -> str:
    kind = on.partition(":")[0]
    if kind not in ENGINES:
        raise not_one_of("engine", on, ("local:N", "ray", "ray://HOST:PORT", "dask://HOST:PORT"))
    return kind


def _perform_patiently(home: str, unit: Unit) -> None:
    deadline, pause = time.monotonic() + _AGAIN_SECONDS, 0.2
    while True:
        try:
            perform_at(home, unit.to_json())
        except TRANSIENT:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            return
