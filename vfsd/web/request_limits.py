"""`WorkQueue` bounds requests that encode or decode; `ClientCounts` bounds those of one client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from vfsd.web.http_errors import OverloadedError

_MAX_CLIENTS = 4096
_FAILURE_SECONDS = 60.0


class ClientCounts:
    """Counts requests in progress by client.  For one event loop."""

    def __init__(self, most: int, what: str) -> None:
        """Allow `most` at a time; `what` names them in errors."""
        self._most = most
        self._what = what
        self._counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self._counts.total()

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Count a request during the block.  Raises `OverloadedError` (429)."""
        if self._counts[client] >= self._most:
            raise OverloadedError(
                f"a client may have {self._most} {self._what} at a time", status=429
            )
        self._counts[client] += 1
        try:
            yield
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]


class WorkQueue:
    """Turns for requests that encode or decode.  For one event loop."""

    def __init__(self, running: int, waiting: int, seconds: float) -> None:
        """Let `running` requests work and `waiting` more wait, for some `seconds` at most."""
        self._turns = asyncio.Semaphore(running)
        self._most = waiting
        self._seconds = seconds
        self.waiting = 0
        self.running = 0
        self.refused = 0

    @asynccontextmanager
    async def turn(self, *, is_begun: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and hold it during the block.

        A response that has begun (`is_begun`) waits in any case.  Raises `OverloadedError` (503).
        """
        await self._wait(is_begun)
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._turns.release()

    async def _wait(self, is_begun: bool) -> None:
        if not is_begun and self.waiting >= self._most and self._turns.locked():
            self.refused += 1
            raise OverloadedError("too many requests wait for a decoder or encoder")
        self.waiting += 1
        try:
            if is_begun:
                await self._turns.acquire()
            else:
                async with asyncio.timeout(self._seconds):
                    await self._turns.acquire()
        except TimeoutError:
            self.refused += 1
            raise OverloadedError(
                f"no decoder or encoder was free for {self._seconds:.0f} s"
            ) from None
        finally:
            self.waiting -= 1


class FailedLogins:
    """Counts wrong tokens by client, so that passwords cannot be guessed.  For one event loop."""

    def __init__(self, most: int = 10) -> None:
        """Allow `most` within a minute."""
        self._most = most
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    def require_few(self, client: str) -> None:
        """Raises `OverloadedError` (429) for a client with too many failures."""
        now = time.monotonic()
        recent = [at for at in self._failed.get(client, ()) if now - at < _FAILURE_SECONDS]
        if len(recent) >= self._most:
            wait = int(_FAILURE_SECONDS - (now - recent[0])) + 1
            raise OverloadedError("too many wrong tokens", status=429, seconds=wait)

    def add(self, client: str) -> None:
        now = time.monotonic()
        recent = [at for at in self._failed.pop(client, ()) if now - at < _FAILURE_SECONDS]
        self._failed[client] = [*recent[-self._most :], now]
        while len(self._failed) > _MAX_CLIENTS:
            self._failed.popitem(last=False)
