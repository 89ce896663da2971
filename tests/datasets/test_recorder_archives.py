"""Archives of Frigate, MediaMTX, Viseron and unifi-protect-backup, with their times and objects."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.codecs.inventory.mp4_boxes import mediamtx_start
from vfsd.core.capture_time import NS, CaptureClock, time_zone, to_ns
from vfsd.datasets.recorder_archives import (
    SOURCE,
    add_frigate_objects,
    archived_files,
    frigate_moments,
    import_archive,
)
from vfsd.errors import NotFoundError, RefusedMediaError, UsageError

CLIP = FOLDER / "traffic.mp4"  # 4 s of 320x240 at 30 frames per second
START = datetime(2026, 5, 1, 10, 5, 30, tzinfo=UTC)

# As Frigate's migrations make them, without columns that the import does not read.
FRIGATE = """
CREATE TABLE event ("id" VARCHAR(30) NOT NULL PRIMARY KEY, "label" VARCHAR(20) NOT NULL,
    "camera" VARCHAR(20) NOT NULL, "start_time" DATETIME NOT NULL, "end_time" DATETIME,
    "sub_label" VARCHAR(100), "data" JSON);
CREATE TABLE timeline ("timestamp" DATETIME NOT NULL, "camera" VARCHAR(20) NOT NULL,
    "source" VARCHAR(20) NOT NULL, "source_id" VARCHAR(30), "class_type" VARCHAR(50) NOT NULL,
    "data" JSON);
"""


def put(folder: Path, name: str, data: bytes | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CLIP.read_bytes() if data is None else data)
    return path


def imported(store: Store, folder: Path, recorder: str, **options: Any) -> list[str | None]:
    zone = time_zone(options.pop("zone", "UTC"))
    files = archived_files(folder, recorder, zone, **options)
    videos = [one.video for one in import_archive(store, files)]
    return [None if video is None else video.name for video in videos]


def frigate_database(path: Path, rows: list[tuple[str, float, str, str, Any]]) -> Path:
    """With one event, and a row of the timeline for each of `rows`."""
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.executescript(FRIGATE)
        data = json.dumps({"box": [0.5, 0.5, 0.25, 0.25], "score": 0.75, "type": "object"})
        opened.execute(
            "INSERT INTO event VALUES ('1777629931.5-abc', 'car', 'gate', ?, ?, 'mail', ?)",
            (START.timestamp(), START.timestamp() + 3, data),
        )
        for camera, after, source, kind, box in rows:
            found = {
                "box": box,
                "label": "car",
                "zones": ["road"] if kind == "entered_zone" else [],
            }
            opened.execute(
                "INSERT INTO timeline VALUES (?, ?, ?, '1777629931.5-abc', ?, ?)",
                (START.timestamp() + after, camera, source, kind, json.dumps(found)),
            )
    return path


def test_frigate(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    first = put(folder, "2026-05-01/10/gate/05.30.mp4")
    put(folder, "2026-05-01/10/gate/05.40.mp4")
    put(folder, "2026-05-01/11/yard/00.00.mp4")
    put(folder, "2026-05-01/10/gate/preview.mp4")
    put(folder, "2026-05-01/10/gate/05.50.mp4", CLIP.read_bytes()[:9000])  # cut off
    names = ["gate/2026-05-01/10-05-30.mp4", "gate/2026-05-01/10-05-40.mp4", None]
    assert imported(store, folder, "frigate", cameras=frozenset(["gate"])) == names
    assert imported(store, folder, "frigate") == [*names, "yard/2026-05-01/11-00-00.mp4"]
    video = store["gate/2026-05-01/10-05-30.mp4"]
    assert video.original.link_path == str(first)
    assert video.captured_at == START
    database = frigate_database(
        tmp_path / "frigate.db",
        [
            ("gate", 1.0, "tracked_object", "visible", [0.5, 0.5, 0.25, 0.25]),
            ("gate", 2.5, "tracked_object", "entered_zone", [0.0, 0.25, 0.5, 0.5]),
            ("gate", 11.0, "tracked_object", "gone", [0.1, 0.1, 0.1, 0.1]),  # in the second file
            ("gate", 7.0, "tracked_object", "active", [0.1, 0.1, 0.1, 0.1]),  # in the gap
            ("gate", 2.0, "audio", "heard", None),
            ("gate", 2.0, "tracked_object", "visible", [100, 100, 200, 300]),  # old: pixels
            ("pond", 1.0, "tracked_object", "visible", [0.5, 0.5, 0.25, 0.25]),
        ],
    )
    moments = list(frigate_moments(database))
    assert len(moments) == 5
    pairs = [("gate", store[name]) for name in names if name is not None]
    for _ in range(2):  # a second import replaces the boxes of the first
        assert sum(add_frigate_objects(pairs, moments).values()) == 3
    seen, zone = video.labels.query("car", source=SOURCE)
    assert (seen.frame, seen.box, seen.confidence) == (30, (160, 120, 240, 180), 0.75)
    assert (zone.frame, zone.box, zone.track) == (75, (0, 60, 160, 180), seen.track)
    assert seen.attributes == {
        "event": "1777629931.5-abc",
        "moment": "visible",
        "sub_label": "mail",
    }
    assert zone.attributes["zones"] == "road"


def test_frigate_event_without_a_timeline(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    put(folder, "recordings/2026-05-01/10/gate/05.30.mp4")
    imported(store, folder, "frigate")
    (moment,) = frigate_moments(frigate_database(tmp_path / "frigate.db", []))
    assert (moment.kind, moment.ns, moment.sub_label) == ("event", to_ns(START), "mail")
    with pytest.raises(RefusedMediaError, match="not a database of Frigate"):
        list(frigate_moments(CLIP))
    with pytest.raises(NotFoundError):
        list(frigate_moments(tmp_path / "none.db"))


def test_mediamtx(store: Store, tmp_path: Path) -> None:
    """The box counts, and else the name in the zone of the server."""
    plain = put(tmp_path, "a/hall/2026-05-01_12-05-30-250000.mp4")
    assert mediamtx_start(plain) is None
    # The clip has its index at the end, so that a longer one moves nothing.
    data = CLIP.read_bytes()
    at = data.rindex(b"moov") - 4
    start = to_ns(START) + 60 * NS + 123_456_789
    mtxi = struct.pack(">I4sI16sQqq", 52, b"mtxi", 0, bytes(16), 7, 10 * NS, start)
    udta = struct.pack(">I4s", 8 + len(mtxi), b"udta") + mtxi
    (size,) = struct.unpack_from(">I", data, at)
    moov = struct.pack(">I", size + len(udta)) + data[at + 4 : at + 8] + udta
    put(tmp_path, "a/hall/2026-05-01_12-06-00-000000.mp4", data[:at] + moov + data[at + 8 :])
    names = imported(store, tmp_path, "mediamtx", zone="Europe/Zurich")
    assert names == ["a/hall/2026-05-01/10-05-30.mp4", "a/hall/2026-05-01/10-06-30.mp4"]
    by_clock = {store[name].info.captured.clock: store[name] for name in store}  # type: ignore[union-attr]
    assert by_clock[CaptureClock.CONTAINER].info.captured.ns == start  # type: ignore[union-attr]
    assert by_clock[CaptureClock.NAME].captured_at == START + timedelta(milliseconds=250)


def test_viseron_and_unifi(store: Store, tmp_path: Path) -> None:
    put(tmp_path, "v/cam1/2026-05-01/10:05:30.mp4")
    put(tmp_path, "u/Front Door/2026-05-01/2026-05-01T12-05-34 person (95%).mp4")
    assert imported(store, tmp_path / "v", "viseron") == ["cam1/2026-05-01/10-05-30.mp4"]
    (name,) = imported(store, tmp_path / "u", "unifi", zone="Europe/Zurich")
    assert name is not None
    assert store[name].captured_at == START  # the name has the end


def test_folders_without_recordings(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no recordings"):
        imported(store, tmp_path, "frigate")
    with pytest.raises(UsageError, match="recorder must be"):
        imported(store, tmp_path, "nvr")
    shutil.copy(CLIP, tmp_path / "gate.mp4")
    with pytest.raises(NotFoundError, match="no recordings"):
        imported(store, tmp_path, "mediamtx")
