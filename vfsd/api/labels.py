"""What has been seen in a video: the part of `vfsd.Video` that is about labelled boxes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vfsd.api.video_info import VideoFacts
from vfsd.catalog import DetectionQuery
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
from vfsd.core.frame_selection import sliced
from vfsd.core.label_query import Labels, unknown_labels_text
from vfsd.core.timebase import Seconds
from vfsd.errors import UnknownLabelWarning, UsageError
from vfsd.validation import yes_or_no

if TYPE_CHECKING:
    from vfsd.labels import LabeledVideo


class VideoLabels(VideoFacts):
    """The detections of one video.  They belong to its pixels, not to one encoding of them."""

    @property
    def clip(self) -> LabeledVideo:
        """What `vfsd.labels` has to know of the video to read and write label files."""
        from vfsd.labels import LabeledVideo

        media = self.info.original.media
        return LabeledVideo(
            self.info.name,
            media.display_width,
            media.display_height,
            self.info.original.frames,
            self.index_at,
        )

    # -- adding

    def add_detection(
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
        """Add one box: x1, y1, x2, y2 in pixels of the displayed frame, x2 and y2 exclusive.

        `confidence` is any finite number, on whatever scale the source has: 0 to 1 with most, but
        detections of the MOT Challenge and scores of COCO go beyond.  It is kept as it is.
        A box may reach beyond the frame, and is kept as it is, since trackers follow objects out of
        it; `DetectionColumns.clipped` and ``labels export --clip`` cut boxes at its edges.
        Each call is a transaction; for many boxes `add_detections` is a thousand times faster.
        Raises `UsageError`, `OutOfRangeError` for a frame that is not there.
        """
        one = Detection(frame, label, box, confidence, track, None, attributes or {})
        self.add_detections([one], source)

    def add_detections(
        self,
        detections: DetectionColumns | Iterable[Detection],
        source: str | Source | None,
        *,
        examined: Iterable[range] | Iterable[int] | Ints | int | None = None,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add what `source` has found, and note which frames it has `examined`; returns the number
        of boxes.

        All of it happens, or nothing.  With `replace`, everything that the very same source said
        of this video before goes.  Where `source` is None, each detection tells its own.  Raises
        `UsageError`, `OutOfRangeError`, `NotFoundError` when the video's bytes have changed.
        """
        rows = (
            detections
            if isinstance(detections, DetectionColumns)
            else DetectionColumns.from_detections(detections)
        )
        return self._parts.catalog.add_detections(
            self.info,
            rows,
            source,
            examined=examined,
            replace=yes_or_no(replace, "replace"),
            on_progress=on_progress,
        )

    def add_new_detections(
        self,
        detections: DetectionColumns,
        examined: Sequence[Examined] = (),
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Add boxes that each tell their source, as of a label file, and what was `examined`.

        Nothing is added where a source has said some of it before: `ExistsError`.  Else it raises
        as `add_detections`.
        """
        self._parts.catalog.add_new_detections(
            self.info, detections, examined, on_progress=on_progress
        )

    def replace_detections(
        self,
        detections: DetectionColumns,
        examined: Sequence[Examined],
        sources: Sequence[Source],
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """As `add_new_detections`, in the place of all that `sources` said before, in one
        transaction; how many boxes went.  Raises as `add_detections`."""
        return self._parts.catalog.replace_detections(
            self.info, detections, examined, sources, on_progress=on_progress
        )

    def mark_examined(
        self, frames: Iterable[range] | Iterable[int] | Ints | int, source: str | Source
    ) -> None:
        """Note that `source` has looked at `frames`, so that finding nothing means something.

        Numbers from 0 on, ranges of them, or a mask.  Raises `UsageError` for what is neither,
        `OutOfRangeError`, `NotFoundError` when the video's bytes have changed.
        """
        self._parts.catalog.mark_examined(self.info, frames, source)

    def remove_detections(
        self,
        *,
        labels: str | Sequence[str] | None = None,
        frames: range | slice | Sequence[int] | Ints | int | None = None,
        source: str | Source | None = None,
    ) -> int:
        """Remove the boxes for which everything given holds; returns their number.

        `labels`: any of them.  `frames`: as `detections` takes them.  Without `labels`, those
        frames no longer count as examined by the sources, either.
        """
        if isinstance(frames, slice):
            frames = sliced(range(self.info.original.frames), frames)
        return self._parts.catalog.remove_detections(
            self.info, labels=labels, frames=frames, source=source
        )

    # -- looking

    def detections(
        self,
        labels: Labels | None = None,
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | Sequence[int] | Ints | int | None = None,
        region: Area | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        track: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> DetectionQuery:
        """The boxes for which everything given holds, by frame.

        `labels`: an expression such as "car|truck & red" (see `vfsd.core.label_query`), or lists
        of labels that are not parsed: ["car", "truck"] for either, [["car", "truck"], ["red"]] for
        both on one object.  A label that no box in the store has ever had causes an
        `UnknownLabelWarning`.
        `span`: frames that appear in ``span[0] <= t < span[1]`` seconds.  `region`: x1, y1, x2,
        y2; what shares a part of it.  Iterating gives `Detection`s; `columns()` numpy arrays.
        Raises `UsageError`, `OutOfRangeError` for a span that starts after the end.
        """
        if span is not None and frames is not None:
            raise UsageError("give either a span of time or frames, not both")
        if isinstance(frames, slice):
            frames = sliced(range(self.info.original.frames), frames)
        if span is not None:
            frames = self.frames_of_span(span)
        catalog = self._parts.catalog
        unknown = catalog.unknown_labels(labels) if labels is not None else []
        if unknown:
            text = unknown_labels_text(unknown, catalog.all_labels())
            warnings.warn(UnknownLabelWarning(text), stacklevel=2)
        return catalog.detections(
            self.info,
            labels,
            frames=frames,
            region=region,
            source=source,
            min_confidence=min_confidence,
            track=track,
            attributes=attributes,
        )

    def labels(self, *, source: str | Source | None = None) -> list[LabelSummary]:
        """The labels there are, by name, with numbers of boxes, frames and tracks."""
        return self._parts.catalog.labels(self.info, source=source)

    def sources(self) -> list[Source]:
        """Who has said anything of the video, or has examined any of it."""
        return self._parts.catalog.sources(self.info)

    def examined(self, source: str | Source | None = None) -> list[Examined]:
        """The frames that have been looked at, by source, then by frame."""
        return self._parts.catalog.examined(self.info, source)

    def examined_for(self, label: str) -> list[Examined]:
        """The frames examined by sources that look for `label`: those whose parameters say so, and
        those that have given it to a box of any video."""
        with self._parts.catalog.reading() as seen:
            found = seen.detections.examined(self.info.id)
            asked = {one.source for one in found}
            givers = {who for who in asked if seen.detections.is_known_to_give(who, [label])}
        return [one for one in found if one.source in givers]
