"""A proxy in front of an HTTP server that counts, delays, refuses and damages what passes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

_CHUNK = 1 << 18
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
_LAST_TURNS = 10


@dataclass
class Faults:
    """Treatment of requests; may be changed while the proxy runs."""

    lag: float = 0.0  #: seconds that each request waits
    busy: bool = False  #: answer 503 to all
    busy_answers: int = 0  #: answer 503 to this many requests
    silent: bool = False  #: never answer
    cut: float = 0.0  #: share of responses that end in the middle of their body
    short: int = 0  #: this many bodies lose their last byte, with the right Content-Length for it
    byte_seconds: float = 0.0  #: time that each byte of a body takes
    lost_puts: int = 0  #: responses to this many PUTs are lost, after the server has obeyed
    half_puts: bool = False  #: send half of the body of a PUT, then wait
    random: random.Random = field(default_factory=lambda: random.Random(3))


@dataclass
class Counts:
    """Traffic so far."""

    requests: Counter[str] = field(default_factory=Counter)  #: by method
    ranges: list[str] = field(default_factory=list)  #: of GETs, as in the header
    body_bytes: int = 0  #: of responses to GET
    open_now: int = 0  #: requests that are being answered
    most_open: int = 0


class HttpProxy:
    """Listens on a port of the loopback interface, in a thread; `close` ends it."""

    def __init__(self, target: int) -> None:
        """`target` is the port of the server."""
        self.faults = Faults()
        self.counts = Counts()
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def reset(self) -> None:
        """Forget the counts, and stop all faults."""
        self.faults = Faults()
        self.counts = Counts()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        # A connection may be accepted while others end.
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Transports close their sockets in later turns of the loop.
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._target)
            while await self._exchange(reader, writer, answers, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, upstream):
                if one is not None:
                    one.transport.abort()
            self._tasks.discard(task)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """Pass on one request and its response; return whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_length(head))
        faults, counts = self.faults, self.counts
        method = head.partition(b" ")[0].decode()
        counts.requests[method] += 1
        counts.open_now += 1
        counts.most_open = max(counts.most_open, counts.open_now)
        try:
            if method == "GET":
                counts.ranges.append(_header(head, b"range").decode())
            if faults.lag:
                await asyncio.sleep(faults.lag)
            while faults.silent:
                await asyncio.sleep(0.01)
            if faults.busy or faults.busy_answers:
                faults.busy_answers = max(0, faults.busy_answers - 1)
                writer.write(_BUSY)
                await writer.drain()
                return True
            if method == "PUT" and faults.half_puts:
                upstream.write(head + body[: len(body) // 2])
                while faults.half_puts:
                    await asyncio.sleep(0.01)
                return False
            upstream.write(head + body)
            await upstream.drain()
            if method == "PUT" and faults.lost_puts:
                faults.lost_puts -= 1
                await answers.readuntil(b"\r\n\r\n")
                return False
            return await self._answer(method, faults, counts, answers, writer)
        finally:
            counts.open_now -= 1

    async def _answer(
        self,
        method: str,
        faults: Faults,
        counts: Counts,
        answers: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        head = await answers.readuntil(b"\r\n\r\n")
        left = 0 if method == "HEAD" else _length(head)
        if method == "GET" and left and faults.short:
            faults.short -= 1
            data = (await answers.readexactly(left))[:-1]
            writer.write(head.replace(b": %d\r\n" % left, b": %d\r\n" % len(data)) + data)
            return True
        writer.write(head)
        if method != "HEAD" and b"chunked" in _header(head, b"transfer-encoding").lower():
            while True:
                line = await answers.readuntil(b"\r\n")
                writer.write(line + await answers.readexactly(int(line, 16) + 2))
                if int(line, 16) == 0:
                    return True
        passed = left // 2 if method == "GET" and faults.random.random() < faults.cut else left
        is_cut = passed < left
        while passed and (chunk := await answers.read(min(passed, _CHUNK))):
            if faults.byte_seconds:
                await asyncio.sleep(len(chunk) * faults.byte_seconds)
            passed -= len(chunk)
            counts.body_bytes += len(chunk) if method == "GET" else 0
            writer.write(chunk)
            await writer.drain()
        if is_cut:
            with suppress(OSError):
                await writer.drain()
        return not is_cut and not passed


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def _length(head: bytes) -> int:
    return int(_header(head, b"content-length") or 0)
