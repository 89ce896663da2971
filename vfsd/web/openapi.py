"""The OpenAPI document, made from the table of endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vfsd import __version__
from vfsd.web.endpoint import Endpoint

_PLACE = re.compile(r"\{(\w+)(?::(\w+))?\}")
_KINDS = {"path": "string", "int": "integer", None: "string"}
_ERRORS = {
    "400": "a malformed request",
    "401": "no credentials",
    "403": "not allowed",
    "404": "not found",
    "409": "in the way of another file or change",
    "415": "bytes of another format than those of videos",
    "423": "a hold forbids it",
    "429": "too many requests",
    "500": "damaged data",
    "503": "busy; try again later",
    "507": "no space is left",
}


def openapi_document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1) of a table of endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PLACE.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vfsd",
            "version": __version__,
            "description": "The store of a server.  Objects have the keys that commands print with "
            "--json.  Times are ISO 8601 in UTC.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "__Host-vfsd"},
            },
            "schemas": {"Error": _error_schema()},
        },
        "security": [{"token": []}, {"cookie": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": _KINDS[kind or None], "minLength": 1}
            if kind != "int"
            else {"type": "integer", "minimum": 0},
            **({"description": "path from the root of the store"} if kind == "path" else {}),
        }
        for name, kind in _PLACE.findall(endpoint.path)
    ]
    parameters += [
        {
            "name": one.name,
            "in": "query",
            "required": one.required,
            "description": one.about,
            "schema": {"type": one.kind},
        }
        for one in endpoint.parameters
    ]
    found: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "description": _description(endpoint),
        "parameters": parameters,
        "responses": {
            "200": _answer(endpoint),
            **{
                status: {
                    "description": about,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                }
                for status, about in _ERRORS.items()
            },
        },
    }
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _object(endpoint.body, is_closed=True)}},
        }
    return found


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _PLACE.sub(r"\1", endpoint.path.replace("/api/1", "")))
    return "_".join([endpoint.method.lower(), *words])


def _description(endpoint: Endpoint) -> str:
    text = f"Needs the role {endpoint.role.name.lower()}"
    if endpoint.is_change:
        text += " and a server with --write"
    return f"{text}."


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    if not endpoint.fields:
        return {"description": "a file", "content": {"*/*": {}}}
    return {
        "description": "the result",
        "content": {"application/json": {"schema": _object(endpoint.fields)}},
    }


def _object(fields: Mapping[str, str], *, is_closed: bool = False) -> dict[str, Any]:
    """Return the schema of an object; keys such as ``items[].name`` describe those of a list."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, str]] = {}
    for key, about in fields.items():
        first, bracket, rest = key.partition("[].")
        if bracket:
            inner.setdefault(first, {})[rest] = about
        else:
            own[key] = {"description": about}
    for key, some in inner.items():
        own[key] = {
            "type": "array",
            "items": _object(some),
            **({"description": own[key]["description"]} if key in own else {}),
        }
    found: dict[str, Any] = {"type": "object", "properties": own}
    if is_closed:
        found["additionalProperties"] = False
    return found


def _error_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["error", "message", "hint", "exit_code"],
        "properties": {
            "error": {"type": "string", "description": "name of the error"},
            "message": {"type": "string"},
            "hint": {"type": ["string", "null"], "description": "what to do"},
            "exit_code": {"type": "integer", "description": "as of the commands"},
        },
    }
