"""Handing out bytes of views with breaks in between, while others are in a hurry.

When a picture has been made, all requests for its parts can be answered at once: a few megabytes
are copied twice, here and by the kernel, which no scheduler interrupts.  Whoever wakes up then, to
answer for four kilobytes of a file, would wait for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Without breaks, one copy at a time or smaller requests did not help: 4 KiB reads next to four raw
# views took 0.4 to 1.6 ms in the slowest hundredth, with breaks 0.3 to 0.6 ms.
_BYTES_PER_SECOND = 1.25e9
"""Not more is handed out meanwhile: 200 pictures of 1080p, as RGB."""
_LEAST_SECONDS = 50e-6
"""A shorter break would be over before anybody could use it, and is added to the next one."""


class Turnstile:
    """Lets in one at a time, not too many bytes in a second, as long as that helps anybody."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed
        self._guard = threading.Lock()
        self._next = 0.0  # not before that time, as `time.perf_counter` has it

    @contextmanager
    def turn(self, count: int) -> Iterator[None]:
        """Hand out so many bytes within."""
        if not self._is_needed():
            yield
            return
        with self._guard:
            wait = self._next - time.perf_counter()
            if wait > _LEAST_SECONDS:
                time.sleep(wait)
            yield
            self._next = max(self._next, time.perf_counter()) + count / _BYTES_PER_SECOND
