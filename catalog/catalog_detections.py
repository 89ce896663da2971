"""`CatalogDetections` stores and finds the detections of videos; `Catalog.detections.find`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from vfsd.catalog.detection_counts import merge_sums
from vfsd.catalog.detection_query import (
    DetectionQuery,
    boxes_of_videos,
    make_filter,
    require_same_bytes,
    sums_of_videos,
)
from vfsd.catalog.detections import Detections, Progress
from vfsd.catalog.video_query import require_video
from vfsd.core.detections import (
    Area,
    BoxTotal,
    DetectionColumns,
    Examined,
    Ints,
    LabelSummary,
    Source,
    source_from,
)
from vfsd.core.frames import frame_ranges, raw_indices, selected_frames
from vfsd.core.label_query import Labels, UnknownLabels, clauses_of, words_of
from vfsd.core.model import LogicalVideo
from vfsd.errors import ExistsError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.catalog.catalog import Catalog

Frames = Iterable[range] | Iterable[int] | Ints | int
"""Frame numbers from 0, ranges of them, or a mask."""


class BoxConditions(TypedDict, total=False):
    """The arguments of `find` besides the labels and the frames."""

    region: Area | None
    source: str | Source | None
    min_confidence: float | None
    track: int | None
    attributes: Mapping[str, Any] | None


class CatalogDetections:
    """The detections of all videos; `Catalog.detections.find`.

    Methods check their arguments, then work in one transaction.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known_labels: set[str] = set()  # cache; the catalog never drops a label

    def add(
        self,
        video: LogicalVideo,
        rows: DetectionColumns,
        source: str | Source | None,
        *,
        examined: Frames | None = None,
        replace: bool | range = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Add boxes, and the frames that their source has examined; return the number of boxes.

        All changes are made in one transaction.  Raises `UsageError` for an invalid selection of
        frames, `OutOfRangeError` for a frame outside the video, and `NotFoundError` if the video's
        bytes have changed since it was looked up.

        Args:
            video: The video that the boxes belong to.
            rows: The boxes.
            source: The source of all boxes.  None: each row has its own, and all of them have
                examined the frames.
            examined: Frames that the sources have examined.
            replace: First remove earlier boxes of the same sources, from the whole video or from
                a range of its frames.
            on_progress: Called with (done, total); may raise to cancel.
        """
        require_video(video)
        parts = rows.by_source() if source is None else [(source_from(source), rows)]
        ranges = [] if examined is None else _examined_ranges(examined, video)
        with self._changing(video) as index:
            _require_frames(video, _extent(rows))
            for one, _ in parts:
                if replace is not False:
                    index.remove(
                        video.id,
                        source_ids=index.known_sources(one),
                        frames=_runs(replace, video) if isinstance(replace, range) else None,
                    )
                if ranges:
                    index.mark_examined(video.id, ranges, one)
            _add(index, video, parts, on_progress)
        return len(rows)

    def add_new(
        self,
        video: LogicalVideo,
        rows: DetectionColumns,
        examined: Sequence[Examined] = (),
        *,
        on_progress: Progress | None = None,
    ) -> None:
        """Add boxes with their sources, and the frames that sources have examined.

        Raises `ExistsError`, and adds nothing, if a source has already added some of the boxes.
        Otherwise raises as `add`.
        """
        require_video(video)
        parts = rows.by_source()
        with self._changing(video) as index:
            known = sum(index.count_known(video.id, part, one) for one, part in parts)
            if known:
                raise ExistsError(
                    f"{known} of {len(rows)} boxes exist already, from the same source",
                    hint="`replace` removes its earlier boxes; another source keeps both",
                    command_hint="`--replace` removes its earlier boxes; another source keeps both",
                )
            _require_frames(video, _extent(rows))
            _note_examined(index, video, examined)
            _add(index, video, parts, on_progress)

    def replace(
        self,
        video: LogicalVideo,
        rows: DetectionColumns,
        examined: Sequence[Examined],
        sources: Sequence[Source],
        *,
        on_progress: Progress | None = None,
    ) -> int:
        """Like `add_new`, but first remove all boxes of `sources`; return the number
        removed.

        Raises as `add`.
        """
        require_video(video)
        with self._changing(video) as index:
            _require_frames(video, _extent(rows))
            gone = sum(
                index.remove(video.id, source_ids=index.known_sources(one)) for one in sources
            )
            _note_examined(index, video, examined)
            _add(index, video, rows.by_source(), on_progress)
        return gone

    def add_unexamined(
        self, video: LogicalVideo, rows: DetectionColumns, source: Source, frames: Ints
    ) -> int:
        """Add boxes on `frames` that `source` has not examined yet, and mark these examined.

        Frames that another process has added in the meantime are skipped.  Returns the number of
        boxes. Raises as `add`.
        """
        require_video(video)
        ranges = _examined_ranges(frames, video)
        with self._changing(video) as index:
            _require_frames(video, _extent(rows))
            left = index.not_examined(video.id, ranges, source)
            index.mark_examined(video.id, left, source)
            return index.add(video.id, _on_frames(rows, left), source)

    def mark_examined(
        self,
        video: LogicalVideo,
        frames: Frames,
        source: str | Source,
    ) -> None:
        """Record that `source` has examined `frames`, so that the absence of boxes is meaningful.

        Raises `UsageError` for an invalid selection, and `OutOfRangeError` and `NotFoundError` as
        `add` does.
        """
        require_video(video)
        ranges = _examined_ranges(frames, video)
        with self._changing(video) as index:
            index.mark_examined(video.id, ranges, source_from(source))

    def remove(
        self,
        video: LogicalVideo,
        *,
        labels: Sequence[str] | str | None = None,
        frames: range | Sequence[int] | Ints | int | None = None,
        source: str | Source | None = None,
    ) -> int:
        """Remove the boxes that satisfy every given condition; return their number.

        Without `labels`, the record of examined frames is dropped, too.  Raises `UsageError` for an
        invalid selection of frames, and for an AND of labels.

        Args:
            video: The video that the boxes belong to.
            labels: One label, or alternatives.
            frames: As for `find`.
            source: A source, or the name of sources.
        """
        require_video(video)
        wanted = None if labels is None else alternative_labels(labels)
        with self._changing(video) as index:
            return index.remove(
                video.id,
                source_ids=None if source is None else index.known_sources(source),
                label_ids=None if wanted is None else sorted(index.known_labels(wanted).values()),
                frames=None if frames is None else _runs(frames, video),
            )

    def find(
        self,
        video: LogicalVideo,
        labels: Labels | None = None,
        *,
        frames: range | Sequence[int] | Ints | int | None = None,
        region: Area | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> DetectionQuery:
        """Return the boxes that satisfy every given condition (see `DetectionFilter`).

        Raises `UsageError` for invalid arguments.

        Args:
            video: The video that the boxes belong to.
            labels: An expression of `vfsd.core.label_query`, or the lists that it stands for.
            frames: Numbers or a mask.  Negative numbers count from the end; numbers outside the
                video match nothing.
            region: Boxes that overlap it, in pixels of the displayed frame.
            source: A source, or the name of sources.
            min_confidence: Boxes without a confidence do not match.
            track: The number of a track.
            attributes: Keys with equal values.
        """
        require_video(video)
        chosen = None if frames is None else selected_frames(frames, video.original.frames)
        what = make_filter(labels, chosen, region, source, min_confidence, track, attributes)
        return DetectionQuery(self._catalog.connected, video, what)

    def find_in(
        self,
        videos: Sequence[LogicalVideo],
        labels: Labels | None = None,
        *,
        ranges: Sequence[range] | None = None,
        **conditions: Unpack[BoxConditions],
    ) -> tuple[Ints, DetectionColumns]:
        """Return the boxes of several videos that satisfy every given condition, as for `find`.

        `ranges` are the frames to search, of each video; default: all.  The result is the position
        in `videos` of each box's video, ascending, and the boxes, by frame within a video.  Raises
        `NotFoundError` if a video no longer exists or has other bytes.
        """
        what = make_filter(labels, **conditions)
        with self._catalog.connected() as connection:
            return boxes_of_videos(connection, videos, what, ranges)

    def sums_in(
        self,
        videos: Sequence[LogicalVideo] | None,
        labels: Labels | None = None,
        *,
        ranges: Sequence[range] | None = None,
        by_video: bool = True,
        **conditions: Unpack[BoxConditions],
    ) -> list[BoxTotal]:
        """Return the numbers of the boxes of `find_in`, by label, source and perhaps video.

        None for `videos` means all of the store.  Where labels and sources are the only conditions,
        no box is read.
        """
        what = make_filter(labels, **conditions)
        with self._catalog.reading() as seen:
            if what.is_counted and ranges is None:
                index = seen.detections
                words = what.labels[0].labels if what.labels else None
                sums = seen.box_counts.sums(
                    None if videos is None else [one.id for one in videos],
                    None if words is None else sorted(index.known_labels(words).values()),
                    _source_ids(index, what.source),
                    by_video=by_video,
                )
        if not what.is_counted or ranges is not None:
            chosen = list(self._catalog.find()) if videos is None else videos
            with self._catalog.connected() as connection:
                sums = sums_of_videos(connection, chosen, what, ranges)
            if not by_video:
                sums = merge_sums(one._replace(video_id=None) for one in sums)
        with self._catalog.reading() as seen:
            names = seen.detections.label_names({one.label_id for one in sums})
            sources = seen.detections.sources_by_id({one.source_id for one in sums})
            paths: Mapping[int, str] = {}
            if by_video and videos is None:
                paths = seen.lists.names_of_videos({one.video_id or 0 for one in sums})
            elif videos is not None:
                paths = {one.id: one.name for one in videos}
        made = [
            BoxTotal(
                names[one.label_id],
                sources[one.source_id],
                None if one.video_id is None else paths[one.video_id],
                one.boxes,
            )
            for one in sums
            if one.video_id is None or one.video_id in paths
        ]
        return sorted(made, key=lambda one: (one.video or "", one.label, str(one.source)))

    def examined_in(
        self, videos: Sequence[LogicalVideo], source: str | Source | None = None
    ) -> list[list[Examined]]:
        """Return the examined frames of each video, by source, then by frame."""
        with self._catalog.reading() as seen:
            index = seen.detections
            found = index.examined_in([one.id for one in videos], _source_ids(index, source))
        return [found.get(one.id, []) for one in videos]

    def looks_for(self, source: Source, labels: Sequence[str]) -> bool:
        """Return whether a source looks for one of `labels`.

        True if its parameters name it, or if the source has given it to a box of any video.
        """
        with self._catalog.reading() as seen:
            return seen.detections.detects_any(source, labels)

    def unknown_labels(self, *several: Labels | None) -> UnknownLabels:
        """Return the labels of expressions that no box in the store has ever had."""
        words = words_of(clause for labels in several for clause in clauses_of(labels))
        wanted = words - self._known_labels
        if not wanted:
            return UnknownLabels()
        with self._catalog.reading() as seen:
            self._known_labels |= seen.detections.known_labels(wanted).keys()
            wanted -= self._known_labels
            known = seen.detections.all_labels() if wanted else []
        return UnknownLabels(tuple(sorted(wanted)), tuple(known))

    def labels(
        self, video: LogicalVideo, *, source: str | Source | None = None
    ) -> list[LabelSummary]:
        """Return the labels of a video with their counts, by name.  Reads every box."""
        require_video(video)
        with self._catalog.reading() as seen:
            return seen.detections.summary(video.id, _source_ids(seen.detections, source))

    def sources(self, video: LogicalVideo) -> list[Source]:
        """Return the sources of a video's boxes or examined frames."""
        require_video(video)
        with self._catalog.reading() as seen:
            return seen.detections.sources_of(video.id)

    def examined(self, video: LogicalVideo, source: str | Source | None = None) -> list[Examined]:
        """Return the examined frames, by source, then by frame."""
        require_video(video)
        with self._catalog.reading() as seen:
            return seen.detections.examined(video.id, _source_ids(seen.detections, source))

    @contextmanager
    def _changing(self, video: LogicalVideo) -> Iterator[Detections]:
        """Yield the detections for a change; the video must still have the same bytes."""
        with self._catalog.writing() as change:
            require_same_bytes(change.detections, video)
            yield change.detections


def _source_ids(index: Detections, source: str | Source | None) -> list[int] | None:
    return None if source is None else index.known_sources(source)


def alternative_labels(labels: Labels) -> tuple[str, ...]:
    """Return the labels that count alike.  Raises `UsageError` for another expression."""
    clauses = clauses_of(labels)
    if len(clauses) > 1 or not clauses[0].is_plain:
        raise UsageError(
            f"labels must be alternatives, without & and not, got {labels!r}",
            hint='give "car" or ["car", "truck"]',
        )
    return clauses[0].labels


def _runs(frames: range | Sequence[int] | Ints | int, video: LogicalVideo) -> list[range]:
    return frame_ranges(selected_frames(frames, video.original.frames))


def _examined_ranges(frames: Frames, video: LogicalVideo) -> list[range]:
    """Raises `OutOfRangeError` also for negative numbers, which indicate a file that
    counts from 1.
    """
    several = [frames] if isinstance(frames, range) else frames
    if isinstance(several, Iterable) and not isinstance(several, (np.ndarray, str)):
        several = list(several)
        parts = [part for part in several if isinstance(part, range)]
        if len(parts) == len(several):
            _require_frames(video, [_frame_extent(part) for part in parts if part])
            return frame_ranges(parts)
    numbers = raw_indices(several, video.original.frames)
    if not len(numbers):
        return []
    _require_frames(video, [range(int(numbers.min()), int(numbers.max()) + 1)])
    return frame_ranges(numbers.astype(np.int64))


def _frame_extent(frames: Sequence[int]) -> range:
    """Return the range from the lowest to the highest of monotonic numbers."""
    low, high = sorted((frames[0], frames[-1]))
    return range(low, high + 1)


def _extent(rows: DetectionColumns) -> list[range]:
    if not len(rows):
        return []
    return [range(int(rows.frames.min()), int(rows.frames.max()) + 1)]


def _note_examined(index: Detections, video: LogicalVideo, examined: Sequence[Examined]) -> None:
    """Mark examined frames.  Raises `OutOfRangeError` for frames outside the video."""
    of_each: dict[Source, list[range]] = {}
    for one in examined:
        of_each.setdefault(one.source, []).append(one.frames)
    for source, frames in of_each.items():
        index.mark_examined(video.id, _examined_ranges(frames, video), source)


def _add(
    index: Detections,
    video: LogicalVideo,
    parts: Sequence[tuple[Source, DetectionColumns]],
    on_progress: Progress | None,
) -> None:
    total = sum(len(part) for _, part in parts)
    done = 0

    def report(now: int, _: int) -> None:
        if on_progress is not None:
            on_progress(done + now, total)

    for one, part in parts:
        done += index.add(video.id, part, one, on_progress=report)


def _on_frames(rows: DetectionColumns, frames: list[range]) -> DetectionColumns:
    chosen = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one) for one in frames)])
    return rows.select(np.isin(rows.frames, chosen))


def _require_frames(video: LogicalVideo, ranges: Iterable[range]) -> None:
    for one in ranges:
        if len(one) and (one.start < 0 or one.stop > video.original.frames):
            wrong = one.start if one.start < 0 else one.stop - 1
            raise OutOfRangeError(
                f"frame {wrong} does not exist: {video.name!r} has {video.original.frames}",
                hint="frames count from 0; a file that counts from 1 needs frame base 1",
            )
