"""Time stamps: told, completed, made up, and how regular they are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.codecs.probing.frame_table_columns import (
    TableTimestamps,
    complete_timestamps,
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
def test_rounding_to_a_coarse_clock_is_no_variable_rate(rate: Fraction) -> None:
    pts = np.array([round(i * 1000 / rate) for i in range(5000)], np.int64)
    told = _settled(pts, pts, rate=rate)
    assert (told.variable_rate, told.average_rate) == (False, rate)
    untold = _settled(pts, pts)
    assert not untold.variable_rate
    assert untold.average_rate is not None
    assert abs(untold.average_rate - rate) < Fraction(1, 1000)


def test_a_wrong_claim_is_not_believed() -> None:
    pts = np.arange(100, dtype=np.int64) * 40
    times = _settled(pts, pts, rate=Fraction(50))
    assert (times.variable_rate, times.average_rate) == (False, Fraction(25))
    pts[50:] += 500
    times = _settled(pts, pts, rate=Fraction(25))
    assert times.variable_rate
    assert times.average_rate == Fraction(100, Fraction(4500, 1000))


def test_the_last_frame_lasts_as_long_as_usual() -> None:
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
def test_decoding_times_ascend_and_come_before_the_picture(
    gaps: list[int], mini: int, told: str
) -> None:
    shown = np.cumsum(np.array(gaps, np.int64))
    # Groups of `mini` pictures, the last of which is decoded first.
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


def test_clocks_that_are_set_back_go_on() -> None:
    pts, dts, moved = unwrap_timestamps(_scan([0, 10, 20, 0, 10, 5], [10, 20, 30, 10, 20, 15]))
    assert moved
    assert dts.tolist() == [0, 10, 20, 30, 40, 50]
    assert (pts - dts).tolist() == [10] * 6
    _, _, moved = unwrap_timestamps(_scan([0, 10, 20], [0, 10, NO_TIMESTAMP]))
    assert not moved
