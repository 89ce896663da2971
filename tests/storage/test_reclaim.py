"""Removal deletes the bytes as well; leftovers of other processes are found by `vfsd gc`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from sample_videos import FOLDER
from tests.maintenance.test_age import put, run
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.derive.retile import Retiler
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.disk.store_layout import CATALOG
from vfsd.maintenance import fsck
from vfsd.storage.reclaim import drop_segments, reclaim_or_log
from vfsd.tiling import TileLayout

LEFT_BEHIND = "00" * 32


@pytest.fixture
def video(store: Store) -> Video:
    """A video with tiles, retired tiles and a rendition, and the row of an object whose deletion
    was interrupted by a kill."""
    found = store.ingest(FOLDER / "portrait.mp4", "cam1/a.mp4")
    found.budget.set("none")
    found.tiles.retile("uniform:2x2")
    found.tiles.retile("uniform:1x2")
    found.renditions.make((96, 160))
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
    put(store, "old.mp4", 100, "delete-after=30d").renditions.make((160, 120))
    assert [entry.name for entry in run(store)] == ["old.mp4"]


def tiled_again(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x1")


def tiled_one_by_one(store: Store, video: Video) -> None:
    one = Retiler(
        store.parts, store.tools.pool, video.info, context_of(video).table, TileSettings()
    )
    media = video.original.media
    layout = TileLayout.untiled(media.width, media.height)
    for frames in video.tiles.sequences():
        one.make(PlannedSegment(frames, layout))


def counted_anew(store: Store, video: Video) -> None:
    with closing(sqlite3.connect(store.path / CATALOG)) as catalog, catalog:
        catalog.execute("UPDATE physical_videos SET end_pts = end_pts - 1 WHERE role = 'original'")
    assert store["cam1/a.mp4"].verify()
    assert store["cam1/a.mp4"].verify() is False


@pytest.mark.parametrize(
    "happens",
    one_in(
        3,
        [
            removed,
            overwritten,
            linked_over,
            moved_over,
            aged,
            tiled_again,
            tiled_one_by_one,
            counted_anew,
        ],
    ),
)
def test_only_removed_data_is_checked(
    store: Store, video: Video, happens: Callable[[Store, Video], None]
) -> None:
    happens(store, video)
    with store.catalog.reading() as seen:
        needed, recorded = seen.objects.referenced(), seen.objects.sizes().keys()
    assert set(store.parts.objects.all_keys()) == needed
    assert recorded == needed | {LEFT_BEHIND}
    assert fsck.collect(store.parts).objects == [LEFT_BEHIND]


def test_shared_objects_are_looked_up_in_one_query(store: Store) -> None:
    for number in range(30):
        store.ingest(FOLDER / "mjpeg.avi", f"cam1/{number}.avi")
    asked: list[str] = []
    sa.event.listen(
        store.catalog._database.engine,
        "before_cursor_execute",
        lambda *what: asked.append(what[2]),
    )
    assert store.remove("cam1", recursive=True) == 30
    assert sum("FROM segments" in one and "videos.ino" in one for one in asked) == 1
    assert not list(store.parts.objects.all_keys())


def test_removal_does_not_scan_the_catalog(store: Store) -> None:
    """Neither all videos nor all checksums are read, even if some videos are linked or joined."""
    store.ingest(FOLDER / "mjpeg.avi", "linked.avi", link=True)
    plans: list[str] = []

    def explain(
        _: sa.Connection, cursor: sqlite3.Cursor, statement: str, values: Any, *__: object
    ) -> None:
        if statement.startswith(("SELECT", "DELETE")):
            asked = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            plans.extend(str(row[3]) for row in asked)

    clip = store.ingest(FOLDER / "portrait.mp4", "a.mp4")
    sa.event.listen(store.catalog._database.engine, "before_cursor_execute", explain)
    reclaim_or_log(store.parts, keys=[clip.original.object_key or ""])
    assert plans
    large = (
        "physical_videos",
        "videos",
        "nodes",
        "block_sums",
        "inspections",
        "objects",
        "segments",
    )
    assert [one for one in plans if one.startswith("SCAN") and one.split()[1] in large] == []


def test_tiles_where_only_earlier_ones_are_left(store: Store, video: Video) -> None:
    """The encoding of earlier tiles survives their end if new ones belong to it."""
    for layout in ("uniform:1x2", "uniform:2x1"):
        video.tiles.retile(layout, span=(0, 1))
    drop_segments(store.parts, store.catalog.segments(video.info))
    video.tiles.retile("uniform:2x1", span=(0, 1))
    assert len(store.catalog.segments(video.info)) == 1
