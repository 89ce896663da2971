"""Metadata and attributes are found by the very same value: type and all, on every server."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.catalog.make import add_video
from vfsd.catalog import Catalog
from vfsd.catalog.schema import videos
from vfsd.detections import Detection, DetectionColumns
from vfsd.errors import UsageError
from vfsd.model import LogicalVideo

STORED: list[Any] = [3, 3.7, 0, 1, -5, True, False, "3", "gate", "true", "", "é", 2**62]
ASKED: list[Any] = [*STORED, 3.0, 0.0, "0", "Gate", 4]
KEYS = ["n", 'q"k', "a.b", "a\\b", "it's", "[0]", "é", "$"]
IMPOSSIBLE: list[Any] = [None, [3], 10**30, -(10**30), float("nan"), float("inf"), "\ud800"]


def video_of(catalog: Catalog, number: int) -> LogicalVideo:
    with catalog.writing() as change:
        return add_video(change, f"values/{number:02}.mp4", key=f"{number:064}")


def same(one: object, other: object) -> bool:
    """As JSON has it: truth is no number, of which there is one kind."""
    return (isinstance(one, bool), one) == (isinstance(other, bool), other)


def test_values_are_the_same_or_not(there: Catalog) -> None:
    for number, value in enumerate(STORED):
        there.set_metadata(video_of(there, number), value=value)
    video = there.video("values/00.mp4")
    boxes = [
        Detection(number, "car", (0, 0, 5, 5), attributes={"value": value})
        for number, value in enumerate(STORED)
    ]
    there.add_detections(video, DetectionColumns.from_detections(boxes), "s")
    for asked in ASKED:
        expected = [number for number, value in enumerate(STORED) if same(value, asked)]
        names = there.find(metadata={"value": asked}).names()
        assert names == [f"values/{number:02}.mp4" for number in expected], asked
        found = there.detections(video, attributes={"value": asked})
        assert found.frames().tolist() == expected, asked
    for wrong in IMPOSSIBLE:
        with pytest.raises(UsageError):
            there.find(metadata={"value": wrong}).names()
        with pytest.raises(UsageError):
            len(there.detections(video, attributes={"value": wrong}))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_numbers_that_cannot_be_asked_for_are_not_kept(there: Catalog, value: int) -> None:
    video = video_of(there, 0)
    with pytest.raises(UsageError, match=r"site = .* is beyond 64 bits"):
        there.set_metadata(video, site=value)
    assert there.set_metadata(video, least=-(2**63), site=2**63 - 1).metadata["site"] == 2**63 - 1


def test_numbers_that_are_there_do_not_keep_others_from_changing(there: Catalog) -> None:
    video = video_of(there, 0)
    with there.writing() as change:
        change.videos._connection.execute(sa.update(videos).values(metadata={"site": 10**30}))
    assert there.set_metadata(video, lane=3).metadata == {"site": 10**30, "lane": 3}
    assert there.set_metadata(video, site=None).metadata == {"lane": 3}


def test_a_key_may_have_any_letters(there: Catalog) -> None:
    video = video_of(there, 0)
    there.set_metadata(video, **{key: number for number, key in enumerate(KEYS)})
    boxes = [
        Detection(number, "car", (0, 0, 5, 5), attributes={key: number})
        for number, key in enumerate(KEYS)
    ]
    there.add_detections(video, DetectionColumns.from_detections(boxes), "s")
    for number, key in enumerate(KEYS):
        assert there.find(metadata={key: number}).names() == ["values/00.mp4"], key
        assert there.find(metadata={key: number + 1}).names() == [], key
        found = there.detections(video, attributes={key: number})
        assert found.frames().tolist() == [number], key
