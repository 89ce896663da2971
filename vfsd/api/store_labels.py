"""`StoreDetections`: the labelled boxes of many videos; `Store.detections`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from vfsd.catalog.catalog_detections import BoxConditions
from vfsd.catalog.detection_query import make_filter
from vfsd.core.detections import BoxTotal, Detection, DetectionColumns
from vfsd.core.label_query import Labels, UnknownLabels
from vfsd.core.timebase import Span
from vfsd.errors import OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.read.read_context import VideoContext

_VIDEOS_AT_ONCE = 400
_KEYS = ("label", "source", "video")

FramesOf = Callable[["VideoContext"], range]
"""The frames of a video to search; raises `OutOfRangeError` for a video without them."""


class StoreDetections:
    """The boxes of several videos that match all conditions: by video, then by frame.

    Lazy: every access queries the catalog again, in a statement for a few hundred videos.
    """

    def __init__(
        self,
        store: Store,
        videos: Callable[[], Sequence[VideoContext]] | None,
        labels: Labels | None,
        frames_of: FramesOf | None,
        **conditions: Unpack[BoxConditions],
    ) -> None:
        """Use `Store.detections`.  Without `videos`, all of the store are meant."""
        make_filter(labels, **conditions)  # raises for malformed ones
        self._store = store
        self._videos = videos
        self._labels = labels
        self._frames_of = frames_of
        self._conditions = conditions

    def __iter__(self) -> Iterator[tuple[str, Detection]]:
        """Yield the name of a video and a box."""
        return ((name, box) for name, rows in self.by_video() for box in rows)

    def __len__(self) -> int:
        """Number of matching boxes."""
        return sum(one.boxes for one in self.counts([]))

    def __bool__(self) -> bool:
        return len(self) > 0

    @property
    def unknown_labels(self) -> UnknownLabels:
        """The labels of the expression that no box in the store has ever had."""
        return self._store.catalog.detections.unknown_labels(self._labels)

    def by_video(self) -> Iterator[tuple[str, DetectionColumns]]:
        """Yield the name of each video that has matching boxes, and their columns.

        Raises `OutOfRangeError` where no video lasts until the span.
        """
        index = self._store.catalog.detections
        for videos, ranges in self._chosen():
            infos = [one.info for one in videos]
            places, rows = index.find_in(infos, self._labels, ranges=ranges, **self._conditions)
            bounds = np.searchsorted(places, np.arange(len(videos) + 1)).tolist()
            for video, start, stop in zip(videos, bounds[:-1], bounds[1:], strict=True):
                if start < stop:
                    yield video.name, rows.select(slice(start, stop))

    def counts(self, by: Sequence[str] = ("label", "source")) -> list[BoxTotal]:
        """The numbers of boxes, by name of the video, then by label and source.

            store.detections(names="cam1/**").counts(["video", "label"])

        `by` has any of "label", "source" and "video"; the others are None, or "" for a label.
        Sources are not added up, unless `by` is without "source": two detectors count one object
        twice.  Where labels and sources are the only conditions, no box is read.
        """
        if isinstance(by, str) or not set(by) <= set(_KEYS):
            raise UsageError(f"by must be a list of {', '.join(_KEYS)}, got {by!r}")
        found: dict[BoxTotal, int] = {}
        for one in self._sums(by_video="video" in by):
            key = BoxTotal(
                one.label if "label" in by else "",
                one.source if "source" in by else None,
                one.video,
                0,
            )
            found[key] = found.get(key, 0) + one.boxes
        return [key._replace(boxes=boxes) for key, boxes in found.items()]

    def _sums(self, *, by_video: bool) -> Iterator[BoxTotal]:
        index = self._store.catalog.detections
        if self._videos is None and self._frames_of is None:
            yield from index.sums_in(None, self._labels, by_video=by_video, **self._conditions)
            return
        for videos, ranges in self._chosen():
            infos = [one.info for one in videos]
            yield from index.sums_in(
                infos, self._labels, ranges=ranges, by_video=by_video, **self._conditions
            )

    def _chosen(self) -> Iterator[tuple[list[VideoContext], list[range] | None]]:
        """Yield some videos at a time, and the frames to search in each."""
        found = self._all_videos() if self._videos is None else list(self._videos())
        ranges, error = None, None
        if self._frames_of is not None:
            kept, ranges = [], []
            for video in found:
                try:
                    ranges.append(self._frames_of(video))
                    kept.append(video)
                except OutOfRangeError as one:
                    error = one
            if error is not None and not kept:
                raise error
            found = kept
        for at in range(0, len(found), _VIDEOS_AT_ONCE):
            part = slice(at, at + _VIDEOS_AT_ONCE)
            yield found[part], None if ranges is None else ranges[part]

    def _all_videos(self) -> list[VideoContext]:
        from vfsd.api.video import context_of

        return [context_of(video) for video in self._store.find()]


def detections(
    store: Store,
    labels: Labels | None,
    names: str | Sequence[str] | None,
    span: Span | None,
    **conditions: Unpack[BoxConditions],
) -> StoreDetections:
    """See `Store.detections`."""
    from vfsd.api.video import context_of

    def videos() -> list[VideoContext]:
        return [context_of(video) for video in store.named(names or ())]

    return StoreDetections(
        store,
        None if names is None else videos,
        labels,
        None if span is None else lambda video: video.frames_of_span(span),
        **conditions,
    )
