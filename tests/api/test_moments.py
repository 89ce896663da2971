"""Moments: queries, windows and files, against interval arithmetic on sets of frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.moments import When, import_moments
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.core.detections import Source
from vfsd.core.moments import Moment, MomentRow, merged_moments, unlabelled_windows
from vfsd.errors import NotFoundError, OutOfRangeError, UnknownLabelWarning, UsageError
from vfsd.labels.moment_files import MOMENT_FORMATS, read_moments, write_moments


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as made:
        made.ingest(FOLDER / "traffic.mp4", "a.mp4")  # 120 frames at 30 per second
        made.ingest(FOLDER / "variable-rate.mkv", "b.mkv")
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("moments") / "store") as made:
        made.ingest(FOLDER / "traffic.mp4", "a.mp4")
        made.ingest(FOLDER / "variable-rate.mkv", "b.mkv")
        yield made


def runs(found: list[Moment]) -> list[tuple[str, int, int]]:
    return [(one.label, one.frames.start, one.frames.stop) for one in found]


def test_add_and_query(store: Store) -> None:
    video = store["a.mp4"]
    made = video.moments.add((0.5, 1), "queue", source="anna", confidence=0.5)
    assert (made.video, made.frames, made.name) == ("a.mp4", range(15, 30), "frames=15-30")
    assert made.span == (Fraction(1, 2), Fraction(1))
    assert video.moments.query("queue") == [made]
    with video.views.open(made.name + ".mp4") as file:
        assert file.read(12)[4:8] == b"ftyp"
    video.moments.add(range(20, 40), "red light", source="bob", attributes={"lane": 3})
    video.moments.add(range(20, 40), "night", source="anna")
    # The same source, label and run again: no second one.
    video.moments.add((0.5, 1), "queue", source="anna", confidence=0.7)
    assert [one.confidence for one in video.moments.query("queue")] == [0.7]
    assert runs(video.moments.query("queue|red light")) == [
        ("queue", 15, 30),
        ("red light", 20, 40),
    ]
    assert runs(video.moments.query("red light & night")) == [
        ("night", 20, 40),
        ("red light", 20, 40),
    ]
    assert runs(video.moments.query("queue|red light & not night")) == [("queue", 15, 30)]
    assert runs(video.moments.query("lane=3")) == [("red light", 20, 40)]
    assert runs(video.moments.query(span=(1, 2))) == [("night", 20, 40), ("red light", 20, 40)]
    assert runs(video.moments.query(frames=range(19, 20))) == [("queue", 15, 30)]
    assert runs(video.moments.query(source="anna")) == [("queue", 15, 30), ("night", 20, 40)]
    assert runs(video.moments.query(min_confidence=0.6)) == [("queue", 15, 30)]
    with pytest.warns(UnknownLabelWarning, match="no label 'quue'"):
        assert video.moments.query("quue") == []
    assert [one.video for one in store.moments(names="*.mp4")] == ["a.mp4"] * 3
    store["b.mkv"].moments.add(range(3), "queue", source="anna")
    assert [one.video for one in store.moments("queue")] == ["a.mp4", "b.mkv"]
    assert video.moments.remove(labels="queue") == 1
    assert video.moments.remove(when=range(0, 39)) == 0
    assert video.moments.remove(when=range(0, 40), source="bob") == 1
    assert runs(store.moments()) == [("night", 20, 40), ("queue", 0, 3)]


def test_events_become_moments(store: Store) -> None:
    video = store["a.mp4"]
    video.labels.add(
        [(frame, "car", (10 + frame, 10, 50 + frame, 50), 0.9, 1) for frame in range(40)], "yolo"
    )
    found = video.events("inside(a, 100x100+0+0) for 5f", a="car")
    assert len(found) > 0
    assert video.moments.add_many(found, "rule", label="near") == len(found)
    assert [one.frames for one in video.moments.query("near")] == [one.frames for one in found]
    with pytest.raises(UsageError, match="need a label"):
        video.moments.add_many(found, "rule")
    with pytest.raises(UsageError, match=r"is of 'a\.mp4', not of 'b\.mkv'"):
        store["b.mkv"].moments.add_many(found, "rule", label="near")


def test_errors_change_nothing(store: Store) -> None:
    video = store["a.mp4"]
    rows: list[tuple[When, str]] = [((0, 1), "x"), (range(110, 121), "x")]
    with pytest.raises(OutOfRangeError, match="do not all exist"):
        video.moments.add_many(rows, "me")
    for when in ((9, 10), (1, 1), (-1, 2)):
        with pytest.raises((OutOfRangeError, UsageError)):
            video.moments.add(when, "x", source="me")
    for label in ("", " x", "a\nb", "x" * 300):
        with pytest.raises(UsageError):
            video.moments.add((0, 1), label, source="me")
    with pytest.raises(UsageError, match="confidence must be finite"):
        video.moments.add((0, 1), "x", source="me", confidence=float("nan"))
    with pytest.raises(UsageError, match="need one"):
        video.moments.add_many([((0, 1), "x")])
    with pytest.raises(UsageError, match="must be alternatives"):
        video.moments.remove(labels="x & y")
    assert store.moments() == []


def test_moments_follow_their_video(store: Store) -> None:
    video = store["a.mp4"]
    made = video.moments.add((0, 1), "queue", source="anna")
    store.move("a.mp4", "c.mp4")
    assert [(one.video, one.frames) for one in store.moments()] == [("c.mp4", made.frames)]
    store["c.mp4"].verify()  # which may renumber frames
    assert len(store.moments()) == 1
    store.remove("c.mp4")
    assert store.moments() == []
    with store.catalog.reading() as seen:
        assert not seen.moments.has_any(video.info.id)
    with pytest.raises(NotFoundError):
        video.moments.add((0, 1), "queue", source="anna")


def test_renumbered_frames_take_moments_along(store: Store) -> None:
    video = store["a.mp4"]
    video.moments.add(range(2, 6), "kept", source="me")
    video.moments.add(range(6, 8), "gone", source="me")
    new_of = list(range(1, 121))
    new_of[2], new_of[6], new_of[7] = -1, -1, -1
    with store.catalog.writing() as change:
        change.moments.renumber(video.info.id, np.array(new_of))
    assert runs(video.moments.query()) == [("kept", 4, 7)]


# --------------------------------------------------------------------------- sets of frames

run = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: range(pair[0], sum(pair)))
row = st.builds(
    MomentRow, run, st.sampled_from(["a", "b"]), st.sampled_from([None, 0.5]), st.just({})
)


def frames_of(rows: list[MomentRow], label: str) -> set[int]:
    return {frame for one in rows if one.label == label for frame in one.frames}


@given(st.lists(row, max_size=12))
def test_merged_moments_cover_the_same_frames(rows: list[MomentRow]) -> None:
    merged = merged_moments(rows)
    for label in ("a", "b"):
        assert frames_of(merged, label) == frames_of(rows, label)
        mine = [one.frames for one in merged if one.label == label]
        assert all(one.stop < other.start for one, other in pairwise(mine))
    assert merged_moments(merged) == merged


@given(st.lists(run, max_size=6), st.lists(run, max_size=4), st.integers(1, 15))
def test_unlabelled_windows_are_those_of_sets(
    labelled: list[range], examined: list[range], length: int
) -> None:
    windows = [range(first, min(first + length, 70)) for first in range(0, 70, length)]
    busy = {frame for one in labelled for frame in one}
    looked = {frame for one in examined for frame in one}
    expected = [one for one in windows if not busy & set(one) and not set(one) <= looked]
    assert unlabelled_windows(windows, labelled, examined) == expected


@pytest.mark.filterwarnings("ignore::vfsd.errors.UnknownLabelWarning")
@given(
    rows=st.lists(row, max_size=6),
    boxes=st.sets(st.integers(0, 70), max_size=4),
    first=st.integers(0, 72),
    length=st.integers(1, 20),
)
def test_queries_equal_sets_of_frames(
    shared: Store, rows: list[MomentRow], boxes: set[int], first: int, length: int
) -> None:
    video = shared["a.mp4"]
    video.moments.remove()
    video.labels.remove()
    video.moments.add_many([(one.frames, one.label) for one in rows], "me")
    video.labels.add([(frame, "box", (0, 0, 5, 5)) for frame in sorted(boxes)], "me")
    stored = {(one.label, one.frames.start, one.frames.stop) for one in rows}
    window = range(first, first + length)
    hit = {one for one in stored if set(range(*one[1:])) & set(window)}
    assert sorted(runs(video.moments.query(frames=window))) == sorted(hit)
    expected = {one for one in hit if one[0] == "a"}
    assert sorted(runs(video.moments.query([["a"]], frames=window))) == sorted(expected)
    both = {pair[1:] for pair in hit if ("a", *pair[1:]) in hit and ("b", *pair[1:]) in hit}
    found = runs(video.moments.query([["a"], ["b"]], frames=window))
    assert {pair[1:] for pair in found} == both
    busy = boxes | {frame for _, start, stop in stored for frame in range(start, stop)}
    spare = [one.frames for one in video.moments.unlabelled(0.5, source="me")]
    windows = [range(at, at + 15) for at in range(0, 120, 15)]
    assert spare == [one for one in windows if not busy & set(one)]
    video.moments.add_many([(one.frames, one.label) for one in rows], "me", merge=True)
    merged = merged_moments(rows)
    assert sorted(runs(video.moments.query())) == sorted(
        (one.label, one.frames.start, one.frames.stop) for one in merged
    )


# ------------------------------------------------------------------------------------ files

word = (
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
    .filter(str.isprintable)
    .map(str.strip)
    .filter(bool)
)


@given(
    st.lists(st.tuples(run, word, st.none() | st.floats(0, 1)), max_size=6),
    st.sampled_from(["a.mp4", "b.mkv"]),
    st.sampled_from(sorted(MOMENT_FORMATS)),
)
def test_files_round_trip(
    shared: Store, rows: list[tuple[range, str, float | None]], name: str, form: str
) -> None:
    video = shared[name]
    video.moments.remove()
    inside = [one for one in rows if one[0].stop <= len(video)]
    video.moments.add_many(inside, "me")
    before = video.moments.query()
    times = context_of(video).snapshot().times
    text = write_moments(before, form, lambda _: times)
    found = read_moments(text.encode(), form)
    video.moments.remove()
    import_moments([(video, found)], "me" if form == "webvtt" else None)
    after = video.moments.query()
    if form == "webvtt":
        assert runs(after) == runs(before)
    else:
        assert after == before
        assert {one.path for one in found} <= {name}


def test_files_from_elsewhere() -> None:
    lines = [
        "\ufeffWEBVTT - a title",
        "Kind: x",
        "",
        "NOTE 1",
        "",
        "id 7",
        "00:01.500 --> 01:00:02.000 align:left",
        "<v Ann>A &amp; B",
        "more",
        "",
    ]
    text = "\r\n".join(lines)
    (cue,) = read_moments(text.encode(), "webvtt")
    assert cue.span == (Fraction(3, 2), Fraction(3602))
    assert cue.label == "A & B more"
    (moment,) = read_moments(b'label,end,start\n"a, b",1:00:02.5,0\n', "csv")
    assert (moment.path, moment.span, moment.label) == (
        None,
        (Fraction(0), Fraction(7205, 2)),
        "a, b",
    )
    given_json = {
        "version": "1.3",
        "database": {
            "v_1": {
                "duration": 10,
                "annotations": [{"segment": [0.1, 1e-1 + 1], "label": "Diving", "score": 0.25}],
            },
            "v_2": {"annotations": []},
        },
    }
    (one,) = read_moments(json.dumps(given_json).encode(), "activitynet")
    assert (one.path, one.span, one.confidence) == (
        "v_1",
        (Fraction(1, 10), Fraction(11, 10)),
        0.25,
    )


HOSTILE = [
    ("csv", b"\xff\xfe"),
    ("csv", b""),
    ("csv", b"start,end\n1,2\n"),
    ("csv", b"start,end,label\n1,2\n"),
    ("csv", b"start,end,label\n1,2,a,b\n"),
    ("csv", b"start,end,label\n2,1,a\n"),
    ("csv", b"start,end,label\n-1,1,a\n"),
    ("csv", b"start,end,label\nnan,1,a\n"),
    ("csv", b"start,end,label\n0,1e999999999,a\n"),
    ("csv", b"start,end,label\n0,1,\n"),
    ("csv", b'start,end,label\n0,1,"a\n'),
    ("csv", b"start,end,label\n0,1," + b"a" * 200_000 + b"\n"),
    ("csv", b"start,end,label,confidence\n0,1,a,high\n"),
    ("activitynet", b"["),
    ("activitynet", b"[" * 100_000),
    ("activitynet", b'{"database": []}'),
    ("activitynet", b'{"database": {"a": {"annotations": {}}}}'),
    ("activitynet", b'{"database": {"a": {"annotations": [3]}}}'),
    ("activitynet", b'{"database": {"a": {"annotations": [{"segment": [1], "label": "x"}]}}}'),
    ("activitynet", b'{"database": {"a": {"annotations": [{"segment": [0, 1], "label": 3}]}}}'),
    (
        "activitynet",
        b'{"database": {"a": {"annotations": [{"segment": [0, 1e999999999], "label": "x"}]}}}',
    ),
    (
        "activitynet",
        b'{"database": {"a": {"annotations": [{"segment": [0, NaN], "label": "x"}]}}}',
    ),
    (
        "activitynet",
        b'{"database": {"a": {"annotations": [{"segment": [0, 1' + b"0" * 5000 + b"]}]}}}",
    ),
    ("webvtt", b"00:00.000 --> 00:01.000\nx\n"),
    ("webvtt", b"WEBVTT\n\n00:00.000 --> \nx\n"),
    ("webvtt", b"WEBVTT\n\n00:00.000 --> 00:61.000\nx\n"),
    ("webvtt", b"WEBVTT\n\n00:02.000 --> 00:01.000\nx\n"),
    ("webvtt", b"WEBVTT\n\n00:00.000 --> 00:01.000\n\n"),
]


@pytest.mark.parametrize(("form", "data"), HOSTILE)
def test_hostile_files_are_refused(form: str, data: bytes) -> None:
    with pytest.raises(UsageError):
        read_moments(data, form)


def test_import_is_one_transaction(store: Store) -> None:
    rows = read_moments(b"path,start,end,label\na.mp4,0,1,x\nb.mkv,900,901,x\n", "csv")
    with pytest.raises(OutOfRangeError):
        import_moments([(store[one.path or ""], [one]) for one in rows], Source("me"))
    assert store.moments() == []
