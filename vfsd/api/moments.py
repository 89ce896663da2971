"""Labelled runs of frames: `video.moments`, and `find_moments` over several videos."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, SupportsFloat

from vfsd.api.events import Event
from vfsd.api.labels import warn_of_unknown_labels
from vfsd.catalog.catalog_detections import alternative_labels
from vfsd.catalog.detection_query import require_same_bytes
from vfsd.core.detections import Source, check_attributes, require_word, source_from
from vfsd.core.frames import frame_ranges
from vfsd.core.label_query import Labels, clauses_of
from vfsd.core.moments import (
    FrameRun,
    Moment,
    MomentRow,
    matches_clauses,
    unlabelled_windows,
)
from vfsd.core.timebase import Seconds, Span, seconds
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.validation import boolean

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.labels.moment_files import FileMoment

When = Span | range
"""Seconds, start inclusive and end exclusive; or a range of frames."""

MomentTuple = tuple[When, str] | tuple[When, str, float | None]


class VideoMoments:
    """The labelled runs of frames of one video.

    video.moments.add((12.4, 15.1), "eating", source="anna")
    for moment in video.moments.query("eating|drinking", span=(0, 60)):
        video.views.open(moment.name + ".mp4")

    Labels and sources are those of boxes.  A source has one moment of each label and run of frames:
    adding it again replaces its confidence and attributes.
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("moments")
        self.video = video

    def add(
        self,
        when: When,
        label: str,
        *,
        source: str | Source,
        confidence: float | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Moment:
        """Add one moment, and return it.

        Args:
            when: Seconds (start, end), which select the frames that appear from the start up to
                the end; or a range of frames.
            label: The label, such as "eating".
            source: The program or person that found the moment.
            confidence: Any finite number, on the scale of the source.
            attributes: Other values to store with it, by name.

        Raises:
            UsageError: An argument is malformed, or no frame appears in that time.
            OutOfRangeError: It reaches outside of the video.
            NotFoundError: The bytes of the video have changed.
        """
        row = MomentRow(self.frames_of(when), label, confidence, dict(attributes or {}))
        row = _checked_row(row)
        _store([(self.video, {source_from(source): [row]})], merge=False, replace=False)
        return Moment(
            self.video.name,
            row.frames,
            seconds_of(self.video, row.frames),
            row.label,
            source_from(source),
            row.confidence,
            row.attributes,
        )

    def add_many(
        self,
        rows: Iterable[Event] | Iterable[FrameRun] | Iterable[MomentTuple],
        source: str | Source | None = None,
        *,
        label: str | None = None,
        merge: bool = False,
        replace: bool = False,
    ) -> int:
        """Add moments in one transaction; returns the number of rows.

            video.moments.add_many([((1, 2), "red"), (range(90, 120), "green", 0.9)], "lights")
            video.moments.add_many(video.events("near(a, b)", a="car", b="person"), "rule",
                                   label="near miss")

        Args:
            rows: Events or moments of this video, or tuples of when, label and perhaps confidence.
            source: The source of all rows.  None: that of each moment.
            label: The label of all rows, for events and windows, which have none.
            merge: Join the moments of a label and source that overlap or follow each other, with
                those that are there already.
            replace: Remove all earlier moments of the same source in this video first.

        Raises:
            UsageError: An argument is malformed, or a row belongs to another video.
            OutOfRangeError: A row reaches outside of the video.
            NotFoundError: The bytes of the video have changed.
        """
        by_source: dict[Source, list[MomentRow]] = {}
        chosen = None if source is None else source_from(source)
        for row in rows:
            one = chosen or (row.source if isinstance(row, Moment) else None)
            if one is None:
                raise UsageError("moments without a source need one", hint='give source="me"')
            by_source.setdefault(one, []).append(_checked_row(self._row(row, label)))
        if not by_source and chosen is not None:
            by_source[chosen] = []
        flags = boolean(merge, "merge"), boolean(replace, "replace")
        _store([(self.video, by_source)], merge=flags[0], replace=flags[1])
        return sum(map(len, by_source.values()))

    def query(
        self,
        label: Labels | None = None,
        span: Span | None = None,
        *,
        frames: range | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
    ) -> list[Moment]:
        """The moments that match all arguments, by their first frame.

        Issues an `UnknownLabelWarning` for a label that nothing in the store has ever had.

        Args:
            label: An expression such as "eating|drinking" (see `vfsd.core.label_query`).  ``a & b``
                are moments whose frames have both labels.
            span: Seconds: moments that overlap it, start inclusive and end exclusive.
            frames: Moments that overlap these frames; not together with `span`.
            source: The source of the moments.
            min_confidence: The lowest confidence; moments without one do not match.

        Raises:
            UsageError: An argument is malformed.
            OutOfRangeError: The span starts after the end of the video.
        """
        if span is not None and frames is not None:
            raise UsageError("give either a span of time or frames, not both")
        warn_of_unknown_labels(self.video.parts.catalog.detections.unknown_labels(label))
        chosen = frames if span is None else self.video.frames_of_span(span)
        return find_moments(
            [self.video], label, frames=chosen, source=source, min_confidence=min_confidence
        )

    def remove(
        self,
        *,
        labels: str | Sequence[str] | None = None,
        when: When | None = None,
        source: str | Source | None = None,
    ) -> int:
        """Remove the moments that match all arguments; returns their number.

        `labels` matches any of them; `when` selects moments that lie in it as a whole.  Raises
        `UsageError` for labels with ``&`` or ``not``.
        """
        names = None if labels is None else alternative_labels(labels)
        with self.video.parts.catalog.writing() as change:
            require_same_bytes(change.detections, self.video.info)
            return change.moments.remove(
                self.video.info.id,
                labels_of=names,
                source_ids=None if source is None else change.detections.known_sources(source),
                frames=None if when is None else self.frames_of(when),
            )

    def unlabelled(
        self, seconds_each: Seconds = 1, *, source: str | Source | None = None
    ) -> list[FrameRun]:
        """The windows of the video in which a source has no moment and no box.

            random.choice(video.moments.unlabelled(5, source="anna")).name

        Windows follow each other from the first frame on; the last one may be shorter, and those
        without a frame are left out.  A window that the source has examined as a whole does not
        count as unlabelled.

        Args:
            seconds_each: The length of a window.
            source: None: all sources together.

        Raises `UsageError` for a length that is not positive.
        """
        length = seconds(seconds_each)
        snapshot, info = self.video.snapshot(), self.video.info
        if length <= 0:
            raise UsageError(f"seconds must be more than 0, got {shown(seconds_each)}")
        count = math.ceil(snapshot.original.duration / length)
        windows = (
            snapshot.times.between(place * length, (place + 1) * length) for place in range(count)
        )
        catalog = self.video.parts.catalog
        rows = catalog.detections.find(info, source=source).columns()
        sources = None if source is None else [source]
        with catalog.reading() as seen:
            labelled = [row.frames for _, _, row in seen.moments.find([info.id], None, sources)]
        labelled += frame_ranges(rows.frames)
        examined = [one.frames for one in catalog.detections.examined(info, source)]
        found = unlabelled_windows((one for one in windows if one), labelled, examined)
        return [FrameRun(info.name, frames, seconds_of(self.video, frames)) for frames in found]

    def frames_of(self, when: When) -> range:
        """Return the frames of a time; a time without a frame is an error.

        Raises `UsageError`, `OutOfRangeError`.
        """
        if isinstance(when, range):
            if when.step != 1 or not when:
                raise UsageError(f"frames must be a range with step 1, got {when}")
            return when
        frames = self.video.frames_in(when)
        if not frames:
            raise UsageError(f"no frame appears in the span {shown(when)}")
        return frames

    def _row(self, row: object, label: str | None) -> MomentRow:
        if isinstance(row, Event | FrameRun):
            if row.video != self.video.name:
                raise UsageError(f"the moment is of {row.video!r}, not of {self.video.name!r}")
            if isinstance(row, Moment):
                return MomentRow(row.frames, label or row.label, row.confidence, row.attributes)
            if label is None:
                raise UsageError("events and windows need a label", hint='give label="crossing"')
            return MomentRow(row.frames, label)
        if isinstance(row, tuple) and 1 <= len(row) <= 3:
            when, word, confidence = (*row, None, None)[:3]
            return MomentRow(self.frames_of(when), label or word, confidence)
        raise UsageError(
            f"a moment must be an event, a moment or a tuple, got {shown(row)}",
            hint='for example ((12.4, 15.1), "eating")',
        )


_RowsBySource = Mapping[Source, Sequence[MomentRow]]


def import_moments(
    rows: Sequence[tuple[Video, Sequence[FileMoment]]],
    source: str | Source | None = None,
    *,
    merge: bool = False,
    replace: bool = False,
) -> dict[str, int]:
    """Add the moments of a file in one transaction; return their numbers by video.

    `source` is that of all rows, even of those with another one.  Otherwise as
    `VideoMoments.add_many`, which also raises the same.
    """
    given: list[tuple[VideoContext, dict[Source, list[MomentRow]]]] = []
    for video, several in rows:
        moments = video.moments
        by_source: dict[Source, list[MomentRow]] = {}
        for one in several:
            named = source or one.source
            if named is None:
                raise UsageError("moments without a source need one", hint='give the source "me"')
            row = MomentRow(moments.frames_of(one.span), one.label, one.confidence)
            by_source.setdefault(source_from(named), []).append(_checked_row(row))
        given.append((moments.video, by_source))
    _store(given, merge=merge, replace=replace)
    return {video.name: len(several) for video, several in rows}


def _store(
    given: Sequence[tuple[VideoContext, _RowsBySource]], *, merge: bool, replace: bool
) -> None:
    for video, by_source in given:
        count = video.original.frames
        for row in (row for rows in by_source.values() for row in rows):
            if row.frames.start < 0 or row.frames.stop > count:
                raise OutOfRangeError(
                    f"frames {row.frames.start}-{row.frames.stop - 1} do not all exist: "
                    f"{video.name!r} has {count}",
                    hint="frames count from 0",
                )
    if not given:
        return
    with given[0][0].parts.catalog.writing() as change:
        for video, by_source in given:
            info = video.info
            require_same_bytes(change.detections, info)
            for source, rows in by_source.items():
                if replace:
                    known = change.detections.known_sources(source)
                    change.moments.remove(info.id, source_ids=known)
                change.moments.add(info.id, rows, source)
                if merge:
                    change.moments.merge(info.id, {row.label for row in rows}, source)


def find_moments(
    videos: Sequence[VideoContext],
    label: Labels | None = None,
    *,
    frames: range | None = None,
    source: str | Source | None = None,
    min_confidence: float | None = None,
) -> list[Moment]:
    """Return the moments of `VideoMoments.query` in several videos, without its warning.

    They are in the order of `videos`, then by frames.  `frames` are numbers in each video.
    """
    clauses = clauses_of(label)
    by_id = {video.info.id: video for video in videos}
    sources = None if source is None else [source]
    # Every label of a run counts for an expression that has a NOT, an AND or an attribute.
    is_plain = len(clauses) == 1 and clauses[0].is_plain
    names = list(clauses[0].labels) if is_plain else None
    if not videos:
        return []
    with videos[0].parts.catalog.reading() as seen:
        rows = seen.moments.find(by_id, names, sources, frames)
    found = [
        Moment(
            by_id[number].name,
            row.frames,
            seconds_of(by_id[number], row.frames),
            row.label,
            one,
            row.confidence,
            row.attributes,
        )
        for number, one, row in rows
    ]
    return [
        moment
        for moment in matches_clauses(found, clauses)
        if min_confidence is None
        or (moment.confidence is not None and moment.confidence >= min_confidence)
    ]


def seconds_of(video: VideoContext, frames: range) -> tuple[Fraction, Fraction]:
    """Return when frames appear, and when they end, in seconds from the first frame."""
    times = video.snapshot().times
    return times.seconds_at(frames.start), times.seconds_at(frames.stop)


def _checked_row(row: MomentRow) -> MomentRow:
    require_word(row.label, "a label")
    check_attributes(row.attributes)
    confidence = row.confidence
    if confidence is not None:
        if isinstance(confidence, bool) or not isinstance(confidence, SupportsFloat):
            raise UsageError(f"confidence must be a number or None, got {shown(confidence)}")
        confidence = float(confidence)
        if not math.isfinite(confidence):
            raise UsageError(f"confidence must be finite, got {confidence}")
    return dataclasses.replace(row, confidence=confidence)
