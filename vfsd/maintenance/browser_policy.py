"""Carries out the rule `browser` of policies: once for each video, a rendition for web browsers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.model import Segment
from vfsd.derive.rendition_plan import BROWSER_SETTINGS, browser_plan
from vfsd.derive.retile import OnProgress, missing_segments, retile, sample_segment
from vfsd.derive.tile_encoder import BetweenPictures
from vfsd.errors import UsageError
from vfsd.write.frame_index import verify

_CODEC = "h264"
# A forecast encodes a segment of this many videos.
_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class BrowserResult:
    """The outcome for one video."""

    made: list[Segment]
    """New segments; none if browsers play the video in that width, or it has the rendition."""
    refused: str | None = None  #: why there can be no rendition


@dataclass(frozen=True, slots=True)
class BrowserForecast:
    """The renditions that the rule would make."""

    videos: int  #: number of videos that would get a rendition
    seconds: float  #: their duration
    bytes: int  #: of the renditions, extrapolated from a few segments


def is_played(video: Video, width: int) -> bool:
    """Return whether all browsers play the original, and it is at most `width` pixels wide."""
    if video.original.media.display_width > width:
        return False
    return video.views.playable(can=[_CODEC]).origin == "original"


def make_browser_rendition(
    video: Video,
    width: int,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    between: BetweenPictures | None = None,
) -> BrowserResult:
    """Make the rendition if the video needs one, and note that the rule was carried out.

    A run that was stopped continues with the segments that are missing.  Until the end nothing is
    noted, so an error leaves the video to the next run.

    Args:
        video: The video.
        width: Pixels of the displayed frame, at most.
        jobs: The number of segments to encode at a time.
        on_progress: Called with (frames done, frames in all); it may raise to stop.
        between: Called before each picture, in the threads that work; it may wait, or raise.

    Raises as `vfsd.derive.retile.retile`.
    """
    context = context_of(video)
    context.parts.require_writable()
    context.reload_details()
    if not context.original.verified:
        verify(context, on_progress=lambda *_: None if between is None else between())
    info = context.info
    refused, made = None, list[Segment]()
    if not is_played(video, width):
        try:
            planned = browser_plan(context, width)
        except UsageError as error:  # pixels without a conversion
            refused = str(error)
        else:
            made = retile(
                context.parts,
                context.tools.pool,
                info,
                context.table,
                planned,
                BROWSER_SETTINGS,
                jobs=jobs,
                on_progress=on_progress,
                between=between,
            )
    with context.parts.catalog.writing() as change:
        change.retention.note_browser(info, width, time.time_ns(), refused)
    return BrowserResult(made, refused)


def forecast_browser(store: Store, path: str, width: int) -> BrowserForecast:
    """Return what a policy of `path` with that width would make, in addition to the policies now.

    A segment of a few videos is encoded in memory.  Raises `NotFoundError` for a missing path.
    """
    with store.catalog.reading() as seen:
        now = seen.retention.lacking_browser()
        then = seen.retention.lacking_browser(instead=(seen.tree.resolve(path).ino, width))
        found = [seen.videos.get(number) for number in then if now.get(number) != width]
    wanted = []
    for info in found:
        video = store.open_video(info)
        if not is_played(video, width) and _is_missing(video, width):
            wanted.append(video)
    seconds = sum(float(video.original.duration) for video in wanted)
    step = -(-len(wanted) // _SAMPLES) or 1
    sampled_bytes = sampled_seconds = 0.0
    for video in wanted[::step]:
        planned = browser_plan(context_of(video), width)
        middle = planned[len(planned) // 2]
        sample = sample_segment(
            store.parts,
            store.tools.pool,
            video.info,
            context_of(video).table,
            middle,
            BROWSER_SETTINGS,
        )
        sampled_bytes += sample.bytes
        sampled_seconds += float(video.original.duration) * len(middle.frames) / len(video)
    size = seconds * sampled_bytes / sampled_seconds if sampled_seconds else 0.0
    return BrowserForecast(len(wanted), seconds, round(size))


def _is_missing(video: Video, width: int) -> bool:
    context = context_of(video)
    try:
        planned = browser_plan(context, width)
    except UsageError:
        return False
    return bool(missing_segments(context.parts, video.info, planned, BROWSER_SETTINGS))
