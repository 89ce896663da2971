"""Fitting a `DecodeCost` to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from vfsd.errors import UsageError
from vfsd.tiling.cost import DecodeCost, Work


def fit(works: Sequence[Work], seconds: Sequence[float]) -> tuple[DecodeCost, float]:
    """The costs that explain `seconds` best, and R2: the share of their variance explained.

    Least squares, each divided by its time: between the absolute error, to which only large reads
    count, and the relative one, to which reads of a fraction of a millisecond count as much.  No
    cost is negative: with four terms, the best of all subsets of them whose plain solution is
    positive is the solution of that problem.

    Raises `UsageError` for fewer than five measurements.
    """
    if len(works) < 5:
        raise UsageError(f"{len(works)} measurements do not tell what decoding costs")
    counts = np.array(
        [[work.starts, work.pictures, work.pixels, work.bytes] for work in works], np.float64
    )
    times = np.array(seconds, np.float64)
    weights = 1 / np.sqrt(times)
    rows = counts * weights[:, None]
    best, least = np.zeros(4), np.inf
    for count in range(1, 5):
        for terms in combinations(range(4), count):
            part, *_ = np.linalg.lstsq(rows[:, terms], times * weights, rcond=None)
            error = float(np.square(rows[:, terms] @ part - times * weights).sum())
            if (part >= 0).all() and error < least:
                best, least = np.zeros(4), error
                best[list(terms)] = part
    predicted = counts @ best
    spread = np.square(times - times.mean()).sum()
    r2 = 1 - float(np.square(times - predicted).sum() / spread) if spread > 0 else 0.0
    return DecodeCost(*map(float, best)), r2
