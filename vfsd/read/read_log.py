"""The log of reads that the tuner learns from.

`describe_planned_read` and `describe_scan` compute the cost of a read.  `ReadLog` queues entries,
and one thread writes them to the catalog about once a second.  Entries are dropped if the queue is
full or the catalog is busy.
"""

from __future__ import annotations

import atexit
import logging
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from vfsd.catalog import Catalog
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import LoggedRead, PhysicalVideo, Segment, SegmentUse
from vfsd.core.process_control import reset_after_fork
from vfsd.read.explain_read import ReadExplanation, explain_plan
from vfsd.read.read_plan import ReadPlan
from vfsd.read.tile_planner import DecodeCosts, original_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import DecodeWork

_log = logging.getLogger(__name__)

Clauses = tuple[tuple[str, ...], ...]
"""Labels as an AND of ORs."""


@dataclass(frozen=True, slots=True)
class ReadTiming:
    """Start and duration of a read."""

    at_ns: int  #: Unix time
    seconds: float  #: how long its reader waited


def describe_planned_read(
    kind: str,
    plan: ReadPlan,
    table: FrameTable,
    costs: DecodeCosts,
    timing: ReadTiming,
    labels: Clauses | None = None,
) -> LoggedRead:
    """Return the log entry of an executed `plan`, which must have frames, done for `labels`."""
    found = explain_plan(plan, table, costs)
    return LoggedRead(
        id=0,
        video_id=plan.physical.video_id,
        at_ns=timing.at_ns,
        kind=kind,
        first_frame=int(plan.frames.min()),
        end_frame=int(plan.frames.max()) + 1,
        frames=len(plan.frames),
        region=plan.region,
        size=plan.size,
        labels=labels,
        pixels=found.work.pixels,
        untiled_pixels=found.untiled.pixels,
        predicted=found.seconds,
        untiled_predicted=found.untiled_seconds,
        seconds=timing.seconds,
        segments=len({run.segment.id for run in plan.tiled}),
        tiles=sum(len(run.tiles) for run in plan.tiled),
        original_frames=sum(
            len(source.frames) for source in found.sources if source.segment is None
        ),
        runs=frame_runs(plan.frames),
        uses=_segment_uses(found, table, costs),
    )


def frame_runs(frames: Ints) -> tuple[tuple[int, int, int], ...] | None:
    """Return the frames of a read as runs of (first, end, step); see `LoggedRead.runs`."""
    steps = np.diff(frames)
    if (steps == steps[:1]).all() and (steps[:1] > 0).all():  # as in most reads, however long
        return None
    runs: list[list[int]] = []
    for number in sorted(set(frames.tolist())):
        last = runs[-1] if runs else None
        if last is None or (last[2] and number != last[1] + last[2] - 1):
            if len(runs) == _MAX_RUNS:
                return None
            runs.append([number, number + 1, 0])
        else:
            last[2] = last[2] or number - last[0]
            last[1] = number + 1
    if len(runs) < 2:
        return None
    return tuple((first, end, step or 1) for first, end, step in runs)


def _segment_uses(
    found: ReadExplanation, table: FrameTable, costs: DecodeCosts
) -> tuple[SegmentUse, ...]:
    """Return the seconds that each segment saved: its share of the original's cost, less its own.

    Consecutive frames are decoded together, so the original costs less than the sum over all
    sources.
    """
    physical = found.plan.physical
    own = costs.of_original(physical)
    tiled = [source for source in found.sources if source.segment is not None]
    alone = [own.seconds(original_work(physical, table, source.frames)) for source in tiled]
    rest = sum(source.seconds for source in found.sources if source.segment is None)
    together = max(0.0, found.untiled_seconds - rest)
    scale = together / sum(alone) if sum(alone) else 0.0
    saved: dict[int, float] = {}
    for source, seconds in zip(tiled, alone, strict=True):
        assert source.segment is not None
        number = source.segment.id
        saved[number] = saved.get(number, 0.0) + scale * seconds - source.seconds
    return tuple(SegmentUse(number, max(0.0, seconds)) for number, seconds in saved.items())


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The part of a scan that one source has served."""

    segment: Segment | None  #: None for the original alone
    tiles: int  #: number of decoded tiles
    work: DecodeWork  #: of decoding the tiles; zero for the original
    frames: tuple[int, ...]  #: ascending, without duplicates
    own: tuple[int, ...]  #: those that were read from the original
    pictures: int  #: number of results
    area: Rect  #: bounding box of all that was read, on the displayed frame


@dataclass(frozen=True, slots=True)
class ScanPurpose:
    """Why a scan reads its regions.  It may read more: whole tiles or frames."""

    labels: Clauses | None = None  #: the labels of the boxes
    region: Rect | None = None  #: of the displayed frame; None for all that it reads


def describe_scan(
    parts: Sequence[ScanPart],
    physical: PhysicalVideo,
    table: FrameTable,
    costs: DecodeCosts,
    size: tuple[int, int] | None,
    purpose: ScanPurpose,
    timing: ReadTiming,
) -> LoggedRead:
    """Return the log entry of a scan of `parts`, which must not be empty and are in order
    of time.
    """
    own = costs.of_original(physical)
    work = untiled = DecodeWork()
    predicted = untiled_predicted = 0.0
    saved: dict[int, float] = {}
    for part in parts:
        alone = original_work(physical, table, part.frames)
        untiled += alone
        untiled_predicted += own.seconds(alone)
        mine = alone if part.own == part.frames else original_work(physical, table, part.own)
        work += mine
        predicted += own.seconds(mine)
        if part.segment is not None:
            tiles = costs.seconds_of_tiles(part.segment, part.work, together=part.tiles)
            work += part.work
            predicted += tiles
            gain = own.seconds(alone) - own.seconds(mine) - tiles
            saved[part.segment.id] = saved.get(part.segment.id, 0.0) + gain
    tiled = [part for part in parts if part.segment is not None]
    return LoggedRead(
        id=0,
        video_id=physical.video_id,
        at_ns=timing.at_ns,
        kind="scan",
        first_frame=parts[0].frames[0],
        end_frame=parts[-1].frames[-1] + 1,
        frames=sum(part.pictures for part in parts),
        region=purpose.region or Rect.around(part.area for part in parts),
        size=size,
        labels=purpose.labels,
        pixels=work.pixels,
        untiled_pixels=untiled.pixels,
        predicted=predicted,
        untiled_predicted=untiled_predicted,
        seconds=timing.seconds,
        segments=len({part.segment.id for part in tiled if part.segment is not None}),
        tiles=sum(part.tiles for part in tiled),
        original_frames=sum(len(part.own) for part in parts),
        uses=tuple(SegmentUse(number, max(0.0, seconds)) for number, seconds in saved.items()),
    )


_MAX_RUNS = 64
"""Runs of frames in an entry: 2 KB."""
_MAX_QUEUED = 4096
"""Queued entries; when the queue is full, the oldest are dropped."""
_BATCH_SECONDS = 1.0
_CLOSE_SECONDS = 5.0

MakeEntry = Callable[[], LoggedRead]
"""Computes a log entry; called in another thread, up to a second later."""


class ReadRecorder(Protocol):
    """Records reads.  Thread-safe, and usable after a fork."""

    def note(self, digest: str, make_entry: MakeEntry) -> None:
        """Record a read of the video with that digest.  Never blocks, never raises."""

    def flush(self) -> None:
        """Write all entries recorded so far."""

    def close(self) -> None: ...


class NullReadLog:
    """Records nothing: for read-only stores."""

    def note(self, digest: str, make_entry: MakeEntry) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ReadLog:
    """Keeps the newest `keep` reads in the catalog.

    After a fork the child starts with an empty queue, and starts its own thread at its first read;
    the parent writes its own entries.  A log that is dropped without `close` leaks nothing: the
    thread has no reference to it, writes its queue and ends.
    """

    _thread: threading.Thread | None

    def __init__(self, catalog: Catalog, keep: int) -> None:
        self._catalog = catalog
        self._keep = keep
        self._closed = False
        self._dropping: weakref.finalize[[_LogWriter, Callable[[], None]], ReadLog] | None = None
        self.after_fork()
        reset_after_fork(self)

    @property
    def dropped(self) -> int:
        """Number of entries that were never written."""
        return self._writing.dropped

    def note(self, digest: str, make_entry: MakeEntry) -> None:
        self._writing.add(digest, make_entry)
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        self._writing.write()

    def close(self) -> None:
        """Write the remaining entries."""
        with self._guard:
            self._closed = True
            thread, self._thread = self._thread, None
        if self._dropping is not None:
            self._dropping.detach()
        self._writing.end()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
            atexit.unregister(self._at_exit)
        self._writing.write()

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        if self._dropping is not None:
            self._dropping.detach()  # the finalizer belongs to the parent
        self._guard = threading.Lock()
        self._thread = None
        self._writing = _LogWriter(self._catalog, self._keep)
        self._at_exit = partial(_close_if_alive, weakref.ref(self))
        self._dropping = weakref.finalize(self, _stop_writer, self._writing, self._at_exit)
        self._dropping.atexit = False

    def _start(self) -> None:
        if sys.is_finalizing():
            return  # starting a thread now would block forever
        with self._guard:
            if self._thread is None and not self._closed:
                # A daemon thread, so that a store that was not closed does not keep the program
                # running.
                run = self._writing.run
                self._thread = threading.Thread(target=run, name="vfsd-reads", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)


class _LogWriter:
    """The queue, and the work of its thread."""

    def __init__(self, catalog: Catalog, keep: int) -> None:
        self._catalog = catalog
        self._keep = keep
        # Unlike an event, a SimpleQueue may be used by a finalizer, which runs in any thread at any
        # time.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True to end
        self._told = False
        self._queue: deque[tuple[str, MakeEntry]] = deque(maxlen=_MAX_QUEUED)
        self.dropped = 0

    def add(self, digest: str, make_entry: MakeEntry) -> None:
        if len(self._queue) == _MAX_QUEUED:
            self.dropped += 1  # concurrent threads may lose a count
        self._queue.append((digest, make_entry))
        if not self._told:
            self._told = True
            self._signals.put(False)

    def end(self) -> None:
        """Let `run` end after writing the queue."""
        self._signals.put(True)

    def run(self) -> None:
        is_ending = False
        while not is_ending:
            is_ending = self._signals.get()
            if not is_ending:
                with suppress(queue.Empty):
                    is_ending = self._signals.get(timeout=_BATCH_SECONDS)
            self._told = False
            self.write()

    def write(self) -> None:
        done: list[tuple[str, LoggedRead]] = []
        lost = 0
        while self._queue and len(done) < _MAX_QUEUED:
            digest, make_entry = self._queue.popleft()
            try:
                done.append((digest, make_entry()))
            except Exception:  # an error here must not reach a reader
                _log.debug("a read could not be described", exc_info=True)
                lost += 1
            time.sleep(0)  # let readers run first
        if done:
            try:
                self._catalog.note_reads(done, keep=self._keep)
            except Exception as error:  # the thread continues after any error
                _log.debug("%d reads were not logged: %s", len(done), error)
                lost += len(done)
        self.dropped += lost


def _stop_writer(writing: _LogWriter, at_exit: Callable[[], None]) -> None:
    writing.end()
    atexit.unregister(at_exit)


def _close_if_alive(log: weakref.ref[ReadLog]) -> None:
    there = log()
    if there is not None:
        there.close()
