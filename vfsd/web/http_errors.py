"""Errors as HTTP statuses with a JSON body: ``{"error", "message", "hint", "exit_code"}``."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from vfsd.errors import (
    BusyError,
    EnvironmentMissingError,
    ExistsError,
    ForbiddenError,
    HeldError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutdatedError,
    OutOfRangeError,
    ReadOnlyError,
    RefusedMediaError,
    UnreachableError,
    UsageError,
    VfsdError,
)

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5
# The first matching class counts.
_STATUSES: tuple[tuple[type[VfsdError], int], ...] = (
    (UsageError, 400),
    (NotFoundError, 404),
    (OutOfRangeError, 404),
    (ExistsError, 409),
    (RefusedMediaError, 415),
    (HeldError, 423),
    (ForbiddenError, 403),
    (ReadOnlyError, 403),
    (OutdatedError, 409),
    (BusyError, 503),
    (UnreachableError, 503),
    (NoSpaceError, 507),
    (IntegrityError, 500),
    (EnvironmentMissingError, 501),
)


class HttpError(Exception):
    """A request that is refused before it reaches the store."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.hint = hint
        self.headers = dict(headers or {})


class OverloadedError(HttpError):
    """The server is overloaded; the same request may succeed later."""

    def __init__(self, message: str, *, status: int = 503, seconds: int = _RETRY_SECONDS) -> None:
        super().__init__(
            status, message, hint="try again later", headers={"Retry-After": str(seconds)}
        )


def status_of(error: VfsdError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def error_response(error: Exception) -> Response:
    """Return the response for an exception; the text of unexpected ones is only logged."""
    if isinstance(error, HttpError):
        return _json(error.status, "HttpError", str(error), error.hint, 2, error.headers)
    if isinstance(error, VfsdError):
        status = status_of(error)
        headers = {"Retry-After": str(_RETRY_SECONDS)} if status == 503 else {}
        if status == 500:
            _log.error("%s: %s", type(error).__name__, error)
        return _json(status, type(error).__name__, str(error), error.hint, error.exit_code, headers)
    if isinstance(error, HTTPException):
        return _json(error.status_code, "HttpError", error.detail, None, 2, error.headers or {})
    if isinstance(error, IsADirectoryError):
        return _json(404, "NotFoundError", "this is a directory", None, NotFoundError.exit_code, {})
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _json(
            507, "NoSpaceError", "the disk is full", "free space", NoSpaceError.exit_code, {}
        )
    _log.error("a request failed", exc_info=error)
    return _json(500, "InternalError", "the server failed; its log says why", None, 1, {})


def _json(
    status: int,
    name: str,
    message: str,
    hint: str | None,
    exit_code: int,
    headers: Mapping[str, str],
) -> Response:
    body = {"error": name, "message": message, "hint": hint, "exit_code": exit_code}
    return JSONResponse(body, status, {"Cache-Control": "no-store", **headers})
