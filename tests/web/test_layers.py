"""The endpoints of layers answer as `Video.layers` does."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import numpy as np

from sample_videos import FOLDER
from tests.support.stores import new_store
from tests.support.web_client import serving


def test_layers_are_listed_and_searched(tmp_path: Path) -> None:
    maps = np.indices((120, 60, 80)).sum(0).astype(np.uint8)
    with new_store(tmp_path / "store") as store:
        video = store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")
        store.ingest(FOLDER / "traffic.mp4", "cam2/b.mp4")
        layer = video.layers.add("mask", maps, unit="%")
        video.labels.add([(3, "car", (0, 0, 100, 100)), (9, "car", (0, 0, 320, 240))], "net")
        with serving(store) as running:
            client = running.client()
            (listed,) = client.get("/api/1/layers").json["layers"]
            assert (listed["name"], listed["layer"], listed["maps"]) == ("cam1/a.mp4", "mask", 120)
            assert client.get("/api/1/layers?in=cam2").json == {"layers": []}
            region = quote("160x120+0+0")
            of = "/api/1/videos/cam1/a.mp4/layer_counts?layer=mask"
            answer = client.get(f"{of}&low=100&region={region}&from=1&to=2").json
            true = layer.count((0, 0, 160, 120), low=100, span=(1, 2))
            assert answer["counts"] == true.tolist()
            assert answer["frames"] == list(video.frames_in((1, 2)))
            hits = client.get("/api/1/layers/top?layer=mask&low=100&in=cam1&n=3").json["hits"]
            assert [one["frame"] for one in hits] == [one.frame for one in layer.top(3, low=100)]
            found = client.get("/api/1/layers/top?layer=mask&low=10&q=car&n=5").json
            assert [one["frame"] for one in found["hits"]] == [9, 3]
            assert found["unknown_labels"] == []
            for wrong, status in (
                (f"{of}", 400),
                (f"{of}&low=x", 400),
                (f"{of}x&low=1", 404),
                ("/api/1/layers/top?low=1", 404),
                ("/api/1/layers/top?layer=none&low=1", 404),
            ):
                assert client.get(wrong).status == status, wrong
