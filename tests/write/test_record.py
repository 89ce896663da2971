"""Recording of live streams: a camera is ffmpeg, which sends a clip in real time over TCP."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread

import av
import pytest

from sample_videos import FOLDER
from tests.support.seaweedfs import free_ports
from vfsd.api.store import Store
from vfsd.core.capture_time import NS, CaptureClock, from_ns
from vfsd.core.model import LogicalVideo
from vfsd.errors import BusyError, NotFoundError, RefusedMediaError, UnreachableError, UsageError
from vfsd.write.record_stream import ArrivalClock, RecordOptions, StreamRecorder

FFMPEG = shutil.which("ffmpeg")
DEADLINE = 60.0
REORDERED = 4
CLIP = FOLDER / "traffic.mp4"

pytestmark = pytest.mark.skipif(FFMPEG is None, reason="ffmpeg is not installed")


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


class Camera:
    """Sends a clip again and again, to one client, at the speed at which it was recorded."""

    def __init__(self, port: int, clip: Path = CLIP) -> None:
        command = [str(FFMPEG), "-nostdin", "-v", "quiet", "-re", "-stream_loop", "-1", "-i"]
        to = f"tcp://127.0.0.1:{port}?listen=1"
        self._process = subprocess.Popen([*command, clip, "-c", "copy", "-f", "mpegts", to])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def camera(port: int, clip: Path = CLIP) -> Iterator[Camera]:
    made = Camera(port, clip)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def port() -> int:
    (found,) = free_ports(1)
    return found


class Recording:
    """A recorder on a thread of its own."""

    def __init__(self, store: Store, port: int, segment: float = 2.0) -> None:
        self.videos: list[LogicalVideo] = []
        self.events: list[str] = []
        self._stop = Event()
        self._recorder = StreamRecorder(
            store.parts,
            "cam",
            f"tcp://127.0.0.1:{port}",
            RecordOptions(segment, timeout=5),
            on_video=self.videos.append,
            on_event=self.events.append,
        )
        self._thread = Thread(target=self._recorder.run, args=(self._stop,))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


@contextmanager
def recording(store: Store, port: int, segment: float = 2.0) -> Iterator[Recording]:
    made = Recording(store, port, segment)
    try:
        yield made
    finally:
        made.stop()


def pictures(path: Path | bytes) -> list[str]:
    with av.open(str(path)) as opened:
        return [
            sha256(frame.to_ndarray().tobytes()).hexdigest() for frame in opened.decode(video=0)
        ]


def assert_consecutive(found: list[str], source: list[str]) -> None:
    """Check that these are pictures of an endless repetition of `source`, none left out."""
    start = source.index(found[0])
    expected = [source[(start + step) % len(source)] for step in range(len(found))]
    assert found == expected


def assert_cut(found: list[str], source: list[str]) -> None:
    """As `assert_consecutive`, for a stream that was cut in the middle of a GOP.

    The last pictures that are shown may refer to packets that came before others of them.
    """
    assert_consecutive(found[:-REORDERED], source)


def saved(store: Store, name: str, folder: Path) -> Path:
    path = folder / "saved.mp4"
    path.unlink(missing_ok=True)
    store[name].save(path)
    return path


def test_no_frame_is_lost_between_videos(store: Store, port: int, tmp_path: Path) -> None:
    before = time.time_ns()
    with camera(port), recording(store, port) as made:
        wait_for(lambda: len(made.videos) >= 3)
    names = [video.name for video in made.videos]
    assert names == sorted(store)
    found = [one for name in names for one in pictures(saved(store, name, tmp_path))]
    assert_cut(found, pictures(CLIP))
    for video in made.videos:
        assert video.captured is not None
        assert video.captured.clock == CaptureClock.ARRIVAL
        assert before - 5 * NS < video.captured.ns < time.time_ns()
        # The name has the time as it was known when the video was begun.
        assert video.name.startswith(f"cam/{from_ns(video.captured.ns):%Y-%m-%d}/")
    line = store.timeline("cam")
    assert line.gaps(at_least=0.5) == []
    assert abs((line.end - line.start).total_seconds() - len(found) / 30) < 1
    assert store[names[0]].original.media.codec == "h264"
    assert all("refused" in text for text in made.events)  # before the camera listened


@pytest.mark.thorough
def test_video_is_read_while_it_grows(store: Store, port: int) -> None:
    def growing() -> bool:
        for name in active(store):
            try:
                with store.growing(name) as video:
                    return len(video) > 15 and video[10].data.shape == (240, 320, 3)
            except (BusyError, NotFoundError):
                return False
        return False

    with camera(port), recording(store, port, segment=3600):
        wait_for(growing)


def active(store: Store) -> list[str]:
    from vfsd.write.unfinished_files import active_partials

    return [file.name for file in active_partials(store.parts.objects)]


@pytest.mark.thorough
def test_camera_that_restarts_leaves_a_gap(store: Store, port: int, tmp_path: Path) -> None:
    with recording(store, port) as made:
        with camera(port):
            wait_for(lambda: made.videos)
        wait_for(lambda: any("trying again" in text for text in made.events))
        count = len(made.videos)
        with camera(port):
            wait_for(lambda: len(made.videos) >= count + 2)
    assert len(store.timeline("cam").gaps(at_least=0.2)) >= 1
    source = pictures(CLIP)
    for name in store:
        assert_cut(pictures(saved(store, name, tmp_path)), source)


@pytest.mark.thorough
def test_other_parameters_begin_another_video(store: Store, port: int, tmp_path: Path) -> None:
    other = tmp_path / "other.mp4"
    command = [str(FFMPEG), "-v", "error", "-i", str(CLIP), "-vf", "scale=160:120", "-an"]
    subprocess.run([*command, str(other)], check=True)
    with recording(store, port) as made:
        with camera(port):
            wait_for(lambda: made.videos)
        with camera(port, other):
            wait_for(lambda: any(v.original.media.width == 160 for v in made.videos))
    assert {video.original.media.width for video in made.videos} == {320, 160}


def test_killed_recorder_loses_one_fragment(store: Store, port: int, tmp_path: Path) -> None:
    """The next recorder of the directory publishes what the killed one has left."""
    url = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vfsd", "-s", str(store.path), "record", "cam", url]

    def sizes() -> list[int]:
        from vfsd.write.unfinished_files import active_partials

        return [file.path.stat().st_size for file in active_partials(store.parts.objects)]

    with camera(port), subprocess.Popen([*command, "--segment", "3600"]) as killed:
        wait_for(lambda: sum(sizes()) > 60_000)
        killed.kill()
    (left,) = store.recordings()
    with recording(store, port) as made:
        wait_for(lambda: made.videos)
    assert made.videos[0].name == left.name
    assert any("recovered" in text for text in made.events)
    assert_cut(pictures(saved(store, left.name, tmp_path)), pictures(CLIP))
    captured = store[left.name].info.captured
    assert captured is not None
    assert captured == left.captured  # the container has whole seconds
    assert captured.clock is CaptureClock.ARRIVAL


@pytest.mark.thorough
def test_command_ends_with_a_signal(store: Store, port: int) -> None:
    url = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vfsd", "-s", str(store.path), "record", "cam", url]
    with camera(port):
        process = subprocess.Popen([*command, "--segment", "3600"], stdout=subprocess.PIPE)
        wait_for(lambda: active(store))
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert out.decode().split() == list(store)
    assert len(store) == 1
    assert os.listdir(store.parts.directory.location / "spool") == []


def test_stream_that_cannot_be_opened(store: Store, port: int, tmp_path: Path) -> None:
    events: list[str] = []
    url = f"tcp://user:secret@127.0.0.1:{port}"
    recorder = StreamRecorder(store.parts, "cam", url, RecordOptions(), on_event=events.append)
    with pytest.raises(UnreachableError, match="cannot be opened") as error:
        recorder.run(Event(), seconds=0.5)
    assert "secret" not in "".join([*events, str(error.value)])
    sound = tmp_path / "sound.wav"
    subprocess.run([str(FFMPEG), "-v", "error", "-i", CLIP, "-vn", sound], check=True)
    with pytest.raises(RefusedMediaError, match="no video"):
        StreamRecorder(store.parts, "cam", str(sound), RecordOptions()).run(Event(), seconds=0.5)
    assert not store.recordings()
    for wrong in ({"segment": 0}, {"timeout": 0}, {"segment": 100_000}):
        with pytest.raises(UsageError, match="seconds, got"):
            RecordOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="directory"):
        StreamRecorder(store.parts, "/", url, RecordOptions())


def test_clock_of_arrivals() -> None:
    clock = ArrivalClock()
    start = 1_777_629_600 * NS
    # A camera sends the pictures since its last key picture at once: the last one is the freshest.
    for step in range(20):
        clock.add(Fraction(step, 10), start + 2 * NS)
    assert clock.at(Fraction(0)) == start + NS // 10
    # Delays do not count.
    for step in range(20, 100):
        clock.add(Fraction(step, 10), start + NS // 10 + step * NS // 10 + step % 7 * 10**7)
    assert clock.at(Fraction(5)) == start + 5 * NS + NS // 10
    # A clock that is set, in either direction, is followed.
    for direction in (60, -60):
        for step in range(130):
            second = Fraction(100 + step, 10) + (20 if direction < 0 else 0)
            clock.add(second, start + round((second + direction) * NS))
        assert clock.at(Fraction(20)) == start + (20 + direction) * NS
