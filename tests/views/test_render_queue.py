"""Renders wait in lanes, run once, and are cancelled when their last reader leaves.

Parts of a view that render in parallel are decoded one after the other.

The rate limiter serializes the output of views while foreground reads wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.views.conftest import BLOCK, Shelf, decoded
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.views import Views
from vfsd.views.render_cache import (
    MemoryCache,
    RenderCache,
    RenderCancelledError,
    RenderPool,
    RenderTask,
)
from vfsd.views.render_context import Checkpoint, DecodeLocks
from vfsd.views.rendering import RateLimiter


def nothing(render: RenderTask) -> None:
    """A callback for renders that are in no list."""


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


def test_render_ends_when_its_last_reader_leaves(lane: RenderPool) -> None:
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


def test_waiting_readers_precede_prefetch(lane: RenderPool) -> None:
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


def test_a_cancelled_wait_leaves_the_task_to_other_readers(lane: RenderPool) -> None:
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
        cache.get("a", make, lane, keep=False, cancel_check=impatient)
    go.set()
    other.join()
    assert found == [b"bytes"]
    lane.close()


def test_cancelled_render_is_restarted_for_the_next_reader(lane: RenderPool) -> None:
    cache = RenderCache(MemoryCache(100), None)
    begun, seen = threading.Event(), list[str]()
    deadline = time.monotonic() + 10

    def impatient() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.get("a", until_given_up(begun, seen), lane, keep=False, cancel_check=impatient)
    while begun.is_set() and not seen:
        assert time.monotonic() < deadline
    assert cache.get("a", lambda check: b"anew", lane, keep=False) == b"anew"
    lane.close()


def test_closed_lane_renders_nothing(lane: RenderPool) -> None:
    lane.close()
    render = RenderTask(lambda check: b"x", nothing)
    render.add_reader()
    lane.submit(render)
    render.wait(None)
    assert render.data is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_lane_after_a_fork(lane: RenderPool) -> None:
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


def test_lane_closes_after_an_interrupt_during_thread_start(
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


def test_failure_to_start_a_thread_does_not_block(
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


# --------------------------------------------------------------------------------------------------
# Parts of a view that render in parallel are decoded one after the other


def test_first_part_is_decoded_first() -> None:
    turns = DecodeLocks()
    order: list[int] = []

    def wait(place: int) -> None:
        with turns.acquire("a", place):
            order.append(place)

    threads = [threading.Thread(target=wait, args=(place,)) for place in (3, 1, 2)]
    with turns.acquire("a", 0):
        for thread in threads:
            thread.start()
        while len(turns._waiting) < 3:
            time.sleep(0.001)
        with turns.acquire("b", 7):  # another file does not wait for this one
            assert not order
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3]


def test_distant_decodes_do_not_wait() -> None:
    """Otherwise a seek would wait for all decodes that were requested before."""
    turns = DecodeLocks()
    with turns.acquire("a", 0), turns.acquire("a", 100_000):
        pass


def test_error_ends_a_turn() -> None:
    turns = DecodeLocks()
    for _ in range(2):
        try:
            with turns.acquire("a", 0):
                raise OSError
        except OSError:
            continue


def test_second_encode_does_not_decode_again(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0

    def counted(decode: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def counting(*args: Any, **more: Any) -> Iterator[Any]:
            nonlocal given
            for found in decode(*args, **more):
                given += 1
                yield found

        return counting

    monkeypatch.setattr("vfsd.views.view_slots._SIZE_MARGIN", 0.2)
    monkeypatch.setattr(FrameDecoder, "stream", counted(FrameDecoder.stream))
    monkeypatch.setattr(FrameDecoder, "decode", counted(FrameDecoder.decode))  # short runs
    file = fresh.open("traffic.mp4", "size=160x120.mp4")
    data = bytearray(file.size)
    assert file.readinto(memoryview(data), 0) == file.size
    file.close()
    assert len(decoded(bytes(data))) == 120
    # Two decodes that begin at the same time may be unaware of each other.
    assert 120 <= given <= 240


# --------------------------------------------------------------------------------------------------
# The rate limiter serializes the output of views while foreground reads wait


WAIT = 30.0
"""Seconds until something that does not happen is taken for an error."""


def test_several_at_a_time_without_foreground_reads() -> None:
    rate_limiter = RateLimiter(lambda: False)
    met = threading.Barrier(2, timeout=WAIT)

    def meet() -> None:
        with rate_limiter.limit(1 << 20):
            met.wait()

    other = threading.Thread(target=meet)
    other.start()
    meet()
    other.join()
    assert not met.broken


def test_one_at_a_time_with_foreground_reads() -> None:
    rate_limiter = RateLimiter(lambda: True)
    inside: list[int] = []
    most = 0

    def enter(number: int) -> None:
        nonlocal most
        for _ in range(50):
            with rate_limiter.limit(4096):
                inside.append(number)
                most = max(most, len(inside))
                time.sleep(0)
                inside.remove(number)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize(("parts", "size"), [(11, 10 << 20), (6400, 16 << 10)])
def test_rate_is_independent_of_part_sizes(parts: int, size: int) -> None:
    rate_limiter = RateLimiter(lambda: True)
    began = time.perf_counter()
    for _ in range(parts):
        with rate_limiter.limit(size):
            pass
    assert time.perf_counter() - began > 100 * 2**20 / 1.5e9


def test_single_render_does_not_wait() -> None:
    lone = RateLimiter(lambda: True)
    began = time.perf_counter()
    with lone.limit(64 << 30):  # 45 seconds' worth while others wait
        pass
    assert time.perf_counter() - began < 20


def test_error_releases_the_limiter() -> None:
    rate_limiter = RateLimiter(lambda: True)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), rate_limiter.limit(1):
            raise OSError("gone")


@pytest.mark.parametrize("are_hurried", [False, True])
def test_views_use_the_limiter(fresh: Shelf, are_hurried: bool) -> None:
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return are_hurried

    views = Views(fresh.store.parts, fresh.store.tools, are_reads_waiting=ask)
    try:
        for path in ("t=0-0.2.rgb", "size=96x54.mp4"):
            asked = 0
            read = Shelf(fresh.store, views).read("traffic.mp4", path)
            assert read == fresh.read("traffic.mp4", path)
            assert asked >= len(read) / BLOCK
    finally:
        views.close()
