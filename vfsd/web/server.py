"""`WebServer` runs the application with uvicorn, on sockets that are open already.

`BoundedProtocol` is uvicorn's protocol with limits: connections, the time for a header, and the
time in which a client has to read what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from vfsd.errors import UsageError
from vfsd.web.settings import MAX_HEADER_BYTES, MAX_REQUEST_LINE, RequestLimits, ServeOptions
from vfsd.web.web_context import WebContext

_log = logging.getLogger(__name__)

_BACKLOG = 128
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class BoundedProtocol(H11Protocol):
    """A connection."""

    def __init__(
        self, *args: Any, max_connections: int, limits: RequestLimits, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.access_log = False  # it would show the signatures of URLs
        self._max_connections = max_connections
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            transport.write(_BUSY)
            transport.close()
            self._write_timer = self.loop.call_later(1.0, transport.abort)
            return
        self._await_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_between_requests() and self._header_timer is None:
            self._await_header()  # the first bytes after an idle time
        elif not self._is_between_requests():
            self._cancel_header_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The client has not taken all bytes yet.
        if self.transport.get_write_buffer_size() and self._write_timer is None:
            self._await_writes()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._await_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_header_timer()
        self._cancel_write_timer()

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_header(self) -> None:
        self._header_timer = self.loop.call_later(self._limits.header_seconds, self._drop)

    def _await_writes(self) -> None:
        self._write_timer = self.loop.call_later(self._limits.idle_seconds, self._check_writes)

    def _check_writes(self) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size():
            self._drop()

    def _drop(self) -> None:
        self.transport.abort()

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _Server(uvicorn.Server):
    """A server that leaves signals to `WebServer`, and says when it answers."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(options: ServeOptions) -> list[socket.socket]:
    """Return listening sockets, on both addresses of the loopback device where it has two.

    With port 0 the system chooses one.  Raises `UsageError`.
    """
    hosts = [options.host]
    if options.host in ("127.0.0.1", "localhost"):
        hosts = ["127.0.0.1", "::1"]
    found: list[socket.socket] = []
    port = options.port
    for host in hosts:
        try:
            listening = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=_BACKLOG,
            )
        except OSError as error:
            if found:
                continue  # without IPv6, or with another program on that port
            raise UsageError(
                f"cannot listen at {host}, port {port}: {error.strerror}",
                hint="choose another one with --port; 0 is any free one",
            ) from error
        port = listening.getsockname()[1]
        found.append(listening)
    return found


class WebServer:
    """Runs an application on open sockets."""

    def __init__(
        self,
        app: ASGIApp,
        web: WebContext,
        sockets: list[socket.socket],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """The caller closes `sockets` and `web`.

        `on_ready` is called when requests are answered.
        """
        self._web = web
        self._sockets = sockets
        self._server = _Server(_config(app, web.options), on_ready)

    def run(self) -> None:
        """Answer requests until `stop`; in the main thread also until SIGINT or SIGTERM.

        Running requests may then end, for some seconds.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(one, self.stop)
        await self._server.serve(self._sockets)

    def stop(self) -> None:
        """End `run`; a second call does not wait for running requests."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
        self._web.stopping.set()


def _config(app: ASGIApp, options: ServeOptions) -> uvicorn.Config:
    limits = options.limits
    return uvicorn.Config(
        app,
        http=partial(  # type: ignore[arg-type]  # it makes instances of a protocol
            BoundedProtocol, max_connections=options.max_connections, limits=limits
        ),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_REQUEST_LINE + MAX_HEADER_BYTES,
        timeout_keep_alive=int(limits.keep_alive_seconds),
        timeout_graceful_shutdown=int(limits.stop_seconds),
        ssl_certfile=None if options.certificate is None else str(options.certificate),
        ssl_keyfile=None if options.key is None else str(options.key),
    )
