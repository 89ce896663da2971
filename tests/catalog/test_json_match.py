"""Metadata and attributes match by exact value, including its type, on every server."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.catalog_rows import add_video
from tests.support.selection import one_in
from vfsd.catalog import Catalog
from vfsd.catalog.schema import sources, videos
from vfsd.core.detections import Detection, DetectionColumns, Source
from vfsd.core.model import LogicalVideo
from vfsd.core.retention_policy import Action, Fate, RetentionPolicy
from vfsd.errors import IntegrityError, UsageError
from vfsd.storage.original_guard import entry_of

STORED: list[Any] = [3, 3.7, 0, 1, -5, True, False, "3", "gate", "true", "", "é", 2**62]
ASKED: list[Any] = [*STORED, 3.0, 0.0, "0", "Gate", 4]
KEYS = ["n", 'q"k', "a.b", "a\\b", "it's", "[0]", "é", "$"]
IMPOSSIBLE: list[Any] = [None, [3], 10**30, -(10**30), float("nan"), float("inf"), "\ud800", "a\0b"]


def nested(levels: int) -> Any:
    """Lists nested in each other."""
    value: Any = 3
    for _ in range(levels):
        value = [value]
    return value


def video_of(catalog: Catalog, number: int) -> LogicalVideo:
    with catalog.writing() as change:
        return add_video(change, f"values/{number:02}.mp4", key=f"{number:064}")


def same(one: object, other: object) -> bool:
    """Equality of JSON values: a bool is never a number, and there is one type of number."""
    return (isinstance(one, bool), one) == (isinstance(other, bool), other)


def test_equality_of_values(there: Catalog) -> None:
    for number, value in enumerate(STORED):
        there.set_metadata(video_of(there, number), value=value)
    video = there.video("values/00.mp4")
    boxes = [
        Detection(number, "car", (0, 0, 5, 5), attributes={"value": value})
        for number, value in enumerate(STORED)
    ]
    there.detections.add(video, DetectionColumns.from_detections(boxes), "s")
    for asked in ASKED:
        expected = [number for number, value in enumerate(STORED) if same(value, asked)]
        names = there.find(metadata={"value": asked}).names()
        assert names == [f"values/{number:02}.mp4" for number in expected], asked
        found = there.detections.find(video, attributes={"value": asked})
        assert found.frames().tolist() == expected, asked
    for wrong in IMPOSSIBLE:
        with pytest.raises(UsageError):
            there.find(metadata={"value": wrong}).names()
        with pytest.raises(UsageError):
            len(there.detections.find(video, attributes={"value": wrong}))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_unsearchable_numbers_are_refused(there: Catalog, value: int) -> None:
    video = video_of(there, 0)
    with pytest.raises(UsageError, match=r"site = .* is beyond 64 bits"):
        there.set_metadata(video, site=value)
    assert there.set_metadata(video, least=-(2**63), site=2**63 - 1).metadata["site"] == 2**63 - 1


def test_existing_unsearchable_numbers_do_not_block_changes(there: Catalog) -> None:
    video = video_of(there, 0)
    with there.writing() as change:
        change.videos._connection.execute(sa.update(videos).values(metadata={"site": 10**30}))
    assert there.set_metadata(video, lane=3).metadata == {"site": 10**30, "lane": 3}
    assert there.set_metadata(video, site=None).metadata == {"lane": 3}


def test_key_may_have_any_characters(there: Catalog) -> None:
    video = video_of(there, 0)
    there.set_metadata(video, **{key: number for number, key in enumerate(KEYS)})
    boxes = [
        Detection(number, "car", (0, 0, 5, 5), attributes={key: number})
        for number, key in enumerate(KEYS)
    ]
    there.detections.add(video, DetectionColumns.from_detections(boxes), "s")
    for number, key in enumerate(KEYS):
        assert there.find(metadata={key: number}).names() == ["values/00.mp4"], key
        assert there.find(metadata={key: number + 1}).names() == [], key
        found = there.detections.find(video, attributes={key: number})
        assert found.frames().tolist() == [number], key


NO_TEXT: list[Any] = ["a\0b", "a\udc80b", "\ud83d", ["\0"], {"in": [{"\ud800": 1}]}, {"a": "\0"}]


@pytest.mark.parametrize("value", one_in(2, NO_TEXT))
def test_invalid_text_is_refused(there: Catalog, value: Any) -> None:
    video = video_of(there, 0)
    with pytest.raises(UsageError, match="part of site must not"):
        there.set_metadata(video, site=value)
    if isinstance(value, str):
        with pytest.raises(UsageError, match="a key must not"):
            there.set_metadata(video, **{value: 1})
        with pytest.raises(UsageError, match="'lane'"):
            DetectionColumns.from_detections(
                [Detection(0, "car", (0, 0, 5, 5), attributes={"lane": value})]
            )
        with pytest.raises(UsageError):
            there.find(metadata={value: 1}).names()
    assert (
        there.set_metadata(video, site="\\u0000", smile="\U0001f600").metadata["site"] == "\\u0000"
    )


def test_deeply_nested_metadata_is_refused(there: Catalog) -> None:
    video = video_of(there, 0)
    for levels in (65, 900, 100_000):
        with pytest.raises(UsageError, match="must be a JSON value"):
            there.set_metadata(video, deep=nested(levels))
        with pytest.raises(UsageError, match="parameters must be"):
            Source("s", parameters={"deep": nested(levels)})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="must be a JSON value"):
        there.set_metadata(video, endless=endless)
    there.set_metadata(video, deep=nested(64), lane=3)
    assert there.find(metadata={"lane": 3}).names() == ["values/00.mp4"]
    there.set_metadata(video, deep=None)
    source = Source("s", parameters={"deep": nested(62)})
    there.detections.add(
        video, DetectionColumns.from_detections([Detection(0, "car", (0, 0, 5, 5))]), source
    )
    (found,) = there.detections.find(video)
    assert found.source == source


def test_error_names_the_source_with_an_invalid_row(catalog: Catalog) -> None:
    video = video_of(catalog, 0)
    catalog.detections.add(
        video, DetectionColumns.from_detections([Detection(0, "car", (0, 0, 5, 5))]), "s"
    )
    for text in ("{", "[" * 100_000):
        with catalog.writing() as change:
            change.tree._connection.execute(sa.update(sources).values(parameters=text))
        with pytest.raises(IntegrityError, match=f"row 1 of {sources.name} in the catalog is"):
            list(catalog.detections.find(video))


@pytest.mark.parametrize("value", one_in(2, NO_TEXT))
def test_older_invalid_values_do_not_block_searches(there: Catalog, value: Any) -> None:
    video = video_of(there, 0)
    kept = {
        "old": value,
        "lane": 3,
        "word": "\\u0000 \\\\u0000 \\ud800",
        "smile": "\U0001f600\U0001f601",
    }
    with there.writing() as change:
        change.videos._connection.execute(sa.update(videos).values(metadata=kept | {"a\0": 1}))
    for key in ("lane", "word", "smile"):
        assert there.find(metadata={key: kept[key]}).names() == ["values/00.mp4"], key
    assert there.find(metadata={"lane": 4}).names() == []
    assert there.set_metadata(video, lane=5).metadata == kept | {"a\0": 1, "lane": 5}
    there.set_metadata(video, **{"old": None, "a\0": None})
    assert set(there.video("values/00.mp4").metadata) == {"lane", "word", "smile"}


def test_any_number_of_conditions(there: Catalog) -> None:
    video, other = video_of(there, 0), video_of(there, 1)
    words = [f"word {number}" for number in range(1100)]  # SQLite nests 1000 expressions
    values = {f"key {number}": number for number in range(1100)}
    there.tag(video, *words)
    there.tag(other, *words[1:])
    there.set_metadata(video, **values)
    there.set_metadata(other, **(values | {"key 1099": 0}))
    assert there.find(tags=set(words)).names() == ["values/00.mp4"]
    assert there.find(tags=set(words[1:])).names() == ["values/00.mp4", "values/01.mp4"]
    assert there.find(tags={*words, "another"}).names() == []
    assert there.find(metadata=values).names() == ["values/00.mp4"]


def test_tags_that_a_database_cannot_store_are_refused(there: Catalog) -> None:
    video = video_of(there, 0)
    for word in ("a\0b", "a\udc80b", "x" * 256):
        with pytest.raises(UsageError, match="a tag must"):
            there.tag(video, word)
        there.untag(video, word)
    long = "é" * 255
    assert there.tag(video, long, "two words").tags == {long, "two words"}
    assert there.find(tags={long}).names() == ["values/00.mp4"]
    assert there.find(tags={"x" * 256}).names() == []
    assert there.untag(video, long, "a\0b").tags == {"two words"}


def test_impossible_names_find_nothing_or_are_refused(there: Catalog) -> None:
    video = video_of(there, 0)
    boxes = DetectionColumns.from_detections([Detection(0, "car", (0, 0, 5, 5))])
    there.detections.add(video, boxes, "s")
    for word in ("c\0r", "c\udc80r"):
        with pytest.raises(UsageError):
            there.find(tags={word})
        with pytest.raises(UsageError):
            there.find(codec=word)
        with pytest.raises(UsageError):
            there.find(container=word)
        assert there.find(name=word).names() == []
        assert there.find(name=f"{word}/*").names() == []
        assert len(there.detections.find(video, word)) == 0
        assert len(there.detections.find(video, ["car", word])) == 1
        assert len(there.detections.find(video, source=word)) == 0
        assert there.detections.labels(video, source=word) == []
        assert there.detections.remove(video, labels=word) == 0
    with pytest.raises(UsageError, match="a tag must be"):
        there.find(tags={3})  # type: ignore[arg-type]


def test_bounds_of_any_size(there: Catalog) -> None:
    width = video_of(there, 0).original.media.display_width
    many = 2**40
    for low, high, is_in in (
        (0, many, True),
        (many, None, False),
        (-(2**63), 2**63 - 1, True),
        (width - 0.5, width + 0.5, True),
        (width + 0.4, None, False),
        (None, width - 0.4, False),
        (-1e300, float("inf"), True),
    ):
        assert len(there.find(width=(low, high))) == is_in, (low, high)
    assert len(there.find(bytes=(0.5, 1e300), seconds=(0, many), modified_ns=(0, 1e300))) == 1


def test_too_many_conditions_on_one_box_are_refused(there: Catalog) -> None:
    video = video_of(there, 0)
    words = [f"word {number}" for number in range(101)]
    with pytest.raises(UsageError, match=r"lists of labels .* got 101"):
        there.detections.find(video, [[word] for word in words])
    with pytest.raises(UsageError, match=r"attributes .* got 101"):
        there.detections.find(video, attributes=dict.fromkeys(words, 1))
    assert len(there.detections.find(video, words)) == 0
    assert len(there.detections.find(video, [[word] for word in words[1:]])) == 0


def test_displayed_texts_may_be_any_bytes(there: Catalog) -> None:
    """File names may have any bytes."""
    with there.writing() as change:
        video = add_video(change, "a\udcff.mp4")
        change.retention.add(entry_of(video, Action.LEFT, "no \0\udc80"))
        change.tree.alter(video.ino, reason="no \0\udc80")
    with there.reading() as seen:
        (entry,) = seen.retention.log()
        assert (entry.name, entry.reason) == ("a\\udcff.mp4", "no \\x00\\udc80")
        assert seen.retention.is_left(video.id, video.digest, "no \0\udc80")
        assert seen.tree.node(video.ino).reason == "no \\x00\\udc80"
    for host in ("h\0", "h\udc80"):
        assert there.costs(host) == []
    with pytest.raises(UsageError, match="keep must not"):
        RetentionPolicy(Fate.REPLACEABLE, decay_after=5, keep="c\udc80r")
