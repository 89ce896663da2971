"""SOTs hold every frame once, begin at GOPs where possible, and stay within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.errors import UsageError
from vfsd.tiling import cut_sequences


def steady(frames: int, rate: int) -> list[float]:
    return [number / rate for number in range(frames + 1)]


def starts(sequences: list[range]) -> list[int]:
    return [sequence.start for sequence in sequences]


@st.composite
def videos(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    shown = draw(
        st.lists(st.sampled_from([0.0, 0.01, 0.04, 0.1, 0.7, 3.0]), min_size=1, max_size=80)
    )
    keys = draw(st.sets(st.integers(0, len(shown) - 1)))
    return sorted(keys), np.cumsum([5.0, *shown]).tolist()


@given(videos(), st.sampled_from([0.1, 1.0, 2.5]), st.integers(1, 40))
def test_sequences(video: tuple[list[int], list[float]], target: float, most: int) -> None:
    keys, times = video
    sequences = cut_sequences(keys, times, target, most)
    assert [frame for sequence in sequences for frame in sequence] == list(range(len(times) - 1))
    assert max(map(len, sequences)) <= most
    for sequence in sequences[:-1]:
        start, end = sequence.start, sequence.stop
        length = times[end] - times[start]
        assert length >= 0.5 * target or len(sequence) == most
        # Longer only by its last frame.
        assert length <= 1.5 * target or times[end - 1] - times[start] < 0.5 * target or (
            abs(length - target) <= abs(times[end - 1] - times[start] - target)
        )  # fmt: skip
        could_end = [
            key
            for key in keys
            if start < key <= start + most
            and 0.5 * target <= times[key] - times[start] <= 1.5 * target
        ]
        if could_end:
            off = min(abs(times[key] - times[start] - target) for key in could_end)
            assert end in could_end
            assert abs(length - target) == off
    if len(sequences) > 1:
        before, last = sequences[-2:]
        short = times[-1] - times[last.start] < 0.5 * target
        assert not short or last.stop - before.start > most


def test_one_second_gops_become_sots() -> None:
    assert starts(cut_sequences(range(0, 250, 25), steady(250, 25))) == list(range(0, 250, 25))


def test_sots_end_at_the_nearest_gop() -> None:
    # GOPs of 0.48 s; the last 0.4 s do not become a separate SOT.
    assert starts(cut_sequences(range(0, 82, 12), steady(82, 25))) == [0, 24, 48]


def test_without_key_frames_time_decides() -> None:
    assert starts(cut_sequences([], steady(100, 25))) == [0, 25, 50, 75]
    assert starts(cut_sequences([0], steady(100, 25), target=2.0)) == [0, 50]


def test_the_first_frames_may_have_no_key_frame() -> None:
    assert starts(cut_sequences([30, 60, 90], steady(100, 30))) == [0, 30, 60]


def test_one_frame() -> None:
    assert cut_sequences([0], [0.0, 0.04]) == [range(0, 1)]
    assert cut_sequences([0], [0.0, 60.0]) == [range(0, 1)]


def test_long_frame_is_the_last_of_its_sot() -> None:
    assert starts(cut_sequences([0], [0.0, 0.4, 10.0, 10.5, 11.0, 11.5])) == [0, 2]


def test_high_rates_are_bounded_by_frames() -> None:
    assert {len(s) for s in cut_sequences([0], steady(3000, 1000))} == {300}


@pytest.mark.parametrize(
    ("keys", "times", "target", "most"),
    [
        ([], [0.0], 1.0, 300),
        ([], [], 1.0, 300),
        ([], [1.0, 0.5], 1.0, 300),
        ([], [0.0, float("nan")], 1.0, 300),
        ([1], [0.0, 1.0], 1.0, 300),
        ([-1], [0.0, 1.0], 1.0, 300),
        ([1, 0], [0.0, 1.0, 2.0], 1.0, 300),
        ([], [0.0, 1.0], 0.0, 300),
        ([], [0.0, 1.0], 1.0, 0),
    ],
)
def test_invalid_arguments_are_refused(
    keys: list[int], times: list[float], target: float, most: int
) -> None:
    with pytest.raises(UsageError):
        cut_sequences(keys, times, target, most)
