"""Requests that attack: none reaches a file, a secret or another user."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest

from sample_videos import FOLDER
from tests.support.web_client import TOKEN, RunningServer, serving
from vfsd.api.store import Store
from vfsd.web.request_guard import CONTENT_POLICY
from vfsd.web.settings import RequestLimits

TRAFFIC = "/v/cam1/traffic.mp4"


@pytest.mark.parametrize(
    "path",
    [
        "/v/../../../etc/passwd",
        "/v/..%2f..%2fetc%2fpasswd",
        "/v/%2e%2e/%2e%2e/etc/passwd",
        "/v/cam1/..%5c..%5cetc/passwd",
        "/v/cam1\\..\\traffic.mp4",
        "/v//etc/passwd",
        "/v/cam1//traffic.mp4",
        "/v/./cam1/traffic.mp4",
        "/v/cam1/traffic.mp4%00.html",
        "/v/cam1/traffic.mp4%0d%0aX-Evil:%201",
        "/v/cam1/traffic.mp4@/../../cam2/gate.mkv",
        "/v/cam1/traffic.mp4@/t=0-1%2f..%2fx.mp4",
        "/static/../users.py",
        "/static/..%2fusers.py",
        "/static/%2e%2e/users.py",
        "/api/1/../../v/cam1/traffic.mp4",
    ],
)
def test_paths_that_lead_elsewhere(served: RunningServer, path: str) -> None:
    assert served.client().get(path).status in (400, 404)


@pytest.mark.parametrize(
    "name", ["%ff%fe", "%e2%80%ae4pm.mp4", "%c0%ae%c0%ae", "a" * 300, "%F0%9F%98%80", "%", "%zz"]
)
def test_names_that_do_not_exist(served: RunningServer, name: str) -> None:
    done = served.client().get(f"/v/{name}")
    assert done.status in (400, 404)
    assert done.json["error"]


def test_long_requests(served: RunningServer) -> None:
    client = served.client()
    assert client.get("/v/" + "a/" * 3000).status == 414
    assert client.get(TRAFFIC, x_long="a" * 9000).status in (400, 431)
    assert (
        client.send(
            "POST",
            "/api/1/sign",
            b'{"path": "' + b"a" * (2 << 20) + b'"}',
            {"content-type": "application/json"},
        ).status
        == 413
    )


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b"[" * 100_000, b'"x"'])
def test_bodies_that_are_not_objects(served: RunningServer, body: bytes) -> None:
    sent = {"content-type": "application/json"}
    assert served.client().send("POST", "/api/1/sign", body, sent).status == 400
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert served.client().send("POST", "/api/1/sign", b"path=x", form).status == 415


def test_two_names_of_the_server(served: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
        assert raw.makefile("rb").readline().split()[1] in (b"400", b"421")
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.makefile("rb").readline().split()[1] == b"400"


def test_headers_of_every_response(served: RunningServer) -> None:
    client = served.client()
    for path in ("/", "/nothing", "/api/1/session", TRAFFIC, "/v/a/../b", "/healthz"):
        headers = client.get(path, range="bytes=0-0").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
    assert client.get("/").headers["content-security-policy"] == CONTENT_POLICY
    assert "sandbox" in client.get(TRAFFIC).headers["content-security-policy"]
    assert "unsafe" not in CONTENT_POLICY


@pytest.fixture
def hostile(store: Store, tmp_path: Path) -> Iterator[RunningServer]:
    """A store with names and contents that try to be code."""
    with serving(store, tmp_path, write=True) as running:
        client = running.client()
        page = b"<script>alert(1)</script>"
        for name in ("x.html", "x.svg", "x.js", 'a"b<img src=x>.html'):
            quoted = name.replace('"', "%22").replace("<", "%3C").replace(">", "%3E")
            assert client.send("PUT", f"/v/{quoted.replace(' ', '%20')}", page).status == 201
        clip = (FOLDER / "traffic.mp4").read_bytes()
        assert client.send("PUT", "/v/video.html", clip).json["kind"] == "video"
        yield running


def test_files_that_would_be_pages(hostile: RunningServer) -> None:
    client = hostile.client()
    for name in ("x.html", "x.svg", "x.js", "video.html", "a%22b%3Cimg%20src=x%3E.html"):
        headers = client.get(f"/v/{name}").headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"].startswith("attachment")
        assert "<" not in headers["content-disposition"]
        assert headers["content-disposition"].count('"') == 2
        assert "sandbox" in headers["content-security-policy"]


def test_secrets_in_logs(hostile: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    client = hostile.client()
    with caplog.at_level(logging.DEBUG):
        url = client.send("POST", "/api/1/sign", {"path": "/v/video.html"}).json["url"]
        assert hostile.client(None).get(url).status == 200
        login = hostile.client(None).send("POST", "/api/1/login", {"token": TOKEN})
        hostile.client(None).get("/api/1/session?token=" + TOKEN)
        hostile.client(TOKEN + "x").get("/api/1/session")
    signature = url.partition("sig=")[2]
    cookie = login.headers["set-cookie"].partition(";")[0].partition("=")[2]
    for secret in (TOKEN, signature, cookie):
        assert secret not in caplog.text
    assert "GET /v/video.html 200" in caplog.text


def test_guessing(store: Store) -> None:
    with serving(store) as running:
        guesses = [running.client(f"guess-{n}").get("/api/1/session").status for n in range(12)]
        assert guesses == [401] * 10 + [429] * 2
        late = running.client(None).send("POST", "/api/1/login", {"token": TOKEN})
        assert late.status == 429
        assert int(late.headers["retry-after"]) <= 61


def test_proxy(store: Store) -> None:
    with serving(store, proxies=("192.0.2.1",)) as running:
        assert running.client().get("/api/1/session").status == 403
    with serving(store, proxies=("127.0.0.1",)) as running:
        cookie = running.client(None).send("POST", "/api/1/login", {"token": TOKEN})
        assert cookie.headers["set-cookie"].startswith("__Host-vfsd=")
        assert "Secure" in cookie.headers["set-cookie"]


def test_other_origin(store: Store) -> None:
    with serving(store, origins=("https://tool.example",)) as running:
        client = running.client()
        done = client.get("/api/1/session", origin="https://tool.example")
        assert done.headers["access-control-allow-origin"] == "https://tool.example"
        other = client.get("/api/1/session", origin="https://evil.example")
        assert "access-control-allow-origin" not in other.headers
        asked = running.client(None).send(
            "OPTIONS", "/api/1/session", headers={"origin": "https://tool.example"}
        )
        assert asked.status == 204
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()


def test_slow_header(store: Store) -> None:
    """A connection that never completes its request is closed, and so is a silent one."""
    limits = RequestLimits(header_seconds=0.3)
    with serving(store, limits=limits) as running:
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: local"):
            with socket.create_connection(("127.0.0.1", running.port), timeout=30) as raw:
                raw.sendall(sent)
                with closing(raw.makefile("rb")) as answer:
                    assert _closed(answer)


def _closed(answer: BinaryIO) -> bool:
    try:
        return answer.read() == b""
    except ConnectionResetError:
        return True


def test_connections_are_bounded(store: Store) -> None:
    with serving(store, max_connections=4) as running:
        idle = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(4)]
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as raw:
            assert b"503" in raw.makefile("rb").readline()
        for one in idle:
            one.close()
