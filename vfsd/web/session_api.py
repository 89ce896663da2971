"""The endpoints for users: log in and out, the session, and signed URLs."""

from __future__ import annotations

import time
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vfsd import __version__
from vfsd.web.endpoint import Call, Endpoint
from vfsd.web.http_errors import HttpError
from vfsd.web.request_guard import MEDIA, cookie_name, decoded_path, read_json
from vfsd.web.users import MAX_SIGNED_SECONDS, UserRole
from vfsd.web.web_context import WebContext


def session(call: Call) -> object:
    web, user = call.web, call.user
    store = web.store
    can_change = web.can_write and user.role >= UserRole.ADMIN
    return {
        "user": user.name,
        "role": user.role.name.lower(),
        "write": web.can_write,
        "version": __version__,
        "store": {
            "name": store.path.name,
            "id": store.parts.directory.id,
            "videos": None if user.directories else len(store),
        },
        "directories": list(user.directories),
        "can": {
            "view": True,
            "label": web.can_write and user.role >= UserRole.LABEL,
            "change": can_change,
            "upload": can_change,
            "remove": can_change,
            "work": can_change and not user.directories,
        },
    }


def sign(call: Call) -> object:
    path, seconds = call.body.get("path"), call.body.get("seconds", 3600)
    if not isinstance(path, str) or not path.startswith(MEDIA):
        raise HttpError(400, f"path must be text that begins with {MEDIA}")
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise HttpError(400, "seconds must be a whole number")
    if not 1 <= seconds <= MAX_SIGNED_SECONDS:
        raise HttpError(400, f"seconds must be 1 to {MAX_SIGNED_SECONDS}")
    raw, _, query = path.partition("?")
    try:
        found = decoded_path(raw.encode("ascii"))
    except UnicodeEncodeError:
        raise HttpError(400, "path must be percent-encoded") from None
    name = found.removeprefix(MEDIA).partition("@/")[0]
    if not call.user.may_see(name):
        raise HttpError(403, "this user may see some directories only")
    pairs = parse_qsl(query, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs) or {"user", "expires", "sig"} & set(dict(pairs)):
        raise HttpError(400, "the query of path must not be signed, nor have a key twice")
    signed = call.web.sessions.sign(call.user, found, dict(pairs), seconds)
    return {"url": f"{raw}?{signed}", "expires": int(time.time()) + seconds}


async def _login(request: Request) -> Response:
    web: WebContext = request.state.web
    web.failed_logins.require_few(request.state.client)
    body = await read_json(request, web.options.limits.body_seconds)
    token = body.get("token")
    user = web.users.with_token(token) if isinstance(token, str) else None
    if user is None:
        web.failed_logins.add(request.state.client)
        raise HttpError(401, "the token is wrong")
    cookie, seconds = web.sessions.begin(user)
    response = JSONResponse(
        {"user": user.name, "role": user.role.name.lower()}, headers={"Cache-Control": "no-store"}
    )
    response.set_cookie(
        cookie_name(web.options),
        cookie,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=web.options.is_secure,
    )
    return response


async def _logout(request: Request) -> Response:
    web: WebContext = request.state.web
    await read_json(request, web.options.limits.body_seconds)
    name = cookie_name(web.options)
    cookie = request.cookies.get(name)
    if cookie is not None:
        await web.run(lambda: web.sessions.end(cookie))
    response = Response(status_code=204, headers={"Cache-Control": "no-store"})
    response.delete_cookie(
        name, path="/", secure=web.options.is_secure, httponly=True, samesite="strict"
    )
    return response


ROUTES = (
    Route("/api/1/login", _login, methods=["POST"]),
    Route("/api/1/logout", _logout, methods=["POST"]),
)

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/session",
        session,
        "The user of this request, and what the server allows.",
        {
            "user": "name",
            "role": "view, label or admin",
            "write": "whether the server was started with --write",
            "version": "of vfsd",
            "store": "its name, id, and number of videos (null for users of some directories)",
            "directories": "the only ones that the user may see; empty: all",
            "can": "by kind of change, whether the user may make it",
        },
        is_scoped=True,
    ),
    Endpoint(
        "POST",
        "/api/1/sign",
        sign,
        "A URL of media that needs no other credentials, for players and other programs.",
        {"url": "path with a signed query", "expires": "Unix time"},
        body={
            "path": "percent-encoded path below /v/, with its query",
            "seconds": "how long the URL is valid; default 3600, at most 30 days",
        },
        is_scoped=True,
    ),
)
