"""`create_app`: the ASGI application of a server, over an open store."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from vfsd.web import (
    camera_api,
    crop_api,
    health_api,
    label_api,
    layer_api,
    library_api,
    overlap_api,
    picture_api,
    search_api,
    session_api,
    storage_api,
    video_api,
)
from vfsd.web.endpoint import Endpoint, json_response
from vfsd.web.event_stream import ROUTES as EVENT_ROUTES
from vfsd.web.http_errors import HttpError
from vfsd.web.job_api import ENDPOINTS as JOB_ENDPOINTS
from vfsd.web.media import get_media
from vfsd.web.metrics import metrics_registry, metrics_text
from vfsd.web.openapi import openapi_document
from vfsd.web.request_guard import RequestGuard
from vfsd.web.static_files import static_routes
from vfsd.web.uploads import delete_media, put_media
from vfsd.web.web_context import WebContext

ENDPOINTS: tuple[Endpoint, ...] = (
    *session_api.ENDPOINTS,
    *JOB_ENDPOINTS,
    *video_api.ENDPOINTS,
    *library_api.ENDPOINTS,
    *camera_api.ENDPOINTS,
    *picture_api.ENDPOINTS,
    *label_api.ENDPOINTS,
    *layer_api.ENDPOINTS,
    *search_api.ENDPOINTS,
    *crop_api.ENDPOINTS,
    *storage_api.ENDPOINTS,
    *overlap_api.ENDPOINTS,
    *health_api.ENDPOINTS,
)
"""The table of the API."""


def create_app(web: WebContext) -> ASGIApp:
    """Return the application; the caller closes `web`, its views and its store."""
    # A router without the application of Starlette: the guard answers all errors, because it also
    # knows whether the response has begun.
    return RequestGuard(Router(list(_routes()), redirect_slashes=False), web)


def _routes() -> Iterable[BaseRoute]:
    yield from static_routes()
    yield Route("/healthz", _healthz, methods=["GET"])
    yield Route("/metrics", _metrics, methods=["GET"])
    yield from session_api.ROUTES
    yield from EVENT_ROUTES
    yield Route("/api/1/openapi.json", _openapi, methods=["GET"])
    # A name takes all of a path, so paths that go on after it come first.
    yield from (one.route() for one in sorted(ENDPOINTS, key=lambda one: _is_open_ended(one.path)))
    yield Route("/v/{path:path}", get_media, methods=["GET"])
    yield Route("/v/{path:path}", put_media, methods=["PUT"])
    yield Route("/v/{path:path}", delete_media, methods=["DELETE"])


def _is_open_ended(path: str) -> bool:
    return path.endswith(":path}")


async def _metrics(request: Request) -> Response:
    web: WebContext = request.state.web
    token = web.options.metrics_token
    if token is None:
        raise HttpError(404, "metrics are off", hint="start with --metrics-token-file FILE")
    given = request.headers.get("authorization", "")
    web.failed_logins.require_few(request.state.client)
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        web.failed_logins.add(request.state.client)
        raise HttpError(401, "the token is wrong", headers={"WWW-Authenticate": "Bearer"})

    def text() -> bytes:
        registry = metrics_registry(web.store.path, web.store)
        registry.register(web.requests)
        return metrics_text(registry)

    headers = {"Cache-Control": "no-store", "Content-Type": "text/plain; version=0.0.4"}
    return Response(await web.run(text), headers=headers)


async def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok\n", headers={"Cache-Control": "no-store"})


async def _openapi(request: Request) -> Response:
    return json_response(request, openapi_document(ENDPOINTS))
