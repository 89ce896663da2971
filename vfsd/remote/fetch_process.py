"""The fetch process: one per home and user, which serves its clients on a Unix socket.

``python -m vfsd.core.subprocess_entry vfsd.remote.fetch_process`` reads `FetchSettings` as JSON
from its input. It listens, writes `STARTED`, and goes on in the background. If another process has
the lock of the home, it writes `BUSY` and ends. It ends a minute after its last client.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from vfsd.core.process_control import set_oom_score
from vfsd.errors import ExtraMissingError, VfsdError
from vfsd.remote.fetch_protocol import (
    BEAT,
    FRAME,
    LOCK,
    LOG,
    MAX_HEAD_BYTES,
    SOCKET,
    VERSION,
    Answer,
    Delete,
    Failure,
    FetchSettings,
    Get,
    Head,
    Hello,
    List,
    Prefetch,
    Put,
    Read,
    Request,
    Stat,
    frame,
    parse_request,
    require_name,
)

STARTED, BUSY = b"started\n", b"busy\n"

OTHER_SETTINGS = "other settings"
"""Answer to a `Hello` with other settings than those of the process, which then ends."""

_BACKLOG = 1024
_OOM_SCORE = 300
_LOG_BYTES = 1 << 20
_MOST_BEATS = 4
_LEAST_BEAT_SECONDS = 0.05

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> None:
    """Start the process; see the module."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=FetchSettings)
    os.makedirs(settings.cache, mode=0o700, exist_ok=True)
    os.chdir(settings.cache)  # the path of a socket must be short
    lock = take_lock(Path(settings.cache))
    if lock is None:
        os.write(1, BUSY)
        return
    if importlib.util.find_spec("obstore") is None:
        missing = ExtraMissingError("obstore is not installed", hint="pip install 'vfsd[s3]'")
        os.write(1, msgspec.json.encode(Failure.of(missing)))
        sys.exit(1)
    listening = _listen()
    # Before obstore is imported: its threads would not exist in the child.
    if os.fork():
        os.write(1, STARTED)
        os._exit(0)
    _detach()
    _allow_descriptors()
    os.pwrite(lock, b"%-20d\n" % os.getpid(), 0)  # for people who look for the process
    try:
        asyncio.run(_serve(settings, listening))
    except Exception:
        _log.exception("the fetch process has ended")
    # The socket goes before the lock, or that of a successor would.
    with suppress(OSError):
        os.unlink(SOCKET)
    os._exit(0)  # threads of the runtime need no end


def take_lock(cache: Path) -> int | None:
    """Return a descriptor that locks the cache of a home for its only writer; None if another
    process has the lock. Raises `OSError`."""
    fd = os.open(cache / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _listen() -> socket.socket:
    """Return a socket under the name that clients know, which is replaced in one step."""
    new = f"{SOCKET}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o077)
    listening.bind(new)
    listening.listen(_BACKLOG)
    os.replace(new, SOCKET)
    return listening


def _detach() -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.close(nothing)
    set_oom_score(_OOM_SCORE)
    with suppress(OSError):
        handler = RotatingFileHandler(LOG, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)


def _allow_descriptors() -> None:
    """Each thread of each client has a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(settings: FetchSettings, listening: socket.socket) -> None:
    server = FetchServer(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    accepting = await asyncio.start_unix_server(server.serve, sock=listening)
    await server.ended()
    accepting.close()


class FetchServer:
    """Answers requests. For one event loop."""

    def __init__(self, settings: FetchSettings, *, inline: bool = False) -> None:
        """With `inline`, it runs in the process of its only client."""
        self._settings = settings
        self._inline = inline
        self._clients = 0
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._failure: VfsdError | None = None  #: of the settings
        self._fetcher: Any = None
        self._bucket: Any = None
        self._lock: int | None = None
        try:
            self._open()
        except VfsdError as error:
            self._failure = error

    def _open(self) -> None:
        from vfsd.remote.block_cache import BlockCache
        from vfsd.remote.bucket import Bucket
        from vfsd.remote.fetcher import Fetcher

        # The process has its folder as its own: another home may get the path.
        cache = Path(self._settings.cache if self._inline else ".")
        self._bucket = Bucket(self._settings)
        if self._inline:
            # Another process may be writing the cache; then this one only reads it.
            self._lock = take_lock(cache)
        is_writer = not self._inline or self._lock is not None
        blocks = BlockCache(cache, self._settings.cache_bytes) if is_writer else None
        self._fetcher = Fetcher(self._bucket, blocks)
        self._fetcher.start()

    def stop(self) -> None:
        """End the process soon."""
        self._stop.set()
        self._changed.set()

    async def ended(self) -> None:
        """Return when the process was stopped, or had no client for some time."""
        while not self._stop.is_set():
            self._changed.clear()
            idle = None if self._clients else self._settings.idle_seconds
            try:
                await asyncio.wait_for(self._changed.wait(), idle)
            except TimeoutError:
                if not self._clients:
                    return

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its end."""
        self._clients += 1
        self._changed.set()
        try:
            while True:
                length, _ = FRAME.unpack(await reader.readexactly(FRAME.size))
                if length > MAX_HEAD_BYTES:
                    break
                request = parse_request(await reader.readexactly(length))
                if isinstance(request, Prefetch):
                    await self.answer(request)
                    continue
                answer, data = await self._answered(request, writer)
                writer.write(frame(answer, sum(map(len, data))))
                for part in data:
                    writer.write(part)
                    await writer.drain()
                await writer.drain()
                if answer.value == OTHER_SETTINGS or self._is_useless:
                    # The next process has the environment of the client that starts it.
                    self.stop()
                    break
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            if not isinstance(error, asyncio.IncompleteReadError):
                _log.info("a client is gone: %s", error)
        finally:
            self._clients -= 1
            self._changed.set()
            writer.close()

    @property
    def _is_useless(self) -> bool:
        """Whether no request can succeed: the settings or the credentials are wrong."""
        return self._failure is not None or self._bucket.has_wrong_credentials

    async def _answered(
        self, request: Request, writer: asyncio.StreamWriter
    ) -> tuple[Answer, list[bytes | memoryview]]:
        """Answer a request, and tell the client now and then that this goes on."""
        task = asyncio.get_running_loop().create_task(self.answer(request))
        beat = max(_LEAST_BEAT_SECONDS, self._settings.seconds / _MOST_BEATS)
        while not (await asyncio.wait((task,), timeout=beat))[0]:
            writer.write(BEAT)
        return task.result()

    async def answer(self, request: Request) -> tuple[Answer, list[bytes | memoryview]]:
        """Return the answer to a request, and the bytes that follow it."""
        try:
            if isinstance(request, Hello) and not self._is_meant(request):
                return Answer(value=OTHER_SETTINGS), []
            if self._failure is not None:
                raise self._failure
            if isinstance(request, Get):
                found = await self._fetcher.get(request)
                return (Answer(), []) if found is None else (Answer([*map(len, found)]), found)
            return await self._small(request)
        except Exception as error:
            if not isinstance(error, VfsdError | OSError):
                _log.exception("a request failed")
            return Answer(error=Failure.of(error)), []

    def _is_meant(self, hello: Hello) -> bool:
        return (hello.version, hello.digest) == (VERSION, self._settings.digest)

    async def _small(self, request: Request) -> tuple[Answer, list[bytes | memoryview]]:
        value: object = None
        work: Coroutine[Any, Any, object] | None = None
        match request:
            case Hello():
                pass
            case Prefetch():
                self._fetcher.prefetch(request)
            case Head():
                work = self._bucket.head(require_name(request.name))
            case Read():
                data = await self._bucket.read(require_name(request.name))
                return Answer([len(data)]), [data]
            case Put():
                path = Path(request.path)
                work = self._fetcher.put(require_name(request.name), path, keep=request.keep)
            case Delete():
                work = self._fetcher.delete([require_name(name) for name in request.names])
            case List():
                work = self._bucket.list(request.after)
            case Stat():
                value = self._fetcher.status(os.getpid(), self._clients, inline=self._inline)
        return Answer(value=value if work is None else await work), []

    async def close(self) -> None:
        """Cancel all work, and give the cache back."""
        if self._fetcher is not None:
            await self._fetcher.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
