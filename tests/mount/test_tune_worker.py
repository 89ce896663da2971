"""Automatic tuning by the worker process of real mounts."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sample_videos.encoding import Encoding
from sample_videos.scene import Scene
from sample_videos.writing import write
from tests.mount.conftest import Mounted
from tests.mount.test_lifecycle import gone
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.model import Segment
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import NotFoundError
from vfsd.maintenance import fsck
from vfsd.mount import control
from vfsd.mount import tune_scheduler as tuner_module
from vfsd.mount.background_work import ForegroundReads
from vfsd.mount.tune_scheduler import BackgroundTuner

pytestmark = pytest.mark.mount

TUNER = "user.vfsd.tuner"
WIDTH, HEIGHT, FRAMES = 960, 544, 120
REGION = "160x128+320+192"
PATIENCE = 240.0
"""Seconds; the machine may be busy with other tests."""
SLOWLY = 20
"""Percent of a core: slow enough for a test to interrupt the work."""


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip with one key frame, so that single frames are expensive to decode."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write(Scene(width=WIDTH, height=HEIGHT, frames=FRAMES), Encoding(gop=FRAMES), path)
    return path


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, clip: Path) -> Path:
    """A template store with the verified clip."""
    path = tmp_path_factory.mktemp("filled") / "store"
    with new_store(path) as store:
        store.ingest(clip, "v.mp4").verify()
    return path


@pytest.fixture(scope="session")
def well_read(tmp_path_factory: pytest.TempPathFactory, filled: Path) -> Path:
    """A template store with a clip that was read so often that tiles pay off."""
    place = Place(tmp_path_factory.mktemp("read"), filled)
    place.settle_on(tune=False)
    place.mount()
    try:
        place.read_a_lot()
    finally:
        place.unmount()
    return place.store


def wait(
    condition: Callable[[], bool],
    why: Callable[[], str],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, why()
        meanwhile()
        time.sleep(0.05)


def is_under_way(state: str) -> bool:
    return state.startswith("making") or "share of the CPU" in state


class Place(Mounted):
    """A copy of a store with settings that ignore the load of the machine."""

    def __init__(self, root: Path, filled: Path) -> None:
        super().__init__(root)
        shutil.rmtree(self.store)
        shutil.copytree(filled, self.store)
        self.settle_on()

    def settle_on(self, **settings: object) -> None:
        values = {"verify": False, "tune": True, "tune_max_load": 100} | settings
        StoreSettings(**values).save(self.store / "config.toml")  # type: ignore[arg-type]

    def read(self, first: int, region: str = REGION) -> bytes:
        return (self.at / f"v.mp4@/frames={first}-{first + 10},roi={region}.rgb").read_bytes()

    def read_a_lot(self) -> None:
        """Read more than enough for tiles to pay off."""
        for turn in range(3):
            for first in range(turn, FRAMES - 10, 7):
                self.read(first)

    def state(self) -> str:
        return os.getxattr(self.at, TUNER).decode()

    def segments(self) -> list[Segment]:
        with Store.open(self.store, read_only=True) as store:
            return store.catalog.segments(store["v.mp4"].info)

    def wait_long_for(self, condition: Callable[[], bool], what: str) -> None:
        wait(
            condition,
            lambda: f"{what}; {self.state()}; the log says: {self.log.read_text()}",
            self.raise_priority,
        )

    def wait_for_the_middle(self) -> None:
        """Wait until the worker is making tiles or waiting for its CPU share."""
        self.wait_long_for(lambda: is_under_way(self.state()), "nothing is made")

    def met_in_the_middle(self) -> int:
        """Mount, wait until tiles are being made, and return the process id of the worker."""
        self.settle_on(tune_cpu=SLOWLY)
        self.mount()
        self.wait_for_the_middle()
        worker = self.worker()
        assert worker is not None
        return worker

    def go_on_to_the_end(self) -> None:
        """Mount again, make the remaining tiles, and unmount."""
        self.settle_on()
        self.mount()
        self.wait_until_through()
        self.unmount()

    def wait_until_through(self) -> None:
        self.wait_long_for(lambda: bool(self.segments()), "no tiles yet")
        self.wait_long_for(lambda: self.state() == "idle", "it does not come to an end")

    def worker(self) -> int | None:
        """The process id of the tuning worker."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if b"vfsd.mount.tune_worker" in words and os.fsencode(self.store) in words:
                    return int(entry.name)
        return None

    def raise_priority(self) -> None:
        """Give the worker normal priority; behind all other tests it might wait for minutes."""
        worker = self.worker()
        with contextlib.suppress(OSError):  # it has just ended, or this needs a capability
            if worker is not None:
                os.sched_setscheduler(worker, os.SCHED_OTHER, os.sched_param(0))
                Path(f"/proc/{worker}/autogroup").write_text("0")

    def findings(self) -> set[str]:
        """Findings of fsck in the store, except for garbage that a killed process left."""
        with Store.open(self.store) as store:
            found = {one.check for one in fsck.run(store.parts, deep=True)} - {"garbage"}
            fsck.run(store.parts, repair=True)
            return found | {one.check for one in fsck.run(store.parts, deep=True)}


@contextlib.contextmanager
def unmounting(place: Place) -> Iterator[Place]:
    """Unmount the place after the block if it is still mounted."""
    yield place
    with contextlib.suppress(NotFoundError):
        place.unmount()


@pytest.fixture
def place(tmp_path: Path, filled: Path) -> Iterator[Place]:
    """A place without logged reads."""
    with unmounting(Place(tmp_path, filled)) as made:
        yield made


@pytest.fixture
def read_place(tmp_path: Path, well_read: Path) -> Iterator[Place]:
    """A place with enough logged reads for tiles to pay off."""
    with unmounting(Place(tmp_path, well_read)) as made:
        yield made


def decibels(one: bytes, other: bytes) -> float:
    """PSNR of all samples."""
    left, right = (np.frombuffer(data, np.uint8).astype(np.float64) for data in (one, other))
    error = float(np.mean(np.square(left - right)))
    return 10 * math.log10(255**2 / max(1e-9, error))


# ------------------------------------------------------------------------------ automatic tiles


def test_tiles_made_during_reads(place: Place) -> None:
    place.mount()
    firsts = range(0, FRAMES - 10, 20)
    before = {first: place.read(first) for first in firsts}
    wrong: list[int] = []
    over = threading.Event()

    def keep_reading() -> None:
        while not over.wait(2.5):  # with time for the worker in between
            for first in firsts:
                if decibels(place.read(first), before[first]) < 35:
                    wrong.append(first)

    place.read_a_lot()
    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        place.wait_until_through()
    finally:
        over.set()
        reader.join()
    segments = place.segments()
    assert wrong == []
    for first in firsts:
        assert decibels(place.read(first), before[first]) >= 35
    place.unmount()
    assert place.findings() == set()
    log = place.log.read_text()
    assert all(f"'v.mp4' {one.first_frame}-{one.end_frame}" in log for one in segments), log
    with Store.open(place.store) as store:
        video = store["v.mp4"]
        exact = video.read(frames=range(0, 10), region=(320, 192, 480, 320), psnr=float("inf"))
        assert exact.data.tobytes() == before[0]
        tiled = range(segments[-1].first_frame, segments[-1].first_frame + 10)
        found = video.explain(frames=tiled, region=(320, 192, 480, 320))
        assert found.seconds < 0.5 * found.untiled_seconds


def test_unread_video(read_place: Place, clip: Path) -> None:
    with Store.open(read_place.store) as store:
        store.ingest(clip, "unread.mp4").verify()
    read_place.mount()
    read_place.wait_until_through()
    with Store.open(read_place.store, read_only=True) as store:
        assert store.catalog.segments(store["unread.mp4"].info) == []


# -------------------------------------------------------------------------------- yielding


def test_paused_during_reads(read_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for period in ("_TICK_SECONDS", "_IDLE_TICK_SECONDS", "_CATALOG_SECONDS", "_LOAD_SECONDS"):
        monkeypatch.setattr(tuner_module, period, 0.1)
    read_place.settle_on(tune_cpu=SLOWLY)
    foreground = ForegroundReads()
    with (
        Store.open(read_place.store) as store,
        contextlib.closing(BackgroundTuner(store, foreground)) as tuner,
    ):
        with foreground.waiting():
            tuner.start()
            wait(lambda: "reads" in tuner.state, lambda: tuner.state)
            time.sleep(0.5)  # enough time to begin
            assert "reads" in tuner.state
            assert read_place.segments() == []
        wait(lambda: is_under_way(tuner.state), lambda: tuner.state, read_place.raise_priority)
        with foreground.waiting():
            wait(lambda: "reads" in tuner.state, lambda: tuner.state)
            time.sleep(1)  # it may have been publishing a segment
            there = read_place.segments()
            time.sleep(1)
            assert read_place.segments() == there
        wait(
            lambda: len(read_place.segments()) > len(there),
            lambda: tuner.state,
            read_place.raise_priority,
        )


def test_mount_reads_pause_tuning(read_place: Place) -> None:
    read_place.mount()

    def is_told() -> bool:
        read_place.read(3)
        return "reads" in read_place.state()

    read_place.wait_long_for(is_told, "it does not wait")
    read_place.wait_until_through()


def test_outside_quiet_hours(read_place: Place) -> None:
    hour = time.localtime().tm_hour
    read_place.settle_on(tune_quiet_hours=f"{(hour + 6) % 24}-{(hour + 12) % 24}")
    read_place.mount()
    read_place.wait_long_for(
        lambda: "quiet hours" in read_place.state(), "it does not mind the hour"
    )
    assert read_place.segments() == []


def test_byte_budget(read_place: Place) -> None:
    read_place.settle_on(tune_bytes=1)
    read_place.mount()
    read_place.wait_long_for(
        lambda: "tune_bytes" in read_place.log.read_text(), "the log says nothing of it"
    )
    read_place.wait_long_for(lambda: read_place.state() == "idle", "it goes on")
    assert read_place.segments() == []


@pytest.mark.parametrize("how", ["setting", "option"])
def test_tuning_disabled(read_place: Place, how: str) -> None:
    if how == "setting":
        read_place.settle_on(tune=False, compress=False)
        read_place.mount()
    else:
        read_place.mount("ro")
    assert read_place.state() == "off"
    assert read_place.worker() is None
    read_place.unmount()
    assert read_place.segments() == []


# ---------------------------------------------------------------------------- compressing later


def test_compression_of_raw_tiles(place: Place) -> None:
    with Store.open(place.store) as store:
        video = store["v.mp4"]
        video.budget.set("none")
        raw = video.tiles.retile(
            "uniform:2x2", span=(0, 2), settings=TileSettings("lossless", quality=0)
        )
        size = sum(segment.size for segment in raw)
    place.settle_on(tune=False)
    place.mount()
    place.wait_long_for(lambda: place.state() != "idle", "it does not look")
    place.wait_long_for(lambda: place.state() == "idle", "it does not come to an end")
    assert sum(segment.size for segment in place.segments()) == size
    with Store.open(place.store) as store:
        store["v.mp4"].budget.set(2 * size)
        store["v.mp4"].tiles.retile("uniform:1x1", span=(3, 4), settings=TileSettings("lossless"))
    place.wait_long_for(
        lambda: sum(segment.size for segment in place.segments()) < size / 2,
        "nothing is compressed",
    )
    place.wait_long_for(lambda: place.state() == "idle", "it goes on")
    assert "compressed 'v.mp4'" in place.log.read_text()
    assert place.findings() == set()
    with Store.open(place.store) as store:
        video = store["v.mp4"]
        assert np.array_equal(
            video.read(span=(0, 2), psnr=99).data, video.read(span=(0, 2), psnr=math.inf).data
        )


# ------------------------------------------------------------------------- renditions by policy


def lacks_rendition(place: Place) -> bool:
    with Store.open(place.store, read_only=True) as store, store.catalog.reading() as seen:
        return bool(seen.retention.lacking_browser())


@pytest.mark.thorough
def test_browser_rendition_by_policy(place: Place) -> None:
    """It is made while the store is mounted, and once."""
    place.mount()
    place.wait_long_for(lambda: place.state() == "idle", "it does not come to rest")
    with Store.open(place.store) as store:
        store.move("v.mp4", "cam1/v.mp4")
        store.set_policy("cam1", "browser=h264:320")
    place.wait_long_for(lambda: not lacks_rendition(place), "no rendition yet")
    line = "made a rendition of 'cam1/v.mp4' for browsers"
    place.wait_long_for(lambda: line in place.log.read_text(), "the log says nothing of it")
    with Store.open(place.store) as store:
        video = store["cam1/v.mp4"]
        assert video.views.playable(["h264"]).origin == "original"  # but wider than the policy says
        assert {one.picture for one in store.catalog.renditions(video.info)} == {(320, 182)}
        video.budget.set("0")
        assert store.catalog.renditions(video.info) == []
        video.budget.set("none")
    (place.at / "cam1/other").mkdir()  # a change of the tree: the mount looks again
    place.wait_long_for(lambda: place.state() == "idle", "it does not come to rest")
    assert place.findings() == set()
    with Store.open(place.store) as store:
        assert store.catalog.renditions(store["cam1/v.mp4"].info) == []


@pytest.mark.thorough
def test_killed_while_making_a_browser_rendition(place: Place) -> None:
    with Store.open(place.store) as store:
        store.set_policy("v.mp4", "browser=h264:640")
    worker, pid = place.met_in_the_middle(), place.pid
    assert lacks_rendition(place)
    os.kill(pid, signal.SIGKILL)
    wait(lambda: gone(worker) and gone(pid), lambda: "a process goes on")
    control.unmount(place.at)
    assert place.findings() == set()
    assert lacks_rendition(place)
    place.settle_on()
    place.mount()
    place.wait_long_for(lambda: not lacks_rendition(place), "no rendition yet")
    place.unmount()
    assert place.findings() == set()


# -------------------------------------------------------------------------- unmounts and kills


def test_unmount_during_tuning(read_place: Place) -> None:
    worker, pid = read_place.met_in_the_middle(), read_place.pid
    began = time.monotonic()
    control.unmount(read_place.at)
    assert time.monotonic() - began < control.DRAIN_SECONDS
    wait(lambda: gone(worker) and gone(pid), lambda: "a process goes on")
    assert read_place.findings() == set()
    read_place.go_on_to_the_end()
    assert read_place.findings() == set()


def test_killed_mount(read_place: Place) -> None:
    worker, pid = read_place.met_in_the_middle(), read_place.pid
    os.kill(pid, signal.SIGKILL)
    wait(lambda: gone(worker) and gone(pid), lambda: "a process goes on")
    control.unmount(read_place.at)
    assert read_place.findings() == set()
    read_place.go_on_to_the_end()
    assert read_place.findings() == set()


def test_killed_worker(read_place: Place) -> None:
    worker = read_place.met_in_the_middle()
    os.kill(worker, signal.SIGKILL)
    read_place.wait_long_for(
        lambda: "left alone" in read_place.log.read_text(), "the log says nothing of it"
    )
    assert len(read_place.read(5)) == 10 * 160 * 128 * 3
    read_place.unmount()
    assert read_place.findings() == set()
