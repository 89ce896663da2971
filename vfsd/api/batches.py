"""Many reads of any videos at once; results come in the order of the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from reprlib import repr as shown
from typing import Any, cast

from vfsd.api.reading import ReadOptions
from vfsd.api.video import Video
from vfsd.core.atfork import OwnerProcess
from vfsd.core.frames import Frames
from vfsd.core.hostinfo import available_cores
from vfsd.errors import UsageError

Request = tuple[str, ReadOptions]
"""The name of a video, and arguments of `Video.read`."""
_HINT = 'give them as [("a.mp4", {"span": (1, 2)})]'


def read_many(
    open_video: Callable[[str], Video], requests: Iterable[Request], threads: int | None = None
) -> Iterator[Frames]:
    """The result of `Video.read` for each request, in their order.

    `threads` reads run at a time (default: one for each core).  One more result is ready ahead of
    the caller, so memory holds only a few.  The error of a read is raised when it is its turn; the
    later requests are dropped.  Raises `UsageError` for malformed requests, and in a forked child
    that continues the iteration of its parent.
    """
    known: dict[str, Video] = {}

    def read(request: Request) -> Frames:
        name, what = _pair(request)
        if name not in known:
            known[name] = open_video(name)
        return known[name].read(**what)

    hands = threads or available_cores()
    waiting = _one_by_one(requests)
    origin = OwnerProcess()
    executor = ThreadPoolExecutor(hands, thread_name_prefix="batch")

    def submit(count: int) -> Iterator[Future[Frames]]:
        return (executor.submit(read, request) for request in islice(waiting, count))

    try:
        running = deque(submit(hands + 1))
        while running:
            yield running.popleft().result()
            origin.require_same_process("a read")
            running.extend(submit(1))
    finally:
        if not origin.is_parent:  # a forked child has no such threads
            executor.shutdown(wait=True, cancel_futures=True)


def _one_by_one(requests: Any) -> Iterator[Any]:
    """Raises `UsageError` unless requests are an iterable other than text or a mapping."""
    try:
        if not isinstance(requests, (str, Mapping)):
            return iter(requests)
    except TypeError:
        pass
    raise UsageError(
        f"requests must be a list of (name, options), got {shown(requests)}", hint=_HINT
    )


def _pair(request: Any) -> Request:
    """Raises `UsageError` for a malformed request."""
    is_pair = isinstance(request, Sequence) and len(request) == 2
    if is_pair and isinstance(request[0], str) and isinstance(request[1], Mapping):
        return request[0], cast(ReadOptions, request[1])  # `Video.read` checks them
    raise UsageError(f"a request must be (name, options), got {shown(request)}", hint=_HINT)
