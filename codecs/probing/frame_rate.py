"""The nominal frame rate of a stream, from its time stamps and from the rates that the file claims.

Time stamps are whole ticks, so frames of a constant rate lie at rounded times.  A rate agrees with
time stamps where rounding alone explains every deviation: the residuals spread over one tick at
most.  Time stamps that other software rounded before, such as milliseconds in a 90 kHz clock, are
whole multiples of a coarser tick; the same test is made with that tick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from vfsd.core.frame_table_pages import Ints

STANDARD_RATES = tuple(
    sorted(
        [Fraction(whole) for whole in (10, 12, 15, 20, 24, 25, 30, 48, 50, 60, 72, 90, 100)]
        + [Fraction(whole) for whole in (120, 144, 200, 240)]
        + [Fraction(whole * 1000, 1001) for whole in (12, 15, 24, 30, 48, 60, 120, 240)]
    )
)
"""Frames per second that cameras and containers use."""

_NEAR = Fraction(1, 10_000)
"""A claim this close to a standard rate, relatively, is that rate, written with too few digits."""


class _Least(NamedTuple):
    """Ticks from frame to frame, at least, for a rate to be believed."""

    noisy: float  #: a whole step, if frames deviate by a tick; one tick may be a missing frame
    claimed: int  #: a step that is not whole, of a rate that the file claims
    standard: int  #: the same of a standard rate that it does not claim
    fitted: float  #: the same of any other rate


_TICKS = _Least(4, 3, 4, 4)
_COARSE_TICKS = _Least(math.inf, 8, 8, math.inf)
"""2:3 pulldown has such time stamps, with few ticks to a frame, and no constant rate."""
_DENOMINATORS = (1, 2, 10, 1001, 100_000)


def constant_rate(
    shown: Ints, time_base: Fraction, claims: Iterable[Fraction | None]
) -> Fraction | None:
    """Frames per second of pictures that appear at `shown`, in ticks, ascending; None: it varies.

    A claim that agrees with the time stamps is believed first, then a standard rate, then the
    simplest rate that fits.  Two frames or more are needed.
    """
    if len(shown) < 2:
        return None
    ticks = shown - shown[0]
    told = [claim for claim in claims if claim is not None and claim > 0]
    found = _rate_of_ticks(ticks, time_base, told, _TICKS)
    if found is not None:
        return found
    coarse = int(np.gcd.reduce(ticks))
    if coarse <= 1:
        return None
    return _rate_of_ticks(ticks // coarse, time_base * coarse, told, _COARSE_TICKS)


def _rate_of_ticks(
    ticks: Ints,
    time_base: Fraction,
    claims: Sequence[Fraction],
    least: _Least,
) -> Fraction | None:
    agreeing = [
        rate for rate in claims if _agrees(ticks, time_base, rate, least.claimed, least.noisy)
    ]
    if agreeing:
        best = min(agreeing, key=lambda rate: _preference(ticks, time_base, rate))
        if (1 / (best * time_base)).denominator == 1:
            return best
        return next(
            (rate for rate in _near(best) if _agrees(ticks, time_base, rate, 2, least.noisy)), best
        )
    standard = [
        rate
        for rate in STANDARD_RATES
        if _agrees(ticks, time_base, rate, least.standard, least.noisy)
    ]
    if standard:
        return min(standard, key=lambda rate: _spread(ticks, 1 / (rate * time_base)))
    steps = np.diff(ticks)
    if (steps == steps[0]).all() and steps[0] > 0:
        return 1 / (int(steps[0]) * time_base)
    return _fitted(ticks, time_base, least)


def _preference(ticks: Ints, time_base: Fraction, rate: Fraction) -> tuple[bool, bool, float]:
    """Of claims that agree the least is believed: an exact one, then a standard one.

    The mean that demuxers compute over a short file agrees as well, and is neither.
    """
    step = 1 / (rate * time_base)
    spread = _spread(ticks, step)
    return step.denominator != 1 or spread > 0, rate not in STANDARD_RATES, spread


def _near(rate: Fraction) -> list[Fraction]:
    """The standard rates that `rate` may mean, the nearest first."""
    near = [one for one in STANDARD_RATES if abs(one - rate) <= _NEAR * one]
    return sorted(near, key=lambda one: abs(one - rate))


def _agrees(
    ticks: Ints, time_base: Fraction, rate: Fraction, least_step: float, least_noisy: float
) -> bool:
    """Whether rounding explains how the frames lie."""
    step = 1 / (rate * time_base)
    # The last frame tells most; looking at that alone rules out most candidates.
    if abs(int(ticks[-1]) - step * (len(ticks) - 1)) > 1:
        return False
    if step.denominator == 1 and step < least_noisy:
        return _spread(ticks, step) == 0
    return (step.denominator == 1 or step >= least_step) and _spread(ticks, step) <= 1


def _spread(ticks: Ints, step: Fraction) -> float:
    """Ticks between the earliest and the latest frame, relative to frames `step` ticks apart."""
    if step.denominator == 1:
        residuals = ticks - np.arange(len(ticks)) * int(step)
        return int(residuals.max() - residuals.min())
    deviations = ticks - np.arange(len(ticks)) * float(step)
    return round(float(deviations.max() - deviations.min()), 6)


def _fitted(ticks: Ints, time_base: Fraction, least: _Least) -> Fraction | None:
    """The simplest rate, by its denominator, that agrees with the time stamps."""
    last = len(ticks) - 1
    low, high = (int(ticks[-1]) - 1) / last, (int(ticks[-1]) + 1) / last
    if high < least.fitted or last < 2:
        return None
    step = _narrowest(ticks, low, high)
    if step is None:
        return None
    rate = 1 / (Fraction(step) * time_base)
    simple = (rate.limit_denominator(most) for most in _DENOMINATORS)
    return next(
        (
            one
            for one in simple
            if one and _agrees(ticks, time_base, one, least.fitted, least.noisy)
        ),
        None,
    )


def _narrowest(ticks: Ints, low: float, high: float) -> float | None:
    """The step, between two others, with the smallest spread; None where that is over a tick.

    The spread is convex in the step, so a ternary search finds it.
    """
    numbers = np.arange(len(ticks))

    def spread(step: float) -> float:
        deviations = ticks - numbers * step
        return float(deviations.max() - deviations.min())

    if spread((low + high) / 2) > 3:  # the best step is at most a tick away over the whole length
        return None
    for _ in range(48):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        if spread(one) <= spread(other):
            high = other
        else:
            low = one
    step = (low + high) / 2
    return step if spread(step) <= 1 else None
