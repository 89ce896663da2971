"""Renditions that are proposed because whole frames were read in a size repeatedly."""

from __future__ import annotations

import math

import pytest

from sample_videos import FOLDER
from tests.read.test_renditions import psnr_of
from tests.support.composed_tiles import take_tiles
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.model import TilingReason
from vfsd.tiling import Rect


@pytest.fixture
def video(store: Store) -> Video:
    take_tiles(store)  # otherwise hardly anything pays off for such small frames
    return store.ingest(FOLDER / "traffic.mp4")  # 320x240


def read_often(video: Video, size: tuple[int, int], times: int = 15) -> None:
    for _ in range(times):
        video.read(size=size)


def test_frequently_read_size_becomes_a_rendition(store: Store, video: Video) -> None:
    read_often(video, (80, 60))
    proposals = store.proposals()
    assert [one.plan.frames for one in proposals] != []
    assert {str(one.plan.layout) for one in proposals} == {"80x60"}
    assert proposals[0].reasons == (TilingReason(None, None, 15, (80, 60)),)
    assert all(0 < one.saved < one.spent for one in proposals)
    assert store.catalog.renditions(video.info) == [], "proposals make nothing"
    made = store.tune()
    assert len(made) == len(proposals)
    renditions = store.catalog.renditions(video.info)
    assert sorted(one.segment_id or 0 for one in made) == sorted(one.id for one in renditions)
    assert store.proposals() == []
    exact = video.read(size=(80, 60), format="gray", psnr=math.inf)
    found = video.read(size=(80, 60), format="gray")
    assert 36 <= found.psnr < 100
    assert psnr_of(found.data, exact.data) > 37  # luma of limited range is stretched to gray


def test_one_rendition_serves_its_fractions(store: Store, video: Video) -> None:
    for _ in range(12):
        video.read(size=(80, 60))
        video.read(size=(40, 30))
    assert {str(one.plan.layout) for one in store.proposals()} == {"80x60"}


def test_undone_promotion_is_not_proposed_again(store: Store, video: Video) -> None:
    read_often(video, (80, 60))
    made = store.tune()
    for decision in made:
        assert store.undo(decision.id).undone_ns is not None
    assert store.catalog.renditions(video.info) == []
    assert store.proposals() == []


@pytest.mark.thorough
def test_sizes_and_regions_are_separate(store: Store, video: Video) -> None:
    for _ in range(15):
        video.read(region=Rect(0, 0, 64, 64))
        video.read(size=(80, 60))
    layouts = {str(one.plan.layout) for one in store.proposals()}
    assert "80x60" in layouts
    assert any(layout != "80x60" for layout in layouts)
    store.tune()
    assert store.catalog.segments(video.info) != []
    assert store.catalog.renditions(video.info) != []


def test_odd_sizes_use_a_rendition_of_twice_the_size(store: Store, video: Video) -> None:
    read_often(video, (75, 55))
    assert {str(one.plan.layout) for one in store.proposals()} == {"150x110"}


@pytest.mark.thorough
def test_reads_in_full_size_propose_nothing(store: Store, video: Video) -> None:
    for _ in range(12):
        video.read(size=(320, 240))
        video.read()
        video.read(size=(640, 480))
    assert store.proposals() == []
