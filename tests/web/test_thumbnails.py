"""Sheets of thumbnails show the key frames that their description names."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from tests.support.web_client import RunningServer
from vfsd.web.thumbnails import MAX_THUMBNAILS


def picture(data: bytes) -> npt.NDArray[np.int64]:
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert found is not None
    return found[:, :, ::-1].astype(np.int64)


def test_pictures_are_the_key_frames(served: RunningServer) -> None:
    client = served.client()
    video = served.store["cam2/gate.mkv"]
    plan = client.get("/v/cam2/gate.mkv@/sprites.json?w=80").json
    assert plan["frames"] == video.keyframes.tolist()
    sheet = picture(client.get(plan["sheets"][0]).body)
    for place, frame in enumerate(plan["frames"]):
        row, column = divmod(place, plan["columns"])
        top, left = row * plan["height"], column * plan["width"]
        shown = sheet[top : top + plan["height"], left : left + plan["width"]]
        expected = video.frames(frame, size=(plan["width"], plan["height"])).data[0]
        assert np.abs(shown - expected).mean() < 6, frame
    assert client.get("/v/cam2/gate.mkv@/sprite/80/9.jpg").status == 404
    assert client.get("/v/cam2/gate.mkv@/sprites.json?w=81").status == 400
    assert len(plan["frames"]) <= MAX_THUMBNAILS


def test_sheets_are_made_once_and_leave_no_trace_in_the_log(served: RunningServer) -> None:
    client = served.client()
    before = len(list(served.store.catalog.reads()))
    url = client.get("/v/cam1/traffic.mp4@/sprites.json?w=120").json["sheets"][0]
    first = client.get(url)
    assert "immutable" in first.headers["cache-control"]
    cached = [path for path in served.store.parts.directory.cache.rglob("*") if path.is_file()]
    assert any(len(first.body) + 32 == path.stat().st_size for path in cached)
    assert client.get(url).body == first.body
    assert len(list(served.store.catalog.reads())) == before


def test_poster_and_web_vtt(served: RunningServer) -> None:
    client = served.client()
    assert picture(client.get("/v/cam1/traffic.mp4@/poster.jpg?w=80").body).shape[1] == 80
    text = client.get("/v/cam1/traffic.mp4@/sprites.vtt").body.decode()
    assert text.startswith("WEBVTT\n\n00:00:00.000 --> ")
    assert "#xywh=0,0,160," in text
