"""Measuring what decoding costs on this host.

Pictures of a textured scene with moving parts and noise are encoded in several sizes and
qualities, decoded again, and the CPU time of each decode is explained by what it had to do (see
`vfsd.tiling.cost`), with as small a relative error as can be.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from vfsd.codecs.cells.decode_timing import TRIAL_CODECS, can_be_tried, trials
from vfsd.core.hostinfo import host_name
from vfsd.core.model import MeasuredCost
from vfsd.storage.context import Parts
from vfsd.tiling.cost_fit import fit
from vfsd.validation import not_one_of
from vfsd.write.ingest import software

_log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called with (codecs done, codecs in all), now and then; it may raise."""


def calibrate(
    parts: Parts, codecs: Collection[str] = (), *, on_progress: OnProgress | None = None
) -> list[MeasuredCost]:
    """Measure `codecs`, or every one, and keep the results in the catalog, where reads find them.

    They are named as FFmpeg calls them, or as tile codecs are.  Those whose encoders are not
    installed are left out, which a warning tells.  Raises `UsageError` for one that is not known.
    """
    for name in codecs:
        if name not in TRIAL_CODECS:
            raise not_one_of("codec", name, TRIAL_CODECS)
    chosen = [name for name in TRIAL_CODECS if not codecs or name in codecs]
    names = [name for name in chosen if can_be_tried(name)]
    for name in chosen:
        if name not in names:
            _log.warning("%s is not measured: its encoder is not installed", name)
    measured = []
    for done, name in enumerate(names):

        def report(done: int = done) -> None:
            if on_progress is not None:
                on_progress(done, len(names))

        report()
        measured.append(measure(name, report))
    with parts.catalog.writing() as change:
        for cost in measured:
            change.costs.put(cost)
    return measured


def measure(name: str, meanwhile: Callable[[], None] = lambda: None) -> MeasuredCost:
    """One codec: FFmpeg's name, or that of a tile codec.

    `meanwhile` is called after each trial, of which there are some dozens; it may raise.
    """
    done = []
    for trial in trials(name):
        done.append(trial)
        meanwhile()
    cost, r2 = fit([trial.work for trial in done], [trial.seconds for trial in done])
    encoding = [trial for trial in done if trial.encode_seconds is not None]
    encode_pixel = None
    if encoding:
        encode_pixel = sum(trial.encode_seconds or 0 for trial in encoding) / sum(
            trial.work.pixels for trial in encoding
        )
    return MeasuredCost(
        host=host_name(),
        name=name,
        decode=cost,
        encode_pixel=encode_pixel,
        r2=r2,
        samples=len(done),
        software=software(),
        measured_ns=time.time_ns(),
    )
