"""``vfsd detect``: detectors by name, what they say, and how they end."""

from __future__ import annotations

import pytest

import vfsd.api.detect
from tests.cli.conftest import Run

VIDEO = "cam1/traffic.mp4"


def test_motion_goes_into_the_index(run: Run) -> None:
    done = run("detect", VIDEO, "--with", "motion", "--every", "4", "--json")
    assert done.code == 0, done.err
    assert done.object["name"] == VIDEO
    assert done.object["source"] == {"name": "motion", "model": "MOG2", "version": "1"}
    assert done.object["frames"] == done.object["examined"] == 30
    count = run("labels", "query", VIDEO, "motion", "--count", "--json").object["boxes"]
    assert count == done.object["boxes"] > 30
    again = run("detect", VIDEO, "--with", "motion", "--every", "4")
    assert again.err == (
        f"0 boxes by motion MOG2 1 on 0 frames of {VIDEO}, which it had examined before\n"
    )
    once_more = run("detect", VIDEO, "--with", "motion", "--every", "4", "--replace", "--json")
    assert once_more.object == done.object
    assert run("labels", "query", VIDEO, "--count", "--json").object["boxes"] == count


@pytest.mark.thorough
def test_part_of_several_videos_under_another_name(run: Run) -> None:
    names = (VIDEO, "cam1/open-gop.mkv")
    done = run("detect", *names, "--with", "motion", "--span", "1-2", "--label", "it", "--json")
    assert [found["name"] for found in done.objects] == list(names)
    assert [found["examined"] for found in done.objects] == [30, 30]
    frames = [found["frame"] for found in run("labels", "query", VIDEO, "it", "--json").objects]
    assert frames
    assert set(frames) <= set(range(30, 60))
    assert run("detect", VIDEO, "--with", "motion", "--keyframes", "--json").object["frames"] == 4


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--with", "cats"), 2, "must be one of motion, onnx:MODEL.onnx, got 'cats'"),
        (("--with", "onnx:"), 2, "got 'onnx:'"),
        (("--with", "motion", "--min-confidence", "0.5"), 2, "motion has no confidence"),
        (("--with", "motion", "--every", "2", "--keyframes"), 2, "--every or --keyframes"),
        (("--with", "motion", "--every", "0"), 2, "--every"),
        (("--with", "motion", "--names", "x"), 2, "no classes"),
        (("--with", "motion", "--label", " "), 2, "a label"),
        (("--with", "onnx:none.onnx"), 3, "file not found: none.onnx"),
        (("--with", "motion", "--span", "9-10"), 6, "after the end"),
        ((), 2, "--with"),
    ],
)
def test_what_cannot_be(run: Run, args: tuple[str, ...], code: int, words: str) -> None:
    done = run("detect", VIDEO, *args)
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_a_video_that_is_not_there(run: Run) -> None:
    done = run("detect", VIDEO, "none.mp4", "--with", "motion")
    assert done.code == 3
    assert run("labels", "query", VIDEO, "--count", "--json").object["boxes"] == 0


def test_ctrl_c_leaves_what_is_said_to_be_examined(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vfsd.labels.detectors import MotionDetector

    small = MotionDetector(block=20)
    monkeypatch.setattr("vfsd.labels.detectors.MotionDetector", lambda *_: small)
    whole = vfsd.api.detect.shown_frames

    def until_frame_50(*args: object) -> object:
        for frame in whole(*args):  # type: ignore[arg-type]
            if frame.index == 50:
                raise KeyboardInterrupt
            yield frame

    monkeypatch.setattr(vfsd.api.detect, "shown_frames", until_frame_50)
    assert run("detect", VIDEO, "--with", "motion").code == 130
    monkeypatch.setattr(vfsd.api.detect, "shown_frames", whole)
    done = run("detect", VIDEO, "--with", "motion", "--json").object
    assert (done["frames"], done["examined"]) == (80, 120)
