"""Recording from an RTSP camera: its clock, its sound, and what must not stop a recorder."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from threading import Event, Thread
from typing import Any

import av
import pytest

from sample_videos import Encoding, Scene, read_frame_number, write
from tests.support.disks import mounted
from tests.support.rtsp_camera import RtspCamera
from tests.support.seaweedfs import free_ports
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.capture_time import NS, CaptureClock, CaptureTime
from vfsd.core.model import LogicalVideo
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import UsageError
from vfsd.write.record_stream import RecordOptions, StreamClock, StreamRecorder

DEADLINE = 60.0
FRAMES, RATE = 100, 25


def make_clip(path: Path, **scene: Any) -> Path:
    """Pictures with their numbers, as cameras code them: without B-frames."""
    write(
        Scene(160, 120, frames=FRAMES, rate=Fraction(RATE), **scene),
        Encoding(gop=10, bframes=0),
        path,
    )
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With G.711 sound."""
    folder = tmp_path_factory.mktemp("camera")
    silent, path = make_clip(folder / "silent.mp4"), folder / "clip.mov"
    with av.open(str(silent)) as source, av.open(str(path), "w") as target:
        (video,) = source.streams.video
        copy = target.add_stream_from_template(video)
        sound = target.add_stream("pcm_alaw", rate=8000, layout="mono")
        for packet in source.demux(video):
            if packet.dts is not None:
                packet.stream = copy
                target.mux(packet)
        for start in range(0, 8000 * FRAMES // RATE, 320):
            frame = av.AudioFrame("s16", "mono", 320)
            frame.planes[0].update(bytes(range(128)) * 5)
            frame.sample_rate, frame.pts = 8000, start
            target.mux(sound.encode(frame))
        target.mux(sound.encode(None))
    return path


@pytest.fixture
def camera(clip: Path) -> Iterator[RtspCamera]:
    (port,) = free_ports(1)
    made = RtspCamera(port, clip)
    yield made
    made.close()


class Recording:
    def __init__(self, store: Store, url: str, form: RecordOptions) -> None:
        self.videos: list[LogicalVideo] = []
        self.events: list[str] = []
        self._stop = Event()
        recorder = StreamRecorder(
            *(store.parts, "cam", url, form),
            on_video=self.videos.append,
            on_event=self.events.append,
        )
        self._thread = Thread(target=recorder.run, args=(self._stop,))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def wait_for(self, videos: int = 0, event: str = "") -> None:
        end = time.monotonic() + DEADLINE
        while len(self.videos) < videos or not any(event in one for one in ["", *self.events]):
            assert time.monotonic() < end, (self.videos, self.events)
            time.sleep(0.02)


@contextmanager
def recording(store: Store, camera: RtspCamera, **form: Any) -> Iterator[Recording]:
    options = {"rtsp_transport": "tcp"}
    made = Recording(store, camera.url, RecordOptions(**{"segment": 1, "options": options, **form}))
    try:
        yield made
    finally:
        made.stop()


def numbers(store: Store, name: str) -> list[int]:
    return [read_frame_number(frame.data) for frame in store[name].iterate()]


def assert_none_lost(found: list[int]) -> None:
    assert found == [(found[0] + step) % FRAMES for step in range(len(found))]


def test_times_are_those_of_the_camera(store: Store, camera: RtspCamera) -> None:
    camera.clock_ahead = 5.0
    with recording(store, camera) as made:
        made.wait_for(videos=3)
    assert_none_lost([number for name in sorted(store) for number in numbers(store, name)])
    for name in store:
        captured = store[name].info.captured
        assert captured is not None
        assert captured.clock == CaptureClock.RTCP
        # Picture n is shown n / 25 s after a whole number of turns of the clip.
        since = captured.ns / NS - camera.started - camera.clock_ahead
        turn = since - numbers(store, name)[0] / RATE
        assert abs(turn - 4 * round(turn / 4)) < 0.01
        original = store[name].original
        assert original.media.container == "mov"
        assert [one.codec for one in original.media.side_streams] == ["pcm_alaw"]
    assert store.timeline("cam").gaps(at_least=0.1) == []


@pytest.mark.thorough
def test_wrong_clock_of_a_camera_is_not_believed(
    store: Store, camera: RtspCamera, tmp_path: Path
) -> None:
    camera.clock_ahead = -86_400.0
    with recording(store, camera, sound="aac") as made:
        made.wait_for(videos=2)
    assert [text for text in made.events if "clock of the camera is -864" in text]
    for video in made.videos:
        assert video.captured is not None
        assert video.captured.clock == CaptureClock.ARRIVAL
        assert abs(video.captured.ns / NS - time.time()) < DEADLINE
        assert video.original.media.container == "mp4"
        assert [one.codec for one in video.original.media.side_streams] == ["aac"]
    store[made.videos[0].name].save(tmp_path / "saved.mp4")
    with av.open(str(tmp_path / "saved.mp4")) as opened:
        (sound,) = opened.streams.audio
        samples = sum(frame.samples for frame in opened.decode(sound))
    assert samples == pytest.approx(8000 * float(made.videos[0].original.duration), rel=0.2)


@pytest.mark.thorough
def test_camera_breaks_and_changes(store: Store, camera: RtspCamera, tmp_path: Path) -> None:
    """Broken connections leave gaps; other parameters in the stream begin a video."""
    other = make_clip(tmp_path / "other.mp4", seed=2)
    with recording(store, camera, sound="no") as made:
        made.wait_for(videos=2)
        camera.drop_clients()
        made.wait_for(event="trying again")
        before = len(made.videos)
        made.wait_for(videos=before + 1)
        camera.exchange(other)
        made.wait_for(videos=before + 4)
    for name in store:
        assert_none_lost(numbers(store, name))
    line = store.timeline("cam")
    assert len(line.gaps(at_least=0.2)) >= 1


@pytest.mark.thorough
def test_full_disk(tmp_path: Path, camera: RtspCamera) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=16m", "none"), new_store(disk / "store") as store:
        with recording(store, camera) as made:
            made.wait_for(videos=2)
            ballast = disk / "ballast"
            with open(ballast, "wb", 0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass
            made.wait_for(event="No space left")
            before = len(made.videos)
            ballast.unlink()
            made.wait_for(videos=before + 3)
        assert not store.recordings()
        for name in store:
            assert_none_lost(numbers(store, name))
        assert store.timeline("cam").gaps(at_least=0.5)


@pytest.mark.thorough
def test_busy_catalog(tmp_path: Path, camera: RtspCamera, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that is locked for longer than a recorder waits delays videos, and loses none."""
    monkeypatch.setattr("vfsd.catalog.engine.BUSY_SECONDS", 0.2)
    monkeypatch.setattr("vfsd.write.record_stream._PUBLISH_ATTEMPTS", 2)
    with new_store(tmp_path / "store") as store:
        with recording(store, camera) as made:
            made.wait_for(videos=1)
            with closing(sqlite3.connect(tmp_path / "store" / CATALOG)) as other:
                other.execute("BEGIN IMMEDIATE")
                made.wait_for(event="was not published")
                other.rollback()
            made.wait_for(event="recovered")
            made.wait_for(videos=len(made.videos) + 2)
        assert not store.recordings()
        names = sorted(store)
        assert_none_lost([number for name in names for number in numbers(store, name)])


def test_clock_of_a_host_that_is_set() -> None:
    """The clock of a camera runs on; a camera that is set far away is not followed."""
    clock, start = StreamClock(), 1_777_629_600 * NS
    jump = 0
    for step in range(200):
        jump = 3600 * NS if step >= 60 else 0
        sent = start + step * NS // 10
        clock.add(Fraction(step, 10), sent + NS // 5 + jump, sent)
    assert clock.at(Fraction(5)) == CaptureTime(start + 5 * NS, CaptureClock.RTCP)
    assert clock.error_ns is None
    clock.add(Fraction(20), start + 20 * NS, start - 100 * NS)
    assert clock.error_ns is not None
    assert clock.at(Fraction(5)).clock is CaptureClock.ARRIVAL


def test_forms_of_sound_are_checked() -> None:
    with pytest.raises(UsageError, match="sound must be"):
        RecordOptions(sound="loud")
