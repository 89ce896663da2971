"""Proposals that follow from reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.remembered_reads import label_read, region_read, remember
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.derive.proposals import Proposal, _newest_queries, _query_without, by_value
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.policy import Query

FIRST, SECOND = range(0, 30), range(30, 60)
CORNER = Rect(0, 0, 64, 64)
ENOUGH = 10


@pytest.fixture
def video(store: Store, wide_clip: Path) -> Video:
    return store.ingest(wide_clip)


def test_frequently_read_region_gets_a_tile(store: Store, video: Video) -> None:
    remember(store, video, region_read(video, FIRST, CORNER), times=ENOUGH)
    (one,) = store.proposals([video.name])
    assert one.plan.frames == FIRST
    assert [one.plan.layout.tile(tile) for tile in one.plan.stored] == [CORNER]
    assert [(reason.region, reason.reads) for reason in one.reasons] == [(CORNER, ENOUGH)]
    untiled = video.explain(frames=FIRST).untiled_seconds
    assert one.spent == pytest.approx(ENOUGH * untiled, rel=0.05)
    assert 0.5 * one.spent < one.saved < one.spent
    assert one.seconds > untiled
    assert one.reads == ENOUGH
    assert one.present == frozenset()


def test_frequently_read_labels_get_tiles_at_their_boxes(store: Store, video: Video) -> None:
    video.labels.add([Detection(at, "car", (500, 200, 560, 240)) for at in range(60)], "test")
    video.labels.add([Detection(at, "man", (20, 400, 50, 460)) for at in SECOND], "test")
    read = label_read(video, range(60), "car", "man")
    remember(store, video, read, times=ENOUGH)
    first, second = sorted(store.proposals(), key=lambda one: one.plan.frames.start)
    assert (first.plan.frames, second.plan.frames) == (FIRST, SECOND)
    car, man = Rect(500, 200, 560, 240), Rect(20, 400, 50, 460)
    for proposal, boxes in ((first, [car]), (second, [car, man])):
        stored = set(proposal.plan.stored)
        assert all(stored.issuperset(proposal.plan.layout.covering(box)) for box in boxes)
        assert len(stored) < proposal.plan.layout.count
    assert {reason.label for reason in second.reasons} == {"car", "man"}


@pytest.mark.thorough
def test_existing_tiles_are_not_proposed(store: Store, video: Video) -> None:
    remember(store, video, region_read(video, range(60), CORNER), times=ENOUGH)
    proposals = store.proposals()
    assert len(proposals) == 2
    video.tiles.retile([one.plan for one in proposals[:1]])
    assert [one.plan for one in store.proposals()] == [proposals[1].plan]
    # Another layout may serve the reads about as well.
    video.tiles.retile("64+896x64+476")
    assert store.proposals() == []


def test_useless_tiles_are_replaced(store: Store, video: Video) -> None:
    video.tiles.retile("480+480x540")
    remember(store, video, region_read(video, FIRST, Rect(470, 100, 500, 130)), times=3 * ENOUGH)
    (one,) = store.proposals()
    active = store.catalog.segments(video.info)
    assert one.present == {active[0].id}
    assert one.saved > one.seconds
    remember(store, video, region_read(video, FIRST, CORNER), times=1)
    assert len(store.proposals()) == 1


def test_reads_of_whole_frames_propose_nothing(store: Store, video: Video) -> None:
    whole = region_read(video, FIRST, video.original.media.frame_rect)
    remember(store, video, whole, times=10 * ENOUGH)
    assert store.proposals() == []
    remember(store, video, region_read(video, FIRST, CORNER), times=ENOUGH)
    (one,) = store.proposals()
    assert one.reads == ENOUGH


def test_reads_before_an_undo_do_not_count(store: Store, video: Video) -> None:
    read = region_read(video, range(60), CORNER)
    remember(store, video, read, times=ENOUGH)
    first, second = store.tune()
    store.undo(second.id)
    assert store.proposals() == []
    remember(store, video, read, times=ENOUGH)
    (again,) = store.proposals()
    assert (again.plan.frames, again.reads) == (second.frames, ENOUGH)
    store.undo(first.id)
    assert [one.plan.frames for one in store.proposals()] == [second.frames]


def test_new_tiles_use_the_settings_of_the_newest(store: Store, video: Video) -> None:
    remember(store, video, region_read(video, FIRST, CORNER), times=ENOUGH)
    (one,) = store.proposals()
    assert one.settings == TileSettings()
    video.tiles.retile("480+480x540", span=(1, 2), settings=TileSettings("fast", psnr=42.0))
    (one,) = store.proposals()
    assert one.settings == TileSettings("fast", psnr=42.0)


def test_proposed_tiles_meet_the_psnr_of_reads(tmp_path: Path, wide_clip: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.settings.with_text("minimum_psnr", "43").save(store.parts.directory.settings)
    with Store.open(tmp_path / "store") as store:
        video = store.ingest(wide_clip)
        video.tiles.retile("480+480x540", settings=TileSettings("fast", psnr=41.0))
        remember(store, video, region_read(video, FIRST, CORNER), times=4 * ENOUGH)
        (one,) = store.proposals()
        assert one.settings.psnr == 43
        store.tune()
        (source,) = video.explain(frames=FIRST, region=CORNER).sources
        assert source.segment is not None


def test_videos_without_reads_are_skipped(store: Store, wide_clip: Path) -> None:
    one, other = (store.ingest(wide_clip, name) for name in ("a.mp4", "b.mp4"))
    remember(store, one, region_read(one, FIRST, CORNER), times=ENOUGH)
    assert {proposal.video.name for proposal in store.proposals()} == {"a.mp4"}
    assert store.proposals(["b.mp4"]) == []
    remember(store, other, region_read(other, FIRST, CORNER), times=2 * ENOUGH)
    assert [proposal.video.name for proposal in store.proposals()] == ["b.mp4", "a.mp4"]


# ------------------------------------------------------------------------------------ the parts


def test_proposals_are_sorted_by_value(video: Video) -> None:
    def worth(saved: float, seconds: float) -> Proposal:
        plan = PlannedSegment(FIRST, TileLayout.untiled(960, 540))
        present = frozenset[int]()
        return Proposal(video.info, plan, TileSettings(), (), 1, seconds, 1, 9.0, saved, present)

    dear, cheap, best = worth(5, 5), worth(1, 0.5), worth(4, 1)
    assert by_value([dear, cheap, best]) == [best, cheap, dear]


spans = st.tuples(st.integers(0, 90), st.integers(1, 30)).map(lambda at: range(at[0], sum(at)))


@settings(deadline=None)
@given(spans, st.integers(1, 7), st.sets(st.integers(0, 11)))
def test_excluded_seconds_are_removed_from_a_query(
    frames: range, step: int, seconds: set[int]
) -> None:
    query = Query(frames[::step], frozenset(["car"]))
    gone = [range(10 * at, 10 * at + 10) for at in sorted(seconds)]
    rest = list(_query_without(query, gone))
    kept = [at for at in query.frames if not any(at in some for some in gone)]
    assert [at for part in rest for at in part.frames] == kept
    assert all(part.frames and part.aims == query.aims for part in rest)


def test_newest_reads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfsd.derive.proposals._MAX_WEIGHED", 10)
    sots = [range(at, at + 10) for at in range(0, 100, 10)]
    told = [Query(range(at, at + 20), frozenset(["car"])) for at in (0, 5, 10, 20, 30, 40)]
    assert list(_newest_queries(told, sots)) == told[2:]
