"""What goes takes its bytes along; what was left behind by others is for `vfsd gc` to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sample_videos import FOLDER
from tests.test_ageing import put, run
from vfsd import check
from vfsd.making.planned import PlannedSegment, TileSettings
from vfsd.making.retile import Retiler
from vfsd.store import Store
from vfsd.tiling import TileLayout
from vfsd.videos.video import Video

LEFT_BEHIND = "00" * 32


@pytest.fixture
def video(store: Store) -> Video:
    """With tiles, former tiles and a rendition; beside it the row of an object of a process that
    was killed before it could delete it."""
    found = store.ingest(FOLDER / "portrait.mp4", "cam1/a.mp4")
    found.budget.set("none")
    found.retile("uniform:2x2")
    found.retile("uniform:1x2")
    found.render((96, 160))
    with store.catalog.writing() as change:
        change.objects.record(LEFT_BEHIND, 1, now_ns=1)
    return found


def removed(store: Store, video: Video) -> None:
    store.remove("cam1", recursive=True)


def overwritten(store: Store, video: Video) -> None:
    store.ingest(FOLDER / "av1.mp4", video.name, replace=True)


def linked_over(store: Store, video: Video) -> None:
    store.ingest(FOLDER / "av1.mp4", video.name, link=True, replace=True)


def moved_over(store: Store, video: Video) -> None:
    store.ingest(FOLDER / "av1.mp4", "b.mp4")
    store.move("b.mp4", video.name, replace=True)


def aged(store: Store, video: Video) -> None:
    put(store, "old.mp4", 100, "delete-after=30d").render((160, 120))
    assert [entry.name for entry in run(store)] == ["old.mp4"]


def tiled_again(store: Store, video: Video) -> None:
    video.retile("uniform:2x1")


def tiled_one_by_one(store: Store, video: Video) -> None:
    one = Retiler(store.parts, store.tools.pool, video.info, video.table, TileSettings())
    media = video.original.media
    layout = TileLayout.untiled(media.width, media.height)
    for frames in video.sequences():
        one.make(PlannedSegment(frames, layout))


@pytest.mark.parametrize(
    "happens",
    [removed, overwritten, linked_over, moved_over, aged, tiled_again, tiled_one_by_one],
)
def test_only_what_went_is_looked_at(
    store: Store, video: Video, happens: Callable[[Store, Video], None]
) -> None:
    happens(store, video)
    with store.catalog.reading() as seen:
        needed, recorded = seen.objects.referenced(), seen.objects.sizes().keys()
    assert set(store.parts.objects.all_keys()) == needed
    assert recorded == needed | {LEFT_BEHIND}
    assert check.collect(store.parts).objects == [LEFT_BEHIND]
