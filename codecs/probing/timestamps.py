"""Time stamps of a frame table, made of what the container tells, where it tells anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vfsd.codecs.probing.frame_rate import constant_rate
from vfsd.codecs.probing.packet_scan import NONE, Scan
from vfsd.core.frame_table_pages import Ints


@dataclass(frozen=True)
class Timeline:
    """Ticks of every packet, and when the last frame stops being shown."""

    pts: Ints
    dts: Ints
    end_pts: int
    variable_rate: bool
    average_rate: Fraction | None
    notes: tuple[str, ...] = ()


def continued(scan: Scan) -> tuple[Ints, Ints, bool]:
    """(pts, dts, whether they were changed) of a stream whose clock may be set back on the way.

    Where the decoding times run backwards, all that follows is moved to go on where what came
    before ends.
    """
    dts = scan.dts
    if len(dts) < 2 or (dts == NONE).any():
        return scan.pts, dts, False
    steps = np.diff(dts)
    back = np.flatnonzero(steps < 0)
    if not len(back):
        return scan.pts, dts, False
    usual = int(np.median(steps[steps > 0])) if (steps > 0).any() else 1
    shift = np.zeros(len(dts), np.int64)
    for at in back:
        shift[at + 1 :] += dts[at] + (int(scan.duration[at]) or usual) - dts[at + 1]
    return np.where(scan.pts == NONE, NONE, scan.pts + shift), dts + shift, True


def settle(
    pts: Ints,
    dts: Ints,
    duration: Ints,
    order: Ints,
    *,
    reorder_delay: int,
    time_base: Fraction,
    rate: Fraction | None,
    claims: Sequence[Fraction | None] = (),
) -> Timeline:
    """Complete the time stamps of a table.

    `order` is the packets that show a frame, in display order; their `pts` must be known and
    ascending.  Decoding times that are missing are made up so that they ascend and no frame is
    decoded after it is shown.  `rate` is the one that the container claims; `claims` are further
    ones, of the codec for example.
    """
    shown = pts[order]
    step = _step(shown, time_base, rate)
    dts = _decoding_times(pts, dts, order, reorder_delay, step)
    pts = np.where(pts == NONE, dts, pts)
    last = int(duration[order[-1]]) or step
    end_pts = int(shown[-1]) + max(1, last)
    average = _rate_of(shown, end_pts, time_base)
    if len(shown) < 2:
        return Timeline(pts, dts, end_pts, False, rate or average)
    constant = constant_rate(shown, time_base, (rate, *claims))
    return Timeline(pts, dts, end_pts, constant is None, constant or average or rate)


def _step(shown: Ints, time_base: Fraction, rate: Fraction | None) -> int:
    """Ticks from a frame to the next, usually."""
    if len(shown) > 1:
        return max(1, int(np.median(np.diff(shown))))
    return max(1, round(1 / (rate * time_base))) if rate else 1


def _decoding_times(pts: Ints, dts: Ints, order: Ints, delay: int, step: int) -> Ints:
    missing = dts == NONE
    if not missing.any():
        return dts
    known = np.flatnonzero(~missing)
    if len(known) and missing[: known[0]].sum() == missing.sum():
        # Only the first are not told: go back from there in usual steps.
        dts = dts.copy()
        dts[: known[0]] = dts[known[0]] - step * np.arange(known[0], 0, -1)
        return dts
    # A shown packet is decoded when the frame `delay` places before its rank is shown; a hidden
    # one along with the shown packet that follows it.
    shown = np.sort(order)
    times = pts[order]
    rank = np.arange(len(shown)) - delay
    decoded = np.where(rank >= 0, times[np.maximum(rank, 0)], times[0] + step * rank)
    following = np.searchsorted(shown, np.arange(len(pts)))
    return decoded[np.minimum(following, len(shown) - 1)]


def _rate_of(shown: Ints, end_pts: int, time_base: Fraction) -> Fraction | None:
    ticks = end_pts - int(shown[0])
    if ticks <= 0:
        return None
    return (Fraction(len(shown)) / (ticks * time_base)).limit_denominator(1 << 20)
