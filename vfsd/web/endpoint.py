"""`Endpoint`: a row of the table of the API, the source of routes and of the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vfsd.web.byte_ranges import is_unchanged
from vfsd.web.http_errors import HttpError
from vfsd.web.request_guard import read_json
from vfsd.web.users import User, UserRole
from vfsd.web.web_context import WebContext


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the API."""

    web: WebContext
    user: User
    request: Request
    body: Mapping[str, object]  #: the JSON object that was sent; empty without one

    @property
    def name(self) -> str:
        """The name of the video in the path."""
        return str(self.request.path_params["name"])

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params


@dataclass(frozen=True, slots=True)
class Parameter:
    """A key of the query string."""

    name: str
    about: str
    kind: str = "string"  #: a type of JSON Schema
    required: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path.

    `handler` runs in a thread.  It returns JSON, or a `Response`, and raises `VfsdError` and
    `HttpError`.
    """

    method: str
    path: str  #: as in Starlette: /api/1/videos/{name:path}
    handler: Callable[[Call], object]
    summary: str
    fields: Mapping[str, str]  #: keys of the answer
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, str] | None = None  #: keys of the JSON object that is sent
    role: UserRole = UserRole.VIEW
    is_change: bool = False  #: needs --write
    is_work: bool = False  #: decodes or encodes, so it waits for a turn
    is_scoped: bool = False
    """Users who may see some directories only may call it.  If it has a `name` in its path, that is
    checked here; the handler checks all else.
    """

    def route(self) -> Route:
        """Return the route of Starlette."""

        async def answer(request: Request) -> Response:
            web: WebContext = request.state.web
            user: User = request.state.user
            self._authorize(web, user, request)
            body: Mapping[str, object] = {}
            if self.method in ("POST", "PUT", "PATCH"):
                body = await read_json(request, web.options.limits.body_seconds)
            call = Call(web, user, request, body)
            async with web.work.turn() if self.is_work else nullcontext():
                result = await web.run(lambda: self.handler(call))
            if self.is_change:
                name = request.path_params.get("name", body.get("name"))
                action = f"{self.method} {self.path}"
                web.audit.note(user, request.state.client, action, name, sent=dict(body))
            return result if isinstance(result, Response) else json_response(request, result)

        return Route(self.path, answer, methods=[self.method])

    def _authorize(self, web: WebContext, user: User, request: Request) -> None:
        if self.is_change:
            web.require_change(user, self.role)
        elif user.role < self.role:
            raise HttpError(403, f"this needs the role {self.role.name.lower()}")
        if user.directories:
            name = request.path_params.get("name")
            if not self.is_scoped or (name is not None and not user.may_see(name)):
                raise HttpError(403, "this user may see some directories only")


def json_response(request: Request, result: object, status: int = 200) -> Response:
    """Return a JSON response with an entity tag; 304 where the client has it."""
    data = json.dumps(result, separators=(",", ":")).encode()
    tag = f'"{blake2b(data, digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    is_read = request.method in ("GET", "HEAD") and status == 200
    if is_read and "if-none-match" in request.headers and is_unchanged(request.headers, tag, 0):
        return Response(status_code=304, headers=headers)
    if not is_read:
        headers = {"Cache-Control": "no-store"}
    return Response(data, status, headers, media_type="application/json")
