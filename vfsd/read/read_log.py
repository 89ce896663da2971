"""The log of reads that the tuner learns from.

`describe_planned_read` and `describe_scan` compute what a read cost; `ReadLog` queues entries, and
one thread writes them to the catalog about once a second. Entries are dropped when the queue is
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

from vfsd.catalog import Catalog
from vfsd.core.atfork import reset_after_fork
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LoggedRead, PhysicalVideo, Segment, SegmentUse
from vfsd.read.explain_read import ReadExplanation, explain_plan
from vfsd.read.read_plan import ReadPlan
from vfsd.read.tile_planner import DecodeCosts, original_work
from vfsd.tiling import Rect
from vfsd.tiling.cost import DecodeWork

Clauses = tuple[tuple[str, ...], ...]
"""Labels: an AND of ORs."""


@dataclass(frozen=True, slots=True)
class ReadTiming:
    """When a read began, and what it took."""

    at_ns: int  #: Unix time
    seconds: float  #: that its reader waited for it


def describe_planned_read(
    kind: str,
    plan: ReadPlan,
    table: FrameTable,
    costs: DecodeCosts,
    timing: ReadTiming,
    labels: Clauses | None = None,
) -> LoggedRead:
    """What carrying out `plan`, which has frames, came to; `labels`: what it was done for."""
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
        uses=_segment_uses(found, table, costs),
    )


def _segment_uses(
    found: ReadExplanation, table: FrameTable, costs: DecodeCosts
) -> tuple[SegmentUse, ...]:
    """What each segment saved: its part of what the original would have taken, less what it took.

    Frames in a row are decoded in one go, so that the parts together take less than one by one.
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
    """What a scan has read from one place."""

    segment: Segment | None  #: None: the original alone
    tiles: int  #: of the segment that were decoded
    work: DecodeWork  #: of decoding these; nothing for the original
    frames: tuple[int, ...]  #: ascending, each once
    own: tuple[int, ...]  #: those of them that were read from the original
    pictures: int  #: that came of it
    area: Rect  #: around all that was read, on the displayed frame


@dataclass(frozen=True, slots=True)
class ScanPurpose:
    """What a scan is for.  It may read more: whole tiles, or whole frames where there are none."""

    labels: Clauses | None = None  #: boxes that carry them
    region: Rect | None = None  #: of the displayed frame; None: all that it reads


def describe_scan(
    parts: Sequence[ScanPart],
    physical: PhysicalVideo,
    table: FrameTable,
    costs: DecodeCosts,
    size: tuple[int, int] | None,
    purpose: ScanPurpose,
    timing: ReadTiming,
) -> LoggedRead:
    """What a scan came to that has read `parts`: one at least, in the order of time."""
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


_log = logging.getLogger(__name__)

_MAX_QUEUED = 4096
"""Notes that may wait; beyond that the oldest are dropped."""
_BATCH_SECONDS = 1.0
_CLOSE_SECONDS = 5.0

MakeEntry = Callable[[], LoggedRead]
"""Works out what a read came to; called in another thread, a second later."""


class ReadRecorder(Protocol):
    """Where readers leave their notes.  Thread-safe, and usable after a fork."""

    def note(self, digest: str, account: MakeEntry) -> None:
        """A read of the video with these bytes is done.  Never waits, never fails."""

    def flush(self) -> None:
        """Write what has been noted so far."""

    def close(self) -> None: ...


class NullReadLog:
    """Remembers nothing: for stores that may not be written."""

    def note(self, digest: str, account: MakeEntry) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ReadLog:
    """Keeps the newest `keep` reads in the catalog.

    After a fork the child starts with an empty queue, and a thread of its own when it first reads;
    what the parent has noted, the parent writes.  Who drops it without closing it leaves nothing
    behind: the thread, which does not know it, writes what there is and ends.
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
        """Notes that were never written."""
        return self._writing.dropped

    def note(self, digest: str, account: MakeEntry) -> None:
        self._writing.add(digest, account)
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        self._writing.write()

    def close(self) -> None:
        """Write what is left."""
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
        """See `vfsd.core.atfork`."""
        if self._dropping is not None:
            self._dropping.detach()  # what it would end is the parent's
        self._guard = threading.Lock()
        self._thread = None
        self._writing = _LogWriter(self._catalog, self._keep)
        self._at_exit = partial(_close_if_alive, weakref.ref(self))
        self._dropping = weakref.finalize(self, _stop_writer, self._writing, self._at_exit)
        self._dropping.atexit = False

    def _start(self) -> None:
        if sys.is_finalizing():
            return  # no thread begins any more, and who starts one waits for ever
        with self._guard:
            if self._thread is None and not self._closed:
                # It must not keep a program alive whose store nobody has closed.
                run = self._writing.run
                self._thread = threading.Thread(target=run, name="vfsd-reads", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)


class _LogWriter:
    """The queue, and the work of the thread."""

    def __init__(self, catalog: Catalog, keep: int) -> None:
        self._catalog = catalog
        self._keep = keep
        # Other than an event it may be set by a finalizer, which runs in any thread at any time.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: that is all
        self._told = False
        self._queue: deque[tuple[str, MakeEntry]] = deque(maxlen=_MAX_QUEUED)
        self.dropped = 0

    def add(self, digest: str, account: MakeEntry) -> None:
        if len(self._queue) == _MAX_QUEUED:
            self.dropped += 1  # two threads at once may count one of theirs
        self._queue.append((digest, account))
        if not self._told:
            self._told = True
            self._signals.put(False)

    def end(self) -> None:
        """Have `run` end, when it has written what there is."""
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
            digest, account = self._queue.popleft()
            try:
                done.append((digest, account()))
            except Exception:  # whatever it is, a reader must not hear of it
                _log.debug("a read cannot be accounted for", exc_info=True)
                lost += 1
            time.sleep(0)  # readers come first
        if done:
            try:
                self._catalog.note_reads(done, keep=self._keep)
            except Exception as error:  # the thread goes on, whatever it is
                _log.debug("%d reads are not remembered: %s", len(done), error)
                lost += len(done)
        self.dropped += lost


def _stop_writer(writing: _LogWriter, at_exit: Callable[[], None]) -> None:
    writing.end()
    atexit.unregister(at_exit)


def _close_if_alive(log: weakref.ref[ReadLog]) -> None:
    there = log()
    if there is not None:
        there.close()
