"""Cameras that see the same place: finds their videos, and stores their common pictures once.

The method follows VSS's joint compression (SIGMOD 2021), with criteria for trusting a homography
and a test for simultaneous recordings.
"""

from __future__ import annotations

from collections.abc import Iterable

from vfsd.api.store import Store
from vfsd.derive.retile import OnProgress
from vfsd.overlap import join_videos, overlap_search
from vfsd.overlap.join_encoder import JoinSettings
from vfsd.overlap.join_videos import JoinedPair, JoinReport
from vfsd.overlap.overlap_search import OverlapReport, SearchProgress, VideoPair
from vfsd.validation import boolean, value_or_default


def overlaps(
    store: Store, names: Iterable[str] | None = None, *, on_progress: SearchProgress | None = None
) -> OverlapReport:
    """Find the pairs of these videos (default: all) that show the same place.

    A few frames of each video are decoded.  All timelines are assumed to start at the same time.
    `on_progress` is called with (the current step, how much is done, how much there is).
    """
    videos = list(store.find()) if names is None else store.named(names)
    return overlap_search.find_overlaps(store.tools, videos, on_progress)


def overlap(store: Store, one: str, other: str) -> VideoPair | None:
    """Compare two videos; None if they do not show the same place."""
    return overlap_search.overlap_of(store.tools, store[one], store[other])


def join(
    store: Store,
    one: str,
    other: str,
    settings: JoinSettings | None = None,
    *,
    seconds_each: float = 1.0,
    dry_run: bool = False,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
) -> JoinReport:
    """Store the pictures of two overlapping cameras once for both; the originals stay.

    Args:
        store: the store of both videos.
        one: the name of a video.
        other: the name of the other video.
        settings: how to join; None takes the defaults.
        seconds_each: the approximate length of a run.  Runs in which every picture agrees are
            joined; the others, and runs that are joined already, stay as they are.
        dry_run: report what joining would do, and store nothing.
        jobs: the number of worker processes; None uses all cores.
        on_progress: called with (frames done, frames in all).

    Raises as `vfsd.overlap.join_videos.join_videos`.
    """
    if not boolean(dry_run, "dry_run"):
        store.parts.require_writable()
    return join_videos.join_videos(
        store.parts,
        store.tools,
        store[one],
        store[other],
        value_or_default(settings, JoinSettings),
        seconds_each=seconds_each,
        dry_run=dry_run,
        jobs=jobs,
        on_progress=on_progress,
    )


def split(store: Store, name: str, other: str | None = None) -> list[JoinedPair]:
    """Undo `join`: delete what a video shares with all videos that it is joined with.

    With `other`, only what it shares with that one is deleted.  Returns the pairs that were split.
    Raises `NotFoundError` where nothing is joined.
    """
    store.parts.require_writable()
    partner = None if other is None else store.catalog.video(other)
    return join_videos.split_joined(store.parts, store.catalog.video(name), partner)


def joined(store: Store, name: str | None = None) -> list[JoinedPair]:
    """The pairs of videos that are joined: all of them, or those of one video."""
    video = None if name is None else store.catalog.video(name)
    return join_videos.joined_pairs(store.parts, video)
