"""Pictures of frames in a row from several sources: some made ahead by all cores, all in order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from vfsd.core.atfork import Origin
from vfsd.core.frames import Pixels
from vfsd.read.serial_executor import Strand

# Only tiles are prepared ahead. Frames of the original, made ahead by a worker, came no sooner at
# 960x540, and a tenth later in full size because waiting pictures leave the CPU caches.
_AHEAD_BYTES = 16 << 20
"""Of pictures that are made, or on their way, while the caller has those before: when it is reached
no more is begun."""
_PART_BYTES = 1 << 20
"""Of pictures that are made by one job, unless one takes more."""
_LEAST_AHEAD = 2
"""Pictures, however large."""


class Hand(Protocol):
    """Fills pictures that follow each other, or parts of them.  Used by one thread at a time."""

    def fill(self, pictures: Sequence[Pixels]) -> None:
        """The next so many."""

    def finish(self) -> None:
        """That was the last: decoders may go on elsewhere."""

    def close(self) -> None:
        """No more is wanted, though there may be more; nothing where it was finished."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames in a row that come from one source, and are made ahead."""

    source: Hashable
    """Stretches of one source are made one after the other, as a decoder goes on from one to the
    next."""
    places: Mapping[int, Sequence[int]]  #: by frame, ascending: where it goes in the result
    open_hands: Callable[[], Sequence[Hand]]  #: which together fill pictures whole


@dataclass(frozen=True, slots=True)
class Direct:
    """Frames in a row that are made when it is their turn, by who takes them."""

    places: Mapping[int, Sequence[int]]  #: as above
    open: Callable[[], Generator[tuple[int, Pixels]]]  #: gives (frame, picture)

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        with closing(self.open()) as pictures:
            yield from pictures


@dataclass(frozen=True, slots=True)
class _Part:
    """What one job of each hand makes."""

    frames: Sequence[int]
    places: Mapping[int, Sequence[int]]
    made: Sequence[Pixels]
    jobs: Sequence[Future[None]]

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        for job in self.jobs:
            job.result()
        yield from zip(self.frames, self.made, strict=True)


class _Opened:
    """A stretch that is being made."""

    def __init__(self, stretch: Stretch, hands: Sequence[Hand], strands: Sequence[Strand]) -> None:
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

    def give(self, most: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Part:
        """Have the hands fill the next frames, so many at most."""
        frames = self._frames[self._given : self._given + most]
        self._given += len(frames)
        # Each has memory of its own, so that the caller may keep some without the others.
        pictures = [np.empty(shape, dtype) for _ in frames]
        fill = _fill_last if self.is_given else _fill
        self._last = [
            strand.submit(partial(fill, hand, pictures))
            for strand, hand in zip(self.strands, self.hands, strict=True)
        ]
        return _Part(frames, self.stretch.places, pictures, self._last)


class ReadAhead:
    """The pictures of `stretches`, each an array of that shape and type, in order.

    Once the caller has taken a picture, about twice as many as were taken are ahead, until they
    take 16 MiB: never more than that and a part, which is 1 MiB, or else two pictures.  They may be
    of several stretches, made side by side: of one more than there are `threads` at most, so that
    few decoders are in use.
    """

    def __init__(
        self,
        stretches: Iterator[Stretch | Direct],
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
        self._opened: list[_Opened] = []
        self._ahead: deque[_Part | Direct] = deque()
        self._frames_ahead = 0
        self._taken = 0
        self._origin = Origin()

    def pictures(self) -> Iterator[tuple[int, Pixels]]:
        """(place in the result, picture), for each place of each frame.

        Raises what a hand has raised, when its pictures would be next; `UsageError` in a forked
        child that goes on with them.
        """
        try:
            self._fill_up()
            while self._ahead:
                now = self._ahead.popleft()
                if isinstance(now, _Part):
                    self._frames_ahead -= len(now.frames)
                for frame, data in now.pictures():
                    self._taken += 1
                    self._fill_up()
                    for place in now.places[frame]:
                        yield place, data
                        self._origin.require_own("a read")
        finally:
            self._stop()

    def _fill_up(self) -> None:
        while self._has_room():
            following = self._next_part()
            if following is None:
                return
            self._ahead.append(following)
            if isinstance(following, _Part):
                self._frames_ahead += len(following.frames)

    def _has_room(self) -> bool:
        if not self._ahead:
            return True
        if self._frames_ahead >= 2 * self._taken:
            return False
        is_little = self._frames_ahead * self._picture_bytes < _AHEAD_BYTES
        return is_little or self._frames_ahead < _LEAST_AHEAD

    def _next_part(self) -> _Part | Direct | None:
        """None: there is none, or none yet."""
        if not self._opened or self._opened[-1].is_given:
            self._opened = [one for one in self._opened if not one.is_made]
            if len(self._opened) >= self._most_opened:
                return None
            stretch = next(self._stretches, None)
            if not isinstance(stretch, Stretch):
                return stretch
            self._opened.append(self._open(stretch))
        most = max(1, min(self._taken, _PART_BYTES // self._picture_bytes))
        return self._opened[-1].give(most, self._shape, self._dtype)

    def _open(self, stretch: Stretch) -> _Opened:
        hands = stretch.open_hands()
        strands = [Strand(self._workers) for _ in hands]
        for other in self._opened:
            if other.stretch.source == stretch.source:
                strands = [*other.strands, *strands][: len(hands)]
        return _Opened(stretch, hands, strands)

    def _stop(self) -> None:
        """Nothing more is wanted.  Does not wait for what is being made."""
        if self._origin.is_parent:
            return  # the threads did not come along through the fork
        for part in self._ahead:
            if isinstance(part, _Part):
                for job in part.jobs:
                    job.cancel()
        for opened in self._opened:
            for strand, hand in zip(opened.strands, opened.hands, strict=True):
                try:
                    strand.submit(hand.close)
                except RuntimeError:  # its threads have ended
                    hand.close()


def _fill(hand: Hand, pictures: Sequence[Pixels]) -> None:
    hand.fill(pictures)


def _fill_last(hand: Hand, pictures: Sequence[Pixels]) -> None:
    hand.fill(pictures)
    hand.finish()
