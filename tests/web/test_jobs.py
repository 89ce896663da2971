"""Jobs run commands in processes; their events reach clients, also those that come back."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from tests.support.web_client import TOKEN, RunningServer, WebClient, serving
from vfsd.web.job_commands import KINDS

DEADLINE = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with new_store(tmp_path_factory.mktemp("jobs") / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", "traffic.mp4")
        with serving(store, write=True) as running:
            yield running


def ended(client: WebClient, number: str) -> dict[str, Any]:
    limit = time.monotonic() + DEADLINE
    while True:
        found: dict[str, Any] = client.get(f"/api/1/jobs/{number}").json
        if found["state"] not in ("waiting", "running"):
            return found
        assert time.monotonic() < limit, found
        time.sleep(0.1)


def test_a_command_runs_and_has_its_results(server: RunningServer) -> None:
    client = server.client()
    job = client.send("POST", "/api/1/jobs", {"kind": "fsck"}).json
    found = ended(client, job["id"])
    assert (found["state"], found["error"]) == ("done", None)
    assert client.get("/api/1/jobs").json["items"][0]["id"] == job["id"]


def test_a_waiting_job_is_cancelled_and_resumed(server: RunningServer) -> None:
    client = server.client()
    first = client.send("POST", "/api/1/jobs", {"kind": "scrub"}).json
    second = client.send("POST", "/api/1/jobs", {"kind": "fsck"}).json
    assert client.send("DELETE", f"/api/1/jobs/{second['id']}").json["state"] in (
        "cancelled",
        "running",
    )
    assert ended(client, first["id"])["state"] == "done"
    assert ended(client, second["id"])["state"] == "cancelled"
    assert client.send("POST", f"/api/1/jobs/{second['id']}/resume", {}).status == 200
    assert ended(client, second["id"])["state"] == "done"


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "rm", "args": {}},
        {"kind": "retile", "args": {"names": ["traffic.mp4"], "roi": "x; rm -rf /"}},
        {"kind": "retile", "args": {"names": []}},
        {"kind": "retile", "args": {"names": ["traffic.mp4"], "out": "/etc/passwd"}},
        {"kind": "detect", "args": {"names": ["traffic.mp4"], "with": "onnx:/etc/passwd"}},
        {"kind": "fsck", "args": {"names": ["--repair"]}},
        {"kind": "fsck", "colour": 1},
    ],
)
def test_other_arguments_are_refused(server: RunningServer, body: dict[str, Any]) -> None:
    assert server.client().send("POST", "/api/1/jobs", body).status == 400


def test_viewers_start_no_jobs(server: RunningServer) -> None:
    viewer = server.client("a-viewers-token")
    assert viewer.send("POST", "/api/1/jobs", {"kind": "fsck"}).status == 403
    assert viewer.get("/api/1/jobs").status == 200


@pytest.mark.thorough
def test_an_order_makes_tiles(server: RunningServer) -> None:
    client = server.client()
    body = {"kind": "retile", "args": {"video": "traffic.mp4", "roi": "80x60+100+90"}}
    plan = client.send("POST", "/api/1/jobs", {**body, "dry_run": True}).json
    assert plan["name"] == "traffic.mp4"
    assert plan["bytes"] > 0
    job = client.send("POST", "/api/1/jobs", body).json
    found = ended(client, job["id"])
    assert found["state"] == "done", found
    assert found["progress"][0] == found["progress"][1] > 0
    assert client.get("/api/1/videos/traffic.mp4/layout").json["segments"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"overlap-join", "overlap-split"}))
def test_every_kind_is_a_command(server: RunningServer, kind: str) -> None:
    known: dict[str, dict[str, Any]] = {
        "retile": {"names": ["traffic.mp4"], "layout": "uniform:2x2", "span": [0, 1]},
        "render": {"names": ["traffic.mp4"], "size": "160x120", "span": "0-1"},
        "detect": {"names": ["traffic.mp4"], "with": "motion", "every": 10},
        "verify": {"names": ["traffic.mp4"]},
    }
    args = known.get(kind, {})
    client = server.client()
    job = client.send("POST", "/api/1/jobs", {"kind": kind, "args": args}).json
    found = ended(client, job["id"])
    assert found["state"] == "done", found


def lines_of(port: int, last: int | None, count: int) -> list[tuple[int, str, dict[str, Any]]]:
    """The next `count` events of the stream."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    found: list[tuple[int, str, dict[str, Any]]] = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/api/1/events-stream", headers=headers)
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        record: dict[str, str] = {}
        while len(found) < count:
            line = answer.readline().decode().rstrip("\n")
            if line:
                key, _, value = line.partition(": ")
                record[key] = value
            elif "event" in record:
                found.append((int(record["id"]), record["event"], json.loads(record["data"])))
                record = {}
    return found


def test_events_of_jobs_and_videos(server: RunningServer, tmp_path: Path) -> None:
    hub = server.web.events
    hub.look()
    last = hub.last
    server.client().send("POST", "/api/1/jobs", {"kind": "fsck"})
    server.store.ingest(FOLDER / "portrait.mp4", "new/portrait.mp4")
    moment = datetime(2026, 5, 1, 10, tzinfo=UTC)
    server.store.set_captured("new/portrait.mp4", moment)
    events = lines_of(server.port, last, 2)
    kinds = {kind for _, kind, _ in events}
    assert kinds <= {"job", "video", "spans"}
    again = lines_of(server.port, last, 2)
    assert again == events
    assert [one[0] for one in events] == [last + 1, last + 2]
    assert lines_of(server.port, 5, 1)[0][1] == "reset"


def test_streams_end_with_the_server(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store, serving(store) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        with closing(connection):
            connection.request(
                "GET", "/api/1/events-stream", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            answer = connection.getresponse()
            assert answer.readline() == b"retry: 3000\n"
            running.web.stopping.set()
            assert answer.read().strip() == b""
    assert running.web.events.clients == 0
