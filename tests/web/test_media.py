"""Originals and views by HTTP: the same bytes as in a mount."""

from __future__ import annotations

import pytest

from sample_videos import FOLDER
from tests.support.web_client import RunningServer

TRAFFIC = "/v/cam1/traffic.mp4"


def test_original(served: RunningServer) -> None:
    expected = (FOLDER / "traffic.mp4").read_bytes()
    whole = served.client().get(TRAFFIC)
    assert (whole.status, whole.body) == (200, expected)
    assert whole.headers["content-type"] == "video/mp4"
    assert whole.headers["accept-ranges"] == "bytes"
    part = served.client().get(TRAFFIC, range="bytes=100-199")
    assert (part.status, part.body) == (206, expected[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(expected)}"
    assert served.client().get(TRAFFIC, range="bytes=-7").body == expected[-7:]
    head = served.client().send("HEAD", TRAFFIC)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(expected))


@pytest.mark.parametrize("view", ["t=0.5-1.mp4", "size=160x120,t=0-0.5.mp4", "frames/5.jpg"])
def test_view(served: RunningServer, view: str) -> None:
    with served.store["cam1/traffic.mp4"].views.open(view) as file:
        expected = file.read()
    whole = served.client().get(f"{TRAFFIC}@/{view}")
    assert (whole.status, whole.body) == (200, expected)
    part = served.client().get(f"{TRAFFIC}@/{view}", range="bytes=1000-1999")
    assert (part.status, part.body) == (206, expected[1000:2000])


def test_ranges_that_are_not_served(served: RunningServer) -> None:
    size = (FOLDER / "traffic.mp4").stat().st_size
    beyond = served.client().get(TRAFFIC, range=f"bytes={size}-")
    assert beyond.status == 416
    assert beyond.headers["content-range"] == f"bytes */{size}"
    several = served.client().get(TRAFFIC, range="bytes=0-1,4-5")
    assert (several.status, len(several.body)) == (200, size)


def test_preconditions(served: RunningServer) -> None:
    client = served.client()
    tag = client.get(TRAFFIC, range="bytes=0-0").headers["etag"]
    assert client.get(TRAFFIC, if_none_match=tag).status == 304
    assert client.get(TRAFFIC, if_match='"other"').status == 412
    assert client.get(TRAFFIC, range="bytes=0-0", if_range=tag).status == 206
    assert client.get(TRAFFIC, range="bytes=0-0", if_range='"other"').status == 200
    named = client.get(f"{TRAFFIC}?v={tag.strip(chr(34))}", range="bytes=0-0")
    assert "immutable" in named.headers["cache-control"]
    assert client.get(f"{TRAFFIC}?v=other").status == 412


def test_missing_file(served: RunningServer) -> None:
    missing = served.client().get("/v/cam1/nothing.mp4")
    assert missing.status == 404
    assert missing.json["error"] == "NotFoundError"
    assert missing.json["exit_code"] == 3
    assert served.client().get("/v/cam1").status == 404
    assert served.client().get(f"{TRAFFIC}@/t=5.mp4").status == 404
