"""Measures the same read with tiles and without."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.codecs.frames.planes import pixel_layout
from vfsd.core.pixel_array import Pixels
from vfsd.core.timebase import human_bytes
from vfsd.core.view_request import View
from vfsd.errors import UsageError
from vfsd.read.read_plan import ReadPlan

_TRIES = 3
# Limit for a result; two results are in memory.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ReadComparison:
    """The best of a few tries each, in seconds from the call to the array."""

    seconds: float
    cpu_seconds: float  #: of all cores
    untiled_seconds: float
    untiled_cpu_seconds: float
    psnr: float | None  #: dB between the results; None: equal

    @property
    def gain(self) -> float:
        return self.untiled_seconds / self.seconds

    def record(self) -> dict[str, float | None]:
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "untiled_seconds": self.untiled_seconds,
            "untiled_cpu_seconds": self.untiled_cpu_seconds,
            "gain": self.gain,
            "psnr": self.psnr,
        }


def compare_reads(
    opened: Callable[[], AbstractContextManager[Store]],
    name: str,
    plan: ReadPlan,
    view: View,
    form: str,
    psnr: float | None,
    on_try: Callable[[], None],
) -> ReadComparison:
    """Read `view` with tiles of at least `psnr` dB (None: the store's minimum), and without tiles.

    Each try opens the store again, so that no decoder or frame is warm. Opening the store and
    reading the frame table are not timed. Raises `UsageError` if the result is too large for a
    comparison.
    """
    size = len(plan.frames) * plan.size[0] * plan.size[1] * 3
    if size > _MOST_BYTES:
        raise UsageError(
            f"the comparison would need two results of {human_bytes(size)} in memory",
            hint="read less, with --span, --region or --size",
        )
    ways = (psnr, math.inf)
    best = [(math.inf, math.inf) for _ in ways]
    results: list[Pixels] = [np.empty(0, np.uint8) for _ in ways]
    for _ in range(_TRIES):
        for way, least in enumerate(ways):
            with opened() as store:
                seconds, cpu_seconds, results[way] = _timed_read(store, name, view, form, least)
            best[way] = (min(best[way][0], seconds), min(best[way][1], cpu_seconds))
            on_try()
    return ReadComparison(*best[0], *best[1], _psnr_between(results[0], results[1], form))


def _timed_read(
    store: Store, name: str, view: View, form: str, psnr: float | None
) -> tuple[float, float, Pixels]:
    video = store[name]
    plan_view(context_of(video), view)
    frames = None if view.frames is None else slice(*view.frames)
    began, cpu = time.perf_counter(), time.process_time()
    data = video.read(
        span=view.span,
        frames=frames,
        region=view.region,
        size=view.size,
        fps=view.fps,
        format=form,
        psnr=psnr,
    ).data
    return time.perf_counter() - began, time.process_time() - cpu, data


def _psnr_between(one: Pixels, other: Pixels, form: str) -> float | None:
    squares = 0.0
    for left, right in zip(one, other, strict=True):
        squares += float(np.square(left.astype(np.float64) - right).sum())
    if squares == 0:
        return None
    peak = (1 << pixel_layout(form).bits) - 1
    return 10 * math.log10(peak * peak * one.size / squares)
