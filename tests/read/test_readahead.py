"""Prefetching decoded frames: in order, within bounds, and cancelled without leftovers.
Sequential tasks on shared threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from tests.support.selection import one_in
from vfsd.core.pixel_array import Pixels
from vfsd.read import readahead
from vfsd.read.readahead import InlineRun, PrefetchRun, ReadAhead, SerialExecutor

PATIENCE = 30  # seconds
SHAPE = (4, 8, 3)
PICTURE_BYTES = 4 * 8 * 3


class Made:
    """Results of a few stretches, and the state of their producers."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.filled = 0
        self.at_work = 0
        self.most_at_work = 0
        self.finished = 0
        self.closed = 0


class Rows:
    """Fills rows of frames with frame numbers."""

    def __init__(self, frames: Sequence[int], rows: slice, made: Made, *, bad: int | None) -> None:
        self._frames = iter(frames)
        self._rows = rows
        self._made = made
        self._bad = bad
        self._is_used = threading.Lock()
        self._has_begun = False
        self._has_ended = False

    def fill(self, pictures: Sequence[Pixels]) -> None:
        assert self._is_used.acquire(blocking=False), "two threads at a time"
        with self._made.guard:
            if not self._has_begun:
                self._made.at_work += 1
                self._made.most_at_work = max(self._made.most_at_work, self._made.at_work)
            self._has_begun = True
            self._made.filled += len(pictures)
        for data in pictures:
            frame = next(self._frames)
            if frame == self._bad:
                self._is_used.release()
                raise OSError(frame)
            data[self._rows] = frame
        self._is_used.release()

    def finish(self) -> None:
        assert next(self._frames, None) is None, "there are more"
        self._made.finished += 1
        self._end()

    def close(self) -> None:
        self._made.closed += 1
        self._end()

    def _end(self) -> None:
        with self._made.guard:
            if self._has_begun and not self._has_ended:
                self._made.at_work -= 1
            self._has_ended = True


def stretches(
    lengths: Sequence[int], made: Made, *, hands: int = 1, bad: int | None = None
) -> Iterator[PrefetchRun | InlineRun]:
    """Stretches of consecutive frames; those below 0 are produced by the consumer."""
    at = 0
    for number, length in enumerate(lengths):
        frames = range(at, at + abs(length))
        places = {frame: [frame] for frame in frames}
        if length < 0:
            yield InlineRun(places, partial(direct, frames))
        else:
            yield PrefetchRun(number, places, partial(rows, list(frames), made, hands, bad))
        at = frames.stop


def rows(frames: Sequence[int], made: Made, hands: int, bad: int | None) -> Sequence[Rows]:
    return [Rows(frames, slice(hand, None, hands), made, bad=bad) for hand in range(hands)]


def direct(frames: Sequence[int]) -> Generator[tuple[int, Pixels]]:
    for frame in frames:
        yield frame, np.full(SHAPE, frame, np.uint8)


def reading(
    found: Iterator[PrefetchRun | InlineRun], workers: ThreadPoolExecutor, threads: int = 2
) -> Generator[tuple[int, Pixels]]:
    ahead = ReadAhead(found, SHAPE, np.dtype(np.uint8), workers, threads)
    yield from ahead.pictures()


def small_parts(monkeypatch: pytest.MonkeyPatch, *, ahead: int, part: int) -> None:
    """Bounds, in frames."""
    monkeypatch.setattr(readahead, "_AHEAD_BYTES", ahead * PICTURE_BYTES)
    monkeypatch.setattr(readahead, "_BATCH_BYTES", part * PICTURE_BYTES)


@pytest.mark.parametrize("seed", one_in(4, range(12)))
def test_frames_arrive_in_order_for_any_schedule(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    small_parts(monkeypatch, ahead=rng.randint(1, 40), part=rng.randint(1, 8))
    lengths = [rng.choice((1, 2, 5, 13, -1, -6)) for _ in range(30)]
    made = Made()
    with ThreadPoolExecutor(3) as workers:
        found = stretches(lengths, made, hands=rng.randint(1, 3))
        shown = [(place, data) for place, data in reading(found, workers)]
    assert [place for place, _ in shown] == list(range(sum(map(abs, lengths))))
    assert all((data == place).all() for place, data in shown)
    assert made.closed == 0


def test_next_stretch_starts_before_the_previous_ends() -> None:
    """The first one cannot end until the second one has begun."""
    second_begun = threading.Event()

    class Waiting:
        def fill(self, pictures: Sequence[Pixels]) -> None:
            if len(shown) >= 4:
                assert second_begun.wait(PATIENCE), "the second stretch is not started"

        def finish(self) -> None:
            pass

        close = finish

    class Telling(Waiting):
        def fill(self, pictures: Sequence[Pixels]) -> None:
            second_begun.set()

    shown: list[int] = []
    found = iter(
        (
            PrefetchRun("a", {n: [n] for n in range(12)}, lambda: [Waiting()]),
            PrefetchRun("b", {n: [n] for n in range(12, 20)}, lambda: [Telling()]),
        )
    )
    with ThreadPoolExecutor(2) as workers:
        for place, _ in reading(found, workers):
            shown.append(place)
    assert shown == list(range(20))


def test_stretches_of_one_source_are_sequential() -> None:
    """The second one continues with the decoder of the first."""
    at_work = threading.Lock()
    finished: list[str] = []

    class Alone:
        def __init__(self, name: str) -> None:
            self._name = name
            self._is_mine = False

        def fill(self, pictures: Sequence[Pixels]) -> None:
            if not self._is_mine:
                self._is_mine = at_work.acquire(blocking=False)
                assert self._is_mine, "the one before is not done"

        def finish(self) -> None:
            finished.append(self._name)
            at_work.release()

        def close(self) -> None:
            pass

    def alone(name: str) -> Sequence[Alone]:
        return [Alone(name)]

    found = iter(
        PrefetchRun("same", {n: [n] for n in range(at, at + 5)}, partial(alone, str(at)))
        for at in range(0, 50, 5)
    )
    with ThreadPoolExecutor(4) as workers:
        assert [place for place, _ in reading(found, workers, 4)] == list(range(50))
    assert finished == [str(at) for at in range(0, 50, 5)]


def test_prefetch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for a slow consumer, which gives producers time for all that they would make."""
    small_parts(monkeypatch, ahead=10, part=4)
    made = Made()
    threads = 2
    with (
        ThreadPoolExecutor(4) as workers,
        closing(reading(stretches([3] * 40, made), workers, threads)) as pictures,
    ):
        for taken, _ in enumerate(pictures, 1):
            workers.submit(lambda: None).result(PATIENCE)
            assert made.filled - taken <= min(2 * taken + taken, 10 + 4)
    assert made.filled == 120
    assert made.finished == 40
    assert made.most_at_work <= threads + 1


def test_reading_one_frame_decodes_few() -> None:
    made = Made()
    with ThreadPoolExecutor(2) as workers:
        next(reading(stretches([50], made), workers))
    assert made.filled <= 4


def test_frames_larger_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(readahead, "_BATCH_BYTES", 1)
    made = Made()
    with ThreadPoolExecutor(2) as workers:
        for taken, (place, data) in enumerate(reading(stretches([5, 5], made), workers), 1):
            assert (data == place).all()
            assert made.filled - taken <= 2
    assert made.filled == 10


@pytest.mark.parametrize("taken", [0, 1, 2, 7, 30])
def test_stopped_reader_leaves_no_worker(taken: int) -> None:
    made = Made()
    with ThreadPoolExecutor(2) as workers:
        pictures = reading(stretches([9, -3, 9, 9, 20], made, hands=2), workers)
        for _ in range(taken):
            next(pictures)
        pictures.close()
    assert made.at_work == 0
    assert made.finished + made.closed <= 2 * 4
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_stopped_reader_after_shutdown_leaves_no_worker() -> None:
    made = Made()
    workers = ThreadPoolExecutor(2)
    pictures = reading(stretches([40, 40], made), workers)
    for _ in range(5):
        next(pictures)
    workers.shutdown()
    pictures.close()
    assert made.at_work == 0


def test_error_is_raised_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch, ahead=30, part=3)
    made = Made()
    shown: list[int] = []
    with ThreadPoolExecutor(2) as workers:
        pictures = reading(stretches([8, 8, 8, 8], made, bad=19), workers)
        with pytest.raises(OSError, match="19"):
            shown.extend(int(data.flat[0]) for _, data in pictures)
    assert shown == list(range(len(shown)))
    assert 16 <= len(shown) <= 19  # the frames of the previous part are complete
    assert made.at_work == 0


# --------------------------------------------------------------------------------------------------
# Sequential tasks on shared threads


def test_tasks_of_a_strand_run_in_order() -> None:
    done: list[list[int]] = [[], [], []]
    with ThreadPoolExecutor(4) as workers:
        strands = [SerialExecutor(workers) for _ in done]
        for number in range(200):
            for strand, seen in zip(strands, done, strict=True):
                strand.submit(partial(seen.append, number))
    assert done == [list(range(200))] * 3


def test_strands_take_turns_on_one_thread() -> None:
    order: list[str] = []
    gate = threading.Event()
    with ThreadPoolExecutor(1) as workers:
        workers.submit(gate.wait, PATIENCE)
        one, other = SerialExecutor(workers), SerialExecutor(workers)
        for _ in range(3):
            one.submit(lambda: order.append("one"))
        last = [other.submit(lambda: order.append("other")) for _ in range(3)][-1]
        gate.set()
        last.result(PATIENCE)
    assert order == ["one", "other"] * 3


def test_error_affects_only_its_task() -> None:
    with ThreadPoolExecutor(2) as workers:
        strand = SerialExecutor(workers)
        wrong = strand.submit(lambda: [].pop())
        right = strand.submit(lambda: None)
        with pytest.raises(IndexError):
            wrong.result(PATIENCE)
        assert right.result(PATIENCE) is None


def test_cancelled_tasks_do_not_start() -> None:
    done: list[int] = []
    gate = threading.Event()
    with ThreadPoolExecutor(1) as workers:
        workers.submit(gate.wait, PATIENCE)
        strand = SerialExecutor(workers)
        first, second, third = (strand.submit(partial(done.append, n)) for n in range(3))
        assert second.cancel()
        gate.set()
    assert done == [0, 2]
    assert first.done()
    assert third.done()


def test_shutdown_finishes_accepted_tasks_only() -> None:
    done: list[int] = []
    gate = threading.Event()
    workers = ThreadPoolExecutor(1)
    strand = SerialExecutor(workers)
    workers.submit(gate.wait, PATIENCE)
    for number in range(5):
        strand.submit(partial(done.append, number))
    workers.shutdown(wait=False)
    gate.set()
    workers.shutdown(wait=True)
    assert done == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError):
        strand.submit(lambda: done.append(5))
    assert done == [0, 1, 2, 3, 4]
