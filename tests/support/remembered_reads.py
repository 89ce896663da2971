"""Logged reads that never happened, as after months of use."""

from __future__ import annotations

import time
from dataclasses import replace

from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.model import LoggedRead
from vfsd.core.view_request import View
from vfsd.read.read_log import ReadTiming, describe_planned_read
from vfsd.tiling import Rect


def region_read(video: Video, frames: range, region: Rect) -> LoggedRead:
    """A read of a region of consecutive frames."""
    plan = plan_view(context_of(video), View(frames=(frames.start, frames.stop, 1), region=region))
    timing = ReadTiming(time.time_ns(), 0.01)
    return describe_planned_read(
        "api", plan, context_of(video).table, context_of(video).costs, timing
    )


def label_read(video: Video, frames: range, *labels: str) -> LoggedRead:
    """A scan for boxes with any of `labels`."""
    whole = region_read(video, frames, video.original.media.frame_rect)
    return replace(whole, kind="scan", labels=(tuple(labels),))


def remember(store: Store, video: Video, *reads: LoggedRead, times: int = 1) -> None:
    """Log each of these reads that many times in a row."""
    now = time.time_ns()
    many = [
        (video.info.digest, replace(read, at_ns=now + number))
        for number in range(times)
        for read in reads
    ]
    store.catalog.note_reads(many, keep=1_000_000)
