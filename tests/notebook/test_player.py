"""The player in a real kernel: frames and boxes come over the comm, exact and bounded."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.frames import Frame
from vfsd.errors import OutOfRangeError, UsageError

pytest.importorskip("anywidget")
player = pytest.importorskip("vfsd.notebook.player")

TIMEOUT = 120.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("player") / "store") as made:
        video = made.ingest(FOLDER / "traffic.mp4", "cam1/traffic.mp4")
        video.labels.add(
            [(number, "car", (number, 20, number + 50, 60), 0.5) for number in range(120)]
            + [(31, "bus", (1, 2, 30, 40))],
            "me",
        )
        yield made


def decoded(data: bytes) -> Any:
    found: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return found[..., ::-1]


def answers(made: Any, message: Any) -> list[tuple[dict[str, Any], bytes]]:
    sent: list[tuple[dict[str, Any], bytes]] = []
    made.send = lambda facts, buffers=(b"",): sent.append((facts, buffers[0]))
    made._answer(made, message, [])
    return sent


def test_answers_are_the_frames(store: Store) -> None:
    video = store["cam1/traffic.mp4"]
    made = video.show(span=(1, 2), labels="car", size=160)
    assert (made.first, made.end, made.frame, made.fps) == (30, 60, 30, 30.0)
    sent = answers(made, {"type": "frames", "first": 31, "count": 3})
    assert [facts["frame"] for facts, _ in sent] == [31, 32, 33]
    expected = video.read(frames=[31, 32, 33], size=(160, 120))
    for (facts, data), frame in zip(sent, expected, strict=True):
        assert np.abs(decoded(data).astype(int) - frame.data).mean() < 3
        assert facts["seconds"] == frame.seconds
        assert facts["boxes"] == [[frame.index, 20.0, frame.index + 50, 60.0, "car", 0.5]]
    assert len(answers(video.show(), {"type": "frames", "first": 31})[0][0]["boxes"]) == 2


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {"type": "other"},
        {"type": "frames"},
        {"type": "frames", "first": "30"},
        {"type": "frames", "first": 29, "count": 1},
        {"type": "frames", "first": 60, "count": 1},
        {"type": "frames", "first": 30, "count": 0},
        {"type": "frames", "first": 30, "count": -5},
        {"type": "frames", "first": True, "count": 1},
    ],
)
def test_other_messages_are_ignored(store: Store, message: Any) -> None:
    assert answers(store["cam1/traffic.mp4"].show(span=(1, 2)), message) == []


def test_answers_are_bounded(store: Store) -> None:
    made = store["cam1/traffic.mp4"].show()
    assert len(answers(made, {"type": "frames", "first": 0, "count": 10**9})) == player.MAX_FRAMES
    assert len(answers(made, {"type": "frames", "first": 118, "count": 8})) == 2
    noise = np.random.default_rng(0).integers(0, 255, (1280, 1280, 3), np.uint8)
    assert len(player.jpeg_of(Frame(noise, 0, 0, 0.0, 0.0))) <= player.MAX_JPEG_BYTES


def test_arguments_are_checked(store: Store) -> None:
    video = store["cam1/traffic.mp4"]
    for size in (0, 5000, "x"):
        with pytest.raises(UsageError):
            video.show(size=size)  # type: ignore[arg-type]
    with pytest.raises(OutOfRangeError):
        video.show(span=(50, 60))


def test_errors_reach_the_browser(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
        made = video.show()
        store.remove("a.mp4")
        ((facts, _),) = answers(made, {"type": "frames", "first": 5})
        assert facts["type"] == "error"
        assert "a.mp4" in facts["text"]


# ------------------------------------------------------------------------- a real kernel


@pytest.mark.slow
def test_in_a_kernel(store: Store) -> None:
    """The messages of a browser: open the widget, ask for frames, get pictures."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(startup_timeout=TIMEOUT)
    try:
        said = run(
            client,
            f"from vfsd import Store\nstore = Store.open({str(store.path)!r})\n"
            "video = store['cam1/traffic.mp4']\nvideo.show(span=(1, 2))",
        )
        opened = [one for one in said if one["msg_type"] == "comm_open"]
        model = next(
            one for one in opened if one["content"]["data"]["state"].get("name") == video_name()
        )
        state = model["content"]["data"]["state"]
        assert (state["first"], state["end"], state["_model_module"]) == (30, 60, "anywidget")
        (shown,) = [one for one in said if one["msg_type"] == "execute_result"]
        view = shown["content"]["data"]["application/vnd.jupyter.widget-view+json"]
        comm = model["content"]["comm_id"]
        assert view["model_id"] == comm

        ask = {"method": "custom", "content": {"type": "frames", "first": 40, "count": 2}}
        message = client.session.msg("comm_msg", {"comm_id": comm, "data": ask})
        client.shell_channel.send(message)
        found: dict[int, Any] = {}
        end = time.monotonic() + TIMEOUT
        while len(found) < 2 and time.monotonic() < end:
            one = client.get_iopub_msg(timeout=TIMEOUT)
            if one["msg_type"] == "comm_msg" and one["content"]["data"]["method"] == "custom":
                facts = one["content"]["data"]["content"]
                found[facts["frame"]] = decoded(bytes(one["buffers"][0]))
        expected = store["cam1/traffic.mp4"].read(frames=[40, 41])
        assert sorted(found) == [40, 41]
        for frame in expected:
            assert np.abs(found[frame.index].astype(int) - frame.data).mean() < 3

        # The rich representations of other values go through IPython as well.
        said = run(client, "video[40]")
        (shown,) = [one for one in said if one["msg_type"] == "execute_result"]
        picture = decoded(base64.b64decode(shown["content"]["data"]["image/png"]))
        assert np.array_equal(picture, expected.data[0])
        said = run(client, "video.labels.query()")
        assert "<table" in json.dumps([one["content"] for one in said], default=str)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def video_name() -> str:
    return "cam1/traffic.mp4"


def run(client: Any, code: str) -> list[dict[str, Any]]:
    """The messages on the kernel's output channel while a cell runs."""
    number = client.execute(code)
    found: list[dict[str, Any]] = []
    while True:
        one = client.get_iopub_msg(timeout=TIMEOUT)
        if one["parent_header"].get("msg_id") != number:
            continue
        assert one["msg_type"] != "error", one["content"]
        found.append(one)
        if one["msg_type"] == "status" and one["content"]["execution_state"] == "idle":
            return found
