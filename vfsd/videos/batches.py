"""Many reads at once, of any videos, in the order in which they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from vfsd.frames import Frames
from vfsd.host import cores
from vfsd.videos.video import Video

Request = tuple[str, Mapping[str, Any]]
"""The name of a video, and arguments of `Video.read`."""


def read_many(
    open_video: Callable[[str], Video], requests: Iterable[Request], threads: int | None = None
) -> Iterator[Frames]:
    """What `Video.read` gives for each request, in their order.

    As many are read side by side as there are `threads` (default: one for each core); one more is
    ready ahead of who takes them, so memory is that of a few results.  What a read raises comes
    when it is its turn; the requests after it are given up.
    """
    known: dict[str, Video] = {}

    def read(name: str, what: Mapping[str, Any]) -> Frames:
        if name not in known:
            known[name] = open_video(name)
        return known[name].read(**what)

    hands = threads or cores()
    waiting = iter(requests)
    with ThreadPoolExecutor(hands, thread_name_prefix="batch") as executor:

        def submit(count: int) -> Iterator[Future[Frames]]:
            return (executor.submit(read, *request) for request in islice(waiting, count))

        running = deque(submit(hands + 1))
        try:
            while running:
                yield running.popleft().result()
                running.extend(submit(1))
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
