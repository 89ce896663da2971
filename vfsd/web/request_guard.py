"""`RequestGuard`: checks of every request before it reaches a route, and headers of every response.

In this order: sizes, the path, the header Host (against DNS rebinding), the peer, the user (bearer,
cookie or signed URL), and the origin of changes (against cross-site requests).  Responses get the
security headers and a line in the log, which has no query: that may be a signature.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import quote, unquote_to_bytes, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vfsd.web.http_errors import HttpError, error_response
from vfsd.web.settings import (
    LOOPBACK,
    MAX_HEADER_BYTES,
    MAX_JSON_BYTES,
    MAX_REQUEST_LINE,
    ServeOptions,
)
from vfsd.web.users import User, UserRole, has_signature
from vfsd.web.web_context import WebContext

_log = logging.getLogger(__name__)

PUBLIC_PATHS = ("/", "/favicon.ico", "/healthz", "/metrics", "/api/1/login")
"""Paths that need no user; ``/metrics`` has a token of its own."""
STATIC = "/static/"
MEDIA = "/v/"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_CORS_METHODS = "GET, HEAD, PUT, POST, PATCH, DELETE"
_CORS_REQUEST_HEADERS = "Authorization, Content-Type, Range, If-Match, If-None-Match, If-Range"
_CORS_RESPONSE_HEADERS = "Accept-Ranges, Content-Disposition, Content-Range, ETag, Retry-After"
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class RequestGuard:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, web: WebContext) -> None:
        self._app = app
        self._web = web
        self._hosts = allowed_hosts(web.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["app"] = self  # routers raise their errors then
        scope.setdefault("state", {})["web"] = self._web
        began = time.perf_counter()
        sent = _SentResponse(send, scope, self._web.options)
        try:
            await self._guarded(scope, receive, sent)
        except Exception as error:
            if sent.status:  # the rest of the body is missing: the connection must end
                _log.warning("%s: the response was aborted: %s", scope["path"], error)
                raise
            await error_response(error)(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began
            self._web.requests.add(scope["method"], sent.status, sent.bytes, seconds)
            _log_request(scope, sent, seconds)

    async def _guarded(self, scope: Scope, receive: Receive, send: _SentResponse) -> None:
        headers = Headers(scope=scope)
        require_small(scope)
        scope["path"] = decoded_path(scope["raw_path"])
        self._find_client(scope, headers)
        if scope["path"] != "/healthz":  # probes name the host by its address
            self._require_host(headers)
        origin = headers.get("origin")
        send.allow(origin if origin in self._web.options.origins else None)
        if scope["method"] == "OPTIONS":
            await self._answer_options(send)
            return
        with self._web.clients.counted(scope["state"]["client"]):
            user = self._find_user(scope, headers, send)
            scope["state"]["user"] = user
            path = scope["path"]
            if user is None and path not in PUBLIC_PATHS and not path.startswith(STATIC):
                raise HttpError(
                    401,
                    "log in first",
                    hint="open the URL that `vfsd serve` printed, or send its token as bearer",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            if scope["method"] not in _SAFE_METHODS:
                self._require_same_site(scope, headers)
            await self._app(scope, receive, send)

    def _find_client(self, scope: Scope, headers: Headers) -> None:
        """Put the address of the client into the state of the request."""
        peer = scope["client"][0] if scope.get("client") else "?"
        proxies = self._web.options.proxies
        if proxies:
            if peer not in proxies:
                raise HttpError(403, "this server is behind a proxy, and answers only that")
            # Each proxy appends the address that it has seen; the last one is not forged.
            forwarded = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
            peer = forwarded or peer
        scope["state"]["client"] = peer

    def _require_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1 or host_name(given[0]) not in self._hosts:
            raise HttpError(
                421,
                "this name is not one of the server",
                hint="name it with `vfsd serve --allow-host NAME`",
            )

    async def _answer_options(self, send: _SentResponse) -> None:
        headers = [(b"allow", _CORS_METHODS.encode())]
        if send.origin is not None:
            headers += [
                (b"access-control-allow-methods", _CORS_METHODS.encode()),
                (b"access-control-allow-headers", _CORS_REQUEST_HEADERS.encode()),
                (b"access-control-max-age", b"600"),
            ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _find_user(self, scope: Scope, headers: Headers, send: _SentResponse) -> User | None:
        """Return the user of a request, and note how it was found as `state.way`."""
        web, state = self._web, scope["state"]
        state["way"] = ""
        if scope["path"] in PUBLIC_PATHS:
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind:
            web.failed_logins.require_few(state["client"])
            user = web.users.with_token(token.strip()) if kind.lower() == "bearer" else None
            if user is None:
                web.failed_logins.add(state["client"])
                raise HttpError(401, "the token is wrong", headers={"WWW-Authenticate": "Bearer"})
            state["way"] = "bearer"
            return user
        query = scope["query_string"].decode("latin-1")
        if has_signature(query):
            user = web.sessions.signed_by(scope["path"], query)
            if user is None or scope["method"] not in ("GET", "HEAD"):
                raise HttpError(403, "the signature of this URL is wrong, or has expired")
            state["way"] = "signature"
            send.is_signed = True
            return replace(user, role=UserRole.VIEW)
        for value in Request(scope).cookies.items():
            if value[0] == cookie_name(web.options):
                state["way"] = "cookie"
                return web.sessions.find(value[1])
        return None

    def _require_same_site(self, scope: Scope, headers: Headers) -> None:
        """Refuse changes that another site requests through a user's browser."""
        if scope["state"]["way"] == "bearer":
            return  # no browser adds it by itself
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_own = origin is not None and urlsplit(origin).netloc == headers["host"]
        is_login = scope["path"] == "/api/1/login"
        if (
            site not in ("same-origin", None)
            or (origin is not None and not is_own)
            or (site is None and not is_own and not is_login)
        ):
            raise HttpError(
                403,
                "a change must come from the page of this server",
                hint="programs send the token as `Authorization: Bearer`",
            )


class _SentResponse:
    """Sends a response with the headers of all responses, and counts its bytes."""

    def __init__(self, send: Send, scope: Scope, options: ServeOptions) -> None:
        self._send = send
        self._scope = scope
        self._options = options
        self.status = 0
        self.bytes = 0
        self.origin: str | None = None
        self.is_signed = False

    def allow(self, origin: str | None) -> None:
        """Let the scripts of another origin read the response."""
        self.origin = origin

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if self._options.origins:
                headers.add_vary_header("Origin")
            if self.origin is not None:
                headers["Access-Control-Allow-Origin"] = self.origin
                headers["Access-Control-Expose-Headers"] = _CORS_RESPONSE_HEADERS
            if self.origin is not None or self.is_signed:
                headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self._send(message)


def _log_request(scope: Scope, sent: _SentResponse, seconds: float) -> None:
    user = scope["state"].get("user")
    _log.info(
        "%s %s %s %d %d bytes %.3f s %s",
        scope["state"].get("client", "?"),
        scope["method"],
        quote(os.fsencode(scope["path"]), safe="/@=,.:+"),
        sent.status,
        sent.bytes,
        seconds,
        "-" if user is None else user.name,
    )


def require_small(scope: Scope) -> None:
    """Raises `HttpError` for a request line or a header that is too long."""
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_REQUEST_LINE:
        raise HttpError(414, f"a request line may have {MAX_REQUEST_LINE} bytes")
    if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        raise HttpError(431, f"the header of a request may have {MAX_HEADER_BYTES} bytes")


def decoded_path(raw: bytes) -> str:
    """Return the path of a request as a name in the store, with its leading slash.

    Bytes that are not UTF-8 are decoded as for file names.  Raises `HttpError` for a path that
    could be read in two ways: with an encoded slash, a control character, or names that are empty,
    . or ``..``.
    """
    if b"%2f" in raw.lower() or b"\\" in raw:
        raise HttpError(400, "a path must not contain an encoded slash or a backslash")
    data = unquote_to_bytes(raw)
    names = data.split(b"/")
    if names[0] or any(one in (b".", b"..") for one in names):
        raise HttpError(400, "a path must begin with / and not contain . or ..")
    if any(byte < 0x20 or byte == 0x7F for byte in data):
        raise HttpError(400, "a path must not contain control characters")
    if b"" in names[1:-1]:
        raise HttpError(400, "a path must not contain empty names")
    return os.fsdecode(data)


def host_name(header: str) -> str:
    """Return the name in a header Host, without its port and in lower case."""
    name, colon, port = header.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        header = name
    return header.lower().removesuffix(".").strip("[]")


def allowed_hosts(options: ServeOptions) -> frozenset[str]:
    """Return the names that the header Host may have."""
    names = {one.lower().strip("[]") for one in options.hosts}
    if options.is_loopback:
        names.update(LOOPBACK)
    try:
        is_any = ip_address(options.host).is_unspecified
    except ValueError:
        is_any = False
    if not is_any:
        names.add(options.host.lower().strip("[]"))
    return frozenset(names)


def cookie_name(options: ServeOptions) -> str:
    """Return the name of the cookie; browsers keep cookies of other ports of a host together."""
    return "__Host-vfsd" if options.is_secure else f"vfsd-{options.port}"


async def read_json(request: Request, seconds: float) -> Mapping[str, object]:
    """Return the JSON object in the body of a request; empty for an empty body.

    Raises `HttpError` for another type, for more than a mebibyte, and for one that takes longer
    than `seconds` to arrive.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                data += part
                if len(data) > MAX_JSON_BYTES:
                    raise HttpError(413, f"a body may have {MAX_JSON_BYTES} bytes")
    except TimeoutError:
        raise HttpError(408, f"the body must arrive within {seconds:.0f} s") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and (data or kind):
        raise HttpError(415, "a body must be application/json")
    if not data:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not valid JSON") from None
    if not isinstance(found, dict):
        raise HttpError(400, "the body must be a JSON object")
    return found
