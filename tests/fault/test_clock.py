"""A clock that is set back and forward between operations must not change their results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.remembered_reads import region_read, remember
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.derive.derived_data import layout_history, rollback_layouts
from vfsd.derive.tuner import TuningBudget
from vfsd.errors import ForbiddenError
from vfsd.maintenance import fsck
from vfsd.maintenance.age import RetentionExecutor
from vfsd.tiling import Rect

YEAR_NS = 365 * 86_400 * 1_000_000_000


class Clock:
    """The clock of the machine, set to another time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = time.time_ns
        self.off = 0
        monkeypatch.setattr(time, "time_ns", lambda: right() + self.off)

    def set_forward(self, years: float) -> None:
        self.off += round(years * YEAR_NS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        yield opened
        assert fsck.run(opened.parts, deep=True) == []


def test_layout_order(store: Store, clock: Clock) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    frames = range(len(video))
    one_second = (0, 0.9)
    video.tiles.retile("uniform:2x2", span=one_second, jobs=1)
    clock.set_forward(-2)
    video.tiles.retile("uniform:1x2", span=one_second, jobs=1)
    made = layout_history(store.parts, video.info)
    assert [segment.layout.count for segment in made] == [4, 2]
    assert [segment.retired_ns is None for segment in made] == [False, True]
    for years in (5, -9):
        clock.set_forward(years)
        rollback_layouts(store.parts, video.info, frames)
    assert [one.retired_ns is None for one in layout_history(store.parts, video.info)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("years", one_in(2, [-3, 3]))
def test_tune_and_undo(store: Store, clock: Clock, years: float) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    remember(store, video, region_read(video, range(30), Rect(0, 0, 64, 64)), times=200)
    clock.set_forward(years)
    remember(store, video, region_read(video, range(30), Rect(0, 0, 64, 64)), times=200)
    made = store.tune(budget=TuningBudget(seconds=60))
    assert made
    clock.set_forward(-2 * years)
    assert store.undo().id == made[-1].id
    newest, *_ = store.catalog.decisions()
    assert newest.id == made[-1].id
    assert newest.undone_ns is not None


def test_age_after_clock_jump(store: Store, clock: Clock) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.policy.set("delete-after=30d")
    ager = RetentionExecutor(store.parts, [video])
    assert not ager.plan().due
    clock.set_forward(2)
    with pytest.raises(ForbiddenError, match="jumped ahead"):
        ager.plan()
    store.ingest(FOLDER / "portrait.mp4")  # is recorded with the wrong time
    clock.set_forward(-2)
    with pytest.raises(ForbiddenError, match="behind"):
        ager.plan()
    assert "traffic.mp4" in store


@pytest.mark.thorough
def test_eviction_ignores_clock(store: Store, clock: Clock) -> None:
    """Segments that the last reads used stay, regardless of the clock."""
    video = store.ingest(FOLDER / "traffic.mp4")
    clock.set_forward(4)
    video.renditions.make((160, 120), jobs=1)
    clock.set_forward(-4)
    used = video.renditions.make((80, 60), jobs=1)
    for _ in range(5):
        video.read(frames=range(0, 60), size=(80, 60), psnr=20)
    gone = video.budget.set(str(sum(segment.size for segment in used) + 1))
    assert gone
    assert not {one.id for one in gone} & {one.id for one in used if one.first_frame < 60}
