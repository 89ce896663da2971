"""HLS playlists: the byte ranges equal the views, and players show the frames of the videos."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from tests.support.web_client import TOKEN, RunningServer, serving
from vfsd.api.store import Store
from vfsd.views.segment_layout import segment_layout
from vfsd.web import view_playlists
from vfsd.web.camera_index import CameraIndex

CLIPS = ("traffic.mp4", "open-gop.mkv", "edit-list.mp4", "variable-rate.mp4", "portrait.mp4")
START = datetime(2026, 5, 1, 10, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("hls")
    with new_store(folder / "store") as store:
        for number, clip in enumerate(CLIPS):
            name = f"cam/{clip}"
            store.ingest(FOLDER / clip, name)
            store.set_captured(name, START + timedelta(minutes=number))
        store.ingest(FOLDER / "av1.mp4", "other/av1.mp4")
        with serving(store) as running:
            yield running


def ranges(text: str) -> list[tuple[str, int, int]]:
    """(URI, first byte, end) of the map and of each segment of a playlist."""
    found = []
    pattern = r'#EXT-X-MAP:URI="([^"]+)",BYTERANGE="(\d+)@(\d+)"|#EXT-X-BYTERANGE:(\d+)@(\d+)\n(.+)'
    for uri, size, at, more, place, other in re.findall(pattern, text):
        first = int(at or place)
        found.append((uri or other, first, first + int(size or more)))
    return found


@pytest.mark.parametrize("clip", CLIPS)
def test_segments_are_the_view_without_its_index(server: RunningServer, clip: str) -> None:
    client = server.client()
    text = client.get(f"/v/cam/{clip}@/index.m3u8").body.decode()
    parts = ranges(text)
    uri = parts[0][0]
    whole = client.get(uri).body
    assert parts[0][1] == 0
    # Between the header and the first segment is the index of the view.
    assert whole[parts[0][2] + 4 : parts[0][2] + 8] == b"sidx"
    assert [end for _, _, end in parts[1:-1]] == [first for _, first, _ in parts[2:]]
    assert parts[-1][2] == len(whole)
    for _, first, _ in parts[1:]:
        assert whole[first + 4 : first + 8] == b"moof"
    for each, first, end in parts:
        reply = client.get(each, range=f"bytes={first}-{end - 1}")
        assert (reply.status, reply.body) == (206, whole[first:end])
    seconds = sum(Fraction(one) for one in re.findall(r"#EXTINF:([0-9.]+),", text))
    assert abs(seconds - server.store[f"cam/{clip}"].duration) < Fraction(1, 20)


@pytest.mark.parametrize("clip", CLIPS)
def test_a_player_shows_every_frame(server: RunningServer, clip: str, tmp_path: Path) -> None:
    """Joined as a player joins them, the ranges decode to the frames of the video."""
    client = server.client()
    parts = ranges(client.get(f"/v/cam/{clip}@/index.m3u8").body.decode())
    joined = tmp_path / "joined.mp4"
    with joined.open("wb") as file:
        for uri, first, end in parts:
            file.write(client.get(uri, range=f"bytes={first}-{end - 1}").body)
    with av.open(joined) as opened:
        count = sum(1 for _ in opened.decode(video=0))
    assert count == len(server.store[f"cam/{clip}"])


def test_a_camera_is_one_playlist(server: RunningServer) -> None:
    client = server.client()
    text = client.get("/api/1/cameras/cam/index.m3u8").body.decode()
    assert text.count("#EXT-X-DISCONTINUITY") == len(CLIPS) - 1
    assert text.count("#EXT-X-MAP") == len(CLIPS)
    times = re.findall(r"#EXT-X-PROGRAM-DATE-TIME:(\S+)", text)
    assert times == [f"2026-05-01T10:{minute:02}:00.000000Z" for minute in range(len(CLIPS))]
    assert text.endswith("#EXT-X-ENDLIST\n")
    longest = max(float(one) for one in re.findall(r"#EXTINF:([0-9.]+),", text))
    assert int(re.findall(r"TARGETDURATION:(\d+)", text)[0]) >= longest
    one = client.get(
        "/api/1/cameras/cam/index.m3u8?from=2026-05-01T10:01:00Z&to=2026-05-01T10:02:00Z"
    ).body.decode()
    assert {uri for uri, _, _ in ranges(one)} == {
        uri for uri, _, _ in ranges(text) if "open-gop" in uri
    }
    assert (
        client.get(
            "/api/1/cameras/cam/index.m3u8?from=2026-06-01T00:00:00Z&to=2026-06-02T00:00:00Z"
        ).status
        == 404
    )


def test_a_codec_that_the_player_lacks_is_encoded(server: RunningServer) -> None:
    text = server.client().get("/v/other/av1.mp4@/index.m3u8?can=h264").body.decode()
    (uri, *_), *_ = ranges(text)
    assert "codec%3Dh264" in uri
    assert "&v=" in uri
    assert server.client().get(uri, range="bytes=0-7").status == 206


def test_urls_of_other_bytes_are_refused(server: RunningServer) -> None:
    client = server.client()
    (uri, *_), *_ = ranges(client.get("/v/cam/traffic.mp4@/index.m3u8").body.decode())
    assert client.get(uri.replace("size=", "size=1")).status == 412
    assert client.get(uri.replace("digest=", "digest=f0f0")).status == 412


def test_ffmpeg_plays_a_video(server: RunningServer) -> None:
    """FFmpeg's own HLS client decodes all frames."""
    url = f"http://127.0.0.1:{server.port}/v/cam/traffic.mp4@/index.m3u8"
    told = subprocess.run(
        [
            "ffmpeg", "-v", "error", "-protocol_whitelist", "http,tcp",
            "-headers", f"Authorization: Bearer {TOKEN}\r\n", "-i", url,
            "-map", "0:v", "-f", "framemd5", "-",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in told.stdout.splitlines() if not line.startswith("#")]
    assert told.returncode == 0, told.stderr
    assert len(lines) == len(server.store["cam/traffic.mp4"])


def test_parts_of_cameras_outlive_the_server(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process plans the views of changed videos only, and makes the same playlist."""
    planned: list[str] = []
    plan = segment_layout

    def counting(*arguments: Any) -> Any:
        planned.append(arguments[2].name)
        return plan(*arguments)

    monkeypatch.setattr(view_playlists, "segment_layout", counting)
    clips = ("traffic.mp4", "fragmented.mp4", "open-gop.mov")
    for number, clip in enumerate(clips):
        store.ingest(FOLDER / clip, f"cam/{clip}")
        store.set_captured(f"cam/{clip}", START + timedelta(minutes=40 * number))

    def made(last: int = len(clips)) -> str:
        planned.clear()
        parts = CameraIndex(store).get("cam").parts
        playlists = view_playlists.ViewPlaylists(store)
        return playlists.of_parts(parts[:last], ("h264",), has_ended=True)

    made(last=1)  # a part of the first hour
    first = made()
    assert sorted(planned) == ["cam/fragmented.mp4", "cam/open-gop.mov"]
    assert (made(), planned) == (first, [])
    store.ingest(FOLDER / "portrait.mp4", "cam/traffic.mp4", replace=True)
    store.set_captured("cam/traffic.mp4", START)
    assert made() != first
    assert "cam/traffic.mp4" in planned
    assert (made(), planned) == (made(), [])


def test_files_of_timelines(store: Store, tmp_path: Path) -> None:
    """`DIRECTORY@/t=...` is one file over several videos, with ranges and preconditions."""
    for number in range(2):
        store.ingest(FOLDER / "traffic.mp4", f"cam/{number}.mp4")
        store.set_captured(f"cam/{number}.mp4", START + timedelta(seconds=4 * number))
    with serving(store) as running:
        client = running.client()
        path = "/v/cam@/t=2026-05-01T10:00:01Z-10:00:07Z.mp4"
        whole = client.get(path)
        file = tmp_path / "whole.mp4"
        file.write_bytes(whole.body)
        with av.open(file) as opened:
            assert sum(1 for _ in opened.decode(video=0)) == 180
        part = client.get(path, range="bytes=100-299")
        assert (part.status, part.body) == (206, whole.body[100:300])
        tag, day = whole.headers["etag"], whole.headers["last-modified"]
        assert client.get(path, if_none_match=tag).status == 304
        assert client.get(path, if_modified_since=day).status == 304
        assert client.get(path, if_range=tag, range="bytes=0-1").status == 206
        items = client.get("/v/cam@/").json["items"]
        assert {one["name"] for one in items} >= {"README.txt", "timeline.json"}
        assert client.get("/v/cam@/t=2026-05-01T10:00:01Z-2026-05-09T10:00:01Z.mp4").status == 400
        assert client.get("/v/cam@/t=2026-05-01T12:00:01Z-12:00:07Z.mp4").status in (404, 416)
        assert client.get("/v/cam@/frames/000001.jpg?w=160").status == 404
        store.ingest(FOLDER / "traffic.mp4", "cam/2.mp4")
        store.set_captured("cam/2.mp4", START + timedelta(seconds=2))
        assert client.get(path, if_match=tag).status == 412
