"""Performs a unit.  It may be performed any number of times, also at once.

The transaction that publishes a result compares it with the catalog, so a second run of a unit
costs time and changes nothing.  Engines may lose, repeat and double units.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from vfsd.api.detect import detect
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog.work_log import AGAIN, BEGUN, RETRY, WorkResult
from vfsd.core.process_control import host_name
from vfsd.derive.retile import missing_segments, retile
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import (
    EXIT_FINDINGS,
    BusyError,
    IntegrityError,
    NotFoundError,
    OutdatedError,
    RefusedMediaError,
    UnreachableError,
    UsageError,
    VfsdError,
)
from vfsd.labels.detectors import make_detector
from vfsd.maintenance.scrub import Scrubber
from vfsd.read.shared_store import StoreAddress
from vfsd.work.plan import segments_from_json
from vfsd.work.units import (
    CANCELLED,
    FAILED,
    MADE,
    OUTDATED,
    REFUSED,
    SKIPPED,
    OnProgress,
    Outcome,
    Unit,
)

TRANSIENT = (UnreachableError, BusyError)
"""Errors after which the same unit may succeed: engines retry it."""

_MOST_ENDED_WORKERS = 3
# How often a running unit asks whether its order was cancelled.
_CANCEL_SECONDS = 1.0

_stores: dict[str | StoreAddress, Store] = {}
_guard = threading.Lock()
# Rows that could not be added while the server was away.
_unsent: list[tuple[str, WorkResult]] = []


class _CancelledError(Exception):
    """The order was cancelled."""


def perform(store: Store, unit: Unit, *, on_progress: OnProgress | None = None) -> Outcome:
    """Perform a unit, and publish what is missing.

    Errors of the video are in the outcome.  Raises `UnreachableError` and `BusyError`: a later run
    may succeed.
    """
    began = time.process_time()
    try:
        video = _video_of(store, unit)
        if video is None:
            return Outcome(OUTDATED)
        done = _VERBS[unit.verb](video, unit, on_progress or _ignore)
    except OutdatedError as error:
        return Outcome(OUTDATED, error=str(error), exit_code=error.exit_code)
    except TRANSIENT:
        raise
    except VfsdError as error:
        done = Outcome(FAILED, error=str(error), exit_code=error.exit_code)
    except OSError as error:
        done = Outcome(FAILED, error=str(error), exit_code=VfsdError.exit_code)
    return replace(done, cpu_seconds=round(time.process_time() - began, 3))


def perform_at(home: str | StoreAddress, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Perform a unit of `Unit.to_json` on the store at `home`; for workers of task engines.

    `home` is a directory, or the URL of a catalog as for `Store.open`.  A `StoreAddress` has both:
    a worker without that directory joins the store by the URL.  The process keeps the store open.
    The result is `Outcome.to_json`, and is added to the log of the order.  Raises
    `UnreachableError` and `BusyError`, after which the engine should retry.
    """
    given = Unit.from_json(unit)
    store = _store_at(home)
    if not given.order:
        return perform(store, given).to_json()
    log = store.catalog.work
    _send_unsent(store)
    if log.is_cancelled(given.order):
        return Outcome(CANCELLED).to_json()
    attempt, host = uuid4().hex, f"{host_name()}:{os.getpid()}"
    if _ended_workers(log.results(given.order, given.number)) >= _MOST_ENDED_WORKERS:
        done = Outcome(
            REFUSED,
            error=f"{_MOST_ENDED_WORKERS} workers ended while they performed the unit",
            exit_code=IntegrityError.exit_code,
        )
        _record(store, given, WorkResult(given.number, attempt, REFUSED, host, 0), done)
        return done.to_json()
    row = WorkResult(given.number, attempt, BEGUN, host, time.time_ns())
    log.append(given.order, [row])
    try:
        done = perform(store, given, on_progress=_stop_if_cancelled(store, given.order))
    except _CancelledError:
        done = Outcome(CANCELLED)
    except TRANSIENT as error:
        _record(store, given, row, Outcome(AGAIN, error=str(error), exit_code=error.exit_code))
        raise
    except Exception as error:
        # Not foreseen, so not to be hidden, but the worker has not ended.
        _record(store, given, row, Outcome(FAILED, error=repr(error), exit_code=1))
        raise
    _record(store, given, row, done)
    return done.to_json()


def _ended_workers(log: list[WorkResult]) -> int:
    """Return how many attempts since the last retry have begun and not ended."""
    open_ones: set[str] = set()
    for one in log:
        if one.outcome == RETRY:
            open_ones.clear()
        elif one.outcome == BEGUN:
            open_ones.add(one.attempt)
        else:
            open_ones.discard(one.attempt)
    return len(open_ones)


def _record(store: Store, unit: Unit, begun: WorkResult, done: Outcome) -> None:
    """Add the result to the log; later, if the catalog cannot be reached."""
    row = replace(
        begun,
        outcome=done.outcome,
        at_ns=time.time_ns(),
        cpu=done.cpu_seconds,
        frames=done.frames,
        made=done.made,
        bytes_read=done.bytes_read,
        bytes_written=done.bytes_written,
        error=done.error,
        exit_code=done.exit_code,
    )
    # Kept until it is sent: a worker that is alive must not count as ended.
    _unsent.append((unit.order, row))
    with suppress(*TRANSIENT) if done.outcome == AGAIN else nullcontext():
        _send_unsent(store)


def _send_unsent(store: Store) -> None:
    while _unsent:
        order, row = _unsent[0]
        store.catalog.work.append(order, [row])
        _unsent.pop(0)


def _stop_if_cancelled(store: Store, order: str) -> OnProgress:
    due = time.monotonic() + _CANCEL_SECONDS

    def on_progress(done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _CANCEL_SECONDS
        if store.catalog.work.is_cancelled(order):
            raise _CancelledError

    return on_progress


def _store_at(home: str | StoreAddress) -> Store:
    """Return the store of this process at `home`, opened at its first unit."""
    with _guard:
        if home not in _stores:
            # The engine runs one unit on each core.
            if isinstance(home, str):
                _stores[home] = Store.open(home, threads=1)
            else:
                _stores[home] = Store.at_address(replace(home, threads=1))
        return _stores[home]


@atexit.register
def _close_stores() -> None:
    for store in _stores.values():
        store.close()
    _stores.clear()


def _video_of(store: Store, unit: Unit) -> Video | None:
    """Return the video of a unit; None if it is gone or has other bytes."""
    try:
        with store.catalog.reading() as seen:
            info = seen.videos.get(unit.video)
    except NotFoundError:
        return None
    return store.open_video(info) if info.name and info.digest == unit.digest else None


def _ignore(done: int, total: int) -> None:
    """Ignore progress."""


def _retile(video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    spec = unit.spec
    settings = TileSettings(spec["codec"], spec["psnr"], spec["quality"])
    planned = segments_from_json(spec["segments"])
    context = context_of(video)
    if not video.original.verified:
        raise UsageError(
            f"{video.name} was not verified", hint=f"run `vfsd verify {video.name}` first"
        )
    wanted = missing_segments(context.parts, video.info, planned, settings)
    made = retile(
        context.parts,
        context.tools.pool,
        video.info,
        context.table,
        planned,
        settings,
        jobs=1,
        on_progress=on_progress,
    )
    frames = sum(len(one.frames) for one in wanted)
    return Outcome(
        MADE if made else SKIPPED,
        made=len(made),
        skipped=len(planned) - len(made),
        frames=frames,
        bytes_read=_bytes_of(video, frames),
        bytes_written=sum(one.size for one in made),
    )


def _detect(video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    spec, frames = unit.spec, range(*unit.frames)
    every = spec.get("every") or 1
    detector = make_detector(
        spec["detector"],
        every=every,
        min_confidence=spec.get("min_confidence"),
        label=spec.get("label"),
        names=None if spec.get("names") is None else Path(spec["names"]),
    )
    context, again = context_of(video), bool(spec.get("replace"))
    before = 0 if again else _examined(video, detector.source, frames)
    boxes = detect(
        context, detector, None, every, on_progress, again, float("inf"), frames_only=frames
    )
    after = _examined(video, detector.source, frames)
    return Outcome(
        MADE if after - before else SKIPPED,
        made=boxes,
        skipped=before,
        frames=after - before,
        bytes_read=_bytes_of(video, len(frames)) if after - before else 0,
    )


def _examined(video: Video, source: Any, frames: range) -> int:
    """Return how many of the frames a source has examined."""
    found = (one.frames for one in video.labels.examined(source))
    return sum(max(0, min(one.stop, frames.stop) - max(one.start, frames.start)) for one in found)


def _verify(video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    original = video.original
    if unit.spec.get("all") and original.verified and original.damage is not None:
        return Outcome(SKIPPED, skipped=1)
    try:
        corrected = video.verify(on_progress=on_progress)
    except (RefusedMediaError, IntegrityError) as error:
        return Outcome(FAILED, error=str(error), exit_code=EXIT_FINDINGS)
    status = "corrected" if corrected else "right"
    details = {"status": status, "damaged": video.original.damaged_frames}
    size = video.info.size
    return Outcome(MADE, made=1, frames=len(video), bytes_read=size, details=details)


def _scrub(video: Video, unit: Unit, on_progress: OnProgress) -> Outcome:
    # Files that were read since the order was made are skipped.
    age = max(0.0, time.time() - float(unit.spec["since"]))
    scrubber = Scrubber(
        context_of(video).parts,
        [video.info],
        older_than=age,
        rate=unit.spec.get("rate"),
        on_progress=on_progress,
    )
    count, size = scrubber.planned
    damage = [one.message for one in scrubber.run()]
    damage += [str(error) for error in [*scrubber.unread, *scrubber.stuck]]
    if damage:
        return Outcome(
            FAILED, made=count, bytes_read=size, error="; ".join(damage), exit_code=EXIT_FINDINGS
        )
    return Outcome(MADE if count else SKIPPED, made=count, bytes_read=size)


def _bytes_of(video: Video, frames: int) -> int:
    return round(video.original.size * frames / max(1, len(video)))


_VERBS: Mapping[str, Callable[[Video, Unit, OnProgress], Outcome]] = {
    "retile": _retile,
    "render": _retile,
    "detect": _detect,
    "verify": _verify,
    "scrub": _scrub,
}
