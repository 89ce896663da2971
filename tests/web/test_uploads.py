"""Uploads and removals: refused without --write and a role, whole or not at all, and noted."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.web_client import RunningServer, serving
from vfsd.api.store import Store

CLIP = (FOLDER / "traffic.mp4").read_bytes()


@pytest.fixture
def writable(store: Store, tmp_path: Path) -> Iterator[RunningServer]:
    with serving(store, tmp_path, write=True) as running:
        yield running


def test_upload_and_remove(writable: RunningServer, tmp_path: Path) -> None:
    client = writable.client()
    done = client.send("PUT", "/v/cam1/a.mp4", CLIP)
    assert (done.status, done.json["kind"]) == (201, "video")
    assert client.get("/v/cam1/a.mp4").body == CLIP
    assert client.send("PUT", "/v/cam1/a.mp4", CLIP).status == 409
    assert client.send("PUT", "/v/cam1/a.mp4", CLIP, {"if_match": '"x"'}).status == 412
    assert client.send("PUT", "/v/cam1/a.mp4", CLIP, {"if_none_match": "*"}).status == 412
    tag = done.json["etag"]
    assert client.send("PUT", "/v/cam1/a.mp4", b"text", {"if_match": tag}).json["kind"] == "file"
    plain = client.get("/v/cam1/a.mp4")
    assert plain.body == b"text"
    assert plain.headers["content-type"] == "application/octet-stream"
    assert plain.headers["content-disposition"].startswith("attachment")
    assert client.send("DELETE", "/v/cam1/a.mp4").status == 200
    assert client.get("/v/cam1/a.mp4").status == 404
    lines = (tmp_path / "audit").read_text().splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["upload", "replace", "remove"]


def test_upload_without_permission(writable: RunningServer, served: RunningServer) -> None:
    for client in (writable.client("a-viewers-token"), writable.client("an-annotators-token")):
        assert client.send("PUT", "/v/a.mp4", CLIP).status == 403
        assert client.send("DELETE", "/v/a.mp4").status == 403
    assert served.client().send("PUT", "/v/a.mp4", CLIP).status == 403
    assert served.client().send("DELETE", "/v/cam1/traffic.mp4").status == 403
    assert "a.mp4" not in writable.store


@pytest.mark.parametrize(
    "name", ["a%E2%80%AEb.mp4", "a%0Ab.mp4", "a%00b.mp4", "a" * 300 + ".mp4", "..%2Fb.mp4", "%ff"]
)
def test_bad_names(writable: RunningServer, name: str) -> None:
    assert writable.client().send("PUT", f"/v/{name}", CLIP).status == 400
    assert len(writable.store.entries()) == 0


def test_held_video(writable: RunningServer) -> None:
    video = writable.store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    video.policy.hold("evidence")
    assert writable.client().send("DELETE", "/v/a.mp4").status == 423


def test_broken_upload(writable: RunningServer) -> None:
    head = (
        f"PUT /v/a.mp4 HTTP/1.1\r\nHost: 127.0.0.1:{writable.port}\r\n"
        f"Authorization: Bearer an-administrators-token\r\nContent-Length: {len(CLIP)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", writable.port)) as connection:
        connection.sendall(head.encode() + CLIP[: len(CLIP) // 2])
    assert writable.client().get("/v/a.mp4").status == 404
    objects = writable.store.parts.directory.objects
    deadline = time.monotonic() + 60
    while left := [path for path in objects.rglob("*") if path.is_file()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
