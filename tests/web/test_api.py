"""The JSON of the API: equal to that of the commands, in pages, and without decoding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from tests.support.web_client import RunningServer, WebClient, serving
from vfsd.api.store import Store
from vfsd.core.detections import Source


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A camera with three videos, a gap before the last, boxes on the first."""
    folder = tmp_path_factory.mktemp("api")
    with new_store(folder / "store") as store:
        for number, minute in enumerate((0, 1, 30)):
            name = f"yard/2026-03-29/00-{minute:02}-00.mp4"
            store.ingest(FOLDER / ("traffic.mp4", "edit-list.mp4", "open-gop.mov")[number], name)
            start = datetime(2026, 3, 29, 0, 0, 4 * number if number < 2 else 50, tzinfo=UTC)
            store.set_captured(name, start)
        store.ingest(FOLDER / "portrait.mp4", "other/b|ö.mp4")
        store.ingest(FOLDER / "mjpeg.avi", "zoo.avi")
        video = store["yard/2026-03-29/00-00-00.mp4"]
        for frame in range(0, 40, 2):
            box = (10 + frame, 20, 60 + frame, 70)
            video.labels.add_box(frame, "car", box, source="manual", track=1)
        video.labels.add_box(5, "bird", (100, 60, 140, 100), source="manual")
        with serving(store, write=True) as running:
            yield running


@pytest.fixture
def client(server: RunningServer) -> WebClient:
    return server.client()


FIRST = "yard/2026-03-29/00-00-00.mp4"


def test_info_equals_that_of_the_command(server: RunningServer, client: WebClient) -> None:
    found = client.get(f"/api/1/videos/{FIRST}").json
    command = [sys.executable, "-m", "vfsd", "-s", str(server.store.path), "info", FIRST, "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    told.pop("schema")
    assert {key: found[key] for key in told} == told
    assert found["labels"] == ["bird", "car"]


def test_a_list_has_pages_in_one_order(client: WebClient) -> None:
    whole = client.get("/api/1/videos").json
    names = [one["name"] for one in whole["items"]]
    assert names == [
        "other/b|ö.mp4",
        *(f"yard/2026-03-29/{one}.mp4" for one in ("00-00-00", "00-01-00", "00-30-00")),
        "zoo.avi",
    ]
    paged, after = [], ""
    while True:
        page = client.get(
            f"/api/1/videos?limit=2&after={quote(after)}" if after else "/api/1/videos?limit=2"
        ).json
        paged += [one["name"] for one in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert paged == names
    assert whole["next"] is None


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("dir=yard", 0),
        ("dir=yard&deep=1", 3),
        ("glob=yard/**", 3),
        ("label=car", 1),
        ("label=dog", 0),
        ("codec=mjpeg", 1),
        ("from=2026-03-29T00:00:49Z", 1),
        ("max_width=100", 0),
        ("sort=-size&dir=yard&deep=1", 3),
        ("tag=night", 0),
    ],
)
def test_filters(client: WebClient, query: str, count: int) -> None:
    assert len(client.get(f"/api/1/videos?{query}").json["items"]) == count


def test_sizes_in_order_over_pages(client: WebClient) -> None:
    whole = client.get("/api/1/videos?sort=-size").json["items"]
    sizes = [one["size"] for one in whole]
    assert sizes == sorted(sizes, reverse=True)
    first = client.get("/api/1/videos?sort=-size&limit=3").json
    rest = client.get(f"/api/1/videos?sort=-size&after={first['next']}").json
    assert first["items"] + rest["items"] == whole


def test_directories(client: WebClient) -> None:
    items = client.get("/api/1/dirs").json["items"]
    assert [(one["path"], one["videos"], one["directories"]) for one in items] == [
        ("other", 1, 0),
        ("yard", 3, 1),
    ]
    assert client.get("/api/1/dirs?under=yard").json["items"][0]["path"] == "yard/2026-03-29"


def expanded(record: dict[str, Any]) -> list[int]:
    return [first + step * at for first, step, count in record["runs"] for at in range(count)]


@pytest.mark.parametrize("name", [FIRST, "yard/2026-03-29/00-01-00.mp4", "zoo.avi"])
def test_frame_times_are_exact(server: RunningServer, client: WebClient, name: str) -> None:
    found = client.get(f"/api/1/videos/{name}/frames").json
    video = server.store[name]
    table = server.store.catalog.frame_table(video.original)
    assert expanded(found) == [one - video.original.first_pts for one in table.pts().tolist()]
    assert found["key"] == video.keyframes.tolist()


def test_boxes_in_columns_and_counts(client: WebClient) -> None:
    columns = client.get(f"/api/1/videos/{FIRST}/detections?q=car&from=0&to=1").json["columns"]
    assert columns["label"] == ["car"] * len(columns["frame"])
    assert columns["frame"][:2] == [0, 2]
    bins = client.get(f"/api/1/videos/{FIRST}/labels?bins=10").json["labels"]
    assert {one["label"]: sum(one["bins"]) for one in bins} == {"car": 20, "bird": 1}
    found = client.get("/api/1/detections?q=car&in=yard&res=1").json
    assert (found["total"], sum(found["bins"]["counts"])) == (20, 20)
    assert found["videos"] == [{"video": FIRST, "count": 20}]
    assert found["unknown"]["videos"] == 3
    clock = client.get(
        "/api/1/detections?from=2026-03-29T00:00:00Z&to=2026-03-29T00:00:01Z&res=1"
    ).json
    assert clock["bins"]["start"] == "2026-03-29T00:00:00.000000Z"
    assert clock["total"] == sum(clock["bins"]["counts"]) > 0
    assert client.get("/api/1/detections?q=car%20%26%20bird").json["total"] == 0
    for one in ("q=car&res=1", "q=car&from=2026-03-29T00:00:00Z&to=2026-03-29T00:00:01Z&res=1"):
        plain, same = (
            client.get(f"/api/1/detections?{text}").json
            for text in (one, one.replace("q=car", "q=car%20%26%20not%20bird"))
        )
        assert plain["total"] > 0
        assert (same["bins"], same["videos"]) == (plain["bins"], plain["videos"])
    items = client.get("/api/1/labels?in=yard").json["items"]
    assert {one["label"]: one["boxes"] for one in items} == {"bird": 1, "car": 20}
    only = client.get("/api/1/labels?q=car%7Clorry&region=9x9%2B0%2B0").json
    assert only["unknown_labels"] == ["lorry"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/1/detections?x",
        "/api/1/crops?x",
        "/api/1/cameras/yard/events?x",
        f"/api/1/videos/{FIRST}/detections?x",
        f"/api/1/videos/{FIRST}/detections?from=900",
    ],
)
def test_unknown_labels_are_said(server: RunningServer, client: WebClient, path: str) -> None:
    known = client.get(f"{path}&q=car%7Cbird").json
    assert (known["unknown_labels"], known["known_labels"]) == ([], [])
    found = client.get(f"{path}&q=car%26trcuk%26bus")
    assert found.status == 200
    assert found.json["unknown_labels"] == ["bus", "trcuk"]
    assert set(found.json["known_labels"]) >= {"car", "bird"}
    denied = server.client("a-guests-token-of-cam1").get(f"{path}&q=trcuk")
    assert denied.status in (403, 404) or denied.json["known_labels"] == []


def test_crops_show_the_boxes(server: RunningServer, client: WebClient) -> None:
    import cv2
    import numpy as np

    found = client.get("/api/1/crops?q=car&n=3&h=50").json
    assert [one["frame"] for one in found["items"]] == [0, 2, 4]
    assert found["next"] == "3"
    reply = client.get(found["sprite"])
    decoded = cv2.imdecode(np.frombuffer(reply.body, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    sheet = decoded[:, :, ::-1]
    first = found["items"][0]
    shown = sheet[: first["height"], first["x"] : first["x"] + first["width"]].astype(int)
    (crop,) = server.store[FIRST].crops([(0, first["box"])], size=(50, 50))
    assert np.abs(shown - crop.data).mean() < 8
    assert client.get("/api/1/crops.jpg?c=AAAA").status == 400


def test_cameras_spans_and_days_that_skip_an_hour(client: WebClient) -> None:
    (camera,) = client.get("/api/1/cameras").json["items"]
    assert (camera["name"], camera["videos"], camera["gaps"]) == ("yard", 3, 1)
    spans = client.get("/api/1/cameras/yard/spans").json["items"]
    assert [one["kind"] for one in spans] == ["video", "video", "gap", "video"]
    days = client.get("/api/1/cameras/yard/calendar?month=2026-03&zone=Europe/Zurich").json["items"]
    assert len(days) == 31
    assert days[28]["hours"] == 23
    assert days[27]["hours"] == 24
    assert days[28]["kept"] > 4
    fall = client.get("/api/1/cameras/yard/calendar?month=2026-10&zone=Europe/Zurich").json["items"]
    assert fall[24]["hours"] == 25
    assert client.get("/api/1/cameras/missing/spans").status == 404
    events = client.get("/api/1/cameras/yard/events").json["items"]
    assert {(one["label"], one["count"]) for one in events} == {("car", 20), ("bird", 1)}
    plan = client.get(
        "/api/1/cameras/yard/export-plan?from=2026-03-29T00:00:01Z&to=2026-03-29T00:00:05Z"
    ).json
    for part in plan["parts"]:
        head = client.send("HEAD", f"/v/{part['name']}@/{part['view']}")
        assert int(head.headers["content-length"]) == part["bytes"]


def test_changes_of_a_video(server: RunningServer, client: WebClient) -> None:
    where = "/api/1/videos/zoo.avi"
    found = client.send("PATCH", where, {"tags": ["night"], "metadata": {"a": 1}, "hold": "case"})
    assert (found.json["tags"], found.json["metadata"], found.json["holds"]) == (
        ["night"],
        {"a": 1},
        ["case"],
    )
    assert client.send("DELETE", where).status == 423
    assert client.send("PATCH", where, {"hold": None}).status == 400
    assert client.send("PATCH", where, {"hold": None, "reason": "closed"}).json["holds"] == []
    assert client.send("PATCH", where, {"colour": 1}).status == 400
    annotator = server.client("an-annotators-token")
    assert annotator.send("PATCH", where, {"tags": []}).json["tags"] == []
    assert annotator.send("PATCH", where, {"name": "x.avi"}).status == 400
    viewer = server.client("a-viewers-token")
    assert viewer.send("PATCH", where, {"tags": ["x"]}).status == 403
    assert client.send("PATCH", where, {"name": "z/zoo.avi"}).json["name"] == "z/zoo.avi"
    assert client.send("PATCH", "/api/1/videos/z/zoo.avi", {"name": "zoo.avi"}).status == 200
    added = annotator.send(
        "POST",
        "/api/1/detections",
        {"video": "zoo.avi", "boxes": [{"frame": 1, "label": "cat", "box": [1, 2, 30, 40]}]},
    )
    assert added.json["boxes"] == 1
    gone = annotator.send(
        "POST", "/api/1/detections/remove", {"video": "zoo.avi", "labels": ["cat"]}
    )
    assert gone.json["boxes"] == 1


def test_moments(server: RunningServer, client: WebClient) -> None:
    annotator = server.client("an-annotators-token")
    rows = [{"frames": [2, 9], "label": "queue"}, {"frames": [0, 3], "label": "a b"}]
    body = {"video": "zoo.avi", "moments": rows, "source": "ann"}
    assert annotator.send("POST", "/api/1/moments", body).json == {"name": "zoo.avi", "moments": 2}
    found = client.get("/api/1/moments?q=queue&in=zoo.avi").json
    assert found["unknown_labels"] == []
    (one,) = found["moments"]
    assert (one["frames"], one["source"], one["view"]) == ([2, 9], "ann", "frames=2-9")
    assert len(client.get("/api/1/moments?source=ann").json["moments"]) == 2
    assert client.get("/api/1/moments?source=bob").json["moments"] == []
    guest = server.client("a-guests-token-of-cam1")
    assert guest.get("/api/1/moments").json["moments"] == []
    assert guest.send("POST", "/api/1/moments", body).status in (403, 404)
    for wrong in (
        {"label": "x"},
        {"frames": [0, 3], "span": [0, 1], "label": "x"},
        {"frames": [3, 0], "label": "x"},
        {"frames": [0, 1e9], "label": "x"},
        {"frames": [0, 1e9], "label": "x"},
        {"span": ["a", None], "label": "x"},
        {"frames": [0, 3]},
        {"frames": [0, 3], "label": "x", "confidence": "high"},
        {"frames": [0, 3], "label": "x", "attributes": []},
    ):
        sent = {"video": "zoo.avi", "moments": [wrong]}
        assert annotator.send("POST", "/api/1/moments", sent).status == 400, wrong
    beyond = {"video": "zoo.avi", "moments": [{"frames": [0, 10**9], "label": "x"}]}
    assert annotator.send("POST", "/api/1/moments", beyond).status == 404
    removed = {"video": "zoo.avi", "labels": ["queue"]}
    done = annotator.send("POST", "/api/1/moments/remove", removed)
    assert done.json == {"name": "zoo.avi", "moments": 1}
    assert annotator.send("POST", "/api/1/moments/remove", {"video": "zoo.avi"}).status == 400
    found = client.get("/api/1/moments").json["moments"]
    assert [one["label"] for one in found] == ["a b"]
    done = annotator.send(
        "POST", "/api/1/moments/remove", {"video": "zoo.avi", "span": [0, 0.5], "source": "ann"}
    )
    assert done.json["moments"] == 1


def test_guests_see_their_directories_only(server: RunningServer) -> None:
    guest = server.client("a-guests-token-of-cam1")
    assert guest.get("/api/1/videos").json["items"] == []
    assert guest.get("/api/1/dirs").json["items"] == []
    assert guest.get("/api/1/cameras").json["items"] == []
    assert guest.get(f"/api/1/videos/{FIRST}").status in (403, 404)
    assert guest.get("/api/1/cameras/yard/spans").status in (403, 404)
    assert guest.get("/api/1/detections?q=car").json["total"] == 0
    assert guest.get("/api/1/detections?q=car%20%26%20not%20bird").json["total"] == 0
    assert guest.get("/api/1/labels").json["items"] == []
    assert guest.get("/api/1/crops?q=car").json["items"] == []


def test_pages_decode_nothing(server: RunningServer, client: WebClient) -> None:
    store: Store = server.store
    store.tools.read_log.flush() if hasattr(store.tools.read_log, "flush") else None
    before = len(list(store.catalog.reads()))
    pool = store.tools.__dict__.get("pool")
    for path in (
        "/api/1/videos",
        f"/api/1/videos/{FIRST}",
        f"/api/1/videos/{FIRST}/frames",
        f"/api/1/videos/{FIRST}/layout",
        f"/api/1/videos/{FIRST}/explain?region=80x60%2B10%2B10",
        f"/api/1/videos/{FIRST}/heat",
        f"/api/1/videos/{FIRST}/history",
        f"/api/1/videos/{FIRST}/reads",
        f"/api/1/videos/{FIRST}/renditions",
        "/api/1/cameras",
        "/api/1/cameras/yard/index.m3u8",
        f"/v/{FIRST}@/index.m3u8",
        f"/v/{FIRST}@/sprites.json",
    ):
        assert client.get(path).status == 200, path
    assert len(list(store.catalog.reads())) == before
    assert pool is store.tools.__dict__.get("pool")


def test_unchanged_json_is_not_sent_again(client: WebClient) -> None:
    tag = client.get("/api/1/videos").headers["etag"]
    assert client.get("/api/1/videos", if_none_match=tag).status == 304


def test_bins_of_a_source_with_parameters(server: RunningServer, client: WebClient) -> None:
    video, source = server.store["zoo.avi"], Source("net", "n", "2", {"threshold": 16})
    video.labels.add_box(0, "cat", (1, 1, 9, 9), source=source)
    try:
        found = client.get("/api/1/videos/zoo.avi/labels?bins=2").json["labels"]
        assert [one["bins"] for one in found if one["label"] == "cat"] == [[1, 0]]
    finally:
        video.labels.remove(source=source)


def test_saved_searches(server: RunningServer, client: WebClient) -> None:
    body = {
        "name": "cars",
        "kind": "boxes",
        "arguments": {"labels": "car|lorry", "names": ["yard/**"], "span": ["0", "1"]},
        "replace": True,
    }
    saved = client.send("POST", "/api/1/searches", body).json
    assert saved["arguments"] == body["arguments"]
    assert [one["name"] for one in client.get("/api/1/searches").json["items"]] == ["cars"]
    found = client.get("/api/1/searches/results?name=cars&n=2").json
    assert found["total"] == len(server.store[FIRST].labels.query("car", span=(0, 1))) > 2
    assert [(one["name"], one["label"]) for one in found["items"]] == [(FIRST, "car")] * 2
    assert found["unknown_labels"] == ["lorry"]
    for wrong in ({"name": "x"}, body | {"arguments": {"labels": "car|"}}, body | {"kind": "y"}):
        assert client.send("POST", "/api/1/searches", wrong).status == 400
    assert client.send("POST", "/api/1/searches/remove", {"name": "cars"}).status == 200
    assert client.get("/api/1/searches/results?name=cars").status == 404
    assert server.client("a-guests-token-of-cam1").get("/api/1/searches").status == 403
