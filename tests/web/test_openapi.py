"""The OpenAPI document describes every endpoint, in the words of its table."""

from __future__ import annotations

import pytest

from tests.support.web_client import RunningServer
from vfsd.web.app import ENDPOINTS
from vfsd.web.openapi import openapi_document

pytest.importorskip("jsonschema")


def test_every_endpoint_is_described(served: RunningServer) -> None:
    document = served.client().get("/api/1/openapi.json").json
    assert document == openapi_document(ENDPOINTS)
    count = sum(len(methods) for methods in document["paths"].values())
    assert count == len(ENDPOINTS)
    names = [one["operationId"] for some in document["paths"].values() for one in some.values()]
    assert len(names) == len(set(names))


def test_answers_have_the_described_keys(served: RunningServer) -> None:
    """Of each path without parameters in it, and of a video."""
    client = served.client()
    document = openapi_document(ENDPOINTS)
    seen = 0
    for path, methods in document["paths"].items():
        operation = methods.get("get")
        if operation is None:
            continue
        parameters = operation["parameters"]
        if any(one["required"] and one["in"] == "query" for one in parameters):
            continue
        place = path.replace("{name}", "cam1/traffic.mp4").replace("{width}", "80")
        if "{" in place.replace("{number}", "0") or "cameras/" in place:
            continue
        reply = client.get(place.replace("{number}", "0"))
        assert reply.status == 200, (place, reply.body[:300])
        content = operation["responses"]["200"]["content"]
        if "application/json" not in content:
            continue
        described = set(content["application/json"]["schema"]["properties"])
        assert set(reply.json) <= described, place
        seen += 1
    assert seen > 15
