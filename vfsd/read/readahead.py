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

from vfsd.core.atfork import OwnerProcess
from vfsd.core.frames import Pixels


class SerialExecutor:
    """Each job begins when the one before has ended, on whichever of the `workers` comes next.

    None of them waits for a job, and between two jobs others have their turn.
    """

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._jobs: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._is_busy = False
        self._guard = threading.Lock()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Raises `RuntimeError` where the workers take no more, and all of this one has ended."""
        future: Future[None] = Future()
        with self._guard:
            if not self._is_busy:
                self._workers.submit(self._run)
                self._is_busy = True
            self._jobs.append((future, job))
        return future

    def _run(self) -> None:
        """Do the next job, and have another thread go on."""
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
            del future, job  # which hold pictures
            with self._guard:
                if not self._jobs:
                    self._is_busy = False
                    return
                try:
                    self._workers.submit(self._run)
                    return
                except RuntimeError:
                    pass  # they take no more: what they were given is done here


# Only tiles are prepared ahead. Frames of the original, made ahead by a worker, came no sooner at
# 960x540, and a tenth later in full size because waiting pictures leave the CPU caches.
_AHEAD_BYTES = 16 << 20
"""Of pictures that are made, or on their way, while the caller has those before: when it is reached
no more is begun."""
_BATCH_BYTES = 1 << 20
"""Of pictures that are made by one job, unless one takes more."""
_MIN_PICTURES_AHEAD = 2
"""Pictures, however large."""


class FrameFiller(Protocol):
    """Fills pictures that follow each other, or parts of them.  Used by one thread at a time."""

    def fill(self, pictures: Sequence[Pixels]) -> None:
        """The next so many."""

    def finish(self) -> None:
        """That was the last: decoders may go on elsewhere."""

    def close(self) -> None:
        """No more is wanted, though there may be more; nothing where it was finished."""


@dataclass(frozen=True, slots=True)
class PrefetchRun:
    """Frames in a row that come from one source, and are made ahead."""

    source: Hashable
    """Stretches of one source are made one after the other, as a decoder goes on from one to the
    next."""
    places: Mapping[int, Sequence[int]]  #: by frame, ascending: where it goes in the result
    open_hands: Callable[[], Sequence[FrameFiller]]  #: which together fill pictures whole


@dataclass(frozen=True, slots=True)
class InlineRun:
    """Frames in a row that are made when it is their turn, by who takes them."""

    places: Mapping[int, Sequence[int]]  #: as above
    open: Callable[[], Generator[tuple[int, Pixels]]]  #: gives (frame, picture)

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        with closing(self.open()) as pictures:
            yield from pictures


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one job of each hand makes."""

    frames: Sequence[int]
    places: Mapping[int, Sequence[int]]
    made: Sequence[Pixels]
    jobs: Sequence[Future[None]]

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        for job in self.jobs:
            job.result()
        yield from zip(self.frames, self.made, strict=True)


class _OpenRun:
    """A stretch that is being made."""

    def __init__(
        self, stretch: PrefetchRun, hands: Sequence[FrameFiller], strands: Sequence[SerialExecutor]
    ) -> None:
        self.stretch = stretch
        self.hands = hands
        self.strands = strands
        self._frames = list(stretch.places)
        self._given = 0
        self._last: Sequence[Future[None]] = ()

    @property
    def is_given(self) -> bool:
        """Whether all has been handed out as jobs."""
        return self._given == len(self._frames)

    @property
    def is_made(self) -> bool:
        """Whether the hands have finished, none of them with an error."""
        return self.is_given and all(job.done() and not job.exception() for job in self._last)

    def give(self, most: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Batch:
        """Have the hands fill the next frames, so many at most."""
        frames = self._frames[self._given : self._given + most]
        self._given += len(frames)
        # Each has memory of its own, so that the caller may keep some without the others.
        pictures = [np.empty(shape, dtype) for _ in frames]
        fill = _fill_and_finish if self.is_given else _fill
        self._last = [
            strand.submit(partial(fill, hand, pictures))
            for strand, hand in zip(self.strands, self.hands, strict=True)
        ]
        return _Batch(frames, self.stretch.places, pictures, self._last)


class ReadAhead:
    """The pictures of `stretches`, each an array of that shape and type, in order.

    Once the caller has taken a picture, about twice as many as were taken are ahead, until they
    take 16 MiB: never more than that and a part, which is 1 MiB, or else two pictures.  They may be
    of several stretches, made side by side: of one more than there are `threads` at most, so that
    few decoders are in use.
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
        """(place in the result, picture), for each place of each frame.

        Raises what a hand has raised, when its pictures would be next; `UsageError` in a forked
        child that goes on with them.
        """
        try:
            self._fill_up()
            while self._ahead:
                now = self._ahead.popleft()
                if isinstance(now, _Batch):
                    self._frames_ahead -= len(now.frames)
                for frame, data in now.pictures():
                    self._taken += 1
                    self._fill_up()
                    for place in now.places[frame]:
                        yield place, data
                        self._origin.require_same_process("a read")
        finally:
            self._stop()

    def _fill_up(self) -> None:
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
        """None: there is none, or none yet."""
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
        hands = stretch.open_hands()
        strands = [SerialExecutor(self._workers) for _ in hands]
        for other in self._opened:
            if other.stretch.source == stretch.source:
                strands = [*other.strands, *strands][: len(hands)]
        return _OpenRun(stretch, hands, strands)

    def _stop(self) -> None:
        """Nothing more is wanted.  Does not wait for what is being made."""
        if self._origin.is_parent:
            return  # the threads did not come along through the fork
        for part in self._ahead:
            if isinstance(part, _Batch):
                for job in part.jobs:
                    job.cancel()
        for opened in self._opened:
            for strand, hand in zip(opened.strands, opened.hands, strict=True):
                try:
                    strand.submit(hand.close)
                except RuntimeError:  # its threads have ended
                    hand.close()


def _fill(hand: FrameFiller, pictures: Sequence[Pixels]) -> None:
    hand.fill(pictures)


def _fill_and_finish(hand: FrameFiller, pictures: Sequence[Pixels]) -> None:
    hand.fill(pictures)
    hand.finish()
