"""More values than a database takes in one statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from tests.catalog.counting import counted
from tests.catalog.make import add_segments, add_video
from vfsd.catalog import Catalog, Transaction
from vfsd.catalog.video_query import VideoFilter, VideoQuery
from vfsd.core.budgets import Pin
from vfsd.core.model import Role

MANY = 700
_VARIABLES = 600
"""What SQLite is told to take here, so that more are there soon."""


@contextmanager
def writing(catalog: Catalog) -> Iterator[Transaction]:
    with catalog.writing() as change:
        driver = change.tree._connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, _VARIABLES)
        yield change


@pytest.mark.parametrize("all_of_them", [True, False])
def test_objects_that_nothing_refers_to(catalog: Catalog, all_of_them: bool) -> None:
    keys = [f"{number:064x}" for number in range(MANY)]
    with writing(catalog) as change:
        kept = add_video(change, "a.mp4", key="f" * 64)
        for key in keys:
            change.objects.record(key, 1, now_ns=1)
        asked = None if all_of_them else [*keys, kept.digest]
        assert sorted(change.objects.forget_unreferenced(asked)) == keys
        assert change.objects.sizes().keys() == {kept.digest}


@pytest.mark.thorough
def test_segments(catalog: Catalog) -> None:
    with writing(catalog) as change:
        video = add_video(change, "a.mp4", key="f" * 64, frames=MANY)
        numbers = [one.id for one in add_segments(change, video, MANY, role=Role.JOINED)]
        change.segments.retire(numbers, now_ns=9)
        change.tiling_decisions.note_undone(numbers, now_ns=9)
        assert all(one.retired_ns == 9 for one in change.segments.all())
        change.segments.restore(numbers)
        assert all(one.retired_ns is None for one in change.segments.all())
        assert {one.id for one in change.segments.sharing(numbers)} == set(numbers)
        change.segments.delete(numbers)
        assert change.segments.all() == []
        assert change.videos.physicals(video.id) == [video.original]


def test_pins(catalog: Catalog) -> None:
    with writing(catalog) as change:
        video = add_video(change, "a.mp4", frames=MANY)
        pins = [
            change.derived_usage.pin(Pin(0, video.id, range(at, at + 1), None, None, 1))
            for at in range(MANY)
        ]
        change.derived_usage.unpin(one.id for one in pins)
        assert change.derived_usage.pins(None) == []


@pytest.mark.thorough
def test_finding_videos_takes_twice_as_long_among_twice_as_many(catalog: Catalog) -> None:
    steps = []
    for start, stop in ((0, 100), (100, 200)):
        with catalog.writing() as change:
            for number in range(start, stop):
                video = add_video(change, f"{number}.mp4", key=f"{number:064x}", frames=1)
                change.videos.add_tags(video.id, ["all", "night"])
                change.videos.set_metadata(video.id, {"site": 3})
        with catalog.reading() as seen, counted(seen.tree._connection) as found:
            query = VideoQuery(
                lambda: nullcontext(seen.tree._connection),
                VideoFilter(tags=frozenset({"all", "night"}), metadata={"site": 3}),
            )
            assert len(query) == stop
        steps.append(found.count)
    assert steps[1] < 2.2 * steps[0]
