"""Reads by time: the frame on the screen, in the order of the times, each GOP decoded once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.decode_runs import record_runs, repeated_packets
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.errors import OutOfRangeError, UsageError

CLIPS = ("traffic.mp4", "variable-rate.mp4", "late-start.mp4")


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "traffic.mp4")


@pytest.mark.parametrize("clip", one_in(2, CLIPS))
def test_frames_are_the_last_ones_at_or_before_the_times(store: Store, clip: str) -> None:
    video = store.ingest(FOLDER / clip, clip)
    whole = video.read(size=(32, 24))
    chosen = np.random.default_rng(3).random(40) * float(video.duration)
    # Half a tick of the file: times closer to a time stamp than that mean this time stamp.
    starts = whole.seconds - float(video.original.time_base) / 2
    want = np.searchsorted(starts, chosen, "right") - 1
    found = video.read(times=chosen, size=(32, 24))
    assert found.index.tolist() == want.tolist()
    assert np.array_equal(found.data, whole.data[want])
    # The times that a read reports are those of its frames.
    assert video.read(times=whole.seconds, tolerance=0, size=(32, 24)).index.tolist() == list(
        range(len(video))
    )


def test_order_and_duplicates_are_kept(video: Video) -> None:
    times: list[Any] = [3, "0:01", Fraction(1, 30), 3, 0.0, np.float32(1.5)]
    found = video.read(times=times, region="64x48+10+20")
    assert found.index.tolist() == [90, 30, 1, 90, 0, 45]
    assert np.array_equal(found.data, video.read(frames=found.index, region="64x48+10+20").data)
    assert video.read(times=[]).shape == (0, 240, 320, 3)
    assert len(video.read(times=[3, 3])) == 2


def test_each_packet_is_decoded_once(video: Video, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = record_runs(monkeypatch)
    video.read(times=[3.9, 0.1, 3.5, 0.1, 2.2, 3.6])
    assert len(runs) == 3
    assert repeated_packets(runs) == []


def test_tolerance_bounds_the_distance_back(video: Video) -> None:
    """The video has 30 frames a second."""
    assert video.read(times=[1.01], tolerance=0.01).index.tolist() == [30]
    assert video.read(times=[1.03], tolerance=Fraction(1, 30)).index.tolist() == [30]
    with pytest.raises(OutOfRangeError, match=r"within 0.01 s before 1.03 s") as caught:
        video.read(times=[0.5, 1.03], tolerance=0.01)
    assert "frame 30" in str(caught.value.hint)
    with pytest.raises(OutOfRangeError):
        video.read(times=[video.duration], tolerance=10)


@pytest.mark.parametrize(
    "options",
    [
        {"times": 1.0},
        {"times": "1"},
        {"times": np.zeros((2, 2))},
        {"times": [None]},
        {"times": [math.nan]},
        {"times": [1], "tolerance": -1},
        {"times": [1], "tolerance": "near"},
        {"times": [1], "span": (0, 1)},
        {"times": [1], "frames": [1]},
        {"times": [1], "fps": 5},
        {"tolerance": 1},
    ],
)
def test_invalid_times_are_refused(video: Video, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        video.read(**options)


def test_requests_by_time(store: Store, video: Video) -> None:
    (found,) = store.read_many([(video.name, {"times": [1, 0], "tolerance": 0.1})])
    assert found.index.tolist() == [30, 0]
