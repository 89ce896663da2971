"""Exact time, geometry and settings."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.timebase import (
    Seconds,
    byte_count,
    byte_text,
    exact_span,
    frame_rate,
    human_bytes,
    on_tick,
    seconds,
    ticks_at_or_after,
)
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import UsageError
from vfsd.tiling import Rect


def test_rates_are_exact() -> None:
    for told in ("30000/1001", "30000:1001", Fraction(30000, 1001)):
        assert frame_rate(told) == Fraction(30000, 1001)
    assert frame_rate("29.97") == frame_rate(29.97) == Fraction(2997, 100)
    for nonsense in ("1:02:03", "30/0", "fast", "-1", ""):
        with pytest.raises(UsageError):
            frame_rate(nonsense)


def test_invalid_rates_are_refused() -> None:
    for wrong in (float("inf"), float("nan"), None, "1e309", 10**400):
        with pytest.raises(UsageError, match="rate must be") as caught:
            frame_rate(wrong)  # type: ignore[arg-type]
        assert "29.97" in str(caught.value.hint)


def test_nanosecond_ticks() -> None:
    assert frame_rate("1/1000000000") == Fraction(1, 10**9)


@pytest.mark.parametrize(
    ("given_as", "exact"),
    [
        (10, Fraction(10)),
        (0.1, Fraction(1, 10)),
        ("12.5", Fraction(25, 2)),
        ("12.5s", Fraction(25, 2)),
        ("1:02:03.5", Fraction(7447, 2)),
        ("2:30", Fraction(150)),
        (Fraction(1001, 30000), Fraction(1001, 30000)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        (np.float16(0.1), Fraction(1, 10)),
        (np.uint8(200), Fraction(200)),
    ],
)
def test_float_seconds_mean_their_decimal_form(given_as: Seconds, exact: Fraction) -> None:
    assert seconds(given_as) == exact
    assert type(seconds(given_as).numerator) is int  # one of numpy would overflow


@pytest.mark.parametrize(
    "nonsense",
    ["", "ten", "1:2:3:4", "-5", float("nan"), float("inf"), np.float32("nan"), 10**400, None, []],
)
def test_invalid_times_are_refused(nonsense: Seconds) -> None:
    with pytest.raises(UsageError, match="time must be"):
        seconds(nonsense)


@given(st.integers(-(2**40), 2**40), st.integers(1, 90_000))
def test_float_time_of_a_tick_round_trips(tick: int, rate: int) -> None:
    base = Fraction(1, rate)
    for told in (float(tick * base), np.float64(tick * base), tick * base):
        assert on_tick(told, base) == tick * base
    assert on_tick(0.1, Fraction(1, 3)) == Fraction(1, 10)


@pytest.mark.parametrize("nonsense", [(), (0,), (0, 1, 2), 5, None, "12", b"12"])
def test_span_needs_two_ends(nonsense: Any) -> None:
    with pytest.raises(UsageError, match="span must be"):
        exact_span(nonsense, Fraction(1, 25))


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64])
def test_region_of_numpy_integers_has_ints(kind: type[np.integer[Any]]) -> None:
    region = Rect.from_value(kind(edge) for edge in (0, 10, 255, 200))
    assert region == Rect(0, 10, 255, 200)
    assert region.area == 255 * 190
    assert Rect.from_value(Rect(kind(0), kind(0), kind(200), kind(200))).area == 40_000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "nonsense", [5, (), (0, 0, 1), (0, 0, 1, 1, 1), (0, 0, 1.5, 1), (0, 0, float("nan"), 1), "1234"]
)
def test_region_needs_four_integers(nonsense: Any) -> None:
    with pytest.raises(UsageError, match="region"):
        Rect.from_value(nonsense)


@given(st.fractions(-1000, 1000), st.fractions(Fraction(1, 90000), 1))
def test_no_earlier_tick_reaches_the_time(time: Fraction, base: Fraction) -> None:
    tick = ticks_at_or_after(time, base)
    assert (tick - 1) * base < time <= tick * base


def test_human_readable_bytes() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]


rects = st.builds(
    lambda x, y, w, h: Rect(x, y, x + w, y + h),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(1, 50),
    st.integers(1, 50),
)


@given(rects, rects)
def test_intersection_of_regions(one: Rect, other: Rect) -> None:
    both = one.intersection(other)
    pixels = {
        (x, y)
        for x in range(max(one.x1, other.x1), min(one.x2, other.x2))
        for y in range(max(one.y1, other.y1), min(one.y2, other.y2))
    }
    assert (both.area if both else 0) == len(pixels)
    if both:
        assert one.contains(both)
        assert other.contains(both)


@given(rects)
def test_geometry_round_trip(rect: Rect) -> None:
    assert Rect.parse(str(rect)) == rect


@pytest.mark.parametrize("text", ["400x300", "0x10+0+0", "400x300+-1+0", "x", "400x300+1+1 "])
def test_incomplete_geometry_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Rect.parse(text)


def test_settings_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert StoreSettings.load(path) == StoreSettings()
    changed = StoreSettings().with_text("verify", "false").with_text("decoder_memory", "3")
    changed = changed.with_text("tune_quiet_hours", "12:30-13, 22-6")
    changed.save(path)
    assert StoreSettings.load(path) == changed


@pytest.mark.parametrize(
    ("text", "count"),
    [("67108864", 64 << 20), ("64M", 64 << 20), ("4GiB", 4 << 30), ("100000KB", 100_000 << 10)],
)
def test_byte_settings_accept_units(text: str, count: int) -> None:
    assert StoreSettings().with_text("examine_memory", text).examine_memory == count
    assert byte_count(byte_text(count)) == count


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("examine_memory", "4 GiB", "for example `vfsd config examine_memory 4GiB`"),
        ("examine_memory", "1", "at least 64MiB"),
        ("examine_memory", "0", "its default is 4GiB"),
        ("view_cache_bytes", "-1", "for example `vfsd config view_cache_bytes 1GiB`"),
        ("tune_bytes", "999999999T", "at most 1048576TiB"),
        ("examine_seconds", "0", "at least 1"),
        ("examine_seconds", str(10**20), "its default is 600"),
        ("workers", "1M", "for example `vfsd config workers 1`"),
        ("workers", "100000", "at most 64"),
        ("minimum_psnr", "101", "at most 100"),
        ("tune_max_load", "101", "at most 100"),
        ("tune_cpu", "1" + "0" * 400, "at most 100000"),
        ("remembered_reads", str(1 << 63), "at most 1000000000"),
    ],
)
def test_unusable_settings_are_refused(key: str, text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        # The hint must not show the current value: it may be the mistake.
        dataclasses.replace(StoreSettings(), examine_memory=1).with_text(key, text)
    assert told in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    "text",
    ["colour = 1\n", "verify = 1\n", "workers = 0\n", "workers = [\n", "tune_quiet_hours = 22\n"],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        StoreSettings.load(path)
