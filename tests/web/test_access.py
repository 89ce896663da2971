"""Permissions: tokens, cookies, signed URLs, other sites and other names of the server."""

from __future__ import annotations

import pytest

from sample_videos import FOLDER
from tests.support.web_client import TOKEN, RunningServer

TRAFFIC = "/v/cam1/traffic.mp4"


def test_without_a_token(served: RunningServer) -> None:
    client = served.client(None)
    for path in ("/api/1/session", TRAFFIC, "/v/cam1/nothing.mp4", "/nothing"):
        assert client.get(path).status == 401
    assert client.get("/").status == 200
    assert client.get("/healthz").body == b"ok\n"
    assert served.client("wrong").get(TRAFFIC).status == 401


def test_cookie(served: RunningServer) -> None:
    client = served.client(None)
    assert client.send("POST", "/api/1/login", {"token": "wrong"}).status == 401
    done = client.send("POST", "/api/1/login", {"token": TOKEN})
    assert done.status == 200
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    sent = cookie.partition(";")[0]
    assert client.get("/api/1/session", cookie=sent).json["user"] == "owner"
    assert client.get("/api/1/session", cookie=sent[:-1] + "x").status == 401
    own = {"cookie": sent, "sec-fetch-site": "same-origin"}
    assert client.send("POST", "/api/1/logout", headers=own).status == 204
    assert client.get("/api/1/session", cookie=sent).status == 401


def test_signed_url(served: RunningServer) -> None:
    done = served.client().send("POST", "/api/1/sign", {"path": TRAFFIC, "seconds": 60})
    url = done.json["url"]
    client = served.client(None)
    assert client.get(url, range="bytes=0-0").status == 206
    assert client.get(url.replace("cam1/traffic.mp4", "cam2/gate.mkv")).status == 403
    assert client.get(url + "&w=1").status == 403
    assert client.send("POST", url).status == 403
    assert client.get(url.replace(TRAFFIC, "/api/1/session")).status == 403


def test_other_sites(served: RunningServer) -> None:
    client = served.client(None)
    sent = client.send("POST", "/api/1/login", {"token": TOKEN}).headers["set-cookie"]
    cookie = sent.partition(";")[0]
    body = {"path": TRAFFIC}
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
        {},
    ):
        done = client.send("POST", "/api/1/sign", body, {"cookie": cookie, **headers})
        assert done.status == 403, headers
    own = {"cookie": cookie, "origin": f"http://127.0.0.1:{served.port}"}
    assert client.send("POST", "/api/1/sign", body, own).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost:x"])
def test_other_names(served: RunningServer, host: str) -> None:
    assert served.client(host=host or " ").get("/api/1/session").status in (400, 421)


def test_scoped_user(served: RunningServer) -> None:
    guest = served.client("a-guests-token-of-cam1")
    assert guest.get(TRAFFIC).status == 200
    assert guest.get("/v/cam2/gate.mkv").status == 404
    assert guest.get("/v/cam2/gate.mkv@/frames/1.jpg").status == 404
    assert guest.send("POST", "/api/1/sign", {"path": "/v/cam2/gate.mkv"}).status == 403


def test_scoped_user_and_a_directory_named_like_views(served: RunningServer) -> None:
    served.store.ingest(FOLDER / "late-start.mp4", "cam1@/secret.mp4")
    try:
        guest = served.client("a-guests-token-of-cam1")
        for path in ("/v/cam1@/secret.mp4", "/v/cam1@/secret.mp4@/frames/1.jpg", "/v/cam1@/"):
            assert guest.get(path).status == 404
        assert served.client().get("/v/cam1@/secret.mp4").status == 200
    finally:
        served.store.remove("cam1@", recursive=True)
