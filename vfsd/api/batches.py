"""Many reads at once, of any videos, in the order in which they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from reprlib import repr as shown
from typing import Any

from vfsd.api.video import Video
from vfsd.core.atfork import OwnerProcess
from vfsd.core.frames import Frames
from vfsd.core.hostinfo import available_cores
from vfsd.errors import UsageError

Request = tuple[str, Mapping[str, Any]]
"""The name of a video, and arguments of `Video.read`."""
_HINT = 'give them as [("a.mp4", {"span": (1, 2)})]'


def read_many(
    open_video: Callable[[str], Video], requests: Iterable[Request], threads: int | None = None
) -> Iterator[Frames]:
    """What `Video.read` gives for each request, in their order.

    As many are read side by side as there are `threads` (default: one for each core); one more is
    ready ahead of who takes them, so memory is that of a few results.  What a read raises comes
    when it is its turn; the requests after it are given up.  Raises `UsageError` for what are no
    requests, and in a forked child that goes on with what its parent has begun.
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
            origin.require_own("a read")
            running.extend(submit(1))
    finally:
        if not origin.is_parent:  # else its threads are not here, and may have had its locks
            executor.shutdown(wait=True, cancel_futures=True)


def _one_by_one(requests: Any) -> Iterator[Any]:
    """Raises `UsageError` for what are no requests."""
    try:
        if not isinstance(requests, (str, Mapping)):
            return iter(requests)
    except TypeError:
        pass
    raise UsageError(
        f"requests must be a list of (name, options), got {shown(requests)}", hint=_HINT
    )


def _pair(request: Any) -> Request:
    """Raises `UsageError` for what is no request."""
    is_pair = isinstance(request, Sequence) and len(request) == 2
    if is_pair and isinstance(request[0], str) and isinstance(request[1], Mapping):
        return request[0], request[1]
    raise UsageError(f"a request must be (name, options), got {shown(request)}", hint=_HINT)
