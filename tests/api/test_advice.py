"""Layout advice: comparison of strategies, credit for existing tiles, and usable layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.detections import Detection
from vfsd.derive.catalog_world import PlannerReading
from vfsd.derive.what_if import (
    MAX_QUERIES,
    STRATEGIES,
    Advice,
    WhatIfCase,
    compare_strategies,
    sots_with_segments,
)
from vfsd.derive.workload import WorkloadQuery
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.tiling import LayoutRules, Rect
from vfsd.tiling.cost import DEFAULT_COSTS, ENCODE_FAST
from vfsd.tiling.policy import ByteDensity, CostRates, Query, VideoProfile

RATES = CostRates(DEFAULT_COSTS["h264"], DEFAULT_COSTS["fast"], ENCODE_FAST, ByteDensity(0.01, 0.0))
CORNER = Rect(0, 0, 64, 64)
CAR, MAN = (40, 50, 80, 90), (200, 160, 220, 200)


@pytest.fixture
def video(store: Store) -> Video:
    """A video with a car in all frames, and a person in the second second."""
    found = store.ingest(FOLDER / "traffic.mp4")
    found.labels.add([Detection(at, "car", CAR) for at in range(len(found))], "test")
    found.labels.add([Detection(at, "man", MAN) for at in range(30, 60)], "test")
    return found


def untiled(advice: Advice) -> float:
    return advice["none"].seconds


def test_advised_layouts_reduce_cost(store: Store, video: Video) -> None:
    before = video.read(region=CORNER, psnr=math.inf)
    workload = [WorkloadQuery(region=CORNER, times=200), WorkloadQuery("car", times=200)]
    advice = video.tiles.advise(workload)
    assert advice.best.name == "foreseen"
    assert advice.best.seconds < untiled(advice)
    video.tiles.retile(advice.layouts())
    assert video.explain(region=CORNER).time_gain > 2
    after = video.read(region=CORNER)
    assert 30 <= after.psnr < 100
    assert np.abs(after.data.astype(int) - before.data).mean() < 2
    crops = list(video.scan("car").crops())
    exact = list(video.scan("car", psnr=math.inf).crops())
    assert len(crops) == len(exact) == len(video)
    for one, other in zip(crops, exact, strict=True):
        assert np.abs(one.data.astype(int) - other.data).mean() < 5
    again = video.tiles.advise(workload)
    assert again["present"].making.sum() == 0
    assert again["present"].tilings.keys() == advice.best.tilings.keys()
    assert again.best.seconds <= again["present"].seconds < untiled(again)
    store.close()  # closing the store writes its read log
    with Store.open(store.path, read_only=True) as reopened:
        scans = [read for read in reopened.catalog.reads() if read.labels == (("car",),)]
        cheap = min(scans, key=lambda read: read.predicted)
        assert cheap.predicted < cheap.untiled_predicted / 2


def test_few_reads_justify_no_tiles(video: Video) -> None:
    advice = video.tiles.advise([WorkloadQuery("car"), WorkloadQuery("dog", times=3)])
    assert repr(advice).startswith(f"<Advice: 4 queries, {len(advice.sots)} SOTs, ")
    assert f"best is {advice.best.name!r}, 1.00 of the time without tiles" in repr(advice)
    assert repr(advice.best).startswith(f"<Outcome {advice.best.name!r}: ")
    assert advice.best.name == "none"
    assert advice.layouts() == []
    assert (advice.queries, advice.idle) == (4, 3)
    assert advice.relative(advice.best) == 1
    assert [one.name for one in advice.outcomes] == [
        one.name for one in STRATEGIES if one.name != "present"
    ]
    with pytest.raises(NotFoundError, match="got 'best'"):
        advice["best"]


def test_label_query_in_a_region_selects_intersecting_boxes(video: Video) -> None:
    left, right = Rect(0, 0, 100, 240), Rect(100, 0, 320, 240)
    advice = video.tiles.advise(
        [
            WorkloadQuery("car", region=left),
            WorkloadQuery("car", region=right),
            WorkloadQuery(["car", "man"], region=right),
            WorkloadQuery("man", span=(1, 2)),
            WorkloadQuery([["car"], ["man"]]),
        ]
    )
    car, nothing, man, same, never = advice["none"].decoding.tolist()
    assert car > man == same > 0
    assert nothing == never == 0


def test_logged_reads_are_a_workload(store: Store, video: Video) -> None:
    with pytest.raises(NotFoundError, match="has no reads"):
        video.tiles.advise()
    video.read(span=(0, 1))
    store.close()
    with Store.open(store.path) as opened:
        with pytest.raises(NotFoundError, match="only reads of whole frames"):
            opened.advise(video.name)
        for _ in range(3):
            opened[video.name].read(region=CORNER, frames=range(60))
    with Store.open(store.path, read_only=True) as opened:
        advice = opened.advise(video.name)
        assert advice.queries == 3
        assert advice.regions == 1
        told = opened[video.name].tiles.advise(
            [WorkloadQuery(region=CORNER, frames=range(60), times=3)]
        )
        for one, other in zip(advice.outcomes, told.outcomes, strict=True):
            assert one.seconds == pytest.approx(other.seconds)
        assert opened[video.name].tiles.advise(newest=2).queries == 2


def test_error_names_the_query_outside_the_video(video: Video) -> None:
    good = WorkloadQuery("car")
    for wrong, named in (
        (WorkloadQuery(region=Rect(300, 0, 400, 64)), "region"),
        (WorkloadQuery("car", frames=range(100, 121)), "121"),
        (WorkloadQuery("car", span=(60, 70)), "60"),
    ):
        with pytest.raises(OutOfRangeError, match=f"query 1: .*{named}"):
            video.tiles.advise([good, wrong])
    with pytest.raises(UsageError, match="got 0"):
        video.tiles.advise([])
    with pytest.raises(UsageError, match=str(MAX_QUERIES + 1)):
        video.tiles.advise([WorkloadQuery("car", times=MAX_QUERIES + 1)])


def test_segments_of_other_lengths_are_separate_sots(store: Store, video: Video) -> None:
    whole = range(len(video))
    assert sots_with_segments(video.tiles.sequences(), []) == (video.tiles.sequences(), {})
    video.tiles.retile("uniform:2x2", span=(0, 2))
    long = video.tiles.sequences(seconds_each=2)[0]
    video.tiles.retile(
        "uniform:3x2", span=(0, 1)
    )  # has a part of the frames of the long one, and is newer
    first, second = store.catalog.segments(video.info)
    sots, there = sots_with_segments(video.tiles.sequences(), store.catalog.segments(video.info))
    assert [frame for sot in sots for frame in sot] == list(whole)
    assert {sots[sot] for sot in there} == {first.frames, second.frames}
    assert {str(one.layout) for one in there.values()} == {str(first.layout), str(second.layout)}
    assert long.stop == 60


def test_hundreds_of_regions_are_merged(video: Video) -> None:
    rng = np.random.default_rng(5)
    corners = rng.integers(0, 250, (200, 2)).tolist()
    footage = VideoProfile(640, 480, [range(0, 30), range(30, 60)], [{}, {}], LayoutRules())
    queries = [Query(range(60), frozenset([Rect(x, y, x + 90, y + 80)])) for x, y in corners]
    told: list[tuple[int, int]] = []
    advice = compare_strategies(
        WhatIfCase(footage, RATES, PlannerReading(), queries),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert advice.regions == len({tuple(corner) for corner in corners})
    assert advice.clusters == 8
    assert advice.best.seconds <= min(one.seconds for one in advice.outcomes)
    assert advice.best.seconds < untiled(advice)
    assert told == [(done, len(told)) for done in range(len(told))]
    assert len(told) == len(advice.outcomes) * len(queries)
