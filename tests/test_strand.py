"""Jobs in a row on threads that are shared."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from vfsd.read.readahead import SerialExecutor

PATIENCE = 30  # seconds


def test_jobs_follow_each_other_whichever_threads_do_them() -> None:
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


def test_an_error_is_its_own_jobs_and_the_next_goes_on() -> None:
    with ThreadPoolExecutor(2) as workers:
        strand = SerialExecutor(workers)
        wrong = strand.submit(lambda: [].pop())
        right = strand.submit(lambda: None)
        with pytest.raises(IndexError):
            wrong.result(PATIENCE)
        assert right.result(PATIENCE) is None


def test_what_is_cancelled_is_not_begun() -> None:
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


def test_what_was_taken_is_done_when_threads_end_and_no_more_is_taken() -> None:
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
