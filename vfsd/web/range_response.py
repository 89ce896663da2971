"""`RangeResponse` sends a file, or one range of it, as fast as the client reads it.

Bytes are read in pieces by the threads for media.  The next piece is read when the connection has
taken the last one, so a slow client costs one piece of memory.  When the client goes, the piece in
progress is cancelled, and with it the encoder.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from vfsd.api.store_files import ByteReader
from vfsd.core.view_request import ViewFile
from vfsd.web.byte_ranges import (
    UnsatisfiableRangeError,
    http_date,
    is_range_valid,
    requested_range,
)
from vfsd.web.http_errors import HttpError
from vfsd.web.web_context import WebContext


class _ClientGoneError(OSError):
    """The client has closed the connection."""


@dataclass(slots=True)
class FileHead:
    """What the header of a response says about a file."""

    tag: str  #: its entity tag
    modified: int  #: in Unix seconds
    kind: str  #: its media type
    disposition: str
    policy: str  #: its Content-Security-Policy

    def headers(self) -> dict[str, str]:
        return {
            "Accept-Ranges": "bytes",
            "Content-Disposition": self.disposition,
            "Content-Security-Policy": self.policy,
            "Content-Type": self.kind,
            "ETag": self.tag,
            "Last-Modified": http_date(self.modified),
        }


class RangeResponse:
    """An ASGI application that sends an open file once, and closes it."""

    def __init__(
        self,
        web: WebContext,
        file: ByteReader | ViewFile,
        head: FileHead,
        headers: Mapping[str, str],
        client: str,
    ) -> None:
        """Take over `file`."""
        self._web = web
        self._file = file
        self._view = file if isinstance(file, ViewFile) else None
        self._head = head
        self._headers = dict(headers)
        self._client = client
        self._gone = threading.Event()
        # The thread of a cancelled request goes on, and needs the file open.
        self._guard = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(self._watch(receive))
        try:
            with suppress(_ClientGoneError):
                await self._answer(scope, send)
        finally:
            self._gone.set()
            watching.cancel()
            if self._view is None and not self._guard.locked():
                self._close()  # that of a file is quick, unlike noting the read of a view
            else:
                with suppress(RuntimeError):  # the threads have ended
                    await self._web.read(self._close)

    async def _answer(self, scope: Scope, send: Send) -> None:
        size = self._file.size
        given = Headers(scope=scope)
        status, wanted = 200, range(size)
        if is_range_valid(given.get("if-range"), self._head.tag):
            try:
                found = requested_range(given.get("range"), size)
            except UnsatisfiableRangeError:
                raise HttpError(
                    416, f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"}
                ) from None
            if found is not None:
                status, wanted = 206, found
                last = wanted.stop - 1
                self._headers["Content-Range"] = f"bytes {wanted.start}-{last}/{size}"
        self._headers["Content-Length"] = str(len(wanted))
        is_head = scope["method"] == "HEAD"
        # Before the header is sent: an error of the first piece still has a status of its own.
        first = b"" if is_head or not wanted else await self._first(wanted)
        headers = [(k.lower().encode(), v.encode("latin-1")) for k, v in self._headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        done = len(first)
        left = 0 if is_head else len(wanted) - done
        await send({"type": "http.response.body", "body": first, "more_body": left > 0})
        while left:
            async with self._turn(is_begun=True):
                part = await self._web.read(partial(self._piece, wanted.start + done, left))
            done += len(part)
            left -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": left > 0})

    async def _first(self, wanted: range) -> bytes:
        read = partial(self._piece, wanted.start, len(wanted))
        if not self._is_work():
            return await self._web.read(read)
        with self._web.working_clients.counted(self._client):
            async with self._turn(is_begun=False):
                return await self._web.read(read)

    @asynccontextmanager
    async def _turn(self, *, is_begun: bool) -> AsyncIterator[None]:
        """Hold a turn during the block if the next bytes have to be encoded or decoded."""
        if self._is_work():
            async with self._web.work.turn(is_begun=is_begun):
                yield
        else:
            yield

    def _is_work(self) -> bool:
        return self._view is not None and self._view.is_work

    def _piece(self, at: int, count: int) -> bytes:
        """Read the next bytes.  Raises `EOFError` for a file that became shorter."""
        buffer = bytearray(min(count, self._web.options.limits.piece))
        with self._guard:
            self._require_client()
            done = self._read(memoryview(buffer), at)
        if not done:
            raise EOFError("the file has become shorter")
        return bytes(memoryview(buffer)[:done])

    def _read(self, buffer: memoryview, at: int) -> int:
        if self._view is not None:
            return self._view.readinto(buffer, at, self._require_client)
        return self._file.readinto(buffer, at)

    def _require_client(self) -> None:
        if self._gone.is_set():
            raise _ClientGoneError(errno.ECANCELED, "the client has disconnected")

    def _close(self) -> None:
        with self._guard:
            self._file.close()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone.set()
