"""Representations of stores, videos, lazy arrays and scans for a notebook.

Decoding is bounded: it stops before the predicted CPU time of all pictures exceeds a second.  The
read log gets no note, because the tuner must not make tiles for displays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from vfsd.core.frames import CropRequest, crop_caption
from vfsd.core.rich_repr import (
    MAX_PICTURES,
    MAX_ROWS,
    MAX_SECONDS,
    MAX_SIDE,
    THUMBNAIL_SIDE,
    escaped,
    sheet,
    table,
    thumbnail_tag,
)
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.core.view_request import View
from vfsd.errors import VfsdError
from vfsd.read.explain_read import explain_plan
from vfsd.read.read_context import VideoContext
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import plan_frames
from vfsd.tiling import Rect

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.core.pixel_array import Pixels

_POSTER_SIDE = 320


def store_html(store: Store) -> str:
    """The first videos of a store by name."""
    try:
        names = store.catalog.find().names()
        rows = []
        for name in names[:MAX_ROWS]:
            with suppress(VfsdError):  # it was removed just now
                rows.append(_video_cells(store, name))
    except VfsdError as error:  # a repr must not fail
        return f"{escaped(repr(store))}: {escaped(error)}"
    headings = ("name", "size", "duration", "frames", "codec", "bytes", "tags")
    return table(f"{store!r}: {len(names):,} videos", headings, rows, len(names))


def _video_cells(store: Store, name: str) -> tuple[object, ...]:
    info = store.catalog.video(name)
    media = info.original.media
    return (
        info.name,
        f"{media.display_width}x{media.display_height}",
        clock_text(info.original.duration),
        info.original.frames,
        media.codec,
        human_bytes(info.size),
        ", ".join(sorted(info.tags)),
    )


def video_html(video: VideoContext) -> str:
    """The first frame of a video, and facts about it."""
    original = video.original
    media = original.media
    tag = None
    for pixels, _ in pictures(video, [0], _POSTER_SIDE):
        tag = thumbnail_tag(pixels, _POSTER_SIDE)
    rate = original.mean_rate
    facts = [
        ("size", f"{media.display_width}x{media.display_height}"),
        ("duration", clock_text(original.duration)),
        ("frames", original.frames),
        ("fps", "-" if rate is None else f"{float(rate):.3f}"),
        ("codec", f"{media.codec} in {media.container}"),
        ("bytes", human_bytes(video.info.size)),
        ("tags", ", ".join(sorted(video.info.tags)) or "-"),
    ]
    return f"<div>{tag or ''}{table(video.name, ('', ''), facts)}</div>"


def array_html(video: VideoContext, frames: Sequence[int] | Any, region: Rect, title: str) -> str:
    """Evenly spaced frames of a lazy array, as many as are cheap to decode."""
    count = min(len(frames), MAX_PICTURES // 2)
    places = np.linspace(0, len(frames) - 1, count).round().astype(int).tolist() if count else []
    chosen = [int(frames[place]) for place in places]
    # Far apart, each costs the decoding from its key frame on.
    while len(chosen) > 1 and _predicted(video, chosen, region) > MAX_SECONDS:
        chosen = chosen[::2][: len(chosen) // 2]
    found = pictures(video, chosen, THUMBNAIL_SIDE, region)
    return sheet(title, found, len(frames))


def crops_html(video: VideoContext, requests: Iterable[CropRequest], title: str, total: int) -> str:
    """The first crops of a scan, as many as are cheap to decode."""

    def crops() -> Iterator[tuple[Pixels, str]]:
        left = MAX_SECONDS
        for one in islice(requests, MAX_PICTURES):
            left -= _predicted(video, [one.frame], one.rect)
            if left < 0:
                return
            for pixels, _ in pictures(video, [one.frame], THUMBNAIL_SIDE, one.rect):
                yield pixels, crop_caption(one)

    return sheet(title, crops(), total)


def pictures(
    video: VideoContext, frames: Sequence[int], side: int, region: Rect | None = None
) -> Iterator[tuple[Pixels, str]]:
    """Frames at most `side` pixels wide and high, with a caption; none where that is expensive.

    Damage and files that are gone end the pictures: what a notebook shows must not fail.
    """
    assert side <= MAX_SIDE
    with suppress(VfsdError, OSError):
        if not frames or _predicted(video, frames, region) > MAX_SECONDS:
            return
        snapshot = video.snapshot()
        area = region or snapshot.original.media.frame_rect
        scale = min(1.0, side / max(area.width, area.height))
        size = max(1, round(area.width * scale)), max(1, round(area.height * scale))
        plan = plan_frames(
            np.asarray(frames, np.int64),
            View(region=region, size=size),
            snapshot.original,
            snapshot.table,
            tiles=video.tiles(snapshot.info, None),
        )
        data = PlanExecutor(snapshot.table, video.tools).execute(plan, pixel_format="rgb24")
        base = float(snapshot.original.time_base)
        for frame, pixels in zip(frames, data, strict=True):
            seconds = (snapshot.table.frame_pts(frame) - snapshot.original.first_pts) * base
            yield pixels, f"{frame}: {seconds:.3f} s"


def _predicted(video: VideoContext, frames: Sequence[int], region: Rect | None) -> float:
    """CPU seconds of decoding frames; infinite where that cannot be said."""
    with suppress(VfsdError, OSError):
        snapshot = video.snapshot()
        plan = plan_frames(
            np.asarray(frames, np.int64),
            View(region=region),
            snapshot.original,
            snapshot.table,
            tiles=video.tiles(snapshot.info, None),
        )
        return explain_plan(plan, snapshot.table, video.costs).seconds
    return float("inf")
