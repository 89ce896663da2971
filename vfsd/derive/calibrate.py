"""Measures the cost of decoding on this host.

Synthetic pictures are encoded in several sizes and qualities and decoded again.  A cost model is
fitted to the CPU times (see `vfsd.tiling.cost`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from vfsd.codecs.cells.decode_timing import TIMED_CODECS, is_encoder_available, timed_decodes
from vfsd.core.model import MeasuredCost
from vfsd.core.process_control import host_name
from vfsd.storage.context import StoreContext
from vfsd.tiling.cost import fit_decode_cost
from vfsd.validation import not_one_of
from vfsd.write.ingest_file import software_versions

_log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called with (codecs done, all codecs), now and then; may raise to stop."""


def calibrate(
    parts: StoreContext, codecs: Collection[str] = (), *, on_progress: OnProgress | None = None
) -> list[MeasuredCost]:
    """Measure `codecs`, by default all, and store the results in the catalog for later reads.

    Names are those of FFmpeg or of tile codecs.  Codecs without an installed encoder are skipped
    with a warning.  Raises `UsageError` for an unknown codec.
    """
    for name in codecs:
        if name not in TIMED_CODECS:
            raise not_one_of("codec", name, TIMED_CODECS)
    chosen = [name for name in TIMED_CODECS if not codecs or name in codecs]
    names = [name for name in chosen if is_encoder_available(name)]
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
    """Measure one codec, by FFmpeg's name or that of a tile codec.

    `meanwhile` is called after each of some dozens of trials; it may raise.
    """
    done = []
    for trial in timed_decodes(name):
        done.append(trial)
        meanwhile()
    cost, r2 = fit_decode_cost([trial.work for trial in done], [trial.seconds for trial in done])
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
        software=software_versions(),
        measured_ns=time.time_ns(),
    )
