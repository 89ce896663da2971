"""Builds the columns of a frame table from a packet scan.

These are packet flags, timestamps, the reorder delay and the nominal frame rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from vfsd.codecs.bitstreams.picture_headers import PacketTrait
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.probing.packet_scan import NO_TIMESTAMP, DecoderOutput, PacketScan
from vfsd.core.frame_table_pages import Ints, PacketFlag
from vfsd.core.model import MediaInfo

STANDARD_RATES = tuple(
    sorted(
        [Fraction(whole) for whole in (10, 12, 15, 20, 24, 25, 30, 48, 50, 60, 72, 90, 100)]
        + [Fraction(whole) for whole in (120, 144, 200, 240)]
        + [Fraction(whole * 1000, 1001) for whole in (12, 15, 24, 30, 48, 60, 120, 240)]
    )
)
"""Frame rates that cameras and containers use."""

# A claim this close (relatively) to a standard rate is that rate with too few digits.
_RATE_TOLERANCE = Fraction(1, 10_000)


class _MinTicks(NamedTuple):
    """Least ticks from frame to frame for a rate to be accepted."""

    noisy: float  #: integral step, frames deviating by a tick (a tick may be a missing frame)
    claimed: int  #: fractional step of a rate that the file claims
    standard: int  #: fractional step of a standard rate that the file does not claim
    fitted: float  #: fractional step of any other rate


_MIN_TICKS = _MinTicks(4, 3, 4, 4)
# Limits for coarse timestamps. Those of 2:3 pulldown are coarse too, but the rate varies.
_MIN_COARSE_TICKS = _MinTicks(math.inf, 8, 8, math.inf)
_DENOMINATORS = (1, 2, 10, 1001, 100_000)


def constant_rate(
    shown: Ints, time_base: Fraction, claims: Iterable[Fraction | None]
) -> Fraction | None:
    """Return the frame rate of pictures at `shown`, in ascending ticks; None: variable.

    A claimed rate that matches the timestamps is preferred, then a standard rate, then the simplest
    rate that fits. Needs at least two frames.
    """
    if len(shown) < 2:
        return None
    ticks = shown - shown[0]
    positive = [claim for claim in claims if claim is not None and claim > 0]
    found = _rate_of_ticks(ticks, time_base, positive, _MIN_TICKS)
    if found is not None:
        return found
    coarse = int(np.gcd.reduce(ticks))
    if coarse <= 1:
        return None
    return _rate_of_ticks(ticks // coarse, time_base * coarse, positive, _MIN_COARSE_TICKS)


def _rate_of_ticks(
    ticks: Ints,
    time_base: Fraction,
    claims: Sequence[Fraction],
    min_ticks: _MinTicks,
) -> Fraction | None:
    agreeing = [
        rate
        for rate in claims
        if _fits_rate(ticks, time_base, rate, min_ticks.claimed, min_ticks.noisy)
    ]
    if agreeing:
        best = min(agreeing, key=lambda rate: _claim_preference(ticks, time_base, rate))
        if (1 / (best * time_base)).denominator == 1:
            return best
        return next(
            (
                rate
                for rate in _nearby_standard_rates(best)
                if _fits_rate(ticks, time_base, rate, 2, min_ticks.noisy)
            ),
            best,
        )
    standard = [
        rate
        for rate in STANDARD_RATES
        if _fits_rate(ticks, time_base, rate, min_ticks.standard, min_ticks.noisy)
    ]
    if standard:
        return min(standard, key=lambda rate: _tick_spread(ticks, 1 / (rate * time_base)))
    steps = np.diff(ticks)
    if (steps == steps[0]).all() and steps[0] > 0:
        return 1 / (int(steps[0]) * time_base)
    return _simplest_rate(ticks, time_base, min_ticks)


def _claim_preference(ticks: Ints, time_base: Fraction, rate: Fraction) -> tuple[bool, bool, float]:
    """Return a sort key for claims that fit: an exact one is first, then a standard one.

    The average that demuxers compute over a short file fits as well, and is neither.
    """
    step = 1 / (rate * time_base)
    spread = _tick_spread(ticks, step)
    return step.denominator != 1 or spread > 0, rate not in STANDARD_RATES, spread


def _nearby_standard_rates(rate: Fraction) -> list[Fraction]:
    """Return the standard rates that `rate` may stand for, nearest first."""
    near = [one for one in STANDARD_RATES if abs(one - rate) <= _RATE_TOLERANCE * one]
    return sorted(near, key=lambda one: abs(one - rate))


def _fits_rate(
    ticks: Ints, time_base: Fraction, rate: Fraction, least_step: float, least_noisy: float
) -> bool:
    """Return whether rounding to ticks explains the timestamps."""
    step = 1 / (rate * time_base)
    # The last frame alone rules out most candidates.
    if abs(int(ticks[-1]) - step * (len(ticks) - 1)) > 1:
        return False
    if step.denominator == 1 and step < least_noisy:
        return _tick_spread(ticks, step) == 0
    return (step.denominator == 1 or step >= least_step) and _tick_spread(ticks, step) <= 1


def _tick_spread(ticks: Ints, step: Fraction) -> float:
    """Return the spread of deviations from frames `step` ticks apart, in ticks."""
    if step.denominator == 1:
        residuals = ticks - np.arange(len(ticks)) * int(step)
        return int(residuals.max() - residuals.min())
    deviations = ticks - np.arange(len(ticks)) * float(step)
    return round(float(deviations.max() - deviations.min()), 6)


def _simplest_rate(ticks: Ints, time_base: Fraction, min_ticks: _MinTicks) -> Fraction | None:
    """Return the fitting rate with the smallest denominator."""
    last = len(ticks) - 1
    low, high = (int(ticks[-1]) - 1) / last, (int(ticks[-1]) + 1) / last
    if high < min_ticks.fitted or last < 2:
        return None
    step = _best_step(ticks, low, high)
    if step is None:
        return None
    rate = 1 / (Fraction(step) * time_base)
    simple = (rate.limit_denominator(denominator) for denominator in _DENOMINATORS)
    return next(
        (
            one
            for one in simple
            if one and _fits_rate(ticks, time_base, one, min_ticks.fitted, min_ticks.noisy)
        ),
        None,
    )


def _best_step(ticks: Ints, low: float, high: float) -> float | None:
    """Return the step in an interval with the smallest spread; None if that exceeds a tick.

    The spread is convex in the step, so a ternary search finds the minimum.
    """
    numbers = np.arange(len(ticks))

    def spread(step: float) -> float:
        deviations = ticks - numbers * step
        return float(deviations.max() - deviations.min())

    if spread((low + high) / 2) > 3:  # the best step differs by a tick at most over all frames
        return None
    for _ in range(48):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        if spread(one) <= spread(other):
            high = other
        else:
            low = one
    step = (low + high) / 2
    return step if spread(step) <= 1 else None


@dataclass(frozen=True)
class TableTimestamps:
    """Timestamps of every packet in ticks, and the end of the last frame."""

    pts: Ints
    dts: Ints
    end_pts: int
    variable_rate: bool
    average_rate: Fraction | None
    notes: tuple[str, ...] = ()


def unwrap_timestamps(scan: PacketScan) -> tuple[Ints, Ints, bool]:
    """Return (pts, dts, whether they changed) of a stream in which the clock may be reset.

    Where dts run backwards, all later timestamps are shifted to continue the earlier ones.
    """
    dts = scan.dts
    if len(dts) < 2 or (dts == NO_TIMESTAMP).any():
        return scan.pts, dts, False
    steps = np.diff(dts)
    back = np.flatnonzero(steps < 0)
    if not len(back):
        return scan.pts, dts, False
    usual = int(np.median(steps[steps > 0])) if (steps > 0).any() else 1
    shift = np.zeros(len(dts), np.int64)
    for at in back:
        shift[at + 1 :] += dts[at] + (int(scan.duration[at]) or usual) - dts[at + 1]
    return np.where(scan.pts == NO_TIMESTAMP, NO_TIMESTAMP, scan.pts + shift), dts + shift, True


def complete_timestamps(
    pts: Ints,
    dts: Ints,
    duration: Ints,
    order: Ints,
    *,
    reorder_delay: int,
    time_base: Fraction,
    rate: Fraction | None,
    claims: Sequence[Fraction | None] = (),
) -> TableTimestamps:
    """Complete the timestamps of a table.

    Missing dts are generated: they ascend, and no frame is decoded after it is shown.

    Args:
        pts, dts, duration: ticks of each packet, as scanned; dts may be missing
        order: packets that show a frame, in display order; their pts must be known and ascend
        reorder_delay: frames that the decoder delays
        time_base: seconds per tick
        rate: frame rate that the container claims
        claims: other claimed frame rates, for example of the codec
    """
    shown = pts[order]
    step = _usual_step(shown, time_base, rate)
    dts = _decode_timestamps(pts, dts, order, reorder_delay, step)
    pts = np.where(pts == NO_TIMESTAMP, dts, pts)
    last = int(duration[order[-1]]) or step
    end_pts = int(shown[-1]) + max(1, last)
    average = _average_rate(shown, end_pts, time_base)
    if len(shown) < 2:
        return TableTimestamps(pts, dts, end_pts, False, rate or average)
    constant = constant_rate(shown, time_base, (rate, *claims))
    return TableTimestamps(pts, dts, end_pts, constant is None, constant or average or rate)


def _usual_step(shown: Ints, time_base: Fraction, rate: Fraction | None) -> int:
    """Return the median ticks between frames."""
    if len(shown) > 1:
        return max(1, int(np.median(np.diff(shown))))
    return max(1, round(1 / (rate * time_base))) if rate else 1


def _decode_timestamps(pts: Ints, dts: Ints, order: Ints, delay: int, step: int) -> Ints:
    missing = dts == NO_TIMESTAMP
    if not missing.any():
        return dts
    stamped = np.flatnonzero(~missing)
    if len(stamped) and missing[: stamped[0]].sum() == missing.sum():
        # Only the first ones are missing: continue backwards in median steps.
        dts = dts.copy()
        dts[: stamped[0]] = dts[stamped[0]] - step * np.arange(stamped[0], 0, -1)
        return dts
    # A shown packet is decoded when the frame `delay` places before it is shown. A hidden packet
    # is decoded with the next shown packet.
    shown = np.sort(order)
    times = pts[order]
    rank = np.arange(len(shown)) - delay
    decoded = np.where(rank >= 0, times[np.maximum(rank, 0)], times[0] + step * rank)
    following = np.searchsorted(shown, np.arange(len(pts)))
    return decoded[np.minimum(following, len(shown) - 1)]


def _average_rate(shown: Ints, end_pts: int, time_base: Fraction) -> Fraction | None:
    ticks = end_pts - int(shown[0])
    if ticks <= 0:
        return None
    return (Fraction(len(shown)) / (ticks * time_base)).limit_denominator(1 << 20)


def initial_packet_flags(
    scanned: PacketScan, hidden: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the flags known before decoding; those of the container if packets are not parsed."""
    traits = scanned.traits
    flags = np.zeros(len(scanned), np.uint8)
    starts = traits & PacketTrait.STARTS != 0
    odd = scanned.key & (traits & PacketTrait.ODD != 0)
    flags[starts | odd | (scanned.key if not scanned.inspected else False)] |= np.uint8(
        PacketFlag.KEY
    )
    flags[traits & PacketTrait.LEADING != 0] |= np.uint8(PacketFlag.LEADING)
    flags[hidden] |= np.uint8(PacketFlag.HIDDEN)
    flags[(traits & PacketTrait.UNREFERENCED != 0) & ~hidden] |= np.uint8(PacketFlag.DISPOSABLE)
    return flags


def h264_leading(media: MediaInfo, scanned: PacketScan) -> Ints:
    """Return the leading packets of open key pictures. H.264 does not mark them: pts decides."""
    if media.codec != "h264":
        return np.empty(0, np.int64)
    starts = scanned.traits & PacketTrait.STARTS != 0
    key = np.maximum.accumulate(np.where(starts, np.arange(len(scanned)), 0))
    return np.flatnonzero(scanned.pts < scanned.pts[key])


def reorder_delay(order: Ints) -> int:
    """Return how many frames a decoder must delay: the most places that a frame moves forward."""
    place = np.argsort(order, kind="stable")  # position in display order of each shown packet
    return max(0, int((np.arange(len(order)) - place).max()))


def proven_timestamps(
    container: Container,
    scanned: PacketScan,
    decoded: DecoderOutput,
    media: MediaInfo,
    notes: list[str],
) -> tuple[Ints, Ints, Ints]:
    """Return (pts, dts, duration) with known pts that ascend in the decoder's output order.

    Without any timestamps, durations are unknown as well: demuxers then claim one tick for the
    packets they parsed last.
    """
    pts, dts, moved = unwrap_timestamps(scanned)
    if moved:
        notes.append("timestamps run backwards; later ones were shifted")
    order = decoded.order
    pts = pts.copy()
    shown = pts[order]
    if container.timed and (shown != NO_TIMESTAMP).all():
        if (np.diff(shown) > 0).all():
            return pts, dts, scanned.duration
        if len(np.unique(shown)) == len(shown):
            notes.append(
                "pictures are not in the order of their timestamps; timestamps were sorted"
            )
            pts[order] = np.sort(shown)
            return pts, np.full(len(pts), NO_TIMESTAMP, np.int64), scanned.duration
    pts[:] = NO_TIMESTAMP
    if (dts != NO_TIMESTAMP).all() and (np.diff(dts) > 0).all():
        pts[order] = _output_timestamps(decoded, dts)
        return pts, dts, scanned.duration
    rate = media.average_rate or 25
    notes.append(f"no timestamps: frames are timed at {rate} per second")
    pts[order] = [round(i / (rate * media.time_base)) for i in range(len(order))]
    return pts, np.full(len(pts), NO_TIMESTAMP, np.int64), np.zeros(len(pts), np.int64)


def _output_timestamps(decoded: DecoderOutput, dts: Ints) -> Ints:
    """Return the time of each output: the dts of the packet that the decoder is fed next."""
    steps = np.diff(dts)
    step = int(np.median(steps)) if len(steps) else 1
    drained = np.cumsum(decoded.fed >= len(dts))
    times = np.where(
        drained > 0, dts[-1] + step * drained, dts[np.minimum(decoded.fed, len(dts) - 1)]
    )
    if (np.diff(times) > 0).all():
        return times
    return np.sort(dts[decoded.order])
