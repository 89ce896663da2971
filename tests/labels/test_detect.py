"""Frames passed to a detector, and the stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from sample_videos.truth import GroundTruth
from tests.support.detector_frames import covered
from tests.support.selection import one_in
from vfsd import Detection, Frame, Source, Store, Video
from vfsd.core.detections import Ints
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.labels.detectors import Every, FrameRequest, plan_chunks, stepped_ranges
from vfsd.labels.detectors.motion import MotionDetector


@dataclass
class Fake:
    """A detector that finds one box in the middle of every frame, and records its input."""

    name: str = "fake"
    block: int = 1
    every: Every = 1
    fails_at: int = -1
    seen: list[int] = field(default_factory=list)
    shape: tuple[int, ...] = ()

    @property
    def source(self) -> Source:
        return Source(self.name, parameters={"x": 1})

    def request(self, width: int, height: int) -> FrameRequest:
        return FrameRequest((width // 2, height // 2), "gray", self.every, self.block)

    def detect(
        self, frames: Iterable[Frame], width: int, height: int
    ) -> Iterator[tuple[int, list[Detection]]]:
        for frame in frames:
            if frame.index == self.fails_at:
                raise RuntimeError("no more")
            self.seen.append(frame.index)
            self.shape = frame.data.shape
            box = (width / 2, height / 2, width / 2 + 1, height / 2 + 1)
            yield frame.index, [Detection(frame.index, "middle", box)]


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "a.mp4")


def frames_with_boxes(video: Video, source: str = "fake") -> list[int]:
    return [one.frame for one in video.labels.query(source=source)]


def examined(video: Video, source: str = "fake") -> list[int]:
    return [frame for one in video.labels.examined(source) for frame in one.frames]


def test_detector_receives_every_frame_once_in_its_size(video: Video) -> None:
    detector, told = Fake(), []
    assert video.labels.detect(detector, on_progress=lambda *now: told.append(now)) == 120
    assert detector.seen == frames_with_boxes(video) == examined(video) == list(range(120))
    assert detector.shape[:2] == (120, 160)
    assert told == [(at + 1, 120) for at in range(120)]
    assert list(video.labels.query(frames=[7])) == [
        Detection(7, "middle", (160, 120, 161, 121), source=detector.source)
    ]


class Overtaken(Fake):
    """A detector that runs to its end elsewhere while this run is half done."""

    def __init__(self, video: Video) -> None:
        super().__init__()
        self.video = video

    def detect(
        self, frames: Iterable[Frame], width: int, height: int
    ) -> Iterator[tuple[int, list[Detection]]]:
        for frame, boxes in super().detect(frames, width, height):
            if frame == 80:
                assert self.video.labels.detect(Fake()) == 120 - 64
            yield frame, boxes


def test_concurrent_runs_store_every_box_once(store: Store, video: Video) -> None:
    assert video.labels.detect(Overtaken(store["a.mp4"])) == 64
    assert frames_with_boxes(video) == examined(video) == list(range(120))


def test_detect_selected_frames(video: Video) -> None:
    for name, every, span, expected in (
        ("n", 7, None, list(range(0, 120, 7))),
        ("key", "key", None, video.keyframes.tolist()),
        ("span", 1, (1, Fraction(3, 2)), list(range(30, 45))),
        ("both", 7, (1, 2), [35, 42, 49, 56]),
        ("none", 50, (1, 1.5), []),
    ):
        video.labels.detect(Fake(name), span, every)  # type: ignore[arg-type]
        assert frames_with_boxes(video, name) == examined(video, name) == expected
    assert video.labels.detect(MotionDetector(every=np.int64(2)), every=np.uint8(2)) > 0  # type: ignore[arg-type]
    for nothing in (0, -1, 2.5, True, "keys", np.int64(0)):
        with pytest.raises(UsageError, match="every must be"):
            video.labels.detect(Fake(), every=nothing)  # type: ignore[arg-type]
    with pytest.raises(OutOfRangeError):
        video.labels.detect(Fake(), (5, 6))


def test_interrupted_run_resumes(video: Video) -> None:
    with pytest.raises(RuntimeError):
        video.labels.detect(Fake(fails_at=100))
    assert frames_with_boxes(video) == examined(video) == list(range(64))
    rest = Fake()
    assert video.labels.detect(rest) == 56
    assert rest.seen == list(range(64, 120))
    assert frames_with_boxes(video) == examined(video) == list(range(120))
    assert video.labels.detect(rest) == 0
    assert len(rest.seen) == 56
    other = Fake("other")
    assert video.labels.detect(other) == 120  # another source must examine frames itself


def _box(frame: int) -> Detection:
    return Detection(frame, "middle", (0, 0, 1, 1))


@pytest.mark.parametrize(
    "answers",
    one_in(
        5,
        [
            lambda shown: [(number, []) for number in shown[:3]],
            lambda shown: [],
            lambda shown: [(number, []) for number in shown if number % 2],
            lambda shown: [(number, []) for number in reversed(shown)],
            lambda shown: [(number, []) for number in (*shown, shown[-1])],
            lambda shown: [(number, [_box(number - 1)]) for number in shown],
            lambda shown: [(number, None) for number in shown],
            lambda shown: [[] for _ in shown],
            lambda shown: None,
        ],
    ),
)
@pytest.mark.parametrize("block", [1, 64])
def test_frames_without_a_result_are_not_examined(
    video: Video, block: int, answers: Callable[[list[int]], Any]
) -> None:
    class Careless(Fake):
        def detect(self, frames: Iterable[Frame], width: int, height: int) -> Any:
            numbers = [frame.index for frame in frames]
            return answers(numbers) if 64 in numbers else [(n, [_box(n)]) for n in numbers]

    with pytest.raises(UsageError, match="detector") as refused:
        video.labels.detect(Careless(block=block))
    assert "for each frame it receives" in (refused.value.hint or "")
    assert frames_with_boxes(video) == examined(video) == list(range(64))


def test_progress_callback_may_cancel(video: Video) -> None:
    def stop(done: int, total: int) -> None:
        if done == 70:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        video.labels.detect(Fake(), on_progress=stop)
    assert examined(video) == list(range(64))


def test_replace_examines_again(video: Video) -> None:
    video.labels.detect(Fake())
    video.labels.add_box(3, "mine", (0, 0, 1, 1), source=Fake().source)
    video.labels.add_box(3, "theirs", (0, 0, 1, 1), source="people")
    assert video.labels.detect(Fake(), every=10, replace=True, span=(0, 2)) == 6
    expected = [*range(0, 60, 10), *range(60, 120)]
    assert frames_with_boxes(video) == examined(video) == expected
    assert len(video.labels.query("theirs")) == 1
    with pytest.raises(RuntimeError):  # earlier boxes stay until new ones are stored
        video.labels.detect(Fake(fails_at=65), replace=True)
    assert frames_with_boxes(video) == list(range(120))


def test_detector_receives_whole_blocks(video: Video) -> None:
    detector = Fake(block=50)
    video.labels.detect(detector, span=(1, 2))
    assert detector.seen == list(range(120))  # the last 20 belong to the second block
    assert frames_with_boxes(video) == examined(video) == list(range(30, 60))
    detector.seen.clear()
    video.labels.detect(detector)
    assert frames_with_boxes(video) == list(range(120))
    with pytest.raises(UsageError):
        video.labels.detect(detector, every=2)


def test_motion_is_independent_of_the_first_frame(store: Store, video: Video) -> None:
    detector = MotionDetector(every=2, block=20)
    other = store.ingest(FOLDER / "traffic.mp4", "b.mp4")
    video.labels.detect(detector)
    for span in ((3, None), (0.5, 1), (0, 3)):
        other.labels.detect(detector, span)
    assert list(video.labels.query()) == list(other.labels.query())
    assert len(video.labels.query()) > 100
    assert {one.frame % 2 for one in video.labels.query()} == {0}


def test_boxes_of_a_rotated_video_are_upright(store: Store) -> None:
    video = store.ingest(FOLDER / "portrait.mp4", "p.mp4")
    assert (video.width, video.height) == (240, 320)
    detector = Fake()
    video.labels.detect(detector)
    assert detector.shape[:2] == (160, 120)
    video.labels.detect(MotionDetector())
    boxes = video.labels.query("motion").columns().boxes
    assert boxes[:, 2].max() <= 240
    assert 240 < boxes[:, 3].max() <= 320
    # The truck on the left is the largest; in a rotated frame it would be elsewhere.
    truth = GroundTruth.load(FOLDER / "portrait.mp4")
    moving = [
        covered((box.x1, box.y1, box.x2, box.y2), video.labels.query("motion", frames=[frame]))
        for frame in range(0, 45, 5)
        for box in truth.boxes[frame]
    ]
    assert np.mean(moving) > 0.25  # little moves in a second and a half


def test_changed_bytes_are_reported(store: Store, video: Video) -> None:
    store.ingest(FOLDER / "portrait.mp4", "a.mp4", replace=True)
    with pytest.raises((NotFoundError, FileNotFoundError, OutOfRangeError)):
        video.labels.detect(Fake())


def numbers(*parts: range) -> Ints:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def test_chunks() -> None:
    plain = plan_chunks(numbers(range(200)), range(10, 150), [range(20, 30)], 1)
    assert [len(chunk.shown) for chunk in plain] == [64, 64, 2]
    assert [chunk.covers for chunk in plain] == [range(10, 84), range(84, 148), range(148, 150)]
    blocks = plan_chunks(numbers(range(0, 200, 10)), range(25, 200), [range(60, 100)], 6)
    assert [chunk.shown.tolist() for chunk in blocks] == [
        list(range(0, 60, 10)),
        list(range(60, 120, 10)),
        list(range(120, 200, 10)),
    ]
    assert [chunk.kept.tolist() for chunk in blocks] == [
        [30, 40, 50],
        [100, 110],
        list(range(120, 200, 10)),
    ]
    assert plan_chunks(numbers(range(5)), range(5, 5), [], 1) == []
    assert plan_chunks(numbers(range(5)), range(5), [range(5)], 3) == []
    assert [len(c.shown) for c in plan_chunks(numbers(range(5)), range(5), [], 60)] == [5]


def test_steps() -> None:
    for parts in ([], [range(5)], [range(3, 4)], [range(0, 90, 30), range(91, 95)]):
        found = list(stepped_ranges(numbers(range(0), *parts)))
        assert [at for one in found for at in one] == [at for part in parts for at in part]
    assert list(stepped_ranges(numbers(range(0, 100, 7)))) == [range(0, 99, 7)]
