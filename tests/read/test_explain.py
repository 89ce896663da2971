"""The plan that `explain` reports is the plan of the read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.display_matrix import ORIENTATIONS, with_matrix
from tests.support.planning import REGION as PLANNED
from tests.support.planning import some_costs, some_frames, some_segments
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.explain_read import UnusedReason, find_unused_tiles
from vfsd.read.read_plan import AvailableTiles, plan_frames
from vfsd.tiling import Rect
from vfsd.tiling.cost import DecodeWork

REGION = Rect(20, 20, 60, 60)


@pytest.fixture
def video(store: Store) -> Video:
    """120 frames of 320x240 in four GOPs of 30."""
    return store.ingest(FOLDER / "traffic.mp4")


def packet_bytes(video: Video, first: int, end: int) -> int:
    return int(context_of(video).table.columns(first, end).size.sum())


def test_without_tiles_both_plans_are_equal(video: Video) -> None:
    found = video.explain(region=REGION)
    (source,) = found.sources
    assert source.segment is None
    assert source.span == range(120)
    assert (
        found.work
        == found.untiled
        == DecodeWork(1, 120, 120 * 320 * 240, packet_bytes(video, 0, 120))
    )
    assert (found.pixel_gain, found.time_gain) == (1, 1)


def test_decoded_tiles_are_counted_per_frame(video: Video) -> None:
    segments = video.tiles.retile("uniform:3x4")
    found = video.explain(region=REGION)
    assert [source.segment for source in found.sources] == segments
    assert [source.tiles for source in found.sources] == [(0,)] * 4
    tile = segments[0].cells[0].rect
    assert found.work.pixels == 120 * tile.area
    assert found.work.bytes == sum(segment.cells[0].size for segment in segments)
    assert found.untiled.pixels == 120 * 320 * 240
    assert found.pixel_gain == pytest.approx(320 * 240 / tile.area)
    assert found.time_gain > 1
    assert found.seconds == sum(source.seconds for source in found.sources)
    # All loss of a tile may be inside the region.
    share = 10 * math.log10(tile.area / REGION.area)
    worst = min(segment.cells[0].colour for segment in segments)
    assert found.plan.psnr == pytest.approx(worst - share)
    assert len(video.explain(region=REGION, psnr=math.inf).sources) == 1


def test_tiled_part_between_untiled_parts(video: Video) -> None:
    (segment,) = video.tiles.retile("uniform:3x4", span=(1, 2))
    found = video.explain(region=REGION)
    assert [(source.segment, source.span) for source in found.sources] == [
        (None, range(30)),
        (segment, range(30, 60)),
        (None, range(60, 120)),
    ]
    assert [source.work.pictures for source in found.sources] == [30, 30, 60]


def test_sparse_frames_are_counted_from_their_key_frames(video: Video) -> None:
    found = video.explain(frames=slice(5, 120, 60))
    (source,) = found.sources
    assert source.frames == (5, 65)
    assert source.work.starts == 2
    runs = context_of(video).table.decode_runs([5, 65])
    assert source.work.pictures == sum(run.end_packet - run.first_packet for run in runs)
    one = video.explain(span=(0, 4), fps=1)
    assert one.work.starts == 4
    assert one.untiled == one.work


def test_empty_selection_decodes_nothing(video: Video) -> None:
    video.tiles.retile("uniform:1x1")
    for none in (range(5, 5), slice(5, 5), range(5, 2)):
        found = video.explain(frames=none, region=REGION)
        assert found.sources == ()
        assert found.work == found.untiled == DecodeWork()
        assert found.plan.size == video.read(frames=none, region=REGION).data.shape[2:0:-1]
    with pytest.raises(OutOfRangeError):
        video.explain(frames=range(5, 5), region=(5000, 0, 5010, 10))


def test_region_outside_of_the_frame_is_refused(video: Video) -> None:
    with pytest.raises(OutOfRangeError):
        video.explain(region=(0, 0, 400, 10))


@pytest.mark.thorough
def test_explain_matches_the_saved_view(video: Video) -> None:
    found = video.views.explain_save("clip.mp4", frames=slice(20, 110))
    assert (found.made, found.frames) == ("spliced", 90)
    (copied,) = (step for step in found.steps if step.does == "copy")
    assert copied.frames.start == 30
    assert copied.bytes == packet_bytes(video, 30, copied.frames.stop)
    assert found == video.views.explain("frames=20-110.mp4")
    whole = video.views.explain_save("clip.mkv")
    assert (whole.made, whole.work, whole.psnr) == ("copied", DecodeWork(), math.inf)
    video.tiles.retile("uniform:3x4")
    scaled = video.views.explain_save("a.mp4", size=(160, 0), codec="hevc")
    assert [step.does for step in scaled.steps] == ["decode", "encode"]
    assert scaled.work == video.explain(size=(160, 120), format="yuv420p").work
    with pytest.raises(UsageError):
        video.views.explain_save("clip.h264", codec="av1")
    with pytest.raises(UsageError):
        video.views.explain(b"full.mp4")  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["90", "transpose"])
def test_ends_of_a_spliced_view_are_in_stored_orientation(
    store: Store, tmp_path: Path, way: str
) -> None:
    video = store.ingest(
        with_matrix(FOLDER / "traffic.mp4", tmp_path / "turned.mp4", ORIENTATIONS[way])
    )
    found = video.views.explain("frames=20-110.mp4")
    assert (found.made, found.frames) == ("spliced", 90)
    assert [step.does for step in found.steps].count("decode") == 2


@pytest.mark.parametrize("frames", [None, range(5, 5)])
def test_explain_fails_like_the_read(video: Video, frames: range | None) -> None:
    asked = {"frames": frames, "region": (0, 0, 51, 51), "format": "yuv420p"}
    told = []
    for way in (video.read, video.explain):
        with pytest.raises(UsageError) as caught:
            way(**asked)  # type: ignore[arg-type]
        told.append(str(caught.value))
    assert told[0] == told[1]


# ---------------------------------------------------------------------- what is not used


def why(video: Video, **asked: object) -> list[tuple[range, UnusedReason]]:
    found = video.explain(**asked)  # type: ignore[arg-type]
    used = {segment.id for source in found.sources if (segment := source.segment) is not None}
    assert not used & {one.segment.id for one in found.passed_over}
    return [(one.span, one.why) for one in found.passed_over]


def test_used_tiles_are_not_listed_as_unused(video: Video) -> None:
    video.tiles.retile("uniform:3x4")
    assert why(video, region=REGION) == []
    assert why(video, region=REGION, psnr=math.inf) == []  # exact reads never use tiles
    assert why(video, frames=range(5, 5), region=REGION) == []


def test_tiles_below_the_requested_psnr_are_listed(video: Video) -> None:
    (segment,) = video.tiles.retile("uniform:3x4", span=(1, 2))
    assert why(video, region=REGION, psnr=70) == [(range(30, 60), UnusedReason.QUALITY)]
    assert why(video, span=(0, 1), region=REGION, psnr=70) == []
    (one,) = video.explain(span=(1, 1.5), region=REGION, psnr=70).passed_over
    assert (one.segment, one.tiles, one.frames) == (segment, (0,), tuple(range(30, 45)))
    assert one.psnr is not None
    assert 0 < one.psnr < 70
    assert one.seconds is not None
    assert 0 < one.seconds < one.original_seconds


def test_more_expensive_tiles_are_listed_with_both_costs(video: Video) -> None:
    video.tiles.retile("uniform:3x5", span=(1, 2))
    (one,) = video.explain(span=(1, 2)).passed_over
    assert (one.span, one.why) == (range(30, 60), UnusedReason.COST)
    assert one.seconds is not None
    assert one.seconds > one.original_seconds > 0


def test_every_tiled_frame_is_used_or_listed(video: Video) -> None:
    """The generated tiles partly cover each other, and some are missing."""
    rng = np.random.default_rng(5)
    seen: set[UnusedReason] = set()
    for _ in range(200):
        segments = some_segments(rng, 120, int(rng.integers(1, 6)))
        tiles = AvailableTiles(segments, some_costs(rng), luma=40.5 if rng.random() < 0.2 else 0.0)
        wanted = some_frames(rng, 120)
        view = View(region=PLANNED)
        plan = plan_frames(
            np.array(wanted), view, video.original, context_of(video).table, tiles=tiles
        )
        found = find_unused_tiles(plan, context_of(video).table, tiles)
        for segment in segments:
            used = [frame for run in plan.tiled if run.segment is segment for frame in run.frames]
            left = [frame for one in found if one.segment is segment for frame in one.frames]
            assert sorted(used + left) == [frame for frame in wanted if frame in segment.frames]
        from_tiles = {frame for run in plan.tiled for frame in run.frames}
        for one in found:
            seen.add(one.why)
            is_there = one.segment.holds(one.segment.layout.covering(PLANNED))
            assert (one.why == UnusedReason.MISSING) is not is_there
            assert (one.why == UnusedReason.QUALITY) is (is_there and tiles.luma > 0)
            if one.why == UnusedReason.OTHERS:
                assert from_tiles.issuperset(one.frames)
    assert seen == {
        UnusedReason.MISSING,
        UnusedReason.QUALITY,
        UnusedReason.OTHERS,
        UnusedReason.COST,
        UnusedReason.TIME,
    }


def test_explain_of_a_view_lists_unused_tiles(video: Video) -> None:
    video.tiles.retile("uniform:3x4", span=(1, 2))
    found = video.views.explain("roi=40x40+20+20,psnr=70,codec=h264.mp4")
    assert [(one.span, one.why) for one in found.passed_over] == [
        (range(30, 60), UnusedReason.QUALITY)
    ]
    (told,) = found.record["passed_over"]
    assert (told["frames"], told["why"], told["tiles"]) == ([30, 60], "quality", [0])
