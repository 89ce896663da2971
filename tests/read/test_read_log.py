"""Logging of reads: through the API, by scans and detectors, across processes."""

from __future__ import annotations

import gc
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.core.detections import Detection
from vfsd.core.model import LoggedRead
from vfsd.core.view_request import View
from vfsd.labels.detectors.motion import MotionDetector
from vfsd.read.read_log import ReadLog, ReadTiming, describe_planned_read
from vfsd.tiling import Rect

NAME = "traffic.mp4"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A closed store with one video."""
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / NAME)
    return tmp_path / "store"


def remembered(place: Path) -> list[LoggedRead]:
    """Logged reads, the oldest first."""
    with Store.open(place, read_only=True) as store:
        return list(store.catalog.reads())[::-1]


def test_every_kind_of_read_is_logged(place: Path) -> None:
    before = time.time_ns()
    with Store.open(place) as store:
        video = store[NAME]
        video[7]
        video.read(span=(1, 2), region=(0, 0, 160, 120), size=(80, 60), fps=5)
        video[10:20, 100:200, 40:80].numpy()
        next(video.iterate(frames=range(50, 90)))
        video.frames([90, 3, 3])
    found = remembered(place)
    assert [(one.kind, one.first_frame, one.end_frame, one.frames) for one in found] == [
        ("api", 7, 8, 1),
        ("api", 30, 55, 5),
        ("api", 10, 20, 10),
        ("api", 50, 51, 1),
        ("api", 3, 91, 3),
    ]
    assert found[1].region == Rect(0, 0, 160, 120)
    assert found[1].size == (80, 60)
    assert found[2].region == Rect(40, 100, 80, 200)
    assert all(one.region == Rect(0, 0, 320, 240) for one in (found[0], found[3]))
    assert all(before <= one.at_ns <= time.time_ns() and one.seconds > 0 for one in found)
    assert all(one.source == "original" and not one.tiles for one in found)


def test_logged_costs_equal_explain(place: Path) -> None:
    with Store.open(place) as store:
        video = store[NAME]
        video.tiles.retile("uniform:2x2")
        region = (170, 130, 310, 230)
        told = video.explain(region=region)
        video.read(region=region)
        video.read(region=region, psnr=math.inf)
    tiled, untiled = remembered(place)
    assert (tiled.pixels, tiled.untiled_pixels) == (told.work.pixels, told.untiled.pixels)
    assert tiled.pixels < tiled.untiled_pixels
    assert tiled.untiled_predicted == pytest.approx(told.untiled_seconds)
    assert (tiled.source, tiled.segments, tiled.tiles) == ("tiles", 4, 4)
    assert tiled.original_frames == 0
    assert (untiled.source, untiled.segments, untiled.original_frames) == ("original", 0, 120)
    assert untiled.pixels == untiled.untiled_pixels == told.untiled.pixels


def test_scans_log_their_query(place: Path) -> None:
    with Store.open(place) as store:
        video = store[NAME]
        video.tiles.retile("uniform:2x2", span=(0, 1))
        boxes = [Detection(at, "car", (10, 20, 60, 50)) for at in (0, 5, 40)]
        boxes.append(Detection(5, "red", (10, 20, 60, 50)))
        video.labels.add(boxes, "test")
        video.labels.add_box(119, "truck", (0, 0, 9, 9), source="another")
        assert len(list(video.scan([["car", "truck"], ["red"]]).crops(size=(16, 16)))) == 2
        assert len(list(video.scan(source="test").crops())) == 4
    one, all_ = remembered(place)
    assert one.labels == (("car", "truck"), ("red",))
    assert (one.kind, one.first_frame, one.end_frame, one.size) == ("scan", 5, 6, (16, 16))
    assert one.region == Rect(10, 20, 60, 50)
    assert (one.segments, one.tiles, one.original_frames) == (1, 1, 0)
    assert one.pixels == 6 * 160 * 128 < one.untiled_pixels
    assert (all_.labels, all_.size, all_.frames) == (None, None, 4)
    assert (all_.source, all_.original_frames) == ("both", 1)


def test_reads_of_detectors_have_their_own_kind(place: Path) -> None:
    with Store.open(place) as store:
        store[NAME].labels.detect(MotionDetector(), span=(0, 1))
    assert {one.kind for one in remembered(place)} == {"detect"}


def test_read_only_store_logs_nothing(place: Path) -> None:
    with Store.open(place, read_only=True) as store:
        store[NAME][0]
    assert remembered(place) == []


def test_queries_are_not_logged_as_reads(place: Path) -> None:
    with Store.open(place) as store:
        video = store[NAME]
        video.explain(region=(0, 0, 16, 16))
        assert len(context_of(video).table) == 120
        video.frames([])
    assert remembered(place) == []


def test_logged_reads_are_removed_with_their_video(place: Path, tmp_path: Path) -> None:
    with Store.open(place) as store:
        store.ingest(FOLDER / NAME, "b.mp4")
        store[NAME][0]
        store["b.mp4"][1]
    with Store.open(place) as store:
        kept = store["b.mp4"].info
        store.remove(NAME)
        assert [one.video_id for one in store.catalog.reads()] == [kept.id]
        stale = store["b.mp4"]
        stale[3]  # pending when its bytes are removed
        store.ingest(FOLDER / "open-gop.mkv", "b.mp4", replace=True)
    assert remembered(place) == []


@pytest.mark.parametrize(("most", "kept"), [(5, [4, 5, 6, 7, 8]), (1 << 64, [*range(9)])])
def test_newest_reads_are_kept(place: Path, most: int, kept: list[int]) -> None:
    (place / "config.toml").write_text(f"remembered_reads = {most}\n")
    with Store.open(place) as store:
        for number in range(9):
            store[NAME][number]
    assert [one.first_frame for one in remembered(place)] == kept


def test_find_and_delete_logged_reads(place: Path) -> None:
    with Store.open(place) as store:
        store.ingest(FOLDER / NAME, "b.mp4")
        for name in (NAME, "b.mp4", "b.mp4"):
            store[name][0]
    with Store.open(place) as store:
        catalog = store.catalog
        video = store["b.mp4"].info
        newest, before, first = catalog.reads()
        assert newest.id > before.id > first.id
        assert list(catalog.reads(video)) == [newest, before]
        assert list(catalog.reads(since=newest.at_ns)) == [newest]
        assert catalog.forget_reads(video) == 2
        assert list(catalog.reads()) == [first]
        assert catalog.forget_reads() == 1
        assert list(catalog.reads()) == []


def test_open_store_writes_its_log_periodically(place: Path) -> None:
    with Store.open(place) as store:
        store[NAME][0]
        end = time.monotonic() + 120
        while not list(store.catalog.reads()):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_fork_logs_only_its_own_reads(place: Path) -> None:
    with Store.open(place) as store:
        video = store[NAME]
        video[1]
        child = os.fork()
        if not child:
            code = 1
            try:
                video[2]
                store.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        video[3]
    assert sorted(one.first_frame for one in remembered(place)) == [1, 2, 3]


def test_busy_catalog_drops_the_log_entry_not_the_read(place: Path) -> None:
    with Store.open(place) as store:
        video = store[NAME]
        other = sqlite3.connect(place / "catalog.sqlite3", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert video[5].index == 5
        store.close()
        assert time.monotonic() - began < 60  # far less than the lock is held
        other.execute("ROLLBACK")
        other.close()
    assert remembered(place) == []


def test_dropped_reads_are_counted(place: Path) -> None:
    with Store.open(place) as store:
        video, reads = store[NAME], store.tools.read_log
        assert isinstance(reads, ReadLog)
        plan = plan_view(context_of(video), View(frames=(0, 1, 1)))
        read = describe_planned_read(
            "api", plan, context_of(video).table, context_of(video).costs, ReadTiming(1, 0.0)
        )

        def account() -> LoggedRead:
            raise OSError

        for _ in range(10_000):  # more than the queue holds
            reads.note(video.info.digest, lambda: read)
        reads.note(video.info.digest, account)
        reads.close()
        assert 0 < len(list(store.catalog.reads())) == 10_001 - reads.dropped


def test_reads_of_an_unclosed_store_are_logged(place: Path) -> None:
    program = (
        "import sys\n"
        "from vfsd.api.store import Store\n"
        "store = Store.open(sys.argv[1])\n"
        "store['traffic.mp4'][11]\n"
    )
    subprocess.run([sys.executable, "-c", program, place], check=True, timeout=300)
    assert [one.first_frame for one in remembered(place)] == [11]


def test_logged_reads_do_not_notify_watchers(place: Path) -> None:
    with Store.open(place) as store, Store.open(place) as other:
        watch = other.catalog.watch()
        assert watch.changed()
        assert not watch.changed()
        store[NAME][0]
        store.tools.read_log.close()
        assert len(list(other.catalog.reads())) == 1
        assert not watch.changed()
        store.catalog.tag(store[NAME].info, "night")
        assert watch.changed()
        watch.close()


def test_sql_view_of_reads(place: Path) -> None:
    with Store.open(place) as store:
        store[NAME][4]
    with closing(sqlite3.connect(place / "catalog.sqlite3")) as catalog, catalog:
        rows = catalog.execute("SELECT name, kind, first_frame, frames FROM v_reads").fetchall()
    catalog.close()
    assert rows == [(NAME, "api", 4, 1)]


@pytest.mark.parametrize(
    "begun",
    one_in(
        3,
        [
            "next(one := iter(video))",
            "(one := video.views.open('t=0-1,size=64x48.mp4')).read(100)",
            "next(one := video.scan(roi=(0, 0, 100, 100)).batches(8, (32, 32)))",
        ],
    ),
)
def test_program_exit_during_a_read(place: Path, begun: str) -> None:
    """The read is logged when threads can no longer be started."""
    program = (
        "import sys\n"
        "from vfsd import Store\n"
        "video = Store.open(sys.argv[1])['traffic.mp4']\n"
        f"{begun}\n"
        "raise SystemExit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, place], timeout=300)
    assert done.returncode == 7


@pytest.mark.thorough
def test_unclosed_stores_leave_no_resources(place: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        return len(os.listdir("/proc/self/fd")), names.count("vfsd-reads")

    before = held()
    for number in range(5):
        Store.open(place)[NAME][number]
    end = time.monotonic() + 120
    while held() > before:
        assert time.monotonic() < end, f"{held()} descriptors and threads, not {before}"
        time.sleep(0.1)
    assert len(remembered(place)) == 5
