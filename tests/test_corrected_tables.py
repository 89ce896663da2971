"""Frame tables that a full decode corrects, while others read by the old one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.holes import FRAMES, HOLE, make_clip
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.detections import Detection
from vfsd.core.view_request import View
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import NotFoundError, OutdatedError, UsageError


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_clip(tmp_path / "holes.mp4")


def shades(video: Video, frames: range) -> list[int]:
    return [int(picture[24, 32, 0]) for picture in video.read(frames=frames).data]


@pytest.fixture
def video(store: Store, clip: Path) -> Video:
    return store.ingest(clip, "a.mp4")


@pytest.fixture
def elsewhere(store: Store) -> Iterator[Store]:
    with Store.open(store.parts.directory.root) as opened:
        yield opened


def test_decoders_that_are_warm_do_not_count_by_the_old_table(store: Store, clip: Path) -> None:
    """It is corrected by another process, as the one of a mount that verifies."""
    video = store.ingest(clip, "a.mp4")
    assert len(video) == FRAMES
    video.read(frames=range(40))  # leaves a decoder
    with Store.open(store.parts.directory.root) as other:
        assert other["a.mp4"].verify()
        right = shades(other["a.mp4"], range(60, 115))
    again = store["a.mp4"]
    assert len(again) == FRAMES - 1
    assert shades(again, range(60, 115)) == right
    assert right[0] == pytest.approx(2 * 61, abs=2)


@pytest.mark.parametrize(("start", "first"), [(HOLE, HOLE), (-71, FRAMES - 1 - 71)])
def test_a_slice_ends_where_the_frames_end_that_are_counted_meanwhile(
    video: Video, start: int, first: int
) -> None:
    found = [frame.index for frame in video.iterate(frames=slice(start, None))]
    assert found == list(range(first, FRAMES - 1))


def test_of_no_frames_all_else_is_still_looked_at(video: Video) -> None:
    assert list(video.iterate(frames=range(5, 5))) == []
    with pytest.raises(UsageError):
        video.iterate(frames=range(5, 5), region=(5, 5, 1, 1))


def test_a_last_frame_that_ends_too_early_is_corrected(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4", "a.mp4")
    duration = video.duration
    path = store.parts.directory.root / CATALOG
    with closing(sqlite3.connect(path)) as catalog, catalog:
        catalog.execute("UPDATE physical_videos SET end_pts = end_pts - 511")
    with Store.open(store.parts.directory.root) as other:
        early = other["a.mp4"]
        assert early.duration < duration
        assert early.verify()
        assert other["a.mp4"].duration == duration
        assert not other["a.mp4"].verify()


def test_a_read_that_finds_the_hole_is_right_beside_decoders_that_are_warm(
    store: Store, clip: Path
) -> None:
    video = store.ingest(clip, "a.mp4")
    video.read(frames=range(20))
    video.read(frames=range(100, 119))
    found = shades(video, range(30, 115))
    assert len(video) == FRAMES - 1
    assert found[0] == pytest.approx(60, abs=2)
    assert found[-1] == pytest.approx(2 * 115, abs=2)


def test_who_has_the_video_open_gets_no_tiles_with_other_numbers(
    video: Video, elsewhere: Store
) -> None:
    before = shades(video, range(60, 80))
    other = elsewhere["a.mp4"]
    assert other.verify()
    other.budget.set("none")
    other.tiles.retile("uniform:1x1")
    other.renditions.make((32, 24))
    assert shades(video, range(60, 80)) == before
    assert plan_view(context_of(video), View(frames=(60, 80, 1))).tiled == ()


def test_numbers_are_found_anew_when_a_read_corrects_the_table(video: Video) -> None:
    times = [number / 25 for number in range(44, 56)]
    found = video.frames_at(times)
    assert len(video) == FRAMES - 1
    again = video.frames_at(times)
    assert found.index.tolist() == again.index.tolist()
    assert (found.data == again.data).all()


def test_negative_numbers_count_from_the_end_that_there_is(video: Video) -> None:
    found = video.frames([*range(44, 54), -2])
    assert found.index[-1] == len(video) - 2 == FRAMES - 3


def test_iterating_by_numbers_ends_where_they_would_change(video: Video) -> None:
    frames = video.iterate(frames=range(40, 60))
    given = [int(frame.data[24, 32, 0]) for frame in islice(frames, HOLE - 40)]
    with pytest.raises(OutdatedError, match="counted again"):
        next(frames)
    assert given == pytest.approx([2 * number for number in range(40, HOLE)], abs=2)
    assert len(shades(video, range(40, 60))) == 20


def test_iterating_through_everything_leaves_out_the_hole_alone(video: Video) -> None:
    found = [(frame.pts, int(frame.data[24, 32, 0])) for frame in video.iterate()]
    assert len(found) == FRAMES - 1
    assert sorted(found) == found


def test_a_frame_has_its_own_time_while_another_thread_corrects_the_table(video: Video) -> None:
    frames = video.iterate(frames=range(60, 100))
    next(frames)
    video.frames(range(45, 55))  # meets the hole
    frame = next(frames)
    ticks = context_of(video).table.pts()
    shown = shades(video, range(len(video)))
    assert shown[ticks.tolist().index(frame.pts)] == int(frame.data[24, 32, 0])


def test_boxes_stay_with_their_frames(video: Video, elsewhere: Store) -> None:
    frames = [0, HOLE - 1, HOLE, HOLE + 1, 90, FRAMES - 1]
    boxes = [Detection(frame, "x", (frame, 0, frame + 9, 5), track=1) for frame in frames]
    video.labels.add(boxes, "me", examined=[range(40, 60), range(FRAMES - 2, FRAMES)])
    other = elsewhere["a.mp4"]
    assert other.verify()
    assert [(box.frame, box.box[0]) for box in other.labels.query()] == [
        (0, 0),
        (HOLE - 1, HOLE - 1),
        (HOLE, HOLE + 1),
        (89, 90),
        (FRAMES - 2, FRAMES - 1),
    ]
    assert [one.frames for one in other.labels.examined()] == [
        range(40, 59),
        range(FRAMES - 3, FRAMES - 1),
    ]
    for use in (
        lambda: list(video.labels.query()),
        lambda: video.labels.add(boxes, "me"),
    ):
        with pytest.raises(NotFoundError, match="renumbered"):
            use()
