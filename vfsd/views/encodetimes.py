"""CPU time of encoders, measured while views are made."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_ON_ONE_THREAD = ("h264", "mjpeg")
"""Codecs whose encoders work in the thread that calls them; others have threads of their own."""


class EncodeTimes:
    """Sums of pixels and CPU seconds, by codec.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sums: dict[str, tuple[int, float]] = {}

    def add(self, codec: str, pixels: int, seconds: float) -> None:
        """Encoding so many pixels took `seconds` of CPU time of the calling thread."""
        if codec not in _ON_ONE_THREAD:
            return
        with self._guard:
            before = self._sums.get(codec, (0, 0.0))
            self._sums[codec] = before[0] + pixels, before[1] + seconds

    def take(self, least: int) -> dict[str, float]:
        """Remove sums of at least `least` pixels; CPU seconds for a pixel, by codec."""
        with self._guard:
            full = {codec: one for codec, one in self._sums.items() if one[0] >= least}
            for codec in full:
                del self._sums[codec]
        return {codec: seconds / pixels for codec, (pixels, seconds) in full.items()}


class EncodeTimer:
    """CPU time of this thread within an encoder, without the time for the pictures given to it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def given(self, pictures: Iterator[T]) -> Iterator[T]:
        """`pictures`, whose time does not count."""
        while True:
            began = time.thread_time()
            picture = next(pictures, None)
            self.seconds -= time.thread_time() - began
            if picture is None:
                return
            yield picture

    def taken(self, packets: Iterator[bytes]) -> Iterator[bytes]:
        """`packets`, whose time counts."""
        while True:
            began = time.thread_time()
            packet = next(packets, None)
            self.seconds += time.thread_time() - began
            if packet is None:
                return
            yield packet
