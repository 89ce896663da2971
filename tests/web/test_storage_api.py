"""The endpoints of storage, overlap and health give the keys and values of the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from sample_videos import FOLDER
from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from tests.support.stores import new_store
from tests.support.web_client import RunningServer, serving
from vfsd.api.store import Store
from vfsd.cli.app import cli

BY_RECORDING = "original=keep,delete-after=30d,clock=recording"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """`cam1/traffic.mp4` with tiles, and the pair `yard/west.mp4` and `yard/east.mp4`."""
    folder = tmp_path_factory.mktemp("storage")
    with new_store(folder / "store") as opened:
        opened.ingest(FOLDER / "traffic.mp4", "cam1/traffic.mp4").tiles.retile("uniform:2x2")
        filmed = FilmedScene.of(Cameras(320, 240, overlap=0.6), frames=40, density=0.12, seed=31)
        for side, picture in (("west", filmed.left), ("east", filmed.right)):
            file = folder / f"{side}.mp4"
            write_pictures(file, (picture(at) for at in range(40)))
            opened.ingest(file, f"yard/{side}.mp4")
        yield opened


@pytest.fixture(scope="module")
def running(store: Store) -> Iterator[RunningServer]:
    with serving(store, write=True) as found:
        yield found


def command(store: Store, *words: str) -> list[dict[str, Any]]:
    """The records that a command prints, without the version of their schema."""
    done = CliRunner().invoke(cli, ["-s", str(store.path), *words, "--json"])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return [{key: record[key] for key in record if key != "schema"} for record in records]


def test_records_equal_those_of_commands(store: Store, running: RunningServer) -> None:
    client = running.client()
    stats = client.get("/api/1/storage").json
    assert (
        command(store, "stats")[0].items()
        >= {key: stats[key] for key in ("videos", "originals", "tiles", "pinned")}.items()
    )
    assert [(one["dir"], one["videos"]) for one in stats["dirs"]] == [("yard", 2), ("cam1", 1)]
    assert client.get("/api/1/budget").json["items"] == command(store, "budget", "show")
    asked = client.send("POST", "/api/1/budget/what-if", {"limit": "10K", "names": []})
    assert asked.json["items"] == command(store, "budget", "what-if", "10K")
    assert asked.json["items"][0]["segments"] > 0
    assert client.get("/api/1/budget/log").json["items"] == []


def test_hold_and_release(store: Store, running: RunningServer) -> None:
    client = running.client()
    body = {"name": "cam1/traffic.mp4", "reason": "case 17"}
    made = client.send("POST", "/api/1/holds", body)
    assert made.status == 200
    assert client.get("/api/1/holds").json["items"] == command(store, "hold", "ls")
    assert client.send("DELETE", f"/api/1/holds/{made.json['id']}").status == 400
    lifted = client.send("DELETE", f"/api/1/holds/{made.json['id']}?reason=closed")
    assert lifted.status == 200
    assert client.get("/api/1/holds").json["items"] == []
    assert client.send("DELETE", f"/api/1/holds/{made.json['id']}?reason=closed").status == 404


def test_ageing_says_what_goes_and_when(store: Store, running: RunningServer) -> None:
    client = running.client()
    put = client.send(
        "PUT", "/api/1/policy", {"name": "yard", "policy": "original=keep,delete-after=30d"}
    )
    assert put.status == 200
    found = client.get("/api/1/age").json
    assert (found["due"], found["refused"]) == ([], None)
    assert [(one["dir"], one["stage"], one["videos"]) for one in found["later"]] == [
        ("yard", "delete", 2)
    ]
    assert [one["name"] for one in client.get("/api/1/policy").json["items"]] == ["yard"]
    name = "yard/west.mp4"
    store.set_captured(name, datetime(2020, 5, 1, tzinfo=UTC))
    put = client.send("PUT", "/api/1/policy", {"name": "yard", "policy": BY_RECORDING})
    assert put.json["clock"] == "recording"
    (due,) = client.get("/api/1/age").json["due"]
    assert (due["name"], due["clock"], due["since"][:10]) == (name, "recording", "2020-05-01")
    cleared = client.send("PUT", "/api/1/policy", {"name": "yard", "policy": None})
    assert cleared.status == 200
    assert client.get("/api/1/age").json["later"] == []


def test_bad_values_change_nothing(store: Store, running: RunningServer) -> None:
    client = running.client()
    before = command(store, "budget", "show")
    for body in ({"limit": "a lot"}, {"limit": 5}, {"limit": "5M", "size": 1}, {}):
        assert client.send("PUT", "/api/1/budget", body).status == 400
    assert client.send("POST", "/api/1/holds", {"name": "none.mp4", "reason": "x"}).status == 404
    assert command(store, "budget", "show") == before


@pytest.mark.thorough
def test_overlap_equals_the_command(store: Store, running: RunningServer) -> None:
    client = running.client()
    found = client.send("POST", "/api/1/overlap/find", {"names": ["yard/*"]}).json["items"]
    assert found == command(store, "overlap", "find", "yard/*")
    pair = client.get(f"/api/1/overlap/pair?left={found[0]['left']}&right={found[0]['right']}")
    assert pair.json["pair"]["verdict"] == found[0]["verdict"] == "join"
    assert client.get("/api/1/overlap").json["items"] == []
    command(store, "overlap", "join", found[0]["left"], found[0]["right"])
    joined = client.get("/api/1/overlap").json["items"]
    assert joined == command(store, "overlap", "ls")
    names = {"left": found[0]["left"], "right": found[0]["right"]}
    assert client.send("POST", "/api/1/overlap/split", names).json["items"] == joined
    assert client.get("/api/1/overlap").json["items"] == []


@pytest.mark.thorough
def test_health(store: Store, running: RunningServer) -> None:
    client = running.client()
    found = client.get("/api/1/health?fsck=1").json
    assert (found["damaged"], found["findings"], found["bad_files"]) == ([], [], 0)
    assert found["scrub"]["files"] == found["scrub"]["never"] == 3
    command(store, "scrub")
    assert client.get("/api/1/health").json["scrub"]["never"] == 0
    checks = client.get("/api/1/health/doctor").json["items"]
    assert {"python", "ffmpeg", "store"} <= {one["check"] for one in checks}
