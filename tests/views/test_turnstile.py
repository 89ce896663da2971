"""Bytes of views are handed out one after the other while others are in a hurry."""

from __future__ import annotations

import threading
import time

import pytest

from tests.views.conftest import BLOCK, Shelf
from vfsd.views import Views
from vfsd.views.rendering import RateLimiter

WAIT = 30.0
"""Seconds until something that does not happen is taken for an error."""


def test_several_at_a_time_where_nobody_is_in_a_hurry() -> None:
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


def test_one_at_a_time_where_somebody_is() -> None:
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
def test_many_bytes_take_their_time_in_few_parts_as_in_many(parts: int, size: int) -> None:
    rate_limiter = RateLimiter(lambda: True)
    began = time.perf_counter()
    for _ in range(parts):
        with rate_limiter.limit(size):
            pass
    assert time.perf_counter() - began > 100 * 2**20 / 1.5e9


def test_who_is_alone_does_not_wait() -> None:
    lone = RateLimiter(lambda: True)
    began = time.perf_counter()
    with lone.limit(64 << 30):  # which is 45 seconds' worth where others wait
        pass
    assert time.perf_counter() - began < 20


def test_an_error_lets_the_next_one_in() -> None:
    rate_limiter = RateLimiter(lambda: True)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), rate_limiter.limit(1):
            raise OSError("gone")


@pytest.mark.parametrize("are_hurried", [False, True])
def test_views_are_handed_out_that_way(fresh: Shelf, are_hurried: bool) -> None:
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
