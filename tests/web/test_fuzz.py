"""Every endpoint of the table, with any query and any body: a status below 500, and JSON errors."""

from __future__ import annotations

import json
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.web_client import RunningServer
from vfsd.web.app import ENDPOINTS

_WORDS = st.one_of(
    st.sampled_from(["", "0", "-1", "5", "1e9", "nan", "inf", "0-2", "car", "**", "null", "[]"]),
    st.sampled_from(["2026-05-01", "2026-05-01T10:00:00Z", "9999-12-31T23:59:59Z", "2026-13"]),
    st.sampled_from(["80x60+10+10", "0x0+0+0", "640x0", "Europe/Zurich", "../..", "cam1"]),
    st.text(max_size=12).filter(lambda text: text.isprintable()),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=5,
)
_NAMES = ("cam1/traffic.mp4", "cam2/gate.mkv", "cam1", "none.mp4")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "number", range(len(ENDPOINTS)), ids=[f"{one.method} {one.path}" for one in ENDPOINTS]
)
@given(st.data())
def test_endpoint(served: RunningServer, number: int, data: st.DataObject) -> None:
    endpoint = ENDPOINTS[number]
    path = endpoint.path
    while "{" in path:
        head, _, rest = path.partition("{")
        name, _, tail = rest.partition("}")
        word = data.draw(st.sampled_from(_NAMES) if name.startswith("name") else _WORDS)
        path = head + quote(word, safe="/") + tail
    keys = [one.name for one in endpoint.parameters]
    query = data.draw(st.dictionaries(st.sampled_from(keys), _WORDS, max_size=4)) if keys else {}
    body = None
    if endpoint.body is not None:
        body = data.draw(st.dictionaries(st.sampled_from([*endpoint.body, "x"]), _VALUES))
    sent = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"content-type": "application/json"}
    target = f"{path}?{urlencode(query)}"
    done = served.client().send(endpoint.method, target, sent, headers)
    assert done.status < 500 or done.status in (501, 503), (target, body, done.body)
    if done.status >= 400:
        assert set(done.json) == {"error", "message", "hint", "exit_code"}
