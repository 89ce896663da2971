"""Events over the boxes of stored videos."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd import DetectionColumns, Store, Video
from vfsd.core.detections import Source
from vfsd.errors import NotFoundError, UsageError
from vfsd.labels.events import EventBoxes

FPS = 30  # of traffic.mp4, which has 120 frames


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")


def add_track(
    video: Video,
    label: str,
    track: int,
    corners: list[tuple[int, float, float]],
    source: str | Source = "net",
) -> None:
    """Add boxes of 20x20 pixels at (frame, x, y)."""
    frames = [one[0] for one in corners]
    boxes = [(x, y, x + 20, y + 20) for _, x, y in corners]
    rows = DetectionColumns.of(frames, label, boxes, tracks=[track] * len(frames))
    video.labels.add(rows, source)


def test_runs_and_steps(video: Video) -> None:
    # Both tracks have the number 1: a label may be another object of the same source.
    frames = range(120)
    add_track(video, "car", 1, [(frame, 100, 100) for frame in frames])
    add_track(
        video, "person", 2, [(frame, 110 if 30 <= frame < 90 else 10, 100) for frame in frames]
    )
    video.labels.mark_examined(frames, "net")
    (one,) = video.events("near(a, b) for 2s", a="car", b="person")
    assert one.frames == range(30, 90)
    assert one.span == (Fraction(1), Fraction(3))
    assert one.tracks == {"a": 1, "b": 2}
    assert one.name == "frames=30-90"
    assert video.views.open(one.name + ".mp4").read(8)[4:] == b"ftyp"
    assert not len(video.events("near(a, b) for 2.1s", a="car", b="person"))
    # First to end, then as short as possible.
    (two,) = video.events(
        "far(a, b) for 0.5s; near(a, b) for 1s; far(a, b)", a="car", b="person", within=5
    )
    assert [(step.start, step.stop) for step in two.steps] == [(15, 30), (60, 90), (90, 91)]
    assert two.frames == range(15, 91)
    assert two.span == (Fraction(1, 2), Fraction(91, 30))
    assert not len(
        video.events("far(a, b); near(a, b) for 1s; far(a, b)", a="car", b="person", within=0.5)
    )
    assert [e.frames for e in video.events("not near(a, b)", a="car", b="person")] == [
        range(30),
        range(90, 120),
    ]
    assert [e.frames for e in video.events("near(a, b)", a="car", b="person", span=(0, 2))] == [
        range(30, 60)
    ]


def test_a_detector_that_looks_at_every_tenth_frame(video: Video) -> None:
    frames = range(0, 120, 10)
    add_track(video, "car", 1, [(frame, 100, 100) for frame in frames])
    add_track(
        video, "person", 2, [(frame, 110 if 30 <= frame < 90 else 10, 100) for frame in frames]
    )
    video.labels.mark_examined(
        list(frames), Source("net", parameters={"labels": ["car", "person"]})
    )
    video.labels.mark_examined(list(frames), "net")
    (one,) = video.events("near(a, b) for 2s", a="car", b="person")
    assert one.frames == range(30, 90)
    (one,) = video.events("near(a, b) for 6f", a="car", b="person")
    assert one.frames == range(30, 90)
    assert not len(video.events("near(a, b) for 7f", a="car", b="person"))
    assert video.events("near(a, b)", a="car", b="person").unknown == {}


def test_what_nobody_examined_is_unknown(video: Video) -> None:
    frames = [*range(40), *range(80, 120)]
    add_track(video, "car", 1, [(frame, 100, 100) for frame in frames])
    video.labels.mark_examined(frames, "net")
    found = video.events("inside(a, 200x200+0+0)", a="car")
    # The car may have been elsewhere: two runs, and the rest is unknown.
    assert [one.frames for one in found] == [range(40), range(80, 120)]
    assert found.unknown == {"cam1/a.mp4": (range(40, 80),)}
    (joined,) = video.events("inside(a, 200x200+0+0)", a="car", gap=1.4)
    assert joined.frames == range(120)


def test_boxes_without_tracks_serve_one_variable_in_one_step(video: Video) -> None:
    video.labels.add([(frame, "car", (10, 10, 30, 30)) for frame in range(5, 9)], "me")
    (one,) = video.events("inside(a, door)", a="car", regions={"door": (0, 0, 50, 50)})
    assert (one.frames, one.tracks) == (range(5, 9), {"a": None})
    assert not len(video.events("inside(a, 50x50+0+0); inside(a, 50x50+0+0)", a="car"))


def test_conditions_of_the_caller_and_speeds(video: Video) -> None:
    add_track(video, "car", 1, [(frame, 4.0 * frame, 100) for frame in range(50)])
    # 4 pixels a frame of 1/30 s are 6 widths of 20 pixels a second.
    (one,) = video.events("faster(a, 5.9) & slower(a, 6.1)", a="car")
    assert one.frames == range(50)

    def right(boxes: EventBoxes, least: float) -> np.ndarray:
        return boxes.boxes[:, 0] >= least

    (one,) = video.events("right(a, 100)", a="car", predicates={"right": right})
    assert one.frames == range(25, 50)
    with pytest.raises(UsageError, match="must return 50 bools"):
        video.events("right(a, 100)", a="car", predicates={"right": lambda boxes, least: True})


def test_events_of_many_videos(store: Store, video: Video) -> None:
    other = store.ingest(FOLDER / "late-start.mp4", "cam2/b.mp4")
    for one, first in ((video, 3), (other, 7)):
        add_track(one, "car", 1, [(frame, 10, 10) for frame in range(first, first + 10)])
    found = store.events("inside(a, 100x100+0+0)", a="car")
    assert [(one.video, one.frames) for one in found] == [
        ("cam1/a.mp4", range(3, 13)),
        ("cam2/b.mp4", range(7, 17)),
    ]
    assert [one.video for one in store.events("inside(a, 99x99+0+0)", "cam2/**", a="car")] == [
        "cam2/b.mp4"
    ]
    assert found[0].video == "cam1/a.mp4"
    assert len(found[:1]) == 1
    with pytest.raises(NotFoundError):
        store.events("inside(a, 9x9+0+0)", "cam9/**", a="car")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("", "a term was expected"),
        ("near(a, b", "a term was expected"),
        ("near(a, b) for 2m", "was expected before 'for 2m'"),
        ("near(a, b) for 0s", "a length must be positive"),
        ("near(a, b) for 1.5f", "must be whole"),
        ("near(a, b) near(a, b)", "was expected before 'near"),
        ("near(a)", "takes 2 variables, got 1"),
        ("near(a, a)", "a twice"),
        ("near(a, c)", "'c' must be a variable"),
        ("next_to(a, b)", "there is no condition 'next_to'"),
        ("near(a, b, 1, 2)", "1 numbers"),
        ("faster(a) & near(a, b)", "1 numbers"),
        ("inside(a) & near(a, b)", "a variable and a region"),
        ("inside(a, 10x10+0+0)", "no step of the event has the variable b"),
        ("near(a, b, 10y)", "takes variables, numbers and regions"),
        ("; ".join(["near(a, b)"] * 17), "at most 16 steps"),
    ],
)
def test_malformed_events(video: Video, event: str, message: str) -> None:
    # No label is known: the event is refused before labels are looked up.
    with pytest.raises(UsageError, match=message):
        video.events(event, a="car", b="person")


def test_malformed_arguments(store: Store, video: Video) -> None:
    with pytest.raises(UsageError, match="labels of its variables"):
        video.events("near(a, b)")
    with pytest.raises(UsageError, match="within must be"):
        video.events("near(a, b)", a="car", b="person", within=-1)
    with pytest.raises(UsageError, match="must be a function"):
        video.events("x(a)", a="car", predicates={"x": 3})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="must be text"):
        video.events(3, a="car")  # type: ignore[arg-type]
    variable = store.ingest(FOLDER / "variable-rate.mp4", "v.mp4")
    variable.labels.add_box(0, "car", (0, 0, 9, 9), source="me")
    with pytest.raises(UsageError, match="need a constant rate"):
        variable.events("inside(a, 10x10+0+0) for 2f", a="car")
