"""Renders wait in lanes, are made once, and given up when nobody wants them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from vfsd.views.render_cache import (
    Checkpoint,
    MemoryCache,
    RenderCache,
    RenderCancelledError,
    RenderPool,
    RenderTask,
)


def nothing(render: RenderTask) -> None:
    """For renders of which nobody keeps a list."""


@pytest.fixture
def lane() -> RenderPool:
    return RenderPool("test", 1)


def until_given_up(begun: threading.Event, seen: list[str]) -> Callable[[Checkpoint], bytes]:
    def work(check: Checkpoint) -> bytes:
        begun.set()
        try:
            while True:
                check()
        except RenderCancelledError:
            seen.append("given up")
            raise

    return work


def test_what_the_last_one_does_not_want_any_more_ends(lane: RenderPool) -> None:
    begun, landed, seen = threading.Event(), threading.Event(), list[str]()
    render = RenderTask(until_given_up(begun, seen), nothing)
    assert render.add_reader()
    assert render.add_reader(landed.set)
    lane.submit(render)
    assert begun.wait(10)
    render.remove_reader()
    assert not landed.wait(0.05)
    render.remove_reader()
    assert landed.wait(10)
    assert (seen, render.data, render.error) == (["given up"], None, None)
    assert not render.add_reader()
    lane.close()


def test_who_waits_is_served_before_what_is_made_ahead(lane: RenderPool) -> None:
    order: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def first(check: Checkpoint) -> bytes:
        begun.set()
        assert go.wait(10)
        return b""

    def numbered(number: int) -> RenderTask:
        def work(check: Checkpoint) -> bytes:
            order.append(number)
            return b"%d" % number

        render = RenderTask(work, nothing)
        render.add_reader()
        return render

    blocking = RenderTask(first, nothing)
    blocking.add_reader()
    lane.submit(blocking)
    assert begun.wait(10)
    ahead, wanted = numbered(1), numbered(2)
    lane.submit(ahead)
    lane.submit(wanted)
    waiter = threading.Thread(target=wanted.wait, args=(None,))
    waiter.start()
    while not wanted.has_waiting_reader:
        pass
    go.set()
    waiter.join()
    ahead.wait(None)
    assert order == [2, 1]
    lane.close()


def test_a_waiter_without_patience_leaves_the_others_theirs(lane: RenderPool) -> None:
    cache = RenderCache(MemoryCache(100), None)
    begun, go, found = threading.Event(), threading.Event(), list[object]()

    def make(check: Checkpoint) -> bytes:
        begun.set()
        while not go.is_set():
            check()
        return b"bytes"

    def impatient() -> None:
        raise InterruptedError

    other = threading.Thread(target=lambda: found.append(cache.get("a", make, lane, keep=False)))
    other.start()
    assert begun.wait(10)
    with pytest.raises(InterruptedError):
        cache.get("a", make, lane, keep=False, patience=impatient)
    go.set()
    other.join()
    assert found == [b"bytes"]
    lane.close()


def test_what_was_given_up_is_made_anew_for_who_comes_next(lane: RenderPool) -> None:
    cache = RenderCache(MemoryCache(100), None)
    begun, seen = threading.Event(), list[str]()
    deadline = time.monotonic() + 10

    def impatient() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.get("a", until_given_up(begun, seen), lane, keep=False, patience=impatient)
    while begun.is_set() and not seen:
        assert time.monotonic() < deadline
    assert cache.get("a", lambda check: b"anew", lane, keep=False) == b"anew"
    lane.close()


def test_a_closed_lane_makes_nothing(lane: RenderPool) -> None:
    lane.close()
    render = RenderTask(lambda check: b"x", nothing)
    render.add_reader()
    lane.submit(render)
    render.wait(None)
    assert render.data is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_lane_after_a_fork(lane: RenderPool) -> None:
    def made() -> bytes | memoryview | None:
        render = RenderTask(lambda check: b"x", nothing)
        render.add_reader()
        lane.submit(render)
        render.wait(None)
        return render.data

    assert made() == b"x"
    child = os.fork()
    if not child:
        os._exit(0 if made() == b"x" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lane.close()


def test_a_lane_closes_although_ctrl_c_came_while_a_thread_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            raise KeyboardInterrupt

    lane = RenderPool("test", 2)
    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        lane.submit(RenderTask(lambda _: b"", lambda _: None))
    monkeypatch.undo()
    lane.close()


def test_nobody_waits_for_a_thread_that_the_system_does_not_give(
    lane: RenderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Refused)
        refused = RenderTask(lambda _: b"", nothing)
        assert refused.add_reader()
        lane.submit(refused)
        refused.wait(None)
        assert isinstance(refused.error, OSError)
    later = RenderTask(lambda _: b"later", nothing)
    assert later.add_reader()
    lane.submit(later)
    later.wait(None)
    assert later.data == b"later"
    lane.close()
