"""Reads as policies are told them."""

from __future__ import annotations

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.detections import Detection
from vfsd.derive.catalog_world import box_world
from vfsd.derive.workload import LoggedQuery, queries_of_reads
from vfsd.tiling import Rect
from vfsd.tiling.policy import Aims, Query

CAR = (40, 50, 80, 90)


def seen(store: Store) -> Video:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.labels.add([Detection(at, "car", CAR) for at in range(len(video))], "test")
    video.labels.add([Detection(at, "red", CAR) for at in range(30, 60)], "test")
    return video


def asked(store: Store, video: Video) -> list[LoggedQuery]:
    store.tools.read_log.close()
    return queries_of_reads(store.catalog.reads(video.info), video.original.media)


def aims(*them: str | Rect) -> Aims:
    return frozenset(them)


def test_scans_ask_for_labels(store: Store) -> None:
    video = seen(store)
    other = store.ingest(FOLDER / "portrait.mp4")
    other.labels.add_box(0, "truck", (0, 0, 9, 9), source="test")
    list(video.scan("car", frames=range(10, 20)).crops())
    list(video.scan(["truck", "car"], frames=range(20, 30)).crops())
    list(video.scan([["car", "truck"], ["red"]]).tiles())
    list(video.scan(roi="red", frames=range(30, 60)).tiles())
    assert [one.query for one in asked(store, video)] == [
        Query(range(10, 20), aims("car")),
        Query(range(20, 30), aims("car", "truck")),
        Query(range(30, 60), aims("car|truck & red")),
        Query(range(30, 60), aims("red")),
    ]


def test_a_region_is_where_its_pixels_come_from(store: Store) -> None:
    video = store.ingest(FOLDER / "portrait.mp4")
    media = video.original.media
    assert media.rotation == 90
    video.read(frames=range(5, 9), region=(0, 20, 40, 100))
    list(video.scan(roi=(0, 20, 40, 100), frames=range(9)).tiles())  # whole frames come of it
    one, other = asked(store, video)
    assert one.query == Query(range(5, 9), aims(Rect(16, media.height - 48, 112, media.height)))
    assert one.query.aims == other.query.aims
    assert one.at_ns < other.at_ns


def test_frames_that_are_apart_are_told_apart(store: Store) -> None:
    video = seen(store)
    region = (0, 0, 64, 64)
    video.read(frames=range(3, 90, 9), region=region)
    video.read(span=(0, 2), fps=5, region=region)
    video.read(frames=range(7, 8), region=region)
    video.read(span=(0, 1), fps=60, region=region)
    assert [list(one.query.frames) for one in asked(store, video)] == [
        list(range(3, 90, 9)),
        list(range(0, 55, 6)),
        [7],
        list(range(30)),
    ]


def test_whole_frames_ask_for_nothing_that_tiles_could_give(store: Store) -> None:
    video = seen(store)
    video.read(span=(0, 1))
    list(video.scan("car", frames=range(20)).frames())
    video.read(frames=range(1), region=(0, 0, 320, 240))
    assert asked(store, video) == []
    assert len(list(store.catalog.reads(video.info))) == 3


def test_labels_are_written_so_that_they_are_understood_again(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.labels.add([Detection(3, "a & b", CAR)], "test")
    list(video.scan(["a & b"]).crops())
    (one,) = asked(store, video)
    assert one.query.aims == aims('"a & b"')
    assert box_world(context_of(video), one.query.aims).touched(one.query) == [0]
