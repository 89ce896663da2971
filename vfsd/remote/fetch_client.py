"""`FetchClient`: the connection of a process to the fetch process of its home.

    client = FetchClient(fetch_settings(directory.cache, "s3://bucket/prefix", options))
    reader = client.open(place, size)      # a `vfsd.disk.object_reader.ObjectReader`

The client starts the fetch process when it needs one, and again when it was killed. No S3 client
and no credentials are in the user's process, except with ``VFSD_FETCH=inline``.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from vfsd.core.process_control import leak, reset_after_fork
from vfsd.core.subprocess_entry import child_environment, module_command
from vfsd.errors import (
    ClosedError,
    ExtraMissingError,
    StoreError,
    UnreachableError,
    UsageError,
)
from vfsd.remote.fetch_process import BUSY, OTHER_SETTINGS, STARTED, FetchServer
from vfsd.remote.fetch_protocol import (
    FRAME,
    START_LOCK,
    VERSION,
    Answer,
    Delete,
    Failure,
    FetchSettings,
    FetchStatus,
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
    parse_answer,
    socket_path,
)
from vfsd.remote.remote_reader import RemoteReader, UncachedObject

ENVIRONMENT = "VFSD_FETCH"
"""Environment variable: ``inline`` fetches in the process itself, ``process`` is the default."""

_MODULE = "vfsd.remote.fetch_process"
# A request is sent again to a new process this often.
_ATTEMPTS = 4
# The process says within this time, and that of the settings, that it works on an answer.
_SILENT_SECONDS = 10.0
_START_SECONDS = 60.0
_POLL_SECONDS = 0.02
# Connections that are kept for the next threads.
_MOST_IDLE = 8
# The length of a path that fits into an address.
_MAX_PATH = 100
_GONE = (ConnectionError, EOFError)


class FetchClient:
    """Reads, uploads and deletes remote objects. Thread-safe; a forked child connects again."""

    def __init__(self, settings: FetchSettings) -> None:
        """Take `settings` from `fetch_settings`. Nothing is started before the first request."""
        self.settings = settings
        self.cache = Path(settings.cache)
        self.hits = self.hit_bytes = 0  #: reads from the cache that were not reported yet
        self._is_inline = _is_inline()
        self._guard = threading.Lock()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._inline: _InlineServer | None = None
        self._is_forked = False
        self._is_closed = False
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()
        for connection in self._open:  # answers to the parent must not arrive here
            connection.close()
        self._idle, self._open = [], set()
        if self._inline is not None:
            leak(self._inline)  # its threads are missing here
            self._is_forked = True

    def open(self, place: str, size: int) -> RemoteReader:
        """Return a reader of an object of `size` bytes. No request is made."""
        return RemoteReader(self, place, size)

    def open_uncached(self, place: str) -> UncachedObject:
        """Return a reader of an object past the cache, for checks of all its bytes.

        Raises `FileNotFoundError`, `UnreachableError`.
        """
        size = self.size(place)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "the bucket does not have the object", place)
        return UncachedObject(self, place, size)

    def size(self, name: str) -> int | None:
        """Return the size of a file of the bucket in bytes; None if it is missing.

        Raises `UnreachableError`.
        """
        found = self.ask(Head(name)).value
        return None if found is None else int(found)

    def read_file(self, name: str) -> bytes:
        """Return the bytes of a small file of the bucket, such as ``store.json``.

        Raises `FileNotFoundError`, `UnreachableError`.
        """
        return self.ask_bytes(Read(name))[0]

    def put(self, name: str, path: str | os.PathLike[str], *, keep: bool = False) -> int:
        """Upload a local file under a name that was never used; return its size in bytes.

        With `keep`, the cache gets its bytes, too. A file of that name and size is taken for an
        earlier attempt. Raises `OSError` for the local file, `UnreachableError`, and
        `IntegrityError` if the bucket has other bytes.
        """
        return int(self.ask(Put(name, os.path.abspath(os.fspath(path)), keep)).value)

    def delete(self, names: Sequence[str]) -> None:
        """Delete files of the bucket, and ignore missing ones. Raises `UnreachableError`."""
        self.ask(Delete(list(names)))

    def list(self) -> Iterator[tuple[str, int, float]]:
        """Yield (name, bytes, age in seconds) of all files of the bucket below its prefix.

        Only for checks and repairs. Raises `UnreachableError`.
        """
        after = ""
        while found := self.ask(List(after)).value:
            for name, size, age in found:
                yield str(name), int(size), float(age)
            after = str(found[-1][0])

    def status(self) -> FetchStatus:
        """Return the statistics and measured costs of the fetch process. Raises
        `UnreachableError`."""
        return msgspec.convert(self.ask(Stat()).value, FetchStatus)

    def running_status(self) -> FetchStatus | None:
        """Return the status of the fetch process; None if none runs. Raises as `status`."""
        if not self._is_inline:
            connection = self._try_connect()
            if connection is None:
                return None
            connection.close()
        return self.status()

    def prefetch(self, place: str, size: int, ranges: Sequence[tuple[int, int]]) -> None:
        """See `vfsd.disk.object_reader.ObjectReader.prefetch`."""
        with suppress(OSError, StoreError, UsageError, ExtraMissingError, EOFError):
            request = Prefetch(place, size, list(ranges))
            if self._is_inline:
                self._inline_server().send(request)
                return
            with self._connection(time.monotonic() + _START_SECONDS) as connection:
                connection.send(request)

    def count_hit(self, size: int) -> None:
        """Note that a read of `size` bytes needed no request."""
        # Lost counts of other threads do not matter.
        self.hits += 1
        self.hit_bytes += size

    def get(
        self, place: str, size: int, ranges: Sequence[tuple[int, int]], way: int
    ) -> Sequence[bytes] | None:
        """Fetch ranges of an object; see `Get`. Return None if the cache has them now."""
        hits, hit_bytes, self.hits, self.hit_bytes = self.hits, self.hit_bytes, 0, 0
        request = Get(place, size, list(ranges), way, hits=hits, hit_bytes=hit_bytes)
        answer, data = self._call(request)
        return None if answer.lengths is None else data

    def ask(self, request: Request) -> Answer:
        """Return the answer to a request. Raises its error."""
        return self._call(request)[0]

    def ask_bytes(self, request: Request) -> Sequence[bytes]:
        """Return the bytes that follow the answer to a request. Raises its error."""
        return self._call(request)[1]

    def close(self) -> None:
        """Close all connections; later requests raise `ClosedError`."""
        with self._guard:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._open.difference_update(idle)
            inline, self._inline = self._inline, None
        for connection in idle:
            connection.close()
        if inline is not None and not self._is_forked:
            inline.close()

    # -- internals

    def _call(self, request: Request) -> tuple[Answer, Sequence[bytes]]:
        if self._is_inline:
            answer, data = self._inline_server().ask(request)
        else:
            answer, data = self._asked(request)
        if answer.error is not None:
            answer.error.throw()
        return answer, data

    def _asked(self, request: Request) -> tuple[Answer, Sequence[bytes]]:
        """Have the fetch process answer, a new one if it was killed."""
        deadline = time.monotonic() + _START_SECONDS
        for _ in range(_ATTEMPTS):
            try:
                with self._connection(deadline) as connection:
                    return connection.ask(request)
            except _GONE:
                # All others lead to the same process.
                with self._guard:
                    idle, self._idle = self._idle, []
                    self._open.difference_update(idle)
                for connection in idle:
                    connection.close()
            except TimeoutError:
                raise UnreachableError(
                    "the fetch process does not answer",
                    hint=f"see {self.cache}/fetch.log, and end the process if it is stopped",
                ) from None
        raise UnreachableError(
            "the fetch process ends with each request", hint=f"see {self.cache}/fetch.log"
        )

    @contextmanager
    def _connection(self, deadline: float) -> Iterator[_Connection]:
        """Yield a connection for this thread alone. Raises as `_connected`."""
        with self._guard:
            if self._is_closed:
                raise ClosedError("the client of the objects is closed")
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connected(deadline)
            with self._guard:
                self._open.add(connection)
        pid = os.getpid()
        try:
            yield connection
        except BaseException:
            # Its answer may still arrive.
            connection.close()
            with self._guard:
                self._open.discard(connection)
            raise
        if os.getpid() != pid:
            return
        with self._guard:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
            self._open.discard(connection)
        connection.close()

    def _connected(self, deadline: float) -> _Connection:
        """Connect, and start the process if there is none.

        Raises `UnreachableError`, `StoreError`, `ExtraMissingError`.
        """
        while True:
            connection = self._try_connect()
            if connection is not None:
                return connection
            with self._start_lock(deadline):
                connection = self._try_connect()
                if connection is not None:
                    return connection
                self._launch(deadline)
            _pause(deadline)

    def _try_connect(self) -> _Connection | None:
        """Connect; return None if no process listens, or one with other settings."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.settimeout(self.settings.seconds + _SILENT_SECONDS)
            with _short_path(socket_path(self.cache)) as path:
                end.connect(path)
            connection = _Connection(end)
            answer, _ = connection.ask(Hello(VERSION, self.settings.digest))
            if answer.error is not None:
                answer.error.throw()
            if answer.value == OTHER_SETTINGS:
                end.close()
                return None
            return connection
        except PermissionError as error:
            end.close()
            raise StoreError(
                f"the fetch process of {self.cache} belongs to another user",
                hint="use a home of your own: `vfsd join`",
            ) from error
        except (FileNotFoundError, *_GONE):
            end.close()
            return None
        except TimeoutError:
            end.close()
            raise UnreachableError("the fetch process does not answer") from None
        except BaseException:
            end.close()
            raise

    @contextmanager
    def _start_lock(self, deadline: float) -> Iterator[None]:
        """Let one process at a time start a fetch process: a hundred workers may begin at once."""
        os.makedirs(self.cache, mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.cache / START_LOCK, flags, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    _pause(deadline)
            yield
        finally:
            # A child that was forked in the meantime has the descriptor, too.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _launch(self, deadline: float) -> None:
        try:
            done = subprocess.run(
                module_command(_MODULE),
                input=msgspec.json.encode(self.settings),
                capture_output=True,
                env=child_environment(),
                timeout=max(1.0, deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError("the fetch process does not start in time") from None
        if done.stdout in (STARTED, BUSY):
            return
        with suppress(msgspec.MsgspecError):
            msgspec.json.decode(done.stdout, type=Failure).throw()
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise StoreError(f"the fetch process does not start: {lines[-1]}")

    def _inline_server(self) -> _InlineServer:
        with self._guard:
            if self._is_forked:
                raise UsageError(
                    f"the objects were read before a fork, with {ENVIRONMENT}=inline",
                    hint="open the store in the worker, or start workers with spawn",
                )
            if self._is_closed:
                raise ClosedError("the client of the objects is closed")
            if self._inline is None:
                self._inline = _InlineServer(self.settings)
            return self._inline


class _Connection:
    """A connection, for one request at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, request: Request) -> None:
        self._end.sendall(frame(request))

    def ask(self, request: Request) -> tuple[Answer, Sequence[bytes]]:
        """Raises `ConnectionError` or `EOFError` if the process is gone, `TimeoutError`."""
        self.send(request)
        while True:
            head_length, data_length = FRAME.unpack(self._receive(FRAME.size))
            if head_length:
                break
        answer = parse_answer(bytes(self._receive(head_length)))
        data = self._receive(data_length)
        parts, at = [], 0
        for length in answer.lengths or ():
            parts.append(bytes(data[at : at + length]))
            at += length
        return answer, parts

    def close(self) -> None:
        self._end.close()

    def _receive(self, length: int) -> memoryview:
        data = memoryview(bytearray(length))
        got = 0
        while got < length:
            count = self._end.recv_into(data[got:])
            if not count:
                raise EOFError
            got += count
        return data


class _InlineServer:
    """The server in a thread of this process."""

    def __init__(self, settings: FetchSettings) -> None:
        try:
            import obstore  # noqa: F401
        except ImportError:
            raise ExtraMissingError(
                "obstore is not installed", hint="pip install 'vfsd[s3]'"
            ) from None
        os.makedirs(settings.cache, mode=0o700, exist_ok=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="vfsd-fetch", daemon=True
        )
        self._thread.start()

        async def made() -> FetchServer:
            return FetchServer(settings, inline=True)

        self._server = asyncio.run_coroutine_threadsafe(made(), self._loop).result()

    def ask(self, request: Request) -> tuple[Answer, Sequence[bytes]]:
        answer, data = asyncio.run_coroutine_threadsafe(
            self._server.answer(request), self._loop
        ).result()
        return answer, [bytes(part) for part in data]

    def send(self, request: Request) -> None:
        asyncio.run_coroutine_threadsafe(self._server.answer(request), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _is_inline() -> bool:
    value = os.environ.get(ENVIRONMENT, "process")
    if value not in ("inline", "process"):
        raise UsageError(f"{ENVIRONMENT} must be 'process' or 'inline', got {value!r}")
    return value == "inline"


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise UnreachableError("the fetch process does not start in time")
    time.sleep(_POLL_SECONDS)


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path to a socket that fits into an address."""
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield os.fspath(path)
        return
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from error
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
