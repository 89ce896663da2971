"""Exact frames over HTTP, scaled, cut and by time; and bounds on views."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.web_client import Reply, RunningServer, serving
from vfsd.api.store import Store

TRAFFIC = "/v/cam1/traffic.mp4@"


def picture(reply: Reply) -> np.ndarray:
    assert reply.status == 200, reply.body
    found = cv2.imdecode(np.frombuffer(reply.body, np.uint8), cv2.IMREAD_COLOR)
    assert found is not None
    return found[..., ::-1]


def test_frame_in_another_size(served: RunningServer) -> None:
    video = served.store["cam1/traffic.mp4"]
    done = served.client().get(f"{TRAFFIC}/frames/7.png?w=160&psnr=inf")
    expected = video.frames([7], size=(160, 0), psnr=float("inf")).data[0]
    assert np.array_equal(picture(done), expected)
    assert done.headers["x-frame-number"] == "7"
    assert (
        served.client()
        .get(f"{TRAFFIC}/frames/7.png?w=160&psnr=inf", if_none_match=done.headers["etag"])
        .status
        == 304
    )


def test_region_of_a_frame(served: RunningServer) -> None:
    video = served.store["cam1/traffic.mp4"]
    done = served.client().get(f"{TRAFFIC}/frames/7.png?box=80x60%2B100%2B90")
    assert np.array_equal(picture(done), video.frames([7], region=(100, 90, 180, 150)).data[0])


def test_frame_by_time(served: RunningServer) -> None:
    video = served.store["cam1/traffic.mp4"]
    done = served.client().get(f"{TRAFFIC}/at/0.51.jpg?w=160")
    assert done.headers["x-frame-number"] == str(video.index_at("0.51"))
    assert done.headers["content-type"] == "image/jpeg"
    assert picture(done).shape[1] == 160


@pytest.mark.parametrize(
    "path",
    [
        "frames/7.jpg?w=0",
        "frames/7.jpg?w=x",
        "frames/7.jpg?q=101",
        "frames/7.jpg?psnr=nan",
        "frames/7.jpg?box=0x0%2B1%2B1",
        "size=5000x0.mp4",
        "size=4000x3000.mp4",
        "fps=1000.mp4",
    ],
)
def test_requests_that_cost_too_much(served: RunningServer, path: str) -> None:
    done = served.client().get(f"{TRAFFIC}/{path}")
    assert done.status == 400
    assert done.json["message"]


@pytest.mark.parametrize("path", ["frames/100000.jpg?w=160", "at/100000.jpg", "at/:.jpg"])
def test_frames_that_do_not_exist(served: RunningServer, path: str) -> None:
    assert served.client().get(f"{TRAFFIC}/{path}").status in (400, 404)


def test_codec_of_the_browser(served: RunningServer) -> None:
    client = served.client()
    assert client.get("/v/cam1/traffic.mp4?can=h264,av1", range="bytes=0-0").status == 206
    assert served.store["cam2/gate.mkv"].codec == "hevc"
    for can, form in (("hevc", "full.mp4"), ("h264", "size=320x0,codec=h264.mp4")):
        other = client.get(f"/v/cam2/gate.mkv?can={can}")
        assert (other.status, other.headers["location"]) == (302, f"/v/cam2/gate.mkv@/{form}")
    assert client.get("/v/cam2/gate.mkv?can=vp9").status == 406


def test_codec_of_the_browser_with_a_rendition(store: Store) -> None:
    """The redirect leads to a rendition of any size, which is copied."""
    video = store.ingest(FOLDER / "mpeg4.avi", "a.avi")
    video.renditions.browser(160)
    name = video.views.playable(["h264"]).name
    with serving(store) as running:
        other = running.client().get("/v/a.avi?can=h264,av1")
        assert other.headers["location"] == f"/v/a.avi@/{name}"
        assert video.views.explain(name).made == "copied"
