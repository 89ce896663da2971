"""Parts of a view that are made side by side are decoded one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.views.conftest import Shelf, decoded
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.views.render_context import DecodeLocks


def test_the_foremost_comes_first() -> None:
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


def test_who_is_far_from_all_others_does_not_wait() -> None:
    """Or who jumps would wait until all is decoded that was wanted before."""
    turns = DecodeLocks()
    with turns.acquire("a", 0), turns.acquire("a", 100_000):
        pass


def test_an_error_ends_a_turn() -> None:
    turns = DecodeLocks()
    for _ in range(2):
        try:
            with turns.acquire("a", 0):
                raise OSError
        except OSError:
            continue


def test_a_segment_that_is_encoded_again_is_not_decoded_again(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = 0

    def counted(decode: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def counting(*args: Any, **more: Any) -> Iterator[Any]:
            nonlocal given
            for found in decode(*args, **more):
                given += 1
                yield found

        return counting

    monkeypatch.setattr("vfsd.views.rate_control._SIZE_MARGIN", 0.2)
    monkeypatch.setattr(FrameDecoder, "stream", counted(FrameDecoder.stream))
    monkeypatch.setattr(FrameDecoder, "decode", counted(FrameDecoder.decode))  # short runs
    file = fresh.open("traffic.mp4", "size=160x120.mp4")
    data = bytearray(file.size)
    assert file.readinto(memoryview(data), 0) == file.size
    file.close()
    assert len(decoded(bytes(data))) == 120
    # Two that begin at the same time may not know of each other.
    assert 120 <= given <= 240
