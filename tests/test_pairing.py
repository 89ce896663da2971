"""Frames that were taken at the same time."""

from __future__ import annotations

import numpy as np

from vfsd.overlap.join_worker import MIN_RUN_FRAMES, Seconds, pair_frames


def times(count: int, rate: float, start: float = 0.0) -> Seconds:
    return start + np.arange(count) / rate


SEQUENCES = [range(0, 30), range(30, 60), range(60, 90)]


def test_cameras_of_one_rate() -> None:
    found = pair_frames(SEQUENCES, times(90, 30), times(90, 30))
    assert [(pair.left, pair.right) for pair in found] == [(run, run) for run in SEQUENCES]


def test_the_shorter_one_ends_it() -> None:
    found = pair_frames(SEQUENCES, times(90, 30), times(70, 30))
    assert [pair.left for pair in found] == [range(0, 30), range(30, 60), range(60, 70)]
    last = pair_frames(SEQUENCES, times(90, 30), times(60 + MIN_RUN_FRAMES - 1, 30))
    assert [pair.left for pair in last] == SEQUENCES[:2]


def test_other_rates_have_too_few_in_a_row() -> None:
    assert pair_frames(SEQUENCES, times(90, 30), times(45, 15)) == []
    assert pair_frames(SEQUENCES, times(90, 30), times(1, 30)) == []


def test_a_frame_that_is_missing_shifts_what_follows() -> None:
    right = np.delete(times(90, 30), 40)
    found = pair_frames(SEQUENCES, times(90, 30), right)
    assert [(pair.left, pair.right) for pair in found] == [
        (range(0, 30), range(0, 30)),
        (range(41, 60), range(40, 59)),
        (range(60, 90), range(59, 89)),
    ]


def test_clocks_that_drift_never_use_a_frame_twice() -> None:
    long = [range(start, start + 30) for start in range(0, 3000, 30)]
    left, right = times(3000, 30), times(3000, 29.97)
    found = pair_frames(long, left, right)
    assert len(found) == len(long)
    used = [frame for pair in found for frame in pair.right]
    assert len(used) == len(set(used))
    for pair in found:
        assert len(pair.left) == len(pair.right)
        apart = np.abs(left[list(pair.left)] - right[list(pair.right)])
        assert apart.max() <= 0.5 / 29.97 + 1e-9
