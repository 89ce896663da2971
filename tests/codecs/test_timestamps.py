"""Timestamps: stored, completed, generated, and their regularity.

The nominal rate of rounded timestamps; none for a variable rate.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.codecs.probing.frame_table_columns import (
    STANDARD_RATES,
    TableTimestamps,
    complete_timestamps,
    constant_rate,
    unwrap_timestamps,
)
from vfsd.codecs.probing.packet_scan import NO_TIMESTAMP, PacketScan
from vfsd.core.frame_table_pages import Ints


def _settled(
    pts: Ints,
    dts: Ints,
    *,
    rate: Fraction | None = None,
    time_base: Fraction = Fraction(1, 1000),
    delay: int = 0,
) -> TableTimestamps:
    shown = np.flatnonzero(pts != NO_TIMESTAMP)
    order = shown[np.argsort(pts[shown])]
    duration = np.zeros(len(pts), np.int64)
    return complete_timestamps(
        pts, dts, duration, order, reorder_delay=delay, time_base=time_base, rate=rate
    )


def _scan(dts: list[int], pts: list[int]) -> PacketScan:
    count = len(dts)
    zeros, no = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    return PacketScan(
        pts=np.array(pts, np.int64),
        dts=np.array(dts, np.int64),
        duration=zeros,
        position=zeros,
        size=zeros,
        traits=zeros,
        key=no,
        discard=no,
        corrupt=no,
        inspected=True,
        sliced=True,
        reconfigured=False,
        error=None,
        head=(),
    )


@pytest.mark.parametrize("rate", [Fraction(30000, 1001), Fraction(25), Fraction(24000, 1001)])
def test_rounded_times_keep_a_constant_rate(rate: Fraction) -> None:
    pts = np.array([round(i * 1000 / rate) for i in range(5000)], np.int64)
    told = _settled(pts, pts, rate=rate)
    assert (told.variable_rate, told.average_rate) == (False, rate)
    untold = _settled(pts, pts)
    assert not untold.variable_rate
    assert untold.average_rate is not None
    assert abs(untold.average_rate - rate) < Fraction(1, 1000)


def test_wrong_claimed_rate_is_ignored() -> None:
    pts = np.arange(100, dtype=np.int64) * 40
    times = _settled(pts, pts, rate=Fraction(50))
    assert (times.variable_rate, times.average_rate) == (False, Fraction(25))
    pts[50:] += 500
    times = _settled(pts, pts, rate=Fraction(25))
    assert times.variable_rate
    assert times.average_rate == Fraction(100, Fraction(4500, 1000))


def test_last_frame_has_the_usual_duration() -> None:
    pts = np.array([0, 40, 80, 300], np.int64)
    assert _settled(pts, pts).end_pts == 340
    alone = np.array([7], np.int64)
    assert _settled(alone, alone).end_pts == 8
    assert _settled(alone, alone, rate=Fraction(25)).end_pts == 47


@given(
    gaps=st.lists(st.integers(1, 100), min_size=2, max_size=40),
    mini=st.integers(1, 4),
    told=st.sampled_from(["none", "all but the first", "all"]),
)
def test_dts_ascend_and_precede_pts(gaps: list[int], mini: int, told: str) -> None:
    shown = np.cumsum(np.array(gaps, np.int64))
    # Mini-GOPs of `mini` frames; the last frame of each is decoded first.
    decode = [
        index
        for start in range(0, len(shown), mini)
        for part in [list(range(start, min(start + mini, len(shown))))]
        for index in [part[-1], *part[:-1]]
    ]
    pts = shown[decode]
    delay = mini - 1
    full = _settled(pts, np.full(len(pts), NO_TIMESTAMP, np.int64), delay=delay).dts
    dts = np.full(len(pts), NO_TIMESTAMP, np.int64)
    if told == "all":
        dts = full
    elif told == "all but the first":
        dts[1:] = full[1:]
    times = _settled(pts, dts, delay=delay)
    assert (np.diff(times.dts) > 0).all()
    assert (times.dts <= times.pts).all() or told == "all but the first"


def test_hidden_packets_get_times() -> None:
    pts = np.array([NO_TIMESTAMP, NO_TIMESTAMP, 0, 40, NO_TIMESTAMP, 80], np.int64)
    times = _settled(pts, np.full(6, NO_TIMESTAMP, np.int64))
    assert times.dts.tolist() == [0, 0, 0, 40, 80, 80]
    assert times.pts.tolist() == [0, 0, 0, 40, 80, 80]


def test_timestamps_that_jump_back_continue() -> None:
    pts, dts, moved = unwrap_timestamps(_scan([0, 10, 20, 0, 10, 5], [10, 20, 30, 10, 20, 15]))
    assert moved
    assert dts.tolist() == [0, 10, 20, 30, 40, 50]
    assert (pts - dts).tolist() == [10] * 6
    _, _, moved = unwrap_timestamps(_scan([0, 10, 20], [0, 10, NO_TIMESTAMP]))
    assert not moved


# --------------------------------------------------------------------------------------------------
# The nominal rate of rounded timestamps; none for a variable rate


MILLISECOND = Fraction(1, 1000)
RATES = [Fraction(24000, 1001), Fraction(25), Fraction(30000, 1001), Fraction(60)]
BASES = [MILLISECOND, Fraction(1, 600), Fraction(1, 90_000), Fraction(1, 15_360)]


def rounded(rate: Fraction, base: Fraction, count: int, phase: Fraction = Fraction(0)) -> Ints:
    """Timestamps of a constant rate, rounded to the nearest tick; half a tick is rounded up."""
    exact = (phase + Fraction(number) / (rate * base) for number in range(count))
    return np.array([(time + Fraction(1, 2)).__floor__() for time in exact], np.int64)


@given(
    rate=st.sampled_from(RATES),
    base=st.sampled_from(BASES),
    count=st.integers(2, 400),
    phase=st.fractions(0, 1),
)
def test_claimed_rate_is_recognized(
    rate: Fraction, base: Fraction, count: int, phase: Fraction
) -> None:
    assert constant_rate(rounded(rate, base, count, phase), base, [rate]) == rate


@given(rate=st.sampled_from(STANDARD_RATES), phase=st.fractions(0, 1))
def test_standard_rate_needs_no_claim(rate: Fraction, phase: Fraction) -> None:
    shown = rounded(rate, MILLISECOND, 4000, phase)
    assert constant_rate(shown, MILLISECOND, [None]) == rate


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("rate", RATES)
def test_wrong_claim_is_refuted(rate: Fraction, base: Fraction) -> None:
    shown = rounded(rate, base, 2000)
    assert constant_rate(shown, base, [Fraction(50), rate * Fraction(999, 1000)]) == rate


def test_rate_with_few_digits_is_the_standard_one() -> None:
    shown = rounded(Fraction(30000, 1001), MILLISECOND, 300)
    assert constant_rate(shown, MILLISECOND, [Fraction("29.97")]) == Fraction(30000, 1001)
    exact = np.arange(300, dtype=np.int64) * 100
    assert constant_rate(exact, Fraction(1, 2997), [Fraction("29.97")]) == Fraction("29.97")


def test_mean_rate_is_not_the_nominal_rate() -> None:
    base, rate = Fraction(1, 600), Fraction(60000, 1001)
    shown = rounded(rate, base, 60)
    mean = 60 / ((int(shown[-1]) + 11) * base)
    assert constant_rate(shown, base, [mean, rate]) == rate
    assert constant_rate(shown, base, [rate, mean]) == rate


@pytest.mark.parametrize("rate", [Fraction(17), Fraction(37, 2), Fraction(3001, 100)])
def test_unusual_rate_is_fitted(rate: Fraction) -> None:
    found = constant_rate(rounded(rate, MILLISECOND, 5000), MILLISECOND, [])
    assert found is not None
    assert abs(found / rate - 1) < Fraction(1, 1_000_000)


@pytest.mark.parametrize("base", [Fraction(1, 16_000), Fraction(1, 90_000)])
@pytest.mark.parametrize("rate", RATES)
def test_milliseconds_in_a_finer_timebase(rate: Fraction, base: Fraction) -> None:
    shown = rounded(rate, MILLISECOND, 500) * int(MILLISECOND / base)
    assert constant_rate(shown, base, [rate]) == rate


def test_a_whole_step_with_a_tick_of_noise() -> None:
    shown = np.arange(200, dtype=np.int64) * 40
    shown[::3] += 1
    assert constant_rate(shown, MILLISECOND, [Fraction(25)]) == 25


@pytest.mark.parametrize(
    ("base", "steps"),
    [
        (Fraction(1, 30), [1] * 40 + [2] + [1] * 40),  # a frame that AVI leaves out
        (Fraction(1, 1000), [33, 34, 33] * 10 + [66] + [33, 34, 33] * 10),
        (Fraction(1, 1000), [40] * 50 + [42] + [40] * 50),
        (Fraction(1, 60), [2, 3] * 30),  # 2:3 pulldown
        (Fraction(1, 90_000), [3003, 4504] * 30),
        (Fraction(1, 1000), [20, 40] * 30),
        (Fraction(1, 90_000), [1800, 3600, 1800] * 30),
        (Fraction(1, 1000), [37, 29, 44, 31, 35, 25] * 20),
    ],
)
def test_variable_rate_is_not_constant(base: Fraction, steps: list[int]) -> None:
    shown = np.cumsum([0, *steps])
    claims = [Fraction(30), Fraction(24000, 1001), Fraction(25), Fraction(60)]
    assert constant_rate(shown, base, claims) is None


@given(
    steps=st.lists(st.integers(5, 200), min_size=3, max_size=60),
    base=st.sampled_from([MILLISECOND, Fraction(1, 600)]),
    claim=st.sampled_from(STANDARD_RATES),
)
def test_constant_rate_deviates_by_rounding_only(
    steps: list[int], base: Fraction, claim: Fraction
) -> None:
    shown = np.cumsum([0, *steps])
    rate = constant_rate(shown, base, [claim])
    if rate is None:
        return
    step = 1 / (rate * base)
    late = [int(pts) - number * step for number, pts in enumerate(shown)]
    coarse = int(np.gcd.reduce(shown))
    assert max(late) - min(late) <= max(1, coarse)
