"""`VideoLabels`: the labelled boxes of one video; `video.labels`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, Unpack

import numpy.typing as npt

from vfsd.catalog.catalog_detections import BoxConditions
from vfsd.catalog.detection_query import DetectionQuery
from vfsd.core.detections import (
    Area,
    Attributes,
    Detection,
    DetectionColumns,
    Examined,
    Ints,
    LabelSummary,
    Source,
)
from vfsd.core.frames import sliced
from vfsd.core.label_query import Labels, UnknownLabels
from vfsd.core.timebase import Span
from vfsd.errors import UnknownLabelWarning, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.validation import boolean

if TYPE_CHECKING:
    from vfsd.api.track import Tracked
    from vfsd.core.timebase import Seconds
    from vfsd.labels import LabeledVideo
    from vfsd.labels.detectors import Detector, Every
    from vfsd.labels.table_input import BoxTuple


class ArrowStream(Protocol):
    """A table of another library, by the PyCapsule interface of Arrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class VideoLabels:
    """The detections of one video.  They belong to its frames, not to one encoding of them.

    video.labels.add_box(7, "car", (10, 20, 90, 80), source="me")
    video.labels.detect(MotionDetector())
    for box in video.labels.query("car|truck", span=(0, 10)): ...
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("labels")
        self._video = video

    # -- adding

    def add_box(
        self,
        frame: int,
        label: str,
        box: tuple[float, float, float, float],
        confidence: float | None = None,
        track: int | None = None,
        *,
        source: str | Source,
        attributes: Attributes | None = None,
    ) -> None:
        """Add one box.

        Each call is a transaction; for many boxes `add` is a thousand times faster.  A box may
        reach beyond the frame, because trackers follow objects out of it.
        `DetectionColumns.clipped` and ``labels export --clip`` cut boxes at the edges.

        Args:
            frame: The frame number, from 0.
            label: The label, such as "car".
            box: x1, y1, x2, y2 in pixels of the displayed frame; x2 and y2 are exclusive.
            confidence: Any finite number, on the scale of the source; most use 0 to 1.
            track: The number of the object that the box belongs to.
            source: The program or person that found the box.
            attributes: Other values to store with the box, by name.

        Raises:
            UsageError: An argument is malformed.
            OutOfRangeError: The video has no such frame.
        """
        one = Detection(frame, label, box, confidence, track, None, attributes or {})
        self.add([one], source)

    def add(
        self,
        detections: DetectionColumns
        | Iterable[Detection]
        | Iterable[BoxTuple]
        | Iterable[Mapping[str, Any]]
        | Mapping[str, Any]
        | npt.NDArray[Any]
        | ArrowStream,
        source: str | Source | None = None,
        *,
        examined: Iterable[range] | Iterable[int] | Ints | int | None = None,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add boxes in one transaction; returns the number of boxes.

            video.labels.add([(7, "car", (10, 20, 90, 80)), (8, "car", (12, 20, 92, 80), 0.9)], "a")
            video.labels.add({"frame": frames, "label": "car", "box": boxes}, "yolo")
            video.labels.add(polars.read_csv("boxes.csv"), "yolo")

        Args:
            detections: The boxes: `Detection`s, their columns, tuples of frame, label, box and, if
                known, confidence and track; dicts with these names; a dict of arrays or a
                structured array; or a table of pyarrow, polars, DuckDB or pandas (any object with
                ``__arrow_c_stream__``).  A table has the columns that `Store.to_arrow`
                gives, in any order: frame, label, x1, y1, x2, y2 (or a list `box`), and possibly
                confidence, track, source, model, version and attributes.
            source: The source of all boxes.  None: each detection has its own.
            examined: The frames that the source has examined, with or without a result.
            replace: Remove all earlier boxes of the same source in this video.
            on_progress: Called with (boxes done, boxes in all).

        Raises:
            UsageError: An argument is malformed.
            OutOfRangeError: The video has no such frame.
            NotFoundError: The bytes of the video have changed.
            ExtraMissingError: A table is given, and pyarrow is not installed.
        """
        from vfsd.labels.table_input import boxes_from

        return self._video.parts.catalog.detections.add(
            self._video.info,
            boxes_from(detections, self._video.name),
            source,
            examined=examined,
            replace=boolean(replace, "replace"),
            on_progress=on_progress,
        )

    def add_new(
        self,
        detections: DetectionColumns,
        examined: Sequence[Examined] = (),
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Add boxes that each have a source, as those of a label file, and the frames `examined`.

        Raises `ExistsError`, and adds nothing, where a source has added some of them before;
        otherwise as `add`.
        """
        self._video.parts.catalog.detections.add_new(
            self._video.info, detections, examined, on_progress=on_progress
        )

    def replace(
        self,
        detections: DetectionColumns,
        examined: Sequence[Examined],
        sources: Sequence[Source],
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Replace all boxes of `sources` as `add_new` adds them, in one transaction.

        Returns the number of boxes that were removed.  Raises as `add`.
        """
        return self._video.parts.catalog.detections.replace(
            self._video.info, detections, examined, sources, on_progress=on_progress
        )

    def mark_examined(
        self, frames: Iterable[range] | Iterable[int] | Ints | int, source: str | Source
    ) -> None:
        """Note that `source` has examined `frames`, so that a frame without boxes means something.

        `frames` are numbers from 0, ranges of them, or a mask.  Raises `UsageError`,
        `OutOfRangeError`, and `NotFoundError` when the bytes of the video have changed.
        """
        self._video.parts.catalog.detections.mark_examined(self._video.info, frames, source)

    def remove(
        self,
        *,
        labels: str | Sequence[str] | None = None,
        frames: range | slice | Sequence[int] | Ints | int | None = None,
        source: str | Source | None = None,
    ) -> int:
        """Remove the boxes that match all arguments; returns their number.

        `labels` matches any of them; `frames` are as for `query`.  Without `labels`, these frames
        no longer count as examined by the sources, either.
        """
        return self._video.parts.catalog.detections.remove(
            self._video.info, labels=labels, frames=self._numbers(frames), source=source
        )

    def detect(
        self,
        detector: Detector,
        span: Span | None = None,
        every: Every | SupportsIndex | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        replace: bool = False,
        psnr: float = math.inf,
    ) -> int:
        """Run a detector on frames, and store its boxes; returns the number of boxes added.

        Boxes are stored one chunk of frames at a time: 64 frames, or as many as the detector looks
        at together.  The transaction of a chunk also marks its frames as examined.  After an
        interruption the same call continues: frames that this source has examined are not examined
        again.  Of two such calls at once, the chunk that is stored first counts.

        Args:
            detector: An object of `vfsd.labels.detectors`, or another with its methods.
            span: Seconds, start inclusive and end exclusive; default: all frames.
            every: Use each n-th frame of the video, or "key" frames; default: the detector's own.
            on_progress: Called with (frames done, frames in all); it may raise to stop.
            replace: Examine all frames again, and replace the earlier boxes of this source chunk by
                chunk.  An interruption leaves new boxes up to some frame, and old ones after it.
            psnr: Tiles of this quality may be read; by default the original alone is.

        Raises:
            UsageError: An argument is malformed, or the detector skips a frame in its answers.
            ReadOnlyError: The store was opened read-only.
            OutOfRangeError: The span has no frames.
            NotFoundError: The bytes of the video, or the numbers of its frames, have changed.
        """
        from vfsd.api.detect import detect

        return detect(self._video, detector, span, every, on_progress, replace, psnr)

    def track(
        self,
        labels: Labels | None = None,
        *,
        source: str | Source | None = None,
        gap: Seconds = 1,
        min_iou: float = 0.2,
    ) -> Tracked:
        """Link boxes into tracks of objects, and store the boxes again with these tracks.

            video.labels.track("car|truck", source="yolo")

        The new boxes have a source named "track", whose parameters name the source of the boxes.
        The same call replaces its earlier result; the detector's boxes stay as they are.  Frames
        that the detector has not examined do not count as gaps.  Only boxes are compared, not
        pixels.  Issues an `UnknownLabelWarning` as `query` does.

        Args:
            labels: Boxes of one kind of object, as for `query`.  None: all, each label on its own.
            source: The source of the boxes; needed where several sources have some.
            gap: Most seconds without a box within a track.  Up to two examined frames without one
                never end it.
            min_iou: Least overlap with the predicted box, as intersection over union; of the other
                boxes, a near one of about the same size continues the track.

        Raises:
            UsageError: An argument is malformed, or the boxes have several sources.
            NotFoundError: No source has such boxes or has examined the video, or its bytes have
                changed.
            ReadOnlyError: The store was opened read-only.
        """
        from vfsd.api.track import track

        warn_of_unknown_labels(self._video.parts.catalog.detections.unknown_labels(labels))
        return track(self._video, labels, source, gap, min_iou)

    # -- looking

    def query(
        self,
        labels: Labels | None = None,
        *,
        span: Span | None = None,
        frames: range | slice | Sequence[int] | Ints | int | None = None,
        region: Area | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> DetectionQuery:
        """The boxes that match all arguments, by frame.

        Iterating gives `Detection`s; `columns()` gives numpy arrays.  Issues an
        `UnknownLabelWarning` for a label that no box in the store has ever had.

        Args:
            labels: An expression such as "car|truck & not red" (see `vfsd.core.label_query`).
                Lists are not parsed: ["car", "truck"] is either, [["car", "truck"], ["red"]] is
                both on one object.
            span: Seconds, start inclusive and end exclusive.
            frames: Frame numbers; not together with `span`.
            region: x1, y1, x2, y2 in pixels; a box matches where it overlaps the region.
            source: The source of the boxes.
            min_confidence: The lowest confidence.
            track: The number of an object.
            attributes: Values that a box must have, by name.

        Raises:
            UsageError: An argument is malformed.
            OutOfRangeError: The span starts after the end of the video.
        """
        if span is not None and frames is not None:
            raise UsageError("give either a span of time or frames, not both")
        warn_of_unknown_labels(self._video.parts.catalog.detections.unknown_labels(labels))
        return find_boxes(
            self._video,
            labels,
            span=span,
            frames=self._numbers(frames),
            region=region,
            source=source,
            min_confidence=min_confidence,
            track=track,
            attributes=attributes,
        )

    def summary(self, *, source: str | Source | None = None) -> list[LabelSummary]:
        """The labels of the video by name, with numbers of boxes, frames and tracks."""
        return self._video.parts.catalog.detections.labels(self._video.info, source=source)

    def sources(self) -> list[Source]:
        """The sources that have added boxes to the video, or have examined frames of it."""
        return self._video.parts.catalog.detections.sources(self._video.info)

    def examined(self, source: str | Source | None = None) -> list[Examined]:
        """The frames that were examined, by source, then by frame."""
        return self._video.parts.catalog.detections.examined(self._video.info, source)

    def examined_for(self, label: str) -> list[Examined]:
        """The frames examined by sources that look for `label`.

        A source looks for a label that its parameters name, or that it has given to a box of any
        video.
        """
        with self._video.parts.catalog.reading() as seen:
            found = seen.detections.examined(self._video.info.id)
            asked = {one.source for one in found}
            givers = {who for who in asked if seen.detections.detects_any(who, [label])}
        return [one for one in found if one.source in givers]

    @property
    def clip(self) -> LabeledVideo:
        """Name, size and frames of the video, as the label formats of `vfsd.labels` need them."""
        from vfsd.labels import LabeledVideo

        info = self._video.info
        media = info.original.media
        return LabeledVideo(
            info.name,
            media.display_width,
            media.display_height,
            info.original.frames,
            lambda time: self._video.snapshot().index_at(time),
            info.original.duration,
        )

    def _numbers(
        self, frames: range | slice | Sequence[int] | Ints | int | None
    ) -> range | Sequence[int] | Ints | int | None:
        if isinstance(frames, slice):
            return sliced(range(self._video.original.frames), frames)
        return frames


def find_boxes(
    video: VideoContext,
    labels: Labels | None = None,
    *,
    span: Span | None = None,
    frames: range | Sequence[int] | Ints | int | None = None,
    **conditions: Unpack[BoxConditions],
) -> DetectionQuery:
    """The boxes of `VideoLabels.query`, without its warning.

    For a server or a command, which say in their answer what `CatalogDetections.unknown_labels`
    returns.  `frames` count only without `span`.
    """
    chosen = frames if span is None else video.frames_of_span(span)
    return video.parts.catalog.detections.find(video.info, labels, frames=chosen, **conditions)


def warn_of_unknown_labels(unknown: UnknownLabels) -> None:
    """Issue an `UnknownLabelWarning` at the caller of the calling function."""
    if unknown:
        warnings.warn(UnknownLabelWarning(str(unknown)), stacklevel=3)
