"""The stream of server-sent events, which clients continue by `Last-Event-ID`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from vfsd.web.event_hub import LOOK_SECONDS
from vfsd.web.http_errors import OverloadedError
from vfsd.web.users import User
from vfsd.web.web_context import WebContext

_HEARTBEAT_SECONDS = 15.0
_LONGEST_SECONDS = 3600.0
_MOST_CLIENTS = 32


async def _stream(request: Request) -> Response:
    web: WebContext = request.state.web
    hub = web.events
    if hub.clients >= _MOST_CLIENTS:
        raise OverloadedError(f"{_MOST_CLIENTS} clients are waiting for events already")
    await web.run(hub.look)
    given = request.headers.get("last-event-id", "")
    last = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else hub.last
    return StreamingResponse(
        _lines(web, request.state.user, last),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


async def _lines(web: WebContext, user: User, last: int) -> AsyncIterator[bytes]:
    hub = web.events
    hub.clients += 1
    try:
        yield b"retry: 3000\n\n"
        began = quiet = time.monotonic()
        # Clients come back by themselves, so a stream may end.
        while not web.stopping.is_set() and time.monotonic() < began + _LONGEST_SECONDS:
            await web.run(hub.look)
            for event in hub.after(last):
                last = max(last, event.id)
                if event.place is None and user.directories:
                    continue
                if event.place and not user.may_see(event.place):
                    continue
                data = json.dumps(event.data, separators=(",", ":"))
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode()
                quiet = time.monotonic()
            if time.monotonic() > quiet + _HEARTBEAT_SECONDS:
                quiet = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        hub.clients -= 1


ROUTES = (Route("/api/1/events-stream", _stream, methods=["GET"]),)
