"""Three cameras are recorded while recorder, camera and mount are killed and clocks jump.

The pictures have numbers.  Each video has to show consecutive ones, and together they show all that
a camera sent, but for the known gaps.  ``VFSD_RECORD_SECONDS=600`` sets the length of the campaign.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from sample_videos import Encoding, Scene, read_frame_number, write
from tests.support.seaweedfs import free_ports
from vfsd.api.store import Store
from vfsd.core.capture_time import NS, CaptureClock
from vfsd.errors import BusyError, NotFoundError, RefusedMediaError
from vfsd.mount.control import daemon_of
from vfsd.write.unfinished_files import active_partials

SECONDS = float(os.environ.get("VFSD_RECORD_SECONDS", "30"))
SEGMENT = max(2.0, min(30.0, SECONDS / 10))
FRAMES, RATE, GOP = 750, 25, 25
# Seconds: a process takes some to start, opening a stream 3, and pauses begin with 1 and 2.
LONGEST_GAP = 60.0
DEADLINE = 120.0


@dataclass
class Place:
    """A camera, its recorder, and where the clock of the recorder's host stands."""

    name: str
    port: int
    clip: Path
    store: Path
    clock: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, kind: str) -> None:
        python = [sys.executable, "-m"]
        if kind == "camera":
            command = [*python, "tests.support.rtsp_camera", str(self.port), str(self.clip)]
        else:
            command = [*python, "tests.support.jumping_clock", str(self.clock), "-s"]
            url = f"rtsp://127.0.0.1:{self.port}/live"
            command += [str(self.store), "record", self.name, url, "--segment", f"{SEGMENT:g}"]
            command += ["--timeout", "5"]
        self.running[kind] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def kill(self, kind: str) -> None:
        self.running[kind].kill()
        self.running[kind].wait()
        self._close(kind)

    def end(self) -> None:
        recorder = self.running["recorder"]
        recorder.send_signal(signal.SIGTERM)
        assert recorder.wait(DEADLINE) == 0
        self._close("recorder")
        self.kill("camera")

    def _close(self, kind: str) -> None:
        pipe = self.running.pop(kind).stdin
        if pipe is not None:
            pipe.close()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.1)


def make_clip(path: Path, codec: str, seed: int) -> Path:
    scene = Scene(160, 120, frames=FRAMES, rate=Fraction(RATE), density=0.05, seed=seed)
    write(scene, Encoding(codec, gop=GOP, bframes=0), path)
    return path


def growing_frames(store: Store, name: str) -> int:
    """Return how many frames of unfinished videos of a camera can be read, reading the last one."""
    for file in active_partials(store.parts.objects):
        if file.name.startswith(f"{name}/"):
            try:
                with store.growing(file.name) as video:
                    read_frame_number(video[-1].data)
                    return len(video)
            except (BusyError, NotFoundError, RefusedMediaError, OSError):
                return 0
    return 0


@pytest.mark.slow
@pytest.mark.usefixtures("mountable")
def test_nothing_is_lost_but_in_the_gaps(tmp_path: Path) -> None:
    ports, home = free_ports(3), tmp_path / "store"
    clips = [make_clip(tmp_path / f"{codec}.mp4", codec, 1) for codec in ("h264", "hevc")]
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    vfsd = [sys.executable, "-m", "vfsd"]

    def mount() -> None:
        subprocess.run([*vfsd, "mount", str(home), str(mountpoint)], check=True)

    Store.create(home).close()
    places = []
    for number, port in enumerate(ports):
        clock = tmp_path / f"clock-{number}"
        clock.write_text("0")
        places.append(Place(f"cam{number}", port, clips[0], home, clock))
    first, second, third = places
    mount()
    began = time.time()
    try:
        for place in places:
            place.start("camera")
            place.start("recorder")
        with Store.open(home) as store:
            step = SECONDS / 6
            for place in places:
                wait_for(partial(growing_frames, store, place.name))
            time.sleep(step)
            first.kill("recorder")
            first.start("recorder")
            time.sleep(step)
            second.kill("camera")
            second.clip = clips[1]  # the next one sends HEVC
            second.start("camera")
            time.sleep(step)
            pid = daemon_of(mountpoint)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            subprocess.run(["umount", "-l", str(mountpoint)], check=True)
            mount()
            for place in places:
                wait_for(partial(growing_frames, store, place.name))
            time.sleep(step)
            third.clock.write_text("3600")
            time.sleep(step)
            third.clock.write_text("0")
            time.sleep(step)
            for place in places:
                wait_for(partial(growing_frames, store, place.name))
                files = sorted((mountpoint / place.name).rglob("*.mp4"))
                assert files
                assert files[0].stat().st_size
    finally:
        for place in places:
            if "recorder" in place.running:
                place.end()
        subprocess.run([*vfsd, "umount", str(mountpoint)], check=True)
    lasted = time.time() - began
    with Store.open(home) as store:
        assert not store.recordings()
        for place in places:
            check(store, place, lasted)
        codecs = {store[name].codec for name in store if name.startswith("cam1/")}
        assert codecs == {"h264", "hevc"}


def check(store: Store, place: Place, lasted: float) -> None:
    """Compare the numbers in the pictures with the gaps of the timeline."""
    line = store.timeline(place.name)
    shown = []
    for part in line.parts:
        numbers = [read_frame_number(frame.data) for frame in part.video.iterate()]
        assert numbers == [(numbers[0] + n) % FRAMES for n in range(len(numbers))], part
        shown.append((part.origin_ns, part.clock, part.video.codec, numbers))
    gaps, lost = line.gaps(at_least=0.5), 0
    for (at, clock, codec, numbers), (later, later_clock, next_codec, following) in pairwise(shown):
        if codec != next_codec:
            continue  # another camera, whose numbers begin again
        passed = round((later - at) / NS * RATE) - len(numbers)
        missing = (following[0] - numbers[-1] - 1) % FRAMES
        # Without a gap no frame is missing, and as many as a gap is long are.  Times of arrival
        # are later by a changing delay, above all those of the first packets.
        assert {clock, later_clock} <= {CaptureClock.RTCP, CaptureClock.ARRIVAL}
        slack = 2 if {clock, later_clock} == {CaptureClock.RTCP} else 2 + RATE
        apart = (passed - missing + slack) % FRAMES
        assert passed >= -slack, (place.name, passed)
        assert apart <= 2 * slack, (place.name, missing, passed)
        lost += passed
    frames = sum(len(numbers) for *_, numbers in shown)
    missing_seconds = sum((end - start).total_seconds() for start, end in gaps)
    print(
        f"{place.name}: {len(shown)} videos, {frames} frames, {len(gaps)} gaps of "
        f"{missing_seconds:.1f} s with {lost} frames, {line.start} to {line.end}"
    )
    assert len(gaps) <= 1, gaps
    assert missing_seconds < LONGEST_GAP
    assert frames / RATE + missing_seconds >= lasted - LONGEST_GAP
