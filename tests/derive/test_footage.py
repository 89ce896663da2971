"""The model of a video that policies receive, against the real cost of its reads."""

from __future__ import annotations

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.detections import Detection
from vfsd.derive.catalog_world import box_world
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.policy import Query, Tiling, wanted_tiles
from vfsd.tiling.policy.worlds import LabelBoxes

CAR = (40, 50, 80, 90)
MAN = (200, 160, 220, 200)


def seen(store: Store, clip: str = "traffic.mp4") -> Video:
    """A car in all frames, and a person in the second second."""
    video = store.ingest(FOLDER / clip)
    video.labels.add([Detection(at, "car", CAR) for at in range(len(video))], "test")
    video.labels.add([Detection(at, "man", MAN) for at in range(30, 60)], "test")
    video.labels.add([Detection(at, "red", CAR) for at in (70, 71)], "test")
    return video


def untiled_seconds(video: Video, frames: range) -> float:
    return video.explain(frames=frames).untiled_seconds


@pytest.mark.parametrize("clip", ["traffic.mp4", "open-gop.mkv", "odd-size.webm", "transport.ts"])
def test_cost_of_the_original_equals_plans(store: Store, clip: str) -> None:
    """This includes seconds that begin between key frames, and reads from the middle of one."""
    video = store.ingest(FOLDER / clip)
    world = box_world(context_of(video), [])
    whole = frozenset([Rect(0, 0, video.original.media.width, video.original.media.height)])
    for frames in (range(len(video)), range(0, 20), range(37, 38), range(20, 55)):
        query = Query(frames, whole)
        told = sum(world.decode(sot, query, None) for sot in world.touched(query))
        assert told == pytest.approx(untiled_seconds(video, frames), rel=0.05)


def test_predicted_cost_of_tiles_equals_their_plan(store: Store) -> None:
    video = seen(store)
    region = Rect(40, 50, 80, 90)
    video.tiles.retile("80+240x96+144")
    world = box_world(context_of(video), [])
    query = Query(range(len(video)), frozenset([region]))
    segments = store.catalog.segments(video.info)
    made = [Tiling.whole(segment.layout) for segment in segments]
    told = sum(world.decode(sot, query, made[sot]) for sot in world.touched(query))
    plan = video.explain(region=region)
    assert told < 0.7 * plan.untiled_seconds
    assert told == pytest.approx(plan.seconds, rel=0.6)  # the bytes of that tile are not known
    whole = [world.making_cost(sot, tiling).bytes for sot, tiling in enumerate(made)]
    assert sum(whole) == pytest.approx(sum(segment.size for segment in segments), rel=0.02)


def test_boxes_equal_the_index(store: Store) -> None:
    video = seen(store)
    world = box_world(context_of(video), ["car", "car & red", "man"])
    assert [sorted(map(str, world.labels(sot))) for sot in world.sots] == [
        ["car"],
        ["car", "man"],
        ["car", "car & red"],
        ["car"],
    ]
    both = Query(range(120), frozenset(["car & red"]))
    assert world.touched(both) == [2]
    assert world.touched(Query(range(120), frozenset(["man", "car & red"]))) == [1, 2]
    assert world.touched(Query(range(0, 70), both.aims)) == []
    assert world.touched(Query(range(1, 120, 40), frozenset(["man"]))) == [1]
    assert box_world(context_of(video), ["man"], within=range(0, 30)).labels(1) == frozenset()


@pytest.mark.parametrize("clip", ["traffic.mp4", "portrait.mp4"])
def test_tiles_around_boxes_cover_reads_of_them(store: Store, clip: str) -> None:
    video = store.ingest(FOLDER / clip)
    rng = np.random.default_rng(1)
    boxes = [
        (int(x), int(y), int(x + w), int(y + h))
        for x, y, w, h in zip(
            rng.integers(0, video.width - 60, 30),
            rng.integers(0, video.height - 60, 30),
            rng.integers(5, 50, 30),
            rng.integers(5, 50, 30),
            strict=True,
        )
    ]
    for at, box in enumerate(boxes[:3]):
        video.labels.add([Detection(at, "it", box)], "test")
    world = box_world(context_of(video), ["it"])
    tiling = world.tiling_around(0, frozenset(["it"]))
    assert tiling is not None
    media = video.original.media
    for box in boxes[:3]:
        needed = needed_area(media, "rgb24", Rect(*box), None)
        assert set(tiling.layout.covering(needed)) <= set(tiling.tiles)
    assert len(tiling.tiles) < tiling.layout.count


def test_wanted_tiles_are_those_with_boxes() -> None:
    layout = TileLayout.cut_at(320, 240, [80, 160], [96])
    wanted = LabelBoxes(np.array([3]), np.array([[90, 10, 100, 20]]))
    assert wanted_tiles(layout, wanted, 0).tiles == (1,)
