"""Requests that schemathesis makes of the OpenAPI document: no answer contradicts it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.web_client import TOKEN, RunningServer

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra test-api")


@pytest.mark.thorough
def test_answers_are_those_of_the_document(served: RunningServer) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = f"http://127.0.0.1:{served.port}"
    schema = schemathesis.openapi.from_dict(served.client().get("/api/1/openapi.json").json)
    schema.config.update(base_url=address)
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.response_schema_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
    ]
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if "events-stream" in operation.path:
            continue  # it has no end

        @settings(
            max_examples=10,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            deadline=None,
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            response = case.call(headers=headers, timeout=60)
            if response.status_code != 501:
                case.validate_response(response, checks=checks)

        ask()
        seen += 1
    assert seen > 40
