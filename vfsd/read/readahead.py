"""Decodes the next pictures of a sequential read on all cores and returns them in order.

`SerialExecutor` runs the jobs of one decoder one at a time on the shared worker threads.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from vfsd.core.pixel_array import Pixels
from vfsd.core.process_control import OwnerProcess


class SerialExecutor:
    """Runs jobs one at a time, each on any of the `workers`.

    No worker blocks on a job, and other jobs get their turn in between.
    """

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._jobs: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._is_busy = False
        self._guard = threading.Lock()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Raises `RuntimeError` if the workers are shut down and all earlier jobs have ended."""
        future: Future[None] = Future()
        with self._guard:
            if not self._is_busy:
                self._workers.submit(self._run)
                self._is_busy = True
            self._jobs.append((future, job))
        return future

    def _run(self) -> None:
        """Run the next job, and let another thread continue."""
        while True:
            with self._guard:
                future, job = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    job()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            del future, job  # they hold pictures
            with self._guard:
                if not self._jobs:
                    self._is_busy = False
                    return
                try:
                    self._workers.submit(self._run)
                    return
                except RuntimeError:
                    pass  # workers are shut down: finish the jobs in this thread


# Only tiles are decoded ahead.  Frames of the original, decoded ahead by a worker, came no sooner
# at 960x540, and a tenth later in full size because waiting pictures leave the CPU caches.
_AHEAD_BYTES = 16 << 20
"""No more pictures are started while this many bytes are finished or in progress."""
_BATCH_BYTES = 1 << 20
"""Pictures of one job, at least one."""
_MIN_PICTURES_AHEAD = 2
"""For pictures of any size."""


class FrameFiller(Protocol):
    """Fills consecutive pictures, or parts of them.  Used by one thread at a time."""

    def fill(self, pictures: Sequence[Pixels]) -> None:
        """Fill the next pictures."""

    def finish(self) -> None:
        """End after the last picture; decoders become reusable."""

    def close(self) -> None:
        """End before the last picture; does nothing after `finish`."""


@dataclass(frozen=True, slots=True)
class PrefetchRun:
    """Consecutive frames from one source that are decoded ahead."""

    source: Hashable
    """Runs of one source are decoded one after the other, because a decoder continues from one to
    the next."""
    places: Mapping[int, Sequence[int]]  #: by frame, ascending: indices in the result
    open_fillers: Callable[
        [], Sequence[FrameFiller]
    ]  #: returns fillers that together fill a picture


@dataclass(frozen=True, slots=True)
class InlineRun:
    """Consecutive frames that the consumer decodes when they are due."""

    places: Mapping[int, Sequence[int]]  #: see `PrefetchRun`
    open: Callable[[], Generator[tuple[int, Pixels]]]  #: yields (frame, picture)

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        with closing(self.open()) as pictures:
            yield from pictures


@dataclass(frozen=True, slots=True)
class _Batch:
    """The result of one job of each filler."""

    frames: Sequence[int]
    places: Mapping[int, Sequence[int]]
    made: Sequence[Pixels]
    jobs: Sequence[Future[None]]

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        for job in self.jobs:
            job.result()
        yield from zip(self.frames, self.made, strict=True)


class _OpenRun:
    """A run in progress."""

    def __init__(
        self,
        stretch: PrefetchRun,
        fillers: Sequence[FrameFiller],
        strands: Sequence[SerialExecutor],
    ) -> None:
        self.stretch = stretch
        self.fillers = fillers
        self.strands = strands
        self._frames = list(stretch.places)
        self._given = 0
        self._last: Sequence[Future[None]] = ()

    @property
    def is_given(self) -> bool:
        """Whether all frames were submitted as jobs."""
        return self._given == len(self._frames)

    @property
    def is_made(self) -> bool:
        """Whether all fillers have finished without an error."""
        return self.is_given and all(job.done() and not job.exception() for job in self._last)

    def give(self, most: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Batch:
        """Submit jobs for the next frames, at most `most`."""
        frames = self._frames[self._given : self._given + most]
        self._given += len(frames)
        # Separate arrays, so that the caller can keep some of them.
        pictures = [np.empty(shape, dtype) for _ in frames]
        fill = _fill_and_finish if self.is_given else _fill
        self._last = [
            strand.submit(partial(fill, filler, pictures))
            for strand, filler in zip(self.strands, self.fillers, strict=True)
        ]
        return _Batch(frames, self.stretch.places, pictures, self._last)


class ReadAhead:
    """Yields the pictures of `stretches`, arrays of that shape and type, in order.

    After each picture that was taken, about twice as many are decoded ahead, up to 16 MiB plus one
    batch, which is 1 MiB or two pictures.  They may belong to several runs in parallel, at most one
    more than `threads`, so that few decoders are in use.
    """

    def __init__(
        self,
        stretches: Iterator[PrefetchRun | InlineRun],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        workers: Executor,
        threads: int,
    ) -> None:
        self._stretches = stretches
        self._shape = shape
        self._dtype = dtype
        self._picture_bytes = math.prod(shape) * dtype.itemsize
        self._workers = workers
        self._most_opened = threads + 1
        self._opened: list[_OpenRun] = []
        self._ahead: deque[_Batch | InlineRun] = deque()
        self._frames_ahead = 0
        self._taken = 0
        self._origin = OwnerProcess()

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        """Yield (index in the result, picture) for each index of each frame.

        Raises the exception of a filler when its pictures are due, and `UsageError` in a forked
        child that continues the iteration.
        """
        try:
            self._start_batches()
            while self._ahead:
                now = self._ahead.popleft()
                if isinstance(now, _Batch):
                    self._frames_ahead -= len(now.frames)
                for frame, data in now.pictures():
                    self._taken += 1
                    self._start_batches()
                    for place in now.places[frame]:
                        yield place, data
                        self._origin.require_same_process("a read")
        finally:
            self._stop()

    def _start_batches(self) -> None:
        while self._has_room():
            following = self._next_part()
            if following is None:
                return
            self._ahead.append(following)
            if isinstance(following, _Batch):
                self._frames_ahead += len(following.frames)

    def _has_room(self) -> bool:
        if not self._ahead:
            return True
        if self._frames_ahead >= 2 * self._taken:
            return False
        is_little = self._frames_ahead * self._picture_bytes < _AHEAD_BYTES
        return is_little or self._frames_ahead < _MIN_PICTURES_AHEAD

    def _next_part(self) -> _Batch | InlineRun | None:
        """Return None if there is none, or none yet."""
        if not self._opened or self._opened[-1].is_given:
            self._opened = [one for one in self._opened if not one.is_made]
            if len(self._opened) >= self._most_opened:
                return None
            stretch = next(self._stretches, None)
            if not isinstance(stretch, PrefetchRun):
                return stretch
            self._opened.append(self._open(stretch))
        most = max(1, min(self._taken, _BATCH_BYTES // self._picture_bytes))
        return self._opened[-1].give(most, self._shape, self._dtype)

    def _open(self, stretch: PrefetchRun) -> _OpenRun:
        fillers = stretch.open_fillers()
        strands = [SerialExecutor(self._workers) for _ in fillers]
        for other in self._opened:
            if other.stretch.source == stretch.source:
                strands = [*other.strands, *strands][: len(fillers)]
        return _OpenRun(stretch, fillers, strands)

    def _stop(self) -> None:
        """Cancel pending work without waiting for running jobs."""
        if self._origin.is_parent:
            return  # threads do not exist after a fork
        for part in self._ahead:
            if isinstance(part, _Batch):
                for job in part.jobs:
                    job.cancel()
        for opened in self._opened:
            for strand, filler in zip(opened.strands, opened.fillers, strict=True):
                try:
                    strand.submit(filler.close)
                except RuntimeError:  # the workers are shut down
                    filler.close()


def _fill(filler: FrameFiller, pictures: Sequence[Pixels]) -> None:
    filler.fill(pictures)


def _fill_and_finish(filler: FrameFiller, pictures: Sequence[Pixels]) -> None:
    filler.fill(pictures)
    filler.finish()
